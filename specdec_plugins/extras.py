"""Optional packages: the extras of pyproject.toml."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the checkout, unless this is an installed copy


def install_command(extra: str) -> str:
    """What installs an extra: the checkout's, or the packages themselves, as no index has this one."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (ROOT / "pyproject.toml").is_file():
        constraints = shlex.quote(str(ROOT / "constraints.txt"))
        build = ""
        if extra == "train":  # fairseq's build imports torch, and older pips let it take any
            build = f"{pip} 'pip>=25.3' && PIP_BUILD_CONSTRAINT={constraints} "
        return f"{build}{pip} -c {constraints} -e {shlex.quote(f'{ROOT}[{extra}]')}"
    from importlib.metadata import requires

    packages = [each.partition(";")[0].strip() for each in requires("specdec-seq2seq") or () if f'extra == "{extra}"' in each]
    return f"{pip} {shlex.join(packages)}"


@contextmanager
def needed(extra: str, feature: str) -> Iterator[None]:
    """Wraps imports of an extra's packages: a failure becomes one line that says what to install for ``feature``."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{feature} needs a package that is not installed ({error}); run: {install_command(extra)}") from None
