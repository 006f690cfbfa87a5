"""The command ``specdec-serve``: models behind an HTTP API."""

import argparse
import gc
import ipaddress
import logging
import signal
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import LogFormatter, Parser, Terminated, command, number, out_of_range, whole
from specdec_plugins.extras import needed
from specdec_plugins.fields import Fault, OptionError
from specdec_plugins.formats import hub
from specdec_plugins.formats.files import is_file_name
from specdec_plugins.serving.listening import listen
from specdec_plugins.settings import DTYPES, Settings

SWITCH = 0.0001  # seconds until a thread yields the interpreter, for which engines wait after each pass; usually 5 ms
# Options that a model in a configuration may have
OF_MODELS = ("rows", "queue", "device", "dtype", "drafter", "draft-with", "learn")


def parser() -> Parser:
    p = Parser(
        prog="specdec-serve",
        usage="%(prog)s --model DIR [--model DIR ...] [option ...]",
        description="Translate over HTTP (docs/serve.md). SIGHUP loads the models again; SIGTERM stops it once "
        "accepted requests are answered.",
    )
    p.set_defaults(tables={})  # of models in configurations: their options, by name
    add = p.add_argument
    add(
        "--model",
        metavar="DIR",
        action="append",
        default=[],
        help="model or Hugging Face folder, or ORG/NAME of the Hub; repeat it for more pairs",
    )
    add(
        "--config",
        metavar="FILE",
        action=Config,
        help="these options in TOML, and models with options of their own (docs/serve.md); later options override it",
    )
    add("--host", default="127.0.0.1", metavar="NAME", help="where to listen (default: 127.0.0.1, this machine only)")
    add("--port", type=whole, default=5000, metavar="N", help="(default: 5000)")
    add("--keys", metavar="FILE", help="API keys, one per line; requests need one (default: none)")
    add(
        "--allow-host",
        metavar="NAMES",
        help="comma-separated names that clients may call the server by, besides localhost and IP "
        "addresses (default: none if --host is this machine only, else any)",
    )
    add("--rows", type=whole, default=64, metavar="N", help="outputs in flight per model; a beam counts its size (default: 64)")
    add(
        "--queue",
        type=whole,
        default=1024,
        metavar="N",
        help="texts waiting and in flight per model; more are refused (default: 1024)",
    )
    add("--max-characters", type=whole, default=100_000, metavar="N", help="most per request (default: 100,000)")
    add("--max-texts", type=whole, default=256, metavar="N", help="most per request (default: 256)")
    add("--max-per-minute", type=whole, metavar="N", help="characters per minute and key; requires --keys (default: no limit)")
    add(
        "--quota",
        type=whole,
        metavar="N",
        help="characters per key until the server restarts; requires --keys (default: no limit)",
    )
    add("--glossaries", metavar="DIR", help="where clients' glossaries are kept (default: in memory)")
    add("--timeout", type=number, default=60.0, metavar="S", help="seconds until a request is given up (default: 60)")
    add("--grace", type=number, default=30.0, metavar="S", help="seconds that SIGTERM leaves to requests (default: 30)")
    add("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    add(
        "--dtype",
        default="float32",
        choices=[each for each in DTYPES if each != "float64"],
        help="of the weights (default: float32)",
    )
    add("--threads", type=whole, metavar="N", help="CPU threads, which models use in turn (default: one per usable core)")
    add("--drafter", metavar="DIR", help="one of the model's drafters, a drafter's folder, or ORG/NAME of the Hub")
    add("--draft-with", metavar="NAME", help="a drafter without training, for models that have none")
    add(
        "--learn",
        type=number,
        metavar="SHARE",
        help="let each model's drafter learn from what is served, in idle time, on at most this share of a core, such as 0.5",
    )
    add("--learn-dir", metavar="DIR", help="where the drafters that have learned are kept (default: in memory)")
    return p


class Config(argparse.Action):
    """Reads a TOML file as if its options were on the command line."""

    def __call__(self, given, options, path, name=None) -> None:
        inner = parser()
        inner.prog += f": {path}"
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            inner.error(error.strerror or str(error))
        except (ValueError, RecursionError) as error:
            inner.error(f"not TOML: {error}")
        tables = found.pop("model", {})
        dests = [action.dest for action in inner._actions if action.dest not in ("help", "version", "model", "config")]
        inner.parse_args([*arguments(inner, found, "", [dest.replace("_", "-") for dest in dests])], options)
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            inner.error("models are tables: [model.NAME], with a folder")
        for name, table in tables.items():
            if "folder" not in table:
                inner.error(f"model.{name} has no folder")
            own = inner.parse_args([*arguments(inner, table, f"model.{name}.", ["folder", *OF_MODELS])])
            own.model = own.model[0]
            options.tables = {**options.tables, name: {dest: getattr(own, dest) for dest in map(dest_of, table)}}


def arguments(inner: Parser, found: dict[str, Any], where: str, known: list[str]) -> Iterator[str]:
    """The options of a table as arguments; ``where`` it is. Exits for unknown ones and for values that no option has."""
    for key, value in found.items():
        if key not in known:
            inner.error(f"{where}{key:.100} is unknown; available: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            inner.error(f"{where}{key} is neither a string nor a number")
        yield f"--{'model' if key == 'folder' else key}={value}"


def dest_of(key: str) -> str:
    return "model" if key == "folder" else key.replace("-", "_")


def models_of(options: argparse.Namespace) -> list[tuple[str, argparse.Namespace]]:
    """The models' names and options; ``model`` is the folder."""
    chosen = [(hub.short(folder), {"model": folder}) for folder in options.model] + [*options.tables.items()]
    return [(name, argparse.Namespace(**{**vars(options), **own})) for name, own in chosen]


def check(options: argparse.Namespace) -> list[Fault]:
    models = models_of(options)
    names = Counter(name for name, _ in models)
    faults = [*out_of_range(options, "max_characters", "max_texts", "max_per_minute", "quota", "threads")]
    faults += [] if models else [("model", "or --config is required")]
    faults += [("model", f"{name} is the name of several models") for name, times in names.items() if times > 1]
    faults += [(name, "is not above 0") for name in ("timeout", "grace") if not getattr(options, name) > 0]
    given = [name for name in ("max_per_minute", "quota") if getattr(options, name) is not None]
    faults += [(name, "requires --keys") for name in given if not options.keys]
    if not 0 <= options.port < 1 << 16:
        faults.append(("port", f"{options.port:,} is not from 0 to 65,535"))
    if options.learn_dir and not any(own.learn for _, own in models):
        faults.append(("learn_dir", "requires --learn"))
    for name, own in models or [("", options)]:
        where, given = f" ([model.{name}])", options.tables.get(name, ())
        for option, message in model_faults(name, own, options.learn_dir):
            faults.append((option, message + where * (option in given)))
    return [*dict.fromkeys(faults)]


def model_faults(name: str, options: argparse.Namespace, folder: str | None) -> Iterator[Fault]:
    """What is wrong with a model's options."""
    yield from out_of_range(options, "rows", "queue")
    if options.drafter and options.draft_with:
        yield "drafter", "cannot be combined with --draft-with"
    try:
        settings_of(options)
    except OptionError as error:
        yield from error.faults
    if options.learn is None:
        return
    if not 0 < options.learn <= 1:
        yield "learn", f"{options.learn:g} is not a share of a core, above 0 and up to 1"
    if options.draft_with:
        yield "learn", "cannot be combined with --draft-with, whose drafters have no weights"
    if options.device != "cpu":
        yield "learn", f"requires --device cpu, not {options.device}"
    if folder and not is_file_name(name):
        yield "learn_dir", f"needs a model's name that can be a folder's, not {name:.100}"


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(options, name) for name in ("device", "dtype", "threads", "draft_with")})


def settle() -> None:
    """Settings of the process, once everything is imported."""
    sys.setswitchinterval(SWITCH)
    gc.freeze()  # what was imported lives on; scanning it for garbage took a quarter of Python's time under load


def names_of(options: argparse.Namespace) -> list[str] | None:
    """The names that requests may call the server by; None: any."""
    if options.allow_host is not None:
        return [each.strip().lower() for each in options.allow_host.split(",")]
    try:
        local = options.host == "localhost" or ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        local = False
    return [] if local else None


def require(options: argparse.Namespace) -> frozenset[str] | None:
    """Refuse models, keys and folders that are missing, before the engine loads. Returns the keys."""
    keys = ready.keys(options.keys) if options.keys else None
    ready.writable_folder(options.glossaries)
    for _, own in models_of(options):
        folder = ready.model(own.model)
        if own.drafter:
            ready.trained_drafter(own.drafter, folder)
        ready.drafter(own.draft_with)
        ready.device(own.device)
        if own.learn is not None:
            ready.pytorch("--learn")
    ready.writable_folder(options.learn_dir)
    return keys


def run(options: argparse.Namespace) -> None:
    again = threading.Event()  # whether SIGHUP has arrived
    signal.signal(signal.SIGHUP, lambda *_: again.set())  # also while models load for the first time
    listening = listen(options.host, options.port)
    keys = require(options)
    with needed("serve", "specdec-serve"):
        from specdec_plugins.serving.glossaries import Glossaries
        from specdec_plugins.serving.learning import Lessons
        from specdec_plugins.serving.server import Server, load
        from specdec_plugins.serving.service import Limits, Service
        from specdec_plugins.serving.threads import SESSIONS, EngineThread, close_all

    settle()
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    glossaries = Glossaries(options.glossaries)
    bounds = options.max_characters, options.max_texts, options.timeout
    limits = Limits(*bounds, per_minute=options.max_per_minute, quota=options.quota)
    threads = [EngineThread() for _ in range(SESSIONS)]
    loads = [
        partial(
            load,
            name,
            own.model,
            own.drafter or None,
            settings_of(own),
            own.rows,
            own.queue,
            threads,
            own.learn and Lessons(own.learn, Path(options.learn_dir).absolute() / name if options.learn_dir else None),
        )
        for name, own in models_of(options)
    ]
    try:
        service = Service([each() for each in loads], limits, keys, glossaries)
        address = options.host, options.port
        server = Server(service, address, loads, again, options.grace, names_of(options))
        with suppress(Terminated, KeyboardInterrupt):  # uvicorn raises the signal again after it has stopped
            server.run(listening)
    finally:
        close_all(threads)


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
