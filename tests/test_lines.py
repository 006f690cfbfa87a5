"""The one reader of lines: what ends a line, what is refused, and by which name."""

import gzip
import os

import pytest

from specdec_plugins.text import lines
from specdec_plugins.text.lines import LineReader, count_line_ends, decoded, read_lines


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(read_lines(tmp_path / "text")) == ["one", "\ufefftwo"]


def test_utf_16_is_named():
    assert decoded("\ufeffa".encode()) == ("\ufeff", "a")
    with pytest.raises(ValueError, match=r"line 1: UTF-16; convert the file to UTF-8"):
        decoded("a".encode("utf-16"))


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x0bc\x85d\r\n\r\ne\rf\nlast".encode())
    assert list(read_lines(path)) == ["a\u2028b\x0bc\x85d", "", "e f", "last"]
    zipped = tmp_path / "text.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_lines(zipped)) == list(read_lines(path))


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.txt", b"good\nb\xe4d\n", "a.txt, line 2: not UTF-8 (byte 2 of the line)"),
        ("a.txt", b"good\n" + b"x" * 1_000_001, "a.txt, line 2: longer than 1,000,000 bytes"),
        ("a.txt", b"good\nb\0d\n", "a.txt, line 2: contains a NUL byte, so it is not text"),
        ("a.gz", gzip.compress(b"good\n" * 99, mtime=0)[:-9], "a.gz: "),
        ("a.gz", b"plain text", "a.gz: "),
        ("missing", None, "missing: No such file"),
    ],
)
def test_unreadable_text_is_named(tmp_path, name, data, message):
    if data:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError) as error:
        list(read_lines(tmp_path / name))
    assert message in str(error.value)


def test_a_file_can_be_read_from_a_line_on(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\nthree\nfo\xffur\nfive\n")
    with LineReader(path) as reader:
        assert reader.skip(2) == 2 and reader.number == 2
        iterator = iter(reader)
        assert next(iterator) == "three" and reader.number == 3
        with pytest.raises(ValueError, match=r"text, line 4: not UTF-8 \(byte 3 of the line\)"):
            next(iterator)
    with LineReader(path) as reader:
        assert reader.skip(3) == 3
    path.write_bytes(b"one\ntwo")
    with LineReader(path) as reader:
        assert reader.skip(9) == 2
    assert count_line_ends(path) == 1


def test_a_line_of_the_greatest_length_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    path = tmp_path / "text"
    path.write_bytes(b"123456789\n1234567890")
    assert list(read_lines(path)) == ["123456789", "1234567890"]
    path.write_bytes(b"1234567890\n")  # the end counts
    with pytest.raises(ValueError, match="text, line 1: longer than 10 bytes"):
        list(read_lines(path))


def test_stdin_is_read_the_same_way(monkeypatch):
    read, write = os.pipe()
    os.write(write, b"a\rb\r\n\xe4\n")
    os.close(write)
    with open(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with LineReader() as reader:
            found = iter(reader)
            assert next(found) == "a b"
            with pytest.raises(ValueError, match=r"stdin, line 2: not UTF-8 \(byte 1 of the line\)"):
                next(found)
