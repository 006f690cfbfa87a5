"""What the README shows in Python does what it says."""

import contextlib
import io
import re

import pytest
from conftest import ROOT

from specdec_plugins import Translator

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_python_examples_print_what_is_shown(number, monkeypatch):
    code, shown = EXAMPLES[number]
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue() == shown


def test_a_drafter_of_ones_own_drafts_and_leaves_the_output(monkeypatch):
    monkeypatch.chdir(ROOT)
    code = next(code for code, _ in EXAMPLES if "class Memory" in code)
    names: dict = {"__name__": "readme"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "README.md", "exec"), names)
    lines = names["lines"]
    plain = Translator.from_pretrained("data/demo.en-de", strategy="ar").translate(lines, batch_size=1)
    assert [result.tokens for result in names["translator"].translate(lines)] == [result.tokens for result in plain]
    assert names["translator"].stats.accepted > 0
