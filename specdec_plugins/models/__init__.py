"""fairseq side: the models that ``--arch`` can name."""
