"""Drafters' networks as torch modules, with their losses and what these need. Knows no fairseq."""
