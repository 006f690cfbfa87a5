"""Never a wrong file: what is malformed is refused by its line, as is a translation that would change anything else."""

import pytest
from test_files import translated

from specdec_plugins.files import Unreadable

HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
PO = {  # a file's entries, and the line that is at fault
    "an open quote": ('msgid "one\nmsgstr ""\n\nmsgid "two"\nmsgstr ""\n', 4),
    "an open msgstr": ('msgid "one"\nmsgstr "\n\nmsgid "two"\nmsgstr ""\n', 5),
    "a quote within": ('msgid "one"two"\nmsgstr ""\n', 4),
    "an escaped end": ('msgid "one\\"\nmsgstr ""\n', 4),
    "no quotes": ("msgid one\nmsgstr \"\"\n", 4),
    "two strings": ('msgid "one" "two"\nmsgstr ""\n', 4),
    "a comment behind": ('msgid "one" # two\nmsgstr ""\n', 4),
    "no msgstr": ('msgid "one"\n\nmsgid "two"\nmsgstr ""\n', 4),
    "no msgstr at the end": ('msgid "one"\nmsgstr ""\nmsgid "two"\n', 6),
    "no msgid": ('#: a.c\nmsgstr ""\n', 5),
    "two msgstr": ('msgid "one"\nmsgstr ""\nmsgstr ""\n', 6),
    "a comment between": ('msgid "one"\n# two\nmsgstr ""\n', 4),
    "plural without forms": ('msgid "one"\nmsgid_plural "two"\nmsgstr ""\n', 4),
    "forms without plural": ('msgid "one"\nmsgstr[0] ""\n', 4),
    "a form missing": ('msgid "one"\nmsgid_plural "two"\nmsgstr[0] ""\nmsgstr[2] ""\n', 4),
    "another order": ('msgid "one"\nmsgctxt "two"\nmsgstr ""\n', 4),
    "a mistyped keyword": ('msgid "one"\nmsgtsr ""\n', 5),
    "an escape of no one": ('msgid "one \\q"\nmsgstr ""\n', 4),
    "an escape of gettext alone": ('msgid "one\\x41"\nmsgstr ""\n', 4),
    "twice": ('msgid "one"\nmsgstr ""\n\nmsgid "one"\nmsgstr ""\n', 7),
    "half obsolete": ('#~ msgid "one"\nmsgstr ""\n', 4),
    "an obsolete open quote": ('#~ msgid "one\n#~ msgstr ""\n', 4),
    "a previous open quote": ('#| msgid "one\nmsgid "two"\nmsgstr ""\n', 4),
    "a string of nothing": ('# a\n"one"\n', 5),
    "a carriage return": ('msgid "one"\rmsgstr ""\n', 4),
}  # fmt: skip


@pytest.mark.parametrize("what", PO)
def test_malformed_po_is_refused_by_its_line(what):
    source, line = HEAD + PO[what][0], PO[what][1]
    with pytest.raises(Unreadable) as error:
        translated(source, "po", str.upper)
    assert error.value.where(source) == f", line {line}"


def test_po_entries_that_are_read():
    """By gettext and polib too: contexts, strings of several lines, comments, obsolete entries, forms, CRLF."""
    source = (
        '# c\n#. e\n#: a.c:1 b.c:2\n#, c-format\n#| msgctxt "old"\n#| msgid "old"\n#| "er"\nmsgctxt "x"\nmsgid ""\n'
        '"one "\n\n"two\\n"\nmsgstr ""\n""\n\nmsgctxt "y"\nmsgid "one two\\n"\nmsgstr ""\n'
        '#~ msgid "gone"\n#~ "by"\n#~ msgstr "fort"\n\n#~| msgid "a"\n#~ msgid "b"\n#~ msgid_plural "bs"\n#~ msgstr[0] ""\n'
    )
    wanted = source.replace('msgstr ""\n""\n', 'msgstr "ONE TWO\\n"\n').replace('\nmsgstr ""\n#~', '\nmsgstr "ONE TWO\\n"\n#~')
    for end in ("\n", "\r\n"):
        assert translated((HEAD + source).replace("\n", end), "po", str.upper) == (HEAD + wanted).replace("\n", end)
    fuzzy = translated((HEAD + source).replace("\n", "\r\n"), "po", str.upper, least=0.95)
    assert fuzzy.count("#, fuzzy\r\nmsgctxt") == 2 and fuzzy.count("\n") == fuzzy.count("\r\n")


def test_po_of_another_encoding():
    for header, good in (("UTF-8", True), ("CHARSET", True), ("ISO-8859-1", False), ("us-ascii", False)):
        source = HEAD.replace("UTF-8", header) + 'msgid "one"\nmsgstr ""\n'
        if good:
            assert 'msgstr "ONE"' in translated(source, "po", str.upper)
        else:
            with pytest.raises(Unreadable, match=f"declares the encoding {header}; convert the file to UTF-8"):
                translated(source, "po", str.upper)


def test_line_ends_on_purpose_stay():
    """gettext's help texts are lines; a translation of a sentence over several is broken again."""
    source = 'msgid "The file is open\\nand the door is\\nnot open.\\n"\nmsgstr ""\n'
    assert translated(source, "po", lambda text: "Une phrase de six mots ici.") == (
        source.replace('msgstr ""', 'msgstr "Une phrase\\nde six\\nmots ici.\\n"')
    )
    assert 'msgstr "Mot\\n"' in translated(source, "po", lambda text: "Mot")
    plural = 'msgid "\\none\\n"\nmsgid_plural "\\ntwo"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    with pytest.raises(Unreadable, match="begins or ends with a line end"):
        translated(plural, "po")
