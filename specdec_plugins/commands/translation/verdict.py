"""Whether drafting paid, in one line: what was searched, whether there was a drafter, what its drafts brought, what to do.

The figures are those of the run: iterations with and without drafts, tokens per verifier pass, and the speeds of both as the
controller knows them from the times of passes.
"""

from typing import TYPE_CHECKING

from specdec_plugins.settings import Settings

if TYPE_CHECKING:
    from specdec_plugins.decoding.stats import DecodeStats

RARE = 0.05  # fraction of the iterations: with drafts in fewer, they paid nowhere or next to nowhere
TRAIN = "train one: docs/train.md"


def verdict(settings: Settings, stats: "DecodeStats", model: str) -> str:
    """The line, for a run of the ``model`` that `Engine.take_stats` describes."""
    return f"{searched(settings, stats)}; {drafts(settings, stats, model)}"


def searched(settings: Settings, stats: "DecodeStats") -> str:
    if settings.sampling:
        return "sampling by the rejection rule" if settings.rule == "rejection" else "sampling"
    if settings.tolerant:
        return f"tolerant (beta {settings.beta}, tau {settings.tau:g})"
    return f"beam {stats.beam}" if stats.beam > 1 else "greedy"


def drafts(settings: Settings, stats: "DecodeStats", model: str) -> str:
    """What there is to say about drafts."""
    if settings.strategy == "fairseq":
        return "fairseq's generator, without drafts"
    if settings.strategy == "ar":
        return "plain decoding, as --strategy ar asks"
    if stats.drafter is None:
        advice = "a drafter speeds up --beam 1" if stats.beam > 1 else "--draft-with names drafters without training"
        return f"no drafter in {model}: plain decoding; {TRAIN}; {advice}"
    if settings.strategy == "drafter":
        return f"unverified {stats.drafter} drafts: {stats.mean_accepted_length:.2f} tokens per draft"
    return adaptive(stats) if settings.adaptive else fixed(settings, stats)


def fixed(settings: Settings, stats: "DecodeStats") -> str:
    """Of drafts whose length was given: there are no plain passes to compare with."""
    what = f"trees of up to {settings.tree} tokens" if settings.tree else f"drafts of {max(stats.lengths, default=0)} tokens"
    return f"{stats.drafter} {what}: {per_pass(stats)}; --strategy ar tells whether they pay"


def adaptive(stats: "DecodeStats") -> str:
    """Of drafts whose length the controller chose."""
    name, share = f"{stats.drafter} drafts", stats.drafting / max(1, stats.iterations)
    chosen, passes = share >= RARE, f"{stats.passes:,} pass{'es' * (stats.passes != 1)}"
    speed = stats.gain if chosen else stats.missed_gain
    if speed is None and not stats.drafted:
        return f"no {name} in {passes}: too few to try any"
    if speed is None:
        return f"{name}: {per_pass(stats)}; {passes}: too few to compare their speed with plain decoding's"
    if chosen:
        where = f" in {share:.0%} of the iterations" if share < 1 - RARE else ""
        verb, advice = ("paid", "") if speed > 1 else ("did not pay", "; --strategy ar does without them")
        return f"{name} {verb}{where}, at {speed:.2f} times the speed of plain iterations: {per_pass(stats)}{advice}"
    rows = round(stats.iterations / max(1, stats.passes))
    return (
        f"{name} did not pay on this text at {rows} row{'s' * (rows != 1)} per pass: plain passes were chosen in "
        f"{1 - share:.0%} of the iterations, as drafts promised only {speed:.2f} times their speed; --strategy ar saves the "
        "drafter's memory"
    )


def per_pass(stats: "DecodeStats") -> str:
    length, rate = stats.mean_accepted_length, stats.acceptance_rate
    return f"{length:.2f} tokens per verifier pass (plain decoding: 1), {rate:.0%} of the drafted tokens accepted"
