"""Fields of `Settings` and `CallOptions`: what each accepts, its help text, and the error that lists every fault."""

from collections.abc import Iterable
from dataclasses import Field, dataclass, field
from typing import Any

STRATEGIES = ("specdec", "ar", "drafter", "fairseq")
MOST = 2**31 - 1  # the kernels' integers
Fault = tuple[str, str]  # a field's name, and what is wrong with its value, to be read after the name


class OptionError(ValueError):
    """Invalid options. ``faults`` are (field, message), such as ``("beta", "0 is less than 1")``.

    Messages put other fields in backticks, which commands replace by their options (``--block-size``).
    """

    def __init__(self, faults: Iterable[Fault]):
        self.faults = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "; ".join(f"{field} {message}" for field, message in self.faults).replace("`", "")


@dataclass(frozen=True)
class Option:
    """What a field accepts, and its help text. One that is not ``shown`` is no option of ``specdec-translate``. With
    ``none`` None is valid beside another default.

    ``words`` are all valid strings, or the alternatives to a number. ``above`` excludes ``least``. Only ``strategies`` use the
    field; ``common`` options appear in the short help.
    """

    help: str = ""
    letter: str | None = None
    kind: type = int
    least: float | None = None
    most: float | None = None
    above: bool = False
    words: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()  # words for tests and measurements only
    strategies: tuple[str, ...] = STRATEGIES
    common: bool = False
    shown: bool = True
    none: bool = False
    group: str = "decoding"

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if isinstance(value, str) and self.words:
            if value in self.words:
                return None
            known = ", ".join(word for word in self.words if word not in self.hidden)
            return f"'{value}' is unknown; available: {'a number, ' * (self.least is not None)}{known}"
        if self.kind not in (int, float):
            return None if isinstance(value, self.kind) else f"{value!r:.80} is not a {self.kind.__name__}"
        if isinstance(value, bool) or not isinstance(value, (int, float) if self.kind is float else int):
            return f"{value!r} is not {'a number' if self.kind is float else 'an int'}"
        if value != value:
            return f"{value} is not a number"
        if self.least is not None and (value < self.least or (self.above and value == self.least)):
            return f"{value:,} is {'not above' if self.above else 'less than'} {self.least:g}"
        if self.most is not None and value > self.most:
            return f"{value:,} is more than {self.most:,}"
        return None


def option(default: Any, help: str = "", letter: str | None = None, **rest: Any) -> Any:
    """A field of `Settings` and its `Option`."""
    kind = rest.pop("kind", int if default is None else type(default))
    return field(default=default, metadata={"option": Option(help, letter, kind, **rest)})


def count(default: int | None, help: str = "", letter: str = "N", **rest: Any) -> Any:
    """A field for an integer from 1."""
    return option(default, help, letter, **{"kind": int, "least": 1, "most": MOST, **rest})


def option_of(one: Field) -> Option:
    """The `Option` of a field of `Settings`."""
    return one.metadata["option"]


def value_faults(one: Field, value: Any) -> Iterable[Fault]:
    """What is wrong with the value of a field that `option` made."""
    how = option_of(one)
    if value is not None and (fault := how.fault(value)):
        yield one.name, fault
    elif value is None and one.default is not None and not how.none:
        yield one.name, f"None is not a{'n int' if how.kind is int else f' {how.kind.__name__}'}"
