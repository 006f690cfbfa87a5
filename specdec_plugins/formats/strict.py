"""Untrusted JSON to dataclasses, strictly: one error names every key that is unknown, missing or of another type."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from specdec_plugins.formats.errors import listed

T = TypeVar("T")


def parse(cls: type[T], data: Any, where: str = "") -> T:
    """A dataclass from a JSON object whose keys are its fields; fields with defaults may be absent.

    Errors call the object ``where``. Raises ValueError with every fault.
    """
    faults: list[str] = []
    result: T = _object(cls, data, where, faults)
    if faults:
        raise ValueError(listed(faults, "; "))
    return result


def _object(cls: Any, data: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(data, dict):
        faults.append(f"{where or 'the whole'} is not an object")
        return None
    fields = {each.name: each for each in dataclasses.fields(cls)}
    dot = f"{where}." if where else ""
    faults += [f"unknown key '{dot}{key}'" for key in data if key not in fields]
    needed = [
        name
        for name, each in fields.items()
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    faults += [f"no '{dot}{name}'" for name in needed if name not in data]
    hints, before = typing.get_type_hints(cls), len(faults)
    values = {name: _value(hints[name], data[name], f"{dot}{name}", faults) for name in fields if name in data}
    if len(faults) > before or any(name not in values for name in needed):
        return None
    try:
        return cls(**values)
    except ValueError as error:
        faults.append(f"{where}: {error}" if where else str(error))
        return None


def _value(hint: Any, value: Any, where: str, faults: list[str]) -> Any:
    """``value`` as type ``hint``; adds to ``faults`` if it is of another type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:  # with None
        return None if value is None else _value(arguments[0], value, where, faults)
    if dataclasses.is_dataclass(hint):
        return _object(hint, value, where, faults)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], each, f"{where}[{index}]", faults) for index, each in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _value(arguments[1], each, f"{where}.{key}", faults) for key, each in value.items()}
    if hint is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if origin is None and type(value) is hint:
        return value
    name = {tuple: "list", Mapping: "object"}.get(origin) or hint.__name__
    faults.append(f"'{where}' is {value!r:.80}, not of type {name}")
    return None
