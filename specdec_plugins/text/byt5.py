"""Text as the bytes of its UTF-8, each plus 3, behind three special tokens: ByT5."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.text.framed import Framed, Verbatim
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Align, Span

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols

FIRST = 3  # the id of byte 0
NAMES = [chr(byte) if 0x21 <= byte <= 0x7E else f"<0x{byte:02X}>" for byte in range(256)]


class ByT5(Framed):
    """Without files. Added tokens are matched in the raw text; eos at its end is the source's own."""

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        super().__init__(config, symbols, ())
        size = self.options.source_size
        if size != self.options.target_size or size < FIRST + len(NAMES):
            raise ValueError(f"{config.folder}: codec {config.name}: a vocabulary of {size:,} tokens, which must have all bytes")
        self.verbatim = Verbatim(self.options.added)
        tokens = [f"<unused{number}>" for number in range(size)]
        tokens[FIRST : FIRST + len(NAMES)] = NAMES
        self.added = {each.id: each.content for each in self.options.added}
        for number, content in self.added.items():
            tokens[number] = content
        self.source = self.target = Vocabulary(tokens, self.options.unknown)

    def tokenize(self, text: str, side: str) -> tuple[list[int], Align]:
        parts = self.verbatim.split(text)
        ids: list[int] = []
        for index, part in enumerate(parts):
            ids += [self.verbatim.added[part].id] if index % 2 else [byte + FIRST for byte in part.encode("utf-8", "replace")]
        length = len(ids) - (ids[-1:] == [self.options.eos])
        return ids[:length], lambda: self._characters(text, parts)[:length]

    def joined(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes, ids)).decode("utf-8", "ignore")

    def spans(self, text: str, ids: Sequence[int]) -> list[Span]:
        """Of the bytes of a character, the last one has it."""
        found, at, rest = list[Span](), 0, b""
        for token in ids:
            start, rest = at, rest + (b"" if token in self.skipped else self._bytes(token))
            if whole := rest.decode("utf-8", "ignore"):
                at, rest = at + len(whole) * text.startswith(whole, at), b""
            found.append((start, at) if text[start:at].strip() else (at, at))
            rest = rest[-3:]  # more are no character
        return found

    def join(self, tokens: Sequence[str]) -> str:
        return self.joined(self.target.ids(tokens))

    def _bytes(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token].encode("utf-8", "replace")
        return bytes([token - FIRST]) if 0 <= token - FIRST < len(NAMES) else b""

    @staticmethod
    def _characters(text: str, parts: Sequence[str]) -> list[Span]:
        """The characters of a text's parts, one span for each token."""
        spans, at = list[Span](), 0
        for index, part in enumerate(parts):
            at = text.index(part, at)  # past the white space that a token takes
            if index % 2:
                spans.append((at, at + len(part)))
            else:
                for number, character in enumerate(part, at):
                    first = (number, number + 1) if character.strip() else (number, number)
                    end = (number + 1, number + 1)
                    spans += [first, *[end] * (len(character.encode("utf-8", "replace")) - 1)]
            at += len(part)
        return spans
