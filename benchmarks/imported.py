"""An imported model, MarianMT or T5: our decoding beside transformers, CTranslate2 and Marian, greedy, on the same weights.

    python benchmarks/imported.py --original DIR --model DIR --input FILE [--sentences 100] [--rounds 5] [--batch-sizes 1 8]

``--original`` is the Hugging Face folder, ``--model`` the imported one, with or without a drafter. Each system runs in its own
process, in turn; a cell is the median of its rounds. Encoding and decoding of text are not timed, but Marian splits its input at
spaces. Assisted generation looks its drafts up in the output so far, which needs no second model. The last line is JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.measure.machine import machine

Decode = Callable[[list[list[int]], int], list[list[int]]]  # sources with eos, batch size: outputs without eos
decode: Decode


def prepare(system: str, dtype: str, options: argparse.Namespace) -> None:
    """Build ``decode`` in its own process."""
    import torch

    torch.set_num_threads(options.threads)
    global decode
    decode = SYSTEMS[system](dtype, options)


def run(sources: list[list[int]], batch_size: int) -> tuple[float, list[list[int]]]:
    batches = [sources[at : at + batch_size] for at in range(0, len(sources), batch_size)]
    began = time.perf_counter()
    outputs = [output for batch in batches for output in decode(batch, batch_size)]
    return time.perf_counter() - began, outputs


def ours(strategy: str) -> Callable[[str, argparse.Namespace], Decode]:
    def build(dtype: str, options: argparse.Namespace) -> Decode:
        from specdec_plugins import Translator

        block = {"block_size": options.block_size} if strategy == "specdec" else {"beam": 1}
        engine = Translator.from_pretrained(
            options.model, strategy=strategy, dtype=dtype, threads=options.threads, **block
        ).engine
        eos = engine.pair.verifier.spec.symbols.eos

        def decode(sources: list[list[int]], batch_size: int) -> list[list[int]]:
            return [[token for token in each.tokens if token != eos] for each in engine.generate(sources, batch_size)]

        return decode

    return build


def transformers(assisted: bool) -> Callable[[str, argparse.Namespace], Decode]:
    def build(dtype: str, options: argparse.Namespace) -> Decode:
        import torch

        from specdec_plugins.measure.certificate import library

        model = library().AutoModelForSeq2SeqLM.from_pretrained(
            options.original, local_files_only=True, dtype=getattr(torch, dtype)
        )
        config = model.eval().generation_config
        more = {"prompt_lookup_num_tokens": 8} if assisted else {}
        special = {config.eos_token_id, config.pad_token_id}

        @torch.inference_mode()
        def decode(sources: list[list[int]], batch_size: int) -> list[list[int]]:
            rows = [torch.tensor(source) for source in sources]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
            found = model.generate(input_ids=ids, attention_mask=(ids != config.pad_token_id).long(), num_beams=1, **more)
            return [[token for token in row if token not in special] for row in found.tolist()]

        return decode

    return build


def ctranslate2(dtype: str, options: argparse.Namespace) -> Decode:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    from specdec_plugins.measure.certificate import library

    tokenizer = library().AutoTokenizer.from_pretrained(options.original, local_files_only=True)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    asked = json.loads((Path(options.original) / "generation_config.json").read_text("utf-8"))
    longest = asked.get("max_length", 513) - 1  # `generate` counts the start token
    with tempfile.TemporaryDirectory() as folder:
        TransformersConverter(options.original).convert(f"{folder}/converted")
        translator = ctranslate2.Translator(
            f"{folder}/converted", compute_type=dtype, inter_threads=1, intra_threads=options.threads
        )

    def decode(sources: list[list[int]], batch_size: int) -> list[list[int]]:
        tokens = [[pieces[token] for token in source] for source in sources]
        found = translator.translate_batch(tokens, max_batch_size=batch_size, beam_size=1, max_decoding_length=longest)
        return [[vocabulary[token] for token in each.hypotheses[0]] for each in found]

    return decode


def marian(dtype: str, options: argparse.Namespace) -> Decode:
    """Marian with its own 8-bit products, or in float32."""
    from marian_model import marian_of

    from specdec_plugins.formats.folder import load_folder

    return marian_of(load_folder(options.model).verifier, dtype, options.threads)


SYSTEMS: dict[str, Callable[[str, argparse.Namespace], Decode]] = {
    "ar": ours("ar"),
    "specdec": ours("specdec"),
    "transformers": transformers(False),
    "assisted": transformers(True),
    "ctranslate2": ctranslate2,
    "marian": marian,
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--original", required=True, metavar="DIR")
    p.add_argument("--model", required=True, metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE")
    p.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), help="the first is compared with")
    p.add_argument("--dtypes", nargs="+", choices=("int8", "float32"), default=("int8", "float32"))
    p.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8])
    p.add_argument("--block-size", type=lambda value: value if value == "auto" else int(value), default="auto")
    p.add_argument("--sentences", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    options = p.parse_args()
    from specdec_plugins import Translator
    from specdec_plugins.text.lines import read_lines

    lines = [line for _, line in zip(range(options.sentences), read_lines(options.input))]
    sources = Translator.from_pretrained(options.model, strategy="ar").encode(lines)
    rows = []
    for dtype in options.dtypes:
        systems = [name for name in options.systems if dtype == "float32" or name not in ("transformers", "assisted")]
        workers = {name: ProcessPoolExecutor(1, get_context("spawn"), prepare, (name, dtype, options)) for name in systems}
        for size in options.batch_sizes:
            seconds: dict[str, list[float]] = {name: [] for name in systems if size == 1 or name != "assisted"}
            outputs = {}
            for _ in range(options.rounds + 1):
                for name, each in seconds.items():
                    took, outputs[name] = workers[name].submit(run, sources, size).result()
                    each.append(took)
            first = outputs[systems[0]]
            for name, each in seconds.items():
                tokens = sum(len(output) + 1 for output in outputs[name])
                times = statistics.median(ours / theirs for ours, theirs in zip(seconds[systems[0]][1:], each[1:]))
                row = {
                    "system": name,
                    "dtype": dtype,
                    "batch_size": size,
                    "tokens_per_second": round(tokens / statistics.median(each[1:])),
                    f"times_{systems[0]}": round(times, 2),
                    "identical": sum(map(list.__eq__, first, outputs[name])),
                    "of": len(sources),
                }
                rows.append(row)
                print(*row.values(), sep="\t", flush=True)
        for worker in workers.values():
            worker.shutdown()
    print(json.dumps({"benchmark": "imported", "rows": rows, "signature": {**machine("cpu"), **vars(options)}}))


if __name__ == "__main__":
    main()
