"""The oracle: greedy decoding of one sentence by fairseq's own model, with no cache, no batch and nothing clever."""

import math

import torch


@torch.no_grad()
def greedy(model, source: list[int], limit: int, tilt=None, pad: int = 1, eos: int = 2) -> list[int]:
    """The tokens, without eos, that a verifier says when it always takes its best one.

    fairseq's conventions: never pad, no empty output, eos after ``limit`` tokens whatever the model would say.
    ``tilt`` (positions, V) is added to the logits.
    """
    output: list[int] = []
    encoder_out = model.encoder(torch.tensor([source]), src_lengths=torch.tensor([len(source)]))
    while len(output) < limit:
        logits = model.decoder(torch.tensor([[eos, *output]]), encoder_out=encoder_out)[0][0, -1]
        if tilt is not None:
            logits += tilt[len(output)]
        logits[pad] = -math.inf
        if not output:
            logits[eos] = -math.inf
        best = int(logits.argmax())
        if best == eos:
            break
        output.append(best)
    return output


@torch.no_grad()
def drafted(model, source: list[int], prefix: list[int], num_tokens: int, mask: int = 3) -> torch.Tensor:
    """(K, V) logits of the plugin's block drafter at the mask symbols after a prefix."""
    tokens = torch.tensor([prefix + [mask] * num_tokens])
    return model(torch.tensor([source]), torch.tensor([len(source)]), tokens)[0, len(prefix) :]
