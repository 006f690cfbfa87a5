"""Tokenizers that ``transformers`` 5 builds from ``tokenizer.json``, by ``tokenizers``: NLLB, mBART, BART, Pegasus, T5, Gemma.

Version 5 takes the vocabulary, merges and added tokens from the file, the rest from the tokenizer's class. So does this codec.
For models without such a class, such as UMT5, the tokenizer is the whole file.
"""

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.extras import needed
from specdec_plugins.formats.errors import brief
from specdec_plugins.text.codec import CodecConfig, Redecoded
from specdec_plugins.text.framed import SPACE, Framed
from specdec_plugins.text.sentencepiece import read_pieces
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Align, Span

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols

TABLE = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
FAMILIES = "bart mbart mbart50 nllb pegasus t5 gemma file".split()
ROLES = (("tokenizer",), ("vocabulary", "merges"), ("model",))  # of files


class TokenizerJson(Framed):
    """Files: ``tokenizer``, a tokenizer.json; or ``vocabulary`` and ``merges`` of byte-level BPE; or ``model`` of SentencePiece,
    whose pieces take the numbers that added tokens leave.
    """

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        files = config.files
        super().__init__(config, symbols, next((roles for roles in ROLES if roles[0] in files), ROLES[0]))
        self.path = next(files[name] for name, *_ in ROLES if name in files)
        if self.options.family not in FAMILIES:
            which = f"family '{self.options.family:.40}' is unknown; known: {', '.join(FAMILIES)}"
            raise ValueError(f"{config.folder}: codec {config.name}: {which}")
        self.tokenizer = self._unigram() if "model" in files else load_tokenizer(self.path, files.get("merges"))
        self._rebuild()
        known = self.tokenizer.get_added_tokens_decoder()
        for each in self.options.added:
            if each.id not in known or known[each.id].content != each.content:
                raise ValueError(f"{self.path}: token {each.id:,} is not the added token '{each.content:.40}'")
        self.bytes = frozenset(
            self.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256 * (self.options.family == "gemma"))
        )
        pieces = Pieces(self.tokenizer.id_to_token, self.options.source_size)
        self.source = self.target = Vocabulary(pieces, self.options.unknown, self.path)

    def tokenize(self, text: str, side: str) -> tuple[list[int], Align]:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if (largest := max(encoding.ids, default=0)) >= len(self.source):
            raise ValueError(f"{self.path}: token {largest:,} is outside the vocabulary of {len(self.source):,} tokens")

        def spans() -> list[Span]:
            """Without the space before a word."""
            return [(first + len(text[first:end]) - len(text[first:end].lstrip()), end) for first, end in encoding.offsets]

        return encoding.ids, spans

    def joined(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def decoder(self) -> Redecoded:
        if not self.bytes:
            return super().decoder()
        held = self.bytes | self.skipped

        def settled(text: str) -> int:
            """A byte may make nonsense of the bytes before it."""
            end = next((n for n in range(len(stream.ids), 0, -1) if stream.ids[n - 1] not in held), 0)
            return self.settled(self.decode(stream.ids[:end]))

        stream = Redecoded(self.decode, settled)
        return stream

    def plain(self, piece: str) -> str:
        return self.tokenizer.decoder.decode([piece]).strip(" \ufffd")

    def join(self, tokens: Sequence[str]) -> str:
        return self.tokenizer.decoder.decode(list(tokens)).strip()

    def _unigram(self) -> Any:
        """The tokenizer of a SentencePiece model."""
        with needed("hf", "text of this model"):
            from tokenizers import Tokenizer, models, normalizers
        added = {each.id: each.content for each in self.options.added}
        names = {*added.values()}
        pieces, table = read_pieces(self.path)
        rest = iter([piece for piece in pieces if piece[0] not in names])
        vocabulary = []
        for number in range(len(names) + sum(piece not in names for piece, _ in pieces)):
            name = added.get(number)
            piece = next(rest, None) if name is None else (name, -100.0 if name.startswith("<unk_") else 0.0)
            if piece is None:
                raise ValueError(f"{self.path}: no piece for number {number:,}")
            vocabulary.append(piece)
        with readable(self.path):
            tokenizer = Tokenizer(models.Unigram(vocabulary, self.options.unknown))
            if table:
                tokenizer.normalizer = normalizers.Precompiled(table)
        return tokenizer

    def _rebuild(self) -> None:
        """Replace what version 5 does not take from the file."""
        from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

        tokenizer, family = self.tokenizer, self.options.family
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if "tokenizer" not in self.config.files:
            added = (
                AddedToken(each.content, lstrip=each.lstrip, rstrip=each.rstrip, normalized=each.normalized)
                for each in self.options.added
            )
            tokenizer.add_tokens(list(added)) if family == "t5" else tokenizer.add_special_tokens(list(added))
        if family == "file":
            self._check_frame()
            return
        if family == "gemma":
            tokenizer.normalizer = normalizers.Replace(" ", SPACE)
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
            tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
            self._check_frame()
            return
        if family == "bart":
            tokenizer.normalizer = None
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.options.prefix_space)
            tokenizer.decoder = decoders.ByteLevel()
            return
        metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True)
        characters = precompiled(tokenizer.normalizer)
        if family == "pegasus" and not characters:
            characters = [normalizers.Replace(Regex("\n"), " ")]
        spaces = [] if family == "t5" else [normalizers.Replace(Regex(" {2,}"), " ")]
        bare = family == "mbart" or (family in ("nllb", "t5") and not characters)
        tokenizer.normalizer = None if bare else normalizers.Sequence([*characters, *spaces])
        words = [pre_tokenizers.WhitespaceSplit()] if family in ("mbart", "t5") else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, metaspace])
        tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always", split=True)

    def _check_frame(self) -> None:
        """Raise ValueError if the file frames a source otherwise than the codec does."""
        with readable(self.path):
            framed, bare = (self.tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
        parts = {"text": bare, "eos": [self.options.eos], "bos": [self.options.bos]}
        if framed != [token for part in self.options.frame.split() for token in parts.get(part, [])]:
            raise ValueError(f"{self.path}: its template is not supported; only '{self.options.frame}'")


class Pieces(Sequence[str]):
    """The pieces of a tokenizer by number, made when they are asked for. Numbers without a piece get a name."""

    def __init__(self, piece: Callable[[int], str | None], size: int):
        self.piece, self.size = piece, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.size:
            raise IndexError(number)
        piece = self.piece(number)
        return f"<unused{number}>" if piece is None else piece


def precompiled(normalizer: Any) -> list[Any]:
    """The normaliser with SentencePiece's table of characters that a file has, alone or in a sequence; empty without one."""
    found = [normalizer]
    if type(normalizer).__name__ == "Sequence":
        found = []
        while len(found) < 16:
            try:
                found.append(normalizer[len(found)])
            except IndexError:
                break
    return [each for each in found if type(each).__name__ == "Precompiled"][:1]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Wraps what the library makes of a file's contents: raises ValueError naming it, also for a panic, which is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ValueError(f"{path}: not a tokenizer that this program reads, or a damaged one ({brief(error)})") from None


def load_tokenizer(path: Path, merges: Path | None) -> Any:
    """A tokenizer. Raises ValueError naming a damaged file."""
    with needed("hf", "text of this model"):
        import tokenizers
    with readable(path):
        if merges is not None:
            return tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(path), str(merges)))
        content = path.read_bytes()
        for table in TABLE.finditer(content):  # a panic over a damaged one would print more than a line
            tokenizers.normalizers.Precompiled(base64.b64decode(table[1], validate=True))
        return tokenizers.Tokenizer.from_buffer(content)
