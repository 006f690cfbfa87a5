"""``--criterion drafter_loss``: the loss of a drafter that is one file; see `decoding.networks.drafter_code`."""

from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass

from specdec_plugins.criterions.glat_loss import GlatLoss, acceptance_counts
from specdec_plugins.decoding.networks.drafter_code import Batch
from specdec_plugins.formats.spec import Symbols


@register_criterion("drafter_loss", dataclass=FairseqDataclass)
class DrafterLoss(GlatLoss):
    """Sum of the drafter's losses; fairseq divides it by the number of predictions over the update."""

    def __init__(self, task):
        super().__init__(task, label_smoothing=0.0)

    def forward(self, model, sample, reduce=True):
        """Returns (loss, number of predictions, logging output)."""
        if not hasattr(model, "verifier_as"):
            raise ValueError("--criterion drafter_loss requires --arch drafter")
        dictionary = self.task.target_dictionary
        symbols = Symbols(dictionary.pad(), dictionary.eos(), dictionary.eos(), dictionary.unk())
        source, target = sample["net_input"]["src_tokens"], sample["target"]
        padded = source.eq(symbols.pad)
        source = source.gather(1, padded.long().argsort(dim=1, stable=True))  # fairseq pads sources on the left
        prefix, verifier = sample["net_input"]["prev_output_tokens"], model.verifier_as(next(model.parameters()))
        loss, count, right = model(Batch(source, prefix, target, symbols, verifier))
        log = {"loss": loss.data, "nll_loss": loss.data, "sample_size": count, "ntokens": sample["ntokens"]}
        if right is not None:
            log |= {**acceptance_counts(right), "nblocks": right.size(0)}
        return loss, count, {**log, "nsentences": target.size(0)}
