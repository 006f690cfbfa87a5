"""Fetch a named corpus, or take it from a folder, and prepare it: what data/multi30k.sh and its sisters run.

A corpus is a table entry: its texts, where each is published, and the options it is prepared with. Downloads go to
data/downloads/NAME, where SHA256SUMS keeps what was received, so that a second download must be the same. The data set goes
to data/prepared/NAME; the text it was made from is linked or unpacked in its folder source/.
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

DATA = Path(__file__).resolve().parent
MASK_PREDICT = ".mask-predict"  # ending of the names of variants


@dataclass(frozen=True)
class Text:
    """A pair of parallel files.

    `names` are the names they may have in a folder or an archive; ``{lang}`` stands for the language. `url` is where the
    archive is published that holds them, or, if it has a ``{lang}``, each plain file. `checksum` is what others have published
    of the archive, as ``md5:...`` or ``sha256:...``. `file` is the name of the download, where the URL does not end in it.
    """

    names: tuple[str, ...]
    url: str
    checksum: str | None = None
    file: str | None = None

    def file_name(self, lang: str) -> str:
        """Return the name of the archive, or of the plain file of one language."""
        return self.file or self.url.format(lang=lang).rpartition("/")[2]


@dataclass(frozen=True)
class Corpus:
    """A language pair, its texts by split (``train`` may have several), and the options of specdec-prepare that suit them.

    With one language, it is text to make pairs of.
    """

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
    # Captions are short: honest pairs often differ by more than half. 2.5 takes out only the broken ones.
    return Corpus(("en", "de"), texts, ("--bpe-operations", "8000", "--max-ratio", "2.5"))


def published_test(name: str, dataset: str, pair: str) -> Text:
    """Return a WMT test set, as plain text files called `name` or in the archive that sacreBLEU reads."""
    from sacrebleu.dataset import DATASETS

    entry = DATASETS[dataset]
    sgm = [path.rpartition("/")[2] for path in entry.langpairs[pair]]
    assert entry.data and entry.md5, f"sacreBLEU tells nothing of {dataset}"
    return Text((f"{name}.{{lang}}", *sgm), entry.data[0], f"md5:{entry.md5[0]}")


def wmt14_en_de() -> Corpus:
    """The training data of WMT14; newstest2013 to validate; all 3,003 sentences of newstest2014 to test."""
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
    """The training data of WMT16; newsdev2016 to validate; newstest2016 to test."""
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
    """Return a corpus as Mask-Predict used it: one archive on Google Drive, cleaned and with BPE applied."""
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
    """Download to `path` unless it is there, going on from an earlier attempt's ``.part``; check and record its sha256.

    Raises ValueError naming the URL when that fails, or when `checksum` or an earlier download tells of another file.
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
    sha256 = prepare.file_digest(part)
    algorithm, _, value = (checksum or f"sha256:{sha256}").partition(":")
    if known.setdefault(path.name, sha256) != sha256 or prepare.file_digest(part, algorithm) != value:
        part.unlink()
        raise ValueError(f"{url}: not the expected file (sha256 {sha256}); it was thrown away")
    sums.write_text("".join(f"{value}  {name}\n" for name, value in sorted(known.items())))
    part.rename(path)
    print(f"downloaded {path.name}: {path.stat().st_size:,} bytes, sha256 {sha256}", flush=True)


def receive(url: str, part: Path) -> None:
    """Append to `part` what it lacks of the file at `url`. Raises OSError, also when the connection ends too soon."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # there is no such range: an earlier attempt received the whole file, or another one
        return receive(url, part)
    with response:
        if response.status != 206:  # the server sends the file from its start
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
        raise OSError(f"got {part.stat().st_size:,} of {total:,} bytes; the same command goes on from there")


# ---- files in folders and archives


def find(folder: Path, name: str) -> Path | None:
    """Return the file called `name` anywhere under the folder."""
    return next((path for path in sorted(folder.rglob(name)) if path.is_file()), None)


def unpack(archive: Path, names: list[str], target: Path) -> None:
    """Write to `target` the file in a tar or zip archive whose path ends in one of `names`."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened_zip:
                write_member(opened_zip.namelist(), opened_zip.open, names, target)
        else:
            with tarfile.open(archive) as opened_tar:
                write_member(opened_tar.getnames(), opened_tar.extractfile, names, target)
    except LookupError:
        raise ValueError(f"{archive}: holds no {' or '.join(names)}") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error):
        raise ValueError(f"{archive}: not a sound tar or zip archive; delete it and fetch it again") from None


def write_member(members: list[str], open_member: Callable[[str], Any], names: list[str], target: Path) -> None:
    """Write the first of an archive's members whose path ends in one of `names`. Raises LookupError when none does."""
    for member in members:
        if any(f"/{member}".endswith(f"/{name}") for name in names):
            with open_member(member) as source:
                write(source, member, target)
            return
    raise LookupError


def write(source: BinaryIO, name: str, target: Path) -> None:
    """Copy a stream to a file; of a WMT test set in SGML, the text of its segments, one a line, as sacreBLEU extracts it."""
    with open(target, "wb") as stream:
        if name.endswith(".sgm"):
            segments = re.findall(rb"<seg[^>]*>(.*?)</seg>", source.read(), re.DOTALL)
            stream.writelines(b" ".join(segment.split()) + b"\n" for segment in segments)
        else:
            shutil.copyfileobj(source, stream)


def collect(text: Text, langs: tuple[str, ...], folder: Path, prefix: Path) -> None:
    """Make ``PREFIX.LANG`` (or ``.gz``) for each language out of what lies in the folder: link it, or unpack it.

    Raises ValueError naming what is missing.
    """
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
            raise ValueError(f"{folder}: neither {' nor '.join(dict.fromkeys([*names, archive]))} is there")


def gather(corpus: Corpus, local: Path | None, downloads: Path, source: Path) -> dict[str, str]:
    """Fill the folder `source` with the corpus, downloading it unless it is in `local`; return the prefixes of every split.

    Raises ValueError if `local` is no folder.
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
        prepare.move(unfinished, source)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {split: ",".join(parts) for split, parts in prefixes.items()}


# ---- command line


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser("data/corpora.py", description="Prepare a corpus. Further options go to specdec-prepare.")
    parser.add_argument("name", choices=[name for name in CORPORA if not name.endswith(MASK_PREDICT)])
    parser.add_argument("--local", type=Path, metavar="DIR", help="take the files or archives from this folder")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the data set (default data/prepared/NAME)")
    parser.add_argument("--mask-predict", action="store_true", help="WMT only: the archive that Mask-Predict was trained on")
    options, more = parser.parse_known_args(argv)
    name = options.name + MASK_PREDICT * options.mask_predict
    if name not in CORPORA:
        parser.error(f"--mask-predict: there is no such {options.name}")
    corpus, output = CORPORA[name](), options.output or DATA / "prepared" / name

    def make() -> list[str]:
        prefixes = gather(corpus, options.local, DATA / "downloads" / name, output / "source")
        return [*corpus.options, *split_options(prefixes), *more]

    return prepare_made(parser.prog, corpus.langs, output, make)


def prepare_made(script: str, langs: tuple[str, ...], output: Path, make: Callable[[], list[str]]) -> int:
    """Prepare what ``make`` has made, which returns further options of specdec-prepare; return the exit status.

    An error or an interruption of it is one line on stderr, in the name of the script.
    """
    try:
        options = make()
    except (ValueError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{script}: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    source, target = langs
    return prepare.main(["--source-lang", source, "--target-lang", target, "--output", str(output), *options])


def split_options(prefixes: dict[str, str]) -> list[str]:
    """Options of specdec-prepare that name the prefix of every split."""
    return [word for split, prefix in prefixes.items() for word in (f"--{split}", prefix)]


if __name__ == "__main__":
    sys.exit(main())
