"""The server: its API over real HTTP, limits, faults, clients that leave, and the command."""

import gzip
import html
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlencode, urlsplit

import pytest
from conftest import ROOT
from test_serving import LINES, OPTIONS, PAIR, expected, translator

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from specdec_plugins import rewriters, whole_lines  # noqa: E402
from specdec_plugins.commands import serve  # noqa: E402
from specdec_plugins.extras import install_command  # noqa: E402
from specdec_plugins.serving.api import own  # noqa: E402
from specdec_plugins.serving.app import called, make_app  # noqa: E402
from specdec_plugins.serving.connection import Patient  # noqa: E402
from specdec_plugins.serving.service import Limits, Model, Service  # noqa: E402
from specdec_plugins.serving.threads import EngineThread, close_all  # noqa: E402
from specdec_plugins.serving.translator import AsyncTranslator  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text.glossary import Glossary, Term  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402


class Served:
    """A server in a thread of this process."""

    def __init__(self, folders=(PAIR,), queue=1024, names=None, **how):
        limits = Limits(**how.pop("limits", {}))
        self.engines, models = [EngineThread(), EngineThread()], []
        for folder in folders:
            served = AsyncTranslator(Translator.from_pretrained(folder, threads=1), queue=queue, threads=self.engines)
            models.append(Model.of(folder.rpartition("/")[2], served))
        self.service = Service(models, limits, **how)
        app, quiet = make_app(self.service, names=names), {"access_log": False, "log_config": None}
        self.server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, http=Patient, ws="none", **quiet))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        close_all(self.engines)
        self.service.models.clear()  # FastAPI's caches keep an app's functions, and all that they refer to

    def ask(self, method, path, body=None, **headers):
        """Status, headers and content, which is parsed if it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"content-type": "application/json", **headers}
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        found = connection.getresponse()
        content = found.read().decode()
        connection.close()
        return found.status, found.headers, json.loads(content) if "json" in found.headers.get("content-type", "") else content

    def post(self, path="/v1/translate", headers={}, **body):  # noqa: B006
        status, _, content = self.ask("POST", path, body, **headers)
        return status, content


@pytest.fixture(scope="module")
def served():
    server = Served([PAIR, str(ROOT / "data" / "docs.en-fr")])
    yield server
    server.close()


def records(results):
    """A library's results as the API gives them."""
    return [
        {
            "text": each.text,
            "tokens": each.tokens,
            "drafter": each.drafter,
            "token_scores": each.token_scores and pytest.approx(each.token_scores, abs=1e-4),
        }
        for each in results
    ]


def outputs(content):
    names = "text", "tokens", "drafter", "token_scores"
    return [{name: output.get(name) for name in names} for result in content["results"] for output in result["outputs"]]


def test_translations_equal_the_librarys(served):
    for options in OPTIONS:
        status, content = served.post(text=LINES[:2], source="en", target="de", **options)
        assert status == 200 and len(content["results"]) == 2, content
        assert (content["model"], content["source"], content["target"]) == ("demo.en-de", "en", "de")
        own = expected(LINES[:2], options)
        assert [each["text"] for each in outputs(content)] == [each.text for each in own]
        assert outputs(content) == records(own)
    one = served.post(text=LINES[0], scores=True)[1]["results"][0]["outputs"][0]
    assert one["accepted"] <= one["drafted"] and sum(one["accepted_lengths"]) == len(one["token_scores"])
    status, content = served.post(text=LINES[0], alignments=True, word_scores=True)
    (own,), (found,) = expected(LINES[:1], {"alignments": True, "word_scores": True}), content["results"][0]["outputs"]
    assert [(tuple(each["source"]), tuple(each["target"])) for each in found["alignment"]] == own.alignment.links
    assert found["word_scores"] == pytest.approx(own.word_scores, abs=1e-4) and "alignment" not in one
    assert len(found["token_scores"]) == len(found["tokens"]) + 1 and found["score"] <= 0
    one = served.post(text=LINES[0])[1]["results"][0]["outputs"][0]
    assert not {"score", "token_scores", "word_scores"} & one.keys()
    status, content = served.post(text="The file does not exist.", target="fra")
    assert status == 200 and content["model"] == "docs.en-fr" and content["target"] == "fr"
    assert served.ask("GET", "/v1/models")[2][1] == {"name": "docs.en-fr", "sources": ["en"], "targets": ["fr"]}


def test_detection_does_not_hold_up_others(served, monkeypatch):
    threads, detect = [], served.service.source_of
    monkeypatch.setattr(served.service, "source_of", lambda texts: threads.append(threading.current_thread()) or detect(texts))
    assert served.post(text="A man plays the guitar.", source="auto")[1]["source"] == "en"
    assert threads[0].name.startswith("asyncio")  # not the event loop's


@pytest.mark.parametrize(
    "body",
    [
        {"text": LINES * 10},
        {"text": LINES[0], "sampling": True, "num_samples": 9},
        {"text": LINES[0], "sampling": True, "mbr": 12},
        {"text": LINES * 10, "alignments": True, "word_scores": True, "trace": True},
        {"text": " ".join(LINES * 10), "windows": "sentence"},
        {"text": LINES * 10, "glossary": [["dog", "Köter"]]},
    ],
    ids=["texts", "samples", "mbr", "alignments", "windows", "glossary"],
)
def test_large_calls_do_not_run_on_the_event_loop(served, monkeypatch, body):
    """Nothing of them: reading texts, comparing samples, writing the answer. The answer is the library's."""
    threads = dict[str, str]()

    def noted(where, name):
        original = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *a, **b: (threads.update({name: threading.current_thread().name}), original(*a, **b))[1]
        )

    noted(whole_lines, "read_line"), noted(whole_lines, "write_line"), noted(own, "result"), noted(rewriters, "most_agreed")
    status, content = served.post(**body)
    assert status == 200 and threads and {name.partition("_")[0] for name in threads.values()} == {"texts"}, threads
    options = {name: value for name, value in body.items() if name not in ("text", "trace", "glossary")}
    options |= {"glossary": Glossary.of(body["glossary"])} if "glossary" in body else {}
    several = isinstance(body["text"], list)  # LINES ten times, none of which depends on the others
    theirs = 10 * expected(LINES, options) if several else expected([body["text"]], options)
    assert [each["text"] for each in outputs(content)] == [each.text for each in theirs]
    threads.clear()
    assert served.post(text=LINES[0])[0] == 200 and {"texts"}.isdisjoint(name.partition("_")[0] for name in threads.values())


def test_more_outputs_than_a_request_may_have(served):
    for body, said in (
        ({"text": LINES[0], "sampling": True, "mbr": 257}, "mbr 257 is above the server's limit of 256 samples of a text"),
        ({"text": ["A"] * 256, "sampling": True, "num_samples": 9}, "2,304 outputs, of 256 texts, exceed the limit of 2,048"),
    ):
        status, content = served.post(**body)
        assert status == 400 and said in content["error"]


def test_fields_without_end(served):
    """They are refused before each is looked at, and forms are read in linear time."""
    for body, status in ({"text": [0] * 300}, 413), ({"text": "a", **dict.fromkeys(map(str, range(101)), 0)}, 400):
        assert served.post(**body)[0] == status
    fields = dict.fromkeys(map(str, range(101)), 0)
    assert served.post("/translate", q="a", source="en", target="de", **fields)[0] == 400
    query = "&".join(f"a{number}=1" for number in range(2000)) + "&q=A+dog+runs.&source=en&target=fr&target=de"
    assert served.ask("POST", f"/translate?{query}", "")[2]["translatedText"] == expected(["A dog runs."], {})[0].text


def test_streams(served):
    text = " ".join(LINES[:3])
    status, headers, content = served.ask("POST", "/v1/translate", {"text": text, "stream": True, "windows": "sentence"})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    *deltas, (name, last) = [(name, json.loads(data)) for name, data in re.findall(r"event: (.*)\ndata: (.*)\n\n", content)]
    assert name == "result" and {name for name, _ in deltas} == {"delta"} and len(deltas) > 2
    assert "".join(data["text"] for _, data in deltas) == outputs(last)[0]["text"]
    assert outputs(last)[0]["text"] == expected([text], {"windows": "sentence"})[0].text
    content = served.ask("POST", "/v1/translate", {"text": text, "stream": True, "trace": True, "beta": 3, "tau": 1})[2]
    *pieces, (name, last) = [(name, json.loads(data)) for name, data in re.findall(r"event: (.*)\ndata: (.*)\n\n", content)]
    assert [data for name, data in pieces if name == "pass"] == last["results"][0]["outputs"][0]["trace"]
    names = [name for name, _ in pieces]
    assert names[0] == "pass" and names.index("delta") < len(names) - 1  # in pieces; a later pass may be told before the first
    for wrong in ({"text": [text]}, {"num_samples": 2, "sampling": True}, {"beam": 0}, {"text": "dog " * 3000}):
        assert served.ask("POST", "/v1/translate", {"text": text, "stream": True, **wrong})[0] == 400


def test_a_glossary_in_a_request(served):
    text = "A dog runs through the snow."
    terms = Glossary([Term("dog", "Köter"), Term("snow", "Ob")])
    (own,) = translator(Settings(threads=1)).translate([text], glossary=terms)
    (found,) = outputs_of(served.post(text=text, glossary=[["dog", "Köter"], ["snow", "Ob"]]))
    assert found["text"] == own.text and "Köter" in own.text and found.get("unplaced", []) == own.unplaced
    for wrong, said in (
        ({"glossary": [["dog"]]}, "glossary.0: List should have at least 2 items"),
        ({"glossary": [["dog", ""]]}, "pair 1: not a source term"),
        ({"glossary": [["a", "b"]] * 1001}, "at most 1000 items"),
        ({"glossary": [["dog", "\ud800"]]}, "pair 1: a term is not Unicode"),
        ({"sampling": True}, "without sampling"),
        ({"stream": True}, "does not support nbest, num_samples, mbr, context, protect or glossary"),
    ):
        status, content = served.post(**{"text": text, "glossary": [["dog", "Köter"]], **wrong})
        assert status == 400 and said in content["error"], content


def test_missing_numbers_are_named(served):
    """The caption pair loses what it has never read."""
    texts = ["A dog runs 123456789.25 times around the 98765 houses of 4321.", "Two dogs run."]
    own = translator(Settings(threads=1)).translate(texts)
    found = [each["outputs"][0] for each in served.post(text=texts)[1]["results"]]
    assert own[0].missing_numbers and found[0]["missing_numbers"] == own[0].missing_numbers
    assert not own[1].missing_numbers and "missing_numbers" not in found[1]


def outputs_of(answer):
    assert answer[0] == 200, answer
    return [output for result in answer[1]["results"] for output in result["outputs"]]


def test_the_page(served):
    """The form without scripts; the page's script asks for the same that this test asks for."""
    status, headers, content = served.ask("GET", "/")
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', content))
    assert status == 200 and f"script-src 'nonce-{nonce}'" in headers["content-security-policy"]
    assert '<option value="de" selected>German</option>' in content and "API key" not in content
    assert 'served = {"en": ["de", "fr"]};' in content
    text = LINES[0] + "\n" + LINES[1]
    form = urlencode({"text": text, "source": "auto", "target": "de", "beam": 2})
    status, _, content = served.ask("POST", "/", form, content_type="application/x-www-form-urlencoded")
    both = "\n".join(each.text for each in expected(LINES[:2], {"beam": 2}))
    assert status == 200 and f'dir="auto">{both}</p>' in html.unescape(content) and 'value="auto" selected' in content
    for wrong, said in ({"target": "ja"}, "no model translates from en to ja"), ({"beam": "x"}, "beam is not a number"):
        form = urlencode({"text": "</textarea><script>", "source": "en", "target": "de", "beam": 1, **wrong})
        status, _, content = served.ask("POST", "/", form, content_type="application/x-www-form-urlencoded")
        assert status == 400 and said in content and content.count("<script") == 1, content
    asked = {"alignments": True, "trace": True, "beta": 3, "tau": 1}
    (found,) = served.post(text=LINES[0], source="en", target="de", **asked)[1]["results"][0]["outputs"]
    (own,) = expected(LINES[:1], {"beta": 3, "tau": 1.0})
    kept = [token for step in found["trace"] for token in (*step["accepted"], *filter(None, [step["own"]]))]
    assert (
        kept == [*own.tokens, "</s>"]
        and sum(len(step["refused"]) for step in found["trace"]) == found["drafted"] - found["accepted"]
    )
    status, content = served.post(text=LINES[0], source="en", target="de", beam=3, nbest=3, alignments=True, trace=True)
    assert status == 200 and len(outputs(content)) == 3


def test_the_first_model_is_the_usual_one():
    """On the page and for clients that ask, also where another's languages come first in the alphabet."""
    docs, server = str(ROOT / "data" / "docs.en-fr"), None
    for folders, usual in ([docs, PAIR], ("fr", "French")), ([PAIR, docs], ("de", "German")):
        try:
            server = Served(folders)
            assert f'<option value="{usual[0]}" selected>{usual[1]}</option>' in server.ask("GET", "/")[2]
            language = server.ask("GET", "/frontend/settings")[2]["language"]
            assert language["source"]["code"] == "en" and language["target"] == {"code": usual[0], "name": usual[1]}
        finally:
            server.close()


def test_the_page_asks_for_what_the_server_has(served):
    """Files and detection, as the page's script asks for them."""
    parts = {"source": "auto", "target": "de", "api_key": "", "columns": ""}
    fields = [f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items()]
    file = '--x\r\ncontent-disposition: form-data; name="file"; filename="a.md"\r\n\r\nA *dog* runs.\r\n--x--\r\n'
    kind = "multipart/form-data; boundary=x"
    status, _, content = served.ask("POST", "/translate_file", "".join([*fields, file]), content_type=kind)
    assert status == 200 and "*Hund*" in served.ask("GET", urlsplit(content["translatedFileUrl"]).path)[2]
    form = urlencode({"q": "A dog runs.", "api_key": ""})
    found = served.ask("POST", "/detect", form, content_type="application/x-www-form-urlencoded")[2]
    assert found[0]["language"] == "en"


@pytest.mark.parametrize(
    "body, said",
    [
        ({}, "text: Field required"),
        ({"text": 3}, "text.str: Input should be a valid string"),
        ({"text": "A", "beem": 4}, "beem: Extra inputs are not permitted"),
        ({"text": "A", "beam": 0}, "beam 0 is less than 1"),
        ({"text": "A", "beam": 4, "sampling": True}, "beam cannot be combined with sampling"),
        ({"text": "A", "beam": 65}, "65 live hypotheses need as many rows"),
        ({"text": "A", "rule": "other"}, "rule: Input should be"),
        ({"text": "A", "target": "ja"}, "no model translates from any language to ja; available: en to de, en to fr"),
        ({"text": "A", "model": "other"}, "model 'other' is unknown; available: demo.en-de, docs.en-fr"),
        ({"text": ["A", "dog " * 3000]}, "text 2: over"),
        ({"text": "\ud800"}, "a text is not Unicode"),
        (b"{", "JSON decode error"),
        (b"\xff", ""),
    ],
    ids=str,
)
def test_bad_requests_get_one_line(served, body, said):
    status, _, content = served.ask("POST", "/v1/translate", body, content_type="application/json")
    assert status == 400 and said in content["error"] and "\n" not in content["error"], content


def test_operations(served, caplog):
    caplog.set_level(logging.INFO, "specdec.access")
    assert served.ask("GET", "/health")[2] == {"status": "ok"} and served.ask("GET", "/ready")[0] == 200
    assert served.post(text="A secret dog runs.")[0] == 200
    assert served.ask("GET", "/secret?q=secret")[0] == 404
    status, headers, _ = served.ask("GET", "/v1/translate")
    assert (status, headers["allow"]) == (405, "POST")
    figures = served.ask("GET", "/metrics")[2]
    for line in (
        r'specdec_requests_total\{path="/v1/translate",status="200"\} \d',
        r'specdec_requests_total\{path="other",status="404"\} 1',
        r'specdec_accepted_total\{model="demo.en-de"\} [1-9]',
        r'specdec_texts\{model="docs.en-fr"\} 0',
        r'specdec_draft_length_passes_total\{model="demo.en-de",tokens="\d+"\}',
        "process_resident_memory_bytes [1-9]",
        r'specdec_request_seconds_bucket\{le="0.1",path="/v1/translate"\}',
    ):
        assert re.search(line, figures), line
    logged = [record.getMessage() for record in caplog.records if record.name == "specdec.access"]
    assert any(re.fullmatch(r"127.0.0.1 POST /v1/translate 200 \d+ ms", line) for line in logged)
    assert not any("secret" in record.getMessage() for record in caplog.records)
    schema = served.ask("GET", "/openapi.json")[2]
    assert "no_repeat_ngram_size" in json.dumps(schema) and schema["paths"]["/v1/translate"]["post"]


@pytest.mark.long
def test_the_apis_keep_what_their_schema_promises(served, tmp_path):
    """All dialects, by requests that schemathesis makes up. A schema cannot say which languages and options go together."""
    pytest.importorskip("schemathesis")
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"http://127.0.0.1:{served.port}/openapi.json",
        *"--seed 1 --phases examples,coverage,fuzzing --max-examples 8 --continue-on-failure --no-color".split(),
        *"--checks all --exclude-checks positive_data_acceptance --generation-database none".split(),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


def test_limits_and_keys():
    limits = {"characters": 100, "texts": 3, "body": 2000, "seconds": 5.0}
    served = Served(queue=2, keys=frozenset({"right"}), limits=limits)
    try:
        right = {"authorization": "Bearer right"}
        assert served.post(text="A dog.")[0] == 403
        assert served.post(text="A dog.", headers={"authorization": "Bearer wrong"}) == (403, {"error": "Invalid API key"})
        assert served.post(text="A dog.", headers=right)[0] == 200
        status, content = served.post(text="A" * 101, headers=right)
        assert (status, content["error"]) == (413, "101 characters exceed the limit of 100")
        assert served.post(text=["A"] * 4, headers=right)[0] == 413
        assert served.ask("POST", "/v1/translate", b"x" * 3000, **right)[::2] == (
            413,
            {"error": "the body exceeds the limit of 2,000 bytes"},
        )
        assert served.ask("POST", "/v1/translate", iter([b"x" * 1500] * 2), **right)[0] == 413  # chunked
        status, content = served.post(text=["A"] * 3, headers=right)
        assert (status, content["error"]) == (400, "3 texts do not fit in a queue of 2; send fewer at a time")  # ever
        served.service.models[0].served.pending += 2
        status, headers, content = served.ask("POST", "/v1/translate", {"text": "A"}, **right)
        served.service.models[0].served.pending -= 2
        assert status == 503 and int(headers["retry-after"]) >= 1 and "too many texts" in content["error"]
        served.service.models[0].served.closing = True
        assert served.ask("GET", "/ready")[0] == 503
        status, headers, _ = served.ask("POST", "/v1/translate", {"text": "A"}, **right)
        assert status == 503 and headers["retry-after"]
    finally:
        served.close()


def test_characters_per_minute_and_key(monkeypatch):
    served = Served(keys=frozenset({"one", "other"}), limits={"per_minute": 10})
    clock = [65.0]
    monkeypatch.setattr("specdec_plugins.serving.service.time", SimpleNamespace(monotonic=lambda: clock[0]))
    try:
        asked = lambda key, path="/v1/translate", **body: served.ask("POST", path, body, authorization=f"Bearer {key}")  # noqa: E731
        assert asked("one", text="A dog.")[0] == 200
        status, headers, content = asked("one", text="A cat.")
        assert (status, headers["retry-after"]) == (429, "55") and "10 characters in a minute" in content["error"]
        assert asked("one", text="Go.")[0] == asked("other", text="A dog.")[0] == 200
        found = served.post("/translate", q="A dog.", source="en", target="de", api_key="one")
        assert found[0] == 429 and "error" in found[1]
        clock[0] = 121.0
        assert asked("one", text="A dog.")[0] == 200
    finally:
        served.close()


def test_clients_that_leave_free_their_rows(served):
    (desk,) = served.service.models[0].served.line.desks
    for stream in (False, True):
        body = json.dumps(
            {"text": " ".join(LINES * 20), "windows": "sentence", "stream": stream, **({} if stream else {"beam": 8})}
        )
        client = socket.create_connection(("127.0.0.1", served.port))
        client.sendall(
            f"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body.encode())}\r\n"
            f"content-type: application/json\r\n\r\n{body}".encode()
        )
        waited(lambda: desk.owners)
        client.close()
        waited(lambda: not desk.owners and not served.service.models[0].served.pending)
    assert served.post(text=LINES[0])[1]["results"][0]["outputs"][0]["text"] == expected(LINES[:1], {})[0].text


def test_a_client_that_leaves_before_the_first_piece_frees_its_place(served):
    model, passes = served.service.models[0].served, threading.Event()
    served.engines[0].post(passes.wait)  # no pass runs until then
    body = json.dumps({"text": LINES[0], "stream": True})
    try:
        client = socket.create_connection(("127.0.0.1", served.port))
        client.sendall(
            f"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body.encode())}\r\n"
            f"content-type: application/json\r\n\r\n{body}".encode()
        )
        waited(lambda: model.pending)
        client.close()
        waited(lambda: not model.pending)
    finally:
        passes.set()


def sent(body, path="/v1/translate"):
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize("held", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(served, held):
    """At once, or after the server has looked whether it is there; of a stream, and of requests that it sent together, too."""
    whole = " ".join(LINES[:3])
    for texts in ([LINES[0]], [LINES[0], LINES[1]], [whole]):
        bodies = [{"text": text, **({"stream": True, "windows": "sentence"} if text == whole else {})} for text in texts]
        passes = threading.Event()
        served.engines[0].post(passes.wait) if held else passes.set()
        client = socket.create_connection(("127.0.0.1", served.port), timeout=600)
        client.sendall(b"".join(map(sent, bodies)))
        client.shutdown(socket.SHUT_WR)
        if held:
            assert client.recv(1) == b"H" and client.recv(1) == b"T"
            passes.set()
        got = (b"HT" if held else b"") + b"".join(iter(lambda c=client: c.recv(1000), b""))
        assert got.count(b"HTTP/1.1 200 OK\r\n") == len(texts) and got.startswith(b"HTTP/1.1 200 OK\r\n")
        for text, body in zip(texts, bodies):
            own = expected([text], {key: value for key, value in body.items() if key == "windows"})
            assert json.dumps(own[0].text, ensure_ascii=False).encode() in got
    client = socket.create_connection(("127.0.0.1", served.port), timeout=600)
    client.sendall(sent({"text": LINES[0]})[:-3])  # not a whole request
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1000) == b""


def test_what_is_not_unicode_is_refused_and_never_a_fault(served):
    half, form = chr(0xD800), "multipart/form-data; boundary=x; charset="
    assert served.post(text="A", model=half)[1]["error"].startswith("model '?' is unknown")
    assert served.post("/translate", q="A", source=half, target="de")[0] == 400
    assert served.post("/translate", q="A", source="en", target="de", format=half)[0] == 400
    status, content = served.post("/v2/translate", text="A", source_lang=half, target_lang="DE")
    assert status == 400 and "surrogate" in content["message"]
    field = b'--x\r\nContent-Disposition: form-data; name="pair"\r\n\r\n\\ud800\r\n--x--\r\n'
    for path in "/", "/translate", "/translate_file":
        assert served.ask("POST", path, field, content_type=form + "undefined")[0] == 400
    assert served.ask("POST", "/", field, content_type=form + "unicode_escape")[0] == 400


def test_a_body_without_its_type_learns_it(served):
    for body in b'{"text": "A"}', b"", b"[1]":
        status, _, content = served.ask("POST", "/v1/translate", body)
        assert status == 400 and "Content-Type: application/json" in json.dumps(content)


@pytest.mark.parametrize(
    "host, ours",
    [
        ("localhost:5000", True),
        ("LOCALHOST", True),
        ("a.localhost:80", True),
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("[::1]", True),
        ("192.168.0.7", True),
        ("translate.example.org:443", True),
        ("", True),
        ("localhost.:1", True),
        ("evil.example:5000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil", False),
        ("translate.example.org.evil", False),
        ("[::1].evil", False),
        ("a@localhost", False),
    ],
)
def test_names_that_lead_here(host, ours):
    assert called(host, ["translate.example.org"]) == ours


def test_pages_of_other_sites_reach_nothing(tmp_path):
    """By a name of theirs that leads here, or by forms, which leave glossaries as they are."""
    server, options = Served(names=["ours.example"]), serve.parser().parse_args
    asked = {"text": "A dog runs.", "q": "A dog runs.", "source": "en", "target": "de", "target_lang": "DE"}
    try:
        for path, key in ("/v1/translate", "error"), ("/translate", "error"), ("/v2/translate", "message"), ("/", "error"):
            status, _, content = server.ask("POST", path, asked, host="evil.example")
            assert status == 403 and "--allow-host" in content[key]
        for path in "/metrics", "/v2/glossaries", "/openapi.json", "/none":
            assert server.ask("GET", path, host="evil.example:80")[0] == 403
        for host in "localhost:1", "ours.example":
            assert server.ask("GET", "/v1/models", host=host)[0] == 200
        terms = {"name": "a", "source_lang": "en", "target_lang": "de", "entries_format": "tsv", "entries": "dog\tRüde"}
        form = {"content_type": "application/x-www-form-urlencoded", "sec_fetch_site": "cross-site"}
        assert server.ask("POST", "/v2/glossaries", urlencode(terms), **form)[0] == 403
        assert server.ask("POST", "/v2/glossaries", urlencode(terms), **{**form, "sec_fetch_site": "same-origin"})[0] == 201
    finally:
        server.close()
    assert serve.names_of(options([])) == serve.names_of(options(["--host", "::1"])) == []
    assert serve.names_of(options(["--host", "0.0.0.0"])) is None and serve.names_of(options(["--host", "box"])) is None
    assert serve.names_of(options(["--allow-host", "Ours.example, other"])) == ["ours.example", "other"]


def test_errors_of_all_kinds_in_each_dialect(served):
    form, packed = "application/x-www-form-urlencoded", {"content_type": "application/json", "content_encoding": "gzip"}
    for path, key, large in ("/translate", "error", 400), ("/v2/translate", "message", 413), ("/v1/translate", "error", 413):
        found = [
            served.ask("GET", path),
            served.ask("POST", path, b"x" * (2 << 20), content_type=form),
            served.ask("POST", path, b"", **packed),
            served.ask("POST", path, gzip.compress(b"{}" * 1000), **packed),
            served.ask("POST", path, b"{", content_type="x/y"),
            served.ask("POST", path, b"A dog", content_type=form),
        ]
        assert [status for status, *_ in found] == [405, large, 415, 415, 400, 400], path
        assert all([*content] == [key] and content[key] and "\n" not in content[key] for *_, content in found), path
    assert [*served.ask("GET", "/v2/none")[2]] == ["message"] and [*served.ask("GET", "/none")[2]] == ["error"]


def test_headers_that_do_not_arrive(served, monkeypatch):
    monkeypatch.setattr("specdec_plugins.serving.connection.HEADERS", 0.2)
    whole = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for sent in b"", b"GET / HTTP/1.1\r\nhost: local", whole + whole[:9]:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.settimeout(600)
            client.sendall(sent)
            assert b"".join(iter(lambda: client.recv(1000), b"")).count(b"HTTP/1.1 200") == (len(sent) > len(whole))


def test_faults_are_answered_in_each_dialect(served, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "languages", broken)
    status, _, content = served.ask("GET", "/v2/languages")
    assert status == 500 and "log" in content["message"]
    status, _, content = served.ask("GET", "/languages")
    assert status == 500 and "log" in content["error"]


def waited(condition):
    end = time.monotonic() + 600  # a busy machine takes long to start a process
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Command(Served):
    """The command in a process of its own, once it listens, on a free port. It logs to a file: a full pipe would stop it."""

    def __init__(self, folder, *options):
        self.log = folder / "log"
        command = [sys.executable, "-m", "specdec_plugins.commands.serve", "--port", "0", *map(str, options)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, cwd=ROOT)
        waited(lambda: self.process.poll() is not None or "listening on" in self.logged())
        self.port = int(re.search(r"listening on http://\S+:(\d+)", self.logged())[1])

    def logged(self):
        return self.log.read_text(encoding="utf-8")

    def stop(self, signum=signal.SIGTERM):
        """Returns the status."""
        self.process.send_signal(signum)
        return self.process.wait(600)


@pytest.mark.long
@pytest.mark.parametrize("grace, statuses", [(900, {200}), (0.2, {200, 503})])
def test_the_command_stops_gracefully(grace, statuses, tmp_path):
    config = tmp_path / "models.toml"
    config.write_text(f'threads = 1\ntimeout = 900\ngrace = {grace}\n[model.demo]\nfolder = "{PAIR}"')
    served = Command(tmp_path, "--config", config)
    reader = http.client.HTTPConnection("127.0.0.1", served.port, timeout=600)
    fields = {"text": " ".join(LINES * 15), "stream": True, "windows": "sentence"}
    reader.request("POST", "/v1/translate", json.dumps(fields), {"content-type": "application/json"})
    stream = reader.getresponse()  # it has begun
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(served.post, text=LINES * n, beam=4) for n in (1, 15, 15)]
        waited(asked[0].done)

        def accepted() -> bool:
            texts = sum(len(LINES * 15) for each in asked[1:] if not each.done())
            return float(re.search(r'specdec_texts\{model="demo"\} (\S+)', served.ask("GET", "/metrics")[2])[1]) >= texts

        waited(accepted)
        served.process.send_signal(signal.SIGTERM)
        found = [each.result() for each in asked]
        assert {status for status, _ in found} == statuses
        assert all(status == 200 or content["error"].startswith("the server stopped before") for status, content in found)
        name, data = re.findall(r"event: (.*)\ndata: (.*)\n\n", stream.read().decode())[-1]
        assert name == "result" or (503 in statuses and name == "error" and "the server stopped before" in data)
    assert served.process.wait(600) == 0
    assert "Traceback" not in served.logged() and "POST /v1/translate 200" in served.logged()


def test_a_session_that_cannot_be_opened_is_tried_again(monkeypatch):
    """Until it can, the server is not ready and refuses requests at once."""
    served = Served()
    model, (desk,) = served.service.models[0].served, served.service.models[0].served.line.desks
    waited(lambda: desk.session)
    engine, usual = model.translator.engine, model.translator.engine.session

    def fail(*_):
        raise MemoryError("too little memory")

    try:
        monkeypatch.setattr(desk.session, "step", fail)
        monkeypatch.setattr(engine, "session", fail)
        assert served.post(text=LINES * 10)[0] == 500
        for _ in range(2):
            status, headers, content = served.ask("POST", "/v1/translate", {"text": LINES[0]})
            assert status == 503 and headers["Retry-After"] and "cannot translate at present" in content["error"]
            assert served.ask("GET", "/ready")[::2] == (503, {"status": "failed"})
        monkeypatch.setattr(engine, "session", usual)
        desk._retry = 0.0
        waited(lambda: served.ask("GET", "/ready")[0] == 200)
        assert served.post(text=LINES[0])[1]["results"][0]["outputs"][0]["text"] == expected(LINES[:1], {})[0].text
    finally:
        served.close()


def test_another_model_takes_over_between_requests(monkeypatch):
    """What the old one has accepted ends with it, and no request is refused."""
    served, other = Served(), str(ROOT / "data" / "docs.en-fr")
    old = served.service.models[0].served
    begun, go = threading.Event(), threading.Event()
    (desk,) = old.line.desks
    waited(lambda: desk.session)

    def step(*how, run=desk.session.step):
        begun.set()
        assert go.wait(600)
        return run(*how)

    monkeypatch.setattr(desk.session, "step", step)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(served.post, text=LINES[:3])
            assert begun.wait(600)
            new = AsyncTranslator(Translator.from_pretrained(other, threads=1), threads=served.engines)
            served.service.swap(0, Model.of("new", new))
            second = pool.submit(served.post, text="The file does not exist.")
            waited(lambda: new.pending)
            go.set()
            status, content = first.result()
            assert status == 200 and [each["text"] for each in outputs(content)] == [
                each.text for each in expected(LINES[:3], {})
            ]
            status, content = second.result()
            assert status == 200 and (content["model"], content["target"]) == ("new", "fr")
        assert '<option value="fr" selected>' in served.ask("GET", "/")[2]
        assert served.post("/detect", q="Le chien court dans la forêt.")[1][0]["language"] == "fr"
    finally:
        served.close()
    assert old.closing and new.closing


@pytest.mark.long
def test_folders_are_loaded_again(tmp_path):
    """SIGHUP under load: after a folder was replaced, by one that is no model, and by another model."""
    link, config = tmp_path / "model", tmp_path / "models.toml"
    config.write_text(f'threads = 1\n[model.demo]\nfolder = "{link}"')
    link.symlink_to(PAIR)
    served = Command(tmp_path, "--config", config)
    done, found = threading.Event(), []

    def asking():
        while not done.is_set():
            found.append(served.post(text="The file does not exist.", beam=2))

    def replaced(folder, said):
        (tmp_path / "next").symlink_to(folder)
        os.replace(tmp_path / "next", link)
        served.process.send_signal(signal.SIGHUP)
        waited(lambda: said in served.logged() or served.process.poll() is not None)
        assert said in served.logged()

    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(asking)
            try:
                waited(lambda: found)
                replaced(tmp_path, "ERROR model demo was not loaded again, and stays as it was:")
                replaced(ROOT / "data" / "docs.en-fr", "INFO model demo was loaded again")
                seen = len(found)
                waited(lambda: len(found) > seen + 8)
            finally:
                done.set()
    finally:
        status = served.stop()  # once all are answered
    assert status == 0
    assert {status for status, _ in found} == {200}
    assert {content["target"] for _, content in found} == {"de", "fr"} and found[-1][1]["target"] == "fr"


@pytest.mark.long
def test_a_signal_while_models_are_loaded(tmp_path):
    """The folders are loaded again afterwards: they may have been replaced after they were read."""
    config, keys = tmp_path / "models.toml", tmp_path / "keys"
    os.mkfifo(keys)
    config.write_text(f'port = 0\nthreads = 1\nkeys = "{keys}"\n[model.demo]\nfolder = "{PAIR}"')
    command = [sys.executable, "-m", "specdec_plugins.commands.serve", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    with open(keys, "w") as writer:  # waits until the command reads it
        process.send_signal(signal.SIGHUP)
        writer.write("right\n")
    assert any("INFO model demo was loaded again" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 0


def test_the_commands_faults(tmp_path, capsys, monkeypatch):
    before = threading.enumerate()

    def refused(*arguments, status=2):
        assert serve.main(["--port", "0", *map(str, arguments)]) == status
        return capsys.readouterr().err.removeprefix("specdec-serve: error: ").rstrip("\n")

    assert refused("--model", PAIR, "--port", 70000) == "--port 70,000 is not from 0 to 65,535"
    assert refused("--model", PAIR, "--model", PAIR) == "--model demo.en-de is the name of several models"
    assert refused("--model", PAIR, "--max-per-minute", 9) == "--max-per-minute requires --keys"
    assert refused("--port", 1) == "--model or --config is required"
    assert refused("--model", PAIR, "--rows", 0) == "--rows 0 is less than 1"
    assert str(tmp_path / "none") in refused("--model", tmp_path / "none", status=1)
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "uvicorn", None)
        missing.delitem(sys.modules, "specdec_plugins.serving.server", raising=False)  # other tests import it
        assert refused("--model", PAIR, status=1).endswith(f"; run: {install_command('serve')}")
    (tmp_path / "keys").write_text("# none\n")
    assert refused("--model", PAIR, "--keys", tmp_path / "keys", status=1) == f"{tmp_path}/keys: no keys; write one per line"
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert refused("--model", PAIR, "--keys", tmp_path / "bytes", status=1).startswith(f"{tmp_path}/bytes: not UTF-8")
    assert refused("--model", PAIR, "--model", tmp_path, status=1).startswith(f"{tmp_path}: ")
    assert "engine" not in [each.name for each in threading.enumerate() if each not in before]


CONFIG = f"""
port = 70
dtype = "int8"
max-per-minute = 9
[model.captions]
folder = "{PAIR}"
rows = 8
[model."en fr"]
folder = "elsewhere"
dtype = "bfloat16"
draft-with = "lookahead"
"""


def test_a_configuration_has_the_options_of_the_command(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text(CONFIG)
    options = serve.parser().parse_args(["--rows", "5", "--config", str(path), "--port", "71", "--model", "own", "--keys", "k"])
    assert (options.port, options.rows, options.max_per_minute) == (71, 5, 9) and serve.check(options) == []
    own, captions, french = (
        (name, each.model, each.rows, each.dtype, each.draft_with) for name, each in serve.models_of(options)
    )
    assert own == ("own", "own", 5, "int8", None) and captions == ("captions", PAIR, 8, "int8", None)
    assert french == ("en fr", "elsewhere", 5, "bfloat16", "lookahead")
    options = serve.parser().parse_args(["--config", str(path), "--model", "captions"])
    assert serve.check(options) == [("model", "captions is the name of several models"), ("max_per_minute", "requires --keys")]
    path.write_text(CONFIG.replace("rows = 8", "rows = 0\nlearn = 2"))
    options = serve.parser().parse_args(["--config", str(path), "--keys", "k", "--queue", "0"])
    where = "([model.captions])"
    assert serve.check(options) == [
        ("rows", f"0 is less than 1 {where}"),
        ("queue", "0 is less than 1"),
        ("learn", f"2 is not a share of a core, above 0 and up to 1 {where}"),
    ]


@pytest.mark.parametrize(
    "text, said",
    [
        ("prt = 3", "prt is unknown; available: host, port, keys,"),
        ('config = "x"', "config is unknown; available: host,"),
        ("[models.x]", "models is unknown; available: host,"),
        ("[model.x]\nfolder = 'a'\nthreads = 3", "model.x.threads is unknown; available: folder, rows, queue, device,"),
        ("[model.x]\nrows = 3", "model.x has no folder"),
        ("model = 'x'", "models are tables: [model.NAME], with a folder"),
        ("[model]\nfolder = 'x'", "models are tables: [model.NAME], with a folder"),
        ("port = 'x'", "--port: 'x' is not a whole number"),
        ("port = [1]", "port is neither a string nor a number"),
        ("[model.x]\nfolder = true", "model.x.folder is neither a string nor a number"),
        ("[model.x]\nfolder = 'a'\ndtype = 'int9'", "--dtype: invalid choice: 'int9'"),
        ("port = ", "not TOML: Invalid value"),
        ("a = " + "[" * 5000, "not TOML: "),
        (b"\xff", "not TOML: "),
        (None, "No such file or directory"),
    ],
    ids=str,
)
def test_bad_configurations_get_one_line(tmp_path, capsys, text, said):
    path = tmp_path / "models.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit, match="2"):
        serve.main(["--config", str(path)])
    found = capsys.readouterr().err
    assert found.startswith(f"specdec-serve: {path}: error: {said}") and found.count("\n") == 1
