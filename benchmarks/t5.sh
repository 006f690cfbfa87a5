#!/usr/bin/env bash
# Trains a T5 like Flan-T5 small on captions, and a drafter for it, and measures both beside CTranslate2 and transformers.
#     benchmarks/t5.sh DATA OUTPUT [--tiny]
# DATA has train and valid .en and .de (.gz allowed) and test2016.en, as data/multi30k.sh makes it. Training and drafter resume.
# --tiny: whether the script works, in minutes of one core; its outputs are worthless.
# PYTHON (default: .venv/bin/python) needs transformers, sacrebleu, the extra hf and ctranslate2.
set -euo pipefail
data=$(realpath "$1") && mkdir -p "$2" && out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
size=(--width 512 --layers 8 --pieces 8000 --updates 407 --dropout 0) minutes=20 sentences=200 rounds=5
if [ "${3:-}" = --tiny ]; then
    size=(--width 256 --layers 1 --pieces 2500 --tokens 512 --updates 120 --dropout 0 --scored 16)
    minutes=1 sentences=20 rounds=1
    export OMP_NUM_THREADS=1
fi
export PYTHONPATH=$PWD OMP_WAIT_POLICY=passive

"$python" benchmarks/marian.py --data "$data" --output "$out/original" --family t5 "${size[@]}"
[ -d "$out/imported" ] || "$python" -m specdec_plugins.commands.import_model "$out/original" --output "$out/imported" --check
gzip -cdf "$data/train.en"* >"$out/train.en"
[ -f "$out/drafting/model.json" ] || "$python" -m specdec_plugins.commands.draft "$out/imported" --sources "$out/train.en" \
    --output "$out/drafting" --minutes $minutes
"$python" benchmarks/imported.py --original "$out/original" --model "$out/drafting" --input "$data/test2016.en" \
    --systems ar specdec ctranslate2 transformers --batch-sizes 1 --sentences $sentences --rounds $rounds
