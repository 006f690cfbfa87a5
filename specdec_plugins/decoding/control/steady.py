"""Draft lengths in a batch with requests whose outputs depend on them."""

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Controller
from specdec_plugins.decoding.values import Outcome, Plan, Request


def depends_on_drafts(request: Request) -> bool:
    """Whether the draft length can change the request's output: under tolerance and the rejection rule."""
    tolerance, sampling = request.tolerance, request.sampling
    return (sampling.rule == "rejection") if sampling else tolerance is not None and tolerance.beta > 1


class Steady(Controller):
    """Fixes the draft length of such requests, so that outputs do not depend on the neighbours. Others get ``inner``'s."""

    def __init__(self, inner: Controller, length: int):
        self.inner, self.length = inner, length
        self._mixed = False

    def plan(self, prefix: Prefix) -> Plan:
        plan, fixed = self.inner.plan(prefix), [*map(depends_on_drafts, prefix.requests)]
        self._mixed = any(fixed)
        if not self._mixed:
            return plan
        return plan._replace(lengths=[self.length if each else length for each, length in zip(fixed, plan.lengths)])

    def update(self, outcome: Outcome) -> None:
        if not self._mixed:  # the time of other lengths says nothing about the plan
            self.inner.update(outcome)
