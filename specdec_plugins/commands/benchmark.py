"""The command ``specdec-benchmark``: the speed of each way to decode, in one run on the same tokens."""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import Parser, command, number, out_of_range, whole
from specdec_plugins.decoding.options import KERNELS
from specdec_plugins.extras import install_command
from specdec_plugins.fields import Fault
from specdec_plugins.measure.machine import machine, thread_choices
from specdec_plugins.measure.runs import Plan, read_text, workloads
from specdec_plugins.measure.systems import DRAFTERLESS, DTYPES, GPU_DTYPES, KINDS, OURS, SYSTEMS, System
from specdec_plugins.measure.tables import tables


def parser() -> Parser:
    p = Parser(
        prog="specdec-benchmark",
        usage="%(prog)s --model DIR --input FILE [option ...]",
        description="Measure decoding: latency (one sentence at a time), throughput (a whole text on all cores), acceptance, "
        "memory, and differences in the output.",
        epilog="Throughput is measured with every mix of processes and threads that keeps all cores busy, and the fastest "
        "counts; CTranslate2 uses translators (inter_threads) for processes. Peak memory is the maximum over the run. The last "
        "line on stdout is JSON with all measurements. ctranslate2 and figures require the extra bench.",
    )
    add = p.add_argument
    add("--model", required=True, metavar="DIR", help="model or Hugging Face folder, or ORG/NAME of the Hub")
    add("--input", required=True, metavar="FILE", help="source text")
    add("--tokenized", action="store_true", help="the input is subwords, separated by spaces")
    add("--reference", metavar="FILE", help="reference translations, for BLEU")
    add("--report", metavar="DIR", help="write tables, a figure and JSON to this folder")
    add("--sentences", type=whole, metavar="N", help="only the first N")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME", help=", ".join(SYSTEMS))
    add("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    add(
        "--dtypes",
        nargs="+",
        metavar="T",
        help=f"{', '.join(DTYPES)}; on a GPU {', '.join(GPU_DTYPES)} (default: all but {OURS})",
    )
    add("--measure", nargs="+", choices=KINDS, default=list(KINDS), metavar="WHAT", help=f"{', '.join(KINDS)} (default: both)")
    add(
        "--batch-sizes",
        nargs="+",
        type=whole,
        default=[1, 8, 32, 128],
        metavar="N",
        help="for throughput, per process (default: 1 8 32 128)",
    )
    add("--threads", nargs="+", type=whole, metavar="N", help="candidates for a process (default: 1, 2, 4 .. all cores)")
    add("--block-sizes", nargs="+", default=["auto"], metavar="K", help="for specdec: numbers or auto (default: auto)")
    add("--beta", nargs="+", type=whole, default=[3], metavar="N", help="for specdec-tolerant (default: 3)")
    add("--tau", nargs="+", type=number, default=[1.0], metavar="X", help="for specdec-tolerant, in nats (default: 1)")
    add("--kernels", choices=KERNELS, help="CPU kernels to use (default: the CPU's best)")
    add("--rounds", type=whole, default=3, metavar="N", help="rounds, in which systems take turns (default: 3)")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options."""
    yield from out_of_range(options, "sentences", "rounds", "batch_sizes", "threads", "beta")
    known = ", ".join(dtypes := DTYPES if options.device == "cpu" else GPU_DTYPES)
    for dtype in options.dtypes or []:
        if dtype not in dtypes:
            yield "dtypes", f"{dtype} is not available on {options.device}: {known}"
    for block in options.block_sizes:
        if block != "auto" and not (block.isdecimal() and int(block)):
            yield "block_sizes", f"'{block}' is neither auto nor a number from 1"
    for tau in options.tau:
        if not 0 <= tau < math.inf:
            yield "tau", f"{tau} is not a finite number from 0"
    if options.kernels and options.device != "cpu":
        yield "kernels", "requires --device cpu"
    if options.report and not find_spec("matplotlib"):
        yield "report", f"requires matplotlib, which is not installed; run: {install_command('bench')}"


def run(options: argparse.Namespace) -> None:
    """Measure; print the tables and the JSON line."""
    ready.readable(options.input, options.reference)
    ready.writable_folder(options.report)
    ready.device(options.device)
    ready.kernels(options.kernels)
    name, options.model = options.model, ready.model(options.model)
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.report import measured_rows, write_report
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    pair = load_folder(options.model, options.device)
    # Drafting systems may accept shorter sources than the verifier alone.
    reader = Translator(pair, Settings(strategy="specdec" if pair.drafter else "ar", threads=1, kernels=options.kernels))
    text = read_text(reader, options.input, options.reference, options.sentences, options.tokenized)
    loads = workloads(options.measure, options.batch_sizes, options.threads or thread_choices(options.device), options.device)
    plan = Plan(options.model, systems_of(options, pair.drafter is not None), loads, options.rounds)
    signature = {
        **machine(options.device, options.kernels),
        "block_size": pair.block_size,
        "model": name,
        "input": options.input,
        "sentences": len(text.sources),
    }
    with Steps(1.0) as steps:
        found = measured_rows(plan, text, reader, steps)
    result = {"benchmark": "specdec-benchmark", **found, "rounds": options.rounds, "signature": signature}
    print("\n\n".join(tables(result["rows"], signature).values()))
    print(json.dumps(result), flush=True)
    if options.report:
        write_report(Path(options.report), result)


def systems_of(options: argparse.Namespace, drafter: bool) -> list[System]:
    """The systems to measure, without those that lack a drafter. On a CPU, fairseq supports float32 only."""
    found = []
    for name in options.systems:
        dtypes = options.dtypes or [each for each in (DTYPES if options.device == "cpu" else GPU_DTYPES) if each != OURS]
        variants: list[dict[str, Any]] = [{}]
        if name == "specdec":
            variants = [{"block": block} for block in options.block_sizes]
        elif name == "specdec-tolerant":
            variants = [{"beta": beta, "tau": tau} for beta, tau in product(options.beta, options.tau)]
        elif name.startswith("fairseq") and options.device == "cpu":
            dtypes = ["float32"]
        found += [
            System(name, dtype, device=options.device, kernels=options.kernels, **how) for dtype in dtypes for how in variants
        ]
    return [system for system in found if drafter or system.strategy in DRAFTERLESS]


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
