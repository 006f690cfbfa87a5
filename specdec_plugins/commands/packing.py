"""What ``specdec-pack --dtype`` does: the verifier's linear layers packed for the CPU kernels, int4 calibrated on text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specdec_plugins.commands.draft_text import requests_of
from specdec_plugins.decoding.backends.cpu import gptq
from specdec_plugins.decoding.backends.cpu.binding import Engine
from specdec_plugins.decoding.backends.cpu.model import CpuModel, obstacles
from specdec_plugins.decoding.backends.cpu.panels import panels_of
from specdec_plugins.decoding.loading import checked
from specdec_plugins.extras import needed
from specdec_plugins.formats.folder import Pair
from specdec_plugins.options import LanguagePair
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

LINES = 512  # of the calibration text that are read, evenly spread


def packed(pair: Pair, dtypes: Sequence[str], calibration: Path | None, languages: LanguagePair) -> Pair:
    """The pair with its verifier's linear layers packed, those in int4 calibrated on source text if there is some. Raises
    ValueError if the kernels cannot run it."""
    verifier, _ = checked(replace(pair.verifier, packed={}), None)
    if faults := obstacles(verifier):
        raise ValueError(f"--dtype needs the CPU kernels: {'; '.join(faults)}")
    made = dict(pair.verifier.packed)
    for dtype in dtypes:
        rounded = calibrated(pair, calibration, languages) if calibration and dtype == "int4" else None
        if dtype in made and rounded is None:
            continue
        model = CpuModel(verifier, Engine(1), dtype, rounded=rounded)
        made[dtype] = {name: panels_of(each) for name, each in model.linears.items()}
    return replace(pair, verifier=replace(pair.verifier, packed=made))


def calibrated(pair: Pair, text: Path, languages: LanguagePair) -> dict[str, Any]:
    """`weights.Rounded`: how layers are rounded for what they read in some lines and the verifier's own translations of these."""
    with needed("torch", "--calibrate"):
        from specdec_plugins.decoding.backends.torch.moments import moments
    lines = [*dict.fromkeys(line for line in read_lines(text) if line.strip())]
    translator = Translator(replace(pair, drafter=None, others=()), Settings(strategy="ar"))
    requests = requests_of(translator, lines[:: -(-len(lines) // LINES) or 1], languages)
    if not requests:
        raise ValueError(f"--calibrate {text}: has no sentences")
    outputs = {each.index: each.tokens for each in translator.engine.decode(requests, 32, None)}
    found = moments(pair.verifier, [(each.tokens, outputs[each.index]) for each in requests])
    return {name: partial(gptq.rounded, moments=each) for name, each in found.items()}
