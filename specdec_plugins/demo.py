"""``make demo``: translate a few sentences by three strategies, show the translations, and compare."""

import argparse
import statistics
import sys
from pathlib import Path

ROUNDS = 5
TOLERANT = {"beta": 3, "tau": 1.0}


def main(argv: list[str] | None = None) -> int:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(prog="python -m specdec_plugins.demo", description=__doc__.replace("``", ""))
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
    from specdec_plugins.model_folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.text import read_lines
    from specdec_plugins.translator import Translator

    lines, pair = list(read_lines(options.input)), load_folder(options.model)
    translators = {
        "ar: one token a pass": Translator(pair, Settings(strategy="ar")),
        "specdec, exact": Translator(pair, Settings(strategy="specdec")),
        "specdec, beta {beta}, tau {tau}".format(**TOLERANT): Translator(pair, Settings(strategy="specdec", **TOLERANT)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in translators}
    results = {}
    for _ in range(1 + ROUNDS):  # interleaved, so that a machine whose speed drifts is fair to all
        for name, translator in translators.items():
            before = sum(translator.stats.seconds.values()) - translator.stats.seconds["text"]
            results[name] = translator.translate(lines, batch_size=options.batch_size)
            seconds[name].append(sum(translator.stats.seconds.values()) - translator.stats.seconds["text"] - before)

    plain, exact, tolerant = results.values()
    for line, one, other, loose in zip(lines, plain, exact, tolerant):
        print(f"source    {line}\nar        {one.text}  ({one.iterations} passes)")
        print(f"exact     {'the same' if other.tokens == one.tokens else other.text}  ({other.iterations} passes)")
        print(f"tolerant  {'the same' if loose.tokens == one.tokens else loose.text}  ({loose.iterations} passes)\n")
    print(
        f"{len(lines)} sentences, batch size {options.batch_size}, median of {ROUNDS} rounds after a warm-up, without text processing:\n"
    )
    base = statistics.median(next(iter(seconds.values()))[1:])
    for name, times in seconds.items():
        median, stats = statistics.median(times[1:]), translators[name].stats
        same = sum(found.tokens == expected.tokens for found, expected in zip(results[name], plain))
        print(
            f"  {name:30} {median * 1000:6.0f} ms {base / median:5.2f} x {stats.mean_accepted_length:6.2f} tokens a verifier pass, "
            f"{same} of {len(lines)} identical to ar"
        )


if __name__ == "__main__":
    sys.exit(main())
