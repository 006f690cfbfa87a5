"""Train a drafter on a frozen verifier with PyTorch alone: network, optimiser, schedule and state. Reads no clock and no text.

Loss, masks, kernels, optimiser and learning rate are those of ``fairseq-train --arch drafter --criterion drafter_loss
--optimizer muon --lr-scheduler plateau``. Batches are not: fairseq keeps those of the first epoch.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.decoding.loading import DRAFT_VOCABULARY
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier, network_of
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.files import whole
from specdec_plugins.formats.spec import DrafterModel, Model, fingerprint
from specdec_plugins.model.spec import ModelSpec
from specdec_plugins.training import presets
from specdec_plugins.training.muon import Muon, is_hidden
from specdec_plugins.training.pairs import Pair, batch_of, batches
from specdec_plugins.training.precision import mixed

# Parts of a training in which the learning rate rises, at most, and falls. After 100 updates on 5,600 lines of documentation
# `accept_len` on held-out lines is 3.12; if it falls from the start on, 2.64.
WARMUP, FALL = 0.1, 0.4


def trainable(name: str, given: Sequence[str] | Mapping[str, Any]) -> tuple[Any, Any]:
    """A drafter's code and its options. Raises ValueError for one that cannot be trained, and for wrong options."""
    code = drafters.find(name)
    parts = {"Options": getattr(code, "Options", None), "Network": network_of(code)}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise ValueError(f"--drafter {name} has no {' and no '.join(missing)}, so it cannot be trained")
    try:
        return code, options_of(code.Options, given)
    except ValueError as error:
        raise ValueError(f"--drafter-options: {error}") from None


@dataclass(frozen=True)
class Plan:
    """What is trained, and how: ``code`` by its name; drafts are restricted to the tokens ``drafted``, if any."""

    code: str
    options: Mapping[str, Any]
    block_size: int
    drafted: tuple[int, ...]
    lr: float
    warmup: int  # updates
    tokens: int  # of either side in an update, at most
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float
    seed: int

    @classmethod
    def of(cls, recipe: str, given: Sequence[str], layers: int, drafted: Sequence[int] = (), seed: int = 1) -> "Plan":
        """The plan of a recipe, as in ``train.sh``. ``given`` options of the drafter (NAME=VALUE) override the recipe's. The
        drafter has at most ``layers`` layers, as many as the verifier's decoder. Raises ValueError."""
        preset = presets.for_folder(recipe)
        options, how = asdict(trainable(preset["code"], [*preset["drafter_options"], *given])[1]), preset["options"]
        if options.get("layers", 0) > layers:
            if any(each.startswith("layers=") for each in given):
                raise ValueError(f"--drafter-options layers={options['layers']}: the verifier has {layers}")
            options["layers"] = layers
        first, second = map(float, how["adam-betas"].strip("()").split(","))
        return cls(
            preset["code"],
            options,
            options.get("length", preset["block_size"]),
            tuple(drafted),
            how["lr"],
            how["warmup-updates"],
            preset["tokens"],
            (first, second),
            how["adam-eps"],
            how["weight-decay"],
            how["clip-norm"],
            seed,
        )

    def check(self, verifier: ModelSpec) -> None:
        """Raises ValueError for a verifier that this drafter cannot be trained for."""
        if hasattr(code := drafters.find(self.code), "check"):
            code.check(verifier)


class Training:
    """A drafter in training on pairs. ``updates`` counts from the beginning, also after `restore`."""

    def __init__(self, plan: Plan, verifier: Model, pairs: Sequence[Pair]):
        self.plan, self.pairs, self.mark = plan, pairs, fingerprint(verifier)
        self.verifier = FrozenVerifier(verifier, drafted=torch.tensor(plan.drafted) if plan.drafted else None)
        code, options = trainable(plan.code, plan.options)
        torch.manual_seed(plan.seed)
        self.network = network_of(code)(options, self.verifier)
        parameters = [*self.network.parameters()]
        self.optimiser = Muon(
            [each for each in parameters if is_hidden(each)],
            [each for each in parameters if not is_hidden(each)],
            plan.lr,
            plan.betas,
            plan.eps,
            plan.weight_decay,
        )
        self.updates = 0
        self._begin(epoch=0)

    @classmethod
    def of(cls, drafter: DrafterModel, verifier: Model, seed: int = 1) -> "Training":
        """The further training of a drafter, on pairs that `feed` gives. Raises ValueError for one that cannot be trained."""
        given = [f"{name}={value}" for name, value in drafter.options.items()]
        drafted = [int(each) for each in drafter.tensors.get(DRAFT_VOCABULARY, ())]
        plan = Plan.of(drafter.code, given, verifier.spec.decoder.layers, drafted, seed)
        made = cls(replace(plan, block_size=drafter.block_size), verifier, [])
        made.adopt(drafter)
        return made

    def adopt(self, drafter: DrafterModel) -> None:
        """Continue from a drafter's weights, with a new optimiser. Raises ValueError if they are not those of this network."""
        tensors = {name: torch.tensor(array(each)) for name, each in drafter.tensors.items() if name != DRAFT_VOCABULARY}
        with refused():
            self.network.load_state_dict(tensors)
        self.optimiser.state.clear()

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return len(self._order)

    def feed(self, pairs: Sequence[Pair]) -> None:
        """Train on these pairs from now on."""
        self.pairs = pairs
        self._begin(self.epoch + 1)

    def _begin(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0  # the position is a batch of the epoch
        self._order = batches(self.pairs, self.plan.tokens, self.plan.seed, epoch)

    def update(self, progress: float) -> float:
        """Train on the next batch. ``progress``, from 0 to 1, is the part of the training that is over. Returns the loss, in nats
        per prediction."""
        if self.position == len(self._order):
            self._begin(self.epoch + 1)
        batch = batch_of([self.pairs[number] for number in self._order[self.position]], self.verifier, progress)
        rate = learning_rate(self.plan.lr, self.plan.warmup, self.updates, progress)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.network.train()
        self.optimiser.zero_grad(set_to_none=True)
        with mixed("cpu"):
            loss = self.network.loss(batch)
        mean = loss.total / loss.predictions
        mean.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.plan.clip)
        self.optimiser.step()
        self.updates, self.position = self.updates + 1, self.position + 1
        return mean.item()

    def drafter(self) -> DrafterModel:
        """The drafter as it is now, in float16, to be decoded with or saved."""
        tensors = {name: half(tensor.detach()) for name, tensor in self.network.state_dict().items()}
        if self.plan.drafted:
            tensors[DRAFT_VOCABULARY] = torch.tensor(self.plan.drafted)
        return DrafterModel(self.plan.code, tensors, None, self.plan.options, self.plan.block_size, self.mark)

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write the whole state, with ``extra`` numbers, strings and lists: all of it or nothing. Raises OSError."""
        buffer = io.BytesIO()  # torch would turn a full disk into a RuntimeError
        position = {"updates": self.updates, "epoch": self.epoch, "position": self.position}
        state = {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict(), "random": torch.get_rng_state()}
        torch.save({**state, **position, "drafted": [*self.plan.drafted], "extra": dict(extra)}, buffer)
        with whole(path) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `load` has read, of a training of the same plan. Raises ValueError for another's."""
        with refused():
            self.network.load_state_dict(state["network"])
            self.optimiser.load_state_dict(state["optimiser"])
            torch.set_rng_state(state["random"])
            self._begin(int(state["epoch"]))
            self.updates, self.position = int(state["updates"]), int(state["position"])
            if not 0 <= self.position <= len(self._order):
                raise ValueError(f"it is at batch {self.position:,} of {len(self._order):,}")


@contextmanager
def refused() -> Iterator[None]:
    """Turns whatever a damaged state raises into ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


def load(path: Path) -> dict[str, Any]:
    """A state that `Training.save` wrote. Raises ValueError naming a damaged file, OSError."""
    data = path.read_bytes()
    try:
        with refused():
            state = torch.load(io.BytesIO(data), weights_only=True)
            if not {"network", "optimiser", "random", "updates", "drafted", "extra"} <= {*state}:
                raise ValueError("it is no state of a training")
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}); remove it to train from the start") from None
    return state


def half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def learning_rate(highest: float, warmup: int, updates: int, progress: float) -> float:
    """It rises over ``warmup`` updates, or `WARMUP` of a short training, stays, and falls to 0 over the last part, `FALL`."""
    risen = min(1.0, max((updates + 1) / max(1, warmup), progress / WARMUP))
    return highest * risen * min(1.0, max(0.0, 1 - progress) / FALL)
