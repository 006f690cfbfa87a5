"""Errors about files from outside stay one line that can be read, whatever the files hold."""

from collections.abc import Sequence


def brief(text: object, most: int = 200) -> str:
    """A text from elsewhere in one line of so many characters at most."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[:most]}..."


def listed(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """The first items, each brief, and how many more there are."""
    shown = separator.join(map(brief, items[:most]))
    return shown + (f"{separator}and {len(items) - most:,} more" if len(items) > most else "")
