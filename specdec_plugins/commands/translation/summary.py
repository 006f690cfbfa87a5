"""The summary at the end of a run of ``specdec-translate``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.settings import Settings

if TYPE_CHECKING:
    from specdec_plugins.decoding.stats import DecodeStats


SHOWN = 5  # places of outputs that lack numbers


@dataclass
class Missing:
    """The outputs that lack numbers, or names, of their sources: how many, and the first ones."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str, numbers: Sequence[str]) -> None:
        self.count += 1
        self.first += [f"{place} ({', '.join(numbers)})"] * (len(self.first) < SHOWN)

    def __str__(self) -> str:
        lack = "output lacks" if self.count == 1 else "outputs lack"
        return f"{self.count:,} {lack} numbers or names of the source: {'; '.join(self.first)}" + "; ..." * (self.count > SHOWN)


def summary(settings: Settings, stats: "DecodeStats", seconds: float, missing: Missing | None = None) -> list[str]:
    """The lines of the summary: speed, drafting, where the time went, and what the outputs lack."""
    units = "sentences" if settings.windows is None else "windows"
    if settings.drawn > 1:
        units = "samples" if settings.sampling else "hypotheses"
    lines = [
        f"{stats.sentences:,} {units[:-1] if stats.sentences == 1 else units}, {stats.committed:,} tokens in {seconds:.1f} s: "
        f"{stats.sentences / seconds:,.1f} {units}/s, {stats.committed / seconds:,.0f} tokens/s"
    ]
    if settings.strategy == "specdec" and stats.passes:
        rule = f"tolerant (beta {settings.beta}, tau {settings.tau:g})" if settings.tolerant else "exact"
        if settings.sampling:
            rule = f"sampling, {settings.rule}"
        lines.append(f"specdec, {rule}, block size {draft_lengths(settings, stats)}")
        if settings.tolerant:
            drafting_time, passes_time = (1000 * stats.seconds[name] / stats.passes for name in ("drafting", "verifying"))
            lines.append(
                f"tolerance: a pass took {drafting_time + passes_time:.2f} ms, {drafting_time:.2f} of them for a draft of fixed "
                "length; compare with --strategy ar, and with --batch-size 1"
            )
    total = sum(stats.seconds.values()) or 1.0
    parts = {name: stats.seconds[name] / total for name in ("drafting", "verifying", "encoding", "text", "elsewhere")}
    lines.append("time: " + ", ".join(f"{part:.0%} {name}" for name, part in parts.items() if part >= 0.005))
    if missing and missing.count:
        lines.append(str(missing))
    if stats.cut:
        lines.append(
            f"{stats.cut:,} output{'s were' if stats.cut > 1 else ' was'} cut by the length limit (--max-len-a, --max-len-b)"
        )
    return lines


def draft_lengths(settings: Settings, stats: "DecodeStats") -> str:
    """Draft lengths, mean accepted length and acceptance rate."""
    if not settings.adaptive:
        lengths = str(settings.block_size if isinstance(settings.block_size, int) else max(stats.lengths))
    elif not stats.drafted:
        return "auto: no draft; plain passes were faster (--block-size model drafts anyway), or there is no drafter"
    else:
        kinds = [(f"{length} tokens" if length else "no draft", times) for length, times in stats.lengths.most_common(3)]
        lengths = f"auto ({', '.join(f'{kind} in {times / stats.passes:.0%}' for kind, times in kinds)} of the passes)"
    return (
        f"{lengths}: {stats.mean_accepted_length:.2f} tokens per verifier pass (1.0 is plain autoregressive decoding), "
        f"{stats.acceptance_rate:.0%} of the drafted tokens accepted"
    )
