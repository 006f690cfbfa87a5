"""The command ``specdec-benchmark``: how fast each way to decode is, in one run, on the same tokens."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import less_than_one, run_command
from specdec_plugins.measure.machine import machine, thread_choices
from specdec_plugins.measure.runs import PERCENTILES, Plan, measure, read_text, summarise
from specdec_plugins.measure.systems import DRAFTERLESS, DTYPES, GPU_DTYPES, SYSTEMS, System
from specdec_plugins.settings import Fault


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-benchmark", usage="%(prog)s --model DIR --input FILE [option ...]", allow_abbrev=False,
        description="Measure the ways to decode: tokens a second, latency, acceptance, memory, and whether outputs differ.",
        epilog="The last line on stdout is JSON with everything measured. ctranslate2 and plots need: pip install specdec[bench]",
    )  # fmt: skip
    p.add_argument("--model", required=True, metavar="DIR", help="model folder")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--bpe", action="store_true", help="the input is tokens in BPE already")
    p.add_argument("--reference", metavar="FILE", help="reference translations, for BLEU")
    p.add_argument("--sentences", type=int, metavar="N", help="only the first N")
    p.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME", help=", ".join(SYSTEMS))
    p.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    p.add_argument(
        "--dtypes", nargs="+", metavar="T", help=f"{', '.join(DTYPES)}; on a GPU {', '.join(GPU_DTYPES)} (default: all)"
    )
    p.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32, 128], metavar="N")
    p.add_argument("--threads", nargs="+", type=int, metavar="N", help="numbers to choose from (default: 1, 2, 4 .. all cores)")
    p.add_argument("--block-sizes", nargs="+", default=["auto"], metavar="K", help="of specdec: numbers, auto (default: auto)")
    p.add_argument("--beta", type=int, default=3, help="of specdec-tolerant (default: 3)")
    p.add_argument("--tau", type=float, default=1.0, help="of specdec-tolerant, nats (default: 1)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    p.add_argument("--plot", metavar="FILE.png", help="draw tokens a second against batch size")
    return p


def main(argv: list[str] | None = None) -> int:
    return run_command(parser(), argv, run, check)


def check(options: argparse.Namespace) -> list[Fault]:
    """What is wrong with the options."""
    faults = check_measurement(options, DTYPES if options.device == "cpu" else GPU_DTYPES)
    if options.plot and not find_spec("matplotlib"):
        faults.append(("plot", "needs matplotlib, which is not installed: pip install 'specdec[bench]'"))
    return faults


def check_measurement(options: argparse.Namespace, dtypes: Sequence[str]) -> list[Fault]:
    """What is wrong with the options that ``specdec-report`` has, too; ``dtypes`` are those of the device."""
    faults = less_than_one(options, "sentences", "rounds", "batch_sizes", "threads")
    faults += [
        ("dtypes", f"{dtype} is not available there: {', '.join(dtypes)}")
        for dtype in options.dtypes or []
        if dtype not in dtypes
    ]
    for block in options.block_sizes or []:
        if block != "auto" and not (block.isdecimal() and int(block)):
            faults.append(("block_sizes", f"'{block}' is neither a number over 0 nor auto"))
    return faults


def run(options: argparse.Namespace) -> None:
    """Measure, and print the tables and the JSON line."""
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    pair = load_folder(options.model)
    reader = Translator(replace(pair, codes=None) if options.bpe else pair, Settings(strategy="ar", threads=1))
    text = read_text(reader, options.input, options.reference, options.sentences, options.bpe)
    systems = systems_of(options, pair.drafter is not None)
    plan = Plan(options.model, systems, options.batch_sizes, options.threads or thread_choices(options.device), options.rounds)
    with Steps(1.0) as steps:
        measured, _ = measure(plan, text.sources, steps)

    baseline = next((each for each in measured if each.system.name == "ar float32"), measured[0])
    rows = []
    for each in measured:
        row = summarise(each, baseline.runs[0].outputs)
        if text.references:
            row["bleu"], bleu_signature = bleu([reader.text(tokens) for tokens in each.runs[0].outputs], text.references)
        rows.append(row)
    for batch_size in options.batch_sizes:
        print(table([row for row in rows if row["batch_size"] == batch_size], batch_size) + "\n")
    signature = {
        **machine(options.device), "block_size": pair.block_size, "model": options.model, "input": options.input,
        "sentences": len(text.sources),
    }  # fmt: skip
    result = {"benchmark": "specdec-benchmark", "rows": rows, "rounds": options.rounds, "signature": signature}
    if text.references:
        result["bleu_signature"] = bleu_signature
    print(json.dumps(result), flush=True)
    if options.plot:
        from specdec_plugins.measure.figures import plot_speeds

        plot_speeds(rows, options.plot)


def systems_of(options: argparse.Namespace, drafter: bool) -> list[System]:
    """The systems to measure; without a drafter those that need none. On a CPU fairseq has float32 only."""
    tolerance = {"beta": options.beta, "tau": options.tau}
    dtypes = options.dtypes or (DTYPES if options.device == "cpu" else GPU_DTYPES)
    return [
        System(name, dtype, block, device=options.device, **(tolerance if name == "specdec-tolerant" else {}))
        for name in options.systems
        if drafter or name in DRAFTERLESS
        for dtype in (dtypes if options.device != "cpu" or not name.startswith("fairseq") else ["float32"])
        for block in (options.block_sizes if name == "specdec" else [None])
    ]


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU, and sacreBLEU's signature of it."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    return round(metric.corpus_score(hypotheses, [references]).score, 2), str(metric.get_signature())


def table(rows: list[dict[str, Any]], batch_size: int) -> str:
    """For people: the rows of one batch size, the fastest first."""
    from tabulate import tabulate

    lines = []
    for row in sorted(rows, key=lambda row: -row["tokens_per_second"]):
        spread = (max(row["seconds"]) - min(row["seconds"])) / sorted(row["seconds"])[len(row["seconds"]) // 2]
        line = {
            f"batch size {batch_size}": row["system"], "tokens/s": f"{row['tokens_per_second']:,}", "spread": f"{spread:.0%}",
            "threads": row["threads"], "tokens/pass": f"{row['mean_accepted_length']:.2f}",
            "identical": f"{row['identical'] / row['of']:.1%}",
        }  # fmt: skip
        if "bleu" in row:
            line["BLEU"] = f"{row['bleu']:.2f}"
        line["peak MiB"] = f"{row['peak_memory_mib']:,}"
        if batch_size == 1:
            line |= {f"p{percent} ms": f"{row[f'latency_p{percent}_ms']:.2f}" for percent in PERCENTILES}
        lines.append(line)
    alignment = ("left", *["right"] * (len(lines[0]) - 1))
    return tabulate(lines, headers="keys", tablefmt="plain", disable_numparse=True, colalign=alignment)


if __name__ == "__main__":
    sys.exit(main())
