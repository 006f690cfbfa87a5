#!/usr/bin/env python3
"""Drafters without weights beside `ar` and, where a model has one, its own drafter: tokens a pass and speed at batch size 1.

Systems take turns, a round each; speeds are medians of the rounds. Drafters that learn begin anew in each round. Drafter
`previous` has three sorts of hints: ``live``, the model's own translation of the sentence without its last two words; ``again``,
its translation of the whole sentence; and ``reference``, a human one.
"""

import argparse
import statistics
import time

from specdec_plugins.decoding import drafters
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator, facts_of

HINTS = ("live", "again", "reference")


class System:
    def __init__(self, name: str, pair, options: argparse.Namespace):
        self.name, self.pair, self.options = name, pair, options
        self.drafter, _, self.hint = name.partition(" ")
        how: dict = {"strategy": "ar"} if name == "ar" else {}
        if name != "ar":
            size = options.block_size
            how["block_size"] = size if size == "auto" else int(size)
        if name not in ("ar", "specdec"):
            how["draft_with"] = self.drafter
            how["datastore"] = options.datastore if self.drafter == "retrieval" else None
        self.settings = Settings(dtype=options.dtype, threads=1, **how)
        self.translator = Translator(pair, self.settings)
        self.seconds: list[float] = []

    def run(self, sources: list[list[int]], hints: dict[str, list[list[int]]]) -> list[list[int]]:
        """Decode the sources, one after the other; returns the outputs."""
        translator, settings = self.translator, self.settings
        translator.take_stats()
        if settings.draft_with:
            drafter = drafters.without_weights(self.drafter, facts_of(self.pair, settings.datastore))
            translator.roles = translator.roles._replace(drafter=drafter)
        given = hints.get(self.hint) or [[]] * len(sources)
        session, outputs, began = translator.session(1), [], time.perf_counter()
        for index, (source, hint) in enumerate(zip(sources, given)):
            outputs += [each.tokens for each in session.run([translator.request(index, source, hint=hint)])]
        self.seconds.append(time.perf_counter() - began)
        return outputs


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--input", required=True)
    p.add_argument("--reference", required=True)
    p.add_argument("--datastore", help="of text that does not have the reference")
    p.add_argument("--sentences", type=int, default=100)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--block-size", default="4", help="a number or auto")
    p.add_argument("--dtype", default="int8")
    p.add_argument("--systems", nargs="+")
    options = p.parse_args()
    pair = load_folder(options.model)
    names = ["ar", *["specdec"] * (pair.drafter is not None), "ngram", "recycling", "jacobi"]
    names += ["retrieval"] * bool(options.datastore) + [f"previous {hint}" for hint in HINTS]
    systems = [System(name, pair, options) for name in options.systems or names]
    plain = System("ar", pair, options)
    lines, references = (list(read_lines(path))[: options.sentences] for path in (options.input, options.reference))
    sources = plain.translator.encode(lines)
    hints = {
        "live": plain.run(plain.translator.encode([" ".join(line.split()[:-2]) or line for line in lines]), {}),
        "again": plain.run(sources, {}),
        "reference": plain.translator.encode_target(references),
    }
    expected = hints["again"]
    for _ in range(options.rounds):
        for system in systems:
            if system.run(sources, hints) != expected:
                raise SystemExit(f"{system.name}: another output than ar's")
    print(f"block size {options.block_size}, {options.dtype}, {len(sources)} sentences\n")
    print("| drafter | tokens a pass | drafted a pass | accepted | drafting, us a pass | times `ar` |\n" + "| --- " * 6 + "|")
    for system in systems:
        stats = system.translator.stats
        ratio = statistics.median(first / own for first, own in zip(systems[0].seconds, system.seconds))
        drafting = 1e6 * stats.seconds["drafting"] / stats.passes
        drafted = f"{stats.mean_accepted_length:.2f} | {stats.drafted / stats.passes:.1f} | {stats.acceptance_rate:.0%}"
        print(f"| {system.name} | {drafted} | {drafting:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
