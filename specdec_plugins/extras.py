"""Optional packages: the extras of pyproject.toml."""

from collections.abc import Iterator
from contextlib import contextmanager


def install_command(extra: str) -> str:
    return f'pip install "specdec-seq2seq[{extra}]"'


@contextmanager
def needed(extra: str, feature: str) -> Iterator[None]:
    """Wraps imports of an extra's packages: a failure becomes one line that says what to install for ``feature``."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{feature} needs a package that is not installed ({error}); run: {install_command(extra)}") from None
