"""Which tests an environment without some packages, such as the base install, can run."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "tests", ROOT / "benchmarks", ROOT / "data", ROOT


def missing(path: Path) -> set[str]:
    """The packages that are not installed among those that a file imports when it is loaded, itself or by files of ours."""
    due, seen, found = [path], {path}, set[str]()
    while due:
        for name in modules(due.pop()):
            ours = files(name)
            due += {*ours} - seen
            seen.update(ours)
            package = name.partition(".")[0]
            if not ours and package != "specdec_plugins" and find_spec(package) is None:
                found.add(package)
    return found


@cache
def modules(path: Path) -> tuple[str, ...]:
    return tuple(imported(ast.parse(path.read_text(encoding="utf-8")).body))


def imported(statements: list[ast.stmt]) -> Iterator[str]:
    """The modules that statements import, outside functions; what they import from them may be modules, too."""
    for statement in statements:
        match statement:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names if files(f"{module}.{alias.name}"))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Try():
                continue
            case ast.With(body=body) | ast.If(body=body):
                yield from imported(body)


@cache
def files(name: str) -> list[Path]:
    """A module of ours, and the packages that it lies in."""
    parts = name.split(".")
    packages = [folder.joinpath(*parts[:end]) for folder in FOLDERS for end in range(1, len(parts) + 1)]
    modules = [folder.joinpath(*parts).with_suffix(".py") for folder in FOLDERS]
    return [path for path in (*modules, *(package / "__init__.py" for package in packages)) if path.is_file()]
