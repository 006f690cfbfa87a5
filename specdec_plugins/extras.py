"""Packages that only some installs have: the extras of pyproject.toml."""

from collections.abc import Iterator
from contextlib import contextmanager


def install_command(extra: str) -> str:
    """What to type to have an extra's packages."""
    return f'pip install "specdec-seq2seq[{extra}]"'


@contextmanager
def needed(extra: str, feature: str) -> Iterator[None]:
    """Around imports of an extra's packages: raises ImportError with one line that says what to install for ``feature``."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{feature} needs a package that is not installed ({error}): {install_command(extra)}") from None
