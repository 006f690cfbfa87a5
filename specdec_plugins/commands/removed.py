"""Options of earlier versions and of the published code, by command, and what to use now.

A name may carry the value that was removed.
"""

PYTHON = "it is a field of Settings in Python"
REMOVED: dict[str, dict[str, str]] = {
    "specdec-translate": {
        "--bpe": "use --tokenized for input in subwords",
        "--truncate-source": "use --too-long truncate",
        "--skip-long": "use --too-long skip",
        "--samples": "use --num-samples",
        "--controller": "--block-size auto has one controller",
        "--verifier-gate": "it never paid; use a smaller --block-size",
        "--drafter-gate": "it never paid; use a smaller --block-size",
        "--sinks": PYTHON,
        "--dtype float64": PYTHON,
        "--path": "use --drafter",
        "--AR-path": "use --verifier",
        "--input-path": "use --input",
        "--output-path": "use --output",
        "--batch": "use --batch-size",
        "--max-sentences": "use --batch-size",
        "--strategy block": "use --strategy specdec",
    },
    "specdec-benchmark": {"--bpe": "use --tokenized for input in subwords"},
}
