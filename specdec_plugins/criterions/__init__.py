"""Losses for fairseq-train's ``--criterion``."""
