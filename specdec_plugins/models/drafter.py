"""``--arch drafter``: trains a drafter that is one file with fairseq-train; see `decoding.networks.drafter_code`."""

from dataclasses import asdict
from pathlib import Path

import torch
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture

from specdec_plugins.decoding.loading import frequent
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, network_of
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import Model, fingerprint
from specdec_plugins.training.drafting import trainable
from specdec_plugins.training.token_ids import counts_of


@register_model("drafter")
class DrafterShim(BaseFairseqModel):
    """A drafter's network and its frozen verifier, which the checkpoint omits."""

    @classmethod
    def add_args(cls, parser):
        parser.add_argument("--drafter", metavar="NAME", help="a built-in drafter, module:object, or an installed entry point")
        parser.add_argument("--drafter-options", nargs="*", default=[], metavar="NAME=VALUE", help="options of the drafter")
        parser.add_argument("--verifier", metavar="PT|DIR", help="checkpoint or model folder of the verifier")
        parser.add_argument("--drafter-block-size", type=int, default=4, metavar="K", help="default draft length")

    @classmethod
    def build_model(cls, args, task):
        if not args.drafter or not args.verifier:
            raise ValueError("--arch drafter needs --drafter and --verifier")
        code, options = trainable(args.drafter, args.drafter_options)
        model = read_verifier(args.verifier)
        counts = None
        for side, dictionary in (("encoder", task.source_dictionary), ("decoder", task.target_dictionary)):
            rows = model.tensors[f"{side}.embed_tokens.weight"].shape[0]
            counts = counts_of(dictionary, rows)
            if counts is None and rows != len(dictionary):
                raise ValueError(f"--verifier {args.verifier} has {rows:,} symbols in its {side}, the data {len(dictionary):,}")
        args.drafter_options = asdict(options)  # complete and typed, for the checkpoint
        return cls(code, options, model, None if counts is None else frequent(counts, [model.spec.symbols.eos]))

    def __init__(self, code, options, model: Model, drafted: list[int] | None = None):
        """``drafted`` restricts drafts to these tokens; the data then contain `token_ids`."""
        super().__init__()
        self._verifier = model
        self._frozen: FrozenVerifier | None = None
        self.drafted: torch.Tensor | None
        self.register_buffer("drafted", None if drafted is None else torch.tensor(drafted))
        self.network = network_of(code)(options, self.verifier_as(torch.zeros(0)))
        self.register_buffer("block_verifier", torch.tensor(list(bytes.fromhex(fingerprint(model))), dtype=torch.uint8))

    def verifier_as(self, like: torch.Tensor) -> FrozenVerifier:
        """The verifier on a tensor's device and in its data type, reloaded when these change."""
        if self._frozen is None or (self._frozen.embeddings.device, self._frozen.embeddings.dtype) != (like.device, like.dtype):
            self._frozen = FrozenVerifier(self._verifier, like.device, like.dtype, self.drafted)
        return self._frozen

    def forward(self, batch: Batch) -> Loss:
        """The drafter's loss. Data-parallel training only synchronises gradients of what `forward` computed."""
        return self.network.loss(batch)

    def upgrade_state_dict(self, state_dict):
        """A resumed checkpoint belongs to the verifier that it now trains on."""
        super().upgrade_state_dict(state_dict)
        state_dict["block_verifier"] = self.block_verifier

    def max_positions(self):
        spec = self._verifier.spec
        return spec.encoder.max_positions, spec.decoder.max_positions


def read_verifier(path: str) -> Model:
    """The verifier of a model folder or a checkpoint. Raises ValueError."""
    model = load_folder(path).verifier if Path(path).is_dir() else fairseq.read(checkpoint.load(path), path)
    if not isinstance(model, Model):
        raise ValueError(f"--verifier {path} is a drafter")
    return model


@register_model_architecture("drafter", "drafter")
def drafter_architecture(args):
    """No defaults: see ``--drafter-options``."""
