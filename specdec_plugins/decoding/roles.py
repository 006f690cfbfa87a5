"""The roles that play a step of speculative decoding; `loop.py` is the play.

Drafter and verifier keep a state with one row a sentence, in the order of the batch. A method that is marked optional is absent
where a role has no need of it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Draws, Outcome, Plan, Request, Source, Verdict


class State(Protocol):
    """What a role keeps of each row.

    Optional: ``share(rows)`` appends rows with nothing read, whose sources are those of the given rows. Without it these sources
    are admitted again.
    """

    def select(self, order: list[int]) -> None:
        """Let row i be what row ``order[i]`` was. Other rows leave; a row named twice becomes two that go on apart."""
        ...


class Drafter(Protocol):
    """Proposes tokens.

    Optional: ``observe(state, scores, draft, verdict)`` tells what became of what ``propose`` returned, before tokens are
    committed, and where ``follows`` is True of iterations without a draft, too; ``bytes_for(request)`` is the memory that a
    request's row takes, for admission; ``copies_text`` is True where drafts are copied from what was written before, of which
    there is often less than planned, so that a draft costs what it offers; ``trees`` is True where `propose` branches if the plan
    has a tree; ``needs_verifier`` is True where drafts cannot stand alone (strategy ``drafter``).
    """

    def start(self, rows: int, shared: Any) -> Any:
        """A state without rows, for ``rows`` at most (a `State`, or None); ``shared`` is the verifier's."""
        ...

    def admit(self, state: Any, source: Source) -> None:
        """Append the sentences of ``source`` as rows."""
        ...

    def propose(self, state: Any, prefix: Prefix, plan: Plan) -> Draft:
        """At most ``plan.lengths[b]`` tokens to follow row b's prefix."""
        ...


class Scores(Protocol):
    """The verifier's pass over a draft. It runs when its results are needed: together with the rule, where the backend can."""

    def logits(self) -> Tensor:
        """(R, K+1, V) after the prefix and after each drafted token, R >= B; undefined past a row's draft."""
        ...

    def features(self) -> Tensor:
        """(R, K+1, D) hidden states that the logits are computed from."""
        ...

    def masses(self) -> Tensor:
        """(R, K+1, S) attention to the source after the prefix and after each drafted token: see `Pass.masses`."""
        ...

    def with_logits(self, logits: Tensor) -> "Scores":
        """The same with other logits, of any rows and width, to judge other drafts by."""
        ...

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        """Apply the exact or the tolerant rule, each row with its own tolerance; to rows that draw their tokens, the rule for
        that."""
        ...


class Verifier(Protocol):
    """Scores drafts.

    Optional: ``commit(state, prefix, draft, verdict)``, where what the verdict keeps has to move, before the prefix changes; and
    ``bytes_for(request)``, as for a `Drafter`.
    """

    def start(self, rows: int) -> Any: ...

    def admit(self, state: Any, source: Source) -> None: ...

    def score(self, state: Any, prefix: Prefix, draft: Draft) -> Scores | None: ...


class Acceptance(Protocol):
    def __call__(self, scores: Any, draft: Draft, prefix: Prefix) -> Verdict:
        """Which drafted tokens are accepted, and what follows them."""
        ...


class Controller(Protocol):
    """Decides how much to draft. Pure: it is told what steps took, and never looks at a clock."""

    def plan(self, prefix: Prefix) -> Plan: ...

    def update(self, outcome: Outcome) -> None: ...


class Admission(Protocol):
    """Decides when waiting requests join the batch."""

    def admits(self, prefix: Prefix, waiting: Sequence[Request]) -> int:
        """How many of the first waiting requests join now."""
        ...


class Roles(NamedTuple):
    """The cast of a session."""

    drafter: Drafter
    verifier: Verifier
    acceptance: Acceptance
    controller: Controller
