#!/usr/bin/env python3
"""Drafters without weights beside `ar` and, where a model has one, its own drafter: tokens a pass and speed at batch size 1.

Systems take turns, ten sentences each; a sentence's time is the median of the rounds. Drafters that learn begin anew in each
round. Drafter
`previous` has three sorts of hints: ``live``, the model's own translation of the sentence without its last two words; ``again``,
its translation of the whole sentence; and ``reference``, a human one.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

from specdec_plugins.decoding import drafters
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator, facts_of

TURN = 10  # sentences: with fewer, a system's weights have left the caches when its turn comes
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
        self.seconds: list[list[float]] = []  # by round, of each sentence

    def begin(self) -> None:
        """A new round."""
        translator, settings = self.translator, self.settings
        translator.take_stats()
        if settings.draft_with:
            drafter = drafters.without_weights(self.drafter, facts_of(self.pair, settings.datastore))
            translator.roles = translator.roles._replace(drafter=drafter)
        self.session = translator.session(1)
        self.seconds.append([])

    def decode(self, source: list[int], hint: Sequence[int] = ()) -> list[int]:
        began = time.perf_counter()
        outputs = list(self.session.run([self.translator.request(0, source, hint=hint)]))
        self.seconds[-1].append(time.perf_counter() - began)
        return outputs[0].tokens

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(map(statistics.median, zip(*self.seconds)))


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
    plain.begin()
    shorter = plain.translator.encode([" ".join(line.split()[:-2]) or line for line in lines])
    expected = [plain.decode(source) for source in sources]
    hints = {
        "live": [plain.decode(source) for source in shorter],
        "again": expected,
        "reference": plain.translator.encode_target(references),
    }
    for _ in range(options.rounds):
        for system in systems:
            system.begin()
        for start in range(0, len(sources), TURN):
            for system in systems:
                for index in range(start, min(start + TURN, len(sources))):
                    hint = hints[system.hint][index] if system.hint else ()
                    if system.decode(sources[index], hint) != expected[index]:
                        raise SystemExit(f"{system.name}: another output than ar's for line {index + 1}")
    print(f"block size {options.block_size}, {options.dtype}, {len(sources)} sentences\n")
    print("| drafter | tokens a pass | drafted a pass | accepted | drafting, us a pass | times `ar` |\n" + "| --- " * 6 + "|")
    for system in systems:
        stats = system.translator.stats
        drafting = 1e6 * stats.seconds["drafting"] / stats.passes
        drafted = f"{stats.mean_accepted_length:.2f} | {stats.drafted / stats.passes:.1f} | {stats.acceptance_rate:.0%}"
        print(f"| {system.name} | {drafted} | {drafting:.0f} | {systems[0].total / system.total:.2f} |")


if __name__ == "__main__":
    main()
