"""Several drafters as one, which takes for each row in each iteration the draft of the one that promises most.

A draft promises the tokens that it is expected to commit, over what the iteration then takes (in verifier passes). Look-ups
always draft, as they cost little. A model drafts only for the rows in which it promises more than any draft that is there.

Expectations are learned for each drafter, from what was right lately of its drafts, those not taken included: these are compared
with what is committed in the following iterations, one at a time, until they end or are wrong. (To stop where this iteration's
tokens end would judge them where the other draft was right, and so the text easy.) They are apart for rows in which its last
draft was right and rows in which it was not, because look-ups are right in runs.

Under the rejection rule the model, if there is one, drafts for all rows: the rule asks what every draft was drawn from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate, committed
from specdec_plugins.decoding.drafters import agreeing
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Request, Source, Step, Verdict, rejecting

# What drafting by a model adds to an iteration, relative to the rest of it: 318 microseconds beside some 590, with the drafter
# that ships on captions, int8, drafts of 4 (benchmarks/README.md). Look-ups take 30 to 40.
MODEL_COST = 0.5
LONGEST = 16  # tokens of a draft that expectations tell apart

Drafted = list[list[int]]  # by drafter, of one row


class Judged(NamedTuple):
    """A draft, how many of its tokens were right so far, whether its drafter's draft before it was right, and where it begins."""

    tokens: list[int]
    agreed: int
    right: bool
    place: int


@dataclass
class State:
    """The drafters' states; of each row, by drafter, whether its last draft was right, and what is judged."""

    states: list[Any]
    right: list[list[bool]] = field(default_factory=list)
    judged: list[list[Judged | None]] = field(default_factory=list)
    drafts: list[Drafted] = field(default_factory=list)  # of each row, between proposal and verdict
    places: list[int] = field(default_factory=list)  # and where they begin in the output

    def select(self, order: list[int]) -> None:
        for state in self.states:
            if state is not None:
                state.select(order)
        self.right = [self.right[row].copy() for row in order]
        self.judged = [self.judged[row].copy() for row in order]


class Expectation:
    """Of one drafter's drafts: how many tokens they commit, the verifier's own included. ``like`` is one to resemble at first."""

    def __init__(self, like: "Expectation | None" = None) -> None:
        self.estimate: AcceptanceEstimate = AcceptanceEstimate(LONGEST, like.estimate if like else None)

    def tokens(self, length: int) -> float:
        """With a draft of so many tokens."""
        return committed(self.estimate.rates()[:length])[-1]

    def learn(self, drafted: list[int], agreed: int) -> None:
        """So many of the first tokens were right, and the one after them, if there is one, was not."""
        self.estimate.observe([Step(drafted, min(agreed, LONGEST), 0)], [min(len(drafted), LONGEST)])


class Expectations:
    """Of one drafter: of all its drafts, and apart of those after a wrong draft and after a right one."""

    def __init__(self) -> None:
        self.all = Expectation()
        self.after = Expectation(self.all), Expectation(self.all)

    def learn(self, draft: Judged) -> None:
        for each in (self.all, self.after[draft.right]):
            each.learn(draft.tokens, draft.agreed)


class Portfolio(Drafter):
    """Of drafters without weights, ``lookups``, and at most one model."""

    def __init__(self, lookups: Sequence[Drafter], model: Drafter | None = None):
        self.drafters = [*lookups, *([model] if model else [])]
        self.model = len(lookups) if model else None  # its number
        traits = [drafter.traits for drafter in self.drafters]
        self.traits = Traits(
            follows=any(each.follows for each in traits), needs_verifier=any(each.needs_verifier for each in traits),
            copies_text=all(each.copies_text for each in traits),
        )  # fmt: skip
        self.expected = [Expectations() for _ in self.drafters]

    def start(self, rows: int, shared: object) -> State:
        return State([drafter.start(rows, shared) for drafter in self.drafters])

    def admit(self, state: State, source: Source) -> None:
        for drafter, own in zip(self.drafters, state.states):
            drafter.admit(own, source)
        state.right += [[False] * len(self.drafters) for _ in source.sentences]
        state.judged += [[None] * len(self.drafters) for _ in source.sentences]

    def propose(self, state: State, prefix: Prefix, plan: Plan) -> Draft:
        plan = plan._replace(tree=None)
        self._catch_up(state, prefix)
        state.drafts = [[[] for _ in self.drafters] for _ in prefix.requests]
        state.places = list(map(len, prefix.outputs))
        for number in range(len(self.drafters)):
            if number != self.model:
                self._ask(number, state, prefix, plan)
        if self.model is not None and rejecting(prefix.draws() or ()):
            return self._ask(self.model, state, prefix, plan)
        promised = [self._best(drafts, right) for drafts, right in zip(state.drafts, state.right)]
        taken = [tokens for _, tokens in promised]
        if self.model is None:
            return Draft(taken)
        lengths = [
            length if self._expects(self.model, length, right) / (1 + MODEL_COST) > value else 0
            for (value, _), length, right in zip(promised, plan.lengths, state.right)
        ]
        if not any(lengths):
            return Draft(taken)
        own = self._ask(self.model, state, prefix, plan._replace(lengths=lengths))
        taken = [tokens if length else other for tokens, length, other in zip(own.tokens, lengths, taken)]
        told = own.confidence
        sure = None if told is None else [told[row] if length else [1.0] * len(taken[row]) for row, length in enumerate(lengths)]
        return Draft(taken, confidence=sure)

    def _ask(self, number: int, state: State, prefix: Prefix, plan: Plan) -> Draft:
        """The draft of one drafter, which is written down."""
        draft = self.drafters[number].propose(state.states[number], prefix, plan)
        for drafts, tokens in zip(state.drafts, draft.tokens):
            drafts[number] = tokens
        return draft

    def _best(self, drafts: Drafted, right: Sequence[bool]) -> tuple[float, list[int]]:
        """The tokens that the most promising draft of a row is expected to commit, and the draft; of equals the first."""
        promised = [(self._expects(number, len(tokens), right), tokens) for number, tokens in enumerate(drafts)]
        return max(promised, key=lambda each: each[0])

    def _expects(self, number: int, length: int, right: Sequence[bool]) -> float:
        return self.expected[number].after[right[number]].tokens(length)

    def observe(self, state: State, scores: Any, draft: Draft, verdict: Verdict) -> None:
        for drafter, own in zip(self.drafters, state.states):
            if state.drafts or drafter.traits.follows:
                drafter.observe(own, scores, draft, verdict)
        if not state.drafts:
            return  # an iteration that nothing was drafted for: `_catch_up` will see its tokens
        assert verdict.own is not None
        for row, (tokens, accepted, after) in enumerate(zip(draft.tokens, verdict.accepted, verdict.own)):
            said = [*tokens[:accepted], after]
            for number, drafted in enumerate(state.drafts[row]):
                judged = state.judged[row][number]
                if judged is None and drafted:
                    judged = Judged(drafted, 0, state.right[row][number], state.places[row])
                state.judged[row][number] = judged and self._judge(number, judged, said)
                if drafted:
                    state.right[row][number] = agreeing(drafted, said) == min(len(drafted), len(said))
        state.drafts = []

    def _catch_up(self, state: State, prefix: Prefix) -> None:
        """Compare what is judged with tokens of iterations for which there was no proposal."""
        for judged, output in zip(state.judged, prefix.outputs):
            for number, draft in enumerate(judged):
                if draft and (said := output[draft.place + draft.agreed :]):
                    judged[number] = self._judge(number, draft, said)

    def _judge(self, number: int, draft: Judged, said: list[int]) -> Judged | None:
        """Compare a draft with what was said; None if that is the end of it."""
        more = agreeing(draft.tokens[draft.agreed :], said)
        draft = draft._replace(agreed=draft.agreed + more)
        if more == len(said) and draft.agreed < len(draft.tokens):
            return draft
        self.expected[number].learn(draft)
        return None

    def bytes_for(self, request: Request) -> int:
        return sum(drafter.bytes_for(request) for drafter in self.drafters)
