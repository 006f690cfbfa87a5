"""Optional packages: the extras of pyproject.toml."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the checkout, unless this is an installed copy


def install_command(extra: str) -> str:
    """What installs an extra beside this package. No index has the package, so it is installed from the checkout."""
    build = "PIP_BUILD_CONSTRAINT={} " if extra == "train" else ""  # fairseq's build imports torch
    if (ROOT / "pyproject.toml").is_file():
        constraints, python = shlex.quote(str(ROOT / "constraints.txt")), shlex.quote(sys.executable)
        return f"{build.format(constraints)}{python} -m pip install -c {constraints} -e {shlex.quote(f'{ROOT}[{extra}]')}"
    return f'in the checkout of SpecDec: {build.format("constraints.txt")}pip install -c constraints.txt ".[{extra}]"'


@contextmanager
def needed(extra: str, feature: str) -> Iterator[None]:
    """Wraps imports of an extra's packages: a failure becomes one line that says what to install for ``feature``."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{feature} needs a package that is not installed ({error}); run: {install_command(extra)}") from None
