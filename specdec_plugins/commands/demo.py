"""``make demo``: translate a few sentences by three strategies, show the translations, and compare."""

import argparse
import statistics
import sys
from pathlib import Path

ROUNDS = 5
BETA, TAU = 2, 0.3


def main(argv: list[str] | None = None) -> int:
    root = Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(prog="python -m specdec_plugins.commands.demo", description=__doc__.replace("``", ""))
    parser.add_argument("--model", default=root / "data" / "demo.en-de", type=Path, metavar="DIR", help="model folder")
    parser.add_argument("--input", default=root / "data" / "demo.txt", type=Path, metavar="FILE", help="sentences")
    parser.add_argument("--batch-size", default=1, type=int, metavar="N")
    options = parser.parse_args(argv)
    try:
        run(options)
    except (ValueError, OSError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.text.lines import read_lines
    from specdec_plugins.translator import Translator

    lines, pair = list(read_lines(options.input)), load_folder(options.model)
    translators = {
        "ar: one token a pass": Translator(pair, Settings(strategy="ar")),
        "specdec, exact": Translator(pair, Settings(strategy="specdec")),
        f"specdec, beta {BETA}, tau {TAU}": Translator(pair, Settings(strategy="specdec", beta=BETA, tau=TAU)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in translators}
    results = {}
    for _ in range(1 + ROUNDS):  # interleaved, so that a machine whose speed drifts is fair to all
        for name, translator in translators.items():
            before = sum(translator.stats.seconds.values()) - translator.stats.seconds["text"]
            results[name] = translator.translate(lines, batch_size=options.batch_size)
            seconds[name].append(sum(translator.stats.seconds.values()) - translator.stats.seconds["text"] - before)

    plain, exact, tolerant = results.values()
    for number, line in enumerate(lines):
        expected = plain[number]
        print(f"source    {line}")
        print(f"ar        {expected.text}  ({expected.iterations} passes)")
        for name, found in (("exact", exact[number]), ("tolerant", tolerant[number])):
            text = "the same" if found.tokens == expected.tokens else found.text
            print(f"{name:9} {text}  ({found.iterations} passes)")
        print()
    print(f"{len(lines)} sentences, batch size {options.batch_size}, without text processing; median of {ROUNDS} rounds:\n")
    base = statistics.median(next(iter(seconds.values()))[1:])
    for name, times in seconds.items():
        median, stats = statistics.median(times[1:]), translators[name].stats
        same = sum(found.tokens == expected.tokens for found, expected in zip(results[name], plain))
        print(
            f"  {name:24} {median * 1000:6.0f} ms {base / median:6.2f} x {stats.mean_accepted_length:6.2f} tokens a verifier pass"
            f"  {same} of {len(lines)} as ar"
        )


if __name__ == "__main__":
    sys.exit(main())
