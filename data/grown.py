"""The corpus of documentation, and the shipped pair's verifier grown to twice the width: a large model starts where a small one
stopped.

    data/grown.sh --local DIR [--output DIR] [--seed N] [options of prepare.sh]

DIR contains train, valid and test .en and .fr (.gz allowed). Subwords are the shipped pair's. OUTPUT/start.pt is a
transformer-base that computes what the shipped verifier does, but for its positions: every unit of the residual stream, every
attention head and every feed-forward unit is there twice (Net2Net, Chen et al. 2016, arXiv 1511.05641), and layers that add
nothing yet are inserted.
"""

import argparse
import sys
from pathlib import Path

import corpora
import numpy as np

from specdec_plugins.decoding.backends.torch.arrays import tensors
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.checkpoint import Checkpoint
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import Model
from specdec_plugins.formats.to_fairseq import checkpoint_of

LANGS = ("en", "fr")
PAIR = corpora.DATA / "docs.en-fr"
INSERTED = (1, 3)  # each of these layers is followed by a new one that starts with its weights, but adds nothing
NOISE = 0.5  # how far the two copies of a weight are apart, in root mean squares of the matrix; their sum is exact
SIZES = ("embed_dim", "ffn_embed_dim", "attention_heads")  # that double
NEUTRAL = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias")  # zero in a layer that adds nothing


def grown(model: Model, seed: int) -> Checkpoint:
    """A checkpoint of fairseq's pre-norm Transformer, twice as wide as a model and with the layers `INSERTED`.

    Units that are copies stay equal, so a matrix may spread an input's weight over its copies at random: they learn different
    things from the first update on.
    """
    small, random, heads = checkpoint_of(model), np.random.default_rng(seed), model.spec.encoder.attention.heads
    weights = deeper({name: np.asarray(weight, np.float64) for name, weight in small["model"].items()})
    settings = vars(small["args"]) | {f"decoder_{end}_dim": 2 * model.spec.decoder.width for end in ("input", "output")}
    for side in ("encoder", "decoder"):
        settings[f"{side}_layers"] = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith(f"{side}.layers."))
        settings |= {name: 2 * settings[name] for name in (f"{side}_{size}" for size in SIZES)}
    wide = {name: wider(name, weight, heads, random) for name, weight in weights.items()}
    for part in ("weight", "bias"):  # logits are sums over twice the units, of embeddings divided by the root of two
        wide[f"decoder.layer_norm.{part}"] /= np.sqrt(2)
    new = tensors({name: weight.astype(np.float32) for name, weight in wide.items()})
    return {**checkpoint.untrained(), **small, "args": argparse.Namespace(**settings), "model": new}


def wider(name: str, weight: np.ndarray, heads: int, random: np.random.Generator) -> np.ndarray:
    """A tensor for units that are there twice."""
    if name.endswith(".version"):
        return weight
    if "embed_positions" in name:
        return np.repeat(weight, 2, axis=1)
    if "embed_tokens" in name or "output_projection" in name:
        return np.repeat(weight, 2, axis=1) / np.sqrt(2)  # fairseq scales them by the root of the width
    copied = np.repeat(np.arange(len(weight)), 2)
    if any(part in name for part in ("q_proj", "k_proj", "v_proj")):
        copied = by_head(len(weight), heads)
    if weight.ndim == 1:
        return weight[copied]
    inputs = weight.shape[1]
    return spread(weight[copied], by_head(inputs, heads) if "out_proj" in name else np.repeat(np.arange(inputs), 2), random)


def deeper(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with the layers `INSERTED`, which start as the layer below, but whose parts add zero."""
    made: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        side, *rest = name.split(".", 3)
        if rest[0] != "layers":
            made[name] = weight
            continue
        layer, part = int(rest[1]), rest[2]
        place = layer + sum(below < layer for below in INSERTED)
        made[f"{side}.layers.{place}.{part}"] = weight
        if layer in INSERTED:
            made[f"{side}.layers.{place + 1}.{part}"] = np.zeros_like(weight) if part.endswith(NEUTRAL) else weight
    return made


def by_head(size: int, heads: int) -> np.ndarray:
    """For each of twice ``size`` units the one that it copies, if every head is followed by its copy."""
    return np.repeat(np.arange(size).reshape(heads, -1), 2, axis=0).ravel()


def spread(weight: np.ndarray, copied: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A matrix for inputs of which input i is a copy of ``copied[i]``, each there twice: the copies' weights add up to
    ``weight``'s."""
    one, other = np.argsort(copied, kind="stable").reshape(-1, 2).T
    apart = random.normal(0, NOISE * np.sqrt(np.mean(weight**2)) / 2, weight.shape)
    wide = np.empty((len(weight), copied.size))
    wide[:, one], wide[:, other] = weight / 2 + apart, weight / 2 - apart
    return wide


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "data/grown.py", description="Prepare the corpus. Further options are those of specdec-prepare."
    )
    parser.add_argument("--local", type=Path, metavar="DIR", required=True, help="folder with train, valid and test .en and .fr")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", default=corpora.DATA / "prepared" / "grown", help="data set to write"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the new weights (default: %(default)s)")
    options, more = parser.parse_known_args(argv)

    def make() -> list[str]:
        options.output.mkdir(parents=True, exist_ok=True)
        checkpoint.save(grown(load_folder(PAIR).verifier, options.seed), options.output / "start.pt")
        files = {"codes": PAIR / "codes", "dict": PAIR / "dict.en.txt"}
        files |= {split: options.local / split for split in ("train", "valid", "test")}
        return [word for option, path in files.items() for word in (f"--{option}", str(path))] + more

    return corpora.prepare_made(parser.prog, LANGS, options.output, make)


if __name__ == "__main__":
    sys.exit(main())
