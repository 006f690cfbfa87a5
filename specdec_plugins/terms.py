"""Translations that use the terms of a glossary.

A sentence is translated as it is. While the output lacks a term, the word alignment finds the words in its place; the output is
decoded again with what precedes them and the term forced, so that the model writes the rest to fit. A term is reported, not
placed, if no word is aligned with it or if the model finds the result far less likely.
"""

from collections.abc import Sequence
from dataclasses import replace

from specdec_plugins.decoding.elementary import mean
from specdec_plugins.interfaces import Texts, Translate
from specdec_plugins.options import CallOptions
from specdec_plugins.protection import check_single, chosen
from specdec_plugins.text.glossary import Found, missing
from specdec_plugins.translations import Translation

ROUNDS = 8  # terms of a sentence that are placed, at most
WORSE = 0.5  # nats a token by which what follows a term may score lower than the translation without it; 0.2 to 1 do the same


def translate_terms(texts: Texts, translate: Translate, sentences: Sequence[str], options: CallOptions) -> list[Translation]:
    """A rewriter. Raises ValueError for several outputs a sentence."""
    assert options.glossary is not None
    check_single(texts.engine.settings, options)
    found = list[list[Found]]()
    for sentence in sentences:
        texts.engine.give_way()
        found.append(options.glossary.find(sentence))
    aligned = replace(options, alignments=True, scores=True)
    scored = options.scored(texts.engine.search.size)
    results = translate(sentences, aligned if any(found) else options)
    refused: list[list[Found]] = [[] for _ in results]
    for _ in range(ROUNDS):
        begun: dict[int, tuple[Found, str]] = {}
        for n, result in enumerate(results):
            for term in missing(found[n], result.text) if found[n] and not result.shortened else ():
                if term in refused[n]:
                    continue
                if (beginning := before(result, term)) is not None:
                    begun[n] = term, beginning
                    break
                refused[n].append(term)
        if not begun:
            break
        again = replace(chosen(aligned, [*begun]), beginnings=[text for _, text in begun.values()])
        for n, result in zip(begun, translate([sentences[n] for n in begun], again)):
            fewer = len(missing(found[n], result.text)) < len(missing(found[n], results[n].text))
            if fewer and not result.cut and fits(texts, results[n], begun[n][1], result):
                results[n] = result
            else:
                refused[n].append(begun[n][0])
    return [
        replace(
            result,
            unplaced=[term.source for _, term in missing(each, result.text)],
            alignment=result.alignment if options.alignments else None,
            token_scores=result.token_scores if scored else None,
        )
        for each, result in zip(found, results)
    ]


def fits(texts: Texts, result: Translation, beginning: str, again: Translation) -> bool:
    """Whether the model's words after a beginning are about as likely as those of its own translation."""
    assert again.token_scores is not None and result.token_scores is not None
    own = again.token_scores[len(texts.codec.encode_target(beginning)) :]
    return mean(own) > mean(result.token_scores) - WORSE


def before(result: Translation, found: Found) -> str | None:
    """The translation up to the words aligned with a term, and the term; None if no word is."""
    (first, end), term = found
    assert result.alignment is not None
    starts = [target[0] for source, target in result.alignment.links if source[0] < end and first < source[1]]
    if not starts:
        return None
    at = min(starts)
    target = term.target if at or term.cased else term.target[:1].upper() + term.target[1:]
    return result.text[:at] + target
