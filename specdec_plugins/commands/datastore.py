"""The command ``specdec-datastore``: text in the target language as a datastore, from which a drafter takes drafts."""

import argparse
import sys
from collections.abc import Iterable, Iterator

from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import run_command
from specdec_plugins.text.lines import read_lines


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-datastore",
        description="Make a datastore of text in the target language, for specdec-translate --draft-with retrieval.",
    )
    p.add_argument("--model", required=True, metavar="DIR", help="model folder, of whose target language the text is")
    p.add_argument("--output", required=True, metavar="FILE", help="where the datastore goes")
    p.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text, a sentence a line, .gz allowed")
    return p


def main(argv: list[str] | None = None) -> int:
    return run_command(parser(), argv, run)


def run(options: argparse.Namespace) -> None:
    from specdec_plugins.decoding.datastore import Datastore
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.translator import target_encoder

    pair = load_folder(options.model)
    encode = target_encoder(pair)
    with bar(unit=" lines") as shown:

        def counted(lines: Iterable[str]) -> Iterator[str]:
            for line in lines:
                shown.update()
                yield line

        sentences = (encode(line) for path in options.text for line in counted(read_lines(path)) if line.strip())
        store = Datastore.of(sentences, pair.verifier.spec.symbols.eos)
    store.save(options.output, pair.target.fingerprint())
    print(f"{options.output}: {len(store):,} tokens")


if __name__ == "__main__":
    sys.exit(main())
