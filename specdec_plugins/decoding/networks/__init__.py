"""Drafters' networks as torch modules, and their losses. Independent of fairseq."""
