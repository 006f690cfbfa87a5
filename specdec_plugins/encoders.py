"""Functions from text in a pair's languages to token numbers, made of its tokeniser, BPE codes and vocabularies."""

from collections.abc import Callable

from specdec_plugins.formats.folder import Pair
from specdec_plugins.text.tokenizers import load_codes, load_tokenizer
from specdec_plugins.text.vocabulary import Vocabulary


def target_encoder(pair: Pair) -> Callable[[str], list[int]]:
    """The function that turns a line of the target language into token numbers, without eos."""
    return text_encoder(pair, pair.target, pair.target_lang)


def source_encoder(pair: Pair) -> Callable[[str], list[int]]:
    """The same for the source language; it cuts no line."""
    return text_encoder(pair, pair.source, pair.source_lang)


def text_encoder(pair: Pair, vocabulary: Vocabulary, language: str) -> Callable[[str], list[int]]:
    """The function that turns a line of one of the pair's languages into token numbers, without eos."""
    if pair.codes is None:
        raise ValueError(f"{pair.name} has no BPE codes, so text in its languages must be tokens in BPE already")
    tokenizer = load_tokenizer(pair.tokenizer, language)
    codes = load_codes(pair.tokenizer, pair.codes, vocabulary.symbols)
    return lambda line: vocabulary.encode(codes.apply(tokenizer.tokenize(" ".join(line.split()))))[:-1]
