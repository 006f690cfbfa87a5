"""Where a file has text to translate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_plugins.text.placing import Mark, Pieces


@dataclass(frozen=True)
class Span:
    """The characters ``start`` to ``end`` of a file, which a translation of ``text`` replaces.

    ``escape`` spells text as the file does. ``marks`` are inline tags, and ``places`` the characters of the file that they are.
    ``write`` makes the replacement from the translation so spelled, told whether it needs review; ``reads`` tells what counts of
    a text that is read again. Unless it is ``always`` written, a translation equal to its text changes nothing. ``arrange`` moves
    tags that cannot be where they were placed. ``whole`` and ``lines`` are those of `Unit`. If the text needs review, the span
    that starts at ``marked`` says so. A text may be of a ``form``, as a file is.
    """

    start: int
    end: int
    text: str
    escape: Callable[[str], str] = str
    marks: Sequence[Mark] = ()
    places: Sequence[tuple[int, int]] = ()
    write: Callable[[str, bool], str] = lambda text, doubtful: text
    arrange: Callable[[Pieces], Pieces] | None = None
    reads: Callable[[str], str] = str
    always: bool = False
    whole: bool = False
    lines: bool = False
    marked: int | None = None
    form: str | None = None

    @property
    def top(self) -> int:
        """What the spans of one entry have in common."""
        return self.start if self.marked is None else self.marked
