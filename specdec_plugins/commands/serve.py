"""The command ``specdec-serve``: models behind an HTTP API."""

import argparse
import asyncio
import logging
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from specdec_plugins.commands.runner import Parser, Terminated, command, number, out_of_range, whole
from specdec_plugins.extras import needed
from specdec_plugins.settings import DTYPES, Fault, OptionError, Settings

SWITCH = 0.0005  # seconds until a thread yields: between passes the engine would wait for Python's usual 5 ms


def parser() -> Parser:
    p = Parser(
        prog="specdec-serve",
        usage="%(prog)s --model DIR [--model DIR ...] [option ...]",
        description="Translate over HTTP (docs/serve.md). SIGTERM stops it once accepted requests are answered.",
    )  # fmt: skip
    add = p.add_argument
    add("--model", metavar="DIR", action="append", required=True, help="model or Hugging Face folder; repeat it for more pairs")
    add("--host", default="127.0.0.1", metavar="NAME", help="where to listen (default: 127.0.0.1, this machine only)")
    add("--port", type=whole, default=5000, metavar="N", help="(default: 5000)")
    add("--keys", metavar="FILE", help="API keys, one per line; requests need one (default: none)")
    add("--rows", type=whole, default=64, metavar="N", help="outputs in flight per model; a beam counts its size (default: 64)")
    add("--queue", type=whole, default=1024, metavar="N", help="texts waiting and in flight per model; more are refused "
        "(default: 1024)")  # fmt: skip
    add("--max-characters", type=whole, default=100_000, metavar="N", help="of a request (default: 100,000)")
    add("--max-texts", type=whole, default=256, metavar="N", help="of a request (default: 256)")
    add("--max-per-minute", type=whole, metavar="N", help="characters per minute and key; requires --keys (default: no limit)")
    add("--timeout", type=number, default=60.0, metavar="S", help="seconds until a request is given up (default: 60)")
    add("--grace", type=number, default=30.0, metavar="S", help="seconds that SIGTERM leaves to requests (default: 30)")
    add("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    add("--dtype", default="float32", choices=[each for each in DTYPES if each != "float64"], help="of the weights (default: "
        "float32)")  # fmt: skip
    add("--threads", type=whole, metavar="N", help="CPU threads, which the models share in turn (default: one per usable CPU)")
    add("--draft-with", metavar="NAME", help="a drafter without training, for models without their own")
    return p


def check(options: argparse.Namespace) -> list[Fault]:
    names = Counter(Path(folder).resolve().name for folder in options.model)
    faults = out_of_range(options, "rows", "queue", "max_characters", "max_texts", "max_per_minute", "threads")
    faults += [("model", f"{name} is the name of several models") for name, times in names.items() if times > 1]
    faults += [(name, "is not above 0") for name in ("timeout", "grace") if not getattr(options, name) > 0]
    if options.max_per_minute is not None and not options.keys:
        faults.append(("max_per_minute", "requires --keys"))
    if not 0 <= options.port < 1 << 16:
        faults.append(("port", f"{options.port:,} is not from 0 to 65,535"))
    try:
        settings_of(options)
    except OptionError as error:
        faults += [each for each in error.faults if each not in faults]
    return faults


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(options, name) for name in ("device", "dtype", "threads", "draft_with")})


def run(options: argparse.Namespace) -> None:
    with needed("serve", "specdec-serve"):
        import prometheus_client  # noqa: F401 - checked before models are loaded
        import uvicorn

        from specdec_plugins.serving.app import make_app
        from specdec_plugins.serving.service import Limits, Model, Service, read_keys
    from specdec_plugins.serving.engine import EngineThread
    from specdec_plugins.serving.translator import AsyncTranslator
    from specdec_plugins.translator import Translator

    sys.setswitchinterval(SWITCH)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    keys = read_keys(options.keys) if options.keys else None
    thread, settings, models = EngineThread(), vars(settings_of(options)), []
    for folder in options.model:
        served = AsyncTranslator(Translator.from_pretrained(folder, **settings), options.rows, options.queue, thread)
        models.append(Model.of(Path(folder).resolve().name, served))
    service = Service(
        models, Limits(options.max_characters, options.max_texts, options.timeout, per_minute=options.max_per_minute), keys
    )

    class Server(uvicorn.Server):
        async def shutdown(self, sockets=None) -> None:
            """Connections end when their requests are answered, at the latest when the translators have closed."""
            closing = asyncio.gather(*(model.served.close(options.grace) for model in models))
            await super().shutdown(sockets)
            await closing

    config = uvicorn.Config(
        make_app(service, options.grace), options.host, options.port, access_log=False, log_config=None, server_header=False,
    )  # fmt: skip
    with suppress(Terminated, KeyboardInterrupt):  # uvicorn raises the signal again after it has stopped
        Server(config).run()
    thread.close()  # Python must not end while it is in a pass


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
