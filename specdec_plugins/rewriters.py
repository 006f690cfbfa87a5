"""Rewriters: steps around plain translation, such as protection and glossaries. Each translates through those after it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from specdec_plugins.documents import translate_documents
from specdec_plugins.interfaces import Rewriter, Texts, Translate
from specdec_plugins.options import CallOptions, languages_of
from specdec_plugins.protection import translate_protected
from specdec_plugins.settings import Settings
from specdec_plugins.terms import translate_terms
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.numbers import missing_numbers
from specdec_plugins.translations import Translation
from specdec_plugins.whole_lines import translate_lines


def with_missing_numbers(texts: Texts, translate: Translate, sentences: Sequence[str], options: CallOptions) -> list[Translation]:
    """Lists the numbers that each output lacks."""
    languages, usual = languages_of(options, len(sentences)), texts.engine.pair.config.target_lang
    results = translate(sentences, options)
    each, found = len(results) // max(1, len(sentences)), list[Translation]()
    for n, result in enumerate(results):
        lang = two_letters(languages[n // each][1] or usual)
        missing = [] if result.shortened else missing_numbers(sentences[n // each], result.text, lang)
        found.append(replace(result, missing_numbers=missing) if missing or result.missing_numbers else result)
    return found


def with_least_risk(texts: Texts, translate: Translate, sentences: Sequence[str], options: CallOptions) -> list[Translation]:
    """Keeps the sample of each sentence that agrees most with the others."""
    results, drawn, give_way = translate(sentences, options), texts.engine.settings.drawn, texts.engine.give_way
    groups = [results[start : start + drawn] for start in range(0, len(results), drawn)]
    return [group[most_agreed([result.text for result in group], give_way)] for group in groups]


def rewriters_for(settings: Settings, options: CallOptions) -> list[Rewriter]:
    """What the options ask for, from the outside in."""
    asked: Sequence[tuple[bool, Rewriter]] = (
        (not options.tokenized, with_missing_numbers),
        (settings.mbr is not None, with_least_risk),
        (options.protect is not None or options.protected is not None, translate_protected),
        (options.glossary is not None, translate_terms),
        (settings.windows is not None, translate_documents),
    )
    return [rewriter for wanted, rewriter in asked if wanted]


def rewritten(texts: Texts, sentences: Sequence[str], options: CallOptions) -> list[Translation]:
    """All outputs of all sentences, in one list."""
    translate: Translate = partial(translate_lines, texts)
    for rewriter in reversed(rewriters_for(texts.engine.settings, options)):
        translate = partial(rewriter, texts, translate)
    return translate(sentences, options)
