"""The model card of a drafter, as the Hugging Face Hub reads it: ``README.md``, from what ``drafter.json`` records."""

import argparse
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from string import Template

from specdec_plugins.formats import drafter_folder, hub
from specdec_plugins.formats.description import DrafterEntry
from specdec_plugins.formats.drafter_folder import MAX_TEXT, Record
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import write

TEMPLATE = Path(__file__).parents[1] / "templates" / "card.md"
SUBFOLDER = "drafter"  # of what specdec-draft writes
ON_CARDS = "data", "licence", "name"  # options that --card changes


def rewrite(options: argparse.Namespace) -> str:
    """Write the card of a drafter's folder anew, and record the options given. Returns its path. Raises ValueError or OSError."""
    folder = Path(options.model)
    if not (folder / drafter_folder.NAME).is_file() and (folder / SUBFOLDER / drafter_folder.NAME).is_file():
        folder /= SUBFOLDER
    try:
        entry, record = drafter_folder.read(folder).drafter, drafter_folder.read_record(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: no {drafter_folder.NAME} in it; specdec-draft writes one when it trains") from None
    given = {name: getattr(options, name) for name in ON_CARDS}
    if changes := {name: value for name, value in given.items() if value is not None}:
        record = replace(record, **changes)
        drafter_folder.write_description(folder, entry, record)
    write_card(folder, entry, record)
    return str(folder / "README.md")


def write_card(folder: Path, entry: DrafterEntry, record: Record) -> None:
    write(folder / "README.md", card(entry, record))


def card(entry: DrafterEntry, record: Record) -> str:
    """The text of a drafter's card."""
    model, base = record.model.partition("@")[0], base_of(record)
    kind = re.sub(r"[^a-z0-9_]+", "-", brief(entry.code.rpartition(":")[2].lower()))
    name = record.name or f"OWNER/{model.rpartition('/')[2]}-{kind}"
    languages = [*zip(("-s", "-t"), (record.source_lang, record.target_lang))] if record.multilingual else []
    options = [f"{key}={value}" for key, value in entry.options.items() if isinstance(value, (int, float, str))]
    how = {"Machine": machine_of(record), "Date": record.machine.get("date"), "Versions": versions_of(record)}
    rows = [("Tokens a pass", f"{record.tokens_per_pass:.2f}")]
    rows += [(f"Gain in speed at batch size {size}", f"{gain:.2f}") for size, gain in record.gain.items()]
    rows += [("Acceptance by position", ", ".join(f"{each:.2f}" for each in record.acceptance))]
    rows += [(what, said) for what, said in how.items() if said]
    use = ["specdec-translate", "--model", model, "--drafter", name, *(word for pair in languages for word in pair)]
    use += ["-i", "input.txt", "-o", "output.txt"]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        metadata=metadata(record),
        title=plain(name.rpartition("/")[2]),
        model=f"[{plain(base)}](https://huggingface.co/{base})" if base else plain(model),
        use=shlex.join(use),
        arguments=f"{json.dumps(model)}, drafter={json.dumps(name)}",
        table="\n".join(f"| {plain(what)} | {plain(said)} |" for what, said in rows),
        held_out=f"{record.held_out:,}",
        dtype=plain(record.dtype),
        threads=f"{record.threads} thread" + "s" * (record.threads != 1),
        command=shlex.join(record.command),
        code=plain(entry.code),
        options=f" ({plain(', '.join(options))})" if options else "",
        length=entry.block_size,
        data=plain(record.data),
        trained=f"{record.trained:,}",
        digest=plain(record.data_sha256),
        updates=f"{record.updates:,}",
        precision=plain(record.precision),
        seed=record.seed,
        licence=plain(record.licence or "not stated"),
        verifier=plain(entry.verifier or "unknown"),
    )


def base_of(record: Record) -> str | None:
    """The verifier's repository on the Hub, if it was trained from there."""
    match = hub.NAME.fullmatch(record.model)
    return match[1] if match else None


def metadata(record: Record) -> str:
    """The card's front matter: YAML, with strings and lists as JSON writes them."""
    codes = [re.split("[_-]", lang)[0].lower() for lang in (record.source_lang, record.target_lang)]
    fields = {
        "license": record.licence and record.licence.lower(),
        "library_name": "specdec",
        "tags": ["speculative-decoding", "drafter", "specdec"],
        "base_model": base_of(record),
        "language": [*dict.fromkeys(code for code in codes if re.fullmatch("[a-z]{2,3}", code))],
        "datasets": [data[1]] if (data := hub.NAME.fullmatch(record.data)) else [],
    }
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value)


def machine_of(record: Record) -> str:
    found = record.machine
    cores, kernels = found.get("cores"), found.get("kernels")
    parts = [found.get("cpu"), cores and f"{cores} cores", kernels and f"{kernels} kernels"]
    return ", ".join(str(part) for part in parts if part)


def versions_of(record: Record) -> str:
    commit = record.machine.get("commit")
    parts = [f"SpecDec {record.specdec}" + (f" ({commit})" if commit else "")]
    parts += [f"{name} {record.machine[name]}" for name in ("python", "torch") if name in record.machine]
    return ", ".join(parts)


def plain(text: object) -> str:
    """A text, which may be another's, as a line that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#$~&])", r"\\\1", brief(text, MAX_TEXT))
