#!/usr/bin/env bash
# The published grid of self-speculation (MagicDec): batch 1 to 64 x source length 500 to 4,000 x budget 64 to 512 x gamma 1 to 5.
#     benchmarks/long.sh OUTPUT --model DIR --input FILE [option of `long.py grid` ...]
# Writes OUTPUT/long.jsonl, a line a system and cell, and tables to OUTPUT/log. Run again, it goes on after the last whole cell. A
# model folder has to have the positions; without one, --random gives a verifier of that shape, over the folder's dictionary.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 5 ] || { sed -n 3p "$0" | cut -c3- >&2; exit 2; }
out=$1; shift
mkdir -p "$out"
python=${PYTHON:-$root/.venv/bin/python}
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
"$python" "$root/benchmarks/long.py" attention | tee -a "$out/log"
"$python" "$root/benchmarks/long.py" grid --output "$out/long.jsonl" "$@" | tee -a "$out/log"
