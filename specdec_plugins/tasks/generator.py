"""Speculative decoding in fairseq-generate and fairseq-interactive, with ``--drafter-path``."""

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

# fairseq's options that are not supported here, with the values that change nothing. A beam of 5 is fairseq's default, so it
# may not have been requested: the log says that it is ignored.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "min_len": (1,), "match_source_len": (False,), "unkpen": (0,), "score_reference": (False,), "prefix_size": (0,),
    "no_repeat_ngram_size": (0,), "constraints": (None,), "diverse_beam_groups": (-1,), "diversity_rate": (-1.0,),
    "print_alignment": (None,), "lm_path": (None,), "retain_dropout": (False,),
}  # fmt: skip
HARMLESS_GREEDY = {"beam": (1, 5), "nbest": (1,), "temperature": (1.0,), "sampling_topk": (-1,), "sampling_topp": (-1.0,)}


class SpeculativeGenerator:
    """Replaces fairseq's `SequenceGenerator` for one verifier and its drafter; exact with ``beta=1``.

    Greedy, or with ``--sampling`` under the coupled rule: ``--beam`` samples per sentence, best first, seeded by fairseq's
    ``--seed`` and the sentence's number.
    """

    def __init__(self, models, dictionaries, drafter_path: str, block_size: int | None, beta: int, tau: float | None, options):
        """``models`` and generation ``options`` are fairseq's. Raises ValueError naming everything unsupported."""
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
            raise ValueError("--drafter-path cannot be combined with " + ", ".join(faults))
        self.samples, self.sampling, self.seed, self.unnumbered = 1, None, torch.initial_seed(), 0
        if sampling:
            top_k, top_p = max(0, options.sampling_topk), options.sampling_topp  # fairseq's -1 means no limit
            self.samples, self.sampling = options.beam, Sampling(options.temperature, top_k, top_p if top_p > 0 else 1.0)
        elif getattr(options, "beam", 1) != 1:
            logger.info("speculative decoding is greedy: --beam %d is ignored", options.beam)
        self.eos = dictionaries[1].eos()  # fairseq strips it from outputs
        self.symbols = Symbols(dictionaries[1].pad(), self.eos, self.eos, dictionaries[1].unk())
        self.options, self.max_positions = options, models[0].max_decoder_positions()
        drafter = load_drafter(drafter_path, dictionaries)
        verifier = read_loaded(models[0])
        weight = next(models[0].parameters())
        self.device = weight.device
        roles = assemble(verifier, drafter, weight.device, str(weight.dtype).removeprefix("torch."))
        fixed = block_size or beta > 1  # with tolerance, the draft length changes the output
        length = block_size or drafter.block_size
        rule = TopBetaTau(beta, math.inf if tau is None else tau)
        self.roles = *roles, rule, FixedLength(length) if fixed else Throughput(length)
        self.stats = DecodeStats()
        atexit.register(self.log_stats)  # fairseq has no hook for the end

    def generate(self, models, sample, prefix_tokens=None, constraints=None, **unused) -> list[list[dict[str, Any]]]:
        """fairseq's hypotheses per sentence, in the order of ``src_tokens`` (B, S), padded on either side."""
        tokens = sample["net_input"]["src_tokens"]
        # fairseq's limit depends on the batch's padded length; so do the outputs that it truncates.
        limit = int(self.options.max_len_a * tokens.size(1) + self.options.max_len_b)
        limit = min(limit, self.max_positions - 1)
        sources = [[token for token in row if token != self.symbols.pad] for row in tokens.tolist()]
        # fairseq-interactive does not number sentences.
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
        for output in sorted(done, key=lambda output: output.output):
            groups[output.index].append(self.hypothesis(output))
        return [sorted(group, key=lambda hypothesis: -hypothesis["score"]) for group in groups]

    def hypothesis(self, output: Hypothesis) -> dict[str, Any]:
        """An output as fairseq's dictionary."""
        scores = torch.tensor(output.token_scores)
        length = 1.0 if self.options.unnormalized else len(scores) ** self.options.lenpen
        return {
            "tokens": torch.tensor([*output.tokens, self.eos]), "score": scores.sum() / length,
            "positional_scores": scores, "attention": None, "alignment": torch.empty(0), "steps": len(output.steps),
        }  # fmt: skip

    def log_stats(self) -> None:
        if self.stats.iterations:
            logger.info(
                "speculative decoding: %.2f tokens per verifier pass (1.0 is plain autoregressive decoding), "
                "%.0f%% of drafted tokens accepted, %d outputs truncated at the length limit",
                self.stats.mean_accepted_length, 100 * self.stats.acceptance_rate, self.stats.cut,
            )  # fmt: skip


def read_loaded(model) -> Model:
    """The verifier loaded by fairseq, for the engine. Raises ValueError if the engine does not support it."""
    if not isinstance(model, TransformerModelBase):
        raise ValueError(f"--path: the engine does not support a {type(model).__name__}")
    arch = "bart" if isinstance(model, BARTModel) else "transformer"
    settings = argparse.Namespace(**{**vars(model.cfg), "arch": arch, "_name": arch})
    verifier = fairseq.read({"model": model.state_dict(), "args": settings}, "--path")
    assert isinstance(verifier, Model), "by its arch"
    return verifier


def load_drafter(path: str, dictionaries) -> DrafterModel:
    """The drafter of a checkpoint. Raises CheckpointError if it was trained with other dictionaries."""
    loaded = checkpoint.load(path)
    marks = (loaded.get("task_state") or {}).get("dictionaries") or [None, None]
    for side, half, dictionary, mark in zip(("source", "target"), ("encoder", "decoder"), dictionaries, marks):
        embedding = loaded["model"].get(f"{half}.embed_tokens.weight")
        if mark not in (None, fingerprint_of(dictionary.symbols)) or (
            embedding is not None and embedding.size(0) != len(dictionary)
        ):
            raise CheckpointError(f"--drafter-path {path} was trained with a {side} dictionary that is not the verifier's")
    drafter = fairseq.read(loaded, path)
    if not isinstance(drafter, DrafterModel):
        raise CheckpointError(f"--drafter-path {path} is not a drafter")
    return drafter
