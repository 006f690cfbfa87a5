"""The engine in fairseq-generate and fairseq-interactive: beam search, and speculative decoding with ``--drafter-path``."""

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
from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import Beam, Sampling
from specdec_plugins.decoding.requests import Hypothesis, Request
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import Symbols
from specdec_plugins.text.vocabulary import fingerprint_of

logger = logging.getLogger(__name__)

# fairseq's options that are not supported here, with the values that change nothing. A beam of 5 is fairseq's default, so it
# may not have been requested: the log says that it is ignored.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "match_source_len": (False,),
    "score_reference": (False,),
    "constraints": (None,),
    "diverse_beam_groups": (-1,),
    "diversity_rate": (-1.0,),
    "print_alignment": (None,),
    "lm_path": (None,),
    "retain_dropout": (False,),
}
HARMLESS_BEAMS = {"temperature": (1.0,), "sampling": (False,)}
HARMLESS_DRAFTED = {"unkpen": (0,)}
HARMLESS_GREEDY = {"beam": (1, 5), "nbest": (1,), "temperature": (1.0,), "sampling_topk": (-1,), "sampling_topp": (-1.0,)}


def unsupported(models, options, harmless: dict[str, tuple[Any, ...]]) -> list[str]:
    """What fairseq's ``options`` ask for that generators here do not support."""
    faults = [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name, values in {**HARMLESS, **harmless}.items()
        if getattr(options, name, values[0]) not in values
    ]
    return faults + ([f"an ensemble of {len(models)} models"] if len(models) != 1 else [])


class EngineGenerator:
    """Replaces fairseq's `SequenceGenerator` for one model."""

    roles: Roles
    rows = 1  # of a request, at most

    def __init__(self, models, dictionaries, options):
        """``models`` and generation ``options`` are fairseq's."""
        self.eos = dictionaries[1].eos()  # fairseq strips it from outputs
        self.symbols = Symbols(dictionaries[1].pad(), self.eos, self.eos, dictionaries[1].unk())
        self.options, self.max_positions, self.unnumbered = options, models[0].max_decoder_positions(), 0
        self.length_penalty = 0.0 if options.unnormalized else options.lenpen
        weight = next(models[0].parameters())
        self.device, self.dtype = str(weight.device), str(weight.dtype).removeprefix("torch.")
        self.stats = DecodeStats()

    def how(self, line: int) -> dict[str, Any]:
        """Options of the request for the sentence with that number."""
        raise NotImplementedError

    def generate(self, models, sample, prefix_tokens=None, constraints=None, **unused) -> list[list[dict[str, Any]]]:
        """fairseq's hypotheses per sentence, in the order of ``src_tokens`` (B, S), padded on either side; ``prefix_tokens``
        (B, P) begin them."""
        tokens, options = sample["net_input"]["src_tokens"], self.options
        # fairseq's limit depends on the batch's padded length; so do the outputs that it truncates.
        limit = min(int(options.max_len_a * tokens.size(1) + options.max_len_b), self.max_positions - 1)
        if options.min_len > limit:
            raise ValueError(f"--min-len {options.min_len} is more than the limit of {limit} tokens")
        sources = self._unpadded(tokens)
        prefixes = [list[int]() for _ in sources] if prefix_tokens is None else self._unpadded(prefix_tokens)
        # fairseq-interactive does not number sentences.
        numbers = sample["id"].tolist() if "id" in sample else range(self.unnumbered, self.unnumbered + len(sources))
        self.unnumbered += len(sources)
        requests = []
        for index, (source, forced, line) in enumerate(zip(sources, prefixes, numbers)):
            most = limit
            if self.eos in forced:  # the whole output is given, so it ends at its limit
                forced = forced[: forced.index(self.eos)]
                most = max(1, min(limit, len(forced)))
            least = min(options.min_len, most)
            how = {"forced": forced, "no_repeat": options.no_repeat_ngram_size, "scores": True, **self.how(line)}
            requests.append(Request(index, source, most, least, **how))
        groups: list[list[dict[str, Any]]] = [[] for _ in requests]
        rows = len(requests) * self.rows
        done = speculative_decode(self.roles, requests, rows, self.stats, Constraints(self.symbols), self.device)
        for output in sorted(done, key=lambda output: output.output):
            groups[output.index].append(self.hypothesis(output))
        return [sorted(group, key=lambda hypothesis: -hypothesis["score"]) for group in groups]

    def _unpadded(self, tokens: torch.Tensor) -> list[list[int]]:
        return [[token for token in row if token != self.symbols.pad] for row in tokens.tolist()]

    def hypothesis(self, output: Hypothesis) -> dict[str, Any]:
        """An output as fairseq's dictionary."""
        assert output.token_scores is not None
        scores, score = torch.tensor(output.token_scores), output.score
        if score is None:
            score = math.fsum(output.token_scores) / power(len(scores), self.length_penalty)
        return {
            "tokens": torch.tensor([*output.tokens, self.eos]),
            "score": torch.tensor(score),
            "positional_scores": scores,
            "attention": None,
            "alignment": torch.empty(0),
            "steps": len(output.steps),
        }


class BeamGenerator(EngineGenerator):
    """Beam search by fairseq's rules, with fairseq's output."""

    def __init__(self, models, dictionaries, options):
        """Raises ValueError naming everything unsupported."""
        if faults := unsupported(models, options, HARMLESS_BEAMS):
            raise ValueError(", ".join(faults))
        super().__init__(models, dictionaries, options)
        size = min(options.beam, len(dictionaries[1]) - 1)
        self.beam = Beam(size, "fairseq", self.length_penalty, min(size, options.nbest), options.unkpen)
        self.rows = size
        self.roles = Roles(*assemble(read_loaded(models[0]), None, self.device, self.dtype), TopBetaTau(), FixedLength(0))

    def how(self, line: int) -> dict[str, Any]:
        return {"beam": self.beam}


class SpeculativeGenerator(EngineGenerator):
    """For a model and its drafter; exact with ``beta=1``.

    Greedy, or with ``--sampling`` under the coupled rule: ``--beam`` samples per sentence, best first, seeded by fairseq's
    ``--seed`` and the sentence's number.
    """

    def __init__(self, models, dictionaries, drafter_path: str, block_size: int | None, beta: int, tau: float | None, options):
        """Raises ValueError naming everything unsupported."""
        sampling = getattr(options, "sampling", False)
        faults = unsupported(models, options, {**HARMLESS_DRAFTED, **({} if sampling else HARMLESS_GREEDY)})
        if sampling and beta > 1:
            faults.append(f"--beta {beta} together with --sampling")
        if beta > 1 and tau is None:
            faults.append(f"--beta {beta} without --tau")
        if faults:
            raise ValueError("--drafter-path cannot be combined with " + ", ".join(faults))
        super().__init__(models, dictionaries, options)
        self.sampling, self.seed = None, torch.initial_seed()
        if sampling:
            top_k, top_p = max(0, options.sampling_topk), options.sampling_topp  # fairseq's -1 means no limit
            self.rows, self.sampling = options.beam, Sampling(options.temperature, top_k, top_p if top_p > 0 else 1.0)
        elif getattr(options, "beam", 1) != 1:
            logger.info("speculative decoding is greedy: --beam %d is ignored", options.beam)
        drafter = load_drafter(drafter_path, dictionaries)
        roles = assemble(read_loaded(models[0]), drafter, self.device, self.dtype)
        fixed = block_size or beta > 1  # with tolerance, the draft length changes the output
        length = block_size or drafter.block_size
        rule = TopBetaTau(beta, math.inf if tau is None else tau)
        self.roles = Roles(*roles, rule, FixedLength(length) if fixed else Throughput(length))
        atexit.register(self.log_stats)  # fairseq has no hook for the end

    def how(self, line: int) -> dict[str, Any]:
        return {"sampling": self.sampling, "seeds": [mixed(self.seed, line, number) for number in range(self.rows)]}

    def log_stats(self) -> None:
        if self.stats.iterations:
            logger.info(
                "speculative decoding: %.2f tokens per verifier pass (1.0 is plain autoregressive decoding), "
                "%.0f%% of drafted tokens accepted, %d outputs truncated at the length limit",
                self.stats.mean_accepted_length,
                100 * self.stats.acceptance_rate,
                self.stats.cut,
            )


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
