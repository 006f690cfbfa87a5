"""Lines that are documents: their windows, translated as `documents.py` says, and put together again."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.values import Request
from specdec_plugins.documents import Documents, Task, decode, windows
from specdec_plugins.text.sentences import cut, sentences
from specdec_plugins.translations import Encoded, Translation, joined

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

USUAL_ROWS = 32  # windows at a time where nothing says how many


def translate_documents(
    translator: "Translator", lines: Sequence[str], batch_size: int | None, bpe: bool, remove_bpe: bool, max_tokens: int | None,
    first: int,
) -> list[Translation]:  # fmt: skip
    """All samples of each line, each of which is a document: what its windows say, joined by spaces."""
    rows, samples = batch_size or USUAL_ROWS, translator.settings.drawn
    given = len(translator.pair.verifier.spec.forced)

    def fits(source: int, output: int) -> bool:
        return source <= translator.max_source and given + output <= translator.max_target

    def request(number: int, task: Task) -> Request:
        begun = given + len(task.forced) if task.forced else 0
        limit = min(begun + translator.limit(task.own + 1), translator.max_target)
        later = [task.window] if task.window else []  # the first is drawn as a line of its own is
        seed = mixed(translator.settings.seed, first + task.document, task.sample, *later)
        least = begun + translator.settings.min_len
        return translator.request(number, task.tokens, forced=task.forced, limit=limit, min_length=least, seeds=[seed])

    sources = (translator.windows(line, bpe) for line in lines)
    documents = Documents(sources, samples, translator.settings.context, fits, rows, translator.pair.source.EOS)
    parts: list[list[tuple[int, Translation]]] = [[] for _ in range(samples * len(lines))]
    with translator.borrowed(rows, max_tokens) as session:
        for task, hypothesis in decode(documents, session, rows, request, given):
            source = Encoded(task.tokens[-task.own - 1 :], False)
            text = translator.finish(source, hypothesis, bpe and not remove_bpe, bpe, task.sample)
            parts[samples * task.document + task.sample].append((task.window, text))
    return [
        joined([text for _, text in sorted(each, key=lambda part: part[0])], number % samples, translator.drafter_name)
        for number, each in enumerate(parts)
    ]


def windows_of(translator: "Translator", line: str, bpe: bool) -> Iterator[list[int]]:
    """See `Translator.windows`."""
    size, vocabulary = translator.settings.windows, translator.pair.source
    most = size if isinstance(size, int) else translator.max_source - 1
    texts = sentences(line, translator.pair.source_lang, most, bpe)
    tokens = (vocabulary.encode(text if bpe else translator.to_subwords(text))[:-1] for text in texts)
    alone = not isinstance(size, int)
    return windows(tokens, most, alone, lambda sentence: cut([vocabulary.symbols[each] for each in sentence[:most]], most))
