#!/usr/bin/env bash
# Score translations, as published work's ref.sh did: ./score.sh --tokenized -t de --reference REF OUTPUT; --help says more.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m specdec_plugins.commands.score "$@"
