#!/usr/bin/env python3
"""Generate the marked tables of Markdown files from their JSON: benchmarks/tables.py docs/performance.md benchmarks/README.md"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.measure.tables import filled  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
for path in parser.parse_args().files:
    try:
        path.write_text(filled(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None
