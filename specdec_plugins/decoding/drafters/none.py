"""The drafter that proposes nothing: with it the loop is plain autoregressive decoding."""

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.values import Draft, Plan


class NoDrafter(Drafter):
    def propose(self, state: None, prefix: Prefix, plan: Plan) -> Draft:
        """An empty draft, whatever the plan is."""
        return Draft([[] for _ in prefix.requests])


def build(weights: None = None, model: None = None, verifier: LoadedModel | None = None) -> NoDrafter:
    return NoDrafter()
