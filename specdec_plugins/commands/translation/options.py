"""Options of commands that translate lines."""

import argparse
from collections.abc import Callable
from dataclasses import fields

from specdec_plugins.commands.runner import Parser, add_languages, number, option_name, whole, whole_or_word
from specdec_plugins.fields import Option, option_of
from specdec_plugins.settings import UNTRAINED, Settings

COMMON = {
    *"""
    help help_all version files model input output resume format batch_size workers trace quiet
""".split()
}
COMMON |= {each.name for each in fields(Settings) if option_of(each).common}


def option_groups(p: Parser) -> dict[str, argparse._ArgumentGroup]:
    """The groups of options, which a command that translates lines fills with `add_options` and its own."""
    p.add_argument("--help-all", action="store_true", help="show all options and exit")
    names = ("model", "text", "decoding", "drafting", "sampling", "beam search", "limits", "documents", "machine", "report")
    return {name: p.add_argument_group("output lengths" if name == "limits" else name) for name in names}


def add_options(groups: dict[str, argparse._ArgumentGroup]) -> None:
    """The options that `Answerer` reads, of models, text, decoding and batches. `decoding_faults` checks them."""
    model, text, machine, report = (groups[name].add_argument for name in ("model", "text", "machine", "report"))
    model(
        "--model",
        metavar="DIR",
        help="model folder (see specdec-pack and specdec-import), Hugging Face folder, or ORG/NAME of its Hub",
    )
    model("--verifier", metavar="PT", help="without a folder: fairseq checkpoint of the autoregressive model")
    model(
        "--drafter",
        metavar="PT|DIR",
        help="with --model: the name of one of its drafters, a drafter's folder (see specdec-draft), ORG/NAME of the Hub, or a "
        "smaller model with the same vocabulary; else a fairseq checkpoint",
    )
    model("--data", metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    model("--codes", metavar="FILE", help="BPE codes; not needed with --tokenized")
    source = "source language, for multilingual models or without a folder: fra_Latn, fra or fr"
    add_languages(model, source, "target language, likewise")

    text("--tokenized", action="store_true", help="input and output are subwords, separated by spaces")
    text("--remove-bpe", action="store_true", help="join the output's subwords; with --tokenized or --format fairseq")
    text(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="unreadable files, lines that are too long or not text: stop, or report and skip them (default: stop)",
    )
    text(
        "--alignments",
        action="store_true",
        help="source-target word numbers, from 0: ' ||| 0-0 1-2' after a text, a field of json, A lines of fairseq",
    )
    text(
        "--protect",
        action=argparse.BooleanOptionalAction,
        help="keep placeholders, tags, URLs, paths, names and options of programs, and code unchanged, and numbers in any "
        "spelling (default: in files of other formats than lines)",
    )
    text("--protect-pattern", metavar="REGEX", help="--protect, also what this expression matches")
    text(
        "--glossary", metavar="FILE", help="terms to use, one per line: source, tab, target, optionally a tab and 'case' (exact)"
    )
    text("--word-scores", action="store_true", help="the mean score of each word's tokens; with --format json")
    text(
        "--too-long",
        choices=("error", "truncate", "skip"),
        default="error",
        help="what to do with sources longer than the model reads: stop, cut them, or write an empty line (default: error)",
    )
    for each in fields(Settings):
        if (how := option_of(each)).shown:
            add_option(groups[how.group], each.name, how, each.default)
    machine(
        "--batch-size",
        type=whole,
        metavar="N",
        help="sentences at a time (default: 32; 1 with --beta on a CPU; unlimited with --max-tokens)",
    )
    machine("--max-tokens", type=whole, metavar="N", help="source tokens at a time, padding included")
    machine("--buffer-size", type=whole, metavar="N", help="lines read ahead (default: 512; 1 from a terminal)")
    machine(
        "--workers",
        type=whole,
        default=1,
        metavar="N",
        help="processes that share the threads, or with --device cuda use one GPU each (default: 1)",
    )

    report("--quiet", action="store_true", help="no progress bar, no summary")


def add_option(group: argparse._ArgumentGroup, name: str, how: Option, default: object) -> None:
    """Add the option of a field of `Settings`; that class checks the value."""
    name_on_line = option_name(name)
    if how.kind is bool:
        group.add_argument(name_on_line, dest=name, action="store_true", help=how.help)
        return
    words = [word for word in how.words if word not in how.hidden]
    kinds: dict[type, Callable[[str], object]] = {int: whole_or_word if words else whole, float: number, str: str}
    letter = how.letter or "{" + ",".join(words) + "}"
    made = group.add_argument(name_on_line, dest=name, type=kinds[how.kind], default=default, metavar=letter, help=how.help)
    if words := list(UNTRAINED) if name == "draft_with" else words:
        made.completer = lambda **_: words  # type: ignore[attr-defined]  # argcomplete's
