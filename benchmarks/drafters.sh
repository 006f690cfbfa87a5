#!/usr/bin/env bash
# Every drafter on every task, beside `ar` of the same data type: benchmarks/drafters.sh FOLDERS CORPORA OUTPUT
# FOLDERS/captions, docs and correction each have model folders, one a trained drafter; a task without any is skipped.
# CORPORA has multi30k/ and docs-en-fr/, and the data set that data/correction.sh makes as correction/. Writes
# OUTPUT/TASK.jsonl, and prints a table a model folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -eq 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
folders=$1 corpora=$2 output=$3
python=${PYTHON:-$root/.venv/bin/python}
export PYTHONPATH=$root PYTHONWARNINGS=ignore
mkdir -p "$output"

measure() { # measure TASK SOURCE TARGET TRAINING_TEXT BLOCK_SIZES DRAFTER_WITHOUT_WEIGHTS ...
    local task=$1 source=$corpora/$2 target=$corpora/$3 text=$corpora/$4 sizes=$5; shift 5
    local models=("$folders/$task"/*) store=$output/$task.store
    [ -e "${models[0]}" ] || { echo "$task: no model folders in $folders/$task, skipped" >&2; return; }
    [ -e "$store" ] || "$python" -m specdec_plugins.commands.datastore --model "${models[0]}" --output "$store" "$text"
    echo "== $task"
    for model in "${models[@]}"; do  # drafters without weights beside the first one
        # shellcheck disable=SC2086
        "$python" "$root/benchmarks/drafters.py" --model "$model" --input "$source" --reference "$target" --datastore "$store" \
            --sentences 200 --dtypes int8 float32 --batch-sizes 1 8 --block-sizes $sizes auto --without "$@" \
            --output "$output/$task.jsonl"
        set --
    done
}

measure captions multi30k/test2018.en multi30k/test2018.de multi30k/train.de.gz "4 8" \
    ngram recycling lookahead retrieval "previous live" "previous reference"
measure docs docs-en-fr/test.en docs-en-fr/test.fr docs-en-fr/train.fr.gz "4 8" \
    ngram recycling lookahead retrieval "previous live" "previous reference"
measure correction correction/raw/test.xe correction/raw/test.en correction/raw/train.en "8 16" \
    ngram recycling lookahead retrieval "previous source"
