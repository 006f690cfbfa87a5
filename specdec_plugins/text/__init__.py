"""Text: lines, tokens, subwords, vocabularies."""
