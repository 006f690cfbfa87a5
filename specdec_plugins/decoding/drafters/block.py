"""The block drafter: fills K mask symbols after the prefix in one pass (Xia et al. 2023, section 3.2).

Its decoder attends to everything before and after, so nothing of the target side can be cached, and the whole prefix is read
again for every draft. What belongs to the source is computed once a sentence.

B rows, K drafted tokens, S source positions, T prefix and mask positions, D width, V vocabulary, L layers.
"""

import math
from functools import partial

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.cache import KVCache, SourceMemory, hide, span
from specdec_plugins.decoding.backends.torch.transformer import Transformer, attention
from specdec_plugins.decoding.values import DeviceDraft, Draft, Prefix, Source, Symbols, send

CANDIDATES = 16  # tokens a position among which a successor network chooses


class BlockDrafter:
    scattered = False  # as for a `Reader`

    def __init__(self, model: Transformer):
        self.model = model
        vocabulary = model.decoder.vocabulary
        # What tokens the numbers of the logits stand for, if not for themselves.
        self.names = None if vocabulary is None else vocabulary.tolist()

    def start(self, rows: int) -> SourceMemory:
        """A state without rows: cross-attention entries and, as a last layer, those of the source copy."""
        decoder = self.model.decoder
        layers = len(decoder.layers) + (decoder.copy is not None)
        return SourceMemory(KVCache(layers, 2 * decoder.width, decoder.embedding.tokens, self.scattered))

    def admit(self, state: SourceMemory, source: Source) -> None:
        """Append the sentences of ``source`` as rows."""
        state.admit(partial(self.remember, source), source.sizes)

    def remember(self, source: Source, numbers: list[int], cache: KVCache, rows: list[int]) -> None:
        """Write what belongs to some sentences of a source: cross-attention entries, and keys and values of the copy."""
        decoder = self.model.decoder
        decoder.remember(source, self.model.encoder, numbers, cache, rows)
        if decoder.copy is not None:
            embedding, tokens = self.model.encoder.embedding, source.tokens[span(numbers)]
            place = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
            embedded = embedding.embed(tokens)  # (N, S, D)
            keys = (embedded + embedding.place(place)) @ decoder.copy  # W p . k = p . (k W)
            cache.put(rows, torch.cat([keys, embedded], -1)[None], len(decoder.layers))

    def propose(self, state: SourceMemory, prefix: Prefix, num_tokens: int) -> Draft:
        """The K = ``num_tokens`` most likely tokens after each row's prefix."""
        positions = self.model.spec.decoder.max_positions
        room = [max(0, positions - len(output)) for output in prefix.outputs]
        best = self.choose(prefix, *self.guess(state, prefix, num_tokens))
        if isinstance(best, list):
            return Draft([self.named(numbers[:most]) for numbers, most in zip(best, room)])
        vocabulary = self.model.decoder.vocabulary
        return DeviceDraft(best if vocabulary is None else vocabulary[best], room)

    def named(self, numbers: list[int]) -> list[int]:
        """The tokens that numbers of logits stand for."""
        return numbers if self.names is None else [self.names[number] for number in numbers]

    def choose(self, prefix: Prefix, logits: Tensor, gates: Tensor | None) -> Tensor | list[list[int]]:
        """(R, K) a number for each of logits (R, K, V): not pad's, and not eos's where the output would be empty.

        Without ``gates`` (R, K, G) the best one. With them what a token says about the next one counts, too: each is the best
        behind the one chosen before it, among the `CANDIDATES` that are best without.
        """
        some = send([*map(len, prefix.outputs), *[1] * (len(logits) - len(prefix))], logits.device)
        inputs = [logits, some] if gates is None else [logits, some, gates]
        return self.model.runner.run(self._choose, inputs, settings=(prefix.symbols,))[0]

    def _choose(self, symbols: Symbols, logits: Tensor, some: Tensor, gates: Tensor | None = None) -> list[Tensor]:
        """What `choose` returns. Overwrites the logits; ``some`` (R,) is 0 where nothing is committed."""
        logits[..., symbols.pad] = -math.inf
        logits[:, 0, symbols.eos].masked_fill_(some == 0, -math.inf)
        successor = self.model.decoder.successor
        if gates is None or successor is None:
            return [logits.argmax(-1)]
        scores, tokens = logits.topk(min(CANDIDATES, logits.size(-1)))  # (R, K, C)
        chosen = [tokens[:, 0, 0]]  # (R,) each
        for place in range(1, logits.size(1)):
            relation = torch.relu(gates[:, place] + successor.tokens[chosen[-1]])  # (R, G)
            total = scores[:, place] + (successor.out[tokens[:, place]] @ relation[..., None])[..., 0]  # (R, C)
            chosen.append(tokens[:, place].gather(1, total.argmax(1, keepdim=True))[:, 0])
        return [torch.stack(chosen, 1)]

    def guess(self, state: SourceMemory, prefix: Prefix, num_tokens: int) -> tuple[Tensor, Tensor | None]:
        """(B, K, V) logits of the mask positions; a drafter that relates its guesses to each other has (B, K, R) gates, too."""
        decoder, lengths = self.model.decoder, prefix.lengths
        longest = prefix.longest + num_tokens
        place = torch.arange(longest, device=lengths.device)
        positions = decoder.embedding.place(place)  # (T, D)
        masks = lengths[:, None] + place[:num_tokens]  # (B, K) where each row's block is
        row = torch.arange(len(prefix), device=lengths.device)[:, None]

        tokens = torch.full((len(prefix), longest), prefix.symbols.mask, device=lengths.device)
        tokens[:, : prefix.longest] = prefix.tokens[:, 1 : prefix.longest + 1]
        tokens[row, masks] = prefix.symbols.mask
        x = decoder.embedding.embed(tokens)  # (B, T, D)
        if decoder.copy is not None:
            x[row, masks] = attention(positions[masks], state.read(len(decoder.layers)), 1, state.mask, scale=1.0)

        padding = place >= (lengths + num_tokens)[:, None]  # (B, T)
        mask = hide(padding, x.dtype)[:, None, None]

        def attend(queries: Tensor, entries: Tensor) -> Tensor:
            return attention(queries, entries, decoder.heads, mask)

        for index, layer in enumerate(decoder.layers):
            x = x + positions
            if index == 0 and decoder.embedding.norm is not None:
                x = decoder.embedding.norm(x)

            def cross_attend(queries: Tensor, index: int = index) -> Tensor:
                return attention(queries, state.read(index), decoder.heads, state.mask)

            x = layer(x, attend, cross_attend, keep=(row, masks) if layer is decoder.layers[-1] else None)
        return decoder.logits(x), None  # the last layer went on with the masks alone


def build(model: Transformer) -> BlockDrafter:
    return BlockDrafter(model)
