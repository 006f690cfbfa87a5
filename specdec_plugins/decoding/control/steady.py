"""Draft lengths in a batch where some requests need a fixed one."""

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Controller
from specdec_plugins.decoding.values import Outcome, Plan


class Steady(Controller):
    """Fixes the draft length of requests whose output depends on it, so that neighbours cannot change an output. Others get
    ``inner``'s, but searches none unless ``inner`` plans for ``searches``: drafts seldom pay there, nor do they tell what others
    accept."""

    def __init__(self, inner: Controller, length: int, searches: bool = False):
        self.inner, self.length, self.searches = inner, length, searches
        self._mixed = False

    def plan(self, prefix: Prefix) -> Plan:
        plan, fixed = self.inner.plan(prefix), [*map(self._fixed, prefix.requests)]
        self._mixed = any(each is not None for each in fixed)
        if not self._mixed:
            return plan
        return plan._replace(
            lengths=[length if each is None else each for each, length in zip(fixed, plan.lengths)], expects=None
        )

    def update(self, outcome: Outcome) -> None:
        if not self._mixed:  # the time of other lengths says nothing about the plan
            self.inner.update(outcome)

    def _fixed(self, request: Request) -> int | None:
        """The request's draft length; None: as planned."""
        if request.depends_on_drafts:
            return self.length
        return None if request.beam is None or self.searches else 0
