"""Read lines of text: UTF-8, plain or gzip, each fault named with its file and line. Knows nothing about models."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

MAX_LINE_BYTES = 100_000  # a longer "line" is a file without line ends, not a sentence


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
