"""Download a named corpus, or find it in a folder, and prepare it; data/multi30k.sh and its siblings run this.

A corpus is a table entry: its texts, their URLs, and options for specdec-prepare. Downloads go to data/downloads/NAME, where
SHA256SUMS records checksums that later downloads must match. The data set goes to data/prepared/NAME; its folder source/ holds
the original text, linked or unpacked.
"""

import argparse
import http.client
import re
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specdec_plugins.commands import prepare
from specdec_plugins.commands.preparation import steps
from specdec_plugins.formats.errors import printable

DATA = Path(__file__).resolve().parent
MASK_PREDICT = ".mask-predict"  # suffix of variants' names


@dataclass(frozen=True)
class Text:
    """A pair of parallel files.

    `names` are the names they may have in a folder or archive; ``{lang}`` stands for the language. `url` is the archive that
    contains them or, if it has a ``{lang}``, each plain file. `checksum` is the archive's published checksum, as ``md5:...`` or
    ``sha256:...``. `file` is the name of the download, if the URL does not end in it.
    """

    names: tuple[str, ...]
    url: str
    checksum: str | None = None
    file: str | None = None

    def file_name(self, lang: str) -> str:
        """The name of the archive, or of the plain file of one language."""
        return self.file or self.url.format(lang=lang).rpartition("/")[2]


@dataclass(frozen=True)
class Corpus:
    """A language pair, or one language to make pairs from; texts by split (several for ``train``); options of specdec-prepare."""

    langs: tuple[str, ...]
    texts: dict[str, list[Text]]
    options: tuple[str, ...]


def multi30k() -> Corpus:
    """Image captions, task 1."""
    url = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
    names = {"train": ["train"], "valid": ["val", "valid"], "test": ["test_2016_flickr", "test2016"]}
    texts = {
        split: [Text(tuple(f"{name}.{{lang}}{gz}" for name in known for gz in ("", ".gz")), f"{url}{known[0]}.{{lang}}.gz")]
        for split, known in names.items()
    }
    # Captions are short, so that sound pairs often differ in length by more than half. 2.5 drops only broken ones.
    return Corpus(("en", "de"), texts, ("--bpe-operations", "8000", "--max-ratio", "2.5"))


def published_test(name: str, dataset: str, pair: str) -> Text:
    """A WMT test set, as plain text files called `name` or in sacreBLEU's archive."""
    from sacrebleu.dataset import DATASETS

    entry = DATASETS[dataset]
    sgm = [path.rpartition("/")[2] for path in entry.langpairs[pair]]
    assert entry.data and entry.md5, f"sacreBLEU knows no {dataset}"
    return Text((f"{name}.{{lang}}", *sgm), entry.data[0], f"md5:{entry.md5[0]}")


def wmt14_en_de() -> Corpus:
    """WMT14's training data, newstest2013 for validation, all 3,003 sentences of newstest2014 for testing."""
    train = {  # the checksums are those of TensorFlow Datasets
        "europarl-v7": (
            "wmt13/training-parallel-europarl-v7",
            "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        ),
        "commoncrawl": (
            "wmt13/training-parallel-commoncrawl",
            "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        ),
        "news-commentary-v9": (
            "wmt14/training-parallel-nc-v9",
            "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        ),
    }
    texts = {
        "train": [
            Text((f"{name}.de-en.{{lang}}",), f"https://www.statmt.org/{path}.tgz", f"sha256:{sha256}")
            for name, (path, sha256) in train.items()
        ],
        "valid": [published_test("newstest2013", "wmt13", "en-de")],
        "test": [published_test("newstest2014", "wmt14/full", "en-de")],
    }
    return Corpus(("en", "de"), texts, ("--bpe-operations", "32000", "--max-length", "250"))


def wmt16_en_ro() -> Corpus:
    """WMT16's training data, newsdev2016 for validation, newstest2016 for testing."""
    europarl = "https://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz"
    setimes = "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip"
    sha256 = "8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7"  # as in TensorFlow Datasets
    texts = {
        "train": [
            Text(("europarl-v8.ro-en.{lang}",), europarl, f"sha256:{sha256}"),
            Text(("SETIMES.en-ro.{lang}", "SETIMES2.en-ro.{lang}"), setimes),
        ],
        "valid": [published_test("newsdev2016", "wmt16/dev", "en-ro")],
        "test": [published_test("newstest2016", "wmt16", "en-ro")],
    }
    return Corpus(("en", "ro"), texts, ("--bpe-operations", "40000", "--max-length", "250"))


def mask_predict(langs: tuple[str, str], drive_id: str, file: str, names: dict[str, str], size: int) -> Corpus:
    """A corpus as used by Mask-Predict: one archive on Google Drive, cleaned, with BPE applied."""
    url = f"https://drive.usercontent.google.com/download?id={drive_id}&export=download&confirm=t"
    texts = {split: [Text((name,), url, file=file)] for split, name in names.items()}
    return Corpus(langs, texts, ("--bpe-applied", "--dict-size", str(size)))


def mask_predict_en_de() -> Corpus:
    """WMT16 training data, newstest2013 and newstest2014, prepared by Google."""
    names = {"train": "train.tok.clean", "valid": "newstest2013.tok", "test": "newstest2014.tok"}
    names = {split: name + ".bpe.32000.{lang}" for split, name in names.items()}
    return mask_predict(("en", "de"), "0B_bZck-ksdkpM25jRUN2X2UxMm8", "wmt16_en_de.tar.gz", names, 32768)


def mask_predict_en_ro() -> Corpus:
    """WMT16 data, prepared by Lee et al. (2018)."""
    names = {"train": "train/corpus", "valid": "dev/dev", "test": "test/test"}
    names = {split: f"en-ro/{name}.bpe.{{lang}}" for split, name in names.items()}
    return mask_predict(("en", "ro"), "1YrAwCEuktG-iDVxtEW-FE72uFTLc5QMl", "wmt16.tar.gz", names, 40000)


CORPORA: dict[str, Callable[[], Corpus]] = {
    "multi30k": multi30k,
    "wmt14.en-de": wmt14_en_de,
    "wmt16.en-ro": wmt16_en_ro,
    "wmt14.en-de" + MASK_PREDICT: mask_predict_en_de,
    "wmt16.en-ro" + MASK_PREDICT: mask_predict_en_ro,
}


# ---- downloads


def download(url: str, path: Path, checksum: str | None = None) -> None:
    """Download to `path` unless it exists, resuming an earlier ``.part``; check and record its sha256.

    Raises ValueError naming the URL if that fails, or if the file does not match `checksum` or an earlier download.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        receive(url, part)
    except (OSError, http.client.HTTPException) as error:  # urllib's own errors are OSError
        raise ValueError(f"{url}: download failed: {error}") from None

    sums = path.parent / "SHA256SUMS"
    lines = sums.read_text().splitlines() if sums.exists() else []
    known = {name: value for value, name in (line.split(maxsplit=1) for line in lines)}
    sha256 = steps.file_digest(part)
    algorithm, _, value = (checksum or f"sha256:{sha256}").partition(":")
    if known.setdefault(path.name, sha256) != sha256 or steps.file_digest(part, algorithm) != value:
        part.unlink()
        raise ValueError(f"{url}: not the expected file (sha256 {sha256}); it was deleted")
    sums.write_text("".join(f"{value}  {name}\n" for name, value in sorted(known.items())))
    part.rename(path)
    print(f"downloaded {path.name}: {path.stat().st_size:,} bytes, sha256 {sha256}", flush=True)


def receive(url: str, part: Path) -> None:
    """Append the rest of the file at `url` to `part`. Raises OSError, also if the connection ends early."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # no such range: an earlier attempt received the whole file, or another one
        return receive(url, part)
    with response:
        if response.status != 206:  # the server sends the whole file
            have = 0
        total = have + int(response.headers["Content-Length"]) if response.headers["Content-Length"] else None
        with (
            open(part, "ab" if have else "wb") as stream,
            tqdm(desc=part.stem, total=total, initial=have, unit="B", unit_scale=True, leave=False, disable=None) as bar,
        ):
            while data := response.read(1 << 16):
                stream.write(data)
                bar.update(len(data))
    if total not in (None, part.stat().st_size):
        raise OSError(f"got {part.stat().st_size:,} of {total:,} bytes; run the same command to resume")


# ---- files in folders and archives


def find(folder: Path, name: str) -> Path | None:
    """The file called `name` anywhere under the folder."""
    return next((path for path in sorted(folder.rglob(name)) if path.is_file()), None)


def unpack(archive: Path, names: list[str], target: Path) -> None:
    """Extract to `target` the file of a tar or zip archive whose path ends in one of `names`."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened_zip:
                write_member(opened_zip.namelist(), opened_zip.open, names, target)
        else:
            with tarfile.open(archive) as opened_tar:
                write_member(opened_tar.getnames(), opened_tar.extractfile, names, target)
    except LookupError:
        raise ValueError(f"{archive} contains no {' or '.join(names)}") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error):
        raise ValueError(f"{archive} is not a valid tar or zip archive; delete it and download it again") from None


def write_member(members: list[str], open_member: Callable[[str], Any], names: list[str], target: Path) -> None:
    """Write the first archive member whose path ends in one of `names`. Raises LookupError if none matches."""
    for member in members:
        if any(f"/{member}".endswith(f"/{name}") for name in names):
            with open_member(member) as source:
                write(source, member, target)
            return
    raise LookupError


def write(source: BinaryIO, name: str, target: Path) -> None:
    """Copy a stream to a file. SGML (a WMT test set) becomes one segment per line, as sacreBLEU extracts it."""
    with open(target, "wb") as stream:
        if name.endswith(".sgm"):
            segments = re.findall(rb"<seg[^>]*>(.*?)</seg>", source.read(), re.DOTALL)
            stream.writelines(b" ".join(segment.split()) + b"\n" for segment in segments)
        else:
            shutil.copyfileobj(source, stream)


def collect(text: Text, langs: tuple[str, ...], folder: Path, prefix: Path) -> None:
    """Link or unpack a folder's files as ``PREFIX.LANG`` (or ``.gz``) of each language. Raises ValueError if one is missing."""
    for lang in langs:
        names = [name.format(lang=lang) for name in text.names if "{lang}" in name or f".{lang}." in name]
        target, archive = Path(f"{prefix}.{lang}"), text.file_name(lang)
        if path := next(filter(None, (find(folder, name) for name in names)), None):
            if path.suffix == ".sgm":
                with open(path, "rb") as source:
                    write(source, path.name, target)
            else:
                target.with_name(target.name + ".gz" * (path.suffix == ".gz")).symlink_to(path.resolve())
        elif path := find(folder, archive):
            unpack(path, names, target)
        else:
            raise ValueError(f"{folder}: neither {' nor '.join(dict.fromkeys([*names, archive]))} exists")


def gather(corpus: Corpus, local: Path | None, downloads: Path, source: Path) -> dict[str, str]:
    """Fill the folder `source` with the corpus, from `local` or by download; returns the prefixes of each split.

    Raises ValueError if `local` is not a folder.
    """
    if local and not local.is_dir():
        raise ValueError(f"--local {local}: no such folder")
    unfinished = source.with_name(".source")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    prefixes: dict[str, list[str]] = {}
    try:
        for split, texts in corpus.texts.items():
            for number, text in enumerate(texts, 1):
                if local is None:
                    for lang in corpus.langs:
                        download(text.url.format(lang=lang), downloads / text.file_name(lang), text.checksum)
                collect(text, corpus.langs, local or downloads, unfinished / f"{split}{number}")
                prefixes.setdefault(split, []).append(str(source / f"{split}{number}"))
        steps.move(unfinished, source)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {split: ",".join(parts) for split, parts in prefixes.items()}


# ---- command line


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "data/corpora.py", description="Prepare a corpus. Further options are those of specdec-prepare."
    )
    parser.add_argument("name", choices=[name for name in CORPORA if not name.endswith(MASK_PREDICT)])
    parser.add_argument("--local", type=Path, metavar="DIR", help="use files or archives from this folder")
    parser.add_argument("--output", type=Path, metavar="DIR", help="data set to write (default: data/prepared/NAME)")
    parser.add_argument("--mask-predict", action="store_true", help="WMT only: use the archive that Mask-Predict was trained on")
    options, more = parser.parse_known_args(argv)
    name = options.name + MASK_PREDICT * options.mask_predict
    if name not in CORPORA:
        parser.error(f"--mask-predict is not available for {options.name}")
    corpus, output = CORPORA[name](), options.output or DATA / "prepared" / name

    def make() -> list[str]:
        prefixes = gather(corpus, options.local, DATA / "downloads" / name, output / "source")
        return [*corpus.options, *split_options(prefixes), *more]

    return prepare_made(parser.prog, corpus.langs, output, make)


def prepare_made(script: str, langs: tuple[str, ...], output: Path, make: Callable[[], list[str]]) -> int:
    """Prepare the corpus that ``make`` writes; ``make`` returns options for specdec-prepare. Returns the exit status.

    An error or interruption of ``make`` is one line on stderr.
    """
    try:
        options = make()
    except (ValueError, OSError) as error:
        print(printable(f"{script}: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{script}: interrupted; run the same command to resume", file=sys.stderr)
        return 130
    source, target = langs
    return prepare.main(["--source-lang", source, "--target-lang", target, "--output", str(output), *options])


def split_options(prefixes: dict[str, str]) -> list[str]:
    """Options of specdec-prepare for the prefixes of all splits."""
    return [word for split, prefix in prefixes.items() for word in (f"--{split}", prefix)]


if __name__ == "__main__":
    sys.exit(main())
