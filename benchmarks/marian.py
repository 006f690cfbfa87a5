"""Train a MarianMT model, or a T5, with transformers' own code: the imported models of benchmarks/README.md.

    python benchmarks/marian.py --data FOLDER --output FOLDER [-s en] [-t de] [--updates 2200]
    python benchmarks/marian.py --data FOLDER --output FOLDER -s en -t fr --pieces 10000 --width 512 --layers 6 --dropout 0
    python benchmarks/marian.py --data FOLDER --output FOLDER --t5 --width 512 --layers 8 --pieces 8000

FOLDER contains train and valid .SRC and .TGT (.gz allowed). The result looks like OPUS-MT: two SentencePiece models, one
vocabulary with the padding symbol last, which starts the decoder and embeds as zero, tied embeddings, post-norm, swish; with --t5
like Flan-T5 (small: width 512, 8 layers): one SentencePiece model, T5 1.1's parts, six heads of 64 in a width of 512.
Trains on a GPU if there is one, in bfloat16 where the device can. Interrupted training resumes. The saved model is the average of
the last snapshots; its greedy BLEU on valid is printed.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import sacrebleu
import sentencepiece
import torch

from specdec_plugins.measure.certificate import library
from specdec_plugins.text.lines import read_lines
from specdec_plugins.training.muon import Muon, is_hidden
from specdec_plugins.training.precision import choose_kernels, keep_memory

PARTS, KEPT = 44, 6  # of a training, each of which ends with a snapshot; snapshots averaged
BATCHES = 2  # in an update
LONGEST, RATIO = 128, 3  # pieces in a sentence and ratio of a pair's lengths: others are left out
LEARNING_RATE = 2e-3  # at its highest
transformers = library()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISION = "bf16" if DEVICE == "cuda" or torch.cpu._is_avx512_bf16_supported() else "float32"


def read(data: Path, split: str, lang: str) -> list[str]:
    return list(read_lines(next(path for path in (data / f"{split}.{lang}", data / f"{split}.{lang}.gz") if path.exists())))


def tokenizer_of(args: argparse.Namespace) -> Any:
    """A tokenizer with one SentencePiece model per side, trained once, and a vocabulary in OPUS-MT's order."""
    pieces: dict[str, None] = {"</s>": None, "<unk>": None}
    for side, lang in (("source", args.source_lang), ("target", args.target_lang)):
        model = args.output / f"{side}.spm"
        if not model.exists():
            text = iter(read(args.data, "train", lang))
            prefix = str(args.output / side)
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=text, model_prefix=prefix, vocab_size=args.pieces, character_coverage=1.0, minloglevel=2
            )
            Path(f"{prefix}.model").rename(model)
        spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
        ids = (number for number in range(len(spm)) if not spm.is_control(number) and not spm.is_unknown(number))
        pieces |= dict.fromkeys(map(spm.id_to_piece, ids))
    vocab = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
    (args.output / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), "utf-8")
    source, target, path = (str(args.output / name) for name in ("source.spm", "target.spm", "vocab.json"))
    return transformers.MarianTokenizer(source, target, path, source_lang=args.source_lang, target_lang=args.target_lang)


def t5_tokenizer_of(args: argparse.Namespace) -> Any:
    """A tokenizer with one SentencePiece model for both sides, and T5's special tokens without sentinels."""
    model = args.output / "spiece.model"
    if not model.exists():
        text = (line for lang in (args.source_lang, args.target_lang) for line in read(args.data, "train", lang))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text,
            model_prefix=str(args.output / "spiece"),
            vocab_size=args.pieces,
            character_coverage=1.0,
            minloglevel=2,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
        )
    spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
    scored = [(spm.id_to_piece(number), spm.get_score(number)) for number in range(len(spm))]
    return transformers.T5Tokenizer(vocab=scored, extra_ids=0)


def t5_of(args: argparse.Namespace, size: int) -> Any:
    config = transformers.T5Config(
        vocab_size=size,
        d_model=args.width,
        d_kv=64,
        d_ff=2 * args.width,
        num_layers=args.layers,
        num_heads=3 * args.width // 256,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=args.dropout,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    torch.nn.init.normal_(model.lm_head.weight, std=args.width**-0.5)  # transformers' 1 makes logits too large to learn from
    model.generation_config.max_length = 200
    return model


def model_of(args: argparse.Namespace, size: int) -> Any:
    shape: dict[str, Any] = {"layers": args.layers, "attention_heads": args.width // 64, "ffn_dim": 4 * args.width}
    sides: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()}
    special: dict[str, Any] = {
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    how: dict[str, Any] = {
        "dropout": args.dropout,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 512,
    }
    config = transformers.MarianConfig(vocab_size=size, d_model=args.width, **sides, **special, **how)
    model = transformers.MarianMTModel(config)
    model.generation_config = transformers.GenerationConfig(
        **special, bad_words_ids=[[size - 1]], max_length=512, num_beams=4, renormalize_logits=True
    )
    return model


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


def train(model: Any, pairs: list[tuple[list[int], list[int]]], tokens: int, updates: int, saved: Path) -> None:
    """Muon, warm-up and linear decay, label smoothing; ends with the average of the last snapshots."""
    pad, embedding = model.config.pad_token_id, model.get_input_embeddings().weight
    hidden, others = ([p for p in model.parameters() if is_hidden(p) is wanted] for wanted in (True, False))
    muon = Muon(hidden, others, LEARNING_RATE, betas=(0.9, 0.98), eps=1e-8, weight_decay=0)
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
    p.add_argument("--t5", action="store_true", help="a T5 like Flan-T5; --width is a multiple of 256")
    p.add_argument("--tokens", type=int, default=2048, metavar="N", help="in a batch, of which an update has 2 (default: 2048)")
    p.add_argument("--dropout", type=float, default=0.2, metavar="P")
    p.add_argument("--updates", type=int, default=2200, metavar="N")
    p.add_argument("--pieces", type=int, default=4500, metavar="N", help="of each SentencePiece model (default: 4500)")
    p.add_argument("--width", type=int, default=256, metavar="N")
    p.add_argument("--layers", type=int, default=4, metavar="N", help="of the encoder and of the decoder")
    p.add_argument("--scored", type=int, metavar="N", help="lines of valid (default: all)")
    args = p.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    choose_kernels(PRECISION)
    keep_memory()
    tokenizer = t5_tokenizer_of(args) if args.t5 else tokenizer_of(args)
    model = t5_of(args, len(tokenizer)) if args.t5 else model_of(args, len(tokenizer.encoder))
    model.to(DEVICE)
    text = {
        split: [read(args.data, split, lang) for lang in (args.source_lang, args.target_lang)] for split in ("train", "valid")
    }
    sources, targets = tokenizer(text["train"][0])["input_ids"], tokenizer(text_target=text["train"][1])["input_ids"]
    pairs = [pair for pair in zip(sources, targets) if max(map(len, pair)) <= min(LONGEST, RATIO * min(map(len, pair)))]
    train(model, pairs, args.tokens, args.updates, args.output / "training.pt")
    model.eval().save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(f"valid, greedy: {bleu(model, tokenizer, *(lines[: args.scored] for lines in text['valid']))}")


if __name__ == "__main__":
    main()
