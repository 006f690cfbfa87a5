"""Untrained models of the families that `marian.py` trains, with their tokenizers, and models grown to twice the width.

Each family looks like the models that are published: Marian like OPUS-MT's (two SentencePiece models, one vocabulary with the
padding symbol last, which starts the decoder and embeds as zero, post-norm, swish), T5 like Flan-T5 (small: width 512, 8 layers,
six heads of 64), M2M100 (pre-norm, a language's token before each sentence), BART (byte-level BPE, post-norm, learned positions).
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch

from specdec_plugins.measure.certificate import library
from specdec_plugins.text.lines import read_lines

transformers = library()
NOISE = 0.5  # how far the two copies of a weight are apart, in root mean squares of the matrix
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # M2M100's and BART's first symbols


def read(data: Path, split: str, lang: str) -> list[str]:
    return list(read_lines(next(path for path in (data / f"{split}.{lang}", data / f"{split}.{lang}.gz") if path.exists())))


def both(args: argparse.Namespace) -> Iterator[str]:
    """The training text of both languages."""
    return (line for lang in (args.source_lang, args.target_lang) for line in read(args.data, "train", lang))


def sentencepiece_of(model: Path, text: Iterator[str], pieces: int, **ids: Any) -> sentencepiece.SentencePieceProcessor:
    """The SentencePiece model in this file, trained if there is none."""
    if not model.exists():
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text,
            model_prefix=str(model.with_suffix("")),
            vocab_size=pieces,
            character_coverage=1.0,
            minloglevel=2,
            **ids,
        )
        model.with_suffix(".model").rename(model)
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def pieces_of(spm: sentencepiece.SentencePieceProcessor) -> list[str]:
    return [spm.id_to_piece(n) for n in range(len(spm)) if not spm.is_control(n) and not spm.is_unknown(n)]


def write_vocabulary(path: Path, pieces: list[str]) -> None:
    path.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}, ensure_ascii=False), "utf-8")


def sides(args: argparse.Namespace) -> dict[str, Any]:
    """What configs call the shape of encoder and decoder."""
    shape = {"layers": args.layers, "attention_heads": args.width // 64, "ffn_dim": 4 * args.width}
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()}


def marian(args: argparse.Namespace) -> tuple[Any, Any]:
    pieces = {"</s>": None, "<unk>": None}
    for side, lang in (("source", args.source_lang), ("target", args.target_lang)):
        spm = sentencepiece_of(args.output / f"{side}.spm", iter(read(args.data, "train", lang)), args.pieces)
        pieces |= dict.fromkeys(pieces_of(spm))
    write_vocabulary(args.output / "vocab.json", [*pieces, "<pad>"])
    size = len(pieces) + 1
    files = (str(args.output / name) for name in ("source.spm", "target.spm", "vocab.json"))
    tokenizer = transformers.MarianTokenizer(*files, source_lang=args.source_lang, target_lang=args.target_lang)
    special: dict[str, Any] = {
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    config = transformers.MarianConfig(
        vocab_size=size,
        d_model=args.width,
        **sides(args),
        **special,
        dropout=args.dropout,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
    )
    model = transformers.MarianMTModel(config)
    model.generation_config = transformers.GenerationConfig(
        **special, bad_words_ids=[[size - 1]], max_length=512, num_beams=4, renormalize_logits=True
    )
    return tokenizer, model


def t5(args: argparse.Namespace) -> tuple[Any, Any]:
    spm = sentencepiece_of(args.output / "spiece.model", both(args), args.pieces, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    scored = [(spm.id_to_piece(number), spm.get_score(number)) for number in range(len(spm))]
    tokenizer = transformers.T5Tokenizer(vocab=scored, extra_ids=0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
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
    return tokenizer, model


def m2m100(args: argparse.Namespace) -> tuple[Any, Any]:
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    spm = sentencepiece_of(args.output / "sentencepiece.bpe.model", both(args), args.pieces)
    files = {"vocab_file": str(args.output / "vocab.json"), "spm_file": str(args.output / "sentencepiece.bpe.model")}
    write_vocabulary(args.output / "vocab.json", [*SPECIAL, *pieces_of(spm)])
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]  # which transformers 5.24 does not add by itself
    tokenizer = transformers.M2M100Tokenizer(
        **files, src_lang=args.source_lang, tgt_lang=args.target_lang, additional_special_tokens=languages
    )
    size = len({**tokenizer.encoder, **tokenizer.lang_token_to_id}) + tokenizer.num_madeup_words
    config = transformers.M2M100Config(
        vocab_size=size, d_model=args.width, **sides(args), dropout=args.dropout, max_position_embeddings=512
    )
    model = transformers.M2M100ForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id(args.target_lang)
    model.generation_config.max_length = 200
    return tokenizer, model


def bart(args: argparse.Namespace) -> tuple[Any, Any]:
    from tokenizers import ByteLevelBPETokenizer

    if not (args.output / "merges.txt").exists():
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(both(args), vocab_size=args.pieces, special_tokens=list(SPECIAL), show_progress=False)
        trained.add_special_tokens(["<mask>"])
        trained.save_model(str(args.output))
    tokenizer = transformers.BartTokenizer(vocab=str(args.output / "vocab.json"), merges=str(args.output / "merges.txt"))
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=args.width, **sides(args), dropout=args.dropout, max_position_embeddings=512
    )
    model = transformers.BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = tokenizer.bos_token_id
    model.generation_config.max_length = 200
    return tokenizer, model


FAMILIES = {"marian": marian, "t5": t5, "m2m100": m2m100, "bart": bart}


def widened(model: Any, seed: int = 1) -> Any:
    """The same function, but for sinusoidal positions, at twice the width: every unit, head and feed-forward unit is there twice
    (Net2Net, Chen et al. 2016, arXiv 1511.05641). Not for T5.

    Units that are copies stay equal, so a matrix may spread an input's weight over its copies at random: they learn different
    things from the first update on.
    """
    config, random = model.config.to_dict(), np.random.default_rng(seed)
    head_widths = {side: config["d_model"] // config[f"{side}_attention_heads"] for side in ("encoder", "decoder")}
    for name in config:
        if name == "d_model" or name.endswith(("_ffn_dim", "_attention_heads")):
            config[name] *= 2
    wide = type(model)(type(model.config).from_dict(config)).to(model.dtype)
    scale = 0.5**0.5 if config["scale_embedding"] else 1  # embeddings scaled by the root of the width are scaled by more
    final = hasattr(model.model.decoder, "layer_norm")
    last = "layer_norm." if final else f"layers.{config['decoder_layers'] - 1}.final_layer_norm."
    made = {}
    for name, tensor in model.state_dict().items():
        weight = tensor.double().cpu().numpy()
        head = head_widths["encoder" if name.startswith("model.encoder") else "decoder"]
        if "final_logits_bias" in name:
            made[name] = weight
        elif "embed_positions" in name:
            made[name] = np.repeat(weight, 2, axis=1)
        elif "embed_tokens" in name or name.startswith(("model.shared", "lm_head")):
            made[name] = np.repeat(weight, 2, axis=1) * scale
        else:
            made[name] = weight[twice(len(weight), head if any(f"{kind}_proj" in name for kind in "qkv") else 1)]
            if weight.ndim == 2:
                made[name] = spread(made[name], head if "out_proj" in name else 1, random)
        if name.startswith(f"model.decoder.{last}"):
            made[name] = made[name] / (2 * scale)  # logits add up over twice the units
    wide.load_state_dict({name: torch.tensor(weight) for name, weight in made.items()})
    wide.generation_config = model.generation_config
    return wide


def twice(size: int, group: int) -> np.ndarray:
    """For each of twice ``size`` units the one that it copies; each ``group`` of units is followed by its copy."""
    return np.repeat(np.arange(size).reshape(-1, group), 2, axis=0).ravel()


def spread(weight: np.ndarray, group: int, random: np.random.Generator) -> np.ndarray:
    """A matrix for inputs that are there twice: the weights of the copies add up to ``weight``'s."""
    one, other = np.argsort(twice(weight.shape[1], group), kind="stable").reshape(-1, 2).T
    apart = random.normal(0, NOISE * np.sqrt(np.mean(weight**2)) / 2, weight.shape)
    wide = np.empty((len(weight), 2 * weight.shape[1]))
    wide[:, one], wide[:, other] = weight / 2 + apart, weight / 2 - apart
    return wide
