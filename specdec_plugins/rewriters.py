"""What is done to the translation of sentences, from the outside in: each rewriter translates through those that follow it."""

from collections.abc import Sequence
from dataclasses import replace

from specdec_plugins.documents import translate_documents
from specdec_plugins.interfaces import Rewriter, Texts, Translate
from specdec_plugins.options import CallOptions, languages_of
from specdec_plugins.protection import translate_protected
from specdec_plugins.terms import translate_terms
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.numbers import missing_numbers
from specdec_plugins.translations import Translation
from specdec_plugins.whole_lines import translate_lines


def with_missing_numbers(texts: Texts, sentences: Sequence[str], options: CallOptions, translate: Translate) -> list[Translation]:
    """Lists the numbers that each output lacks, unless texts are subwords."""
    languages, usual = languages_of(options, len(sentences)), texts.engine.pair.config.target_lang
    results = translate(sentences, options)
    if options.tokenized:
        return results
    each, found = len(results) // max(1, len(sentences)), list[Translation]()
    for n, result in enumerate(results):
        lang = two_letters(languages[n // each][1] or usual)
        missing = [] if result.shortened else missing_numbers(sentences[n // each], result.text, lang)
        found.append(replace(result, missing_numbers=missing) if missing or result.missing_numbers else result)
    return found


def with_least_risk(texts: Texts, sentences: Sequence[str], options: CallOptions, translate: Translate) -> list[Translation]:
    """With ``mbr`` keeps the sample of each sentence that agrees most with the others."""
    results, drawn, give_way = translate(sentences, options), texts.engine.settings.mbr, texts.engine.give_way
    if not drawn:
        return results
    groups = [results[start : start + drawn] for start in range(0, len(results), drawn)]
    return [group[most_agreed([result.text for result in group], give_way)] for group in groups]


REWRITERS: Sequence[Rewriter] = (
    with_missing_numbers,
    with_least_risk,
    translate_protected,
    translate_terms,
    translate_documents,
)


def rewritten(
    texts: Texts, sentences: Sequence[str], options: CallOptions, rewriters: Sequence[Rewriter] = REWRITERS
) -> list[Translation]:
    """All outputs of all sentences, in one list."""
    if not rewriters:
        return translate_lines(texts, sentences, options)
    first, *others = rewriters
    return first(texts, sentences, options, lambda more, how: rewritten(texts, more, how, others))
