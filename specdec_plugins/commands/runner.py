"""What all commands share: a parser with short and full help, options checked before torch loads, one-line errors, signals.

Exit status: 0 done; 1 bad input, or a file that cannot be read or written; 2 wrong options; 130 Ctrl-C; 141 the reader of stdout
has gone; 143 SIGTERM.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from specdec_plugins import __version__
from specdec_plugins.commands.removed import REMOVED
from specdec_plugins.settings import MOST, MOST_THREADS, Fault, OptionError


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, and names what became of options of earlier versions.

    ``--help`` leaves out the options in ``rare``, and ``--help-all`` shows them.
    """

    def __init__(self, prog: str, **rest: Any):
        super().__init__(prog=prog, allow_abbrev=False, **rest)
        self.rare: set[str] = set()  # by dest
        self.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="show the version")

    def parse_args(self, args=None, namespace=None):  # type: ignore[override]  # one signature is all that commands use
        given = sys.argv[1:] if args is None else list(args)
        given = given[: given.index("--")] if "--" in given else given
        removed = REMOVED.get(self.prog, {})
        for token, following in zip(given, [*given[1:], ""]):
            name, _, value = token.partition("=")
            for old in (name, f"{name} {value or following}"):
                if old in removed:
                    self.error(f"{old} is not available: {removed[old]}")
        if "--help-all" in given and self.rare:
            self.rare = set()
            self.print_help()
            self.exit()
        return super().parse_args(args, namespace)

    def format_help(self) -> str:
        shown = {action: action.help for action in self._actions if action.dest in self.rare}
        for action in shown:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in shown.items():
                action.help = text

    def error(self, message: str) -> Any:
        message = re.sub(r"^argument (?:-\w/)?(\S+?)(?:/\S+)?: ", r"\1: ", message)
        self.exit(2, f"{self.prog}: error: {message}\n")


def whole(text: str) -> int:
    """An integer option. Ranges are checked with the other options."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number")
    return int(text)


def number(text: str) -> float:
    """A floating-point option."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number") from None


def whole_or_word(text: str) -> int | str:
    """A number, or a word for the command to judge."""
    return whole(text) if re.fullmatch(r"[-+]?[0-9.]+", text) else text


class Terminated(BaseException):
    """SIGTERM arrived."""


def run_command(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    run: Callable[[argparse.Namespace], None],
    check: Callable[[argparse.Namespace], Iterable[Fault]] = lambda options: (),
    ending: Callable[[], str] = str,
    resumption: str = "",
) -> int:
    """Parse ``argv``, check the options and run the command. Returns the exit status.

    ``check`` returns what is wrong with the options, as (name, message). ``run`` may raise OptionError; ValueError, OSError or
    ImportError for bad input. ``ending`` says what has been written when a run ends early, and ``resumption`` how to go on after
    a signal.
    """
    options = parser.parse_args(argv)
    try:
        if faults := list(check(options)):
            raise OptionError(faults)
        with _termination():
            run(options)
            _flush()
        return 0
    except OptionError as error:
        return _failed(2, parser, "; ".join(f"{option_name(field)} {_spelled(message)}" for field, message in error.faults))
    except BrokenPipeError as error:
        _discard_output()
        if error.filename in (None, "stdout"):  # as when `head` has read enough: no message is wanted
            return 141
        return _failed(1, parser, f"{error.filename}: {error.strerror}{ending()}")
    except OSError as error:
        try:
            _flush()
        except OSError:
            _discard_output()
        where = error.filename or getattr(options, "output", None) or "stdout"
        return _failed(1, parser, f"{where}: {error.strerror or error}{ending()}")
    except (ValueError, ImportError) as error:
        return _failed(1, parser, f"{error}{ending()}")
    except MemoryError as error:
        return _failed(1, parser, f"{error or 'out of memory'}{ending()}")
    except (KeyboardInterrupt, Terminated) as stop:
        below = "\n" * sys.stderr.isatty()  # a terminal's line holds ^C or a progress bar
        print(f"{below}{parser.prog}: stopped{ending()}{resumption}", file=sys.stderr)
        return 130 if isinstance(stop, KeyboardInterrupt) else 143


def option_name(field: str) -> str:
    """The option of a field: ``--block-size`` of ``block_size``."""
    return "--" + field.replace("_", "-")


def _spelled(message: str) -> str:
    """A fault's message, with the options of the fields that it names in backticks."""
    return re.sub(r"`(\w+)`", lambda name: option_name(name[1]), message)


def out_of_range(options: argparse.Namespace, *names: str) -> list[Fault]:
    """The faults of counts, from 1 on; an option may have several values, or none."""
    faults = []
    for name in names:
        value, most = getattr(options, name), MOST_THREADS if name in ("threads", "workers") else MOST
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            if each < 1:
                faults.append((name, f"{each:,} is less than 1"))
            elif each > most:
                faults.append((name, f"{each:,} is more than {most:,}"))
    return faults


def same_file(one: str | None, other: str | None) -> bool:
    """Whether two options name one file."""
    if not one or not other:
        return False
    return os.path.realpath(one) == os.path.realpath(other) or (
        os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
    )


def _flush() -> None:
    if sys.stdout is not None:  # as it is where the caller closed it
        sys.stdout.flush()


def _discard_output() -> None:
    """Let what stdout still buffers go nowhere, so that it does not raise again when Python flushes it at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(status: int, parser: argparse.ArgumentParser, message: str) -> int:
    print(f"{parser.prog}: error: {' '.join(message.splitlines())}", file=sys.stderr)
    return status


@contextmanager
def _termination() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that files are closed and worker processes ended."""

    def stop(signum, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
