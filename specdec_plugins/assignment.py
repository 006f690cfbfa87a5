"""From a pair and settings to the roles of a session: drafter, verifier, acceptance rule and controller. Knows no text."""

import math
from dataclasses import replace
from typing import Any

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.options import Tree
from specdec_plugins.decoding.roles import Controller, Drafter, Roles
from specdec_plugins.decoding.verifier import Unverified, accept_all
from specdec_plugins.extras import needed
from specdec_plugins.fields import OptionError
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.spec import extended
from specdec_plugins.settings import DRAFTING, Settings

USUAL_BLOCK_SIZE = 8  # of a drafter that is not in a model folder


def assign(pair: Pair, settings: Settings, device: str, trained: int, own: Drafter | None) -> Roles:
    """The loop's roles. The drafter is ``own`` if given, else the settings' choice; ``trained`` is its block size in training.

    Raises ValueError for what the drafter does not support.
    """
    weights = pair.drafter if settings.strategy in DRAFTING else None
    drafting, verifying = assemble(pair.verifier, weights, device, settings.dtype, settings.threads, settings.kernels)
    if own is not None:
        drafting = own
    elif settings.draft_with:
        drafting = drafters.without_weights(settings.draft_with, facts_of(pair, settings, verifying.model))
    if settings.tree and not drafting.traits.trees:
        raise ValueError(f"drafter '{drafter_name(pair, settings, own)}' does not support trees")
    if settings.strategy == "drafter" and drafting.traits.needs_verifier:
        raise ValueError(f"{pair.name}: its drafter reads what the verifier computes, which strategy drafter lacks")
    controller = controller_of(settings, trained, drafting)
    if settings.strategy == "drafter":
        return Roles(drafting, Unverified(verifying.limits), accept_all, controller)
    return Roles(drafting, verifying, TopBetaTau(settings.beta, math.inf if settings.tau is None else settings.tau), controller)


def drafter_name(pair: Pair, settings: Settings, own: Drafter | None) -> str | None:
    """The drafter's name; None for strategies without drafts."""
    if settings.strategy not in DRAFTING:
        return None
    return settings.draft_with or (pair.drafter.code if pair.drafter else type(own).__name__)


def controller_of(settings: Settings, trained: int, drafter: Drafter) -> Controller:
    if settings.strategy == "ar":
        return FixedLength(0)
    if settings.adaptive:
        traits, searches = drafter.traits, settings.searches
        return Throughput(trained, copies=traits.copies_text, confident=traits.confident, searches=searches)
    size = settings.block_size if isinstance(settings.block_size, int) else trained
    return FixedLength(size, tree=Tree(settings.tree) if settings.tree else None)


def facts_of(pair: Pair, settings: Settings, verifier: LoadedModel) -> drafters.PairFacts:
    """What a drafter without weights may know about the pair and the settings."""
    source, target = pair.source, pair.target
    same = range(len(target)) if source is target else [target.numbers.get(symbol, -1) for symbol in source.symbols]
    marks = [each.fingerprint() if settings.datastore else "" for each in (target, source)]
    return drafters.PairFacts(
        pair.verifier.spec.symbols,
        same,
        marks[0],
        len(target),
        settings.datastore,
        subwords=target.symbols,
        continued=target.continued,
        source_dictionary=marks[1],
        verifier=verifier,
        budget=settings.budget,
    )


def beyond_training(pair: Pair, positions: int, drafting: bool = True) -> Pair:
    """The pair with its position tables extended, the drafter's only if ``drafting``. Raises OptionError if they are learned."""
    models: dict[str, Any] = {"verifier": pair.verifier} | ({"drafter": pair.drafter} if pair.drafter and drafting else {})
    faults = []
    for role, model in models.items():
        try:
            models[role] = extended(model, positions)
        except ValueError as error:
            faults.append(f"{role}: {error}")
    if faults:
        raise OptionError([("max_positions", f"{positions} requires sinusoidal positions ({'; '.join(faults)})")])
    return replace(pair, **models)


def usable_device(name: str) -> str:
    """The device. Raises ValueError if it is not available, ImportError if only PyTorch could use it."""
    if name != "cpu":
        with needed("torch", f"device {name}"):
            from specdec_plugins.decoding.backends.torch.placement import check
        check(name)
    return name
