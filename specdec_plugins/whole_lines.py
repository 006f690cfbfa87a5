"""Translates lines as they are: each is read, decoded and written whole."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdec_plugins.annotation import annotated
from specdec_plugins.decoding.requests import Hypothesis
from specdec_plugins.interfaces import Texts
from specdec_plugins.options import CallOptions, LanguagePair, languages_of, texts_of, values_of
from specdec_plugins.text.codec import Codec, Encoded
from specdec_plugins.translations import SourceTooLong, Translation

NO_LANGUAGES = (None, None)  # the model's own


def translate_lines(texts: Texts, lines: Sequence[str], options: CallOptions) -> list[Translation]:
    """All outputs of each line. Raises SourceTooLong before decoding."""
    count, languages = len(lines), languages_of(options, len(lines))
    hints, beginnings = values_of("hints", options.hints, count), values_of("beginnings", options.beginnings, count)
    sources = [read_line(texts, line, options, each, index) for index, (line, each) in enumerate(zip(lines, languages))]
    targets = [target for _, target in languages]
    if beginnings is not None:
        begun = zip(sources, target_ids(texts.codec, texts_of(beginnings, "beginnings"), targets, options.tokenized))
        sources = [replace(source, forced=(*source.forced, *tokens)) for source, tokens in begun]
    hinted = target_ids(texts.codec, texts_of(hints, "hints"), targets, options.tokenized) if hints else [[]] * count
    found = decoded(texts, sources, hinted, options)
    keys = [(n, sample) for n in range(count) for sample in range(texts.engine.settings.drawn)]
    results = [write_line(texts, sources[n], found.get((n, sample)), sample, options) for n, sample in keys]
    if options.alignments or options.word_scores:
        outputs = [(lines[n], sources[n], found[n, sample]) if (n, sample) in found else None for n, sample in keys]
        results = annotated(texts, results, outputs, options)
    return results


def read_line(
    texts: Texts,
    line: str,
    options: CallOptions,
    languages: LanguagePair = NO_LANGUAGES,
    index: int = 0,
) -> Encoded:
    """A line as the models read it. Raises SourceTooLong, with its ``index``."""
    texts.engine.give_way()
    codec, frame, given = texts.codec, texts.frame(*languages), line
    limit = texts.max_source - len(frame.ids)
    more, count = False, f"over {limit:,}"
    if (each := codec.max_characters) is not None:
        # By its words or letters alone: BPE would take minutes for a word of a megabyte.
        words, letters = line.split(), limit * each
        more = len(words) > limit or sum(map(len, words)) > letters
        line = " ".join(words[:limit])[: letters + limit] if more else line
    if not more or options.too_long == "truncate":
        tokens = codec.source.ids(line.split()) if options.tokenized else None
        source = codec.encode(line, *languages) if tokens is None else replace(frame, ids=frame.framed(tokens))
        length = len(source.text)
        if not more and length <= limit:
            return source
        if options.too_long == "truncate":
            offsets = (lambda: codec.encode(given, *languages).offsets) if more else source.align
            return replace(source, ids=source.framed(source.text[:limit]), align=offsets, shortened=True)
        count = f"{length:,}"
    if options.too_long == "error":
        raise SourceTooLong(index, count, limit)
    return Encoded([], list, after=0, shortened=True)


def target_ids(codec: Codec, lines: Sequence[str], languages: Sequence[str | None], tokenized: bool) -> list[list[int]]:
    """The token ids of translations, without eos."""
    pairs = zip(lines, languages)
    return [codec.target.ids(line.split()) if tokenized else codec.encode_target(line, lang) for line, lang in pairs]


def decoded(
    texts: Texts, sources: Sequence[Encoded], hints: Sequence[list[int]], options: CallOptions
) -> dict[tuple[int, int], Hypothesis]:
    """The outputs by source and sample; none for a source that is empty or skipped."""
    engine = texts.engine
    how: dict[str, Any] = {"scores": options.scores or options.word_scores}
    if options.max_length is not None:
        how["limit"] = min(max(1, options.max_length - 1 - engine.rules.ends), engine.max_target)
    seeds = [engine.seeds(options.first + index) for index in range(len(sources))]
    requests = [
        engine.request(index, source.ids, forced=source.forced, seeds=seeds[index], hint=hint, **how)
        for index, (source, hint) in enumerate(zip(sources, hints))
        if source.text
    ]
    found = engine.decode(requests, options.rows(engine.settings), options.max_tokens)
    return {(each.index, each.output): each for each in found}


def write_line(texts: Texts, source: Encoded, output: Hypothesis | None, sample: int, options: CallOptions) -> Translation:
    """An output with its text; None stands for a source that was empty or skipped, and for an output too many of a search."""
    engine, codec = texts.engine, texts.codec
    engine.give_way()
    said, scored = codec.source.tokens(source.text), options.scored(engine.search.size)
    if output is None:
        scores = list[float]() if scored else None
        return Translation("", said, token_scores=scores, shortened=source.shortened, sample=sample, drafter=engine.drafter_name)
    words = codec.target.tokens(output.tokens)
    joined = codec.join if options.remove_bpe else " ".join
    return Translation(
        joined(words) if options.tokenized else codec.decode(output.tokens),
        said,
        words,
        output.token_scores if scored else None,
        output.steps,
        output.cut,
        sample,
        source.shortened,
        engine.drafter_name,
        output.score,
    )
