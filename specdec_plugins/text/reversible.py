"""A reversible tokeniser for text with code in it: names, options, paths, URLs, placeholders, left-overs of markup.

A line is cut at white space, and each part between words (letters and digits) and signs. A token without a space beside it has
a joiner on that side. Of two neighbours the one that is not a word has it, so a word is the same token in prose and in code:
``set skew_correction=1.`` becomes ``set skew ￭_￭ correction ￭=￭ 1 ￭.``.

Nothing is normalised except white space: every run of it, non-breaking spaces included, becomes one plain space, and none is left
at the ends. A character outside the alphabet of Western European languages, or one of the two marks used here, is written as its
code point (``％2713％``), in characters that the subword vocabulary has.
"""

import re
from collections.abc import Sequence

from specdec_plugins.text.alignment import undo

JOINER, ESCAPE = "￭", "％"
# Printable ASCII, the letters of Latin-1, and what French and technical text adds to them.
_FOREIGN = re.compile("[^!-~À-ÿŒœŸ«»‘’“”–—…·°§²³€→←≤≥−]")
NO_TEXT = "\0\n\r"  # what no line holds
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]+){ESCAPE}")
_BEGUN = re.compile(f"{ESCAPE}[0-9a-f]*$")  # what may become one
_LETTER, _SIGN = r"[^\W_]", rf"[^\w@{ESCAPE}]|_"
_TOKEN = re.compile(
    rf"{ESCAPE}[0-9a-f]+{ESCAPE}"
    rf"|(?<!{_LETTER})(?:[cdjlmnst]|(?:jus|lors|puis|quoi)?qu)['’](?={_LETTER})"  # French elision: l'option, qu'il
    rf"|(?<={_LETTER})['’](?:s|t|d|m|re|ve|ll)(?!{_LETTER})"  # English contraction: program's, don't
    rf"|(?P<word>{_LETTER}+)"
    r"|\(\)|@"  # foo() is frequent; two @ at the end of a token would mean a subword that is not the last
    rf"|(?P<sign>{_SIGN})(?P=sign)*",  # --, ::, ...
    re.IGNORECASE,
)


class Reversible:
    """Tokenise and detokenise sentences of Western European languages, with code in them."""

    def tokenize(self, line: str) -> str:
        """Return the tokens of a raw sentence, joined by single spaces."""
        return " ".join(token for part in line.split() for token in _tokens(part))

    def detokenize(self, line: str) -> str:
        """Return the raw sentence for a line of tokens, also for one that a model made and that no sentence has."""
        return _ESCAPED.sub(_character, _joined(line))

    def surface(self, pieces: Sequence[str]) -> list[str]:
        """See `WordTokenizer`."""
        return undo([piece.replace(JOINER, "") for piece in pieces], _ESCAPED, _character)

    def stream(self) -> "ReversibleStream":
        """See `WordTokenizer`."""
        return ReversibleStream()


class ReversibleStream:
    """Incremental detokenisation, a `WordStream`. Spaces and joiners are held back until the next character, and the beginning of
    a code point until its end.
    """

    def __init__(self) -> None:
        self.line = ""  # joiners and spaces that the next character decides about
        self.text = ""  # what may be the beginning of a code point
        self.space = ""  # before the next token, if there is one

    def push(self, piece: str, complete: bool) -> str:
        """See `WordStream`."""
        if piece:
            self.line, self.space = self.line + self.space + piece, ""
        if complete:
            self.space = " "
        settled = self.line.rstrip(f"{JOINER} ")
        self.text, self.line = self.text + _joined(settled), self.line[len(settled) :]
        return self._tell(final=False)

    def finish(self) -> str:
        """See `WordStream`."""
        self.text, self.line = self.text + _joined(self.line), ""
        return self._tell(final=True)

    def _tell(self, final: bool) -> str:
        end = max((match.end() for match in _ESCAPED.finditer(self.text)), default=0)
        begun = None if final else _BEGUN.search(self.text, end)
        settled = self.text[: begun.start()] if begun else self.text
        self.text = self.text[len(settled) :]
        return _ESCAPED.sub(_character, settled)


def _joined(line: str) -> str:
    """A line of tokens with no space beside joiners, and without these."""
    return line.replace(f"{JOINER} ", "").replace(f" {JOINER}", "").replace(JOINER, "")


def _tokens(part: str) -> list[str]:
    """The tokens of a part without white space, with joiners between them."""
    found = list(_TOKEN.finditer(_FOREIGN.sub(lambda match: code_point(match[0]), part)))
    tokens = [match[0] for match in found]
    for index in range(1, len(tokens)):
        if found[index]["word"]:  # two words are never neighbours
            tokens[index - 1] += JOINER
        else:
            tokens[index] = JOINER + tokens[index]
    return tokens


def code_point(character: str) -> str:
    """A character as its code point, which ``detokenize`` turns into the character again."""
    return f"{ESCAPE}{ord(character):x}{ESCAPE}"


def _character(match: re.Match[str]) -> str:
    """The character of a code point. One that does not exist, or that would end the line, which only a model can have written,
    stays as it is."""
    number = int(match[1], 16)
    exists = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number) if exists and chr(number) not in NO_TEXT else match[0]
