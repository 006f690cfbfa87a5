"""The oracle: decoding of one sentence by fairseq's own model, with no cache, no batch and nothing clever."""

import math

import torch

from specdec_plugins.decoding.backends.torch.noise import token_bits
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.models.block import BlockDrafterModel

PAD, EOS, MASK = 1, 2, 3


@torch.no_grad()
def encode(model, *sources: list[int]):
    tokens = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, sources)), batch_first=True, padding_value=PAD)
    return model.encoder(tokens, src_lengths=torch.tensor(list(map(len, sources))))


def following(model, encoder_out, output: list[int], tilt=None, pad: int = PAD, eos: int = EOS) -> torch.Tensor:
    """(V,) logits of the token after ``output``, under fairseq's conventions: never pad, no empty output.

    ``tilt`` (positions, V) is added to the logits.
    """
    return following_all(model, encoder_out, [output], tilt, pad, eos)[0]


@torch.no_grad()
def following_all(model, encoder_out, outputs: list[list[int]], tilt=None, pad: int = PAD, eos: int = EOS) -> torch.Tensor:
    """(N, V) `following` of N outputs of one length."""
    logits = model.decoder(torch.tensor([[eos, *output] for output in outputs]), encoder_out=encoder_out)[0][:, -1]
    if tilt is not None:
        logits += tilt[len(outputs[0])]
    logits[:, pad] = -math.inf
    if not outputs[0]:
        logits[:, eos] = -math.inf
    return logits


def greedy(model, source: list[int], limit: int, tilt=None, pad: int = PAD, eos: int = EOS) -> list[int]:
    """The tokens, without eos, that a verifier says when it always takes its best one: ``limit`` of them at most."""
    output: list[int] = []
    encoder_out = encode(model, source)
    while len(output) < limit:
        best = int(following(model, encoder_out, output, tilt, pad, eos).argmax())
        if best == eos:
            break
        output.append(best)
    return output


def greedy_all(model, sources: list[list[int]], limits: list[int], tilt=None) -> list[list[int]]:
    """`greedy` of each source."""
    return said_by_all(model, sources, limits, lambda number, logits, output: int(logits.argmax()), tilt)


def said_by_all(model, sources: list[list[int]], limits: list[int], choose, tilt=None) -> list[list[int]]:
    """Each source's output if ``choose(number, logits, output)`` gives its next token: in one batch, still without a cache,
    which takes the time of one sentence."""
    encoder_out, outputs = encode(model, *sources), [[] for _ in sources]
    for _ in range(max(limits)):
        logits = following_all(model, encoder_out, outputs, tilt)
        for number, output in enumerate(outputs):
            output.append(EOS if EOS in output else choose(number, logits[number], output))
        if all(EOS in output for output in outputs):
            break
    return [output[: output.index(EOS) if EOS in output else None][:limit] for output, limit in zip(outputs, limits)]


def warped(logits: list[float], prefix: list[int], sampling) -> list[float]:
    """The probabilities by which a token is drawn after a prefix: penalty, temperature, top-k, top-p, one after the other."""
    values = list(logits)
    for token in set(prefix):
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    values = [value / sampling.temperature for value in values]
    if sampling.top_k:
        least = sorted(values, reverse=True)[: sampling.top_k][-1]
        values = [value if value >= least else -math.inf for value in values]
    weights = [math.exp(value - max(values)) for value in values]
    kept, before = [0.0] * len(weights), 0.0
    for token in sorted(range(len(weights)), key=lambda token: (-weights[token], token)):
        if not before or before < sampling.top_p * sum(weights):
            kept[token] = weights[token]
        before += weights[token]
    return [weight / sum(kept) for weight in kept]


def drawn(logits: torch.Tensor, output: list[int], sampling, seed: int) -> int:
    """The token that follows an output where tokens are drawn."""
    weights = warped(logits.tolist(), output, sampling)
    position, tokens = torch.tensor([len(output)]), torch.arange(len(weights))
    bits = token_bits(torch.tensor([seed]), Purpose.SAMPLE, position, tokens).tolist()
    times = [-math.log1p(-(bit + 0.5) / 2**32) / weight if weight else math.inf for bit, weight in zip(bits, weights)]
    return times.index(min(times))


def sampled(model, source: list[int], limit: int, sampling, seed: int, tilt=None) -> list[int]:
    """The tokens, without eos, that a verifier says when it draws each of them."""
    return sampled_all(model, [source], [limit], sampling, [seed], tilt)[0]


def sampled_all(model, sources: list[list[int]], limits: list[int], sampling, seeds: list[int], tilt=None) -> list[list[int]]:
    """`sampled` of each source with its seed."""
    return said_by_all(
        model, sources, limits, lambda number, logits, output: drawn(logits, output, sampling, seeds[number]), tilt
    )


def chances(model, source: list[int], limit: int, sampling, tilt=None) -> dict[tuple[int, ...], float]:
    """Every sentence that sampling may say, eos included unless the limit cut it, and its probability."""
    found, going = {}, {(): 1.0}
    for _ in range(limit):
        logits = following_all(model, encode(model, *[source] * len(going)), list(going), tilt)
        longer = {
            (*output, token): chance * weight
            for (output, chance), row in zip(going.items(), logits.tolist())
            for token, weight in enumerate(warped(row, list(output), sampling))
            if weight
        }
        found |= {output: chance for output, chance in longer.items() if output[-1] == EOS}
        going = {output: chance for output, chance in longer.items() if output[-1] != EOS}
    return found | going


def tolerant(model, source: list[int], limit: int, plan: list[int], block: int, beta: int, tau: float, tilt=None):
    """Decoding by turns, where a drafted token passes if it is one of the ``beta`` best and within ``tau`` of the best.

    The draft after n tokens is ``plan[n : n + block]``, whatever those n tokens are. Returns the output without eos; of each
    turn the offered draft, how many of its tokens passed and the token after them (None if the draft's eos passed); and
    whether the output was cut, that is, would have gone on at the limit.
    """
    output: list[int] = []
    turns = []
    encoder_out = encode(model, source)
    cut = False
    while EOS not in output:
        draft = plan[len(output) : min(len(output) + block, limit)]
        draft = draft[: draft.index(EOS) + 1] if EOS in draft else draft
        passed, correction = 0, None
        for token in [*draft, None]:
            scores = following(model, encoder_out, output, tilt).tolist()
            ranked = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
            if len(output) == limit:
                cut = ranked[0] != EOS
                ranked = [EOS]
            if token not in ranked[:beta] or scores[ranked[0]] - scores[token] > tau or scores[token] == -math.inf:
                correction = ranked[0]
                output.append(correction)
                break
            passed += 1
            output.append(token)
            if token == EOS:
                break
        turns.append((draft, passed, correction))
    return output[:-1], turns, cut


@torch.no_grad()
def log_probabilities(model, source: list[int], output: list[int], tilt=None) -> torch.Tensor:
    """(n + 1, V) the verifier's log-probabilities at each of the n tokens of an output and after them."""
    logits = model.decoder(torch.tensor([[EOS, *output]]), encoder_out=encode(model, source))[0][0]
    return (logits if tilt is None else logits + tilt[: len(output) + 1]).log_softmax(-1)


@torch.no_grad()
def drafted(model, source: list[int], prefix: list[int], num_tokens: int, mask: int = MASK, project: bool = True) -> torch.Tensor:
    """(K, V) logits of the tokens that a block drafter guesses after a prefix; or the (K, D) features they are made of."""
    masks = [mask] * num_tokens
    tokens = [*prefix, *masks] if isinstance(model, BlockDrafterModel) else [EOS, *prefix, *masks[1:]]
    features = model.decoder.extract_features(torch.tensor([tokens]), encode(model, source))[0][0, len(prefix) :]
    return model.decoder.output_layer(features) if project else features


@torch.no_grad()
def chosen(model, source: list[int], prefix: list[int], num_tokens: int, tilt=None) -> list[int]:
    """The tokens that the plugin's drafter guesses after a prefix; each behind the one before, if it has a successor network."""
    features = drafted(model, source, prefix, num_tokens, project=False)
    said: list[int] = []
    vocabulary = getattr(model.decoder, "draft_vocabulary", None)  # all that it drafts, if not everything
    for place, feature in enumerate(features):
        successor = getattr(model.decoder, "successor", None) if place else None
        extra = 0 if successor is None else successor(feature, model.decoder.embed_tokens.weight[said[-1]])
        plain, logits = (model.decoder.output_layer(each) for each in (feature, feature + extra))
        for each in (plain, logits):
            if tilt is not None:
                each += tilt[len(prefix) + place]
            each[PAD] = -math.inf
            if vocabulary is not None:
                each[[token for token in range(len(each)) if token not in vocabulary]] = -math.inf
            if not prefix and not place:
                each[EOS] = -math.inf
        few = plain.argsort(descending=True)[:16]  # a successor network chooses among these
        said.append(int(few[logits[few].argmax()]))
    return said


def draft_alone(model, source: list[int], limit: int, block: int, tilt=None) -> list[int]:
    """The tokens, without eos, that a block drafter says with nobody to check it: block after block, up to eos or the limit."""
    output: list[int] = []
    while len(output) < limit:
        output += chosen(model, source, output, block, tilt)
        if EOS in output:
            output = output[: output.index(EOS)]
            break
    return output[:limit]
