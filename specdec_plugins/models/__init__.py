"""Models for fairseq-train's ``--arch``."""
