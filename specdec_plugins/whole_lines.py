"""Translates lines as they are: each is read, decoded and written whole."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdec_plugins.annotation import annotated
from specdec_plugins.decoding.requests import Hypothesis
from specdec_plugins.engine import Engine
from specdec_plugins.interfaces import Texts
from specdec_plugins.options import CallOptions, languages_of, texts_of, values_of
from specdec_plugins.translations import Source, Translation


def translate_lines(texts: Texts, lines: Sequence[str], options: CallOptions) -> list[Translation]:
    """All outputs of each line. Raises SourceTooLong before decoding."""
    count, tokenized = len(lines), options.tokenized
    languages = languages_of(options, count)
    hints, beginnings = values_of("hints", options.hints, count), values_of("beginnings", options.beginnings, count)
    targets = [target for _, target in languages]
    pairs = enumerate(zip(lines, languages))
    sources = [texts.source(index, line, tokenized, options.too_long, *each) for index, (line, each) in pairs]
    if beginnings is not None:
        begun = zip(sources, texts.encode_target(texts_of(beginnings, "beginnings"), tokenized, targets))
        sources = [replace(source, forced=[*source.forced, *tokens]) for source, tokens in begun]
    hinted = texts.encode_target(texts_of(hints, "hints"), tokenized, targets) if hints else [[]] * count
    found = decoded(texts.engine, sources, hinted, options)
    keys = [(n, sample) for n in range(count) for sample in range(texts.engine.settings.drawn)]
    results = [texts.finish(sources[n], found.get((n, sample)), sample, options) for n, sample in keys]
    if options.alignments or options.word_scores:
        outputs = [(lines[n], sources[n], found[n, sample]) if (n, sample) in found else None for n, sample in keys]
        results = annotated(texts, results, outputs, [languages[n] for n, _ in keys], options)
    return results


def decoded(
    engine: Engine, sources: Sequence[Source], hints: Sequence[list[int]], options: CallOptions
) -> dict[tuple[int, int], Hypothesis]:
    """The outputs by source and sample; none for a source that is empty or skipped."""
    how: dict[str, Any] = {"scores": options.scores or options.word_scores}
    if options.max_length is not None:
        how["limit"] = min(max(1, options.max_length - 1 - engine.rules.ends), engine.max_target)
    seeds = [engine.seeds(options.first + index) for index in range(len(sources))]
    requests = [
        engine.request(index, source.tokens, forced=source.forced, seeds=seeds[index], hint=hint, **how)
        for index, (source, hint) in enumerate(zip(sources, hints))
        if source.text
    ]
    found = engine.decode(requests, options.rows(engine.settings), options.max_tokens)
    return {(each.index, each.output): each for each in found}
