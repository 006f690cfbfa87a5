"""Train a Marian, T5, M2M100 or BART model with transformers' own code: the imported models of benchmarks/README.md.

    python benchmarks/marian.py --data FOLDER --output FOLDER [-s en] [-t de] [--updates 2200]
    python benchmarks/marian.py --data FOLDER --output FOLDER -s en -t fr --pieces 10000 --width 512 --layers 6 --dropout 0
    python benchmarks/marian.py --data FOLDER --output FOLDER --family t5 --width 512 --layers 8 --pieces 8000
    python benchmarks/marian.py --data FOLDER --output FOLDER --family bart --layers 3 --updates 400 --widened 50

FOLDER contains train and valid .SRC and .TGT (.gz allowed). With --widened the trained model grows to twice the width and trains
on. Trains on a GPU if there is one, in bfloat16 where the device can. Interrupted training resumes. The saved model is the
average of the last snapshots; its greedy BLEU on valid is printed.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from families import FAMILIES, read, widened

from specdec_plugins.training.muon import Muon, is_hidden
from specdec_plugins.training.precision import choose_kernels, keep_memory

PARTS, KEPT = 44, 6  # of a training, each of which ends with a snapshot; snapshots averaged
BATCHES = 2  # in an update
LONGEST, RATIO = 128, 3  # pieces in a sentence and ratio of a pair's lengths: others are left out
LEARNING_RATE = 2e-3  # at its highest, of models that start from nothing
WIDENED_RATE = 4e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISION = "bf16" if DEVICE == "cuda" or torch.cpu._is_avx512_bf16_supported() else "float32"


def batches(pairs: list[tuple[list[int], list[int]]], tokens: int, seed: int) -> list[list[tuple[list[int], list[int]]]]:
    """Batches of similar lengths with at most so many tokens, padding included, in random order."""
    generator = random.Random(seed)
    made: list[list[tuple[list[int], list[int]]]] = [[]]
    longest = 0
    for pair in sorted(generator.sample(pairs, len(pairs)), key=lambda pair: (len(pair[1]), len(pair[0]))):
        longest = max(longest, *map(len, pair))
        if (len(made[-1]) + 1) * longest > tokens:
            made.append([])
            longest = max(map(len, pair))
        made[-1].append(pair)
    return generator.sample(made, len(made))


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value).to(DEVICE)


def train(
    model: Any, pairs: list[tuple[list[int], list[int]]], tokens: int, updates: int, saved: Path, lr: float = LEARNING_RATE
) -> None:
    """Muon, warm-up and linear decay, label smoothing; ends with the average of the last snapshots."""
    pad, embedding = model.config.pad_token_id, model.get_input_embeddings().weight
    hidden, others = ([p for p in model.parameters() if is_hidden(p) is wanted] for wanted in (True, False))
    muon = Muon(hidden, others, lr, betas=(0.9, 0.98), eps=1e-8, weight_decay=0)
    warmup = min(100, updates // 5 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(muon, lambda n: min((n + 1) / warmup, 1.02 - n / updates))
    state: dict = {"done": 0, "epoch": 0, "snapshots": []}
    if saved.exists():
        state = torch.load(saved, DEVICE, weights_only=True)
        model.load_state_dict(state["snapshots"][-1])
        muon.load_state_dict(state["muon"])
        schedule.load_state_dict(state["schedule"])
    every = max(1, updates // PARTS)
    began, losses, todo = time.time(), list[float](), list[list[tuple[list[int], list[int]]]]()
    while state["done"] < updates:
        for _ in range(BATCHES):
            if not todo:
                state["epoch"] += 1
                todo = batches(pairs, tokens, state["epoch"])
            batch = todo.pop()
            source, target = padded([one for one, _ in batch], pad), padded([other for _, other in batch], -100)
            before = padded([[model.config.decoder_start_token_id, *other[:-1]] for _, other in batch], pad)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=PRECISION == "bf16"):
                logits = model(source, source.ne(pad).long(), decoder_input_ids=before, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), label_smoothing=0.1)
            (loss / BATCHES).backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        schedule.step()
        muon.zero_grad()
        if model.config.tie_word_embeddings:
            with torch.no_grad():
                embedding[pad] = 0  # the output layer, which is tied, has changed it
        state["done"] += 1
        if state["done"] % every == 0 or state["done"] == updates:
            print(f"{state['done']} updates, loss {sum(losses) / len(losses):.3f}, {time.time() - began:.0f} s", flush=True)
            losses.clear()
            snapshot = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            state["snapshots"] = [*state["snapshots"], snapshot][-KEPT:]
            torch.save({**state, "muon": muon.state_dict(), "schedule": schedule.state_dict()}, saved)
    last = state["snapshots"]
    model.load_state_dict({name: sum(each[name] for each in last) / len(last) for name in last[-1]})


@torch.inference_mode()
def bleu(model: Any, tokenizer: Any, sources: list[str], references: list[str]) -> str:
    """Greedy, by transformers' own generation."""
    outputs: list[str] = []
    for first in range(0, len(sources), 32):
        inputs = tokenizer(sources[first : first + 32], return_tensors="pt", padding=True).to(DEVICE)
        outputs += tokenizer.batch_decode(model.generate(**inputs, num_beams=1), skip_special_tokens=True)
    return str(sacrebleu.corpus_bleu(outputs, [references]))


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    p.add_argument("--data", type=Path, required=True, metavar="DIR")
    p.add_argument("--output", type=Path, required=True, metavar="DIR")
    p.add_argument("-s", "--source-lang", default="en")
    p.add_argument("-t", "--target-lang", default="de")
    p.add_argument("--family", choices=FAMILIES, default="marian", help="T5: --width is a multiple of 256 (default: marian)")
    p.add_argument("--tokens", type=int, default=2048, metavar="N", help="in a batch, of which an update has 2 (default: 2048)")
    p.add_argument("--dropout", type=float, default=0.2, metavar="P")
    p.add_argument("--updates", type=int, default=2200, metavar="N")
    p.add_argument("--pieces", type=int, default=4500, metavar="N", help="of each SentencePiece model (default: 4500)")
    p.add_argument("--width", type=int, default=256, metavar="N")
    p.add_argument("--layers", type=int, default=4, metavar="N", help="of the encoder and of the decoder")
    p.add_argument("--widened", type=int, default=0, metavar="N", help="updates at twice the width after that; not for T5")
    p.add_argument("--scored", type=int, metavar="N", help="lines of valid (default: all)")
    args = p.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    choose_kernels(PRECISION)
    keep_memory()
    tokenizer, model = FAMILIES[args.family](args)
    model.to(DEVICE)
    text = {
        split: [read(args.data, split, lang) for lang in (args.source_lang, args.target_lang)] for split in ("train", "valid")
    }
    sources, targets = tokenizer(text["train"][0])["input_ids"], tokenizer(text_target=text["train"][1])["input_ids"]
    pairs = [pair for pair in zip(sources, targets) if max(map(len, pair)) <= min(LONGEST, RATIO * min(map(len, pair)))]
    train(model, pairs, args.tokens, args.updates, args.output / "training.pt")
    if args.widened:
        model = widened(model).to(DEVICE)
        train(model, pairs, args.tokens, args.widened, args.output / "widened.pt", WIDENED_RATE)
    model.eval().save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(f"valid, greedy: {bleu(model, tokenizer, *(lines[: args.scored] for lines in text['valid']))}")


if __name__ == "__main__":
    main()
