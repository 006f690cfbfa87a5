#!/usr/bin/env python3
"""Generate the marked tables of Markdown files from their JSON: benchmarks/tables.py docs/performance.md benchmarks/README.md"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.measure.tables import filled  # noqa: E402

for name in sys.argv[1:]:
    path = Path(name)
    path.write_text(filled(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
