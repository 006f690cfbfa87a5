"""What a drafter is worth on held-out lines: its acceptance, the costs of passes, and the gain in speed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from specdec_plugins.commands.draft_text import requests_of
from specdec_plugins.decoding.requests import Request
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.measure.costs import pass_costs
from specdec_plugins.measure.expectation import Costs, acceptance, expected_gain
from specdec_plugins.options import LanguagePair
from specdec_plugins.settings import Settings
from specdec_plugins.translator import Translator

COSTING = 10.0  # seconds for measuring passes


@dataclass
class Evaluation:
    """On the held-out lines, in drafts as long as in training."""

    tokens: float  # a pass
    acceptance: list[float]  # by position
    lengths: list[int]  # of the outputs, eos included


@dataclass
class Evaluator:
    """Decodes with a pair's verifier and any drafter for it, in the fastest data type. ``languages`` are those of all lines."""

    pair: Pair
    threads: int
    languages: LanguagePair

    @cached_property
    def plain(self) -> Translator:
        """Of the verifier alone."""
        return self.translator(None)

    @property
    def dtype(self) -> str:
        """Of the verifier's weights."""
        model = getattr(self.plain.engine.roles.verifier, "model", None)
        return getattr(model, "dtype", "float32")  # PyTorch's without kernels

    def translator(self, drafter: DrafterModel | None, **settings: Any) -> Translator:
        pair = replace(self.pair, drafter=drafter)
        how = {"strategy": "specdec" if drafter else "ar", "dtype": "auto", "threads": self.threads, **settings}
        if drafter is None:
            how["beam"] = 1
        return Translator(pair, Settings(**how))

    def requests(self, translator: Translator, lines: Sequence[str]) -> list[Request]:
        return requests_of(translator, lines, self.languages)

    def costs(self, drafter: DrafterModel, lines: Sequence[str]) -> dict[int, Costs]:
        translator = self.translator(drafter, block_size=drafter.block_size)
        found = pass_costs(translator.engine, self.requests(translator, lines), COSTING)
        torch.set_num_threads(self.threads)
        return found

    def evaluate(self, drafter: DrafterModel, lines: Sequence[str]) -> Evaluation:
        translator = self.translator(drafter, block_size=drafter.block_size)
        requests = self.requests(translator, lines)
        outputs = [*translator.engine.decode(requests, translator.settings.usual_batch_size, None)]
        torch.set_num_threads(self.threads)
        steps = [step for each in outputs for step in each.steps]
        tokens = sum(step.accepted + (step.own is not None) for step in steps) / max(1, len(steps))
        rates = acceptance(((len(step.drafted), step.accepted) for step in steps), drafter.block_size)
        return Evaluation(tokens, rates, [len(each.tokens) + 1 - each.prefilled for each in outputs])

    def measured(self, drafter: DrafterModel, lines: Sequence[str]) -> dict[int, float]:
        """The gain in speed by batch size, with the default draft lengths; plain decoding and drafts in turn. Raises ValueError
        if an output differs."""
        plain, drafting = self.plain, self.translator(drafter)
        taken: dict[tuple[int, bool], float] = {}
        for rows in (1, 8):
            some = lines if rows > 1 else lines[: len(lines) // 2]
            for turn in range(2):
                outputs = []
                for translator, drafts in ((plain, False), (drafting, True)):
                    requests, began = self.requests(translator, some), time.perf_counter()
                    found = sorted(translator.engine.decode(requests, rows, None), key=lambda each: each.index)
                    spent = time.perf_counter() - began
                    taken[rows, drafts] = min(spent, taken.get((rows, drafts), spent)) if turn else spent
                    outputs.append([each.tokens for each in found])
                if outputs[0] != outputs[1]:
                    raise ValueError(f"{self.pair.name}: outputs with drafts differ from plain ones, a fault of this program")
        return {rows: taken[rows, False] / taken[rows, True] for rows in (1, 8)}


def gains(found: Evaluation, costs: dict[int, Costs]) -> str:
    """What an evaluation promises on this machine, in words."""
    each = {rows: expected_gain(found.acceptance, found.lengths, costs[rows]) for rows in costs}
    return f"expected gain {by_rows({rows: one.gain for rows, one in each.items()})}"


def by_rows(gains: Mapping[int, float]) -> str:
    return ", ".join(f"{gain:.2f} at batch size {rows}" for rows, gain in gains.items())
