#!/bin/sh
# Run the repository's Python (PYTHON if set, else .venv, else python3) with specdec_plugins importable.
root=$(cd "$(dirname "$0")/.." && pwd)
[ -n "$PYTHON" ] || PYTHON=$root/.venv/bin/python
[ -x "$(command -v "$PYTHON")" ] || PYTHON=python3
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" "$@"
