"""The server under load and abuse: a thousand requests at once, bodies without end, clients that stall, and its end."""

import asyncio
import itertools
import json
import random
import resource
import socket
from contextlib import suppress

import pytest
from conftest import ROOT, resident
from test_serve import Command, Served, served, waited  # noqa: F401
from test_serving import LINES, PAIR

from specdec_plugins.commands import translate

CHOICES: list[dict] = [
    {},
    {"beam": 3, "nbest": 2},
    {"sampling": True, "seed": 5, "num_samples": 2},
    {"beta": 3, "tau": 1.0, "windows": "sentence"},
]
DOCS = [f"Open the {name} and save the file." for name in ("window", "menu", "folder")]
MODELS = {PAIR: LINES[:3], str(ROOT / "data" / "docs.en-fr"): DOCS}


def request_of(body: dict, path="/v1/translate") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def commanded(folder: str, lines: list[str], choice: dict, path) -> list[str]:
    """What specdec-translate writes."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in choice.items()]
    written = path.with_suffix(".out")
    assert translate.main(["--model", folder, "--input", str(path), "--output", str(written), "--threads", "1", *flags]) == 0
    return written.read_text(encoding="utf-8").splitlines()


@pytest.mark.long
def test_a_thousand_requests_at_once(tmp_path):
    """Four kinds for two models, of one to three texts, over a connection each; a tenth leaves. None is lost, and each answer is
    what the command writes with the same options."""
    expected: dict[tuple[str, int, int], list[str]] = {}
    for (folder, lines), (kind, choice) in itertools.product(MODELS.items(), enumerate(CHOICES)):
        found = commanded(folder, lines, choice, tmp_path / "text")
        for texts in range(1, len(lines) + 1):
            expected[folder, kind, texts] = found[: texts * len(found) // len(lines)]
    server, choose, asked = Served([*MODELS], 4096, limits={"seconds": 1000}), random.Random(1), [*expected]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)) if hard > 0 else max(soft, 4096), hard))

    async def one(number: int):
        folder, kind, texts = key = asked[number % len(asked)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_of({"text": MODELS[folder][:texts], "model": folder.rpartition("/")[2], **CHOICES[kind]}))
        if number % 10 == 9:
            await asyncio.sleep(choose.random())
            writer.close()
            return None
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 200"), (head, content)
        return key, [each["text"] for result in json.loads(content)["results"] for each in result["outputs"]]

    async def all_of_them():
        return await asyncio.gather(*(one(number) for number in range(1000)))

    try:
        found = [each for each in asyncio.run(all_of_them()) if each]
        assert len(found) == 900 and all(texts == expected[key] for key, texts in found)
        for model in server.service.models:
            waited(lambda served=model.served: not served.pending and not any(desk.owners for desk in served.line.desks))
    finally:
        server.close()


def connected(port: int, sent: bytes = b"", **how) -> socket.socket:
    client = socket.socket()
    if "window" in how:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, how["window"])
    client.connect(("127.0.0.1", port))
    client.settimeout(600)
    client.sendall(sent)
    return client


def reset(client: socket.socket, piece: bytes, pieces: int = 10_000) -> bool:
    """Whether the server ends a connection on which pieces arrive."""
    try:
        for _ in range(pieces):
            client.sendall(piece)
    except OSError:
        return True
    return False


def half(path: str, kind="application/json") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 999\r\n\r\n--x\r\n{{".encode()


def test_bodies_and_headers_without_end(served):  # noqa: F811
    for path in ("/v1/translate", "/translate", "/nothing"):  # refused before the body has arrived
        client = connected(served.port, f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        assert reset(client, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"), path
    assert reset(connected(served.port, b"GET / HTTP/1.1\r\n"), b"x-y: " + b"z" * 5000 + b"\r\n")
    assert reset(connected(served.port), b"GET" * 20_000)
    for length in ("1" + "0" * 15, "-1", "1e3", "9" * 500):
        client = connected(served.port, half("/translate").replace(b"999", length.encode()))
        assert client.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 413")
    assert served.ask("GET", "/health")[0] == 200


def test_a_request_that_is_refused_while_it_arrives_is_answered(served):  # noqa: F811
    """A client that sends the rest of it meanwhile would see its connection reset, and no reason."""
    for kind, body in (
        ("application/x-www-form-urlencoded", b"a=&" * 200_000),
        ("multipart/form-data; boundary=x", b"--x\r\n" * 90_000),
    ):
        head = f"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        client = connected(served.port, head.encode() + body)
        assert client.recv(12) == b"HTTP/1.1 400", kind
        client.close()


def test_clients_that_leave_with_half_a_body(served, caplog):  # noqa: F811
    """It is no error of ours."""
    kinds = "application/json", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"
    paths = "/v1/translate", "/translate", "/translate_file", "/v2/translate", "/"
    caplog.set_level("INFO", "specdec.access")
    for sent in [half(path, kind) for path in paths for kind in kinds]:
        connected(served.port, sent).close()
    # At least: the last answer of the test before may be logged now.
    waited(lambda: sum(" POST " in record.getMessage() for record in caplog.records) >= len(paths) * len(kinds))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_body_that_does_not_arrive():
    server = Served(limits={"seconds": 0.2})
    try:
        client = connected(server.port, half("/translate"))
        assert b"the body did not arrive within 0.2 s" in b"".join(iter(lambda: client.recv(1000), b""))
    finally:
        server.close()


@pytest.mark.long
def test_clients_that_do_not_read(served):  # noqa: F811
    """Answers wait for them in bounded memory, and hold nobody up."""
    stream = request_of({"text": " ".join(LINES * 5), "windows": "sentence", "stream": True})
    clients = [connected(served.port, stream, window=2048) for _ in range(6)]
    many = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50_000  # answers of more than 1 GB
    clients += [connected(served.port, window=2048) for _ in range(4)]
    for client in clients[-4:]:
        client.setblocking(False)
    sent = [0]

    def stuck() -> bool:
        before = sent[0]
        for client in clients[-4:]:
            with suppress(BlockingIOError):
                sent[0] += client.send(many)
        return sent[0] == before

    assert served.post(text=LINES[0])[0] == 200
    stalled = 0
    before = resident()
    while stalled < 100:
        stalled = stalled + 1 if stuck() else 0
        served.ask("GET", "/health")
    waited(lambda: not served.service.models[0].served.pending)
    assert served.post(text=LINES[0])[0] == 200 and resident() - before < 200 << 20
    for client in clients:
        client.close()


@pytest.mark.long
def test_the_end_does_not_wait_for_clients_that_stall(tmp_path):
    server = Command(tmp_path, "--model", PAIR, "--grace", "0.5")
    clients = [connected(server.port, half("/translate")), connected(server.port, window=2048)]
    clients[1].settimeout(0.5)
    assert reset(
        clients[1], b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n", 10_000_000
    )  # a timeout: it does not read on
    assert server.stop() == 0 and "Finished server process" in server.logged()
