"""Drafters by name: each file here is one, with a function ``build(model)`` that returns it."""

import importlib
import pkgutil


def available() -> list[str]:
    """The names of the drafters, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def build(name: str, model):
    """The drafter ``name`` on a loaded model (None for a drafter that needs none)."""
    if name not in available():
        raise ValueError(f"No drafter named '{name}'. Available: {', '.join(available())}.")
    return importlib.import_module(f"{__name__}.{name}").build(model)
