"""Drafters, one file each, and how they are named.

A drafter's file is a module or an object with ``build(weights, model, verifier)`` that returns a `Drafter`: ``weights`` is what
its folder or checkpoint holds (a `DrafterModel`), ``model`` the same loaded on the verifier's backend if it is a Transformer,
and ``verifier`` the loaded verifier. A name is a built-in drafter's (a file in this folder), an installed entry point's of the
group ``specdec.drafters``, or ``module:object``.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points
from typing import Any, Protocol

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.formats.spec import DrafterModel

GROUP = "specdec.drafters"


class DrafterCode(Protocol):
    """What a drafter's file offers the engine."""

    def build(self, weights: DrafterModel | None, model: LoadedModel | None, verifier: LoadedModel) -> Drafter: ...


def built_in() -> list[str]:
    """The names of the drafters in this folder, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Any:
    """The code of the drafter ``name``. Raises ValueError if there is none."""
    if name in built_in():
        return importlib.import_module(f"{__name__}.{name}")
    module, separator, attribute = name.partition(":")
    if separator:
        try:
            code = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"drafter '{name}': {error}") from None
    else:
        points = {point.name: point for point in entry_points(group=GROUP)}
        if name not in points:
            names = ", ".join([*built_in(), *sorted(points)])
            raise ValueError(f"no drafter named '{name}'. Available: {names}, and module:object")
        code = points[name].load()
    if not hasattr(code, "build"):
        raise ValueError(f"drafter '{name}' has no function build")
    return code
