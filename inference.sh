#!/usr/bin/env bash
# Translate text with a verifier and its drafter: ./inference.sh --model DIR <in.txt >out.txt; --help says more.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m specdec_plugins.commands.translate "$@"
