#!/usr/bin/env python3
"""From the start of `pip install` to the first translation in a new environment, beside CTranslate2: seconds and disk.

    benchmarks/installing.py dist/*manylinux*.whl [--rounds 5] [--wheels FOLDER]

Wheels are downloaded first, and the environment is made before the clock starts. Systems take turns. CTranslate2 runs the demo
pair's verifier twice: with the libraries of that pair's text, and with sentencepiece, which most models need; the pieces are not
this verifier's, so that text is wrong. The last line is JSON.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "data" / "demo.en-de"
SENTENCE = "A dog runs through the snow."
OURS = f"""
import sys
from specdec_plugins.commands.translate import main
sys.argv[1:] = ["--model", "{DEMO}", "--dtype", "int8", "--threads", "1", "--quiet"]
sys.exit(main())
"""
LOAD = """
import sys, ctranslate2
translator = ctranslate2.Translator("{folder}/converted", compute_type="int8", intra_threads=1)
def translated(tokens):
    return translator.translate_batch([tokens], beam_size=1)[0].hypotheses[0]
line = sys.stdin.readline()
"""
MOSES = (
    LOAD
    + f"""
from sacremoses import MosesDetokenizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
codes = BPE(open("{DEMO}/codes", encoding="utf-8"))
tokens = codes.process_line(MosesTokenizer("en").tokenize(line, return_str=True, escape=False)).split()
print(MosesDetokenizer("de").detokenize(" ".join(translated(tokens)).replace("@@ ", "").split()))
"""
)
PIECES = (
    LOAD
    + """
import sentencepiece
pieces = sentencepiece.SentencePieceProcessor("{folder}/pieces.model")
print(pieces.decode(translated(pieces.encode(line, out_type=str))))
"""
)
SYSTEMS = {  # packages, and a program that translates a line
    "specdec": (["{wheel}"], OURS),
    "ctranslate2, moses": (["ctranslate2", "sacremoses", "subword-nmt"], MOSES),
    "ctranslate2, sentencepiece": (["ctranslate2", "sentencepiece"], PIECES),
}


def pip(python: str | Path, *arguments: str | Path) -> None:
    subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


def write_models(folder: Path) -> None:
    """CTranslate2's model, and sentencepiece's of the demo's text."""
    import sentencepiece

    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.systems import convert

    convert(load_folder(DEMO), folder)
    sentencepiece.SentencePieceTrainer.train(
        input=str(ROOT / "data" / "demo.txt"), model_prefix=str(folder / "pieces"), vocab_size=100, minloglevel=2
    )


def size(folder: Path) -> float:
    """MB on disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 1e6


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(packages: list[str], program: str, wheels: Path, folder: Path) -> dict[str, float]:
    """Seconds of installing, and until a translation is there; processor seconds of both; MB that were installed."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python, empty = environment / "bin" / "python", size(environment)
    began, used = time.perf_counter(), cpu_seconds()
    pip(python, "install", "--no-index", "--find-links", wheels, *packages)
    installed = time.perf_counter() - began
    first = subprocess.run([python, "-c", program], input=SENTENCE, capture_output=True, text=True, check=True, cwd=folder).stdout
    seconds, used = time.perf_counter() - began, cpu_seconds() - used
    if not first.strip():
        raise RuntimeError(f"{packages} translated nothing")
    print(f"{' '.join(packages)}: {installed:.1f} s, {seconds:.1f} s: {first.strip()}", flush=True)
    megabytes = size(environment) - empty
    shutil.rmtree(environment)
    return {
        "install_seconds": installed,
        "first_translation_seconds": seconds,
        "cpu_seconds": used,
        "installed_mb": megabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0].replace("`", ""))
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "wheels", help="where wheels are downloaded to")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    systems = {
        name: ([each.format(wheel=options.wheel.resolve()) for each in packages], program)
        for name, (packages, program) in SYSTEMS.items()
    }
    for packages, _ in systems.values():
        pip(sys.executable, "download", "--only-binary=:all:", "-d", options.wheels, *packages)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    with tempfile.TemporaryDirectory() as temporary:
        write_models(Path(temporary))
        for _ in range(1 + options.rounds):  # the first reads files that no later one has to
            for name, (packages, program) in systems.items():
                ready = program if name == "specdec" else program.replace("{folder}", temporary)
                found[name].append(measured(packages, ready, options.wheels, Path(temporary)))
    medians = {
        name: {key: round(statistics.median(each[key] for each in rounds[1:]), 2) for key in rounds[0]}
        for name, rounds in found.items()
    }
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
