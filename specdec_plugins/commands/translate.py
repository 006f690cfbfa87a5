"""The command ``specdec-translate``: text in, translations out, one line each, in order."""

import argparse
import math
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import less_than_one, option_name, run_command, same_file
from specdec_plugins.commands.translation.answers import Answerer, Answers, settings_of
from specdec_plugins.commands.translation.buffers import Buffer, read_buffers
from specdec_plugins.commands.translation.formats import FORMATS
from specdec_plugins.commands.translation.output import Output, Trace, Written, summary
from specdec_plugins.commands.translation.ranks import follow, joined, lead, parallel_faults
from specdec_plugins.decoding.options import CHOICES, RULES, USUAL_BUDGET
from specdec_plugins.settings import DTYPES, STRATEGIES, UNTRAINED, Fault, OptionError, Settings
from specdec_plugins.text.lines import MAX_DOCUMENT_BYTES, LineReader, count_line_ends
from specdec_plugins.workers import Workers


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-translate",
        usage="%(prog)s (--model DIR | --verifier PT --drafter PT --data DIR) [option ...]",
        description="Translate lines of text. One line out for each line in, in order; with --samples N, N lines.",
        epilog="Exit status: 0 done; 1 stopped by bad input or a file, while what was written stays; 2 wrong options.",
        allow_abbrev=False,
    )
    model = p.add_argument_group("model: a folder made by specdec-pack, or its parts")
    model.add_argument("--model", metavar="DIR", help="model folder")
    model.add_argument("--verifier", metavar="PT", help="fairseq checkpoint of the autoregressive model")
    model.add_argument("--drafter", metavar="PT", help="fairseq checkpoint of the block drafter")
    model.add_argument("--data", metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    model.add_argument("--codes", metavar="FILE", help="BPE codes; without them, give --bpe")
    model.add_argument("-s", "--source-lang", metavar="LANG")
    model.add_argument("-t", "--target-lang", metavar="LANG")

    text = p.add_argument_group("text")
    text.add_argument("--input", metavar="FILE", help="UTF-8 text, .gz allowed (default: stdin)")
    text.add_argument("--output", metavar="FILE", help="(default: stdout)")
    text.add_argument("--resume", action="store_true", help="keep the complete lines of --output, and go on after them")
    text.add_argument("--bpe", action="store_true", help="the input is tokens in BPE already, and so is the output")
    text.add_argument("--remove-bpe", action="store_true", help="join the subwords of --bpe's output, and of S and H lines")
    text.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="fairseq: S, T, H, D and P lines, scores to base 2; json: scores in nats",
    )
    text.add_argument("--reference", metavar="FILE", help="reference translations, for the T lines of --format fairseq")
    long = text.add_mutually_exclusive_group()
    long.add_argument("--truncate-source", action="store_true", help="cut sources that are too long for the models, and say so")
    long.add_argument("--skip-long", action="store_true", help="write an empty line for such sources, and say so")

    text.add_argument("--windows", type=number_or_word, metavar="N",
                      help="lines are documents of any length: cut them at sentence ends into windows of at most N source "
                      "tokens, or into sentences (sentence), and join the outputs by spaces")  # fmt: skip
    text.add_argument("--context", type=int, default=0, metavar="C",
                      help="read each window with the C before it, and let its output go on after theirs (default: "
                      "0)")  # fmt: skip
    text.add_argument("--max-positions", type=int, metavar="N",
                      help="read and write up to N tokens where the models were trained for fewer; sinusoidal positions "
                      "only")  # fmt: skip

    how = p.add_argument_group("decoding")
    how.add_argument("--strategy", choices=STRATEGIES, default="specdec",
                     help="specdec: draft and verify (default); ar: the verifier alone; drafter: drafts, unverified; "
                     "fairseq: its own generator")  # fmt: skip
    how.add_argument("--draft-with", metavar="NAME",
                     help=f"a drafter without weights in place of the model's: {', '.join(UNTRAINED)}, or "
                     "module:object")  # fmt: skip
    how.add_argument("--hint", metavar="FILE", help="earlier translations, one for each input line, for --draft-with previous")
    how.add_argument("--datastore", metavar="FILE", help="what specdec-datastore made, for --draft-with retrieval")
    how.add_argument("--kv-budget", type=int, metavar="N",
                     help="positions of the source, and of the output, that a drafting pass reads: of --draft-with window, or of "
                     f"the model's drafter block_causal or small (default: {USUAL_BUDGET.positions} of window, all of the "
                     "others)")  # fmt: skip
    how.add_argument("--sinks", type=int, default=USUAL_BUDGET.sinks, metavar="N",
                     help="so many of them are the first ones; with mass, of the output alone "
                     f"(default: {USUAL_BUDGET.sinks})")  # fmt: skip
    how.add_argument("--kv-choice", choices=CHOICES, default=USUAL_BUDGET.choice,
                     help="of the source. mass: those that the last verification attended to most; recent: those around the one "
                     f"it attended to most; sinks: the first and the last (default: {USUAL_BUDGET.choice})")  # fmt: skip
    how.add_argument("--block-size", type=number_or_word, metavar="K",
                     help="drafted tokens per iteration; auto: as many as pay, down to none; model: as trained (default: auto "
                     "with the exact rule; else, and with --trace or --tree, model)")  # fmt: skip
    how.add_argument("--tree", type=int, metavar="N",
                     help="draft trees of up to N tokens: the likeliest paths of up to --block-size tokens")  # fmt: skip
    how.add_argument("--beta", type=int, default=1, metavar="N",
                     help="accept a token among the verifier's N best (default: 1: exact)")  # fmt: skip
    how.add_argument("--tau", type=float, default=math.inf, metavar="X", help="and within X nats of its best (default: no limit)")
    how.add_argument("--verifier-gate", type=float, default=0.0, metavar="P",
                     help="draft nothing after a token to which the verifier gave less than P (default: 0)")  # fmt: skip
    how.add_argument("--drafter-gate", type=float, default=0.0, metavar="P",
                     help="end drafts where the product of the drafter's probabilities falls below P (default: 0)")  # fmt: skip
    how.add_argument("--beam", type=int, default=1, metavar="N", help="beam size of --strategy fairseq (default: 1)")
    how.add_argument("--max-len-a", type=float, default=0.0, metavar="A", help="at most A * source tokens + B output tokens")
    how.add_argument("--max-len-b", type=int, default=200, metavar="B", help="(default: 0 and 200, as in fairseq)")
    how.add_argument("--min-len", type=int, default=1, metavar="N", help="at least N output tokens before the end (default: 1)")
    how.add_argument("--no-repeat-ngram-size", type=int, default=0, metavar="N",
                     help="no N tokens in a row come twice in an output (default: 0: any may)")  # fmt: skip
    how.add_argument("--batch-size", type=int, metavar="N", help="sentences at a time (default: 32; with --max-tokens, any)")
    how.add_argument("--max-tokens", type=int, metavar="N", help="source tokens at a time, padding included")
    how.add_argument("--buffer-size", type=int, metavar="N",
                     help="lines read before they are translated (default: 512; 1 from a terminal)")  # fmt: skip
    how.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    how.add_argument("--dtype", choices=DTYPES, default="float32",
                     help="of the weights (default: float32; auto: the fastest, int8 on a CPU, float16 on a GPU)")  # fmt: skip
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as many as there are CPUs to use)")
    how.add_argument("--workers", type=int, default=1, metavar="N",
                     help="processes that share the threads; with --device cuda, each has a GPU of its own")  # fmt: skip
    how.add_argument("--tensor-parallel", action="store_true",
                     help="split each layer of the verifier among all ranks: torchrun --nproc-per-node N -m "
                     "specdec_plugins.commands.translate --tensor-parallel ...; on a CPU by PyTorch")  # fmt: skip
    how.add_argument("--drafter-ranks", type=int, default=Settings.drafter_ranks, metavar="N",
                     help="so many ranks share a drafter that has weights (default: 1, which has all of it)")  # fmt: skip

    add_sampling(p.add_argument_group("sampling"))

    show = p.add_argument_group("what is shown")
    show.add_argument("--trace", nargs="?", const="", metavar="FILE.html",
                      help="show what each iteration drafted and accepted: on stderr, or as a page")  # fmt: skip
    show.add_argument("--quiet", action="store_true", help="no progress bar, no summary; warnings and errors only")
    return p


def add_sampling(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how tokens are drawn."""
    texts = {
        "temperature": (float, "T", "divides the logits"),
        "top-k": (int, "K", "keep the K likeliest tokens; 0: all"),
        "top-p": (float, "P", "and of these the fewest that have a probability of P together, as in Hugging Face; fairseq leaves "
                  "--top-k out where --top-p is set"),
        "repetition-penalty": (float, "R", "divides the logits of tokens that the output has where they are positive, else "
                               "multiplies them"),
        "seed": (int, "S", "the same seed, line number and sample number draw the same tokens"),
        "samples": (int, "N", "outputs a line, one after the other: as lines, as JSON objects, as H, D and P lines"),
    }  # fmt: skip
    group.add_argument("--sampling", action="store_true",
                       help="draw tokens at random. Scores remain the verifier's log-probabilities, without temperature, top-k, "
                       "top-p and penalty")  # fmt: skip
    for name, (kind, letter, text) in texts.items():
        default = getattr(Settings, name.replace("-", "_"))
        group.add_argument(f"--{name}", type=kind, default=default, metavar=letter, help=f"{text} (default: {default})")
    group.add_argument("--rule", choices=RULES, default=Settings.rule,
                       help="which drafted tokens are accepted. coupled: the output is the verifier's own, draft or no draft; "
                       "rejection: it depends on drafts, and is as probable as without (default: coupled)")  # fmt: skip
    group.add_argument("--mbr", type=int, metavar="N",
                       help="draw N samples, and write the one with the highest mean chrF against the others")  # fmt: skip


def number_or_word(text: str) -> int | str:
    """A number, or a word that `Settings` judges."""
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def main(argv: list[str] | None = None) -> int:
    written = Written()
    return run_command(parser(), argv, partial(run, written=written), check, ending=written)


def check(options: argparse.Namespace) -> list[Fault]:
    """Every way in which the options do not go together."""
    faults: list[Fault] = []
    try:
        settings_of(options)
    except OptionError as error:
        faults += error.faults
    parts = [name for name in ("verifier", "drafter", "data", "codes", "source_lang", "target_lang") if getattr(options, name)]
    if options.model and parts:
        faults.append(("model", f"stands alone, without {', '.join(map(option_name, parts))}"))
    if not options.model and not (options.verifier and options.data):
        faults.append(("model", "is missing: give --model DIR, or --verifier PT and --data DIR"))
    if options.verifier and not (options.drafter or options.draft_with) and options.strategy in ("specdec", "drafter"):
        faults.append(("strategy", f"{options.strategy} needs --drafter" + " or --draft-with" * (options.strategy == "specdec")))
    if options.drafter and options.draft_with:
        faults.append(("drafter", "cannot be combined with --draft-with"))
    if options.hint and options.draft_with in (None, *UNTRAINED) and options.draft_with != "previous":
        faults.append(("hint", "requires --draft-with previous"))
    if options.draft_with == "previous" and not options.hint:
        faults.append(("hint", "is missing; --draft-with previous requires it"))
    if options.windows is not None:
        faults += [(name, "has no use with --windows") for name in ("truncate_source", "skip_long") if getattr(options, name)]
        if options.hint:
            faults.append(("hint", "is for whole lines, and does not go with --windows"))
    if options.resume and not options.output:
        faults.append(("resume", "needs --output"))
    if options.format == "fairseq" and options.strategy == "drafter":
        faults.append(("format", "fairseq prints scores, which strategy drafter has none of"))
    if options.reference and options.format != "fairseq":
        faults.append(("reference", "has a use only with --format fairseq"))
    if options.remove_bpe and not options.bpe and options.format != "fairseq":
        faults.append(("remove_bpe", "has a use only with --bpe or --format fairseq"))
    if options.trace is not None and options.strategy not in ("specdec", "drafter"):
        faults.append(("strategy", f"{options.strategy} drafts nothing that --trace could show"))
    inputs = options.input, options.reference, options.hint
    for name, others in (("output", inputs), ("trace", (*inputs, options.output))):
        written = getattr(options, name)
        if any(same_file(written, path) for path in others):
            faults.append((name, f"{written} is also an input" + ", or the output" * (name == "trace")))
    if options.resume and options.trace and os.path.exists(options.trace):
        faults.append(("trace", f"{options.trace} exists, and with --resume would lose what was shown before: name another file"))
    if options.workers > 1 and re.fullmatch(r"cuda:\d+", options.device):
        faults.append(("device", f"{options.device} is one GPU: with --workers say --device cuda, for the first ones"))
    faults += less_than_one(options, "batch_size", "max_tokens", "buffer_size", "workers")
    faults += parallel_faults(options) if options.tensor_parallel else []
    if faults and options.tensor_parallel and os.environ.get("RANK", "0") != "0":
        sys.exit(2)  # rank 0 says it
    return faults


def run(options: argparse.Namespace, written: Written) -> None:
    """Translate, a buffer of lines at a time. Raises ValueError or OSError with one line that names what is wrong."""
    with ExitStack() as stack:
        ranks = stack.enter_context(joined()) if options.tensor_parallel else None
        if ranks is not None and ranks.rank:
            return follow(ranks, Answerer(options))
        source = stack.enter_context(LineReader(options.input, None if options.windows is None else MAX_DOCUMENT_BYTES))
        terminal = not options.input and sys.stdin.isatty()
        references, hints = (
            stack.enter_context(LineReader(path)) if path else None for path in (options.reference, options.hint)
        )
        work: Callable[[Iterable[Buffer]], Iterator[Answers]]  # loads the model before an output that may exist is touched
        if options.workers > 1 and not terminal:
            work = stack.enter_context(Workers(options.workers, partial(Answerer, options))).map
        elif ranks is not None:
            work = partial(lead, ranks, Answerer(options))
        else:
            work = partial(map, Answerer(options))
        output = stack.enter_context(Output(options))
        written.lines, written.path = output.done, options.output
        for reader in (source, references, hints):
            if reader and reader.skip(output.done) < output.done:
                raise ValueError(f"{options.output} has more lines than {reader.name}: it was made from something else")

        trace = stack.enter_context(Trace(options))
        shown = stack.enter_context(progress(options, output.done, terminal))
        began, stats = time.perf_counter(), None
        size = options.buffer_size or (1 if terminal else 512)
        for answers in work(read_buffers(source, references, size, hints)):
            for answer in answers.lines:
                output.write(answer.text)
                for traced in answer.traced:
                    trace.write(traced)
                written.lines += 1
                shown.update()
                if answer.shortened:
                    what = f"{source.name}, line {written.lines}: too long for the models, {answer.shortened}"
                    shown.write(f"specdec-translate: {what}", file=sys.stderr)
            output.flush()
            if answers.fault:
                raise answers.fault
            stats = answers.stats if stats is None else stats + answers.stats
        shown.close()
        if not written.lines:
            print(f"specdec-translate: {source.name} is empty", file=sys.stderr)
        elif stats and not options.quiet:
            print("\n".join(summary(settings_of(options), stats, time.perf_counter() - began)), file=sys.stderr)


def progress(options: argparse.Namespace, done: int, terminal: bool):
    """A bar of the lines translated, unless the trace or what a person types shows the progress already."""
    hidden = options.quiet or not sys.stderr.isatty() or options.trace == "" or terminal
    total = None
    if not hidden and options.input and os.path.isfile(options.input):  # what a pipe holds can be read only once
        with suppress(OSError, EOFError, zlib.error):  # what is wrong with the file is told where it is read
            total = count_line_ends(options.input)
    return bar(hidden=hidden, total=total, initial=done, unit=" lines")


if __name__ == "__main__":
    sys.exit(main())
