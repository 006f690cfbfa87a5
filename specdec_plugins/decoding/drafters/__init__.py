"""Drafters, one file each, and how they are named and built.

A name is a file in this folder, an installed entry point of the group ``specdec.drafters``, or ``module:object``. It leads to a
module or an object. With weights, that offers ``build(weights, model, verifier)``, which returns a `Drafter`: ``weights`` is the
`DrafterModel` of a folder or checkpoint, ``model`` the same loaded on the verifier's backend if it is a Transformer, and
``verifier`` the loaded verifier. An optional ``transformer(weights, verifier)`` completes the weights to a Transformer's from the
verifier's `Model`, and an optional ``KERNELS`` is their data type on the CPU kernels. Without weights, it offers
``for_pair(facts)``, with `PairFacts`.

B rows, which a recorded pass makes R >= B, C candidates.
"""

import math
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from specdec_plugins.decoding.backends import LoadedModel, Reading, RowState, Visible
from specdec_plugins.decoding.options import USUAL_BUDGET, Budget
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.values import Distribution, Draft, Plan
from specdec_plugins.formats.code import find as find_code
from specdec_plugins.formats.spec import DrafterModel, Model, weight_fault
from specdec_plugins.model.spec import ModelSpec, Symbols

GROUP = "specdec.drafters"
Row = TypeVar("Row")
# One token for each wanted row, to follow the prefix and the tokens drafted so far.
Choose = Callable[[Prefix, Sequence[bool]], Draft]


@dataclass(frozen=True)
class PairFacts:
    """What a drafter without weights may know of its models."""

    symbols: Symbols
    copies: Sequence[int]  # the target id of each source token; -1 if the target dictionary lacks it
    dictionary: str  # fingerprint of the target dictionary; empty without a datastore
    size: int  # symbols in the target dictionary
    datastore: str | None = None  # a file of `specdec-datastore`
    subwords: Sequence[str] = ()  # the target tokens as text; empty if unknown
    continued: Collection[int] = ()  # target tokens that do not end their word
    source_dictionary: str = ""  # fingerprint of the source dictionary
    verifier: LoadedModel | None = None  # for a drafter that drafts with it
    budget: Budget = USUAL_BUDGET  # cache positions that such a drafter reads


@dataclass
class Rows(Generic[Row]):
    """A drafter's state: a value per row, of any type that `deepcopy` copies."""

    rows: list[Row] = field(default_factory=list)

    def select(self, order: list[int]) -> None:
        """See `State`."""
        named: set[int] = set()
        rows = []
        for row in order:
            rows.append(deepcopy(self.rows[row]) if row in named else self.rows[row])
            named.add(row)
        self.rows = rows


class CachedRows(Rows[Row]):
    """`Rows` with a model's ``cache``: row b holds ``held(rows[b])`` positions."""

    def __init__(self, cache: RowState, held: Callable[[Row], int]):
        super().__init__()
        self.cache, self.held = cache, held

    def select(self, order: list[int]) -> None:
        self.cache.held = list(map(self.held, self.rows))  # without masks and refused tokens
        self.cache.select(order)
        super().select(order)


class CachedDrafter(Drafter, Generic[Row]):
    """A drafter whose model caches what it has read of a row. `fresh()` makes a row's value, and a row's cache holds `held(row)`
    positions."""

    fresh: Callable[[], Row]
    held: Callable[[Row], int]

    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int, shared: object) -> CachedRows[Row]:
        return CachedRows(self.model.start(rows), self.held)

    def admit(self, state: CachedRows[Row], source: Source) -> None:
        state.cache.admit(source)
        state.rows += [self.fresh() for _ in source.sentences]

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), request.rows * (request.limit + 1))


def draft_in_turn(prefix: Prefix, plan: Plan, choose: Choose, xp: Any) -> Draft:
    """Draft until each row has its planned tokens or eos, or is less probable than planned. A row that stops early costs nothing
    more. ``xp``: see `LoadedModel`."""
    rows, least = range(len(prefix)), plan.least_of(prefix.requests)
    sure = [1.0] * len(prefix)
    tokens: list[list[int]] = [[] for _ in rows]
    parts: list[Distribution] = []
    wanted = [length > 0 for length in plan.lengths]
    while any(wanted):
        one = choose(prefix.ahead(tokens), wanted)
        for row in rows:
            if wanted[row]:
                tokens[row] += one.tokens[row]
                sure[row] *= one.confidence[row] if one.confidence else 1.0
        if one.distribution is not None:
            parts.append(kept(one.distribution))
        wanted = [
            more and len(tokens[row]) < length and tokens[row][-1] != prefix.symbols.eos and sure[row] >= least[row]
            for row, more, length in zip(rows, wanted, plan.lengths)
        ]
    return Draft(tokens, joined(parts, xp))


def after_the_last(model: LoadedModel, cache: RowState, visible: Visible | None = None, confident: bool = False) -> Choose:
    """Drafts by passes over each row's last token alone, on a cache that holds those before it. If ``confident``, with the
    probability of the likeliest token."""

    def choose(ahead: Prefix, wanted: Sequence[bool]) -> Draft:
        tokens = [[token] if more else [] for token, more in zip(ahead.last, wanted)]
        done = model.read(cache, Reading(tokens, list(map(len, ahead.outputs)), visible=visible))
        draft = done.choose(ahead, Plan([int(more) for more in wanted]))
        if confident:
            likeliest = done.logits()[: len(wanted), -1:].argmax(-1).tolist()
            scores = done.scores([best if more else [] for best, more in zip(likeliest, wanted)])
            draft.confidence = [math.exp(score[0]) if score else 1.0 for score in scores]
        return draft

    return choose


def kept(distribution: Distribution) -> Distribution:
    """A copy that the next recorded pass does not overwrite."""
    return Distribution(*map(deepcopy, distribution))


def joined(parts: Sequence[Distribution], xp: Any) -> Distribution | None:
    """Those of one token each, (R, 1, C), as one of (R, K, C). ``xp``: see `LoadedModel`."""
    return Distribution(*(xp.concatenate(each, 1) for each in zip(*parts))) if parts else None


def agreeing(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The length of the common prefix."""
    return next((n for n, (one, other) in enumerate(zip(tokens, others)) if one != other), min(len(tokens), len(others)))


def built_in() -> list[str]:
    """The names of the drafters in this folder, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Any:
    """The code of the drafter ``name``. Raises ValueError for an unknown name."""
    code = find_code(name, "drafter", {each: f"{__name__}.{each}" for each in built_in()}, GROUP)
    if not hasattr(code, "build") and not hasattr(code, "for_pair"):
        raise ValueError(f"drafter '{name}' has neither build nor for_pair")
    return code


def with_weights(name: str) -> Any:
    """The code of a drafter with weights. Raises ValueError for any other name."""
    code = find(name)
    if not hasattr(code, "build"):
        raise ValueError(f"drafter '{name}' has no weights")
    return code


def without_weights(name: str, facts: PairFacts) -> Drafter:
    """The drafter ``name`` for a pair. Raises ValueError if it needs weights or refuses the facts."""
    code = find(name)
    if not hasattr(code, "for_pair"):
        names = ", ".join(each for each in built_in() if hasattr(find(each), "for_pair"))
        raise ValueError(f"drafter '{name}' needs weights; available without weights: {names}")
    drafter: Drafter = code.for_pair(facts)
    return drafter


def as_transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    """The weights, completed to a Transformer's if the drafter's code does that. Raises ValueError as `with_weights`."""
    code = with_weights(weights.code)
    return code.transformer(weights, verifier) if hasattr(code, "transformer") else weights


def kernels_dtype(name: str) -> str:
    """The data type of a drafter's weights on the CPU kernels, whatever the verifier's is: drafts need not be exact."""
    return getattr(with_weights(name), "KERNELS", "int8")


def complete(weights: DrafterModel, *options: str) -> DrafterModel:
    """Check a drafter that is a whole Transformer. Its tensors say what ``options`` say. Raises ValueError for any other option,
    and for a decoder without layers."""
    faults = [f"drafter '{weights.code}' has no option {name!r:.40}" for name in weights.options if name not in options]
    if weights.spec is not None and not weights.spec.decoder.layers:
        faults.append("a decoder without layers")
    if faults:
        raise ValueError("; ".join(faults))
    return weights


def over_the_verifier(weights: DrafterModel, verifier: Model, spec: ModelSpec) -> DrafterModel:
    """The drafter's own decoder over the verifier's encoder, embeddings and output projection."""
    layers = ("decoder.layers.", "decoder.layer_norm.")
    inherited = {name: tensor for name, tensor in verifier.tensors.items() if not name.startswith(layers)}
    own = {name: tensor for name, tensor in weights.tensors.items() if name.startswith("decoder.")}
    return replace(weights, spec=spec, tensors=inherited | own)


def matching(weights: DrafterModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The drafter's tensors outside its Transformer. Raises ValueError with all that do not have these names and shapes."""
    own = {name: tensor for name, tensor in weights.tensors.items() if not name.startswith("decoder.")}
    faults = [f"no {name}" for name in shapes if name not in own]
    faults += [f"{name}, which is unexpected" for name in own if name not in shapes]
    faults += [f"{name}, which {fault}" for name, tensor in own.items() if (fault := weight_fault(tensor))]
    faults += [
        f"{name} {tuple(own[name].shape)}, not {shape}"
        for name, shape in shapes.items()
        if name in own and tuple(own[name].shape) != shape
    ]
    if faults:
        raise ValueError(f"the weights of drafter '{weights.code}' have {'; '.join(faults)}")
    return own


def options_of(kind: type, given: Mapping[str, Any] | Sequence[str] | None) -> Any:
    """A drafter's options as its dataclass ``kind``, from values or from strings such as ``width=64``.

    Raises ValueError naming every unknown option, every value of the wrong type, and every number below 1 whose default is not.
    """
    known = {each.name: each for each in fields(kind)}
    pairs = given.items() if isinstance(given, Mapping) else [item.partition("=")[::2] for item in given or ()]
    values, faults = {}, []
    for name, value in pairs:
        if name not in known:
            faults.append(f"no option '{name}'; available: {', '.join(known) or 'none'}")
            continue
        default: Any = known[name].default
        wanted: Any = type(default)
        try:
            if wanted is bool:
                values[name] = {"true": True, "false": False}[str(value).lower()]
            else:
                values[name] = wanted(value)
        except (KeyError, TypeError, ValueError, OverflowError):  # untrusted values have any type
            faults.append(f"option {name}: '{value}' is not of type {wanted.__name__}")
        if wanted is int and default >= 1 > values.get(name, 1):
            faults.append(f"option {name} is {values[name]}, less than 1")
    if faults:
        raise ValueError("; ".join(faults))
    return kind(**values)
