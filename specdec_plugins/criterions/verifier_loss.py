"""``--criterion verifier_loss``: fairseq's label-smoothed cross-entropy, in bfloat16 on request and by the faster kernel."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.modules import MultiheadAttention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.training.precision import mixed

# Target tokens from which a CPU uses the flash kernel. Forward and backward of 4 heads of 64, one thread of a 2.5 GHz Xeon,
# flash and plain in milliseconds: 250 tokens (batch of 16) 97 and 127, 1,000 (4) 270 and 530, 4,000 (1) 970 and 2,150. It stores
# no weights for pairs of positions either. On batches of many short sentences it is slower.
LONG = 256

# With these arguments, fairseq's cross-attention (which expects decoding) accepts masks and kernels as self-attention does.
AS_IN_TRAINING = {"static_kv": False, "need_weights": False, "need_head_weights": False}


@contextmanager
def flash_attention(model: nn.Module) -> Iterator[None]:
    """Use the flash kernel in every attention layer, including cross-attention, which fairseq computes as in decoding."""

    def as_in_training(_, args, kwargs):
        return args, kwargs | AS_IN_TRAINING

    layers = [layer for layer in model.modules() if isinstance(layer, MultiheadAttention) and layer.encoder_decoder_attention]
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        for layer in layers:
            stack.enter_context(layer.register_forward_pre_hook(as_in_training, with_kwargs=True))
        yield


@register_criterion("verifier_loss", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class VerifierLoss(LabelSmoothedCrossEntropyCriterion):
    """fairseq's loss; with ``SPECDEC_MATMUL=bf16`` the model runs under autocast on a CPU.

    fairseq has no autocast on CPUs; a criterion sees the whole forward pass and leaves the checkpoint a stock Transformer's, so
    autocast and the kernel for long batches (`LONG`) are chosen here.
    """

    def forward(self, model, sample, reduce=True):
        device = sample["target"].device.type
        long = device == "cpu" and sample["target"].size(1) >= LONG
        flash = flash_attention(model) if long else nullcontext()
        with mixed(device), flash:
            return self.compute(model, sample, reduce)

    def compute(self, model, sample, reduce):
        """The loss of a batch, once kernels and precision are set."""
        return super().forward(model, sample, reduce)
