"""The command ``specdec-import``: a Hugging Face folder into a model folder, with a certificate that compares their outputs."""

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import Parser, add_languages, command, print_sizes
from specdec_plugins.fields import Fault


def parser() -> Parser:
    p = Parser(
        prog="specdec-import",
        description="Make a model folder from a Hugging Face folder or a model of its Hub: Marian, M2M100, NLLB, BART, mBART, "
        "Pegasus, T5, mT5, UMT5, ByT5, MADLAD-400, T5Gemma or T5Gemma 2.",
    )
    add = p.add_argument
    add("folder", metavar="DIR", help="folder with config.json, weights and tokenizer files, as published, or ORG/NAME")
    add("--output", metavar="FOLDER", help="the folder to make")
    add("--half", action="store_true", help="store weights in float16: half the size, slightly different numbers")
    add("--prefix", metavar="TEXT", help="begins every source, such as 'summarize: '; stored in the folder")
    add(
        "--task",
        metavar="NAME",
        help="use the prefix and the settings that the config has for a task, such as summarization; stored in the folder",
    )
    add(
        "--check",
        nargs="?",
        const="",
        metavar="TEXT",
        help="compare with transformers, on this text or on a built-in one; with --output, the result is also written "
        "to certificate.json in it",
    )
    add_languages(add, "of the text to check (default: the model's)", "of its translation (default: the model's)")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    if options.output is None and options.check is None:
        yield "output", "is missing; give it, --check or both"
        return
    for name in ("prefix", "task"):
        if getattr(options, name) is not None and not options.output:
            yield name, "requires --output, whose folder keeps it"
    if options.task is not None and options.check is not None:
        yield "task", "cannot be combined with --check, which compares the settings of the whole model"


def run(options: argparse.Namespace) -> None:
    """Make the folder, check it, and print what was done. Raises ValueError, OSError or ImportError."""
    ready.new_folder(options.output)
    ready.readable(options.check or None)
    if options.check is not None:
        ready.pytorch("--check")
        if not find_spec("transformers"):
            raise ImportError("--check compares with transformers, which is not installed; run: pip install transformers")
    options.folder = ready.model(options.folder)
    from specdec_plugins.formats.folder import for_task, load_folder, save_folder, with_prefix

    if options.output:
        pair = load_folder(options.folder)
        pair = for_task(pair, Path(options.folder), options.task) if options.task is not None else pair
        pair = pair if options.prefix is None else with_prefix(pair, options.prefix)
        print_sizes(save_folder(pair, options.output, options.half), options.output)
        del pair
    if options.check is not None:
        from specdec_plugins.measure.certificate import certify
        from specdec_plugins.text.lines import read_lines

        lines = list(read_lines(options.check)) if options.check else None
        languages = options.source_lang, options.target_lang
        with Steps(1.0) as steps:
            certificate = certify(options.folder, options.output or options.folder, lines, *languages, steps.step)
        print(certificate)
        if options.output:
            certificate.save(options.output)


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
