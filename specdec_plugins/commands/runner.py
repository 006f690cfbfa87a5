"""What all commands share: a parser with short and full help, options checked before the engine loads, one-line errors, signals.

Exit status: 0 done; 1 bad input or a file error; 2 wrong options; 130 Ctrl-C; 141 stdout's reader closed it; 143 SIGTERM.
"""

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from specdec_plugins import __version__
from specdec_plugins.extras import needed
from specdec_plugins.fields import MOST, Fault, Option, OptionError
from specdec_plugins.formats.errors import printable
from specdec_plugins.settings import MOST_THREADS


class Parser(argparse.ArgumentParser):
    """Reports errors in one line. ``--help`` omits the ``rare`` options (by dest);
    ``--help-all`` shows them."""

    def __init__(self, prog: str, **rest: Any):
        super().__init__(prog=prog, allow_abbrev=False, **rest)
        self.rare: set[str] = set()
        self.add_argument("--version", action=Version, nargs=0, help="show the version, and which CPU kernels run here")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]  # one signature is all that commands use
        given = sys.argv[1:] if args is None else list(args)
        given = given[: given.index("--")] if "--" in given else given
        if "--help-all" in given and self.rare:
            self.rare = set()
            self.print_help()
            self.exit()
        return super().parse_known_args(args, namespace)

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
        self.exit(2, f"{printable(self.prog)}: error: {printable(message)}\n")


def add_languages(add: Callable[..., object], source: str, target: str) -> None:
    """The options -s and -t with these help texts; ``add`` is the ``add_argument`` of a parser or a group."""
    add("-s", "--source-lang", metavar="LANG", help=source)
    add("-t", "--target-lang", metavar="LANG", help=target)


class Version(argparse.Action):
    """Prints the version and the kernels that this machine has."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        from specdec_plugins.decoding.compiled import available

        try:
            names = available()
        except ImportError as error:
            parser.exit(1, f"{parser.prog} {__version__}, without kernels: {error}\n")
        best, others = names[:1], f" (also here: {', '.join(names[1:])})" if names[1:] else ""
        print(f"{parser.prog} {__version__}, kernels {''.join(best) or 'none'}{others}")
        parser.exit()


def whole(text: str) -> int:
    """An integer option. Ranges are checked later, with all faults."""
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
    """A number, or a word that the command checks."""
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

    ``check`` returns faults as (name, message). ``run`` may raise OptionError; ValueError, OSError or ImportError for bad input.
    When a run ends early, ``ending`` says what was written and ``resumption`` how to continue.
    """
    _complete(parser)
    options = parser.parse_args(argv)
    if logging.lastResort:  # it writes warnings to stderr where nothing else is set up
        logging.lastResort.setFormatter(LogFormatter())
    try:
        if faults := list(check(options)):
            raise OptionError(faults)
        with _termination():
            run(options)
            _flush()
        return 0
    except OptionError as error:
        said = (f"{option_name(field)} {message}" for field, message in error.faults)
        return _failed(2, parser, re.sub(r"`(\w+)`", lambda name: option_name(name[1]), "; ".join(said)))
    except BrokenPipeError as error:
        _discard_output()
        if error.filename in (None, "stdout"):  # `head` has read enough: not an error
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
        below = "\n" * sys.stderr.isatty()  # the terminal's line holds ^C or a progress bar
        print(f"{below}{printable(f'{parser.prog}: stopped{ending()}{resumption}')}", file=sys.stderr)
        return 130 if isinstance(stop, KeyboardInterrupt) else 143


def command(parser: Callable[[], argparse.ArgumentParser], *how: Any, **rest: Any) -> Callable[..., int]:
    """The ``main`` of a command, from the arguments of `run_command`."""
    return lambda argv=None: run_command(parser(), argv, *how, **rest)


def option_name(field: str) -> str:
    """A field's option: ``--block-size`` for ``block_size``."""
    return "--" + field.replace("_", "-")


def out_of_range(options: argparse.Namespace, *names: str) -> Iterator[Fault]:
    """Faults of counts, which start at 1; an option may have several values or none."""
    for name in names:
        value, count = getattr(options, name), Option(least=1, most=MOST_THREADS if name in ("threads", "workers") else MOST)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and (fault := count.fault(each)):
                yield name, fault


def same_file(one: str | None, other: str | None) -> bool:
    """Whether two options name one file."""
    if not one or not other:
        return False
    return os.path.realpath(one) == os.path.realpath(other) or (
        os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
    )


def say(line: str) -> None:
    """Print a line on stderr. It may quote file names and contents, so nothing in it may steer the terminal."""
    print(printable(line), file=sys.stderr)


class LogFormatter(logging.Formatter):
    """Log lines whose messages and tracebacks cannot steer a terminal. Further lines of a record are indented, so that no text
    passes for a record."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(map(printable, super().format(record).rstrip().split("\n")))


def print_sizes(sizes: Mapping[str, int], folder: str) -> None:
    """Print the size of each file of a new folder, and of the whole."""
    for name, size in [*sizes.items(), (folder, sum(sizes.values()))]:
        print(f"{size / 1e6:8.2f} MB  {printable(name)}")


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what may follow, and exit."""
    if "_ARGCOMPLETE" in os.environ:
        with needed("completion", "completion"):
            import argcomplete
        argcomplete.autocomplete(parser)


def _flush() -> None:
    if sys.stdout is not None:  # None if the caller closed it
        sys.stdout.flush()


def _discard_output() -> None:
    """Discard what stdout buffers, so that Python's last flush does not raise again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(status: int, parser: argparse.ArgumentParser, message: str) -> int:
    say(f"{parser.prog}: error: {' '.join(message.splitlines())}")
    return status


@contextmanager
def _termination() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that files are closed and worker processes end."""

    def stop(signum, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
