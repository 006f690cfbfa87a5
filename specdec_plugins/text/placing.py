"""Puts the inline tags of a sentence around the words of its translation, as a word alignment says.

Tags form a tree, and each is placed once: an element gets the range of target words, inside its parent's and apart from its
siblings', with the most words aligned to its own and the fewest aligned to others. So the result is always well formed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from specdec_plugins.text.words import Span

DEEPEST = 100  # tags within tags, in one sentence; formats refuse more
Pieces = list[str | int]  # text, and indices of marks


@dataclass(frozen=True)
class Mark:
    """An inline tag between characters ``start`` and ``end`` of a text, which are equal unless it replaces text, such as code.

    ``partner`` is the index of the tag that closes or opens it; without one, it stands alone. ``link``: its text is a link's.
    """

    start: int
    end: int
    partner: int | None = None
    link: bool = False


@dataclass(frozen=True)
class Unit:
    """A text to translate, with its inline tags. A ``whole`` one is not split into sentences. ``lines``: its line ends and tabs
    are not just white space."""

    text: str
    marks: Sequence[Mark] = ()
    whole: bool = False
    lines: bool = False


@dataclass(frozen=True)
class Placed:
    """A translated unit: text, and the indices of its marks. ``changed``: it differs from the source. ``confidence``: the lowest
    of its sentences' (geometric mean of the probabilities of the tokens), 1 without scores. ``unplaced``: terms of a glossary
    that it lacks. ``missing``: numbers and placeholders that it lacks. ``same``: it has words, and none of them was
    translated."""

    pieces: Pieces
    changed: bool
    confidence: float = 1.0
    unplaced: Sequence[str] = ()
    missing: Sequence[str] = ()
    same: bool = False


@dataclass(frozen=True)
class Aligned:
    """A translation, the words of its source and its own as characters, and the numbers of those that correspond."""

    text: str
    source: Sequence[Span]
    target: Sequence[Span]
    pairs: Sequence[tuple[int, int]]


@dataclass
class Node:
    """An element or a single tag. A tag that belongs to another sentence is None."""

    start: int
    end: int
    opening: int | None = None
    closing: int | None = None
    alone: bool = False
    inside: "list[Node]" = field(default_factory=list)


def place(text: str, marks: Sequence[tuple[int, Mark]], translation: Aligned) -> Pieces:
    """The translation of a sentence with its marks, which come with their indices."""
    nodes = tree(len(text), marks)
    return list(Placer(text, kept(text, nodes, translation)).pieces(nodes))


def unmoved(text: str, marks: Sequence[tuple[int, Mark]]) -> Pieces:
    """A text with its marks where they are."""
    pieces: Pieces = []
    at = 0
    for index, mark in marks:
        pieces += [text[at : mark.start], index]
        at = mark.end
    return [*pieces, text[at:]]


def tree(length: int, marks: Sequence[tuple[int, Mark]]) -> list[Node]:
    """The elements of a sentence."""
    here = {index for index, _ in marks}
    levels: list[list[Node]] = [[]]
    open_nodes: list[Node] = []
    for index, mark in marks:
        if mark.partner is None:
            levels[-1].append(Node(mark.start, mark.end, index, alone=True))
        elif mark.partner > index:
            open_nodes.append(Node(mark.start, length, index))
            levels[-1].append(open_nodes[-1])
            levels.append(open_nodes[-1].inside)
        elif mark.partner in here:
            node = open_nodes.pop()
            node.end, node.closing = mark.start, index
            levels.pop()
        else:  # opened in an earlier sentence: it holds all before it
            levels = [[Node(0, mark.start, closing=index, inside=levels[0])]]
    return levels[0]


def kept(text: str, nodes: Sequence[Node], translation: Aligned) -> Aligned:
    """The alignment, in which text that tags replace corresponds to the same words of the translation, where that has them."""
    pairs, free = set(translation.pairs), set(range(len(translation.target)))
    for node in replacing(nodes):
        own = within(translation.source, node.start, node.end)
        found = next((words for words in occurrences(text[node.start : node.end], translation) if free.issuperset(words)), ())
        if found:
            free.difference_update(found)
            pairs = {(i, j) for i, j in pairs if i not in own and j not in found} | {(i, j) for i in own for j in found}
    return replace(translation, pairs=sorted(pairs))


def occurrences(part: str, translation: Aligned) -> Iterator[range]:
    """The words of the translation that are a part of the source."""
    starts, ends = ({span[side]: number for number, span in enumerate(translation.target)} for side in (0, 1))
    at = translation.text.find(part) if part else -1
    while at >= 0:
        if at in starts and at + len(part) in ends:
            yield range(starts[at], ends[at + len(part)] + 1)
        at = translation.text.find(part, at + 1)


def replacing(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if node.alone and node.start < node.end:
            yield node
        yield from replacing(node.inside)


def within(words: Sequence[Span], start: int, end: int) -> range:
    """The words that have characters from ``start`` to ``end``."""
    found = [n for n, (first, last) in enumerate(words) if first < end and last > start]
    return range(found[0], found[-1] + 1) if found else range(0)


class Placer:
    def __init__(self, text: str, translation: Aligned):
        self.text, self.translation = text, translation.text
        self.own, self.words = translation.source, translation.target
        self.targets: list[list[int]] = [[] for _ in self.own]
        self.sources: list[list[int]] = [[] for _ in self.words]
        for source, target in translation.pairs:
            self.targets[source].append(target)
            self.sources[target].append(source)

    def pieces(self, nodes: Sequence[Node]) -> Iterator[str | int]:
        yield from self._inside(nodes, 0, len(self.words), range(len(self.own)), 0, len(self.translation))

    def _inside(self, nodes: Sequence[Node], first: int, last: int, parent: range, start: int, end: int) -> Iterator[str | int]:
        """Characters ``start`` to ``end`` of the translation, its words ``first`` to ``last``, with nodes among them."""
        at = start
        for node, words, own in sorted(self._laid(nodes, first, last, parent), key=lambda each: (each[1].start, each[1].stop)):
            before, after = "", ""
            if words:
                begin, stop = self.words[words[0]][0], self.words[words[-1]][1]
                begin, stop = (
                    (start if node.opening is None else begin),
                    (end if node.closing is None and not node.alone else stop),
                )
            else:
                begin, before, after = self._gap(node, words.start, start, at, end)
                stop = begin
            begin, stop = max(at, begin), max(at, stop)
            yield self.translation[at:begin] + before
            if node.opening is not None:
                yield node.opening
            if not node.alone:
                yield from self._inside(node.inside, words.start, words.stop, own, begin, stop)
            if node.closing is not None:
                yield node.closing
            if after:
                yield after
            at = stop
        yield self.translation[at:end]

    def _laid(self, nodes: Sequence[Node], first: int, last: int, parent: range) -> Iterator[tuple[Node, range, range]]:
        """Each node with its words in the translation and in the source."""
        taken: set[int] = set()
        for node in nodes:
            own = within(self.own, node.start, node.end) if node.start < node.end else range(0)
            everything = own and own == parent and not node.alone
            words = range(first, last) if everything else self._best(node, own, first, last, taken)
            if node.alone and len(words) > len(own):  # it would replace more than its text
                words = range(0)
            if not words:
                gap = self._near(node, first, last)
                while first < gap < last and gap in taken and gap - 1 in taken:  # within a sibling
                    gap += 1
                words = range(gap, gap)
            taken.update(words)
            yield node, words, own

    def _best(self, node: Node, own: range, first: int, last: int, taken: set[int]) -> range:
        """The range of free words that has the most words of ``own`` and the fewest others."""
        values = [self._value(word, own) if word not in taken else float("-inf") for word in range(first, last)] if own else []
        if node.opening is None:
            start, end = 0, best_beginning(values)
        elif node.closing is None and not node.alone:
            start, end = len(values) - best_beginning(values[::-1]), len(values)
        else:
            start, end = best_range(values)
        return range(first + start, first + end)

    def _value(self, word: int, own: range) -> float:
        sources = self.sources[word]
        inside = sum(source in own for source in sources)
        return (2 * inside - len(sources)) / len(sources) if sources else 0.0

    def _near(self, node: Node, first: int, last: int) -> int:
        """The word of the translation that a tag without words of its own precedes."""
        if node.opening is None:
            return first
        if node.closing is None and not node.alone:
            return last
        before = [max(found) + 1 for (_, end), found in zip(self.own, self.targets) if end <= node.start and found]
        after = [min(found) for (start, _), found in zip(self.own, self.targets) if start >= node.end and found]
        nearest = [*after[:1], *before[-1:]] if self._joined(node)[1] else [*before[-1:], *after[:1]]
        return min(max([*nearest, first][0], first), last)

    def _joined(self, node: Node) -> tuple[bool, bool]:
        """Whether a tag follows a word without a space, and whether it precedes only the next one without a space."""
        before, after = self.text[: node.start][-1:], self.text[node.end :][:1]
        left = bool(before) and not before.isspace()
        return left, not left and bool(after) and not after.isspace()

    def _gap(self, node: Node, word: int, start: int, at: int, end: int) -> tuple[int, str, str]:
        """Where to write a tag without words before a word of the translation, from ``at`` on, and the spaces around it.

        It is inside an element, or the sentence, from ``start`` to ``end``.
        """
        words = self.words
        left, right = self._joined(node)
        if node.start < node.end:  # text, such as code, between words
            place = min(max(at, words[word - 1][1] if word else 0), end)
            between = self.translation[place - 1 : place].isalnum(), self.translation[place : place + 1].isalnum()
            return place, " " * (between[0] and place > start), " " * (between[1] and start < end)
        if right and word < len(words) and at <= words[word][0] <= end:
            return words[word][0], "", ""
        place = words[word - 1][1] if word and at <= words[word - 1][1] <= end else at
        spaced = not left and (node.alone or (node.opening is not None and node.closing is not None))
        return place, " " * (spaced and place > start), " " * (spaced and place == start < end)


def best_beginning(values: Sequence[float]) -> int:
    """How many of the first values have the largest sum, without passing any that is taken; at least one unless that is."""
    sums = [total for total in accumulate(values) if total > float("-inf")]
    return max(range(len(sums)), key=sums.__getitem__) + 1 if sums else 0


def best_range(values: Sequence[float]) -> tuple[int, int]:
    """The shortest range with the largest sum; empty unless that is positive (Kadane's algorithm)."""
    best, found, total, start = 0.0, (0, 0), 0.0, 0
    for index, value in enumerate(values):
        if total <= 0:
            total, start = 0.0, index
        total += value
        if total > best:
            best, found = total, (start, index + 1)
    return found
