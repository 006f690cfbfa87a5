"""Many iterations of `Session` in one call of the CPU kernels, with the same results.

Requires a verifier on the kernels, `TopBetaTau`, and a drafter on the kernels: `glide`, `block_causal` or heads. With any other
drafter, only iterations without a draft run natively, and only if it needs no feedback.

B rows, K drafted tokens.
"""

import time
from array import array
from ctypes import Structure, byref
from typing import Any, cast

import torch

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.candidates import numbered
from specdec_plugins.decoding.backends.cpu.binding import Buffer, address, integers, start
from specdec_plugins.decoding.backends.cpu.model import CpuModel, NativeHeads
from specdec_plugins.decoding.backends.cpu.passes import NativeRepeats, NativeSampling, successor_tables
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters import CachedRows
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.drafters.glide import GlideDrafter, GlideState
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, HeadsState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Acceptance, Drafter, Verifier
from specdec_plugins.decoding.values import Iterations, Plan, Step
from specdec_plugins.decoding.verifier import ModelVerifier

Begun = tuple[SlottedState, list[list[int]]]
ENDLESS = 1 << 40  # positions of a drafter that embeds none
# Weights of an output layer from which on threads share passes over one token. With 12 million (width 512, screened, two threads
# of Zen 4) four of them take 436 us alone and 412 shared, with 7 million 346 and 259.
WORTH_SHARING = 4 << 20


class NativeBlock:
    """The causal block drafter."""

    caches_prefix = True  # passes leave entries for the next ones

    def __init__(self, drafter: CausalBlockDrafter):
        self.model = cast(CpuModel, drafter.model)
        self.positions = self.model.spec.decoder.max_positions
        self._read = array("q")  # while a call drafts

    def begin(self, call: Structure, state: CachedRows[int], prefix: Prefix, longest: int) -> Begun:
        """Fill in a call. Returns the model's state and each row's unread tokens, which end with the prefix's last one."""
        if not longest:
            return cast(SlottedState, state.cache), [[token] for token in prefix.last]
        self._read = integers(state.rows)
        call.read, call.drafter_positions = start(self._read), self.positions
        beginning, rows = [prefix.symbols.start], zip(prefix.outputs, state.rows)
        return cast(SlottedState, state.cache), [output[n - 1 :] if n else beginning + output for output, n in rows]

    def end(self, state: CachedRows[int]) -> None:
        """Copy what the call changed back into the state."""
        if self._read:
            state.rows, self._read = self._read.tolist(), array("q")


class NativeGlide:
    """The drafter on the verifier's cache."""

    caches_prefix = True

    def __init__(self, drafter: GlideDrafter):
        self.model = cast(CpuModel, drafter.model)
        self.positions = self.model.spec.decoder.max_positions
        self.shared = self.model.width * self.model.stack.vocabulary >= WORTH_SHARING

    def begin(self, call: Structure, state: GlideState, prefix: Prefix, longest: int) -> Begun:
        call.drafter_positions, call.shared = self.positions, self.shared
        return cast(SlottedState, state.cache), [[token] for token in prefix.last]

    def end(self, state: GlideState) -> None:
        return None


class NativeHiddenHeads:
    """Heads on the verifier's hidden states."""

    caches_prefix = False

    def __init__(self, drafter: HeadsDrafter):
        self.model, self.heads, self.length = cast(CpuModel, drafter.model), cast(NativeHeads, drafter.heads), drafter.length
        self._features, self._vectors = Buffer(), Buffer()
        self._states = torch.empty(0)

    def begin(self, call: Structure, state: HeadsState, prefix: Prefix, longest: int) -> Begun:
        heads, rows = self.heads, len(prefix)
        self._states = state.current() if longest else torch.empty(rows, heads.width)  # a plain iteration does not read them
        call.heads, call.embeddings, call.scale = heads.linear.pointer, heads.embeddings, heads.scale
        call.heads_length = self.length
        call.states, call.drafter_positions = address(self._states), ENDLESS
        call.features = self._features.view(rows, longest + 1, heads.width)[1]
        call.vectors = self._vectors.view(rows, heads.count, heads.width)[1]
        return cast(SlottedState, state.cache), [[token] for token in prefix.last]

    def end(self, state: HeadsState) -> None:
        state.replace(self._states)


NativeDrafter = NativeBlock | NativeGlide | NativeHiddenHeads


class NativeLoop:
    """For one session. ``drafter`` is None if drafts do not come from the kernels."""

    def __init__(self, drafter: NativeDrafter | None, verifier: CpuModel, acceptance: TopBetaTau, constraints: Constraints):
        self.drafter, self.verifier, self.tolerance = drafter, verifier, acceptance.tolerance
        symbols = constraints.symbols
        self._banned = integers(constraints.banned)
        self._record, self._drafts, self._scores = array("q"), array("q"), array("f")
        self._call = kernels().structs["DecodeCall"](
            verifier=verifier.stack.pointer, eos=symbols.eos, mask=symbols.mask, banned_count=len(self._banned),
            banned=start(self._banned),
        )  # fmt: skip
        if drafter is not None:
            call, model = self._call, drafter.model
            call.drafter = model.stack.pointer
            call.tokens, call.outs, call.candidates = successor_tables(model)
            call.token_ids = model.token_ids and start(model.token_ids)
            own = numbered(symbols, model.vocabulary)
            call.drafter_pad, call.drafter_eos = own.pad, own.eos

    def __call__(
        self, verifying: SlottedState, drafting: Any, prefix: Prefix, plan: Plan, times: int, rows: int
    ) -> Iterations | None:
        """Run up to ``times`` iterations of the plan for the first ``rows``; stop early when one finishes. The prefix does not
        change.

        ``drafting`` is the drafter's state. Returns None for trees and for drafts that do not come from the kernels.
        """
        drafter = self.drafter
        if any(plan.lengths) and (drafter is None or plan.tree is not None):
            return None
        if rows < len(prefix):
            prefix = prefix.first(rows)
        call, outputs, lengths = self._call, prefix.outputs, plan.lengths[:rows]
        longest = max(lengths)
        positions = list(map(len, outputs))
        needed = max(positions) + longest + 1
        verifying.encode()
        verifying.cache.reserve(verifying.targets.bound, needed)
        call.verifying = verifying.caches()
        call.logits = self.verifier.logits.view(rows, longest + 1, self.verifier.stack.vocabulary)[1]
        drafter_state, unread, encoding = verifying, [[token] for token in prefix.last], 0.0
        if drafter is not None:
            state, unread = drafter.begin(call, drafting, prefix, longest)
            if longest:
                drafter_state = state
                encoding = self._prepare_drafter(drafter, state, rows, longest, needed)
        bounds, tolerances = prefix.bounds(), [request.tolerance or self.tolerance for request in prefix.requests]
        engine = self.verifier.engine
        given = engine.library.rows(
            "DecodeRow", position=positions, draft_length=lengths, slot=verifying.slots[:rows],
            source_slot=verifying.sources.slots[:rows], drafter_slot=drafter_state.slots[:rows],
            drafter_source_slot=drafter_state.sources.slots[:rows], source_length=verifying.sources.lengths[:rows],
            beta=[tolerance.beta for tolerance in tolerances], room=bounds.room, minimum=bounds.minimum, unread=map(len, unread),
            tau=[tolerance.tau for tolerance in tolerances], least=plan.least_of(prefix.requests),
        )  # fmt: skip
        tokens, draws, repeats = integers(*unread), prefix.draws(), NativeRepeats.of(bounds.repeats)
        sampling = None if draws is None else NativeSampling(draws)
        call.batch, call.longest, call.steps, call.rows, call.unread = (
            rows,
            longest,
            min(plan.times, times),
            start(given),
            start(tokens),
        )
        call.sampling, call.repeats = sampling and sampling.pointer, repeats and repeats.pointer
        self._reserve(call.steps * rows, longest)
        engine.library.specdec_decode(engine.pointer, byref(call))
        if drafter is not None:
            drafter.end(drafting)
        done = self._iterations(call.taken * rows, encoding)
        accepted = [step.accepted for step in done.steps]
        verifying.held[:rows] = [at + call.taken + sum(accepted[row::rows]) for row, at in enumerate(positions)]
        return done

    def _prepare_drafter(self, drafter: NativeDrafter, state: SlottedState, rows: int, longest: int, positions: int) -> float:
        """Encode the drafter's new sources and reserve memory for its pass. Returns the seconds that encoding took."""
        call, model = self._call, drafter.model
        began = time.perf_counter()
        state.encode()
        encoding = time.perf_counter() - began
        state.cache.reserve(state.targets.bound, positions if drafter.caches_prefix else longest)
        call.drafting = state.caches()
        if not drafter.caches_prefix:  # each draft replaces the previous one
            call.drafting.positions = ENDLESS
        call.drafter_logits = model.logits.view(rows, longest, model.stack.vocabulary)[1]
        if model.stack.gate:
            call.gates = model.gates.view(rows, longest, model.stack.gate.outputs)[1]
        return encoding

    def _reserve(self, steps: int, longest: int) -> None:
        """Room for the record of so many steps of a row, with drafts of that length."""
        if len(self._record) < 4 * steps or len(self._drafts) < steps * longest or len(self._scores) < steps * (longest + 1):
            self._record, self._drafts = array("q", bytes(64 * steps)), array("q", bytes(16 * steps * longest))
            self._scores = array("f", bytes(8 * steps * (longest + 1)))
            self._call.record, self._call.drafts = start(self._record), start(self._drafts)
            self._call.scores = start(self._scores)

    def _iterations(self, steps: int, encoding: float) -> Iterations:
        """Read the record of so many steps of a row."""
        longest, record = self._call.longest, self._record[: 4 * steps].tolist()
        drafts, scores = self._drafts[: steps * longest].tolist(), self._scores[: steps * (longest + 1)].tolist()
        sizes, accepted, owns, cut = (record[field::4] for field in range(4))
        tokens = [drafts[step * longest : step * longest + size] for step, size in enumerate(sizes)]
        firsts = range(0, len(scores), longest + 1)
        parts = [scores[at : at + size + (own >= 0)] for at, size, own in zip(firsts, accepted, owns)]
        return Iterations(
            list(map(Step, tokens, accepted, [None if own < 0 else own for own in owns])), parts, list(map(bool, cut)),
            encoding + self._call.drafting_seconds, self._call.verifying_seconds, encoding + self._call.first_seconds,
        )  # fmt: skip


def native_loop(drafter: Drafter, verifier: Verifier, acceptance: Acceptance, constraints: Constraints) -> NativeLoop | None:
    """The native loop for these roles; None if they cannot run natively."""
    if type(verifier) is not ModelVerifier or type(verifier.model) is not CpuModel or type(acceptance) is not TopBetaTau:
        return None
    native: NativeDrafter | None = None
    if type(drafter) is CausalBlockDrafter and type(drafter.model) is CpuModel:
        native = NativeBlock(drafter)
    elif type(drafter) is GlideDrafter and type(drafter.model) is CpuModel:
        native = NativeGlide(drafter)
    elif type(drafter) is HeadsDrafter and type(drafter.model) is CpuModel:
        native = NativeHiddenHeads(drafter)
    if native is None and drafter.traits.follows:
        return None
    return NativeLoop(native, verifier.model, acceptance, constraints)
