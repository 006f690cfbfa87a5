"""Write a toy corpus of two invented languages, where translation follows fixed rules but is more than copying.

From ``xa`` to ``xb``, adjectives move after their noun; articles and adjectives agree with it in gender and number; verbs
agree with their subject, whose pronoun is dropped; an adverb comes first and moves the verb before the subject; the verb of a
subordinate clause comes last; some nouns become several words; separable verbs put their particle at the end of the clause.
Everything depends on the seed. Each source sentence has one correct translation, and none occurs twice.
"""

from pathlib import Path
from random import Random

import generated

LANGS = ("xa", "xb")
ENDINGS = (("o", "oi"), ("a", "ae"), ("u", "ur"))  # agreement: gender, then singular and plural
PERSONS = {"mi": "om", "tu": "es", "nos": "amo"}  # source pronoun -> ending of the target verb
THIRD_PERSON = ("at", "ant")  # ending of the target verb after a noun, singular and plural
PLURAL = "lin"  # ending of the source noun


class Toy:
    """A vocabulary, and a grammar that generates sentence pairs from it."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.known: set[str] = set()
        self.nouns = {self.word(): (self.phrase(), self.random.choice(ENDINGS)) for _ in range(140)}
        self.adjectives = {self.word(): self.word() for _ in range(50)}
        self.verbs = {self.word(): (self.word(), self.random.choice(["", "", "fel", "rup", "dok"])) for _ in range(60)}
        self.adverbs = {self.word(): self.word() for _ in range(20)}
        self.prepositions = {self.word(): self.word() for _ in range(8)}

    def word(self) -> str:
        """A new pseudo-word of two or three syllables."""
        while True:
            syllables = (
                self.random.choice("bdfgklmnprstvz") + self.random.choice("aeiou") for _ in range(self.random.choice((2, 2, 3)))
            )
            word = "".join(syllables) + self.random.choice("lnrst")
            if word not in self.known:
                self.known.add(word)
                return word

    def phrase(self) -> list[str]:
        """The words of a target noun: mostly one, otherwise two or three."""
        return [self.word() for _ in range(self.random.choice((1, 1, 1, 2, 3)))]

    def pick(self, words: dict) -> str:
        """Draw a source word; as in real text, few are common and many are rare."""
        return self.random.choices(list(words), [1 / rank for rank in range(2, len(words) + 2)])[0]

    def noun_phrase(self) -> tuple[list[str], list[str], int]:
        """Source words, target words, and 1 for a plural, otherwise 0."""
        noun, plural, definite = self.pick(self.nouns), self.random.randrange(2), self.random.randrange(2)
        adjectives = [self.pick(self.adjectives) for _ in range(self.random.choice((0, 0, 1, 1, 2)))]
        words, endings = self.nouns[noun]
        ending = endings[plural]
        source = ["le" if definite else "un", *adjectives, noun + PLURAL * plural]
        target = [("il" if definite else "sem") + ending, *words, *(self.adjectives[word] + ending for word in adjectives)]
        return source, target, plural

    def clause(self, subordinate: bool) -> tuple[list[str], list[str]]:
        """The source and target words of a clause."""
        if self.random.random() < 0.25:
            pronoun = self.random.choice(list(PERSONS))
            subject, ending = [pronoun], PERSONS[pronoun]
            target_subject: list[str] = []
        else:
            subject, target_subject, plural = self.noun_phrase()
            ending = THIRD_PERSON[plural]
        verb = self.pick(self.verbs)
        stem, particle = self.verbs[verb]
        rest, target_rest, _ = self.noun_phrase()
        if self.random.random() < 0.3:
            preposition = self.pick(self.prepositions)
            source_phrase, target_phrase, _ = self.noun_phrase()
            rest, target_rest = (
                [*rest, preposition, *source_phrase],
                [self.prepositions[preposition], *target_phrase, *target_rest],
            )
        adverb = [self.pick(self.adverbs)] if self.random.random() < 0.4 else []
        first = [self.adverbs[word] for word in adverb]

        source = [*subject, verb, *rest, *adverb]
        if subordinate:
            target = [*first, *target_subject, *target_rest, particle + stem + ending]
        elif adverb:
            target = [*first, stem + ending, *target_subject, *target_rest, particle]
        else:
            target = [*target_subject, stem + ending, *target_rest, particle]
        return source, [word for word in target if word]

    def sentence(self) -> tuple[str, str]:
        """A sentence pair of 4 to 20 source words."""
        while True:
            source, target = self.clause(subordinate=False)
            if self.random.random() < 0.35:
                inner_source, inner_target = self.clause(subordinate=True)
                source, target = [*source, "ke", *inner_source], [*target, ",", "dat", *inner_target]
            if 4 <= len(source) <= 20:
                return " ".join(source) + ".", " ".join(target).replace(" ,", ",") + "."


SIZES = {"valid": 200, "test": 200, "train": 8000}


def write_corpus(folder: Path, seed: int = 1, **sizes: int) -> None:
    """Write all splits in both languages, with `SIZES` pairs unless overridden by ``sizes``."""
    generated.write_corpus(folder, Toy(seed).sentence, LANGS, {**SIZES, **sizes})


if __name__ == "__main__":
    generated.main(__doc__, lambda seed: Toy(seed).sentence, LANGS, SIZES)
