"""fairseq side: the losses that ``--criterion`` can name, and what they share with no other part."""
