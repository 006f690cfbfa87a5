"""The command ``specdec-corpus``: translate whole corpora shard by shard. Running it again resumes."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specdec_plugins import __version__
from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import Parser, command, out_of_range, say, whole
from specdec_plugins.commands.translate import BUFFER_SIZE, model_name, require
from specdec_plugins.commands.translation.answers import Answerer, Answers, identity, settings_of
from specdec_plugins.commands.translation.faults import decoding_faults
from specdec_plugins.commands.translation.inputs import Buffer
from specdec_plugins.commands.translation.options import COMMON, add_options, option_groups
from specdec_plugins.commands.translation.verdict import verdict
from specdec_plugins.corpora import manifest
from specdec_plugins.corpora.estimate import estimate
from specdec_plugins.corpora.local import LocalProcesses
from specdec_plugins.corpora.plan import Plan, make_plan
from specdec_plugins.corpora.stores import placed
from specdec_plugins.corpora.values import COUNTED, Executor, Job, ShardReport
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.fields import Fault
from specdec_plugins.formats import hub
from specdec_plugins.text.lines import MAX_DOCUMENT_BYTES

SHARD_SIZE = 1_000_000  # bytes: some 10,000 lines, minutes of a core
COMPRESSED = ("gz", "zst")
# Options of specdec-translate that have no place here, as `Answerer` reads them.
ABSENT: dict[str, Any] = {
    "hint": None,
    "trace": False,
    "markup": None,
    "ignore_tags": None,
    "remove_bpe": False,
    "min_confidence": None,
}


def parser() -> Parser:
    p = Parser(
        prog="specdec-corpus",
        usage="%(prog)s INPUT ... --model DIR --output DIR [option ...]",
        description="Translate whole corpora, shard by shard; the shards concatenate to the output of specdec-translate. The "
        "same command resumes a run that ended early.",
        epilog="Inputs and output may be URLs, such as s3://bucket/folder (fsspec). Exit status: 0 done; 1 bad input or a file "
        "error; 2 wrong options.",
    )
    groups = option_groups(p)
    text = groups["text"].add_argument
    text(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="lines of UTF-8 text, or by its ending TSV, JSONL or Parquet; .gz or .zst may follow, but not Parquet",
    )
    text(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="folder for part-00000.txt and so on, which concatenate to the translation, and their reports",
    )
    text("--column", metavar="NAME", help="what to translate of TSV (a number from 1, or a name of the header), JSONL or Parquet")
    text("--format", choices=("text", "json"), default="text", help="text, or one JSON object per output, scores in nats")
    text("--compress", choices=COMPRESSED, help="compress the output")
    text("--shard-size", type=whole, default=SHARD_SIZE, metavar="BYTES", help=f"input text per shard (default: {SHARD_SIZE:,})")
    text("--dedup", action="store_true", help="translate equal lines of a shard once")
    add_options(groups)
    groups["machine"].add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run on Ray: a cluster's address, or auto to find it (default: start Ray here), with at most --workers processes "
        "(default: as many as there is room for) of --threads cores (default: 1)",
    )
    groups["report"].add_argument("--dry-run", action="store_true", help="estimate the time from a sample; write nothing")
    p.set_defaults(**ABSENT, workers=None)
    own = {"inputs", "column", "compress", "shard_size", "dedup", "dry_run", "on_error"}
    p.rare = {action.dest for action in p._actions} - ((COMMON | own) - {"beta", "tau", "trace"})
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options."""
    options.inputs, options.output = [placed(path) for path in options.inputs], placed(options.output)
    yield from decoding_faults(options)
    if options.dedup and options.sampling:
        yield "dedup", "cannot be combined with --sampling, whose draws depend on the line's number"
    if options.dedup and options.format == "json":
        yield "dedup", "cannot be combined with --format json, which numbers lines"
    if options.ray and options.device.startswith("cuda:"):
        yield "device", f"{options.device} is one GPU; use --device cuda with --ray, which gives each process its own"
    if options.dry_run and options.ray:
        yield "dry_run", "measures this machine; leave --ray out"
    yield from out_of_range(options, "shard_size")


def executor_of(options: argparse.Namespace) -> Executor:
    """Leaves in ``options`` what holds for each process."""
    if options.ray is None:
        options.workers = options.workers or 1
        return LocalProcesses(options.workers)
    from specdec_plugins.corpora.ray import RayActors

    actors, options.workers, options.threads = options.workers or 0, 1, options.threads or 1
    return RayActors(options.ray, actors, options.threads, gpus=int(options.device == "cuda"))


class LineAnswerer(Answerer):
    """Translates lines, given the number of the first, as specdec-translate does."""

    def __call__(self, first: int, lines: Sequence[str]) -> Answers:  # type: ignore[override]
        return super().__call__(Buffer(first, list(lines), [None] * len(lines)))


def job_of(options: argparse.Namespace) -> Job:
    settings = settings_of(options)
    return Job(
        options.output,
        partial(LineAnswerer, options),
        options.column,
        settings.outputs,
        options.buffer_size or max(1, BUFFER_SIZE // settings.drawn),
        None if options.windows is None else MAX_DOCUMENT_BYTES,
        options.on_error == "skip",
        options.dedup,
    )


def on_any_machine(options: argparse.Namespace, model: str | None, drafter: str | None) -> argparse.Namespace:
    """The options, with the commits of models of the Hub, by the names that were given, in place of this machine's folders."""
    commits = {
        name: hub.pinned(given, getattr(options, name)) for name, given in (("model", model), ("drafter", drafter)) if given
    }
    return argparse.Namespace(**{**vars(options), **commits})


def made_by(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that determines the output, by name. Lines that end a run leave no output, so they may be skipped later."""
    found = identity(options)
    found["--too-long"] = found["--too-long"].replace("error", "skip")
    own = {"--column": options.column, "--compress": options.compress, "--shard-size": options.shard_size}
    return {name: found[name] for name in found if name != "--on-error"} | own | {"version": __version__}


def run(options: argparse.Namespace) -> None:
    """Translate, or estimate. Raises ValueError, OSError or ImportError."""
    models = options.model, options.drafter
    require(options)
    for path in options.inputs:
        if "://" not in path:
            os.stat(path)  # the last of many is missed before the first is read
    if "://" not in options.output and not options.dry_run:
        ready.writable_folder(options.output)
    suffix = (".jsonl" if options.format == "json" else ".txt") + (f".{options.compress}" if options.compress else "")
    plan = partial(make_plan, options.inputs, options.column, options.shard_size, suffix)
    executor = executor_of(options)
    job = job_of(on_any_machine(options, *models) if options.ray else options)
    if options.dry_run:
        print("\n".join(estimate(plan(), job, options.workers)))
        return
    with manifest.owned(options.output):
        made, done = manifest.resume(options.output, made_by(options), options.inputs, plan)
        if not made.shards:
            say(f"specdec-corpus: {', '.join(Path(path).name for path in options.inputs)}: no lines")
        reports = [*done, *translated(executor, made, done, job, options.quiet)]
        manifest.same_inputs(options.output, made, options.inputs, plan)  # still
        reports.sort(key=lambda report: report.number)
        found = manifest.summarise(options.output, reports, verdict_of(options, reports))
    if not options.quiet:
        print(
            f"{found['lines']:,} lines, {found['tokens']:,} tokens in {found['seconds']:,.1f} s of all processes; "
            f"shards: {len(reports):,}, errors: {found['errors']:,}\n{found['verdict']}",
            file=sys.stderr,
        )


def verdict_of(options: argparse.Namespace, reports: Sequence[ShardReport]) -> str:
    """Whether drafting paid, of all shards."""
    total = DecodeStats(drafter=next((each.drafter for each in reports if each.drafter), None))
    for each in reports:
        own = {name: getattr(each, name) for name in COUNTED}
        total += DecodeStats(**own, own_tokens=each.tokens - each.accepted, beam=each.beam)
    return verdict(settings_of(options), total, model_name(options)) if total.iterations else "nothing was translated"


def translated(executor: Executor, plan: Plan, done: Sequence[ShardReport], job: Job, quiet: bool) -> Iterator[ShardReport]:
    """Run the shards that are left, with progress on stderr."""
    over = {report.number for report in done}
    left = [shard for shard in plan.shards if shard.number not in over]
    if not left:
        return
    total, count, tokens, began = sum(shard.count for shard in left), 0, 0, time.monotonic()
    with Steps(total) as steps:
        if done and not quiet:
            steps.say(f"specdec-corpus: shards done before: {len(done):,} of {len(plan.shards):,}")
        for report in executor.run(left, job):
            count, tokens = count + report.records, tokens + report.tokens
            if report.errors:
                steps.say(f"specdec-corpus: {report.output}: errors: {len(report.errors):,}; the first: {report.errors[0]}")
            if not quiet:
                speed = tokens / (time.monotonic() - began)
                steps.step(f"{plan.records - total + count:,} of {plan.records:,} lines, {speed:,.0f} tokens/s", count)
            yield report


main = command(parser, run, check, resumption=": run the same command to resume")

if __name__ == "__main__":
    sys.exit(main())
