"""The values of an untrusted Hugging Face config file. Each is checked when it is asked for; faults are collected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.formats.description import read_json
from specdec_plugins.model.spec import HUGE

MISSING = object()


@dataclass
class Asked:
    """A config file; None is as good as a missing value."""

    path: Path
    values: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Asked":
        """Raises FileNotFoundError, or ValueError naming the file."""
        return cls(path, read_json(path))

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def whole(self, name: str, default: Any = MISSING, least: int = 0, most: int = HUGE - 1) -> Any:
        """A whole number, or ``default``; a fault if it is missing without one."""
        value = self.get(name)
        if value is None:
            if default is MISSING:
                self.faults.append(f"{self.path.name}: no '{name}'")
                return least
            return default
        if type(value) is not int or not least <= value <= most:
            self.fault(name, f"not a whole number from {least:,} to {most:,}")
            return least
        return value

    def number(self, name: str, default: float, most: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not abs(value) <= most:
            self.fault(name, f"not a number from -{most:g} to {most:g}")
            return default
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is not None and type(value) is not bool:
            self.fault(name, "neither true nor false")
        return default if value is None else bool(value)

    def word(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is not None and type(value) is not str:
            self.fault(name, "not a word")
        return value if type(value) is str else default

    def token(self, name: str) -> int | None:
        """A token id, alone or as a list of one."""
        value = self.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None and (type(value) is not int or not 0 <= value < HUGE):
            self.fault(name, "not one token")
            return None
        return value

    def some_tokens(self, name: str) -> list[int]:
        """Token ids: a list, or one alone."""
        value = self.get(name)
        return [token] if type(value) is int and (token := self.token(name)) is not None else self.tokens(name)

    def tokens(self, name: str) -> list[int]:
        """A list of token ids."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(each) is int and 0 <= each < HUGE for each in value):
            self.fault(name, "not a list of tokens")
            return []
        return value

    def fault(self, name: str, what: str) -> None:
        self.faults.append(f"{self.path.name}: {name} is {self.get(name)!r:.60}, {what}")

    def refuse(self, name: str, supported: str) -> None:
        self.faults.append(f"{self.path.name}: {name} {self.get(name)!r:.60} is not supported; only {supported}")
