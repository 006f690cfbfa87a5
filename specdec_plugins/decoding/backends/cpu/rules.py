"""How tokens are chosen and judged in calls of the kernels: structs of csrc/calls.h, with the memory that they point to."""

from array import array
from collections.abc import Sequence
from ctypes import addressof
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.decoding.backends.candidates import CANDIDATES, numbered
from specdec_plugins.decoding.backends.cpu.arguments import address, floats, integers, start
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Bounds, Repeats
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, Verdict, rejecting
from specdec_plugins.formats.arrays import array as array_of

if TYPE_CHECKING:
    from specdec_plugins.decoding.backends.cpu.model import CpuModel


class NativeSampling:
    """`Sampling` in calls.h and the memory that it points to, valid as long as this."""

    def __init__(self, draws: Sequence[Draws | None], origins: Distribution | None = None):
        """``draws`` of each row; ``origins`` of drafted tokens, to be read or written."""
        library, rows, prefixes = kernels(), [], []
        for draw in draws:
            sampling, seed, prefix = draw or (None, 0, ())
            own = prefix if sampling and sampling.repetition_penalty != 1 else ()  # only the penalty needs it
            options = (sampling.temperature, sampling.top_p, sampling.repetition_penalty) if sampling else (0.0, 1.0, 1.0)
            rejects = sampling is not None and sampling.rule == "rejection"
            rows.append((*options, seed, sampling.top_k if sampling else 0, rejects, len(prefix), len(own)))
            prefixes.append(own)
        temperature, top_p, penalty, seeds, top_k, rejecting, positions, sizes = zip(*rows)
        self._rows = library.rows(
            "SamplingRow",
            temperature=temperature,
            top_p=top_p,
            penalty=penalty,
            seed=seeds,
            top_k=top_k,
            rejects=rejecting,
            position=positions,
            prefix=sizes,
        )
        self._prefixes = integers(*prefixes)
        self.struct = library.structs["Sampling"](rows=start(self._rows), prefixes=start(self._prefixes))
        if origins is not None:
            tokens, probabilities = np.ascontiguousarray(array_of(origins.tokens)), floats(origins.probabilities)
            self._origins = tokens, probabilities
            self.struct.tokens, self.struct.probabilities = address(tokens), address(probabilities)
            self.struct.width, self.struct.candidates = tokens.shape[1:]
        self.pointer = addressof(self.struct)


class NativeRepeats:
    """`NoRepeats` in calls.h and the memory that it points to, valid as long as this."""

    def __init__(self, repeats: Sequence[Repeats]):
        sizes, prefixes = zip(*repeats)
        self._rows = kernels().rows("RepeatRow", size=sizes, prefix=map(len, prefixes))
        self._prefixes = integers(*prefixes)
        self._struct = kernels().structs["NoRepeats"](start(self._rows), start(self._prefixes))
        self.pointer = addressof(self._struct)

    @classmethod
    def of(cls, repeats: Sequence[Repeats] | None) -> "NativeRepeats | None":
        """None if no row bans repeats."""
        return None if repeats is None else cls(repeats)


class Choosing:
    """`ChooseCall` in calls.h, with memory for the chosen tokens, and their distribution if a row may reject."""

    def __init__(self, model: "CpuModel", rows: int, width: int, prefix: Prefix, plan: Plan):
        self.width, self.lengths, self.vocabulary = width, plan.lengths, model.vocabulary
        own, (before, after, candidates) = numbered(prefix.symbols, model.vocabulary), successor_tables(model)
        self._rows = kernels().rows("ChooseRow", drafted=plan.lengths, empty=[not output for output in prefix.outputs])
        self.chosen = array("q", bytes(8 * rows * width))
        self.distribution, self._sampling, draws = None, None, prefix.draws()
        if draws is not None:
            if rejecting(draws):
                shape = rows, width, candidates
                self.distribution = Distribution(np.zeros(shape, np.int64), np.zeros(shape, np.float32))
            self._sampling = NativeSampling(draws, self.distribution)
        self.call = kernels().structs["ChooseCall"](
            pad=own.pad,
            eos=own.eos,
            rows=start(self._rows),
            tokens=before,
            outs=after,
            candidates=candidates,
            token_ids=model.token_ids and start(model.token_ids),
            chosen=start(self.chosen),
            sampling=self._sampling and self._sampling.pointer,
        )

    def draft(self) -> Draft:
        """Each row's chosen tokens, up to its draft length."""
        flat, width, vocabulary = self.chosen.tolist(), self.width, self.vocabulary
        tokens = [flat[row * width : row * width + length] for row, length in enumerate(self.lengths)]
        if vocabulary is not None:
            tokens = [[vocabulary[index] for index in row] for row in tokens]
        return Draft(tokens, self.distribution)


class Judging:
    """`JudgeCall` in calls.h, with memory for the verdict on a batch of drafts."""

    def __init__(
        self,
        width: int,
        draft: Draft,
        bounds: Bounds,
        tolerances: Sequence[Tolerance],
        draws: Sequence[Draws | None] | None,
        scored: Sequence[bool] | None,
    ):
        """``width``: the pass's results of a row. ``scored``: the rows whose scores are wanted; None: all."""
        library, rows = kernels(), len(draft.tokens)
        self.width, self.scored = width, [True] * rows if scored is None else scored
        self._rows = library.rows(
            "JudgeRow",
            drafted=map(len, draft.tokens),
            beta=[tolerance.beta for tolerance in tolerances],
            tau=[tolerance.tau for tolerance in tolerances],
            room=bounds.room,
            minimum=bounds.minimum,
            scored=self.scored,
        )
        self._tokens, self._branches = integers(*draft.tokens), bool(draft.parents)
        self._parents = integers(*draft.parents)
        self._banned, self._repeats = integers(bounds.constraints.banned), NativeRepeats.of(bounds.repeats)
        self._sampling = None if draws is None else NativeSampling(draws, draft.distribution)
        self._verdicts, self._scores = array("q", bytes(24 * rows)), array("f", bytes(4 * rows * width))
        self._paths = array("q", bytes(8 * rows * width if self._branches else 0))
        self.call = library.structs["JudgeCall"](
            eos=bounds.constraints.symbols.eos,
            banned_count=len(self._banned),
            banned=start(self._banned),
            rows=start(self._rows),
            tokens=start(self._tokens),
            parents=start(self._parents) if self._parents else None,
            sampling=self._sampling and self._sampling.pointer,
            repeats=self._repeats and self._repeats.pointer,
            verdicts=start(self._verdicts),
            scores=start(self._scores),
            paths=start(self._paths),
        )

    def verdict(self) -> Verdict:
        verdicts, scores, width = self._verdicts.tolist(), self._scores.tolist(), self.width
        accepted, own, cut = verdicts[::3], verdicts[1::3], verdicts[2::3]
        firsts = range(0, len(scores), width)
        parts = [scores[first : first + (count + 1) * some] for first, count, some in zip(firsts, accepted, self.scored)]
        paths = (
            [self._paths[first : first + count].tolist() for first, count in zip(firsts, accepted)] if self._branches else None
        )
        return Verdict(accepted, own, parts, list(map(bool, cut)), paths)


def successor_tables(model: "CpuModel") -> tuple[int | None, int | None, int]:
    """The addresses of the successor network's tables, and how many candidates it chooses among."""
    successor, candidates = model.successor, min(CANDIDATES, model.stack.vocabulary)
    return (None, None, candidates) if successor is None else (address(successor.tokens), address(successor.out), candidates)
