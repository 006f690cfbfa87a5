"""Iterations of the loop in one native call, for roles that the CPU kernels know: the same as those of `Session`, which is the
reference.

The roles are the verifier on the kernels, the causal block drafter or heads there or no drafter, and the exact or the tolerant
rule, with those for rows that sample. Beside another drafter iterations that draft nothing are native, if it need not be told.

B rows, K drafted tokens.
"""

import math
import time
from array import array
from ctypes import addressof, byref
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.candidates import numbered
from specdec_plugins.decoding.backends.cpu.binding import Buffer, Caches, Decoding, address, integers, start, starts
from specdec_plugins.decoding.backends.cpu.model import CpuModel, NativeHeads
from specdec_plugins.decoding.backends.cpu.passes import repeat_numbers, successor_tables
from specdec_plugins.decoding.backends.cpu.sampling import NativeSampling
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter, CausalState
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, HeadsState
from specdec_plugins.decoding.drafters.none import NoDrafter
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Acceptance, Drafter, Verifier
from specdec_plugins.decoding.values import Iteration, Plan, Step
from specdec_plugins.decoding.verifier import ModelVerifier

ENDLESS = 1 << 40  # positions of a drafter that embeds none


@dataclass(frozen=True)
class Iterations:
    """The iterations that were made, and the seconds that drafting and verifying took."""

    iterations: list[Iteration]
    drafting: float
    verifying: float


class Half(Protocol):
    """What the loop needs of a drafter on the kernels."""

    model: CpuModel
    keeps: bool  # entries of what it reads

    def begin(self, call: Decoding, state: Any, prefix: Prefix, longest: int) -> tuple[SlottedState, list[list[int]]]:
        """Give a call what it needs of the rows; returns the model's state, and of each row the tokens that are not read yet, the
        last one of the prefix included."""
        ...

    def end(self, state: Any) -> None:
        """Take over what the call changed."""
        ...


class BlockHalf:
    """Of a causal block drafter."""

    keeps = True

    def __init__(self, drafter: CausalBlockDrafter):
        self.model = cast(CpuModel, drafter.model)
        self.positions = self.model.spec.decoder.max_positions
        self._read = array("q")  # while a call drafts

    def begin(self, call: Decoding, state: CausalState, prefix: Prefix, longest: int) -> tuple[SlottedState, list[list[int]]]:
        if not longest:
            return cast(SlottedState, state.rows), [[token] for token in prefix.last]
        self._read = integers(state.read)
        call.read, call.drafter_positions = start(self._read), self.positions
        beginning, rows = [prefix.symbols.start], zip(prefix.outputs, state.read)
        return cast(SlottedState, state.rows), [output[n - 1 :] if n else beginning + output for output, n in rows]

    def end(self, state: CausalState) -> None:
        if self._read:
            state.read, self._read = self._read.tolist(), array("q")


class HeadsHalf:
    """Of heads on the verifier's hidden states, which keep no entries of what they read."""

    keeps = False

    def __init__(self, drafter: HeadsDrafter):
        self.model, self.heads, self.length = cast(CpuModel, drafter.model), cast(NativeHeads, drafter.heads), drafter.length
        self._features, self._vectors = Buffer(), Buffer()
        self._states = torch.empty(0)

    def begin(self, call: Decoding, state: HeadsState, prefix: Prefix, longest: int) -> tuple[SlottedState, list[list[int]]]:
        heads, rows = self.heads, len(prefix)
        self._states = state.current() if longest else torch.empty(rows, heads.width)  # a plain iteration does not read them
        call.heads, call.embeddings, call.scale = heads.linear.pointer, heads.embeddings, heads.scale
        call.heads_length = self.length
        call.states, call.drafter_positions = address(self._states), ENDLESS
        call.features = self._features.view(rows, longest + 1, heads.width)[1]
        call.vectors = self._vectors.view(rows, heads.count, heads.width)[1]
        return cast(SlottedState, state.rows), [[token] for token in prefix.last]

    def end(self, state: HeadsState) -> None:
        state.told(self._states)


class NativeLoop:
    """For one session; with ``foreign``, of a drafter that is not here. Not for use by several threads at once."""

    def __init__(
        self, half: Half | None, verifier: CpuModel, acceptance: TopBetaTau, constraints: Constraints, foreign: bool = False
    ):  # fmt: skip
        self.half, self.verifier, self.tolerance, self.foreign = half, verifier, acceptance.tolerance, foreign
        symbols = constraints.symbols
        self._suppressed = integers(constraints.suppressed)
        self._seconds = array("d", [0.0, 0.0])
        self._record, self._scores = array("q"), array("f")
        self._call = Decoding(
            verifier=verifier.stack.pointer, pad=symbols.pad, eos=symbols.eos, mask=symbols.mask,
            suppressed_count=len(self._suppressed), suppressed=start(self._suppressed), seconds=start(self._seconds),
        )  # fmt: skip
        if half is not None:
            call, model = self._call, half.model
            call.drafter = model.stack.pointer
            call.tokens, call.outs, call.candidates = successor_tables(model)
            call.names = model.names and start(model.names)
            own = numbered(symbols, model.vocabulary)
            call.drafter_pad, call.drafter_eos = own.pad, own.eos

    def __call__(self, verifying: SlottedState, drafting: Any, prefix: Prefix, plan: Plan, times: int) -> Iterations | None:
        """Make up to ``times`` iterations of the plan, at least one, and none after a row is finished; the prefix is not changed.

        ``drafting`` is the drafter's state; it is not read if a drafter is foreign or none. None where the session has to iterate
        itself, because a foreign drafter or a tree is to be drafted.
        """
        if any(plan.lengths) and (self.foreign or plan.tree is not None):
            return None
        call, half, outputs, rows = self._call, self.half, prefix.outputs, len(prefix)
        longest = 0 if half is None else max(plan.lengths)
        places = list(map(len, outputs))
        needed = max(places) + longest + 1
        verifying.encode()
        call.verifying = self._caches(verifying, needed)
        call.logits = self.verifier.logits.view(rows, longest + 1, self.verifier.stack.vocabulary)[1]
        drafter_state, unread, encoding = verifying, [[token] for token in prefix.last], 0.0
        if half is not None:
            state, unread = half.begin(call, drafting, prefix, longest)
            if longest:
                drafter_state = state
                encoding = self._prepare_drafter(half, state, rows, longest, needed)
        bounds, tolerances = prefix.bounds(), [request.tolerance or self.tolerance for request in prefix.requests]
        numbers = integers(
            places, plan.lengths if longest else [0] * rows, verifying.slots, verifying.sources.slots,
            drafter_state.slots, drafter_state.sources.slots, verifying.sources.lengths,
            [tolerance.beta for tolerance in tolerances], bounds.room, bounds.minimum,
            starts(bounds.forced), *bounds.forced, starts(unread), *unread,
        )  # fmt: skip
        tau = array("d", [tolerance.tau for tolerance in tolerances])
        last_scores = array("d", [scores[-1] if scores else 0.0 for scores in prefix.scores])
        call.batch, call.longest, call.steps = rows, longest, min(plan.times, times)
        call.numbers, call.tau, call.last_scores = start(numbers), start(tau), start(last_scores)
        call.verifier_gate = math.log(plan.gate.verifier) if plan.gate.verifier else -math.inf
        call.drafter_gate = plan.gate.drafter
        draws = prefix.draws()
        sampling = None if draws is None else NativeSampling(draws)
        call.sampling = sampling and addressof(sampling.struct)
        repeats = repeat_numbers(bounds)
        call.repeats = repeats and start(repeats)
        self._reserve(call.steps * rows * (longest + 4))
        engine = self.verifier.engine
        engine.library.specdec_decode(engine.pointer, byref(call))
        iterations = self._iterations(call.taken, rows, longest)
        committed = [[step.accepted + (step.own is not None) for step in iteration.steps] for iteration in iterations]
        verifying.held = list(map(sum, zip(places, *committed)))
        if half is not None:
            half.end(drafting)
        return Iterations(iterations, encoding + self._seconds[0], self._seconds[1])

    def _prepare_drafter(self, half: Half, state: SlottedState, rows: int, longest: int, positions: int) -> float:
        """Encode the drafter's new sources, and make room for its pass. Returns the seconds that encoding took."""
        call, drafter = self._call, half.model
        began = time.perf_counter()
        state.encode()
        encoding = time.perf_counter() - began
        call.drafting = self._caches(state, positions if half.keeps else longest)
        if not half.keeps:  # each draft takes the place of the one before
            call.drafting.positions = ENDLESS
        call.drafter_logits = drafter.logits.view(rows, longest, drafter.stack.vocabulary)[1]
        if drafter.stack.gate:
            call.gates = drafter.gates.view(rows, longest, drafter.stack.gate.outputs)[1]
        return encoding

    @staticmethod
    def _caches(state: SlottedState, positions: int) -> Caches:
        """Room for the next iteration at least; the call ends where there is no room for a further one."""
        state.cache.reserve(state.targets.bound, positions)
        return Caches(*state.cache.layout, *state.sources.cache.layout, state.cache.capacity)

    def _reserve(self, numbers: int) -> None:
        """Room for what the iterations write down."""
        if len(self._record) < numbers:
            self._record, self._scores = array("q", bytes(16 * numbers)), array("f", bytes(8 * numbers))
            self._call.record, self._call.scores = start(self._record), start(self._scores)

    def _iterations(self, taken: int, rows: int, longest: int) -> list[Iteration]:
        """What the call wrote down."""
        record = self._record[: taken * rows * (longest + 4)].tolist()
        scores = self._scores[: taken * rows * (longest + 1)].tolist()
        steps, parts, cut = [], [], []
        for at, first in zip(range(0, len(record), longest + 4), range(0, len(scores), longest + 1)):
            drafted, accepted, own, ended = record[at : at + 4]
            steps.append(Step(record[at + 4 : at + 4 + drafted], accepted, None if own < 0 else own))
            parts.append(scores[first : first + accepted + 1])
            cut.append(ended != 0)
        ranges = (slice(first, first + rows) for first in range(0, taken * rows, rows))
        return [Iteration(steps[each], parts[each], cut[each]) for each in ranges]


def native_loop(drafter: Drafter, verifier: Verifier, acceptance: Acceptance, constraints: Constraints) -> NativeLoop | None:
    """The native loop for these roles; None where verifier and rule are not, both exactly, those that it knows."""
    if type(verifier) is not ModelVerifier or type(verifier.model) is not CpuModel or type(acceptance) is not TopBetaTau:
        return None
    halves: dict[type, type] = {CausalBlockDrafter: BlockHalf, HeadsDrafter: HeadsHalf}
    make = halves.get(type(drafter))
    if make and type(drafter.model) is CpuModel:  # type: ignore[attr-defined]
        return NativeLoop(make(drafter), verifier.model, acceptance, constraints)
    if drafter.traits.follows:
        return None
    return NativeLoop(None, verifier.model, acceptance, constraints, type(drafter) is not NoDrafter)
