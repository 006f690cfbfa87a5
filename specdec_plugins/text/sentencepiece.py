"""SentencePiece models with a vocabulary file that numbers their pieces: Marian and M2M100 as ``transformers`` tokenises them."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.extras import needed
from specdec_plugins.formats.errors import brief
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.text.framed import SPACE, Framed, Verbatim
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Align, align

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols

UNNAMED = "<unk>"  # what transformers shows for numbers without a piece
MARKED = re.compile(r">>.*?<<", re.DOTALL)  # a language token that begins a text


class SentencePiece(Framed):
    """Files: the models ``source`` and ``target``, and the number of each piece, ``vocabulary``, for targets perhaps
    ``target_vocabulary``.

    Added tokens are matched in the raw text, then, with languages on the target's side, ``>>xxx<<`` at the beginning.
    """

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        super().__init__(config, symbols, ("source", "target", "vocabulary"))
        options, files = self.options, config.files
        self.models = {"source": load_model(files["source"])}
        self.models["target"] = self.models["source"] if files["target"] == files["source"] else load_model(files["target"])
        self.source = self.target = self._vocabulary(files["vocabulary"], options.source_size)
        if (own := files.get("target_vocabulary")) is not None:
            self.target = self._vocabulary(own, options.target_size)
        elif options.source_size != options.target_size:
            raise ValueError(
                f"{files['vocabulary']}: one vocabulary for {options.source_size:,} and {options.target_size:,} tokens"
            )
        self.verbatim = Verbatim(options.added)
        # transformers joins pieces by the source's model, unless vocabularies are separate.
        self.joining = self.models["source" if self.target is self.source else "target"]

    def tokenize(self, text: str, side: str) -> tuple[list[int], Align]:
        ids: list[int] = []
        known, pieces = getattr(self, side).numbers, self.pieces(text, self.models[side])
        for piece in pieces:
            token = self.verbatim.added.get(piece)
            ids.append(known.get(piece, self.options.unknown) if token is None else token.id)
        return ids, lambda: align(text, [piece.replace(SPACE, "") for piece in pieces])

    def pieces(self, text: str, model: Any) -> list[str]:
        """The pieces of a text, added tokens among them."""
        pieces: list[str] = []
        for index, part in enumerate(self.verbatim.split(text)):
            if index % 2:
                pieces.append(part)
                continue
            marked = MARKED.match(part) if "target" in self.before else None
            pieces += [marked[0]] if marked else []
            pieces += model.encode(part[marked.end() :] if marked else part, out_type=str)
        return pieces

    def joined(self, ids: Sequence[int]) -> str:
        runs: list[list[str]] = [[]]
        for piece in self.target.tokens(ids):
            if piece == UNNAMED:
                runs.append([])
            else:
                runs[-1].append(piece)
        return UNNAMED.join(map(self.joining.decode, runs)).replace(SPACE, " ").strip()

    def _vocabulary(self, path: Path, size: int) -> Vocabulary:
        """The pieces by number. Some numbers only pad a model's tables."""
        symbols = [UNNAMED] * size
        numbers = read_numbers(path, size)
        for piece, number in [*numbers.items(), *((each.content, each.id) for each in self.options.added)]:
            if number < size:
                symbols[number] = piece
        vocabulary = Vocabulary(symbols, self.options.unknown, path)
        vocabulary.numbers = numbers  # several pieces may have one number
        return vocabulary


def load_model(path: Path) -> Any:
    """A SentencePiece model. Raises ValueError naming a damaged file."""
    with needed("hf", "text of this model"):
        import sentencepiece
    try:
        content = path.read_bytes()
        if not content:
            raise ValueError("empty")
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a SentencePiece model, or a damaged one ({brief(error)})") from None


def read_numbers(path: Path, size: int) -> dict[str, int]:
    """The number of each piece, below ``size``. Raises ValueError naming the file."""
    try:
        numbers = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON, or damaged ({brief(error)})") from None
    if not isinstance(numbers, dict) or not numbers:
        raise ValueError(f"{path}: not an object that numbers pieces")
    wrong = next((piece for piece, number in numbers.items() if type(number) is not int or not 0 <= number < size), None)
    if wrong is not None:
        raise ValueError(f"{path}: '{wrong:.80}' has the number {numbers[wrong]!r:.40}, and the model has {size:,} tokens")
    return numbers


def read_pieces(path: Path) -> tuple[list[tuple[str, float]], bytes]:
    """A model's pieces with their scores, and its table of characters to replace. Raises ValueError naming a damaged file."""
    model = load_model(path)
    numbers = list(range(len(model)))
    with undamaged(path):
        normalizer = last(path.read_bytes(), NORMALIZER)
        table = last(normalizer if isinstance(normalizer, bytes) else b"", 2)  # NormalizerSpec.precompiled_charsmap
    return list(zip(model.id_to_piece(numbers), model.get_score(numbers))), table if isinstance(table, bytes) else b""


def read_added(path: Path) -> list[tuple[int, str, bool]]:
    """The numbers and names of a model's pieces that text contains verbatim, and whether they only control. Raises ValueError
    naming a damaged file."""
    data, found = path.read_bytes(), []
    model = load_model(path)
    if all(bytes([TYPE << 3, kind]) not in data for kind in (CONTROL, USER_DEFINED)):
        return []  # most of the time: reading a quarter of a million pieces here takes a second
    with undamaged(path):
        pieces = [value for number, value in fields(data) if number == PIECE and isinstance(value, bytes)]
        for number, piece in enumerate(pieces):
            if bytes([TYPE << 3]) in piece and (kind := last(piece, TYPE)) in (CONTROL, USER_DEFINED):
                found.append((number, model.id_to_piece(number), kind == CONTROL))
    return found


# Fields of SentencePiece's ModelProto and its SentencePiece, and types of pieces:
# https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
PIECE, NORMALIZER, TYPE = 1, 3, 3
CONTROL, USER_DEFINED = 3, 4


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Wraps reading a protocol buffer: raises ValueError naming the file."""
    try:
        yield
    except IndexError:
        raise ValueError(f"{path}: damaged") from None


def last(data: bytes, wanted: int) -> bytes | int | None:
    """The last value of a field of a protocol buffer."""
    return next((value for number, value in reversed([*fields(data)]) if number == wanted), None)


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protocol buffer: numbers, and bytes or whole numbers. Raises IndexError if it is damaged."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}.get(kind, 0)
        yield number, data[at : at + size]
        at += size
