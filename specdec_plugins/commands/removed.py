"""Options of earlier versions, by command, and what to use now. A name may carry the value that was removed."""

REMOVED: dict[str, dict[str, str]] = {
    "specdec-translate": {
        "--bpe": "use --tokenized for input that is already in subwords",
        "--truncate-source": "use --too-long truncate",
        "--skip-long": "use --too-long skip",
        "--samples": "use --num-samples",
        "--controller": "--block-size auto has one controller, throughput",
        "--verifier-gate": "it never paid; use a smaller --block-size",
        "--drafter-gate": "it never paid; use a smaller --block-size",
        "--sinks": "set it in Python, Settings(sinks=...)",
        "--kv-choice": "set it in Python, Settings(kv_choice=...)",
        "--dtype float64": "use float32; float64 remains in Python, Settings(dtype='float64')",
    },
    "specdec-benchmark": {"--bpe": "use --tokenized for input that is already in subwords"},
}
