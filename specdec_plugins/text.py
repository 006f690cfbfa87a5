"""Text in and out of the models: reading lines, Moses tokenisation, byte-pair encoding (BPE).

Preparation and translation share this file, so that a model is asked in the very form in which it was trained.
It knows nothing about fairseq or torch, and loads sacremoses and subword-nmt only when they are used.

Tokenisation is what fairseq calls ``--tokenizer moses``: hyphens inside words are split (`` @-@ ``) and XML
characters are escaped (``&apos;``). So prepared data agrees with models trained elsewhere in the usual way, and both steps
can be undone. Before it, punctuation is normalised as Moses does, which cannot be undone (curly quotes become straight).
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_LINE_BYTES = 100_000  # a longer "line" is a file without line ends, not a sentence

# WMT16 Romanian mixes the legacy cedilla letters with the correct comma-below ones.
ROMANIAN = str.maketrans("ŞşŢţ", "ȘșȚț")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (plain or ``.gz``), without their ends.

    Only ``\\n`` ends a line, as for ``wc -l``: U+2028 and its like do not, so parallel files stay parallel. A carriage return
    before the end is dropped and elsewhere becomes a space, because other tools would take it for a line end.
    Raises ValueError naming file and line when the text is not UTF-8 or a line exceeds `MAX_LINE_BYTES`, or naming the file
    when it cannot be read.
    """
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
            while data := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(data) > MAX_LINE_BYTES:
                    raise ValueError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes")
                line = data.decode("utf-8").removesuffix("\n")
                yield line.rstrip("\r").replace("\r", " ") if "\r" in line else line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line)") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


class Moses:
    """Normalise, tokenise and detokenise the sentences of one language, given as a two-letter code."""

    def __init__(self, lang: str):
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        self.lang = lang
        self.normalizer = MosesPunctNormalizer(lang, post_remove_control_chars=True)
        self.tokenizer = MosesTokenizer(lang)
        self.detokenizer = MosesDetokenizer(lang)

    def tokenize(self, line: str) -> str:
        """Return the normalised tokens of a raw sentence, joined by single spaces."""
        line = " ".join(line.split())  # first, or tabs would vanish as control characters and glue their words together
        if self.lang == "ro":
            line = line.translate(ROMANIAN)
        return self.tokenizer.tokenize(self.normalizer.normalize(line), aggressive_dash_splits=True, return_str=True)

    def detokenize(self, line: str) -> str:
        """Return the raw sentence for a line of tokens."""
        return self.detokenizer.detokenize(line.split())


class Bpe:
    """Apply the BPE codes of a file written by subword-nmt. Raises ValueError when the file holds no codes."""

    CACHED = 50_000  # words

    def __init__(self, codes: Path):
        from subword_nmt.apply_bpe import BPE

        lines = list(read_lines(codes))
        merges = [line for line in lines if not line.startswith("#version:")]
        if not merges or any(len(merge.split(" ")) != 2 for merge in merges):  # subword-nmt would end the process
            raise ValueError(f"{codes}: not a BPE codes file (two symbols a line)")
        self.bpe = BPE(io.StringIO("\n".join(lines)))

    def apply(self, line: str) -> str:
        """Split the tokens of a line into subwords, all but the last of a word ending in ``@@``."""
        if len(self.bpe.cache) > self.CACHED:  # it never forgets by itself, and a large file has no end of words
            self.bpe.cache.clear()
        return self.bpe.segment(line)


class Vocabulary:
    """A fairseq dictionary: what each token number of a model stands for. Raises ValueError for a file that is none."""

    SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
    EOS, UNKNOWN = 2, 3

    def __init__(self, path: Path):
        self.path = path
        self.symbols = list(self.SPECIAL)
        for number, line in enumerate(read_lines(path), 1):
            symbol, separator, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not separator or not count.isdecimal():
                raise ValueError(f"{path}, line {number}: not a fairseq dictionary (a symbol and its count a line)")
            self.symbols.append(symbol)
        self.numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, line: str) -> list[int]:
        """The token numbers of a line's subwords, closed by eos."""
        return [*(self.numbers.get(symbol, self.UNKNOWN) for symbol in line.split()), self.EOS]

    def decode(self, tokens: Iterable[int]) -> str:
        """The subwords of token numbers, joined by spaces."""
        return " ".join(self.symbols[token] for token in tokens)

    def fingerprint(self) -> str:
        """The sha256 of the symbols in order: what a model's embedding rows mean. Our checkpoints carry it."""
        return hashlib.sha256("\n".join(self.symbols).encode()).hexdigest()


def remove_bpe(line: str) -> str:
    """Join the subwords of a line into tokens again."""
    return f"{line} ".replace("@@ ", "").rstrip()
