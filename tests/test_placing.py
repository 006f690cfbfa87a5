"""Inline tags are placed by alignments: those of hand-made cases, and random ones, whatever the alignment."""

import random

from specdec_plugins.text.alignment import WORD
from specdec_plugins.text.placing import Aligned, Mark, place, tree, unmoved


def words(text):
    return [match.span() for match in WORD.finditer(text)]


def marked(source):
    """The text of a source with ``[`` and ``]`` for an element, ``*`` for a tag alone, and ``{`` and ``}`` around code."""
    text, marks, opened = "", [], []
    for character in source:
        if character in "[{":
            opened.append(len(marks))
            marks.append([len(text), len(text), None])
        elif character == "]":
            first = opened.pop()
            marks[first][2] = len(marks)
            marks.append([len(text), len(text), first])
        elif character == "}":
            marks[opened.pop()][1] = len(text)
        elif character == "*":
            marks.append([len(text), len(text), None])
        else:
            text += character
    return text, [(number, Mark(*mark)) for number, mark in enumerate(marks)]


def shown(marks, pieces):
    """Pieces in the notation of `marked`; code as ``{}``."""
    signs = {number: "*" if mark.partner is None else "[]"[mark.partner < number] for number, mark in marks}
    signs |= {number: "{}" for number, mark in marks if mark.start < mark.end}
    return "".join(piece if isinstance(piece, str) else signs[piece] for piece in pieces)


def placed(source, translation, pairs):
    text, marks = marked(source)
    return shown(marks, place(text, marks, Aligned(translation, words(text), words(translation), pairs)))


SAME = [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_elements_go_to_the_words_that_theirs_are_aligned_with():
    assert placed("the [red] house", "la maison rouge", [(0, 0), (1, 2), (2, 1)]) == "la maison [rouge]"
    assert placed("[the red house]", "la maison rouge", [(1, 2)]) == "[la maison rouge]"
    assert placed("a [b [c] d]", "d c b a", [(0, 3), (1, 2), (2, 1), (3, 0)]) == "[d [c] b] a"
    crossing = [(0, 0), (0, 1), (1, 3), (1, 4), (2, 2), (2, 5)]
    assert placed("[a b] [c]", "p q r s t u", crossing) == "[p q r s t] [u]"
    assert placed("he [gave up] it", "il y a renoncé", [(0, 0), (1, 3), (2, 3), (3, 1)]) == "il y a [renoncé]"


def test_tags_alone_keep_their_neighbours():
    assert placed("press * now", "appuyez maintenant", [(0, 0), (1, 1)]) == "appuyez * maintenant"
    assert placed("an error*. Go", "une erreur. Va", [(0, 0), (1, 1), (2, 2), (3, 3)]) == "une erreur*. Va"
    assert placed("see *this", "vois ceci", [(0, 0), (1, 1)]) == "vois *ceci"
    assert placed("* go there", "va là", [(0, 0), (1, 1)]) == "* va là"
    assert placed("a [] b", "x y", [(0, 0), (1, 1)]) == "x [] y"
    assert placed("a [* * b] c", "x y z", [(0, 0), (1, 1), (2, 2)]) == "x [* * y] z"
    assert placed("a [[b]] c", "x y", [(0, 0), (2, 1)]) == "x [[]] y"


def test_code_replaces_the_same_words():
    assert placed("the {foo(x)} function", "la fonction foo(x)", [(0, 0), (5, 1)]) == "la fonction {}"
    assert placed("use {x} here", "exemple x ici", SAME[:3]) == "exemple {} ici"
    assert placed("use {x} now or {x}", "x ou x", []) == "{} ou {}"
    assert placed("use {abc} here", "utilisez ici", [(0, 0), (2, 1)]) == "utilisez {} ici"


def sentence(draw, depth=3):
    parts = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["word", "word", "element", "alone", "code"])
        inner = sentence(draw, depth - 1) if kind == "element" and depth else ""
        parts.append(
            {"word": draw.choice("abcde"), "element": f"[{inner}]", "alone": "*", "code": "{" + draw.choice(["x", "y.z"]) + "}"}[
                kind
            ]
        )
    return draw.choice([" ", " ", ""]).join(parts)


def test_every_tag_comes_out_once_and_well_formed_whatever_the_alignment():
    for seed in range(3000):
        draw = random.Random(seed)
        text, marks = marked(sentence(draw))
        assert shown(marks, unmoved(text, marks)).count("[") == sum(mark.partner is not None for _, mark in marks) / 2
        translation = " ".join(draw.choices(["q", "r", "x", "y.z", ","], k=draw.randint(0, 7)))
        own, new = words(text), words(translation)
        pairs = (
            sorted({(draw.randrange(len(own)), draw.randrange(len(new))) for _ in range(draw.randint(0, 9))})
            if own and new
            else []
        )
        pieces = place(text, marks, Aligned(translation, own, new, pairs))
        assert sorted(piece for piece in pieces if not isinstance(piece, str)) == [number for number, _ in marks], seed
        stack = []
        for piece in pieces:
            partner = None if isinstance(piece, str) else marks[piece][1].partner
            if partner is not None and partner > piece:
                stack.append(piece)
            elif partner is not None:
                assert stack.pop() == partner, seed
        left = [word for piece in pieces if isinstance(piece, str) for word in piece.split()]
        code = sum(len(words(text[mark.start : mark.end])) for _, mark in marks)
        assert set("".join(left)) <= set(translation) and len(words(" ".join(left))) >= len(new) - code, seed


def test_elements_over_several_sentences_stay_so():
    first, second = [(0, Mark(2, 2, 1))], [(1, Mark(1, 1, 0))]
    assert [node.closing for node in tree(3, first)] == [None] and [node.opening for node in tree(3, second)] == [None]
    crossed = Aligned("y x", [(0, 1), (2, 3)], [(0, 1), (2, 3)], [(0, 1), (1, 0)])
    assert "".join(map(str, place("a b", first, crossed))) == "0y x"
    assert "".join(map(str, place("c d", second, crossed))) == "y x1"
    same = Aligned("x y", crossed.source, crossed.target, [(0, 0), (1, 1)])
    assert "".join(map(str, place("a b", first, same))) == "x 0y"
    assert "".join(map(str, place("c d", second, same))) == "x1 y"
