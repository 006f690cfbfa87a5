"""The engine in fairseq's terms: what its generate and interactive decode with when ``--drafter-path`` is given."""

import argparse
import atexit
import logging
import math
from typing import Any

import torch
from fairseq.models.bart import BARTModel
from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import Sampling
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Hypothesis, Request
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.formats.spec import DrafterModel, Model, Symbols
from specdec_plugins.text.vocabulary import fingerprint_of

logger = logging.getLogger(__name__)

# fairseq's options that speculative decoding has no place for, with the values that do no harm. fairseq's default beam is 5,
# which cannot be told from one that was asked for; the log says that it is not used.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "min_len": (1,), "match_source_len": (False,), "unkpen": (0,), "score_reference": (False,), "prefix_size": (0,),
    "no_repeat_ngram_size": (0,), "constraints": (None,), "diverse_beam_groups": (-1,), "diversity_rate": (-1.0,),
    "print_alignment": (None,), "lm_path": (None,), "retain_dropout": (False,),
}  # fmt: skip
HARMLESS_GREEDY = {"beam": (1, 5), "nbest": (1,), "temperature": (1.0,), "sampling_topk": (-1,), "sampling_topp": (-1.0,)}


class SpeculativeGenerator:
    """Stands where fairseq's `SequenceGenerator` does, for one verifier and its drafter; exact with ``beta=1``.

    Greedy, or with fairseq's ``--sampling`` under the coupled rule: ``--beam`` samples a sentence, the best first, drawn by
    fairseq's ``--seed`` and the sentence's number.
    """

    def __init__(self, models, dictionaries, drafter_path: str, block_size: int | None, beta: int, tau: float | None, options):
        """``models``: fairseq's, one; ``options``: its generation options. Raises ValueError with all that cannot be."""
        sampling = getattr(options, "sampling", False)
        faults = [
            f"--{name.replace('_', '-')} {getattr(options, name)}"
            for name, values in {**HARMLESS, **({} if sampling else HARMLESS_GREEDY)}.items()
            if getattr(options, name, values[0]) not in values
        ]
        if sampling and beta > 1:
            faults.append(f"--beta {beta} together with --sampling")
        if beta > 1 and tau is None:
            faults.append(f"--beta {beta} without --tau")
        if len(models) != 1:
            faults.append(f"an ensemble of {len(models)} models")
        if faults:
            raise ValueError("--drafter-path does not go with " + ", ".join(faults))
        self.samples, self.sampling, self.seed = 1, sampling_of(options) if sampling else None, torch.initial_seed()
        self.unnumbered = 0
        if sampling:
            self.samples = options.beam
        elif getattr(options, "beam", 1) != 1:
            logger.info("speculative decoding is greedy: --beam %d is not used", options.beam)
        eos = dictionaries[1].eos()
        self.symbols = Symbols(dictionaries[1].pad(), eos, eos, dictionaries[1].unk())
        self.eos = self.symbols.eos  # fairseq strips it from what it prints
        self.options, self.max_positions = options, models[0].max_decoder_positions()
        drafter = load_drafter(drafter_path, dictionaries)
        verifier = read_loaded(models[0])
        weight = next(models[0].parameters())
        self.device = weight.device
        dtype = str(weight.dtype).removeprefix("torch.")
        roles = assemble(verifier, drafter, weight.device, dtype)
        fixed = block_size or beta > 1  # with tolerance the length changes the output
        trained = drafter.block_size
        self.roles = (
            *roles,
            TopBetaTau(beta, math.inf if tau is None else tau),
            FixedLength(block_size or trained) if fixed else Throughput(trained),
        )
        self.stats = DecodeStats()
        atexit.register(self.log_stats)  # fairseq tells no one when it is done

    def generate(self, models, sample, prefix_tokens=None, constraints=None, **unused) -> list[list[dict[str, Any]]]:
        """fairseq's hypotheses, one a sentence, in the order of the sample's ``src_tokens`` (B, S), padded on either side."""
        tokens = sample["net_input"]["src_tokens"]
        # fairseq's limit, with the padded length of the batch: otherwise outputs that it cuts would differ.
        limit = int(self.options.max_len_a * tokens.size(1) + self.options.max_len_b)
        limit = min(limit, self.max_positions - 1)
        sources = [[token for token in row if token != self.symbols.pad] for row in tokens.tolist()]
        # fairseq-interactive does not number its sentences.
        numbers = sample["id"].tolist() if "id" in sample else range(self.unnumbered, self.unnumbered + len(sources))
        self.unnumbered += len(sources)
        samples = range(self.samples)
        requests = [
            Request(index, source, limit, sampling=self.sampling, seeds=[mixed(self.seed, line, number) for number in samples])
            for index, (source, line) in enumerate(zip(sources, numbers))
        ]
        rows = len(requests) * self.samples
        groups: list[list[dict[str, Any]]] = [[] for _ in requests]
        done = speculative_decode(*self.roles, requests, rows, self.stats, Constraints(self.symbols), self.device)
        for each in sorted(done, key=lambda each: each.output):
            groups[each.index].append(self.hypothesis(each))
        return [sorted(group, key=lambda each: -each["score"]) for group in groups]

    def hypothesis(self, found: Hypothesis) -> dict[str, Any]:
        scores = torch.tensor(found.token_scores)
        length = 1.0 if self.options.unnormalized else len(scores) ** self.options.lenpen
        return {
            "tokens": torch.tensor([*found.tokens, self.symbols.eos]), "score": scores.sum() / length,
            "positional_scores": scores, "attention": None, "alignment": torch.empty(0), "steps": len(found.steps),
        }  # fmt: skip

    def log_stats(self) -> None:
        if self.stats.iterations:
            logger.info(
                "speculative decoding: %.2f tokens per verifier pass (1.0 is plain autoregressive decoding), "
                "%.0f%% of the drafted tokens accepted, %d outputs cut by the length limit",
                self.stats.mean_accepted_length, 100 * self.stats.acceptance_rate, self.stats.cut,
            )  # fmt: skip


def sampling_of(options) -> Sampling:
    """fairseq's sampling options as ours; its -1 is for all tokens."""
    top_k, top_p = options.sampling_topk, options.sampling_topp
    return Sampling(options.temperature, max(0, top_k), top_p if top_p > 0 else 1.0)


def read_loaded(model) -> Model:
    """The verifier that fairseq has loaded. Raises ValueError if the engine does not support it."""
    if not isinstance(model, TransformerModelBase):
        raise ValueError(f"--path: the engine does not support a {type(model).__name__}")
    arch = "bart" if isinstance(model, BARTModel) else "transformer"
    settings = argparse.Namespace(**{**vars(model.cfg), "arch": arch, "_name": arch})
    verifier = fairseq.read({"model": model.state_dict(), "args": settings}, "--path")
    assert isinstance(verifier, Model), "by its arch"
    return verifier


def load_drafter(path: str, dictionaries) -> DrafterModel:
    """The drafter, if it was made for these dictionaries."""
    loaded = checkpoint.load(path)
    marks = (loaded.get("task_state") or {}).get("dictionaries") or [None, None]
    for side, half, dictionary, mark in zip(("source", "target"), ("encoder", "decoder"), dictionaries, marks):
        embedding = loaded["model"].get(f"{half}.embed_tokens.weight")
        if mark not in (None, fingerprint_of(dictionary.symbols)) or (
            embedding is not None and embedding.size(0) != len(dictionary)
        ):
            raise CheckpointError(f"--drafter-path {path}: it was trained with another {side} dictionary than the verifier's")
    drafter = fairseq.read(loaded, path)
    if not isinstance(drafter, DrafterModel):
        raise CheckpointError(f"--drafter-path {path}: it is no block drafter")
    return drafter
