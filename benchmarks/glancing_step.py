#!/usr/bin/env python3
"""What a glancing step costs beside a plain masked step, and where the time goes: ``make bench-step``.

Steps of both kinds alternate in one run on the same random batches, so that a machine whose speed drifts slows both; the
figures are medians. The last line is JSON with everything needed to compare runs.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from types import SimpleNamespace

import torch


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="model width; the feed-forward layers are four times as wide")
    parser.add_argument("--layers", type=int, default=4, help="layers of encoder and decoder")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4096, help="source and target tokens a batch")
    parser.add_argument("--length", type=int, default=15, help="mean sentence length in tokens")
    parser.add_argument("--block-size", type=int, default=12)
    parser.add_argument("--batches", type=int, default=5, help="timed steps of each kind")
    return parser.parse_args(argv)


def build(options: argparse.Namespace):
    """The drafter, its task and its loss, as fairseq-train would build them."""
    from fairseq.data import Dictionary

    from specdec_plugins.criterions.glat_loss import GlatLoss
    from specdec_plugins.models.block import BlockDrafterModel, block_architecture
    from specdec_plugins.tasks.translation_lev_modified import BlockTranslationConfig, BlockTranslationTask

    dictionary = Dictionary()
    for index in range(options.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"w{index}")
    args = argparse.Namespace(
        encoder_embed_dim=options.width, encoder_ffn_embed_dim=4 * options.width, encoder_layers=options.layers,
        decoder_layers=options.layers, encoder_attention_heads=options.width // 64, decoder_attention_heads=options.width // 64,
        share_all_embeddings=True, src_embedding_copy=True, apply_bert_init=True, dropout=0.1,
    )  # fmt: skip
    block_architecture(args)
    task = BlockTranslationTask(
        BlockTranslationConfig(data="-", source_lang="a", target_lang="b", block_size=options.block_size), dictionary, dictionary
    )
    return BlockDrafterModel.build_model(args, task), task, GlatLoss(task, 0.1)


def make_sample(options: argparse.Namespace) -> dict:
    """A batch of sentences whose lengths vary little, as fairseq batches them by length."""
    lengths = torch.randint(options.length - 2, options.length + 3, (options.tokens // options.length,))
    tokens = torch.randint(4, options.vocabulary, (len(lengths), int(lengths.max())))
    tokens[torch.arange(tokens.size(1)) >= lengths[:, None]] = 1
    tokens[torch.arange(len(lengths)), lengths - 1] = 2
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    return {"id": torch.arange(len(lengths)), "net_input": net_input, "target": tokens, "ntokens": int(lengths.sum())}


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    model, task, loss = build(options)
    adam = torch.optim.Adam(model.parameters(), lr=1e-5)
    optimizer = SimpleNamespace(backward=lambda value: value.backward())

    def step(sample: dict, ratio: float) -> float:
        task.cfg.start_p, task.cfg.minus_p = ratio, 0.0
        begin = time.perf_counter()
        adam.zero_grad()
        task.train_step(sample, model, loss, optimizer, update_num=0)
        adam.step()
        return time.perf_counter() - begin

    torch.manual_seed(0)
    samples = [make_sample(options) for _ in range(options.batches + 1)]
    seconds: dict[str, list[float]] = {"plain": [], "glancing": []}
    for number, sample in enumerate(samples):
        for kind, ratio in (("plain", 0.0), ("glancing", 0.5)):
            elapsed = step(sample, ratio)
            if number > 0:  # the first round warms up
                seconds[kind].append(elapsed)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    ratios = [glancing / plain for plain, glancing in zip(seconds["plain"], seconds["glancing"])]
    print(f"{'step':<10}{'median s':>10}{'min':>8}{'max':>8}")
    for kind, values in seconds.items():
        print(f"{kind:<10}{medians[kind]:>10.3f}{min(values):>8.3f}{max(values):>8.3f}")
    print(f"glancing / plain: {statistics.median(ratios):.2f} (median of {len(ratios)} pairs)")
    signature = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    print(json.dumps({"seconds": seconds, "ratio": statistics.median(ratios), **vars(options), **signature}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
