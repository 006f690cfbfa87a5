"""Code by name, from model folders and options: built in, installed, or ``module:object``. Folders never contain code."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_plugins.formats.errors import brief


def find(name: str, kind: str, built_in: Mapping[str, str], group: str) -> Any:
    """The module or object called ``name``: in ``built_in`` (by module or ``module:object``), an installed entry point of
    ``group``, or ``module:object`` itself. Raises ValueError for an unknown name.
    """
    module, _, attribute = built_in.get(name, name).partition(":")
    if name in built_in or attribute:
        try:
            loaded = importlib.import_module(module)
            return getattr(loaded, attribute) if attribute else loaded
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            if name in built_in:
                raise
            raise ValueError(f"{kind} '{brief(name)}': {brief(error)}") from None
    from importlib.metadata import entry_points  # its import takes as long as loading a small model

    points = {point.name: point for point in entry_points(group=group)}
    if name not in points:
        available = ", ".join([*built_in, *sorted(points)])
        raise ValueError(f"no {kind} named '{brief(name)}'. Available: {available}, and module:object")
    return points[name].load()


def refuse_own_code(folder: Path, kind: str, name: str) -> None:
    """Raise ValueError if ``module:object`` would be imported from the model folder, which may be on Python's path. Imports
    nothing.
    """
    module, separator, _ = name.partition(":")
    package, *below = module.split(".")
    spec = importlib.util.find_spec(package) if separator and package else None
    for place in (spec.origin, *(spec.submodule_search_locations or ())) if spec else ():
        if place and Path(place, *below).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{folder / 'model.json'}: {kind} '{name}' is code in the folder itself, which is never run")
