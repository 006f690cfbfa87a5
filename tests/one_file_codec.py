"""A codec outside the package, in one file: characters, special symbols of its own, and a language token for each output.

`test_one_file_codec.py` loads it by the name ``one_file_codec:Characters``.
"""

from specdec_plugins.text.codec import Encoded
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import align


class Characters:
    """Reads its characters from the file ``characters``; the last ids are the special ones. ``~`` is a space to come or not."""

    max_characters, concatenates, max_length = 1, True, None

    def __init__(self, config, symbols):
        characters = list(config.files["characters"].read_text(encoding="utf-8"))
        names = {symbols.pad: "PAD", symbols.eos: "EOS", symbols.start: "START", symbols.mask: "MASK"}
        size = len(characters) + 4 + len(config.options["languages"])
        self.languages = {lang: size - 1 - number for number, lang in enumerate(config.options["languages"])}
        names |= {token: f"<{lang}>" for lang, token in self.languages.items()}
        rest = iter(characters)
        self.source = self.target = Vocabulary([names.get(number) or next(rest) for number in range(size)], symbols.mask)
        self.eos, self.config = symbols.eos, config
        self.special = set(names)

    def encode(self, text, source_lang=None, target_lang=None):
        language = self.languages[target_lang or self.config.target_lang]
        spans = [*((at, at + 1) for at in range(len(text))), (len(text), len(text))]
        return Encoded([*self.source.ids(text), self.eos], lambda: spans, (language,))

    def encode_target(self, text, target_lang=None):
        return self.target.ids(text)

    def decode(self, ids):
        return "".join(self.target.symbols[token] for token in ids if token not in self.special).replace("~", "").title()

    def decoder(self):
        return Stream(self)

    def spans(self, text, ids):
        return align(text, [self.decode([token]) for token in ids])

    def join(self, tokens):
        return "".join(tokens)


class Stream:
    """Title case depends on the letter before, so the text so far is decoded again."""

    def __init__(self, codec):
        self.codec, self.ids, self.told = codec, [], ""

    def push(self, ids):
        self.ids += ids
        delta = self.codec.decode(self.ids)[len(self.told) :]
        self.told += delta
        return delta

    def finish(self):
        return ""
