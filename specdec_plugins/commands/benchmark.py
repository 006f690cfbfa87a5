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
from specdec_plugins.extras import install_command
from specdec_plugins.measure.machine import machine, thread_choices
from specdec_plugins.measure.runs import PERCENTILES, Plan, measure, read_text, summarise, workloads
from specdec_plugins.measure.systems import DRAFTERLESS, DTYPES, GPU_DTYPES, KINDS, SYSTEMS, System
from specdec_plugins.measure.tables import ratio
from specdec_plugins.settings import Fault
from specdec_plugins.text.tokenizers import BYTE_LEVEL


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-benchmark", usage="%(prog)s --model DIR --input FILE [option ...]", allow_abbrev=False,
        description="Measure the ways to decode: latency (a sentence at a time), throughput (a whole text on all cores), "
        "acceptance, memory, and whether outputs differ.",
        epilog="Throughput is measured with every mix of processes and threads that keeps all cores busy, and a system's fastest "
        "counts; in CTranslate2 the processes are translators (inter_threads). Peak memory is the most that a system's processes "
        "had held by the end, loading and larger batches included. The last line on stdout is JSON with everything "
        "measured. ctranslate2 and plots need: " + install_command("bench"),
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
    p.add_argument(
        "--measure", nargs="+", choices=KINDS, default=list(KINDS), metavar="WHAT", help=f"{', '.join(KINDS)} (default: both)"
    )
    p.add_argument(
        "--batch-sizes",
        nargs="+",
        type=int,
        default=[1, 8, 32, 128],
        metavar="N",
        help="of throughput, in each process (default: 1 8 32 128)",
    )
    p.add_argument(
        "--threads", nargs="+", type=int, metavar="N", help="of a process: numbers to choose from (default: 1, 2, 4 .. all cores)"
    )
    p.add_argument("--block-sizes", nargs="+", default=["auto"], metavar="K", help="of specdec: numbers, auto (default: auto)")
    p.add_argument("--beta", type=int, default=3, help="of specdec-tolerant (default: 3)")
    p.add_argument("--tau", type=float, default=1.0, help="of specdec-tolerant, nats (default: 1)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    p.add_argument("--plot", metavar="FILE.png", help="draw throughput against batch size")
    return p


def main(argv: list[str] | None = None) -> int:
    return run_command(parser(), argv, run, check)


def check(options: argparse.Namespace) -> list[Fault]:
    """What is wrong with the options."""
    faults = check_measurement(options, DTYPES if options.device == "cpu" else GPU_DTYPES)
    faults += less_than_one(options, "beta")
    if not options.tau >= 0:
        faults.append(("tau", f"{options.tau} is negative or no number"))
    if options.plot and "throughput" not in options.measure:
        faults.append(("plot", "draws throughput, which --measure leaves out"))
    elif options.plot and not find_spec("matplotlib"):
        faults.append(("plot", f"needs matplotlib, which is not installed: {install_command('bench')}"))
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
    # Tokens need no codes, nor the library that applies them; but byte-level ones are turned into text by these.
    tokens = replace(pair, codes=None) if options.bpe and pair.tokenizer != BYTE_LEVEL else pair
    # Drafting systems may read fewer tokens than the verifier alone.
    reader = Translator(tokens, Settings(strategy="specdec" if pair.drafter else "ar", threads=1))
    text = read_text(reader, options.input, options.reference, options.sentences, options.bpe)
    systems = systems_of(options, pair.drafter is not None)
    threads = options.threads or thread_choices(options.device)
    loads = workloads(options.measure, options.batch_sizes, threads, options.device)
    plan = Plan(options.model, systems, loads, options.rounds)
    with Steps(1.0) as steps:
        measured, left_out = measure(plan, text.sources, steps)

    baseline = next((each for each in measured if each.system.name == "ar float32"), measured[0])
    rows = []
    for each in measured:
        row = summarise(each, baseline.runs[0].outputs)
        if text.references:
            row["bleu"], bleu_signature = bleu([reader.text(tokens) for tokens in each.runs[0].outputs], text.references)
        rows.append(row)
    for load in loads:
        print(table([row for row in rows if (row["kind"], row["batch_size"]) == (load.kind, load.batch_size)], rows) + "\n")
    signature = {
        **machine(options.device), "block_size": pair.block_size, "model": options.model, "input": options.input,
        "sentences": len(text.sources),
    }  # fmt: skip
    result = {
        "benchmark": "specdec-benchmark",
        "rows": rows,
        "rounds": options.rounds,
        "left_out": left_out,
        "signature": signature,
    }
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


def table(rows: list[dict[str, Any]], everything: list[dict[str, Any]]) -> str:
    """For people: the rows of one workload, the fastest first."""
    from tabulate import tabulate

    latency = rows[0]["kind"] == "latency"
    title = "latency, one sentence at a time" if latency else f"throughput, batch size {rows[0]['batch_size']}"
    lines = []
    for row in sorted(rows, key=lambda row: -row["tokens_per_second"]):
        spread = (max(row["seconds"]) - min(row["seconds"])) / sorted(row["seconds"])[len(row["seconds"]) // 2]
        line = {title: row["system"]}
        if latency:
            line |= {f"p{percent} ms": f"{row[f'latency_p{percent}_ms']:.2f}" for percent in PERCENTILES}
        line |= {"tokens/s": f"{row['tokens_per_second']:,}", "spread": f"{spread:.0%}"}
        line |= {"threads": row["threads"]} if latency else {"workers x threads": f"{row['workers']} x {row['threads']}"}
        line |= {f"/ {name}": ratio(row, everything, name) for name in ("ctranslate2", "ar")}
        line |= {"tokens/pass": f"{row['mean_accepted_length']:.2f}", "identical": f"{row['identical'] / row['of']:.1%}"}
        if "bleu" in row:
            line["BLEU"] = f"{row['bleu']:.2f}"
        lines.append(line | {"peak MiB": f"{row['peak_memory_mib']:,}"})
    alignment = ("left", *["right"] * (len(lines[0]) - 1))
    return tabulate(lines, headers="keys", tablefmt="plain", disable_numparse=True, colalign=alignment)


if __name__ == "__main__":
    sys.exit(main())
