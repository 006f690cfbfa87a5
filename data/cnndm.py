"""Prepare CNN/DailyMail: news articles (``source``) and the bullet points above them (``target``), one pair per line.

The text is that of BART's experiments, cased and untokenised: 287,113 training, 13,368 validation and 11,490 test pairs (See et
al. 2017, arXiv 1704.04368). Subwords are byte-level BPE, learned here or, with ``--bart``, GPT-2's as in BART. ``--bart`` also
puts BART's weights and dictionary into the data set's folder ``bart.base``, for a verifier to start from. No pair is dropped for
its length; models truncate articles at their number of positions.
"""

import argparse
import shutil
import sys
from pathlib import Path

import corpora

from specdec_plugins.commands.preparation import steps
from specdec_plugins.text.tokenizers import BYTE_LEVEL

SOURCE, TARGET = "source", "target"
URL = "https://cdn-datasets.huggingface.co/summarization/cnn_dm_v2.tgz"
OPTIONS = ("--tokenizer", BYTE_LEVEL, "--max-length", "0", "--max-ratio", "0")
BART = "bart.base"
WEIGHTS = "https://dl.fbaipublicfiles.com/fairseq/models/bart.base.tar.gz"
MERGES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # as in tiktoken


def corpus() -> corpora.Corpus:
    """The three splits, from one archive or plain files."""
    names = {"train": ["train"], "valid": ["val", "valid"], "test": ["test"]}
    texts = {
        split: [corpora.Text(tuple(f"{name}.{{lang}}{gz}" for name in known for gz in ("", ".gz")), URL)]
        for split, known in names.items()
    }
    return corpora.Corpus((SOURCE, TARGET), texts, OPTIONS)


def gather_bart(local: Path | None, downloads: Path, folder: Path) -> None:
    """Fill a new folder with BART's weights (``model.pt``), dictionary (``dict.txt``) and merges (``vocab.bpe``).

    Raises ValueError naming what is missing.
    """
    if local is None:
        corpora.download(WEIGHTS, downloads / f"{BART}.tar.gz")
        corpora.download(MERGES, downloads / "vocab.bpe", f"sha256:{MERGES_SHA256}")
    unfinished = folder.with_name(f".{BART}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        for name in (f"{BART}/model.pt", f"{BART}/dict.txt", "vocab.bpe"):
            place, target = local or downloads, unfinished / Path(name).name
            if path := corpora.find(place, name):
                target.symlink_to(path.resolve())
            elif name != "vocab.bpe" and (archive := corpora.find(place, f"{BART}.tar.gz")):
                corpora.unpack(archive, [name], target)
            else:
                raise ValueError(f"{place} contains no {name}" + f" and no {BART}.tar.gz" * (name != "vocab.bpe"))
        steps.move(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "data/cnndm.py", description="Prepare CNN/DailyMail. Further options are those of specdec-prepare."
    )
    parser.add_argument(
        "--local",
        type=Path,
        metavar="DIR",
        help="use train, val and test .source and .target (.gz allowed), or the archive, from this folder",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=corpora.DATA / "prepared" / "cnndm",
        help="data set to write (default: data/prepared/cnndm)",
    )
    parser.add_argument(
        "--bart",
        action="store_true",
        help="include BART's weights, dictionary and subwords; --local must then "
        f"contain {BART}/model.pt and {BART}/dict.txt, or {BART}.tar.gz, and vocab.bpe",
    )
    options, more = parser.parse_known_args(argv)
    downloads, bart = corpora.DATA / "downloads" / "cnndm", options.output / BART

    def make() -> list[str]:
        prefixes = corpora.gather(corpus(), options.local, downloads, options.output / "text")
        if not options.bart:
            return [*OPTIONS, *corpora.split_options(prefixes), *more]
        gather_bart(options.local, downloads, bart)
        own = ["--codes", str(bart / "vocab.bpe"), "--dict", str(bart / "dict.txt")]
        return [*OPTIONS, *own, *corpora.split_options(prefixes), *more]

    return corpora.prepare_made(parser.prog, (SOURCE, TARGET), options.output, make)


if __name__ == "__main__":
    sys.exit(main())
