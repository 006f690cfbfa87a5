"""What all commands share: options that are checked before torch is loaded, one-line errors, signals and exit statuses.

Exit status: 0 done; 1 bad input, or a file that cannot be read or written; 2 wrong options; 130 Ctrl-C; 141 the reader of stdout
has gone; 143 SIGTERM.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from specdec_plugins import __version__
from specdec_plugins.settings import Fault, OptionError


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
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    options = parser.parse_args(argv)
    try:
        if faults := list(check(options)):
            raise OptionError(faults)
        with _termination():
            run(options)
            _flush()
        return 0
    except OptionError as error:
        return _failed(2, parser, "; ".join(f"{option_name(field)} {message}" for field, message in error.faults))
    except BrokenPipeError:  # as when `head` has read enough: no message is wanted
        _discard_output()
        return 141
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


def less_than_one(options: argparse.Namespace, *names: str) -> list[Fault]:
    """The faults of counts that are less than 1; an option may have several values, or none."""
    given = ((name, getattr(options, name)) for name in names)
    listed = ((name, value if isinstance(value, list) else [value]) for name, value in given if value is not None)
    return [(name, f"{value} is less than 1") for name, values in listed for value in values if value < 1]


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
