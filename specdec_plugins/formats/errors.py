"""Keeps errors about untrusted files to one readable line."""

from collections.abc import Sequence


def brief(text: object, most: int = 200) -> str:
    """An untrusted text as one line of at most ``most`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[:most]}..."


def listed(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """The first items, each brief, and the number of others."""
    shown = separator.join(map(brief, items[:most]))
    return shown + (f"{separator}and {len(items) - most:,} more" if len(items) > most else "")
