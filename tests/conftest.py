"""Shared pieces of the tests: tiny models built as fairseq builds them, and toy data prepared once."""

import argparse
import fcntl
import functools
import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
logging.getLogger("fairseq").setLevel(logging.WARNING)
# Tiny models gain nothing from more, and in the processes that tests start idle threads would spin. torch reads this at import.
os.environ["OMP_NUM_THREADS"] = "1"


# Files with long tests of half a minute or more, the longest first, or a process would still run one when the other is through.
SLOWEST = ("container", "benchmark", "draft", "training", "summarise", "corpora_ray", "serve", "protected", "token_ids", "corpus")


collect_ignore: list[str] = []
if find_spec("torch") is None:  # the base install: what it can run; specdec-prepare ends with fairseq
    from installed import missing

    collect_ignore += ["test_prepare.py"] + [path.name for path in (ROOT / "tests").glob("test_*.py") if missing(path)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}.py": number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.name, 99) if item.get_closest_marker("long") else 99)


def pytest_collection_finish() -> None:
    gc.freeze()  # a million objects of the libraries, which no collection needs to visit


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Models that a test leaves in cycles are gone before the next ones load: of their memory the collector sees little. So are
    the threads that it asked for."""
    before = resident()
    yield
    if torch := sys.modules.get("torch"):  # commands change these for the whole process
        torch.set_num_threads(1)  # more would cost the next tests, as threads spin
        torch.set_float32_matmul_precision("highest")
    if resident() > before + 2**24:
        gc.collect()


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def once(function: Callable) -> Callable:
    """The function, which remembers its results for the same strings, numbers and objects."""
    kept: dict = {}

    def remembered(*given):
        key = tuple(each if isinstance(each, str | int | None) else id(each) for each in given)
        if key not in kept:
            kept[key] = function(*given), given  # objects that live on keep their identity
        return kept[key][0]

    return remembered


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """Model folders are read, and models checked and packed, once for a module's tests, which must leave them as they are: that
    takes ten times as long as to translate a few sentences."""
    from specdec_plugins import translator
    from specdec_plugins.decoding import assembly

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translator, "load_folder", once(translator.load_folder))
        patch.setattr(assembly, "load", once(assembly.load))
        yield


def corpus(name: str) -> Path:
    """The folder ``name`` of corpora, such as multi30k, in the folder that SPECDEC_CORPORA names; skips the test without it."""
    folder = os.environ.get("SPECDEC_CORPORA")
    if not folder or not (path := Path(folder, name)).is_dir():
        pytest.skip(f"needs {name} in the folder that SPECDEC_CORPORA names (CONTRIBUTING.md)")
    return path


def make_dictionary(words: int = 20):
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for index in range(words):
        dictionary.add_symbol(f"w{index}")
    return dictionary


def model_settings(**changes) -> argparse.Namespace:
    """Settings of a tiny Transformer, as they come from the command line."""
    settings = {
        "encoder_embed_dim": 16, "decoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "decoder_ffn_embed_dim": 24,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "share_all_embeddings": True, "dropout": 0.0, "max_source_positions": 64, "max_target_positions": 64,
        "src_embedding_copy": True, "arch": "block",
    }  # fmt: skip
    return argparse.Namespace(**{**settings, **changes})


def make_drafter(seed: int = 0, dtype=None, words: int = 20, **changes):
    """A block drafter, float64 by default: ``block``, or ``block_causal``, fairseq's Transformer that reads mask symbols, and a
    successor network."""
    import torch
    from fairseq.models.transformer import TransformerModel, base_architecture
    from fairseq.modules import SinusoidalPositionalEmbedding

    use_our_positions(SinusoidalPositionalEmbedding)

    from specdec_plugins.decoding.networks.successor import Successor
    from specdec_plugins.models.block import SCALED_FORM, BlockDrafterModel, block_architecture

    torch.manual_seed(seed)
    dictionary = make_dictionary(words)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    args = model_settings(**changes)
    if args.arch == "block":
        block_architecture(args)
        return BlockDrafterModel.build_model(args, task).to(dtype or torch.float64).eval()
    base_architecture(args)
    model = TransformerModel.build_model(args, task)
    model.register_buffer("block_format", torch.tensor([SCALED_FORM]))
    if hidden := getattr(args, "successor_width", 0):
        model.decoder.successor = Successor(args.decoder_embed_dim, hidden)
    return model.to(dtype or torch.float64).eval()


def make_verifier(seed: int = 0, words: int = 20, **changes):
    """A tiny AR Transformer and its settings."""
    import torch
    from fairseq.models.transformer import TransformerModel, base_architecture
    from fairseq.modules import SinusoidalPositionalEmbedding

    use_our_positions(SinusoidalPositionalEmbedding)

    torch.manual_seed(seed)
    dictionary = make_dictionary(words)
    args = model_settings(**{"arch": "transformer", **changes})
    base_architecture(args)
    model = TransformerModel.build_model(args, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary))
    return model.eval(), args


def make_batch(lengths, pad: int = 1, eos: int = 2, words: int = 24, left: bool = False, seed: int = 0):
    """(B, S) int64 sentences of the given lengths, ending in eos, padded on one side."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    batch = torch.full((len(lengths), max(lengths)), pad)
    for row, length in enumerate(lengths):
        sentence = torch.cat([torch.randint(4, words, (length - 1,), generator=generator), torch.tensor([eos])])
        if left:
            batch[row, batch.size(1) - length :] = sentence
        else:
            batch[row, :length] = sentence
    return batch


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    """Apply a change to the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def environment(served, tmp_path) -> dict[str, str]:
    """For processes that take the stand-in ``served`` for the Hub."""
    served.asked.clear()
    return {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}


def run_python(
    *arguments, check: bool = True, timeout: float = 300, python: str = sys.executable, **environment
) -> subprocess.CompletedProcess:
    """Run a Python module or file in a fresh process, from the repository's root."""
    result = subprocess.run(
        [python, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check:
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result


def run_script(name: str, *arguments) -> subprocess.CompletedProcess:
    """Run a shell script of data/."""
    command = ["sh", str(ROOT / "data" / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": fast_python() if find_spec("fairseq") else sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@functools.cache
def fast_python() -> str:
    """A Python that has imported fairseq: see forked_python.py."""
    pytest.importorskip("fairseq_cli")
    from forked_python import forked_python

    fast_python.path, fast_python.server = forked_python()
    return fast_python.path


def run_fairseq(command: str, *arguments, check: bool = True, **environment) -> subprocess.CompletedProcess:
    """Run a command of fairseq from the repository's root."""
    return run_python("-m", f"fairseq_cli.{command}", *arguments, python=fast_python(), check=check, **environment)


def run_forked(function, *arguments, **environment) -> subprocess.CompletedProcess:
    """Run a function in a fork of this process, which spares imports, from the repository's root."""
    with tempfile.TemporaryDirectory() as temporary:
        files = [os.path.join(temporary, name) for name in ("stdout", "stderr")]
        process = multiprocessing.get_context("fork").Process(target=_become, args=(function, arguments, files, environment))
        process.start()
        process.join(300)
        process.kill()
        process.join()
        output = [Path(file).read_text(encoding="utf-8") if os.path.exists(file) else "" for file in files]
    return subprocess.CompletedProcess([function, *arguments], process.exitcode, *output)


def _become(function, arguments, files: list[str], environment: dict[str, str]) -> None:
    for number, (name, file) in enumerate(zip(("stdout", "stderr"), files), 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
        setattr(sys, name, open(number, "w", encoding="utf-8", buffering=1, closefd=False))  # noqa: SIM115  # pytest's are elsewhere
    os.chdir(ROOT)
    os.environ.update(environment)
    function(*arguments)


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory) -> Path:
    """A small toy corpus, prepared: the folder that data/toy.sh makes. The first of pytest's processes makes it for all."""
    pytest.importorskip("fairseq_cli")
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "toy"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "data" / "prepare.json").exists():
            make_toy_data(folder)
    return folder / "data"


def make_toy_data(folder: Path) -> None:
    from specdec_plugins.commands import prepare

    text = folder / "text"
    run_python("data/toy.py", "--output", text, "--train", 300, "--valid", 40, "--test", 20)
    prefixes = [item for split in ("train", "valid", "test") for item in (f"--{split}", text / split)]
    options = ["--source-lang", "xa", "--target-lang", "xb", *prefixes, "--bpe-operations", 200, "--max-ratio", 0, "--workers", 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", fast_python())
        assert prepare.main([*map(str, options), "--output", str(folder / "data")]) == 0


@pytest.fixture(scope="session")
def parts(toy_data, tmp_path_factory) -> dict:
    """Options that name a random pair by its parts."""
    from specdec_plugins.formats import checkpoint
    from specdec_plugins.text.vocabulary import Vocabulary

    folder = tmp_path_factory.mktemp("pair")
    words = len(Vocabulary.read(toy_data / "bin" / "dict.xa.txt")) - 4
    widths = dict.fromkeys([f"{side}_{kind}_dim" for side in ("encoder", "decoder") for kind in ("embed", "ffn_embed")], 32)
    shape = {
        "words": words,
        "max_source_positions": 100,
        "max_target_positions": 100,
        **widths,
    }  # widths that the kernels compute
    verifier, args = make_verifier(seed=3, **shape)
    drafter = make_drafter(seed=4, **shape).float()
    args.source_lang, args.target_lang = "xa", "xb"
    checkpoint.save({"model": verifier.state_dict(), "args": args, "cfg": None}, folder / "verifier.pt")
    block = {**vars(args), "arch": "block", "src_embedding_copy": True, "block_size": 5}
    for name, tensor in verifier.encoder.state_dict().items():  # a drafter that kept the verifier's encoder
        drafter.encoder.state_dict()[name].copy_(tensor)
    checkpoint.save({"model": drafter.state_dict(), "args": type(args)(**block), "cfg": None}, folder / "drafter.pt")
    return {
        "--verifier": folder / "verifier.pt",
        "--drafter": folder / "drafter.pt",
        "--data": toy_data / "bin",
        "--codes": toy_data / "codes",
    }


@pytest.fixture(scope="session")
def folder(parts, tmp_path_factory) -> Path:
    """The same pair as a model folder."""
    from specdec_plugins.commands import pack

    path = tmp_path_factory.mktemp("folder") / "pair"
    assert pack.main([*(str(item) for option in parts.items() for item in option), "--output", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def lines(toy_data) -> list[str]:
    """Some of the corpus's source lines, empty ones among them."""
    text = (toy_data / "raw" / "test.xa").read_text(encoding="utf-8").splitlines()[:9]
    return ["", *text[:4], "", "   ", *text[4:]]


@pytest.fixture
def source(lines, tmp_path) -> Path:
    """A file of these lines."""
    path = tmp_path / "source.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@functools.cache
def transformers():
    """transformers, without the torchaudio that fairseq brings: its build for GPUs does not load without one."""
    import transformers.utils

    transformers.utils.is_torchaudio_available = lambda: False
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm
    from transformers.models.t5gemma import modeling_t5gemma
    from transformers.models.t5gemma2 import modeling_t5gemma2
    from transformers.models.umt5.modeling_umt5 import UMT5LayerNorm

    use_our_positions(M2M100SinusoidalPositionalEmbedding)
    for norm in (T5LayerNorm, MT5LayerNorm, UMT5LayerNorm):
        norm.forward = precise_norm
    make_precise(modeling_t5gemma, "T5Gemma")
    make_precise(modeling_t5gemma2, "T5Gemma2")
    return transformers


def precise_norm(self, x):
    """The RMS norm of T5 in the data type of ``x``: theirs computes the variance in float32, which comparisons in float64 would
    see."""
    import torch

    return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def make_precise(module, family):
    """Makes a version of T5Gemma compute norms and attention in the data type of its inputs, with our rotary tables: theirs are
    float32's."""
    import types

    import torch
    import torch.nn.functional as F

    from specdec_plugins.formats.positions import rotations

    def norm(self, x):
        return F.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)

    def rotary(self, x, position_ids, layer_type=None):
        config = self.config
        how = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
        table = rotations(config.max_position_embeddings, config.head_dim, how["rope_theta"], how.get("factor", 1.0))
        return [torch.cat([part, part], -1).to(x) for part in torch.from_numpy(table)[position_ids].chunk(2, -1)]

    functional = types.SimpleNamespace(softmax=lambda x, dim, dtype: x.softmax(dim), dropout=F.dropout)
    attend = module.eager_attention_forward
    own = {**attend.__globals__, "nn": types.SimpleNamespace(functional=functional, Module=torch.nn.Module)}
    module.eager_attention_forward = types.FunctionType(attend.__code__, own, argdefs=attend.__defaults__)
    getattr(module, f"{family}RMSNorm").forward, getattr(module, f"{family}RotaryEmbedding").forward = norm, rotary


def use_our_positions(kind):
    """Gives a library's models our sinusoidal tables. Theirs depend on the CPU in the last bit of float32, which comparisons in
    float64 would see; test_transformer.py compares the tables themselves."""
    import torch

    from specdec_plugins.formats.positions import sinusoidal

    def table(rows, width, pad=None):
        return torch.from_numpy(sinusoidal(rows, width, pad)).to(torch.get_default_dtype(), copy=True)

    if not hasattr(kind, "theirs"):
        kind.theirs, kind.get_embedding = kind.get_embedding, staticmethod(table)
