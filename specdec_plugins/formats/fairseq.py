"""fairseq's naming: from the settings and weights of a checkpoint to a neutral model. Never imports fairseq.

Covers fairseq's ``transformer``, ``bart`` and ``mbart``, and the project's drafters ``block`` and ``block_causal``, as written by
versions 0.6 to 0.12. A checkpoint's settings are of five kinds:

1. how the model computes: they go into its `ModelSpec`;
2. changes that the engine does not support: refused unless harmless (`HARMLESS`);
3. training, or without effect unless one of the second kind is on (`WITHOUT_EFFECT`);
4. unknown ones named like fairseq's model options (`MODEL_OPTION`): refused by name unless None, since their effect is unknown;
5. everything else concerns training, data or generation, and is ignored.
"""

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import Arrays, Tensors, arrays
from specdec_plugins.formats.checkpoint import Checkpoint, CheckpointError, model_args, task_settings
from specdec_plugins.formats.errors import brief, listed
from specdec_plugins.formats.spec import DrafterModel, Model, own_shapes, sides, sinusoidal_table, tensor_faults, tensor_shapes
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, SideSpec, Symbols

PAD = Symbols().pad
OFFSET = PAD + 1  # a position table's row for the first token: fairseq counts from the padding symbol's id + 1
POSITIONS = 1024  # fairseq's default for --max-source-positions and --max-target-positions
PUBLISHED_BLOCK_SIZE = 25
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "swish"}
DRAFTERS = ("block", "block_causal")  # architectures of drafters, named like the engine's
SHIM = "drafter"  # the architecture of drafters in one file: `models.drafter`
ARCHITECTURES = ("transformer", "bart", "mbart", *DRAFTERS)  # by the first part of --arch
SIDES = ("encoder", "decoder")

SPEC_SETTINGS = frozenset(
    {
        *"arch _name activation_fn max_source_positions max_target_positions no_scale_embedding".split(),
        *"layernorm_embedding no_decoder_final_norm share_all_embeddings share_decoder_input_output_embed".split(),
        *"decoder_input_dim decoder_output_dim src_embedding_copy successor_width".split(),
        *(
            f"{side}_{name}"
            for side in SIDES
            for name in "embed_dim ffn_embed_dim layers attention_heads normalize_before learned_pos".split()
        ),
    }
)
HARMLESS: dict[str, tuple[Any, ...]] = {  # besides None
    **dict.fromkeys(
        """
            adaptive_input char_inputs cross_self_attention full_context_alignment merge_src_tgt_embed no_cross_attention
            no_token_positional_embeddings scale_attn scale_fc scale_heads scale_resids
        """.split(),
        (False,),
    ),
    **dict.fromkeys(("base_layers", "quant_noise_pq", "quant_noise_scalar"), (0,)),
    **dict.fromkeys((f"{side}_{name}" for side in SIDES for name in ("layers_to_keep", "xformers_att_config")), ("",)),
    "adaptive_softmax_cutoff": (),
}
WITHOUT_EFFECT = frozenset(
    """
        activation_dropout attention_dropout dropout relu_dropout encoder_layerdrop decoder_layerdrop encoder_embed_path
        decoder_embed_path checkpoint_activations offload_activations min_params_to_wrap export adaptive_input_cutoff
        adaptive_input_factor adaptive_softmax_dropout adaptive_softmax_factor tie_adaptive_weights tie_adaptive_proj
        base_sublayers base_shuffle quant_noise_pq_block_size apply_bert_init freeze_encoder pooler_activation_fn pooler_dropout
        spectral_norm_classification_head
    """.split()
)
# fairseq's names for model options...
MODEL_OPTION = re.compile(
    r"(encoder|decoder|share|no|scale|layernorm|activation|adaptive|attention|base|cross|quant_noise|tie)_|max_(.+_)?positions$"
)
# ...and options of training, data and generation that look the same.
NO_MODEL_OPTIONS = frozenset(
    """
        decoder_langtok encoder_langtok max_positions no_beamable_mm no_bias_correction no_early_stop no_epoch_checkpoints
        no_last_checkpoints no_progress_bar no_repeat_ngram_size no_reshard_after_forward no_save no_save_optimizer_state
        no_save_optimizer_state_on_training_finished no_seed_provided no_shuffle no_whole_word_mask_langs scale_parameter
    """.split()
)
# Not part of the function: counters, sinusoidal tables (computed again), unused heads, markers.
NO_WEIGHTS = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.(weights|_float_tensor))|classification_heads\..*|block_(format|verifier)"
)


def read(checkpoint: Checkpoint, name: str) -> Model | DrafterModel:
    """The model of a loaded checkpoint, called ``name`` in errors: a `DrafterModel` if its architecture is a drafter's.

    Raises CheckpointError with everything that the engine does not support.
    """
    try:
        return _read(checkpoint, name)
    except CheckpointError:
        raise
    except (TypeError, AttributeError, KeyError, IndexError, RuntimeError, OverflowError, ValueError) as error:
        # Untrusted settings and weights can be of any type.
        raise CheckpointError(f"{name}: damaged or foreign settings ({type(error).__name__}: {brief(error)})") from None


def _read(checkpoint: Checkpoint, name: str) -> Model | DrafterModel:
    args = flat(model_args(checkpoint))
    if architecture(args) == SHIM:
        return shimmed(checkpoint, args, name)
    if faults := list(setting_faults(args)):
        raise CheckpointError(f"{name}: the engine does not support {listed(faults, '; ', 40)}")
    weights = modern_names(arrays(checkpoint["model"]))
    if absent := [weight for weight in announced(args) if weight not in weights]:
        raise CheckpointError(f"{name}: weights that its settings imply are missing: {listed(absent)}")
    code = architecture(args) if architecture(args) in DRAFTERS else None
    form = int(weights["block_format"].item()) if "block_format" in weights else 1
    if code and form not in (1, 2):
        raise CheckpointError(f"{name}: block drafter of format {form}; this version reads formats 1 and 2")
    try:
        spec = spec_of(args, weights, unscaled=bool(args.get("no_scale_embedding")) or (code is not None and form == 1))
    except ValueError as error:
        raise CheckpointError(f"{name}: {brief(error, 1000)}") from None
    tensors = canonical(weights, spec)
    given = tensor_shapes(tensors)
    # A drafter's own tensors are checked by its code.
    if faults := tensor_faults(spec, given, own_shapes(spec, given) if code else None):
        raise CheckpointError(f"{name}: {'; '.join(faults)}")
    if not code:
        return Model(spec, tensors)
    size = int(task_settings(checkpoint).get("block_size") or PUBLISHED_BLOCK_SIZE)
    return DrafterModel(code, tensors, spec, drafter_options(code, tensors), size, verifier_mark(weights))


def shimmed(checkpoint: Checkpoint, args: Mapping[str, Any], name: str) -> DrafterModel:
    """The drafter of a checkpoint of ``--arch drafter``: its code's name, options and tensors. Raises CheckpointError."""
    if not isinstance(args.get("drafter"), str) or not isinstance(args.get("drafter_options"), dict):
        raise CheckpointError(f"{name}: does not name its drafter")
    weights, prefix = arrays(checkpoint["model"]), "network."
    tensors = {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}
    if "drafted" in weights:
        tensors["decoder.draft_vocabulary"] = weights["drafted"]
    size = int(args.get("drafter_block_size") or 1)
    return DrafterModel(args["drafter"], tensors, None, args["drafter_options"], size, verifier_mark(weights))


def flat(settings: argparse.Namespace) -> dict[str, Any]:
    """Settings as one dictionary: fairseq's dataclass nests those of the two sides and of quantisation noise."""
    result = {}
    for key, value in vars(settings).items():
        if key in (*SIDES, "quant_noise") and not isinstance(value, bool | int | float | str | None):
            inner = value if isinstance(value, Mapping) or hasattr(value, "items") else vars(value)
            result.update({f"{key}_{name}": each for name, each in inner.items() if not name.startswith("_")})
        else:
            result[key] = value
    return result


def architecture(args: Mapping[str, Any]) -> str:
    return str(args.get("arch") or args.get("_name") or "")


def setting_faults(args: Mapping[str, Any]) -> Iterator[str]:
    """Everything that the engine does not support."""
    arch = architecture(args)
    if arch.split("_")[0] not in ARCHITECTURES or arch.startswith("transformer_lm"):
        yield f"architecture '{arch}'; available: {', '.join(ARCHITECTURES)} and those named after them"
    activation = args.get("activation_fn") or "relu"
    if activation not in ACTIVATIONS:
        yield f"--activation-fn {activation}; available: {', '.join(ACTIVATIONS)}"
    for part in ("input", "output"):
        width = args.get(f"decoder_{part}_dim")
        if width not in (None, args.get("decoder_embed_dim")):
            yield f"--decoder-{part}-dim {width} with --decoder-embed-dim {args.get('decoder_embed_dim')}"
    for needed in ("encoder_embed_dim", "decoder_embed_dim", "encoder_attention_heads", "decoder_attention_heads"):
        if not args.get(needed):
            yield f"no '{needed}' in its settings"
    for setting, value in args.items():
        if value is None or setting in SPEC_SETTINGS | WITHOUT_EFFECT | NO_MODEL_OPTIONS:
            continue
        option = f"--{setting.replace('_', '-')} {value}"
        if setting in HARMLESS and value not in HARMLESS[setting]:
            yield option
        elif setting not in HARMLESS and MODEL_OPTION.match(setting):
            yield f"the unknown model option {option}"


def announced(args: Mapping[str, Any]) -> Iterator[str]:
    """Optional weights that these settings imply, one of each group."""
    for side in SIDES:
        if args.get(f"{side}_layers"):
            yield f"{side}.layers.{int(args[f'{side}_layers']) - 1}.fc1.weight"
        if args.get(f"{side}_learned_pos"):
            yield f"{side}.embed_positions.weight"
        if args.get("layernorm_embedding"):
            yield f"{side}.layernorm_embedding.weight"
    if args.get("share_decoder_input_output_embed") is False and not args.get("share_all_embeddings"):
        yield "decoder.output_projection.weight"
    if architecture(args) == "block_causal" and args.get("successor_width"):
        yield "decoder.successor.out.weight"


def modern_names(weights: Arrays) -> Tensors:
    """Weights by fairseq 0.12's names; older versions named and packed some differently."""
    norms = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    renamed: Tensors = {}
    for name, tensor in weights.items():
        side, _, rest = name.partition(".")
        number = re.fullmatch(r"(layers\.\d+)\.layer_norms\.(\d)\.(weight|bias)", rest)
        packed = re.fullmatch(r"(.*)in_proj_(weight|bias)", name)
        if number and side in norms:
            renamed[f"{side}.{number[1]}.{norms[side][int(number[2])]}_layer_norm.{number[3]}"] = tensor
        elif packed:
            rows = -(-len(tensor) // 3)
            for place, part in enumerate("qkv"):
                renamed[f"{packed[1]}{part}_proj.{packed[2]}"] = tensor[place * rows : (place + 1) * rows]
        elif name == "decoder.embed_out":
            renamed["decoder.output_projection.weight"] = tensor
        else:
            renamed[name] = tensor
    for side, first_with_norm in (("encoder", 2), ("decoder", 3)):
        # Older versions never normalise after the last layer, whatever the file contains.
        if float(weights.get(f"{side}.version", np.ones(1)).flatten()[0]) < first_with_norm:
            renamed = {name: tensor for name, tensor in renamed.items() if not name.startswith(f"{side}.layer_norm.")}
    return renamed


def spec_of(args: Mapping[str, Any], weights: Arrays, unscaled: bool) -> ModelSpec:
    """The spec from the settings, or from the weights where settings are missing. Raises ValueError with every fault."""

    def side(name: str, positions: str) -> SideSpec:
        width, prenorm = int(args[f"{name}_embed_dim"]), bool(args.get(f"{name}_normalize_before"))
        table, inner = weights.get(f"{name}.embed_positions.weight"), weights.get(f"{name}.layers.0.fc1.weight")
        most = POSITIONS if table is None else len(table) - OFFSET
        layers = {key.split(".")[2] for key in weights if key.startswith(f"{name}.layers.")}
        inner_width = int(args.get(f"{name}_ffn_embed_dim") or (0 if inner is None else len(inner)))
        return SideSpec(
            layers=int(args.get(f"{name}_layers") or len(layers)),
            width=width,
            attention=Attention(int(args[f"{name}_attention_heads"])),
            feed_forward=FeedForward(inner_width, ACTIVATIONS[args.get("activation_fn") or "relu"]),
            max_positions=int(args.get(positions) or most),
            embedding=Embedding(
                1.0 if unscaled else math.sqrt(width), OFFSET, norm=f"{name}.layernorm_embedding.weight" in weights
            ),
            norms="before" if prenorm else "after",
            final_norm=prenorm and f"{name}.layer_norm.weight" in weights,
        )

    return ModelSpec(side("encoder", "max_source_positions"), side("decoder", "max_target_positions"))


def canonical(weights: Arrays, spec: ModelSpec) -> Tensors:
    """The tensors of the function by canonical names, with sinusoidal tables, and tied output projections, which older versions
    omit."""
    tensors = {name: tensor for name, tensor in weights.items() if not NO_WEIGHTS.fullmatch(name)}
    for name, side in sides(spec).items():
        if f"{name}.embed_positions.weight" not in tensors and (table := sinusoidal_table(side)) is not None:
            tensors[f"{name}.embed_positions.weight"] = table
    if "decoder.embed_tokens.weight" in tensors:
        tensors.setdefault("decoder.output_projection.weight", tensors["decoder.embed_tokens.weight"])
    return tensors


def drafter_options(code: str, tensors: Arrays) -> dict[str, Any]:
    """A drafter's options, as its weights show them."""
    if code == "block":
        return {"source_copy": "decoder.copy_attn.weight" in tensors}
    out = tensors.get("decoder.successor.out.weight")
    return {"successor_width": 0 if out is None else out.shape[-1]}


def verifier_mark(weights: Arrays) -> str | None:
    """The fingerprint, 32 bytes, of the verifier that a drafter was initialised from."""
    mark = weights.get("block_verifier")
    return bytes(mark.tolist()).hex() if mark is not None and mark.any() else None
