"""Moses tokenisation: what fairseq calls ``--tokenizer moses``.

Hyphens inside words are split (`` @-@ ``) and XML characters are escaped (``&apos;``). So prepared data agrees with models
trained elsewhere in the usual way, and both steps can be undone. Before it, punctuation is normalised as Moses does, which cannot
be undone (curly quotes become straight). Preparation and translation share this file, so that a model reads text in the form in
which it was trained. sacremoses is loaded when it is used.
"""

# WMT16 Romanian mixes the legacy cedilla letters with the correct comma-below ones.
ROMANIAN = str.maketrans("ŞşŢţ", "ȘșȚț")


class Moses:
    """Normalise, tokenise and detokenise the sentences of one language, given as a two-letter code."""

    def __init__(self, lang: str):
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        self.lang = lang
        self.normalizer = MosesPunctNormalizer(lang, post_remove_control_chars=True)
        self.tokenizer = MosesTokenizer(lang)
        self.detokenizer = MosesDetokenizer(lang)

    def tokenize(self, line: str) -> str:
        """Return the normalised tokens of a raw sentence, joined by single spaces."""
        line = " ".join(line.split())  # first, or tabs would vanish as control characters and glue their words together
        if self.lang == "ro":
            line = line.translate(ROMANIAN)
        return self.tokenizer.tokenize(self.normalizer.normalize(line), aggressive_dash_splits=True, return_str=True)

    def detokenize(self, line: str) -> str:
        """Return the raw sentence for a line of tokens."""
        return self.detokenizer.detokenize(line.split())
