#!/usr/bin/env python3
"""Compare routes for one verification pass: the kernels, PyTorch, its compiler, ONNX Runtime, OpenVINO.

    pip install onnx onnxruntime onnxscript openvino nncf torchao    # in an environment of its own
    benchmarks/routes.py --model data/demo.en-de [--positions 1 9]

A pass reads the last committed token and a draft after a cached prefix, and computes the verifier's best token after each. The
kernels and the engine's PyTorch backend run as in decoding, Python's share included. The others run a module of fixed shapes,
which neither pads nor grows nor writes a cache, and returns the best tokens and the new keys and values: less than an engine on
them would have to do. Each route runs in a process of its own, with 1 thread and with all; rounds are interleaved. A route that
fails prints why. Figures are microseconds a pass; the last line is JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.backends.torch.transformer import attention  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402

SOURCE, PREFIX, WORD = 14, 12, 5  # tokens of the source, eos included; of the prefix; a token
PASSES = 200  # a round of a route


class Pass(nn.Module):
    """The verifier's decoder for the next ``width`` tokens after PREFIX, as a module of standard parts.

    L layers, Q = ``width`` positions, T = PREFIX, S source positions, D width.
    """

    layers: Any
    places: Tensor
    mask: Tensor

    def __init__(self, model: Any, width: int):
        super().__init__()
        decoder = model.decoder
        self.heads, self.activation = decoder.heads, decoder.layers[0].activation
        self.prenorm = decoder.layers[0].prenorm
        self.embed = nn.Embedding.from_pretrained(decoder.embedding.tokens * decoder.embedding.scale)
        self.register_buffer("places", decoder.embedding.place(torch.arange(PREFIX, PREFIX + width)))
        self.register_buffer("mask", torch.ones(width, PREFIX + width).tril(PREFIX).log())
        parts = ("qkv", "out", "cross_query", "cross_out", "fc1", "fc2")
        norms = ("norm", "cross_norm", "final_norm")
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                **{name: linear(getattr(layer, name).weight, getattr(layer, name).bias) for name in parts},
                **{name: norm(getattr(layer, name)) for name in norms},
            })
            for layer in decoder.layers
        )  # fmt: skip
        self.bottom = nn.Identity() if decoder.embedding.norm is None else norm(decoder.embedding.norm)
        self.top = nn.Identity() if decoder.norm is None else norm(decoder.norm)
        self.projection = linear(decoder.projection)

    def forward(self, tokens: Tensor, past: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) best tokens and (L, Q, 2 D) entries, for tokens (Q,) and the entries of prefix (L, T, 2 D), source (L, S, 2 D)."""
        x = self.bottom(self.embed(tokens) + self.places)
        width, new = x.size(-1), []
        for index, layer in enumerate(self.layers):
            qkv = layer["qkv"](layer["norm"](x) if self.prenorm else x)
            new.append(qkv[:, width:])
            y = layer["out"](self.attend(qkv[:, :width], torch.cat([past[index], qkv[:, width:]]), self.mask))
            x = x + y if self.prenorm else layer["norm"](x + y)
            query = layer["cross_query"](layer["cross_norm"](x) if self.prenorm else x)
            y = layer["cross_out"](self.attend(query, memory[index], None))
            x = x + y if self.prenorm else layer["cross_norm"](x + y)
            y = layer["fc2"](self.activation(layer["fc1"](layer["final_norm"](x) if self.prenorm else x)))
            x = x + y if self.prenorm else layer["final_norm"](x + y)
        return self.projection(self.top(x)).argmax(-1), torch.stack(new)

    def attend(self, queries: Tensor, entries: Tensor, mask: Tensor | None) -> Tensor:
        return attention(queries[None], entries[None], self.heads, mask)[0]


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    module = nn.Linear(weight.size(1), weight.size(0), bias is not None)
    module.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return module


def norm(given: Any) -> nn.LayerNorm:
    module = nn.LayerNorm(len(given.weight))
    module.load_state_dict({"weight": given.weight, "bias": given.bias})
    return module


# ---- routes: each takes the model's folder, the data type, threads and positions, and returns a function that makes one pass


def parts(folder: str) -> Any:
    from specdec_plugins.formats.folder import load_folder

    return load_folder(folder).verifier


def engine(native: bool, folder: str, dtype: str, threads: int, width: int) -> Callable[[], list[int]]:
    """A verification as `decoding/loop.py` asks for it, and the rule."""
    from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
    from specdec_plugins.decoding.assembly import assemble
    from specdec_plugins.decoding.backends.cpu.binding import library
    from specdec_plugins.decoding.backends.torch.model import TorchModel
    from specdec_plugins.decoding.backends.torch.transformer import load_pair
    from specdec_plugins.decoding.constraints import Constraints
    from specdec_plugins.decoding.prefix import Prefix
    from specdec_plugins.decoding.values import Draft, Request, Source
    from specdec_plugins.decoding.verifier import ModelVerifier

    model, rule = parts(folder), TopBetaTau()
    if native:
        if library() is None:
            raise ValueError("the kernels were not compiled for this machine")
        verifier = assemble(model, None, "cpu", dtype, threads)[1]
    else:
        verifier = ModelVerifier(TorchModel(load_pair(model, None, dtype=getattr(torch, dtype))[0]))
    prefix, state, symbols = Prefix(Constraints.of(model.spec)), verifier.start(1), model.spec.symbols
    prefix.admit([Request(0, [WORD] * (SOURCE - 1) + [symbols.eos], 200)])
    verifier.admit(state, Source([prefix.requests[0].tokens], symbols))
    verifier.model.read(state, [[symbols.start, *[WORD] * (PREFIX - 1)]], [0]).logits()  # fills the cache
    prefix.outputs[0] += [WORD] * PREFIX
    draft = Draft([[WORD] * (width - 1)])

    def run() -> list[int]:
        return rule(verifier.score(state, prefix, draft), draft, prefix).accepted

    return run


def module(folder: str, width: int) -> tuple[Pass, tuple[Tensor, ...]]:
    from specdec_plugins.decoding.backends.torch.transformer import load_pair

    model = load_pair(parts(folder), None)[0]
    layers, size = len(model.decoder.layers), 2 * model.decoder.width
    torch.manual_seed(1)
    inputs = torch.full((width,), WORD), torch.randn(layers, PREFIX, size), torch.randn(layers, SOURCE, size)
    return Pass(model, width).eval(), inputs


def compiled(folder: str, dtype: str, threads: int, width: int) -> Callable[[], Any]:
    import torch._inductor.config as inductor

    inductor.freezing = inductor.cpp_wrapper = True
    net, inputs = module(folder, width)
    if dtype == "int8":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(net, Int8DynamicActivationInt8WeightConfig())
    elif dtype == "bfloat16":
        net, inputs = net.bfloat16(), (inputs[0], *(each.bfloat16() for each in inputs[1:]))
    function = torch.compile(net)
    return lambda: function(*inputs)[0].tolist()


def exported(folder: str, width: int, place: str) -> tuple[str, dict[str, Any]]:
    """The module in ONNX, and its inputs."""
    net, inputs = module(folder, width)
    names = ["tokens", "past", "memory"]
    torch.onnx.export(net, inputs, f"{place}/pass.onnx", input_names=names, output_names=["best", "new"], dynamo=True,
                      verbose=False, external_data=False)  # fmt: skip
    return f"{place}/pass.onnx", {name: each.numpy() for name, each in zip(names, inputs)}


def onnxruntime(folder: str, dtype: str, threads: int, width: int) -> Callable[[], Any]:
    import onnx
    import onnxruntime as ort
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as place:
        path, inputs = exported(folder, width, place)
        if dtype == "int8":
            model = onnx.load(path)
            del model.graph.value_info[:]  # shapes that the quantiser would not change along
            quantize_dynamic(model, f"{place}/int8.onnx", per_channel=True)
            path = f"{place}/int8.onnx"
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)[0].tolist()


def openvino(folder: str, dtype: str, threads: int, width: int) -> Callable[[], Any]:
    import openvino as ov

    with tempfile.TemporaryDirectory() as place:
        path, inputs = exported(folder, width, place)
        core = ov.Core()
        model = core.read_model(path)
        if dtype == "int8":
            import nncf

            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        precision = "bf16" if dtype == "bfloat16" else "f32"
        hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        request = core.compile_model(model, "CPU", hints).create_infer_request()
    tensors = {name: ov.Tensor(each, shared_memory=True) for name, each in inputs.items()}
    request.infer(tensors)

    def run() -> Any:
        request.infer()
        return request.get_output_tensor(0).data.tolist()

    return run


ROUTES: dict[str, tuple[Callable[..., Callable[[], Any]], tuple[str, ...]]] = {
    "the kernels": (partial(engine, True), ("float32", "bfloat16", "int8")),
    "PyTorch, the engine's": (partial(engine, False), ("float32", "bfloat16")),
    "torch.compile, torchao": (compiled, ("float32", "bfloat16", "int8")),
    "ONNX Runtime": (onnxruntime, ("float32", "int8")),
    "OpenVINO": (openvino, ("float32", "bfloat16", "int8")),
}


# ---- a route in its process

made: Callable[[], Any]


@torch.no_grad()
def make(route: str, folder: str, dtype: str, threads: int, width: int) -> str | None:
    """Prepare the route. Returns None, or why it cannot run."""
    import logging

    global made
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    try:
        made = ROUTES[route][0](folder, dtype, threads, width)
        made()
    except Exception as error:  # whatever somebody else's library raises
        return (str(error).strip() or repr(error)).splitlines()[0][:200]
    return None


@torch.no_grad()
def measure() -> float:
    """Microseconds a pass."""
    for _ in range(PASSES // 10):
        made()
    began = time.perf_counter()
    for _ in range(PASSES):
        made()
    return 1e6 * (time.perf_counter() - began) / PASSES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--positions", type=int, nargs="+", default=[1, 9], metavar="N")
    parser.add_argument("--routes", nargs="+", default=list(ROUTES), choices=ROUTES, metavar="R")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    threads = sorted({1, usable_cpus()})
    rows = []
    for width in options.positions:
        found: dict[tuple[str, str, int], tuple[ProcessPoolExecutor, list[float]]] = {}
        for route, number in product(options.routes, threads):
            for dtype in ROUTES[route][1]:
                process = ProcessPoolExecutor(1, get_context("spawn"))
                fault = process.submit(make, route, options.model, dtype, number, width).result()
                if fault is None:
                    found[route, dtype, number] = process, []
                else:
                    print(f"{route}, {dtype}: {fault}", flush=True)
                    process.shutdown()
        for _ in range(options.rounds):
            for process, times in found.values():
                times.append(process.submit(measure).result())
        for (route, dtype, number), (process, times) in found.items():
            process.shutdown()
            middle = statistics.median(times)
            took = f"{middle:6.0f} us ({min(times):.0f} to {max(times):.0f})"
            print(f"{route:24} {dtype:9} {width:3} positions, {number} threads: {took}", flush=True)
            rows.append({"route": route, "dtype": dtype, "positions": width, "threads": number, "microseconds": round(middle)})
    print(json.dumps({"benchmark": "routes", "rows": rows, "signature": {**machine(), "model": options.model}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
