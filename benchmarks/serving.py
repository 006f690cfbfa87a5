"""The server: latency over the library at low load, throughput beside specdec-translate, latency against load, and memory.

    benchmarks/serving.py --model data/demo.en-de --input TEXT --threads 2
    benchmarks/serving.py --model data/demo.en-de --input TEXT --threads 2 --parts load --figure serving.png
    benchmarks/serving.py --model data/demo.en-de --input TEXT --threads 2 --libretranslate VENV/bin/python
    benchmarks/serving.py --model data/demo.en-de --input TEXT --soak 30

Clients are this process; its CPU time is stated where it competes with the server's. Under load, requests of one sentence arrive
at random (Poisson), whether earlier ones are answered or not. CTranslate2 translates the same verifier behind the same framework
and the same JSON: whatever waits, up to a batch, goes to its workers, one for each thread. LibreTranslate, in an environment of
its own, serves it through CTranslate2, too; sentences are not split, as it would download what splits them. --soak mixes all
APIs, options, streams and clients that leave, at a low rate, and fits a line to the server's memory.
"""

import argparse
import asyncio
import functools
import http.client
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

SYSTEMS = ("ar", "specdec", "ctranslate2")
PARTS = ("low_load", "saturation", "load")
LIBRETRANSLATE = """
import logging
from argostranslate.sbd import MiniSBDSentencizer
from libretranslate.main import main
MiniSBDSentencizer.split_sentences = lambda self, text: [text]
logging.disable(logging.INFO)
main()
"""
SOURCE, TARGET = "en", "de"
OPUS = "opus"  # the shape of OPUS-MT: 6+6 layers of 512, 58,101 symbols; random weights, 28 tokens
LENGTHS = {"min_len": 27, "max_len_b": 27}
WORDS = "abcdefghijklmnopqrstuvwxyz"  # of its texts
BATCH = 64  # texts
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1)  # of what the first system can do
ANSWERED = 0.8  # of the requests; a system that answers fewer in time gets no higher load, as its queue would only grow


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--input", required=True, help="lines of text")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", default="int8")
    p.add_argument("--rounds", type=int, default=3, help="of the latency at low load and the throughput")
    p.add_argument("--texts", type=int, default=4000, help="lines for the throughput")
    p.add_argument("--seconds", type=float, default=6.0, help="of each load")
    p.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    p.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    p.add_argument("--libretranslate", metavar="PYTHON", help="that has it; measures it, too")
    p.add_argument("--figure", help="where to draw latency and throughput against load")
    p.add_argument("--soak", type=float, metavar="MINUTES")
    options = p.parse_args()
    options.systems = [*options.systems, *(["libretranslate"] if options.libretranslate else [])]
    lines = [line for line in Path(options.input).read_text(encoding="utf-8").splitlines() if line.strip()]
    if options.soak:
        return soak(options, lines)
    rows: dict[str, Any] = {part: [] for part in options.parts}
    if "low_load" in rows:
        with tempfile.TemporaryDirectory() as folder:
            rows["low_load"].append(low_load(options, options.model, lines[:200], {}, options.rounds))
            opus, words = random_folder(Path(folder) / OPUS)
            rows["low_load"].append(low_load(options, opus, words, LENGTHS, 1))
    if "saturation" in rows:
        rows["saturation"] = saturation(options, lines)
    if "load" in rows:
        rows["load"] = loads(options, lines)
    if options.figure and "load" in rows:
        draw(rows["load"], options)
    print(json.dumps({"benchmark": "serving", **rows, "signature": {**machine("cpu"), **vars(options)}}))


# ---- servers


@contextmanager
def serving(system: str, folder: str, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """A server process: its port, and its id."""
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        process = get_context("spawn").Process(target=serve, args=(system, folder, port, options, scratch))
        process.start()
        try:
            connected(port).close()
            yield port, process.pid or 0
        finally:
            process.terminate()
            process.join(60)
            process.kill()


def serve(system: str, folder: str, port: int, options: argparse.Namespace, scratch: str) -> None:
    import logging

    import uvicorn

    from specdec_plugins.commands.serve import settle
    from specdec_plugins.serving.app import make_app
    from specdec_plugins.serving.service import Limits, Model, Service
    from specdec_plugins.serving.translator import AsyncTranslator

    threads, dtype = options.threads, options.dtype
    if system == "libretranslate":
        return become_libretranslate(folder, port, options, Path(scratch))
    settle()
    logging.disable(logging.INFO)
    if system == "ctranslate2":
        app = ctranslate2_app(folder, threads, dtype)
    else:
        served = AsyncTranslator.from_pretrained(folder, strategy=system, threads=threads, dtype=dtype)
        served.queue = 1_000_000  # of an overloaded server, the latency is measured
        app = make_app(Service([Model.of("model", served)], Limits(seconds=1000)))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        access_log=False,
        log_config=None,
        loop="asyncio",
        http="h11",
        ws="none",
        timeout_graceful_shutdown=1,
    )


def ctranslate2_app(folder: str, threads: int, dtype: str) -> Any:
    """CTranslate2 with batches of what waits: a text waits for no other while a worker is free."""
    from fastapi import FastAPI, Request

    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.systems import ctranslate2_of

    pair = load_folder(folder)
    codec, translator = pair.codec, ctranslate2_of(pair, dtype, 1, threads)
    app, waiting, awake = FastAPI(), deque[tuple[list[str], asyncio.Future]](), asyncio.Event()

    def translated(batch: list[list[str]]) -> list[list[str]]:
        found = translator.translate_batch(batch, max_batch_size=BATCH, beam_size=1, max_decoding_length=200)
        return [each.hypotheses[0] for each in found]

    async def worker() -> None:
        while True:
            await awake.wait()
            batch = [waiting.popleft() for _ in range(min(len(waiting), BATCH))]
            if not waiting:
                awake.clear()
            if not batch:
                continue
            for (_, future), output in zip(batch, await asyncio.to_thread(translated, [tokens for tokens, _ in batch])):
                future.set_result(output)

    workers: list[asyncio.Task] = []

    @app.post("/v1/translate")
    async def translate(request: Request) -> dict[str, Any]:
        workers.extend(asyncio.ensure_future(worker()) for _ in range(threads - len(workers)))
        text = (await request.json())["text"]
        futures = []
        for line in [text] if isinstance(text, str) else text:
            futures.append(asyncio.get_running_loop().create_future())
            waiting.append((pair.source.tokens(codec.encode(line).ids[:-1]), futures[-1]))
        awake.set()
        outputs = await asyncio.gather(*futures)
        return {"results": [{"outputs": [{"text": codec.join(each), "tokens": each}]} for each in outputs]}

    return app


def become_libretranslate(folder: str, port: int, options: argparse.Namespace, scratch: Path) -> None:
    """Replace this process by LibreTranslate, with the verifier as a package. With a single package it would look for others."""
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.systems import convert

    pair, packages = load_folder(folder), scratch / "packages"
    convert(pair, scratch)
    for source, target in ((SOURCE, TARGET), (TARGET, SOURCE)):
        package = packages / f"{source}_{target}"
        shutil.copytree(scratch / "converted", package / "model")
        shutil.copy(Path(folder) / "codes", package / "bpe.model")
        (package / "metadata.json").write_text(json.dumps({"from_code": source, "to_code": target}), encoding="utf-8")
    how = {
        "PACKAGES_DIR": packages,
        "COMPUTE_TYPE": options.dtype,
        "BEAM_SIZE": 1,
        "INTER_THREADS": options.threads,
        "INTRA_THREADS": 1,
    }
    environment = {**os.environ, "HOME": str(scratch), **{f"ARGOS_{name}": str(value) for name, value in how.items()}}
    environment.pop("PYTHONPATH", None)
    flags = ["--host", "127.0.0.1", "--port", str(port), "--threads", "16", "--disable-web-ui"]
    os.chdir(scratch)
    os.execve(options.libretranslate, [options.libretranslate, "-c", LIBRETRANSLATE, *flags], environment)


def random_folder(folder: Path) -> tuple[str, list[str]]:
    """A model folder of the shape of OPUS-MT with random weights, and texts for it."""
    from random_pair import Shape, random_pair

    from specdec_plugins.formats.folder import Pair, save_folder
    from specdec_plugins.text.codec import CodecConfig
    from specdec_plugins.text.vocabulary import SPECIAL

    shape, chance = Shape(vocabulary=58_101, drafted=0.41), random.Random(1)
    dictionary, codes = folder.with_suffix(".dict"), folder.with_suffix(".codes")
    names = [*WORDS, *(f"w{number}" for number in range(shape.vocabulary - len(SPECIAL) - len(WORDS)))]
    dictionary.write_text("".join(f"{name} 1\n" for name in names), encoding="utf-8")
    codes.write_text("#version: 0.2\nw w</w>\n", encoding="utf-8")
    files = {"source": dictionary, "target": dictionary, "codes": codes}
    save_folder(Pair.open(*random_pair(shape), CodecConfig("fairseq-bpe", "random", files, "xa", "xb")), folder)
    return str(folder), [" ".join(chance.choices(WORDS, k=24)) for _ in range(30)]


# ---- measurements


def low_load(options: argparse.Namespace, folder: str, lines: list[str], how: dict[str, Any], rounds: int) -> dict[str, Any]:
    """One client, one sentence at a time, in turn with a library call."""
    library = Translator.from_pretrained(folder, threads=options.threads, dtype=options.dtype, **how)
    seconds: dict[str, list[float]] = {"library": [], "server": []}
    with serving("specdec", folder, options) as (port, _):
        client = connected(port)
        for measured in [False] + [True] * rounds:
            for line in lines:
                took = {"library": timed(translated, library, line), "server": timed(asked, client, {"text": line, **how})}
                assert took["library"][1] == took["server"][1], line
                for name, (each, _) in took.items() if measured else ():
                    seconds[name].append(1000 * each)
    medians = {name: round(statistics.median(each), 2) for name, each in seconds.items()}
    late = {f"{name}_p95": round(statistics.quantiles(each, n=20)[-1], 2) for name, each in seconds.items()}
    row = {"model": Path(folder).name, **medians, **late, "ratio": round(medians["server"] / medians["library"], 3)}
    print(f"low load, {row['model']}: library {row['library']} ms, server {row['server']} ms (p50)", flush=True)
    return row


def saturation(options: argparse.Namespace, lines: list[str]) -> list[dict[str, Any]]:
    """Requests of 50 texts on four connections; specdec-translate on the same text, without its start, in turn. Medians."""
    texts = (lines * (options.texts // len(lines) + 1))[: options.texts]
    rows = []
    for system in options.systems:
        with serving(system, options.model, options) as (port, server):
            asyncio.run(batches(port, system, texts[:200]))  # warms up
            rounds = [saturated(port, server, system, texts, options) for _ in range(options.rounds)]
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        rows.append({"system": system, "texts": len(texts), **{name: round(each, 3) for name, each in middle.items()}})
        print(f"saturation: {rows[-1]}", flush=True)
    return rows


def saturated(port: int, server: int, system: str, texts: list[str], options: argparse.Namespace) -> dict[str, float]:
    """A round of the throughput."""
    before, began = (cpu(server), time.process_time()), time.perf_counter()
    answers = asyncio.run(batches(port, system, texts))
    seconds = time.perf_counter() - began
    figures = {
        "seconds": seconds,
        "tokens_per_second": tokens_of(answers, options.model) / seconds,
        "server_cpu": cpu(server) - before[0],
        "client_cpu": time.process_time() - before[1],
    }
    if system in ("ar", "specdec"):
        command = commanded(options, texts, system) - commanded(options, texts[:1], system)
        figures |= {"specdec_translate": command, "of_specdec_translate": command / seconds}
    return figures


def loads(options: argparse.Namespace, lines: list[str]) -> list[dict[str, Any]]:
    """Requests of one sentence at random times, ever more of them."""
    rows, most = list[dict[str, Any]](), None
    for system in options.systems:
        with serving(system, options.model, options) as (port, _):
            reached = asyncio.run(capacity(port, system, lines, options.seconds / 2))  # warms up, too
            most = most or reached
            for fraction in FRACTIONS:
                rows.append(offered(port, system, lines, fraction * most, options))
                if rows[-1]["answered"] < ANSWERED * rows[-1]["offered"]:
                    break
    return rows


async def capacity(port: int, system: str, lines: list[str], seconds: float, clients: int = 48) -> float:
    """Requests of one sentence answered a second, when there is always another one."""
    answered, began = 0, time.perf_counter()

    async def client(chance: random.Random) -> None:
        nonlocal answered
        connection = await Connection.to(port)
        while time.perf_counter() - began < seconds:
            await connection.ask(*request(system, chance.choice(lines)))
            answered += 1

    await asyncio.gather(*(client(random.Random(number)) for number in range(clients)))
    return answered / (time.perf_counter() - began)


def offered(port: int, system: str, lines: list[str], rate: float, options: argparse.Namespace) -> dict[str, Any]:
    seconds, latencies, answers = asyncio.run(load(port, system, lines, rate, options.seconds))
    cuts = statistics.quantiles([1000 * each for each in latencies], n=100)
    speed = round(tokens_of(answers, options.model) / seconds)
    row = {
        "system": system,
        "offered": round(rate, 1),
        "answered": round(len(latencies) / seconds, 1),
        "p50": round(cuts[49], 1),
        "p95": round(cuts[94], 1),
        "p99": round(cuts[98], 1),
        "tokens_per_second": speed,
    }
    print(f"load: {row}", flush=True)
    return row


async def load(port: int, system: str, lines: list[str], rate: float, seconds: float) -> tuple[float, list[float], list[bytes]]:
    """Seconds until all is answered, each request's, and the answers."""
    chance, idle, answers, latencies = random.Random(1), list[Connection](), list[bytes](), list[float]()
    tasks, began, due = list[asyncio.Task](), time.perf_counter(), 0.0

    async def one(line: str, due: float) -> None:
        client = idle.pop() if idle else await Connection.to(port)
        try:
            answers.append(await client.ask(*request(system, line)))
        except (asyncio.IncompleteReadError, ConnectionError):  # the server closes connections that were idle for seconds
            client = await Connection.to(port)
            answers.append(await client.ask(*request(system, line)))
        latencies.append(time.perf_counter() - began - due)  # from when it was due: a late client hides nothing
        idle.append(client)

    while (due := due + chance.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(chance.choice(lines), due)))
    await asyncio.gather(*tasks)
    return time.perf_counter() - began, latencies, answers


async def batches(port: int, system: str, texts: list[str], size: int = 50, clients: int = 4) -> list[bytes]:
    """The answers to requests of ``size`` texts."""
    parts, answers = deque(texts[start : start + size] for start in range(0, len(texts), size)), list[bytes]()

    async def client() -> None:
        connection = await Connection.to(port)
        while parts:
            answers.append(await connection.ask(*request(system, parts.popleft())))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


def commanded(options: argparse.Namespace, texts: list[str], strategy: str) -> float:
    """Seconds of specdec-translate."""
    how = ["--model", options.model, "--dtype", options.dtype, "--threads", str(options.threads), "--strategy", strategy]
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "specdec_plugins.commands.translate", *how],
        input="\n".join(texts) + "\n",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    return time.perf_counter() - began


def draw(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for number, system in enumerate(options.systems):
        points = [row for row in rows if row["system"] == system]
        loads = [row["offered"] for row in points]
        for name, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
            left.plot(loads, [row[name] for row in points], style, color=f"C{number}", label=f"{system} {name}", marker=".")
        right.plot(loads, [row["tokens_per_second"] for row in points], color=f"C{number}", marker=".")
    left.set(yscale="log", xlabel="requests per second offered", ylabel="latency, ms")
    right.set(xlabel="requests per second offered", ylabel="tokens per second", ylim=(0, None))
    for each in (left, right):
        each.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(options.systems), fontsize=8)
    figure.savefig(options.figure, dpi=100)


# ---- memory over time


def soak(options: argparse.Namespace, lines: list[str]) -> None:
    port = free_port()
    flags = ["--model", options.model, "--port", str(port), "--dtype", options.dtype, "--threads", str(options.threads)]
    server = subprocess.Popen(
        [sys.executable, "-m", "specdec_plugins.commands.serve", *flags], stderr=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        connected(port).close()
        samples, counts = asyncio.run(soaked(port, server.pid, lines, 60 * options.soak))
    finally:
        server.terminate()
        server.wait()
    settled = samples[len(samples) // 3 :]  # caches and the allocator have filled
    slope, _ = statistics.linear_regression([at for at, _ in settled], [size for _, size in settled])
    print(
        f"{sum(counts.values()):,} requests {counts}; memory {settled[0][1]:.1f} MB after {settled[0][0] / 60:.1f} minutes, "
        f"{settled[-1][1]:.1f} MB at the end, slope {3600 * slope:+.2f} MB an hour"
    )


async def soaked(port: int, server: int, lines: list[str], seconds: float) -> tuple[list[tuple[float, float]], dict[str, int]]:
    """Seconds and megabytes, and the number of requests by status, with what a fault says, or "left"."""
    chance, counts, began = random.Random(1), dict[str, int](), time.perf_counter()
    samples = list[tuple[float, float]]()

    async def one() -> None:
        path, body = mixed(chance, lines)
        client = await Connection.to(port)
        status = "lost"  # the server closed the connection
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                async with asyncio.timeout(chance.random() / 10 if chance.random() < 0.1 else 600):
                    answer = await client.ask(body, path)
                    status = f"{client.status}{answer.decode() if client.status >= 500 else ''}"
            except TimeoutError:
                status = "left"
        client.writer.close()
        counts[status] = counts.get(status, 0) + 1

    tasks = set[asyncio.Task]()
    while (now := time.perf_counter() - began) < seconds:
        if len(tasks) < 16:  # the rate is low; a busy machine may not keep up
            tasks.add(task := asyncio.ensure_future(one()))
            task.add_done_callback(tasks.discard)
        samples.append((now, memory(server)))
        await asyncio.sleep(chance.expovariate(10.0))
    await asyncio.gather(*tasks)
    return samples, counts


def mixed(chance: random.Random, lines: list[str]) -> tuple[str, dict[str, Any]]:
    """A request of any kind: its path and fields."""
    text, many, own = chance.choice(lines), chance.choices(lines, k=chance.randrange(1, 6)), "/v1/translate"
    kinds: list[tuple[str, dict[str, Any]]] = [
        (own, {"text": text}),
        (own, {"text": many, "beam": 4, "nbest": 2, "alignments": True}),
        (own, {"text": text, "beem": 1}),
        (own, {"text": many, "sampling": True, "seed": chance.randrange(1000)}),
        (own, {"text": " ".join(many), "stream": True, "windows": "sentence"}),
        ("/", {"text": text, "pair": "en de"}),
        (own, {"text": many, "beta": 3, "tau": 1, "trace": True}),
        (own, {"text": text, "glossary": [["dog", "Köter"]]}),
        ("/translate", {"q": many, "source": "auto", "target": "de", "alternatives": 2}),
        ("/translate", {"q": f"<p>{text} <b>{many[0]}</b></p>", "source": "en", "target": "de", "format": "html"}),
        ("/v2/translate", {"text": many, "target_lang": "DE", "tag_handling": "html"}),
    ]
    return chance.choice(kinds)


# ---- clients


class Connection:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer, self.status = reader, writer, 0

    @classmethod
    async def to(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def ask(self, body: dict[str, Any], path: str = "/v1/translate") -> bytes:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        self.status = int(answer.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in answer:
            return await self.reader.readuntil(b"\r\n0\r\n\r\n")
        return await self.reader.readexactly(int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))


def request(system: str, text: str | list[str]) -> tuple[dict[str, Any], str]:
    """Its fields and path."""
    if system == "libretranslate":
        return {"q": text, "source": SOURCE, "target": TARGET}, "/translate"
    return {"text": text}, "/v1/translate"


def tokens_of(answers: list[bytes], folder: str) -> int:
    """Tokens of outputs, their ends included. LibreTranslate answers with texts, which are split again."""
    total = 0
    for found in map(json.loads, answers):
        if "translatedText" in found:
            texts = found["translatedText"]
            total += sum(len(codec_of(folder).encode(each).ids) for each in ([texts] if isinstance(texts, str) else texts))
        else:
            total += sum(len(each["outputs"][0]["tokens"]) + 1 for each in found["results"])
    return total


@functools.cache
def codec_of(folder: str) -> Any:
    from specdec_plugins.formats.folder import load_folder

    return load_folder(folder).codec


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def connected(port: int) -> http.client.HTTPConnection:
    """A connection that is kept, once the server listens."""
    for _ in range(1200):
        client = http.client.HTTPConnection("127.0.0.1", port)
        try:
            client.connect()
            return client
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server does not start")


def asked(client: http.client.HTTPConnection, body: dict[str, Any]) -> str:
    client.request("POST", "/v1/translate", json.dumps(body), {"content-type": "application/json"})
    return json.loads(client.getresponse().read())["results"][0]["outputs"][0]["text"]


def translated(library: Translator, line: str) -> str:
    return library.translate([line])[0].text


def timed(call: Callable, *given: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = call(*given)
    return time.perf_counter() - began, found


def cpu(process: int) -> float:
    """Seconds that a process has computed."""
    used = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Megabytes that are its own: files that it maps, such as weights, come and go with the machine's other work."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
