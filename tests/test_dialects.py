"""The APIs that other programs speak: against the library's results, and by these programs' own clients."""

import io
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import ROOT
from test_serve import Served
from test_serving import LINES, PAIR, expected, translator

from specdec_plugins.files import Options, TextFile
from specdec_plugins.serving.downloads import Downloads
from specdec_plugins.serving.glossaries import Glossaries
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.refused import Refused
from specdec_plugins.serving.service import Limits
from specdec_plugins.settings import Settings
from specdec_plugins.text.glossary import Glossary, Term
from specdec_plugins.units import translate_units

TEXT = f"{LINES[0]} {LINES[1]}\n\n  {LINES[2]}\n"
HTML = f"<p>{LINES[0]} <b>{LINES[1]}</b></p>\n<p translate=no>dogs</p>"
KEY = {"authorization": "DeepL-Auth-Key right"}


@pytest.fixture(scope="module")
def served():
    server = Served([PAIR, str(ROOT / "data" / "docs.en-fr")], limits={"characters": 5000, "texts": 60})
    yield server
    server.close()


@pytest.fixture(scope="module")
def keyed():
    server = Served(keys=frozenset({"right"}))
    yield server
    server.close()


def by_files(text, form, ignored=(), **settings):
    """The library's translation of a text in a format."""
    file = TextFile(text, form, Options(ignored=ignored))
    units = [replace(unit, whole=False) for unit in file.units]
    return file.translated(translate_units(translator(Settings(threads=1, **settings)), units))


def ask(served, path, form=False, **fields):
    if form:
        body = urllib.parse.urlencode(fields, doseq=True).encode()
        status, _, content = served.ask("POST", path, body, content_type="application/x-www-form-urlencoded")
        return status, content
    return served.post(path, **fields)


# ---- LibreTranslate


@pytest.mark.parametrize("form", [False, True])
def test_libretranslate_translates(served, form):
    pair = {"source": "en", "target": "de"}
    one, two = (each.text for each in expected(LINES[:2], {}))
    assert ask(served, "/translate", form, q=LINES[0], **pair) == (200, {"translatedText": one})
    if not form:
        assert ask(served, "/translate", q=LINES[:2], **pair) == (200, {"translatedText": [one, two]})
    query = urllib.parse.urlencode({"q": LINES[0], **pair})  # as deep-translator sends it
    assert served.ask("POST", f"/translate?{query}")[2] == {"translatedText": one}
    text = ask(served, "/translate", form, q=TEXT, **pair)[1]["translatedText"]
    assert text == by_files(TEXT, "lines") == f"{one} {two}\n\n  {expected(LINES[2:3], {})[0].text}\n"
    marked = ask(served, "/translate", form, q=HTML, format="html", **pair)[1]["translatedText"]
    assert marked == by_files(HTML, "html") and "<p translate=no>dogs</p>" in marked and "<b>" in marked
    found = ask(served, "/translate", form, q=LINES[0], alternatives=3, **pair)[1]
    best, *rest = (each.text for each in expected([LINES[0]], {"beam": 4, "nbest": 4}))
    assert found == {"translatedText": best, "alternatives": [each for each in rest if each != best]}
    found = ask(served, "/translate", form, q=LINES[0], source="auto", target="de")[1]
    assert found["translatedText"] == one and found["detectedLanguage"]["language"] == "en"
    assert 50 < found["detectedLanguage"]["confidence"] <= 100


def test_libretranslate_several_texts(served):
    found = ask(served, "/translate", q=[TEXT, LINES[3]], source="auto", target="de", alternatives=1)[1]
    assert found["translatedText"] == [by_files(each, "lines", beam=2) for each in (TEXT, LINES[3])]
    assert [each["language"] for each in found["detectedLanguage"]] == ["en", "en"] and len(found["alternatives"]) == 2
    languages = {each["code"]: (each["name"], each["targets"]) for each in served.ask("GET", "/languages")[2]}
    assert languages == {"de": ("German", []), "en": ("English", ["de", "fr"]), "fr": ("French", [])}  # Weblate looks for both
    settings = served.ask("GET", "/frontend/settings")[2]
    assert settings["charLimit"] == 5000 and not settings["keyRequired"]
    assert settings["language"] == {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}}
    assert ask(served, "/detect", q="Ein Hund läuft durch den Wald.")[1][0]["language"] == "de"
    assert ask(served, "/detect", form=True, q="The dog runs.")[1][0]["language"] == "en"


@pytest.mark.parametrize(
    "fields, status, said",
    [
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"source": ""}, 400, "Invalid request: missing source parameter"),
        ({"target": None}, 400, "Invalid request: missing target parameter"),
        ({"q": 3}, 400, "Invalid request: q is neither a string nor a list of strings"),
        ({"q": ["A", 3]}, 400, "Invalid request: q is neither a string nor a list of strings"),
        ({"target": ["de"]}, 400, "Invalid request: target is not a string"),
        ({"target": "ja"}, 400, "no model translates from en to ja"),
        ({"format": "pdf"}, 400, "pdf format is not supported"),
        ({"alternatives": "x"}, 400, "Invalid request: alternatives parameter"),
        ({"alternatives": 99}, 400, "Invalid request: alternatives parameter"),
        ({"alternatives": {}}, 400, "Invalid request: alternatives parameter"),
        ({"alternatives": float("inf")}, 400, "Invalid request: alternatives parameter"),
        ({"q": "A" * 5001}, 400, "5,001 characters exceed the limit of 5,000"),
        ({"q": ["A"] * 61}, 400, "61 texts exceed the limit of 60"),
        ({"q": "\ud800"}, 400, "not Unicode"),
        ({"q": "x <p", "format": "html"}, 400, "is not closed"),
    ],
    ids=str,
)
def test_libretranslate_errors(served, fields, status, said):
    found = ask(served, "/translate", **{"q": "A dog.", "source": "en", "target": "de", **fields})
    assert found[0] == status and said in found[1]["error"], found


def test_libretranslate_keys_and_bodies(served, keyed):
    asked = {"q": LINES[0], "source": "en", "target": "de"}
    assert ask(keyed, "/translate", **asked) == (403, {"error": "An API key is required"})
    assert ask(keyed, "/translate", form=True, api_key="wrong", **asked) == (403, {"error": "Invalid API key"})
    assert ask(keyed, "/translate", api_key="right", **asked)[0] == 200
    for body in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        status, _, content = served.ask("POST", "/translate", body, content_type="application/json")
        assert status == 400 and content["error"].startswith("Invalid request: the body is not")
    assert served.ask("POST", "/translate", b"--x\r\n", content_type="multipart/form-data; boundary=x")[0] == 400


def send_file(server, name, content, **fields):
    """A form with a file; names come as browsers send them."""
    fields = {"source": "en", "target": "de", **fields}
    parts = [f'--x\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    if name is not None:
        parts.append(f'--x\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n')
    body = "".join(parts).encode() + (content if isinstance(content, bytes) else content.encode()) + b"\r\n--x--\r\n"
    status, _, found = server.ask("POST", "/translate_file", body, content_type="multipart/form-data; boundary=x")
    return status, found


FILES = {
    "a.txt": (TEXT, "lines"),
    "../b c.md": (f"# {LINES[0]}\n\n* {LINES[1]}\n", "markdown"),
    "ä.html": (HTML, "html"),
    "d.srt": (f"1\n00:00:01,000 --> 00:00:02,000\n{LINES[0]}\n", "subtitles"),
    "E.JSON": ('{"a": "A dog runs."}', "strings"),
}


@pytest.mark.parametrize("name", FILES)
def test_libretranslate_files(served, name):
    content, form = FILES[name]
    status, found = send_file(served, name, "\ufeff" + content)
    assert status == 200, found
    address = urllib.parse.urlsplit(found["translatedFileUrl"])
    assert address.netloc == f"127.0.0.1:{served.port}"
    status, headers, text = served.ask("GET", address.path)
    stem, _, ending = name.rpartition("/")[2].rpartition(".")
    assert status == 200 and text == "\ufeff" + by_files(content, form)
    assert headers["content-disposition"] == f"attachment; filename*=UTF-8''{urllib.parse.quote(f'{stem}.de.{ending.lower()}')}"
    assert headers["content-type"] == "application/octet-stream" and headers["x-content-type-options"] == "nosniff"


def test_libretranslate_packages_and_other_encodings(served):
    """A file is bytes: a DOCX, and strings in UTF-16. Of a package the texts count, and XML up to a limit."""
    docx = pytest.importorskip("docx")
    document, stream = docx.Document(), io.BytesIO()
    document.add_heading(LINES[0])
    document.save(stream)
    data = stream.getvalue()

    def answer(name, content):
        status, found = send_file(served, name, content)
        assert status == 200, found
        address = f"http://127.0.0.1:{served.port}{urllib.parse.urlsplit(found['translatedFileUrl']).path}"
        with urllib.request.urlopen(address) as response:
            return response.read()

    german = expected([LINES[0]], {})[0].text
    assert [each.text for each in docx.Document(io.BytesIO(answer("a.DOCX", data))).paragraphs] == [german]
    strings = f'"a" = "{LINES[0]}";'
    assert answer("a.strings", strings.encode("utf-16")).decode("utf-16") == strings.replace(LINES[0], german)
    android = f"<resources><string name='a'>{LINES[0]}</string></resources>"
    assert answer("strings.xml", android).decode() == android.replace(LINES[0], german)
    status, found = send_file(served, "a.docx", data[:-40])
    assert status == 400 and found["error"].startswith("the file: not a zip file")
    document.add_paragraph("A" * 4990)
    document.save(stream := io.BytesIO())
    status, found = send_file(served, "a.docx", stream.getvalue())
    assert status == 400 and "characters exceed the limit of 5,000" in found["error"]
    for _ in range(8000):
        document.add_paragraph("12")
    document.save(stream := io.BytesIO())
    status, found = send_file(served, "a.docx", stream.getvalue())
    assert status == 400 and "characters of XML exceed the limit of 250,000" in found["error"]


def test_libretranslate_tables_and_keys(keyed):
    table = "n,text\n1,A dog runs.\n"
    assert send_file(keyed, "t.csv", table, columns="text")[0] == 403
    status, found = send_file(keyed, "t.csv", table, columns="text", source="auto", api_key="right")
    assert status == 200, found
    assert keyed.ask("GET", urllib.parse.urlsplit(found["translatedFileUrl"]).path)[2] == (
        f"n,text\n1,{expected(['A dog runs.'], {})[0].text}\n"
    )


@pytest.mark.parametrize(
    "name, content, fields, said",
    [
        (None, "", {}, "missing file parameter"),
        ("", "A dog.", {}, "missing file parameter"),
        ("a.xml", "<a>A dog</a>", {}, "file format not supported"),
        ("a.pdf", "A dog.", {}, "file format not supported; available: txt, md,"),
        ("a.txt.gz", "A dog.", {}, "file format not supported"),
        ("a.txt", b"A\n\xff", {}, "the file, line 2: not UTF-8"),
        ("a.txt", "A\0", {}, "line 1: contains a NUL byte"),
        ("a.txt", "A" * 5001, {}, "5,001 characters exceed the limit of 5,000"),
        ("a.txt", "A", {"target": "ja"}, "no model translates from en to ja"),
        ("a.txt", "A", {"source": ""}, "missing source parameter"),
        ("a.json", "{", {}, "not JSON"),
        ("a.json", "[" * 4000, {}, "not JSON"),
        ("a.csv", "a,b", {}, "name its columns"),
        ("a.html", "<p", {}, "is not closed"),
        ("a.xliff", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", {}, ""),
        ("a.txt", "A" * 2_000_000, {}, "the body exceeds the limit"),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_bad_files(served, name, content, fields, said):
    status, found = send_file(served, name, content, **fields)
    assert status == 400 and said in found["error"], found


def test_downloads_are_bounded_and_temporary(served, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("specdec_plugins.serving.downloads.time", SimpleNamespace(monotonic=lambda: clock[0]))
    files = Downloads()
    first = files.add("a.txt", b"a" * (40 << 20))
    clock[0] = 1.0
    with pytest.raises(Refused, match="too many translated files") as full:
        files.add("b.txt", b"b" * (30 << 20))
    assert full.value.retry_after == 600 and files.get(first).name == "a.txt"
    clock[0] = 600.0
    with pytest.raises(Refused, match="File not found"):
        files.get(first)
    files.add("b.txt", b"b" * (30 << 20))
    assert len(files.files) == 1
    assert served.ask("GET", "/download_file/none.txt")[::2] == (404, {"error": "File not found; files stay for 10 minutes"})


# ---- DeepL


def deepl(served, form=False, **fields):
    return ask(served, "/v2/translate", form, **{"target_lang": "DE", **fields})


@pytest.mark.parametrize("form", [False, True])
def test_deepl_translates(served, form):
    one, two = (each.text for each in expected(LINES[:2], {}))
    status, content = deepl(served, form, text=LINES[:2])
    assert status == 200 and content["translations"] == [
        {"detected_source_language": "EN", "text": text, "billed_characters": len(line)} for text, line in zip((one, two), LINES)
    ]

    def text_of(text, **more):
        status, content = deepl(served, form, text=[text], source_lang="EN", **more)
        assert status == 200, content
        return content["translations"][0]["text"]

    assert text_of(TEXT) == by_files(TEXT, "lines")
    assert text_of(f"{LINES[0]}\n{LINES[1]}", split_sentences="nonewlines") == by_files(f"{LINES[0]} {LINES[1]}", "lines")
    assert text_of(f"{LINES[0]} {LINES[1]}", split_sentences="0") == expected([f"{LINES[0]} {LINES[1]}"], {})[0].text
    assert text_of(HTML, tag_handling="html") == by_files(HTML, "html")
    marked = f'{LINES[0]} <x id="1">%s</x> {LINES[1]}'
    kept = text_of(marked, tag_handling="xml", ignore_tags=["x"])
    assert kept == by_files(marked, "xml.fragment", ["x"]) and '<x id="1">%s</x>' in kept
    assert deepl(served, form, text=LINES[0], model_type="latency_optimized", context="Dogs.", formality="prefer_more")[0] == 200


@pytest.mark.parametrize(
    "fields, status, said",
    [
        ({"text": []}, 400, "Parameter 'text' not specified."),
        ({"target_lang": ""}, 400, "Parameter 'target_lang' not specified."),
        ({"target_lang": "JA"}, 400, "no model translates from EN to JA"),
        ({"glossary_ids": ["x"]}, 400, "glossary_ids is not supported"),
        ({"glossary_id": "x"}, 404, "Glossary not found"),
        ({"glossary_id": "x", "source_lang": None}, 400, "Value for 'source_lang' required with glossary_id"),
        ({"splitting_tags": ["p"]}, 400, "splitting_tags is not supported"),
        ({"formality": "less"}, 400, "formality is not supported"),
        ({"formality": {}}, 400, "formality is not supported"),
        ({"split_sentences": []}, 400, "'split_sentences' not supported"),
        ({"tag_handling": "rtf"}, 400, "'tag_handling' not supported"),
        ({"ignore_tags": [3]}, 400, "ignore_tags is neither a string nor a list of strings"),
        ({"ignore_tags": 3}, 400, "ignore_tags is neither a string nor a list of strings"),
        ({"split_sentences": "2"}, 400, "'split_sentences' not supported"),
        ({"text": ["<a>"], "tag_handling": "xml"}, 400, "character"),
        ({"text": ["A"] * 51}, 413, "51 texts exceed the limit of 50"),
        ({"text": ["A" * 5001]}, 413, "5,001 characters exceed"),
    ],
    ids=str,
)
def test_deepl_errors(served, fields, status, said):
    found = deepl(served, **{"text": ["A dog."], "source_lang": "EN", **fields})
    assert found[0] == status and said in found[1]["message"], found


def test_deepl_languages_usage_and_keys(served, keyed):
    targets = served.ask("GET", "/v2/languages?type=target")[2]
    assert [each["language"] for each in targets] == ["DE", "FR"] and targets[0]["name"] == "German"
    assert [each["language"] for each in served.ask("GET", "/v2/languages")[2]] == ["EN"]
    assert keyed.ask("GET", "/v2/usage")[::2] == (403, {"message": "An API key is required"})
    assert deepl(keyed, text=["A dog."], source_lang="EN")[0] == 403
    before = keyed.ask("GET", "/v2/usage", **KEY)[2]["character_count"]
    assert keyed.post("/v2/translate", headers=KEY, text=["A dog."], target_lang="DE")[0] == 200
    assert keyed.ask("GET", "/v2/usage", **KEY)[2]["character_count"] == before + 6
    assert deepl(served, text=["A dog."], source_lang="EN")[0] == served.ask("GET", "/v2/usage", **KEY)[0] == 200
    assert [*served.service.used] == [""]  # what clients send in vain as keys takes no memory
    assert served.ask("GET", "/v2/other")[::2] == (404, {"message": "Not Found"})
    assert served.ask("PUT", "/v2/glossaries/x")[1]["allow"] == "DELETE, GET" and served.ask("PUT", "/")[1]["allow"]


TERMS = {"name": "dogs", "source_lang": "EN", "target_lang": "de", "entries_format": "tsv", "entries": "dog\tKöter\n\n"}
DOG = "A dog runs through the snow."


def glossary(server, headers=KEY, **fields):
    return server.post("/v2/glossaries", headers=headers, **{**TERMS, **fields})


def test_deepl_glossaries(tmp_path):
    keys, other = frozenset({"right", "other"}), {"authorization": "DeepL-Auth-Key other"}
    for attempt in ("stored", "read again"):
        server = Served(keys=keys, glossaries=Glossaries(str(tmp_path)))
        try:
            if attempt == "stored":
                status, made = glossary(server)
                assert status == 201 and made["entry_count"] == 1 and (made["source_lang"], made["target_lang"]) == ("en", "de")
            path = f"/v2/glossaries/{made['glossary_id']}"
            assert server.ask("GET", path, **KEY)[2] == made
            assert server.ask("GET", "/v2/glossaries", **KEY)[2] == {"glossaries": [made]}
            status, headers, entries = server.ask("GET", f"{path}/entries", **KEY)
            assert entries == "dog\tKöter\n" and headers["content-type"].startswith("text/tab-separated-values")
            asked = {"text": [DOG], "source_lang": "EN", "target_lang": "DE", "glossary_id": made["glossary_id"]}
            with_terms = server.post("/v2/translate", headers=KEY, **asked)[1]["translations"][0]["text"]
            own = translator(Settings(threads=1)).translate([DOG], glossary=Glossary([Term("dog", "Köter")]))[0].text
            assert with_terms == own and "Köter" in own
            for method in ("GET", "DELETE"):
                assert server.ask(method, path, **other)[0] == 404
            assert server.post("/v2/translate", headers=other, **asked)[0] == 404
            assert server.ask("GET", "/v2/glossaries", **other)[2] == {"glossaries": []}
            assert server.ask("GET", "/v2/glossaries")[0] == 403
        finally:
            server.close()
    server = Served(keys=keys, glossaries=Glossaries(str(tmp_path)))
    assert server.ask("DELETE", path, **KEY)[0] == 204 and server.ask("DELETE", path, **KEY)[0] == 404
    server.close()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "fields, status, said",
    [
        ({"name": ""}, 400, "Parameter 'name' not specified."),
        ({"name": "A" * 1001}, 400, "a name of up to 1,000 characters"),
        ({"name": "\ud800"}, 400, "not Unicode"),
        ({"target_lang": "JA"}, 400, "no model translates from EN to JA"),
        ({"entries_format": "xml"}, 400, "'entries_format' not supported"),
        ({"entries": {"dog": "Köter"}}, 400, "entries is not a string"),
        ({"entries": "dog"}, 400, "line 1 is not a source term and a target term"),
        ({"entries": "\ndog\tKöter\tx"}, 400, "line 2 is not a source term and a target term"),
        ({"entries": "dog\t "}, 400, "pair 1: not a source term"),
        ({"entries": "d" * 201 + "\tK"}, 400, "pair 1: over 200 characters"),
        ({"entries": " \n"}, 400, "a glossary has entries"),
        ({"entries": "a\tb\n" * 20_001}, 413, "20,000 entries"),
        ({"entries_format": "csv", "entries": 'dog,"' + "K" * 200_000}, 400, "field larger than field limit"),
    ],
    ids=lambda value: f"{value!s:.60}",
)
def test_bad_glossaries(served, fields, status, said):
    found = glossary(served, **fields)
    assert found[0] == status and said in found[1]["message"], found


def test_glossaries_are_bounded_and_of_a_language_pair(tmp_path):
    stored = Glossaries()
    for _ in range(100):
        made = stored.add("", "dogs", "en", "de", [("dog", "Köter")])
    stored.add("big", "dogs", "en", "de", [("dog", "Köter")] * 20_000)
    for account in ("", "big"):
        with pytest.raises(Refused, match="over 100 glossaries, or 20,000 entries"):
            stored.add(account, "dogs", "en", "de", [("dog", "Köter")])
    server = Served([PAIR, str(ROOT / "data" / "docs.en-fr")], glossaries=stored)
    try:
        asked = {"text": ["A dog."], "source_lang": "EN", "glossary_id": made.id}
        assert server.post("/v2/translate", target_lang="FR", **asked) == (400, {"message": "the glossary is for en to de"})
        assert server.ask("GET", "/v2/glossary-language-pairs")[2]["supported_languages"][1] == {
            "source_lang": "en",
            "target_lang": "fr",
        }
    finally:
        server.close()
    for content in ("{", "[]", '{"id": 3}', "\ud800" * 9):
        (tmp_path / "a.json").write_text(content, errors="surrogatepass")
        with pytest.raises(ValueError, match=r"a.json: not a glossary that the server wrote \("):
            Glossaries(str(tmp_path))


def test_a_spent_quota():
    server = Served(keys=frozenset({"right"}), limits={"quota": 10})
    try:
        assert deepl(server, text=["A dog."])[0] == 403
        assert server.post("/v2/translate", headers=KEY, text=["A dog."], target_lang="DE")[0] == 200
        spent = server.post("/v2/translate", headers=KEY, text=["A cat."], target_lang="DE")
        assert spent == (456, {"message": "more than 10 characters with this key; the quota is spent"})
        assert server.post("/translate", q="A cat.", source="en", target="de", api_key="right")[0] == 403
        assert server.post(text="A cat.", headers={"authorization": "Bearer right"})[0] == 456
        assert server.ask("GET", "/v2/usage", **KEY)[2] == {"character_count": 6, "character_limit": 10}
    finally:
        server.close()


# ---- their own clients


@pytest.mark.long
def test_libretranslatepy(served, keyed):
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(f"http://127.0.0.1:{served.port}")
    assert client.translate(LINES[0], "en", "de") == expected(LINES[:1], {})[0].text
    assert client.detect("Ein Hund läuft durch den Wald.")[0]["language"] == "de"
    assert {each["code"]: each["targets"] for each in client.languages()} == {"de": [], "en": ["de", "fr"], "fr": []}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        type(client)(f"http://127.0.0.1:{keyed.port}", "wrong").translate("A dog.", "en", "de")


@pytest.mark.long
def test_deep_translator(served, keyed):
    name = pytest.importorskip("deep_translator")
    client = name.LibreTranslator(source="en", target="de", custom_url=f"http://127.0.0.1:{served.port}/", api_key="any")
    assert client.translate(LINES[0]) == expected(LINES[:1], {})[0].text
    assert client.translate_batch(LINES[:2]) == [each.text for each in expected(LINES[:2], {})]
    wrong = name.LibreTranslator(source="en", target="de", custom_url=f"http://127.0.0.1:{keyed.port}/", api_key="wrong")
    with pytest.raises(name.exceptions.AuthorizationException):
        wrong.translate("A dog.")


@pytest.mark.long
def test_deepl_python(keyed):
    deepl = pytest.importorskip("deepl")
    client = deepl.DeepLClient("right", server_url=f"http://127.0.0.1:{keyed.port}/")
    found = client.translate_text(LINES[:2], target_lang="DE")
    assert [each.text for each in found] == [each.text for each in expected(LINES[:2], {})]
    assert found[0].detected_source_lang == "EN" and found[0].billed_characters == len(LINES[0])
    marked = client.translate_text("A <x>%s</x> dog.", target_lang="DE", tag_handling="xml", ignore_tags="x", source_lang="EN")
    assert "<x>%s</x>" in marked.text
    assert [each.code for each in client.get_target_languages()] == ["DE"]
    assert [each.code for each in client.get_source_languages()] == ["EN"]
    assert client.get_usage().character.count > 0 and client.list_glossaries() == []
    assert [str(each.target_lang) for each in client.get_glossary_languages()] == ["de"]
    made = client.create_glossary("dogs", "EN", "DE", {"dog": "Köter"})
    assert client.get_glossary(made.glossary_id).entry_count == 1 and len(client.list_glossaries()) == 1
    assert client.get_glossary_entries(made) == {"dog": "Köter"}
    assert "Köter" in client.translate_text_with_glossary(DOG, made).text
    client.delete_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_glossary(made.glossary_id)
    csv = client.create_glossary_from_csv("dogs", "EN", "DE", 'dog,"Köter",en,de\n')
    assert client.get_glossary_entries(csv) == {"dog": "Köter"}
    client.delete_glossary(csv)
    keyed.service.limits, usual = Limits(quota=1), keyed.service.limits
    with pytest.raises(deepl.QuotaExceededException):
        client.translate_text("A dog.", target_lang="DE")
    keyed.service.limits = usual
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("wrong", server_url=f"http://127.0.0.1:{keyed.port}/").translate_text("A", target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="formality is not supported"):
        client.translate_text("A", target_lang="DE", formality="less")


def test_names():
    assert name_of("de") == "German" and name_of("nb") == "Norwegian Bokmål" and name_of("xx_Xxxx") == "xx_Xxxx"
