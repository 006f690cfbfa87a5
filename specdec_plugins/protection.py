"""Translations that keep parts of their source, such as placeholders, exactly once.

A sentence is translated as it is: models that know its kind of text copy most placeholders themselves, and no word of those
outputs changes. If a part is missing, doubled or altered, or a number is missing, the sentence is translated again with a mask in
place of each part and of that number. If the model does not write each mask exactly once, the sentence is translated without the
parts, and the word alignment says where they and all numbers go. So parts are kept by construction, and outputs depend on the
verifier alone, not on drafts. ICU messages are kept like other parts; then their branches are translated one by one.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

from specdec_plugins.files import MESSAGE, Options, TextFile, Unreadable
from specdec_plugins.interfaces import Texts, Translate
from specdec_plugins.options import CallOptions, values_of
from specdec_plugins.settings import Settings
from specdec_plugins.text.alignment import Alignment
from specdec_plugins.text.placing import Placed
from specdec_plugins.text.protected import Edits, Protected, blanked
from specdec_plugins.text.words import Span
from specdec_plugins.translations import BESIDE, Translation
from specdec_plugins.units import translate_units

LANGUAGES = ("source_lang", "target_lang")
SHARED = ("batch_size", "max_tokens", "max_length", "too_long", "glossary", "protect")  # options of a branch as of its text


def translate_protected(texts: Texts, translate: Translate, sentences: Sequence[str], options: CallOptions) -> list[Translation]:
    """A rewriter. Raises ValueError for several outputs a sentence."""
    protected = values_of("protected", options.protected, len(sentences), "lists of protected spans") or repeat(None)
    check_single(texts.engine.settings, options)
    sources = [Protected.of(*each) for each in zip(sentences, repeat(options.protect), protected)]
    results = translate([source.text for source in sources], options)
    options = replace(options, too_long="truncate")
    for again in (masked, rebuilt):
        wanted = ([] if each.shortened else source.lost(each.text) for source, each in zip(sources, results))
        due = {
            n: sources[n].with_numbers(spans if again is masked else sources[n].numbers)
            for n, spans in enumerate(wanted)
            if spans
        }
        found = again([*due.values()], chosen(options, [*due]), translate) if due else []
        for n, result in zip(due, found):
            results[n] = result or results[n]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for n, result in enumerate(results):
        if sources[n].messages and not result.shortened:
            each = (value if isinstance(value := getattr(options, name), str | None) else value[n] for name in LANGUAGES)
            groups.setdefault(tuple(each), []).append(n)
    for languages, own in groups.items():
        choices = {name: getattr(options, name) for name in SHARED} | dict(zip(LANGUAGES, languages))
        for n, result in zip(own, branched(texts, [sources[n] for n in own], [results[n] for n in own], choices)):
            results[n] = result
    return results


def branched(
    texts: Texts, sources: Sequence[Protected], results: Sequence[Translation], choices: dict[str, Any]
) -> list[Translation]:
    """Translates the branches of the sources' ICU messages and puts them into the results."""
    parts = [source.text[first:end] for source in sources for first, end in source.messages]
    files = {part: TextFile(part, MESSAGE, Options()) for part in parts}
    placed = iter(translate_units(texts, [unit for file in files.values() for unit in file.units], **choices))
    owned = {part: list(islice(placed, len(file.units))) for part, file in files.items()}
    done = {part: rebranched(file, owned[part]) for part, file in files.items()}
    found = []
    for source, result in zip(sources, results):
        own = [source.text[first:end] for first, end in source.messages]
        text = result.text if "'{" in source.text else result.text.replace("'{", "’{")  # which would begin a quotation
        matches = re.finditer("|".join(map(re.escape, own)), text)
        back = Edits([(match.span(), done[match[0]]) for match in matches])
        unplaced = [term for part in own for each in owned[part] if each for term in each.unplaced]
        found.append(edited(replace(result, text=text, unplaced=result.unplaced + unplaced), Edits([]), back))
    return found


def rebranched(message: TextFile, placed: Sequence[Placed | None]) -> str:
    """The message with its translations; itself where they would not be read as such."""
    try:
        return message.translated(placed)
    except Unreadable:
        return message.source


def check_single(settings: Settings, options: CallOptions) -> None:
    """Raise ValueError for settings under which a sentence cannot be translated again."""
    if settings.drawn > 1 or settings.sampling or settings.windows is not None or options.tokenized:
        raise ValueError("protected text and glossaries need one output per raw line, without sampling or windows")


def chosen(options: CallOptions, numbers: Sequence[int]) -> CallOptions:
    """The options for some of the sentences."""
    beside = {name: values for name in BESIDE if not isinstance(values := getattr(options, name), str | None)}
    changes: dict[str, Any] = {name: [values[n] for n in numbers] for name, values in beside.items()}
    return replace(options, **changes)


def masked(sources: Sequence[Protected], options: CallOptions, translate: Translate) -> list[Translation | None]:
    """Translations of the sources with masks, and the parts in their place; None where a mask is not there once."""
    masks = [source.masks() for source in sources]
    edits = [source.masked(each) for source, each in zip(sources, masks)]
    texts = [edit(source.text) for source, edit in zip(sources, edits)]
    results: list[Translation | None] = []
    for source, each, edit, result in zip(sources, masks, edits, translate(texts, options)):
        back = source.unmasked(result.text, each)
        results.append(None if back is None else edited(result, edit, back))
    return results


def rebuilt(sources: Sequence[Protected], options: CallOptions, translate: Translate) -> list[Translation]:
    """Translations of the sources without the parts, which are inserted; as a last resort the source itself."""
    edits = [source.masked([" "] * len(source.spans)) for source in sources]
    texts = [edit(source.text) for source, edit in zip(sources, edits)]
    results = []
    for source, edit, text, result in zip(sources, edits, texts, translate(texts, replace(options, alignments=True))):
        result = replace(result, text=blanked(result.text, source.places(result.text)))  # without the model's own
        assert result.alignment is not None
        words = [edit.back(word) for word in result.alignment.source]
        back, numbers = source.inserted(result.text, replace(result.alignment, source=words))
        own = [(source.spans[number], place) for number, place in zip(numbers, back.places)]
        result = edited(result, edit, back, own)
        if not text.strip() or not source.intact(result.text):
            result = replace(result, text=source.text, alignment=Alignment([], [], []))
        results.append(result if options.alignments else replace(result, alignment=None))
    return results


def edited(result: Translation, masked: Edits, back: Edits, more: Sequence[tuple[Span, Span]] = ()) -> Translation:
    """The translation of an edited source, edited back; ``more`` are further links."""
    alignment = result.alignment
    if alignment is not None:
        source, target = [*map(masked.back, alignment.source)], [*map(back.ahead, alignment.target)]
        links = {*more, *((source[one], target[other]) for one, other in alignment.pairs)}
        sides = sorted({*source, *(one for one, _ in more)}), sorted({*target, *(other for _, other in more)})
        alignment = Alignment(*sides, sorted((sides[0].index(one), sides[1].index(other)) for one, other in links))
    return replace(result, text=back(result.text), alignment=alignment, word_scores=result.word_scores and [])
