"""Alignment error rate of a model folder's word alignments on hand-made ones (data/alignments.*.tsv).

    python benchmarks/alignments.py data/demo.en-de data/alignments.en-de.tsv

The reference translations are read as if the model had written them. Every other line serves to choose layer and heads
(``--choose``), the others are reported. ``--others FILE``: another aligner's links in Moses's format, one line for each.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np

from specdec_plugins import Translator
from specdec_plugins.decoding.alignment import Aligner
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.model.spec import Heads
from specdec_plugins.text.alignment import Alignment, link

Links = set[tuple[int, int]]


def numbers(link: str) -> tuple[int, int]:
    source, target = link.split("-")
    return int(source), int(target)


class Gold:
    """Pairs of sentences, words between spaces, with sure and possible links."""

    def __init__(self, path: str):
        self.source, self.target, self.sure, self.possible = list[str](), list[str](), list[Links](), list[Links]()
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            source, target, links = line.split("\t")
            self.source.append(source)
            self.target.append(target)
            self.possible.append({numbers(each) for each in links.replace("?", "-").split()})
            self.sure.append({numbers(each) for each in links.split() if "?" not in each})

    def error(self, found: Callable[[int], Links], numbers: Iterable[int]) -> tuple[float, float, float]:
        """Alignment error rate (Och and Ney 2003), precision and recall of the links of these lines."""
        right = sure = all_found = all_sure = 0
        for n in numbers:
            links = found(n)
            right, sure = right + len(links & self.possible[n]), sure + len(links & self.sure[n])
            all_found, all_sure = all_found + len(links), all_sure + len(self.sure[n])
        return 1 - (right + sure) / (all_found + all_sure), right / max(1, all_found), sure / all_sure


class Reader:
    """Reads the pairs once for each layer, head and step."""

    def __init__(self, translator: Translator, gold: Gold):
        self.translator, self.gold = translator, gold
        codec = translator.codec
        self.encoded = [codec.encode(line) for line in gold.source]
        self.outputs = [codec.encode_target(line) for line in gold.target]
        self.spans = [codec.spans(line, ids) for line, ids in zip(gold.target, self.outputs)]
        self.known: dict[Heads, list[np.ndarray]] = {}

    def weights(self, heads: Heads) -> list[np.ndarray]:
        if heads not in self.known:
            verifier, symbols = self.translator.engine.roles.verifier, self.translator.pair.verifier.spec.symbols
            assert isinstance(verifier, ModelVerifier)
            self.known[heads] = Aligner(verifier.model, heads, symbols)([each.ids for each in self.encoded], self.outputs)
        return self.known[heads]

    def alignments(self, heads: Heads) -> Callable[[int], Alignment]:
        single = [self.weights(Heads(heads.layer, (head,), heads.reading)) for head in heads.heads]

        def of(n: int) -> Alignment:
            weights = np.sum([each[n] for each in single], 0)
            return link(weights, self.encoded[n].offsets, self.gold.source[n], self.spans[n], self.gold.target[n])

        return of

    def links(self, heads: Heads) -> Callable[[int], Links]:
        of = self.alignments(heads)
        return lambda n: {*of(n).numbers(self.gold.source[n], self.gold.target[n])}


def read(path: str) -> Callable[[int], Links]:
    """Another aligner's links."""
    links = [{*map(numbers, line.split())} for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return lambda n: links[n]


def choices(layers: int, heads: int) -> Iterable[Heads]:
    subsets = [each for size in range(1, heads + 1) for each in combinations(range(heads), size)] if heads <= 8 else []
    subsets = subsets or [(head,) for head in range(heads)] + [tuple(range(heads))]
    return (Heads(*each) for each in product(range(layers), subsets, (True, False)))


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("gold")
    p.add_argument("--choose", action="store_true", help="print the best heads on the lines for choosing")
    p.add_argument("--others", nargs="*", default=[], metavar="FILE", help="another aligner's links")
    options = p.parse_args(argv)
    translator, gold = Translator.from_pretrained(options.model, strategy="ar", threads=1), Gold(options.gold)
    decoder, reader, lines = translator.pair.verifier.spec.decoder, Reader(translator, gold), range(len(gold.source))
    if options.choose:
        scored = [
            (gold.error(reader.links(heads), lines[::2]), heads) for heads in choices(decoder.layers, decoder.attention.heads)
        ]
        for (error, precision, recall), heads in sorted(scored, key=lambda each: each[0])[:10]:
            print(f"{error:.3f} {precision:.3f} {recall:.3f}  {heads}")
    rows: list[tuple[str, Callable[[int], Links]]] = [("all heads of the last layer but one", reader.links(Heads.usual(decoder)))]
    rows += [("the folder's heads", reader.links(translator.pair.alignment))] if translator.pair.alignment else []
    for path in options.others:
        rows.append((path, read(path)))
    print(f"{len(lines[1::2])} lines: error rate, precision, recall")
    for name, links in rows:
        print("{:.3f} {:.3f} {:.3f}  ".format(*gold.error(links, lines[1::2])) + name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
