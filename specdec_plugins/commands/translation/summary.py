"""The summary at the end of a run of ``specdec-translate``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.commands.translation.verdict import verdict
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


def summary(settings: Settings, stats: "DecodeStats", seconds: float, model: str, missing: Missing | None = None) -> list[str]:
    """The lines of the summary of a run of ``model``: speed, whether drafting paid, where the time went, what outputs lack."""
    units = "sentences" if settings.windows is None else "windows"
    if settings.drawn > 1:
        units = "samples" if settings.sampling else "hypotheses"
    lines = [
        f"{stats.sentences:,} {units[:-1] if stats.sentences == 1 else units}, {stats.committed:,} tokens in {seconds:.1f} s: "
        f"{stats.sentences / seconds:,.1f} {units}/s, {stats.committed / seconds:,.0f} tokens/s"
    ]
    if stats.iterations:
        lines.append(verdict(settings, stats, model))
        if settings.tolerant and stats.passes:
            drafting_time, passes_time = (1000 * stats.seconds[name] / stats.passes for name in ("drafting", "verifying"))
            lines.append(
                f"tolerance: a pass took {drafting_time + passes_time:.2f} ms, {drafting_time:.2f} of them for a draft of fixed "
                "length; compare with --strategy ar" + ", and with --batch-size 1" * (stats.iterations > stats.passes)
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
