"""No request holds up the others: the slowest answers of /health beside requests that cost much, and 50 ordinary ones a second.

The server is a process of its own, so that the clients here take nothing from it but the cores. To measure by hand, with a server
on a port: PYTHONPATH=tests python tests/test_serve_held.py PORT [SCALE [CASE ...]]
"""

import asyncio
import json
import sys
import time

import pytest
from support import long_but
from test_serve import Command
from test_serving import LINES, PAIR

MOST = 0.25  # seconds of /health
OFTEN, SELDOM = 0.02, 0.1  # seconds between requests of /health, and between ordinary ones; with `make test`
FORM = "application/x-www-form-urlencoded"
CHUNKS = b"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
SAMPLES = {"text": "A dog.", "sampling": True, "mbr": 64, "min_len": 90}
OWN, LIBRE = "/v1/translate", "/translate"


def file(text: str, name: str) -> tuple[str, str, bytes]:
    fields = {"source": "en", "target": "de"}
    parts = [f'--x\r\ncontent-disposition: form-data; name="{each}"\r\n\r\n{value}\r\n' for each, value in fields.items()]
    head = f'--x\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return "/translate_file", "multipart/form-data; boundary=x", "".join([*parts, head, text, "\r\n--x--\r\n"]).encode()


def call(path: str, **body) -> tuple[str, str, bytes]:
    return path, "application/json", json.dumps(body).encode()


def html(text: str) -> tuple[str, str, bytes]:
    return call(LIBRE, q=text, source="en", target="de", format="html")


def costly(scale: float) -> dict[str, list[tuple[str, str, bytes]]]:
    """Requests of about the size that the limits allow, times ``scale``."""

    def times(count: int) -> int:
        return max(1, int(count * scale))

    return {
        "samples": [call(OWN, **{**SAMPLES, "mbr": max(2, times(64)), "seed": seed}) for seed in range(4)],
        "table": [file("| a | b |\n| - | - |\n" + "| x | y |\n" * times(9900), "a.md")],
        "images": [file("\n\n".join(["![" * times(24_900)] * 2), "a.md")],
        "tags": [html("<b>x</b>" * times(11_000)), html("<b>x</b> " * times(11_000))],
        "alignments": [call(OWN, text=[LINES[0]] * times(256), sampling=True, num_samples=4, alignments=True)],
        "stream": [call(OWN, text=LINES[0] * times(1900), windows="sentence", stream=True, trace=True)],
        "faults": [call(OWN, text=[0] * times(400_000)), call(OWN, text="a", **{f"a{n}": 0 for n in range(times(80_000))})],
        "fields": [(LIBRE + "?" + "&".join(f"a{n}" for n in range(times(2300))), FORM, b"x=1")] * 4,
        "chunks": [("", "", CHUNKS + b"1\r\n \r\n" * times(900_000) + b"0\r\n\r\n")],
    }


async def ask(port: int, path: str, kind: str = "", body: bytes = b"") -> tuple[int, float]:
    """Status and seconds of a request over a connection of its own; without a path, ``body`` is all of the request."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{'POST' if kind else 'GET'} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body if path else body)
    status = (await reader.read()).split(b" ", 2)[1:2]
    writer.close()
    return int(*status or [0]), time.perf_counter() - began


async def beside(port: int, requests: list[tuple[str, str, bytes]], every: float) -> dict[str, list[tuple[int, float]]]:
    """Statuses and seconds of requests, of ordinary ones beside them, and of /health, until these requests are answered."""
    found: dict[str, list[tuple[int, float]]] = {"health": [], "ordinary": []}
    beside, ended = set[asyncio.Task](), False

    async def one(name: str, *what) -> None:
        found[name].append(await ask(port, *what))

    async def regularly() -> None:
        due, number = time.perf_counter(), 0
        while not ended:
            for name, what in (("health", ("/health",)), ("ordinary", call(OWN, text=LINES[number % len(LINES)]))):
                task = asyncio.ensure_future(one(name, *what))
                beside.add(task)
                task.add_done_callback(beside.discard)
            due, number = due + every, number + 1
            await asyncio.sleep(max(0, due - time.perf_counter()))

    load = asyncio.ensure_future(regularly())
    await asyncio.sleep(0.5)
    found["costly"] = await asyncio.gather(*(ask(port, *each) for each in requests))
    await asyncio.sleep(1.5)
    ended = True
    await load
    await asyncio.gather(*beside)
    return found


@pytest.fixture(scope="module")
def alone():
    """The worst of /health beside ordinary requests, by seconds between these: measured once, and again if a case fails."""
    return {}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    server = Command(tmp_path_factory.mktemp("server"), "--model", PAIR, "--dtype", "int8")
    yield server.port
    server.stop()


def measure(port: int, name: str, requests: list[tuple[str, str, bytes]], every: float = OFTEN) -> float:
    """The worst of /health in seconds; prints what was measured."""
    found = asyncio.run(beside(port, requests, every))
    assert {status for status, _ in found["health"] + found["ordinary"]} == {200}
    health, ordinary = (sorted(seconds for _, seconds in found[kind]) for kind in ("health", "ordinary"))
    told = ", ".join(f"{status} in {seconds:.1f} s" for status, seconds in found["costly"])
    middle = 1000 * ordinary[len(ordinary) // 2]
    print(
        f"{name}: /health at most {1000 * health[-1]:.0f} ms; ordinary: median {middle:.0f} ms, worst "
        f"{1000 * ordinary[-1]:.0f} ms; {told}"
    )
    return health[-1]


@pytest.mark.parametrize("name", long_but(costly(1e-9), "samples", "images", "faults"))
def test_no_request_holds_up_the_others(port, name, alone, request):
    """In full with ``make test-long``, a fifth of each case with ``make test``. What else the machine does counts for nothing."""
    scale, every = (1.0, OFTEN) if request.node.get_closest_marker("long") else (0.2, SELDOM)
    for _ in range(5):
        worst = alone.pop(every, None) or measure(port, "nothing", [], every)
        if worst < MOST and measure(port, name, costly(scale)[name], every) <= MOST + worst:
            alone[every] = worst
            return
    if worst > MOST:
        pytest.skip(f"the machine is busy: /health takes {worst:.1f} s beside few requests")
    pytest.fail(f"/health took over {MOST + worst:.2f} s five times")


if __name__ == "__main__":
    for name, requests in costly(float([*sys.argv, 1][2])).items():
        if not sys.argv[3:] or name in sys.argv[3:]:
            measure(int(sys.argv[1]), name, requests)
