"""The command ``specdec-draft``: a drafter for a model, trained on source text alone; an estimate of what one would bring; or the
card of one that is trained."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from specdec_plugins.commands import ready
from specdec_plugins.commands.card import ON_CARDS, rewrite
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import Parser, add_languages, command, number, out_of_range, same_file, whole
from specdec_plugins.extras import needed
from specdec_plugins.fields import Fault
from specdec_plugins.formats import hub
from specdec_plugins.formats.drafter_folder import LICENCE, MAX_TEXT
from specdec_plugins.formats.errors import brief, printable

MOST_MINUTES = 100_000.0


def parser() -> Parser:
    p = Parser(
        prog="specdec-draft",
        description="Train a drafter for a model from source text. Write a copy of the model with it, and the drafter alone with "
        "a model card. The same command resumes an interrupted run.",
    )
    add = p.add_argument
    add("--help-all", action="store_true", help="show all options and exit")
    add(
        "model",
        metavar="MODEL",
        help="model folder, Hugging Face folder, or ORG/NAME of its Hub; with --card, a folder that this command made",
    )
    add("--sources", metavar="TEXT", help="source text, one sentence per line, as you translate it; .gz allowed")
    add("--output", metavar="FOLDER", help="the folder to make")
    add(
        "--minutes",
        type=number,
        default=20.0,
        metavar="M",
        help="most time for translating the text and training (default: 20)",
    )
    add("--estimate", action="store_true", help="only predict, in a minute, what a drafter would gain on this machine")
    add("--card", action="store_true", help="only rewrite the model card (README.md) of a trained drafter")
    add("--licence", metavar="ID", help="the drafter's licence, for its card, as the Hub names it: cc-by-4.0, mit, ...")
    add(
        "--data",
        metavar="WHAT",
        help="what the text is, for the card: words, or ORG/NAME of a data set of the Hub (default: the file's name)",
    )
    add("--name", metavar="ORG/NAME", help="the drafter's name on the Hub, for the card")
    add(
        "--recipe",
        default="glide",
        metavar="NAME",
        help="the drafter: glide (default), block_causal, published, another of docs/drafters.md, or module:object",
    )
    add("--drafter-options", nargs="+", default=[], metavar="NAME=VALUE", help="options of the drafter, such as layers=1")
    add_languages(add, "of the text, for multilingual models", "of the translations, for multilingual models")
    add(
        "--too-long",
        choices=("error", "skip"),
        default="error",
        help="lines longer than the model reads: stop with their numbers (default), or leave them out",
    )
    add("--threads", type=whole, metavar="N", help="CPU threads (default: one per usable core)")
    add("--updates", type=whole, metavar="N", help="make N updates, whatever time they take")
    add(
        "--precision",
        choices=("auto", "float32", "bf16"),
        default="auto",
        help="of matrix products in training (default: the faster one)",
    )
    add("--seed", type=whole, default=1, metavar="S", help="random seed (default: 1)")
    p.rare = {"updates", "precision", "seed", "drafter_options", "data", "name"}
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    yield from out_of_range(options, "threads", "updates")
    if not 0 < options.minutes <= MOST_MINUTES:
        yield "minutes", f"{options.minutes:g} is not a time up to {MOST_MINUTES:,.0f}"
    if not 0 <= options.seed < 2**63:
        yield "seed", f"{options.seed} is not from 0 to 2^63 - 1"
    if options.licence is not None and not LICENCE.fullmatch(options.licence):
        yield "licence", f"{brief(options.licence, 80)} is not an identifier such as cc-by-4.0 or mit"
    if options.name is not None and (not hub.NAME.fullmatch(options.name) or "@" in options.name):
        yield "name", f"{brief(options.name, 80)} is not ORG/NAME"
    if options.data is not None and (len(options.data) > MAX_TEXT or printable(options.data) != options.data):
        yield "data", f"is not one line of at most {MAX_TEXT} characters"
    if options.card:
        usual, own = parser(), ("model", "card", *ON_CARDS)
        for name, value in vars(options).items():
            if name not in own and value != usual.get_default(name):
                yield name, "cannot be combined with --card"
    elif not options.estimate:
        yield from ((name, "is missing") for name in ("sources", "output") if getattr(options, name) is None)
        if same_file(options.model, options.output):
            yield "output", f"{options.output} is the model's own folder"


def run(options: argparse.Namespace) -> None:
    """Train, estimate or write a card. Raises ValueError, OSError or ImportError."""
    if options.card:
        return print(f"{printable(rewrite(options))}: written")
    ready.readable(options.sources)
    output = options.output and Path(options.output)
    if output and output.exists() and not (output / "training").is_dir():
        ready.new_folder(output)  # refuses it
    ready.writable_folder(output)
    given, options.model = options.model, ready.model(options.model)
    options.named = hub.short(given) if os.path.exists(given) else hub.pinned(given, options.model)
    # Read when torch loads. Threads that wait for each other would spin, which beside other programs costs them their turns: two
    # threads on two cores under a load of 6 made an update in 9.3 seconds, with this in 1.8.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from specdec_plugins.formats.folder import load_folder

    with needed("torch", "training a drafter"):
        from specdec_plugins.training.drafting import Plan

    Plan.of(options.recipe, options.drafter_options, sys.maxsize)  # raises for what no model allows
    pair = load_folder(options.model)
    Plan.of(options.recipe, options.drafter_options, pair.verifier.spec.decoder.layers).check(pair.verifier.spec)
    if options.estimate:
        from specdec_plugins.commands.estimating import estimate

        return print(estimate(options, pair))
    from specdec_plugins.commands.drafting import Work

    with Steps(1.0) as steps:
        Work(options, pair, steps).run()
    print(f"{printable(options.output)}: the model with its drafter, for --model")
    print(f"{printable(output / 'drafter')}: the drafter alone, for --drafter and to share")


main = command(parser, run, check, resumption=": run the same command to resume")

if __name__ == "__main__":
    sys.exit(main())
