#!/usr/bin/env bash
# Tests, measures and trains on one GPU, in about six minutes.
#     benchmarks/gpu.sh OUTPUT [--python PYTHON] [--text FILE [--tokenized]] [--corpus DIR] [--device cpu]
# Writes OUTPUT/results.jsonl (a line a measurement, and the summary) and a log a part; the exit status is 1 if a part failed. Python
# needs torch; what else is missing is installed into OUTPUT, if there is a network. A part has a time limit, and fails alone.
#   --python PYTHON  (default: .venv/bin/python, else python3)
#   --text FILE      English captions to measure the shipped pair with (default: those of data/demo.txt, repeated)
#   --tokenized      the text is tokens of the pair's BPE already: tokenising needs sacremoses and subword-nmt
#   --corpus DIR     also train a transformer-base pair, from train and valid .en and .fr (.gz allowed), into OUTPUT/base: a MarianMT
#                    model with transformers, then its drafter. Takes ten minutes more, and resumes in a second run with that folder
#   --device cpu     the same parts, small, where there is no GPU: whether the script works
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "gpu.sh: $*" >&2; exit 1; }

out= python= text= bpe=() corpus= device=cuda
while [ $# -gt 0 ]; do
    case $1 in
        --python|--text|--corpus|--device)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --python) python=$2 ;; --text) text=$2 ;; --corpus) corpus=$2 ;; --device) device=$2 ;; esac
            shift 2 ;;
        --tokenized) bpe=(--tokenized); shift ;;
        -*) die "unknown option $1 (the head of the script says which there are)" ;;
        *) [ -z "$out" ] || die "one output folder, not '$out' and '$1'"
           out=$1; shift ;;
    esac
done
[ -n "$out" ] || die "name a folder for the results: benchmarks/gpu.sh OUTPUT"
case $device in cuda|cpu) ;; *) die "no device named '$device'. Available: cuda, cpu" ;; esac
[ -z "$text" ] || [ -f "$text" ] || die "--text $text: no such file"
[ -z "$corpus" ] || [ -d "$corpus" ] || die "--corpus $corpus: no such folder"
[ -n "$python" ] || { [ -x "$root/.venv/bin/python" ] && python=$root/.venv/bin/python || python=python3; }
python=$(command -v "$python") || die "no Python: give --python"
text=${text:+$(realpath "$text")} corpus=${corpus:+$(realpath "$corpus")}
mkdir -p "$out" && out=$(realpath "$out") && cd "$root" || exit 1
[ ! -e "$out/results.jsonl" ] || die "$out has results already"
export PYTHONPATH=$root:$out/packages${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
"$python" -c 'import torch' 2>"$out/torch.log" || die "$python: $(tail -n 1 "$out/torch.log")"
rm "$out/torch.log"
[ $device = cpu ] || "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "torch sees no CUDA device (--device cpu tries the script without one)"

has() { "$python" -c "import $1" >"$out/import.log" 2>&1; }

packages=()  # the modules of which have the same names
for package in ml_dtypes numpy pytest safetensors tabulate tqdm; do has $package || packages+=($package); done
missing=
if [ ${#packages[@]} -gt 0 ]; then
    timeout 30 "$python" -m pip install -q --target "$out/packages" "${packages[@]}" >"$out/packages.log" 2>&1
    for package in "${packages[@]}"; do has $package || missing+=" $package"; done
    [ -z "$missing" ] || echo "not installed, and not to be had:$missing; what needs them fails below"
fi

parts=()  # name|result|seconds
failed=0
[ $device = cuda ] && budget=530 || budget=3600  # seconds in all, whatever the parts' limits add up to
[ -z "$corpus" ] || budget=$((budget + 600))
part() { # part NAME SECONDS COMMAND...
    local name=$1 limit=$2 began=$SECONDS status=0 result=passed
    shift 2
    [ $limit -le $((budget - SECONDS)) ] || limit=$((budget - SECONDS > 1 ? budget - SECONDS : 1))
    printf '== %s, %d seconds at most\n' "$name" "$limit"
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
    case $status in
        0) ;;
        124|137) result="stopped after $limit seconds" ;;
        *) result="failed with status $status" ;;
    esac
    grep '^{"benchmark"' "$out/$name.log" >>"$out/results.jsonl"
    if [ $status = 0 ]; then grep -E 'left out|outputs differ|^[0-9]+ passed|^SKIPPED' "$out/$name.log"; else failed=1; tail -n 12 "$out/$name.log"; fi
    parts+=("$name|$result|$((SECONDS - began))")
}
skip() { # skip NAME REASON
    echo "== $1: left out: $2"
    parts+=("$1|left out: $2|0")
}

# ---- tests
if [ $device = cuda ]; then which=(-m gpu); else which=(-k "cpu and waits"); fi
part tests 110 "$python" -m pytest -q -rsP -p no:cacheprovider "${which[@]}" tests/test_gpu.py

# ---- the shipped pair. Loading six processes and recording their graphs takes most of the time
if [ -z "$text" ]; then
    bpe=(--tokenized) text=$out/demo.bpe
    for _ in {1..32}; do cat data/demo.bpe; done >"$text"
fi
pair() { # pair NAME SECONDS DTYPE SENTENCES ROUNDS "BATCH SIZES" SYSTEM...
    local name=$1 limit=$2 dtype=$3 sentences=$4 rounds=$5 sizes=$6 blocks="auto 4 8"
    [ $device = cuda ] || blocks=4
    shift 6
    # shellcheck disable=SC2086
    part "$name" "$limit" "$python" -m specdec_plugins.commands.benchmark --model data/demo.en-de --input "$text" "${bpe[@]}" \
        --device $device --measure "${name%-*}" --dtypes $dtype --sentences $sentences --rounds $rounds --batch-sizes $sizes --threads 1 \
        --block-sizes $blocks --systems "$@"
}
peers=()
for peer in fairseq ctranslate2; do
    if ! has $peer; then
        echo "left out: $peer, which cannot be imported: $(tail -n 1 "$out/import.log")"
    elif [ $peer = ctranslate2 ] && [ ${#peers[@]} = 0 ]; then
        echo "left out: ctranslate2, which needs fairseq to read the pair"
    else
        peers+=($peer)
    fi
done
if [ $device = cuda ]; then
    pair latency-float16 75 float16 24 2 1 ar specdec "${peers[@]}"
    pair throughput-float16 85 float16 128 2 "8 32" ar specdec "${peers[@]}"
else
    pair latency-float32 120 float32 4 1 1 ar specdec "${peers[@]}"
fi

# ---- a training
training() { # a few updates on a small corpus of the toy language, whose own targets serve as distilled ones
    set -e
    "$python" data/toy.py --output "$out/toy/text" --train 600 --valid 40 --test 20
    "$python" -m specdec_plugins.commands.prepare --source-lang xa --target-lang xb --train "$out/toy/text/train" \
        --valid "$out/toy/text/valid" --test "$out/toy/text/test" --bpe-operations 200 --max-ratio 0 --output "$out/toy/data" --workers 1
    ln -s data "$out/toy/distilled"
    ./train.sh toy verifier init drafter --device $device --precision $precision --updates $updates --output "$out/toy"
}
if [ $device = cuda ]; then precision=fp16 updates=60 limit=110; else precision=float32 updates=4 limit=300; fi
export -f training
export python out device precision updates PYTHON=$python
if [ "${peers[0]:-}" = fairseq ]; then part training $limit bash -c training; else skip training "there is no fairseq"; fi

# ---- a transformer-base shape with random weights; drafts are as good as the demo pair's
if [ $device = cuda ]; then
    part shape-float16 80 "$python" benchmarks/shapes.py --device cuda --dtypes float16 --threads 1 --block-sizes 4 8 auto \
        --batch-sizes 1 8 32 128 --sentences 16 --rounds 3
else
    part shape-float32 120 "$python" benchmarks/shapes.py --dtypes float32 --layers 2 --drafter-layers 1 --width 64 --inner 128 \
        --heads 4 --vocabulary 600 --threads 1 --block-sizes 4 auto --batch-sizes 1 4 --sentences 2 --rounds 1
fi

# ---- a transformer-base pair
base() {
    set -e
    local sizes=(--width 512 --layers 6 --pieces 10000 --tokens 16384 --updates 2500) drafts=800
    [ $device = cuda ] || { sizes=(--width 64 --layers 2 --pieces 1000 --tokens 512 --updates 4); drafts=2; }
    "$python" benchmarks/marian.py --data "$corpus" --output "$out/base/marian" -s en -t fr --dropout 0 "${sizes[@]}"
    "$python" -m specdec_plugins.commands.import_model "$out/base/marian" --output "$out/base/verifier"
    if [ -f "$corpus/train.en.gz" ]; then gzip -cd "$corpus/train.en.gz"; else cat "$corpus/train.en"; fi | head -n $((drafts * 125)) >"$out/base/en"
    ./train.sh --verifier "$out/base/verifier" --sources "$out/base/en" --output "$out/base/run" --device $device --updates $drafts
}
export -f base
export corpus
if [ -n "$corpus" ]; then
    if has transformers && has sentencepiece; then part base 600 bash -c base; else skip base "there is no transformers or sentencepiece"; fi
fi

# ---- the summary
printf '%s\n' "${parts[@]}" | "$python" -c 'import json, sys
from specdec_plugins.measure.machine import machine
parts = [dict(zip(("part", "result", "seconds"), line.rstrip("\n").split("|"))) for line in sys.stdin]
for part in parts: print("{part:20} {seconds:>4} s  {result}".format(**part))
with open(sys.argv[2], "a") as file:
    rows = [{**part, "seconds": int(part["seconds"])} for part in parts]
    missing = sys.argv[3].split()
    print(json.dumps({"benchmark": "gpu", "rows": rows, "missing": missing, "signature": machine(sys.argv[1])}), file=file)
' $device "$out/results.jsonl" "$missing" || failed=1
rm -rf "$out/toy" "$out/packages" "$out/demo.bpe" "$out/import.log"
echo "all of it: $SECONDS seconds; results: $out/results.jsonl"
exit $failed
