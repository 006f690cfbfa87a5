"""What a folder of translations was made from and what is done.

``manifest.json`` names model, options, inputs and shards, ``reports/`` has a file for each finished shard, and ``summary.json``
sums them up at the end. Each file is written whole by one call, so a kill spoils none, and stores need not append.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from typing import Any

from specdec_plugins.corpora.plan import Input, Plan, stamped
from specdec_plugins.corpora.stores import contents, make_folder, read, sizes, within, write
from specdec_plugins.corpora.values import Piece, Shard, ShardReport
from specdec_plugins.formats.errors import brief, difference
from specdec_plugins.formats.files import lock

NAME = r"part-[0-9]{5,}(\.[a-z]+)+"
UNFINISHED = rf"({NAME}|(manifest|summary|[0-9]+)\.json)\.[0-9a-f]+\.tmp"
MOST = 1 << 62  # of a figure
ADVICE = "; delete it, or name another --output"


@contextmanager
def owned(folder: str) -> Iterator[None]:
    """Make a folder for one run at a time. On a store, which has no locks, two runs write the same bytes twice."""
    make_folder(within(folder, "reports"))
    if "://" in folder:
        yield
        return
    file = os.open(os.path.join(folder, ".lock"), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        lock(file, f"{folder}: another run is writing here")
        for place in (folder, within(folder, "reports")):
            for name in sizes(place):
                if re.fullmatch(UNFINISHED, name):  # of a run that was killed
                    with suppress(FileNotFoundError):
                        os.unlink(within(place, name))
        yield
    finally:
        os.close(file)


def record(folder: str, report: ShardReport) -> None:
    write(within(folder, f"reports/{report.number}.json"), json.dumps(asdict(report), ensure_ascii=False).encode())


def resume(
    folder: str, made_by: Mapping[str, Any], paths: Sequence[str], plan: Callable[[], Plan]
) -> tuple[Plan, list[ShardReport]]:
    """The plan of a run and the reports of finished shards. ``plan`` reads the inputs, which happens only if it must.

    Raises ValueError if the folder was made with other options, another model or other inputs, or a finished shard was changed.
    """
    made_by = json.loads(json.dumps(made_by))
    known = recorded(folder)
    begun = sizes(within(folder, "reports"))
    if known is None and begun:  # a run that ended early would take old shards for its own
        raise ValueError(f"{within(folder, 'reports')}: has reports, but there is no manifest.json{ADVICE}")
    if known is None or not begun:
        made = plan()
        ours = {".lock", "manifest.json", "summary.json", *(shard.output for shard in made.shards)}
        if strange := sorted(sizes(folder).keys() - ours):
            raise ValueError(f"{folder}: has files of something else, such as {strange[0]}; name another --output")
        save(folder, made_by, made)
        return made, []
    before, made = known
    if what := difference(before, made_by):
        raise ValueError(f"{folder}: was made with {what}{ADVICE}")
    made = same_inputs(folder, made, paths, plan)
    save(folder, made_by, made)
    return made, finished(folder, made)


def same_inputs(folder: str, known: Plan, paths: Sequence[str], plan: Callable[[], Plan]) -> Plan:
    """The plan with the inputs' present dates. Raises ValueError if their content differs."""
    if other := next((path for path, one in zip(paths, known.inputs) if path != one.path), None):
        raise ValueError(f"{folder}: was made from other inputs than {other}{ADVICE}")
    if len(paths) != len(known.inputs):
        raise ValueError(
            f"{folder}: was made from {len(known.inputs):,} input{'s' * (len(known.inputs) != 1)}, not {len(paths):,}{ADVICE}"
        )
    if all(stamped(one.path) == (one.size, one.date) for one in known.inputs):
        return known
    now = plan()
    for one, found in zip(known.inputs, now.inputs):
        if one.sha256 != found.sha256:
            raise ValueError(f"{folder}: was made from another {one.path}, which has changed since{ADVICE}")
    return replace(known, inputs=now.inputs)


def finished(folder: str, plan: Plan) -> list[ShardReport]:
    """The reports of shards whose files are there. Raises ValueError if one was changed."""
    there, written, reports = sizes(folder), contents(within(folder, "reports")), list[ShardReport]()
    for shard in plan.shards:
        report = report_of(written.get(f"{shard.number}.json", b""), shard)
        if report is None or shard.output not in there:
            continue
        if there[shard.output] != report.size:
            raise ValueError(
                f"{within(folder, shard.output)}: has {there[shard.output]:,} bytes, not {report.size:,} as when it was written; "
                "delete it to translate it again"
            )
        reports.append(report)
    return reports


def report_of(data: bytes, shard: Shard) -> ShardReport | None:
    """The report of a shard; None if it cannot be read, as where a machine failed while writing it."""
    try:
        found = json.loads(data)
        report = ShardReport(**{each.name: found[each.name] for each in fields(ShardReport)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    numbers = [value for name, value in vars(report).items() if name not in ("output", "sha256", "errors", "drafter")]
    if not isinstance(report.errors, list) or not isinstance(report.drafter, str | None):
        return None
    if not all(isinstance(value, int | float) and abs(value) < MOST for value in numbers):
        return None
    return report if (report.number, report.output) == (shard.number, shard.output) else None


def save(folder: str, made_by: Mapping[str, Any], plan: Plan) -> None:
    write(within(folder, "manifest.json"), json.dumps({"made_by": made_by, **asdict(plan)}, ensure_ascii=False).encode())


def recorded(folder: str) -> tuple[dict[str, Any], Plan] | None:
    """What a folder was made with, and its plan; None if it has no manifest. Raises ValueError if that is damaged."""
    path = within(folder, "manifest.json")
    if "manifest.json" not in sizes(folder):
        return None
    try:
        found = json.loads(read(path))
        shards = [Shard(**{**each, "pieces": tuple(Piece(**piece) for piece in each["pieces"])}) for each in found["shards"]]
        plan = Plan([Input(**each) for each in found["inputs"]], int(found["size"]), shards)
        check(plan)
        return dict(found["made_by"]), plan
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a manifest ({brief(error)}){ADVICE}") from None


def check(plan: Plan) -> None:
    """Raises ValueError for a plan that `make_plan` cannot have made: its shards would read or write files of others."""
    paths = {one.path for one in plan.inputs}
    for shard in plan.shards:
        numbers = [shard.number, shard.first]
        for piece in shard.pieces:
            numbers += [piece.start, piece.line, piece.count]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"shard {shard.number} has a number below 0 or none")
        if not re.fullmatch(NAME, shard.output) or not {piece.path for piece in shard.pieces} <= paths:
            raise ValueError(f"shard {shard.number} reads or writes other files")


def summarise(folder: str, reports: Sequence[ShardReport], verdict: str) -> dict[str, Any]:
    """Write and return the sums over all shards, whether drafting paid, and each shard's figures."""
    shards = [figures([report]) | {"output": report.output, "sha256": report.sha256} for report in reports]
    found = figures(reports) | {"verdict": verdict, "shards": shards}
    write(within(folder, "summary.json"), (json.dumps(found, indent=1) + "\n").encode())
    return found


def figures(reports: Sequence[ShardReport]) -> dict[str, Any]:
    """The sums over shards. ``seconds`` are those of all processes."""
    names = ("records", "lines", "size", "tokens", "passes", "drafted", "accepted")
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in names}
    iterations = sum(report.iterations for report in reports)
    return sums | {
        "mean_accepted_length": round(sums["tokens"] / max(1, iterations), 3),
        "acceptance_rate": round(sums["accepted"] / max(1, sums["drafted"]), 4),
        "seconds": round(sum(report.seconds for report in reports), 2),
        "errors": sum(len(report.errors) for report in reports),
    }
