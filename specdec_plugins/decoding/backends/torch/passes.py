"""What PyTorch's passes return, and the choice of drafted tokens by it.

R rows computed by a recorded pass, W predictions of each, K guesses, C candidates, V vocabulary, G width of a successor network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.decoding.backends import NOT_WANTED
from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, numbered
from specdec_plugins.decoding.backends.torch import trees
from specdec_plugins.decoding.backends.torch.candidates import candidates_of, forbid
from specdec_plugins.decoding.backends.torch.graphs import Executor, Results
from specdec_plugins.decoding.backends.torch.judge import judge, rank
from specdec_plugins.decoding.backends.torch.sampling import Table, draw_candidate
from specdec_plugins.decoding.backends.torch.tensors import send
from specdec_plugins.decoding.backends.torch.transformer import Decoder
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.trees import TreeDraft, by_row, nodes_of, tokens_to
from specdec_plugins.decoding.values import DeviceDraft, Distribution, Draft, Draws, Plan, Verdict, rejecting
from specdec_plugins.model.spec import Symbols


class Choosing:
    """Chooses tokens by the logits of a decoder."""

    def __init__(self, decoder: Decoder, executor: Executor):
        self.decoder, self.executor = decoder, executor
        # The token of each logit, if not all have one.
        self.vocabulary = None if decoder.vocabulary is None else decoder.vocabulary.tolist()

    def choose(self, logits: Tensor, gates: Tensor | None, prefix: Prefix, plan: Plan) -> DeviceDraft:
        """See `Pass.choose`; by logits (R, K, V), and gates (R, K, G) of a successor network."""
        device, draws = logits.device, prefix.draws()
        sizes = send([*map(len, prefix.outputs), *[1] * (len(logits) - len(prefix))], device)
        inputs: dict[str, Tensor | tuple[Tensor, ...]] = {"logits": logits, "sizes": sizes}
        if gates is not None:
            inputs["gates"] = gates
        if draws is not None:
            inputs["table"] = Table.of(draws, len(logits), logits.size(-1), device, self.executor.round)
        results = self.executor.run(self._choose, inputs, settings=(numbered(prefix.symbols, self.vocabulary),))
        rejects = draws is not None and rejecting(draws)
        distribution = Distribution(results["candidates"], results["probabilities"]) if rejects else None
        return DeviceDraft(results["tokens"], list(plan.lengths), distribution=distribution)

    def _choose(
        self, symbols: Symbols, logits: Tensor, sizes: Tensor, gates: Tensor | None = None, table: Table | None = None
    ) -> Results:
        """``tokens`` (R, K) by logits, which it overwrites; ``sizes`` (R,) are those of the outputs.

        A ``table``, for rows that sample, adds ``candidates`` and ``probabilities`` of a `Distribution`.
        """
        forbid(logits, symbols, sizes == 0)
        vocabulary, successor = self.decoder.vocabulary, self.decoder.successor
        if gates is None and table is None:
            best = logits.argmax(-1)
            return {"tokens": best if vocabulary is None else vocabulary[best]}
        scores, numbers = logits.topk(min(CANDIDATES, logits.size(-1)))  # (R, K, C)
        tokens = numbers if vocabulary is None else vocabulary[numbers]
        chosen: list[Tensor] = []  # (R, 1) each: numbers of logits
        drafted, weights = [], []
        for place in range(logits.size(1)):
            total = scores[:, place]
            if successor is not None and gates is not None and place:
                relation = torch.relu(gates[:, place] + successor.tokens[chosen[-1][:, 0]])  # (R, G)
                total = total + (successor.out[numbers[:, place]] @ relation[..., None])[..., 0]  # (R, C)
            which = total.argmax(1, keepdim=True)
            if table is not None:
                own, probabilities = draw_candidate(total, tokens[:, place], table, place)
                which = torch.where(table.temperature > 0, own, which)
                weights.append(probabilities)
            chosen.append(numbers[:, place].gather(1, which))
            drafted.append(tokens[:, place].gather(1, which))
        results = {"tokens": torch.cat(drafted, 1)}
        if table is not None:
            results |= {"candidates": tokens, "probabilities": torch.stack(weights, 1)}
        return results


@dataclass(frozen=True)
class TorchPass:
    """A pass that has run: its ``logits``, what else was wanted, and ``gates`` (R, W, G) of a successor network."""

    choosing: Choosing
    results: Results

    def logits(self) -> Tensor:
        return self._wanted("logits")

    def features(self) -> Tensor:
        return self._wanted("features")

    def attention(self) -> Tensor:
        return self._wanted("attention")

    def _wanted(self, name: str) -> Tensor:
        if name not in self.results:
            raise RuntimeError(NOT_WANTED)
        return self.results[name]

    def with_logits(self, logits: Tensor) -> "TorchPass":
        return replace(self, results={**self.results, "logits": logits})

    @torch.inference_mode()
    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        return self.choosing.choose(self.logits(), self.results.get("gates"), prefix, plan)

    def candidates(self, prefix: Prefix) -> Candidates:
        choosing = self.choosing
        return candidates_of(self.logits(), self.results.get("gates"), choosing.decoder.successor, choosing.vocabulary, prefix)

    @torch.inference_mode()
    def scores(self, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        width = max(map(len, tokens))
        logits = self.logits()[: len(tokens), :width].float()
        given = send([[*row, *[0] * (width - len(row))] for row in tokens], logits.device)
        scores = logits.gather(2, given[..., None])[..., 0] - logits.logsumexp(-1)
        return [each[: len(row)] for each, row in zip(scores.tolist(), tokens)]

    @torch.inference_mode()
    def judge(
        self,
        draft: Draft,
        bounds: Bounds,
        tolerances: Sequence[Tolerance],
        draws: Sequence[Draws | None] | None = None,
        scored: Sequence[bool] | None = None,
    ) -> Verdict:
        if isinstance(draft, TreeDraft):
            return trees.judge(self, draft, bounds, tolerances, draws, scored)
        return judge(self.choosing.executor, self.logits(), draft, bounds, tolerances, draws, scored)

    @torch.inference_mode()
    def likeliest(self, places: Sequence[tuple[int, int]], count: int) -> list[list[tuple[float, int]]]:
        logits = self.logits()
        numbers = send(list(zip(*places)), logits.device)
        best = logits[tuple(numbers)].float().log_softmax(-1).topk(min(count, logits.size(-1)))
        return [list(zip(*each)) for each in zip(best.values.tolist(), best.indices.tolist())]

    @torch.inference_mode()
    def rank(self, draft: Draft, bounds: Bounds, beams: Sequence[Beam | None]) -> list[list[Ranked]]:
        logits, nodes = self.logits(), nodes_of(draft, [row for row, beam in enumerate(beams) if beam])
        places = send([row * logits.size(1) + node + 1 for row, node in nodes], logits.device)
        own, kinds = bounds.after(tokens_to(draft, nodes)), [beam for row, _ in nodes if (beam := beams[row])]
        return by_row(nodes, rank(self.choosing.executor, logits.flatten(0, 1)[places], own, kinds), len(beams))
