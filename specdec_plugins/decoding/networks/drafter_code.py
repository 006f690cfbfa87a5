"""Train a drafter that is one file: what its file offers, and what it gets. Knows torch, not fairseq.

A drafter's file has an object with

    Options   a dataclass of int, float, str and bool fields with defaults: the drafter's options
    Network   a torch module, made by ``Network(options, verifier)``, with ``loss(batch) -> Loss``; its tensors are the weights
    build     ``build(weights, model, verifier) -> Drafter``, its decoding half: `specdec_plugins.decoding.drafters`

and is named as ``module:object``, by an installed entry point of the group ``specdec.drafters``, or as a file of
`specdec_plugins.decoding.drafters`. It trains with

    fairseq-train DATA --user-dir specdec_plugins --task translation --arch drafter --criterion drafter_loss \\
        --drafter module:object --drafter-options width=64 --verifier VERIFIER.pt ...

B sentences, S source positions, T target positions, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.cache import hide
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.transformer import Placement, Transformer
from specdec_plugins.decoding.networks.decoder import embedded, features
from specdec_plugins.decoding.values import Source, Want
from specdec_plugins.formats.spec import Model, ModelSpec, Symbols


class Loss(NamedTuple):
    """``total`` in nats, summed over ``predictions``. ``right`` (N, K) bool, if given, tells which positions of N blocks
    were predicted right, from which ``accept_len`` is logged."""

    total: Tensor
    predictions: Tensor | int
    right: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """Sentences to train on, padded on the right with ``symbols.pad``."""

    source: Tensor  # (B, S) int64, each closed by eos
    prefix: Tensor  # (B, T) int64: the start token, then the target without its eos
    target: Tensor  # (B, T) int64, each closed by eos
    symbols: Symbols
    verifier: "FrozenVerifier"


class FrozenVerifier:
    """The verifier as a fixed function, for drafters that read its embeddings, hidden states or logits."""

    def __init__(self, model: Model, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.spec: ModelSpec = model.spec
        self.tensors = Placement(device, dtype)(model.tensors)  # by canonical names
        self.transformer = Transformer.load(replace(model, tensors=self.tensors))
        self.model = TorchModel(self.transformer)

    @property
    def vocabulary(self) -> int:
        """V"""
        return self.transformer.decoder.projection.size(0)

    @property
    def embeddings(self) -> Tensor:
        """(V, D) of the target side."""
        return self.transformer.decoder.embedding.tokens

    @torch.no_grad()
    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) output of the encoder, undefined past a sentence's end, and what hides these positions from attention:
        (B, 1, 1, S), added to its scores."""
        sources = Source(without(source, self.spec.symbols.pad), self.spec.symbols, source.device)
        encoded = self.transformer.encoder(sources)
        past = torch.arange(sources.longest, device=source.device) >= sources.lengths[:, None]
        return encoded, hide(past, encoded.dtype)[:, None, None]

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T, D) embeddings of target tokens (B, T), scaled as the verifier reads them, without positions."""
        return self.transformer.decoder.embedding.embed(tokens)

    @torch.no_grad()
    def states(self, prefix: Tensor, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, T, D) hidden states after each token of a prefix (B, T), given what `encode` returns."""
        decoder = self.transformer.decoder
        return features(decoder, embedded(decoder, prefix), encoded, hidden)

    def read(self, source: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, V) logits and (B, T, D) hidden states after each token of a prefix; undefined past its end. No gradient."""
        sources, tokens = (without(each, self.spec.symbols.pad) for each in (source, prefix))
        state = self.model.start(len(sources))
        state.admit(Source(sources, self.spec.symbols, source.device))
        done = self.model.read(state, Reading(tokens, [0] * len(tokens), want=Want(features=True)))
        return done.logits().clone(), done.features().clone()  # copies that may take part in a gradient's computation


def without(tokens: Tensor, pad: int) -> list[list[int]]:
    """Padded rows (B, T) as lists without padding."""
    return [[token for token in row if token != pad] for row in tokens.tolist()]


def blocks(right: Tensor, present: Tensor, size: int) -> Tensor:
    """(N, K) for the N positions of a target (B, T) that are ``present``: whether each of the K = ``size`` predictions from there
    on is ``right`` (B, T); none is past the end."""
    return F.pad(right & present, (0, size - 1)).unfold(1, size, 1)[present]


def options_of(kind: type, given: Mapping[str, Any] | Sequence[str] | None) -> Any:
    """A drafter's typed options, of its dataclass ``kind``, from their values, or from texts such as ``width=64``.

    Raises ValueError that names every option that does not exist or does not fit its type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    pairs = given.items() if isinstance(given, Mapping) else [item.partition("=")[::2] for item in given or ()]
    values, faults = {}, []
    for name, value in pairs:
        if name not in fields:
            faults.append(f"no option '{name}'; available: {', '.join(fields) or 'none'}")
            continue
        wanted = type(fields[name].default)
        try:
            values[name] = parsed(value, wanted)
        except (TypeError, ValueError, OverflowError):  # values from outside are of any type
            faults.append(f"option {name}: '{value}' is no {wanted.__name__}")
    if faults:
        raise ValueError("; ".join(faults))
    return kind(**values)


def at_least_one(options: Any, *names: str) -> None:
    """Raise ValueError for fields of options that are less than 1."""
    faults = [f"option {name} is {getattr(options, name)}, less than 1" for name in names if getattr(options, name) < 1]
    if faults:
        raise ValueError("; ".join(faults))


def parsed(value: Any, kind: type) -> Any:
    """A value or its text as ``kind``. Raises ValueError."""
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError(value)
        return str(value).lower() == "true"
    return kind(value)
