"""The command ``specdec-datastore``: target-language text as a datastore for the drafter ``retrieval``."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TypeVar

from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import Parser, add_languages, command, same_file
from specdec_plugins.fields import Fault
from specdec_plugins.formats.errors import printable
from specdec_plugins.text.lines import read_lines

Line = TypeVar("Line")


def parser() -> Parser:
    p = Parser(
        prog="specdec-datastore",
        description="Make a datastore from text in the target language, for specdec-translate --draft-with retrieval.",
    )
    add = p.add_argument
    add("--model", required=True, metavar="DIR", help="model folder; the text is in its target language")
    add("--output", required=True, metavar="FILE", help="the datastore")
    add(
        "--source",
        action="append",
        metavar="FILE",
        help="the sources of TEXT, line by line: the drafter then prefers translations of similar sources; once per "
        "TEXT, in the same order",
    )
    add_languages(add, "of the sources, for multilingual models", "of TEXT")
    add("text", nargs="+", metavar="TEXT", help="UTF-8 text, one sentence per line, .gz allowed")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    sources, texts = len(options.source or ()), len(options.text)
    if sources not in (0, texts):
        yield "source", f"is given {sources} times for {texts} texts"
    if any(same_file(options.output, path) for path in (*options.text, *(options.source or ()))):
        yield "output", f"{options.output} is also an input"


def run(options: argparse.Namespace) -> None:
    ready.readable(*options.text, *(options.source or ()))
    ready.writable(options.output, parents=True)
    options.model = ready.model(options.model)
    from specdec_plugins.decoding.datastore import Datastore
    from specdec_plugins.formats.folder import load_folder

    pair = load_folder(options.model)
    codec, eos = pair.codec, pair.verifier.spec.symbols.eos
    with bar(unit=" lines") as shown:

        def counted(lines: Iterable[Line]) -> Iterator[Line]:
            for line in lines:
                shown.update()
                yield line

        if options.source:
            lines = counted(line for paths in zip(options.source, options.text) for line in aligned(*paths))
            languages = options.source_lang, options.target_lang
            pairs = ((codec.encode(source, *languages).text, codec.encode_target(line)) for source, line in lines if line.strip())
            store = Datastore.of_pairs(pairs, eos, len(pair.source))
        else:
            texts = counted(line for path in options.text for line in read_lines(path))
            store = Datastore.of((codec.encode_target(line) for line in texts if line.strip()), eos)
    store.save(options.output, pair.target.fingerprint(), pair.source.fingerprint())
    memory = f", of {len(store.memory.totals):,} sentences with sources" if store.memory else ""
    print(f"{printable(options.output)}: {len(store):,} tokens{memory}")


def aligned(source: str, text: str) -> Iterator[tuple[str, str]]:
    """The lines of two files in parallel. Raises ValueError if one is longer."""
    for number, (one, other) in enumerate(zip_longest(read_lines(source), read_lines(text))):
        if one is None or other is None:
            shorter, longer = (source, text) if one is None else (text, source)
            raise ValueError(f"{shorter} has only {number:,} lines, and {longer} has more")
        yield one, other


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
