"""Word alignments and word scores of translations, on request."""

from collections.abc import Sequence
from dataclasses import replace

from specdec_plugins.decoding.elementary import mean
from specdec_plugins.decoding.requests import Hypothesis
from specdec_plugins.interfaces import Texts
from specdec_plugins.options import CallOptions
from specdec_plugins.text.alignment import Alignment, link, parts_of, within
from specdec_plugins.text.codec import Encoded
from specdec_plugins.text.words import Span, align
from specdec_plugins.translations import Translation

Output = tuple[str, Encoded, Hypothesis]  # a line, what the models read of it, and what they wrote


def annotated(
    texts: Texts,
    results: Sequence[Translation],
    outputs: Sequence[Output | None],
    options: CallOptions,
) -> list[Translation]:
    """The results with alignments or word scores; ``outputs`` are beside them, None for empty ones."""
    alignments, tokenized = options.alignments, options.tokenized
    known = [output for output in outputs if output is not None]
    weights = iter(texts.engine.attention([(s.ids, h.tokens) for _, s, h in known]) if alignments else ())
    done = []
    for result, output in zip(results, outputs):
        texts.engine.give_way()
        if output is None:
            nothing = Alignment([], [], []) if alignments else None
            done.append(replace(result, alignment=nothing, word_scores=[] if options.word_scores else None))
            continue
        line, source, hypothesis = output
        spans = target_spans(texts, result, hypothesis, tokenized)
        alignment = None
        if alignments:
            alignment = link(next(weights), source_spans(line, source, tokenized), line, spans, result.text)
        scores = scores_of(result.text, spans, hypothesis.token_scores or []) if options.word_scores else None
        done.append(replace(result, alignment=alignment, word_scores=scores))
    return done


def source_spans(line: str, source: Encoded, tokenized: bool) -> list[Span]:
    """The characters of a line that each source token stands for."""
    text = align(line, line.split()) if tokenized else source.offsets[source.before :]
    nothing = (len(line), len(line))
    return [*[(0, 0)] * source.before, *text[: len(source.text)], *[nothing] * source.after]


def target_spans(texts: Texts, result: Translation, hypothesis: Hypothesis, tokenized: bool) -> list[Span]:
    if tokenized:
        kept = result.text.split() == result.tokens
        return align(result.text, [token if kept else texts.codec.join([token]) for token in result.tokens])
    return texts.codec.spans(result.text, hypothesis.tokens)


def scores_of(text: str, spans: Sequence[Span], scores: Sequence[float]) -> list[float]:
    """The mean score of the tokens of each part of a text between white space; 0 for one that no token stands for."""
    parts = parts_of(text)
    own: list[list[float]] = [[] for _ in parts]
    for span, score in zip(spans, scores):
        if span[0] < span[1] and (part := within(span, parts)) is not None:
            own[part].append(score)
    return [mean(each) for each in own]
