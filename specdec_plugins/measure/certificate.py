"""A certificate: how a folder's token ids, logits and outputs compare with those of transformers, on some text."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec_plugins import __version__
from specdec_plugins.decoding.assembly import THREADS
from specdec_plugins.decoding.backends import LoadedModel, Reading
from specdec_plugins.decoding.drafters import agreeing
from specdec_plugins.decoding.requests import Source
from specdec_plugins.engine import Engine
from specdec_plugins.formats.files import write_json
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import Settings
from specdec_plugins.text.framed import Framed
from specdec_plugins.text.lines import read_lines

SHOWN = 5  # differences printed
LOADED, DECODED = 0.05, 0.15  # parts of the time, roughly: transformers takes most
LINES = Path(__file__).with_name("certificate.txt")  # of many languages


@dataclass(frozen=True)
class Difference:
    """The first token at which an output differs, and by how much transformers prefers its own to ours there."""

    line: int
    token: int
    margin: float


@dataclass(frozen=True)
class Certificate:
    """``sources``, ``outputs`` and ``texts`` count the lines whose token ids and decoded text are identical."""

    lines: int
    sources: int
    outputs: int
    texts: int
    logits: float  # largest difference between logits
    differences: tuple[Difference, ...]
    beams: int = 1  # the model's default ..
    searched: int = 0  # .. and the lines whose beam search has the identical output
    dtype: str = "float32"
    transformers: str = ""
    specdec: str = __version__

    def __str__(self) -> str:
        of = f"of {self.lines} lines identical to transformers {self.transformers}"
        said = [
            f"source token ids: {self.sources} {of}",
            f"greedy outputs ({self.dtype}): {self.outputs} {of}",
            f"decoded texts: {self.texts} {of}",
            f"logits: largest difference {self.logits:.1e}",
        ]
        said += [f"outputs of {self.beams} beams ({self.dtype}): {self.searched} {of}"] if self.beams > 1 else []
        said += [
            f"line {each.line}: token {each.token} differs; transformers prefers its own by {each.margin:.1e}"
            for each in self.differences[:SHOWN]
        ]
        return "\n".join(said)

    def save(self, folder: str) -> None:
        write_json(Path(folder) / "certificate.json", asdict(self))


def library() -> Any:
    """transformers. Raises ImportError saying how to get it."""
    try:
        import transformers.utils

        # Text needs no torchaudio, and fairseq's may be of another build than torch.
        transformers.utils.is_torchaudio_available = lambda: False  # type: ignore[assignment]
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: F401 - imports more than the package does
    except ImportError as error:
        raise ImportError(
            f"--check compares with transformers, which cannot be imported ({error}); install transformers"
        ) from None
    return transformers


def ended(row: list[int], ends: Collection[int]) -> list[int]:
    """An output up to the token that ends it, if it has one."""
    return row[: next((at for at, token in enumerate(row) if token in ends), None)]


def exchanged(logits: np.ndarray, ends: list[int]) -> np.ndarray:
    """Logits (..., V) as a model has them whose tokens ``ends`` end outputs: see `ModelSpec`."""
    logits = logits.copy()
    logits[..., ends] = -np.sort(-logits[..., ends])
    return logits


@torch.inference_mode()
def certify(
    original: str,
    folder: str,
    lines: Sequence[str] | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    step: Callable[[str, float], None] = lambda what, done: None,
) -> Certificate:
    """Compare ``folder`` with transformers' reading of the ``original``. ``step`` receives the next phase and the
    fraction of the work that is done. Raises ValueError or ImportError."""
    step("loading transformers and the model", 0.0)
    transformers, pair = library(), load_folder(folder)
    lines = list(read_lines(LINES)) if lines is None else lines
    languages = source_lang or pair.config.source_lang or None, target_lang or pair.config.target_lang or None
    named = {
        name: lang for name, lang in zip(("src_lang", "tgt_lang"), languages) if lang and pair.config.options.get("languages")
    }
    engine = Engine(pair, Settings(strategy="ar", beam=1))
    torch.set_num_threads(THREADS)  # the kernels' team rests while transformers computes
    tokenizer = transformers.AutoTokenizer.from_pretrained(original, local_files_only=True, **named)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(original, local_files_only=True, dtype=torch.float32).eval()
    sources = [pair.codec.encode(line, *languages) for line in lines]
    prefix = pair.codec.prefix(*languages) if isinstance(pair.codec, Framed) else ""
    requests = [engine.request(number, source.ids, forced=source.forced) for number, source in enumerate(sources)]
    step(f"decoding {len(lines):,} lines", LOADED)
    found = {each.index: each.tokens for each in engine.decode(requests, None, None)}
    beam = engine.rules.beam()
    beams = [replace(request, beam=beam) for request in requests] if beam.size > 1 and not pair.verifier.spec.ends else []
    searched = {each.index: each.tokens for each in engine.decode(beams, 1, None)}
    symbols, verifier = pair.verifier.spec.symbols, engine.roles.verifier
    ends = [symbols.eos, *pair.verifier.spec.ends]
    counts, largest, differences = Counter[str](), 0.0, list[Difference]()
    for number, (line, source, request) in enumerate(zip(lines, sources, requests)):
        step(f"comparing line {number + 1:,} of {len(lines):,} with transformers", DECODED + (1 - DECODED) * number / len(lines))
        tokens, theirs = found[number], tokenizer(prefix + line)["input_ids"]
        counts["sources"] += theirs == source.ids
        counts["texts"] += tokenizer.decode(tokens, skip_special_tokens=True) == pair.codec.decode(tokens)
        forced = {"forced_bos_token_id": source.forced[0]} if source.forced else {}
        length = request.limit + 1 + engine.rules.ends  # `generate` counts the start token
        generate = partial(model.generate, torch.tensor([theirs]), do_sample=False, max_length=length, **forced)
        wanted = ended(generate(num_beams=1)[0, 1:].tolist(), ends)
        counts["outputs"] += wanted == tokens
        if searched:
            counts["searched"] += ended(generate()[0, 1:].tolist(), ends) == searched[number]

        written = [symbols.start, *tokens]
        logits = model(torch.tensor([source.ids]), decoder_input_ids=torch.tensor([written])).logits[0]
        state = verifier.start(1)
        verifier.admit(state, Source([source.ids], symbols))
        loaded: LoadedModel = verifier.model  # type: ignore[attr-defined]
        ours = loaded.host(loaded.read(state, Reading([written], [0])).logits()[0])
        largest = max(largest, float(np.abs(ours - exchanged(logits.numpy(), ends)).max()))
        if wanted != tokens:
            at = agreeing(wanted, tokens)
            best, own = ([*each, symbols.eos][at] for each in (wanted, tokens))
            differences.append(Difference(number + 1, at + 1, (logits[at, best] - logits[at, own]).item()))
    return Certificate(
        len(lines),
        counts["sources"],
        counts["outputs"],
        counts["texts"],
        largest,
        tuple(differences),
        beam.size if beams else 1,
        counts["searched"],
        transformers=transformers.__version__,
    )
