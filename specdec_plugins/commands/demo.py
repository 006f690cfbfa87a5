"""``make demo``: translate a few sentences with each shipped pair by three strategies, and compare them."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import Parser, command, out_of_range, whole
from specdec_plugins.fields import Fault
from specdec_plugins.measure.hashes import DATA, SHIPPED, comparison

if TYPE_CHECKING:
    from specdec_plugins.translator import Translation, Translator

ROUNDS = 5
BETA, TAU = 2, 0.3


def parser() -> Parser:
    p = Parser(prog="python -m specdec_plugins.commands.demo", description=(__doc__ or "").replace("``", ""))
    add = p.add_argument
    add("--model", type=Path, metavar="DIR", help="another model folder")
    add("--input", type=Path, metavar="FILE", help="sentences for it")
    add("--batch-size", default=1, type=whole, metavar="N")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    yield from out_of_range(options, "batch_size")
    if not options.model and not DATA.is_dir():
        yield "model", "and --input are missing; only a checkout has the demo's models"
    elif bool(options.model) != bool(options.input):
        yield "model" if options.input else "input", "is missing; --model and --input require each other"


def run(options: argparse.Namespace) -> None:
    if options.model:
        ready.model(options.model)
        ready.readable(options.input)
        return show(options.model, options.input, options.batch_size)
    for number, (model, text) in enumerate(SHIPPED.items()):
        print("\n" * bool(number) + f"== data/{model}, data/{text}\n")
        show(DATA / model, DATA / text, options.batch_size)


def show(model: Path, text: Path, batch_size: int) -> None:
    """Print the translations of a text and a comparison of the strategies."""
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.text.lines import read_lines
    from specdec_plugins.translator import Translator

    lines, pair = list(read_lines(text)), load_folder(model)
    translators = {
        "ar: one token per pass": Translator(pair, Settings(strategy="ar")),
        **{
            "specdec, exact" + f", {each.code}" * (number > 0): Translator(pair.drafting(each), Settings(strategy="specdec"))
            for number, each in enumerate(pair.drafters)
        },
    }
    if pair.drafters:
        tolerant = Settings(beta=BETA, tau=TAU, block_size="auto")
        translators[f"specdec, beta {BETA}, tau {TAU}"] = Translator(pair, tolerant)
    seconds: dict[str, list[float]] = {name: [] for name in translators}
    results: dict[str, list[Translation]] = {}
    for _ in range(1 + ROUNDS):  # interleaved, so that drifts in the machine's speed affect all
        for name, translator in translators.items():
            before = decoding_seconds(translator)
            results[name] = translator.translate(lines, batch_size=batch_size)
            seconds[name].append(decoding_seconds(translator) - before)

    shown = list(results.values())
    for line, plain, *others in zip(lines, *shown[:2], *shown[2:][-1:]):
        print(f"source    {line}\nar        {plain.text}  ({passes(plain)})")
        for name, found in zip(("exact", "tolerant"), others):
            print(f"{name:9} {'the same' if found.tokens == plain.tokens else found.text}  ({passes(found)})")
        print()
    print(f"{len(lines)} sentences, batch size {batch_size}, without text processing; median of {ROUNDS} rounds:\n")
    print(table(translators, results, seconds))
    if not pair.drafters:
        print(f"\n{pair.name} has no drafter to compare with: docs/train.md trains one")
    if SHIPPED.get(model.name) == text.name and model.parent == DATA:
        print("\n" + comparison(model.name, pair, lines))


def passes(result: "Translation") -> str:
    return f"{result.iterations} pass{'es' * (result.iterations != 1)}"


def decoding_seconds(translator: "Translator") -> float:
    """Decoding time so far, without text processing."""
    return sum(translator.stats.seconds.values()) - translator.stats.seconds["text"]


def table(translators: dict[str, "Translator"], results: dict[str, list["Translation"]], seconds: dict[str, list[float]]) -> str:
    """A table of the strategies relative to the first one. The first round is warm-up."""
    from tabulate import tabulate

    medians = {name: median(times[1:]) for name, times in seconds.items()}
    plain, base = next(iter(results.values())), next(iter(medians.values()))
    rows = []
    for name, middle in medians.items():
        same = sum(found.tokens == expected.tokens for found, expected in zip(results[name], plain))
        length = translators[name].stats.mean_accepted_length
        rows.append(
            [
                f"  {name}",
                f"{middle * 1000:.0f} ms",
                f"{base / middle:.2f} x",
                f"{length:.2f} tokens per verifier pass",
                f"{same} of {len(plain)} as ar",
            ]
        )
    return tabulate(rows, tablefmt="plain", disable_numparse=True, preserve_whitespace=True, colalign=("left", *["right"] * 4))


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
