"""The roles that `loop.py` and `runner.py` call. Implementations subclass these protocols, which supply the optional methods.

Drafter and verifier each keep a state with one row per sequence in flight, in the order of the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from specdec_plugins.decoding.backends import LoadedModel, Pass
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import ModelLimits, Request, Source
from specdec_plugins.decoding.values import LOGITS, Draft, Outcome, Plan, Verdict, Want


class State(Protocol):
    """What a role keeps per row. A role's `admit` appends one row per source; every other change is a `select`.

    A row named twice in an order is forked: the fork copies the positions that the row holds and shares its source, so forking
    a row that has read nothing is free. Groups start that way: admit the source once, then repeat its row.
    """

    def select(self, order: list[int]) -> None:
        """Make row ``order[i]`` the new row i. Rows not named leave."""


@dataclass(frozen=True)
class Traits:
    """What a drafter can do and what it needs. Wrappers pass on the traits of what they wrap."""

    trees: bool = False  # `propose` returns trees for plans with one
    copies_text: bool = False  # drafts are often shorter than planned, and cost what they offer
    confident: bool = False  # drafts end early where a plan names a least probability
    follows: bool = False  # `observe` must see iterations without a draft as well
    needs_verifier: bool = False  # drafts cannot stand alone (strategy ``drafter``)
    wants: Want = LOGITS  # what `observe` reads of the verifier's pass


# Recipes: what a drafter's `propose` does, as data, so that the CPU kernels draft without calling it.


@dataclass(frozen=True)
class InTurn:
    """A pass over each row's last token per drafted one, on the verifier's cache, which the drafter's state has as ``cache``."""

    model: LoadedModel


@dataclass(frozen=True)
class Masked:
    """A causal pass over each row's unread tokens and masks. The drafter's state is a `CachedRows` of how many each has read."""

    model: LoadedModel


@dataclass(frozen=True)
class Vectors:
    """A pass over the vectors that ``heads`` (`LoadedModel.heads`) make of each row's hidden state and last token, for at most
    ``length`` tokens. The drafter's state has a ``cache``, and hidden states (B, D): `current` and `replace`."""

    model: LoadedModel
    heads: Any
    length: int


Recipe = InTurn | Masked | Vectors


class Role(Protocol):
    """What drafter and verifier have in common."""

    def admit(self, state: Any, source: Source) -> None:
        """Append the sentences of ``source`` as rows."""
        return None

    def bytes_for(self, request: Request) -> int:
        """Memory that a request's group takes, for admission."""
        return 0


def drop_shortcut(cls: type, role: type, shortcut: str, *methods: str) -> None:
    """Give a class that overrides one of the ``methods`` the role's own ``shortcut`` around them, unless it has another."""
    if vars(cls).keys() & {*methods} and shortcut not in vars(cls):
        setattr(cls, shortcut, vars(role)[shortcut])


class Drafter(Role, Protocol):
    """Proposes tokens."""

    traits: Traits = Traits()

    def __init_subclass__(cls, **options: Any) -> None:
        """A drafter that proposes in a way of its own inherits no recipe."""
        super().__init_subclass__(**options)
        drop_shortcut(cls, Drafter, "recipe", "propose")

    def start(self, rows: int, shared: Any) -> Any:
        """A `State` for up to ``rows`` rows; None for a drafter that keeps nothing. ``shared`` is the verifier's state."""
        return None

    def propose(self, state: Any, prefix: Prefix, plan: Plan) -> Draft:
        """At most ``plan.lengths[b]`` tokens to follow row b's prefix."""

    def recipe(self) -> Recipe | None:
        """How backends draft as `propose` does, without calling it or `observe`; None: only `propose` can."""
        return None

    def observe(self, state: Any, scores: Any, draft: Draft, verdict: Verdict) -> None:
        """Learn the verdict on a draft before its tokens are committed; see `Traits.follows`."""
        return None

    @property
    def observes(self) -> bool:
        """Whether it has an `observe` of its own, for which passes must keep all that it may read."""
        return type(self).observe is not Drafter.observe


class NoDrafter(Drafter):
    """Proposes nothing: the loop becomes plain autoregressive decoding."""

    def propose(self, state: Any, prefix: Prefix, plan: Plan) -> Draft:
        return Draft([[] for _ in prefix.requests])


class Verifier(Role, Protocol):
    """Scores drafts."""

    limits: ModelLimits | None = None  # what requests are checked against; None: anything goes

    def __init_subclass__(cls, **options: Any) -> None:
        """A verifier that scores or commits in a way of its own inherits no runner."""
        super().__init_subclass__(**options)
        drop_shortcut(cls, Verifier, "runner", "score", "commit")

    @property
    def runner(self) -> Callable[..., Any] | None:
        """Makes its backend's `Runner`; None: the one of all backends."""
        return None

    @property
    def recordings(self) -> int:
        """How many passes its backend has recorded. Recording takes far longer than a pass, so it is not timed as one."""
        return 0

    def start(self, rows: int) -> Any:
        """A `State` for up to ``rows`` rows; None for a verifier that keeps nothing."""
        return None

    def prefill(self, state: Any, prefix: Prefix, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        """Read the forced tokens after each row's prefix, if any, and return their log-probabilities (nats) in rows that want
        scores; [] in others."""
        return [[] for _ in tokens]

    def score(self, state: Any, prefix: Prefix, draft: Draft, want: Want = LOGITS) -> Pass | None:
        """The pass over a draft; None if nothing is scored."""
        return None

    def commit(self, state: Any, prefix: Prefix, draft: Draft, verdict: Verdict) -> None:
        """Keep what the verdict accepts, before the prefix changes."""
        return None


class Acceptance(Protocol):
    """A function. One with a ``tolerance`` for requests without their own is `TopBetaTau`, and backends apply it themselves."""

    def __call__(self, scores: Any, draft: Draft, prefix: Prefix) -> Verdict:
        """Which drafted tokens are accepted, and what follows them."""


class Controller(Protocol):
    """Decides how much to draft. Pure: step times are passed in; it never reads a clock."""

    def plan(self, prefix: Prefix) -> Plan: ...

    def update(self, outcome: Outcome) -> None: ...


class Roles(NamedTuple):
    """The cast of a session."""

    drafter: Drafter
    verifier: Verifier
    acceptance: Acceptance
    controller: Controller
