"""fairseq side: the losses that ``--criterion`` can name."""
