"""Keeps errors about untrusted files to one readable line."""

from collections.abc import Mapping, Sequence
from typing import Any

# Characters that steer a terminal or reorder a line: controls, line separators, direction overrides. Joiners (U+200C, U+200D)
# and no-break spaces stay: Persian, Hindi and French need them.
UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
# Surrogates are the bytes of file names that are not UTF-8, which a strict stream refuses to print.
ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in (*UNSAFE, *range(0xD800, 0xE000))}
ESCAPES |= {ord("\t"): "\t", ord("\n"): "\\n", ord("\r"): "\\r"}


def printable(text: object) -> str:
    """An untrusted text for a terminal or a log: characters that would steer it are escaped, as ``\\x1b``, line ends too."""
    return str(text).translate(ESCAPES)


def brief(text: object, most: int = 200) -> str:
    """An untrusted text as one line of at most ``most`` characters."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What an output ``before`` was made with that is not the same ``now``, by name: ``another model``, or an option's value."""
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            return "another model" if name == "model" else f"{name} {before.get(name)}, not {now.get(name)}"
    return None


def listed(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """The first items, each brief, and the number of others."""
    shown = separator.join(map(brief, items[:most]))
    return shown + (f"{separator}and {len(items) - most:,} more" if len(items) > most else "")
