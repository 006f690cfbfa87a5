"""What a Hugging Face folder asks of `generate`, as the engine does it: read from the code of transformers 5.24."""

from dataclasses import dataclass, replace
from typing import Any

from specdec_plugins.decoding.options import MAX_BEAMS, MAX_LENGTH_PENALTY
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.model.spec import OutputRules, Symbols

# Settings that change greedy outputs and are not supported, with the values at which they change nothing.
NEUTRAL = {
    "do_sample": (False,), "repetition_penalty": (1,), "encoder_repetition_penalty": (1,), "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (), "sequence_bias": (), "guidance_scale": (1,), "constraints": (), "force_words_ids": (),
    "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,), "dola_layers": (), "watermarking_config": (),
    "stop_strings": (), "max_time": (), "token_healing": (False,), "num_return_sequences": (1,),
}  # fmt: skip
# Settings of sampling alone, of what `generate` returns, of its speed, and notes.
WITHOUT_EFFECT = {
    *"""
    temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff use_cache cache_implementation cache_config
    max_cache_len remove_invalid_values output_attentions output_hidden_states output_scores output_logits
    return_dict_in_generate is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
    prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind low_memory
    compile_config disable_compile prefill_chunk_size assistant_ensemble_weight speculation_type use_mtp
    continuous_batching_config _from_model_config _commit_hash transformers_version
""".split()
}
HONOURED = {
    *"""
    max_length max_new_tokens min_length min_new_tokens no_repeat_ngram_size bad_words_ids suppress_tokens
    begin_suppress_tokens forced_bos_token_id forced_eos_token_id pad_token_id bos_token_id eos_token_id
    decoder_start_token_id num_beams length_penalty early_stopping renormalize_logits
""".split()
}


@dataclass(frozen=True)
class Generation:
    """Fields of a `ModelSpec`."""

    symbols: Symbols
    forced: tuple[int, ...]
    suppressed: tuple[int, ...]
    ends: tuple[int, ...]
    outputs: OutputRules

    def fields(self, unknown: int) -> dict[str, Any]:
        """All by name, of a model whose drafters read this token for unknown ones."""
        return {**vars(self), "symbols": replace(self.symbols, mask=unknown)}


def generation_of(asked: Asked, config: Asked, whole: bool) -> Generation:
    """How outputs begin and end. ``asked`` is generation_config.json, a ``whole`` file of such settings, or config.json, where
    they used to be.
    """
    neutral_only(asked)
    for name, value in asked.values.items() if whole else ():
        if name not in HONOURED | WITHOUT_EFFECT | NEUTRAL.keys() and value not in (None, False, [], {}):
            asked.faults.append(f"{asked.path.name}: unknown setting '{name:.80}'")
    pad, start = (asked.token(name) for name in ("pad_token_id", "decoder_start_token_id"))
    several = list(dict.fromkeys(asked.some_tokens("eos_token_id") or config.some_tokens("eos_token_id")))
    own = config.get("eos_token_id")
    eos = own if type(own) is int and own in several else several[0] if several else None
    pad = config.token("pad_token_id") if pad is None else pad
    for each in (asked.token("bos_token_id"), config.token("decoder_start_token_id")):
        start = each if start is None else start
    for name, token in (("eos_token_id", eos), ("pad_token_id", pad), ("decoder_start_token_id", start)):
        if token is None:
            asked.faults.append(f"{asked.path.name}: no '{name}'")
    symbols = Symbols(pad or 0, eos or 0, start or 0, 0)
    suppressed = suppressed_of(asked, several)
    forced, last = asked.token("forced_bos_token_id"), asked.token("forced_eos_token_id")
    if forced is None and not whole and asked.flag("force_bos_token_to_be_generated", False):
        forced = asked.token("bos_token_id")
    if forced is not None and (forced in several or forced in suppressed):
        asked.fault("forced_bos_token_id", "a token that ends or may not be in an output")
    if last not in (None, symbols.eos):
        asked.refuse("forced_eos_token_id", f"eos, {symbols.eos}")
    prefix = () if forced is None else (forced,)
    ends = tuple(token for token in several if token != eos)
    return Generation(symbols, prefix, suppressed, ends, rules_of(asked, several, last is not None))


def neutral_only(asked: Asked) -> None:
    """Refuse settings that change greedy outputs and are not supported."""
    for name, neutral in NEUTRAL.items():
        value = asked.get(name)
        if value is not None and value not in neutral and value != []:
            asked.refuse(name, " or ".join(map(str, neutral)) or "none")


def suppressed_of(asked: Asked, ends: list[int]) -> tuple[int, ...]:
    """The tokens that no output contains. `generate` never bans eos as a bad word."""
    bad = asked.get("bad_words_ids")
    words = bad if isinstance(bad, list) else []
    if bad is not None and not (
        isinstance(bad, list) and all(isinstance(word, list) and len(word) == 1 and type(word[0]) is int for word in bad)
    ):
        asked.refuse("bad_words_ids", "a list of single tokens")
        words = []
    tokens = asked.tokens("suppress_tokens")
    if {*ends} & {*tokens}:
        asked.refuse("suppress_tokens", "tokens other than eos")
    return tuple(sorted({*tokens, *(word[0] for word in words if word[0] not in ends)}))


def rules_under(asked: Asked, rules: OutputRules) -> OutputRules:
    """A model's rules with those of its settings that a task has instead, rules of outputs alone; faults go to ``asked``."""
    before = {
        "max_length": None if rules.limit is None else rules.limit + 1 + rules.ends, "min_new_tokens": rules.min_length,
        "no_repeat_ngram_size": rules.no_repeat, "num_beams": rules.beams, "length_penalty": rules.length_penalty,
        "early_stopping": {"true": True, "false": False}.get(rules.early_stopping, rules.early_stopping),
        "renormalize_logits": rules.renormalize,
    }  # fmt: skip
    neutral_only(asked)
    for name in asked.values:
        if name not in before.keys() | {"min_length", "max_new_tokens"} | WITHOUT_EFFECT | NEUTRAL.keys():
            asked.faults.append(f"'{name:.80}' is not a setting of outputs")
    if asked.get("min_length") is not None:
        del before["min_new_tokens"]
    return rules_of(Asked(asked.path, {**before, **asked.values}, asked.faults), [], rules.ends)


def rules_of(asked: Asked, several: list[int], ends: bool) -> OutputRules:
    """`generate` counts the start token, and the eos that it forces, in lengths. Limits on new tokens precede the others."""
    length = asked.whole("max_length", None, least=2 + ends)
    if (tokens := asked.whole("max_new_tokens", None, least=1 + ends)) is not None:
        length = tokens + 1
    least = asked.whole("min_new_tokens", max(0, asked.whole("min_length", 0) - 1))
    begins = asked.tokens("begin_suppress_tokens")
    if begins and {*begins} == {*several}:
        least = max(1, least)
    elif begins:
        asked.refuse("begin_suppress_tokens", f"eos, {several}")
    stopping, repeats = asked.get("early_stopping"), asked.whole("no_repeat_ngram_size", 0)
    if stopping not in (None, "never") and type(stopping) is not bool:
        asked.refuse("early_stopping", "true, false or never")
        stopping = None
    if repeats == 1:  # it would ban eos where that is the start token
        asked.refuse("no_repeat_ngram_size", "0, or n-grams from 2 on")
    limit, penalty = None if length is None else length - 1 - ends, asked.number("length_penalty", 1.0, MAX_LENGTH_PENALTY)
    return OutputRules(
        "huggingface", ends, limit, least, repeats, asked.whole("num_beams", 1, least=1, most=MAX_BEAMS), penalty,
        str(stopping or False).lower(), asked.flag("renormalize_logits", False),
    )  # fmt: skip
