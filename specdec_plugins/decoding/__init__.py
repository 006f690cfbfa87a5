"""The engine: draft, verify, accept, commit. Knows torch and nothing of fairseq, files or text; start at ``loop.py``."""
