"""A reversible tokeniser for text that contains code: names, options, paths, URLs, placeholders, remains of markup.

A line is split at white space, and each part between words (letters and digits) and signs. A joiner marks a side of a token that
has no space. Of two neighbours, the sign carries it, so a word is the same token in prose and in code: ``set skew_correction=1.``
becomes ``set skew ￭_￭ correction ￭=￭ 1 ￭.``.

Only white space is normalised: every run, non-breaking spaces included, becomes one plain space, and the ends are stripped. The
two marks used here, and characters outside the alphabets of Western Europe, become their code points (``％2713％``), whose
characters the subword vocabulary contains.
"""

import re

from specdec_plugins.text.words import WordTokenizer

JOINER, ESCAPE = "￭", "％"
# Printable ASCII, the letters of Latin-1, and what French and technical text adds to them.
_FOREIGN = re.compile("[^!-~À-ÿŒœŸ«»‘’“”–—…·°§²³€→←≤≥−]")
NO_TEXT = "\0\n\r"  # never part of a line
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]+){ESCAPE}")
_BEGUN = re.compile(f"{ESCAPE}[0-9a-f]*$")  # may become one
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


class Reversible(WordTokenizer):
    """Tokenise and detokenise sentences of Western European languages that contain code."""

    escape = re.compile(f"{JOINER}|{_ESCAPED.pattern}")

    def tokenize(self, line: str) -> str:
        """Return the tokens of a raw sentence, joined by single spaces."""
        return " ".join(token for part in line.split() for token in _tokens(part))

    def detokenize(self, line: str) -> str:
        """Return the raw sentence for any line of tokens, including lines that `tokenize` never produces."""
        return _ESCAPED.sub(_character, _joined(line))

    def unescape(self, match: re.Match[str]) -> str:
        return _character(match) if match[1] else ""

    def stream(self) -> "ReversibleStream":
        return ReversibleStream()


class ReversibleStream:
    """Incremental detokenisation, a `WordStream`. Holds back spaces, joiners and incomplete code points."""

    def __init__(self) -> None:
        self.line = ""  # joiners and spaces, which depend on the next character
        self.text = ""  # may begin a code point
        self.space = ""  # before the next token, if there is one

    def push(self, piece: str, complete: bool) -> str:
        if piece:
            self.line, self.space = self.line + self.space + piece, ""
        if complete:
            self.space = " "
        settled = self.line.rstrip(f"{JOINER} ")
        self.text, self.line = self.text + _joined(settled), self.line[len(settled) :]
        return self._settle(final=False)

    def finish(self) -> str:
        self.text, self.line = self.text + _joined(self.line), ""
        return self._settle(final=True)

    def _settle(self, final: bool) -> str:
        end = max((match.end() for match in _ESCAPED.finditer(self.text)), default=0)
        begun = None if final else _BEGUN.search(self.text, end)
        settled = self.text[: begun.start()] if begun else self.text
        self.text = self.text[len(settled) :]
        return _ESCAPED.sub(_character, settled)


def _joined(line: str) -> str:
    """A line of tokens without joiners and the spaces beside them."""
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
    """A character as its code point, which ``detokenize`` reverses."""
    return f"{ESCAPE}{ord(character):x}{ESCAPE}"


def _character(match: re.Match[str]) -> str:
    """The character of a code point. Invalid ones and line ends, which only a model can write, stay as they are."""
    number = int(match[1], 16)
    exists = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number) if exists and chr(number) not in NO_TEXT else match[0]
