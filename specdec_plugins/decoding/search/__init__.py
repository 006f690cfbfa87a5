"""Beam search by the rules of a named library, one file each; they differ in every detail."""

from collections.abc import Callable, Sequence

from specdec_plugins.decoding.search import fairseq, huggingface
from specdec_plugins.decoding.search.beam import ROOT, Beams, Ranked, Search

STEPS: dict[str, Callable[[Search, Beams, Sequence[Ranked]], Beams]] = {
    "fairseq": fairseq.step,
    "huggingface": huggingface.step,
}


def begin(search: Search, tokens: Sequence[int], scores: Sequence[float]) -> Beams:
    """One live hypothesis: the forced tokens. Hugging Face does not score them."""
    node = ROOT
    for token, score in zip(tokens, scores):
        node = node.then(token, 0.0 if search.beam.rules == "huggingface" else score)
    return Beams((node,))


def step(search: Search, beams: Beams, candidates: Sequence[Ranked]) -> Beams:
    """The state after one more token.

    ``candidates`` are those of each live hypothesis. The result depends on nothing else, so replaying steps on scores from one
    pass over a tree gives what a pass per token gives.
    """
    after = STEPS[search.beam.rules](search, beams, candidates)
    if after.live or after.finished:
        return after
    return Beams(finished=tuple((search.normalised(node), node) for node in beams.live), over=True)  # no token is allowed
