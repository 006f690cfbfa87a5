"""Documents of any length: cut into windows of whole sentences, which are decoded as they come.

With a context of C windows, each window is read together with the C before it, whose outputs are forced to begin its own: what
follows them is the window's own, and nothing has to be aligned. Then the windows of a document are decoded one after the other,
those of different documents side by side. Without context, windows are independent. They are cut and submitted a few at a time,
so the memory for decoding does not grow with their number.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdec_plugins.decoding.loop import TOGETHER, Session
from specdec_plugins.decoding.values import Hypothesis, Request
from specdec_plugins.text.sentences import cut, sentences
from specdec_plugins.translations import Source, Translation

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

USUAL_ROWS = 32  # windows at a time where nothing says how many
ROOM = 1.5  # output tokens for each source token of a window that its context leaves room for


def windows(
    sentences: Iterable[list[int]], most: int, alone: bool, cut: Callable[[list[int]], int]
) -> Iterator[list[int]]:  # fmt: skip
    """Yield windows of up to ``most`` tokens: of as many sentences as fit, or with ``alone`` of one.

    ``cut`` says after how many tokens, ``most`` at the latest, a longer sentence is cut.
    """
    window: list[int] = []
    for tokens in sentences:
        if window and (alone or len(window) + len(tokens) > most):
            yield window
            window = []
        while len(tokens) > most:
            at = cut(tokens)
            yield tokens[:at]
            tokens = tokens[at:]
        window = window + tokens
    if window:
        yield window


@dataclass(frozen=True)
class Task:
    """A window to decode for a sample of a document: ``tokens`` of the source, the context's, ``own`` of the window, and eos. The
    output begins with the tokens ``forced``, the context's translation.
    """

    document: int
    window: int  # its number in the document, from 0
    sample: int
    tokens: list[int]
    own: int
    forced: list[int]


@dataclass
class Document:
    """A document, to be decoded ``samples`` times. ``source`` are its windows that are not taken yet.

    ``context`` are the last ones that were, at most as many as wanted, and what each sample said to them.
    """

    number: int
    source: Iterator[list[int]]
    samples: int
    context: deque[tuple[list[int], list[list[int]]]]
    taken: int = 0
    flying: int = 0  # outputs of the last window that are not finished


class Documents:
    """Which windows may be decoded now. ``abreast`` documents at most are under way.

    ``fits(source, output)`` tells whether a request may have so many source tokens, eos included, and so many output tokens. The
    first windows of a context are left out where it does not fit.
    """

    def __init__(
        self, sources: Iterable[Iterator[list[int]]], samples: int, context: int, fits: Callable[[int, int], bool], abreast: int,
        eos: int,
    ):  # fmt: skip
        self._coming = (Document(number, source, samples, deque(maxlen=context)) for number, source in enumerate(sources))
        self._open: list[Document] = []
        self.context, self.fits, self.abreast, self.eos = context, fits, abreast if context else 1, eos

    def take(self) -> list[Task]:
        """The tasks of a window, one for each sample; none where all that is left waits for what is in flight."""
        while True:
            for document in self._open:
                if document.flying:
                    continue
                window = next(document.source, None)
                if window is not None:
                    return self._tasks(document, window)
                self._open.remove(document)
                break
            else:
                if len(self._open) == self.abreast or not self._more():
                    return []

    def _more(self) -> bool:
        """Open a further document, if there is one."""
        document = next(self._coming, None)
        if document is not None:
            self._open.append(document)
        return document is not None

    def _tasks(self, document: Document, window: list[int]) -> list[Task]:
        tasks = []
        for sample in range(document.samples):
            context = [(source, outputs[sample]) for source, outputs in document.context]
            while context:
                read, said = (sum(map(len, side)) for side in zip(*context))
                if self.fits(read + len(window) + 1, said + int(ROOM * len(window))):
                    break
                del context[0]
            tokens = [*(token for source, _ in context for token in source), *window, self.eos]
            forced = [token for _, output in context for token in output]
            tasks.append(Task(document.number, document.taken, sample, tokens, len(window), forced))
        document.taken += 1
        if self.context:
            document.context.append((window, [[] for _ in tasks]))
            document.flying = len(tasks)
        return tasks

    def finish(self, task: Task, output: list[int]) -> None:
        """Take note of what was said to a window."""
        if self.context:
            document = next(each for each in self._open if each.number == task.document)
            document.context[-1][1][task.sample] = output
            document.flying -= 1


def decode(
    documents: Documents, session: Session, rows: int, request: Callable[[int, Task], Request], given: int = 0
) -> Iterator[tuple[Task, Hypothesis]]:
    """Yield the windows as they finish, each with its own part of its output. ``rows`` requests wait at most.

    ``request`` makes the request of a task, of the number given. The model itself begins every output with ``given`` tokens.
    """
    flying: dict[int, Task] = {}
    number = 0
    while True:
        while len(session.waiting) < rows and (tasks := documents.take()):
            for task in tasks:
                flying[number] = task
                session.submit(request(number, task))
                number += 1
        if session.idle:
            break
        for commit in session.step(TOGETHER):
            hypothesis = commit.finished
            if hypothesis is None:
                continue
            if hypothesis.error is not None:
                raise hypothesis.error
            task = flying.pop(hypothesis.index)
            own = without(hypothesis, given + len(task.forced)) if task.forced else hypothesis
            documents.finish(task, own.tokens if task.forced else own.tokens[given:])
            yield task, own
    session.stats.settle()


def without(hypothesis: Hypothesis, forced: int) -> Hypothesis:
    """An output without its first ``forced`` tokens, which belong to no step."""
    tokens, scores = hypothesis.tokens[forced:], hypothesis.token_scores[forced:]
    return replace(hypothesis, tokens=tokens, token_scores=scores, prefilled=hypothesis.prefilled - forced)


def translate_documents(
    translator: "Translator", lines: Sequence[str], batch_size: int | None, bpe: bool, remove_bpe: bool, max_tokens: int | None,
    first: int,
) -> list[Translation]:  # fmt: skip
    """All samples of each line, each of which is a document: the texts of its windows, joined by spaces."""
    engine, settings = translator.engine, translator.settings
    rows, samples = batch_size or USUAL_ROWS, settings.drawn
    language = translator.tokens_of("", bpe)[1]
    given = len(translator.pair.verifier.spec.forced) + len(language)

    def fits(source: int, output: int) -> bool:
        return source <= engine.max_source and given + output <= engine.max_target

    def request(number: int, task: Task) -> Request:
        begun = given + len(task.forced) if task.forced else len(language)
        later = [task.window] if task.window else []  # the first is drawn as a line of its own is
        limit = min(begun + engine.limit(task.own + 1), engine.max_target)
        seeds = [engine.seeds(first + task.document, *later)[task.sample]]
        forced = [*language, *task.forced]
        return engine.request(number, task.tokens, forced=forced, limit=limit, min_length=begun + settings.min_len, seeds=seeds)

    sources = (windows_of(translator, line, bpe) for line in lines)
    documents = Documents(sources, samples, settings.context, fits, rows, translator.pair.verifier.spec.symbols.eos)
    parts: list[list[tuple[int, Translation]]] = [[] for _ in range(samples * len(lines))]
    with engine.borrowed(rows, max_tokens) as session:
        for task, hypothesis in decode(documents, session, rows, request, given):
            source = Source(task.tokens[-task.own - 1 :], False)
            text = translator.finish(source, hypothesis, bpe and not remove_bpe, bpe, task.sample)
            parts[samples * task.document + task.sample].append((task.window, text))
    return [
        joined([text for _, text in sorted(each, key=lambda part: part[0])], number % samples, engine.drafter_name)
        for number, each in enumerate(parts)
    ]


def windows_of(translator: "Translator", line: str, bpe: bool) -> Iterator[list[int]]:
    """Yield the windows of a line, as the settings say: token ids of the source, without eos."""
    size, vocabulary = translator.settings.windows, translator.pair.source
    most = size if isinstance(size, int) else translator.max_source - 1
    texts = sentences(line, translator.pair.config.source_lang, most, bpe)
    tokens = (translator.tokens_of(text, bpe)[0] for text in texts)
    alone = not isinstance(size, int)
    return windows(tokens, most, alone, lambda sentence: cut(vocabulary.tokens(sentence[:most]), most))


def joined(parts: Sequence[Translation], sample: int, drafter: str | None) -> Translation:
    """The translation of a document, made of those of its windows."""
    return Translation(
        " ".join(part.text for part in parts if part.text),
        [token for part in parts for token in part.source_tokens],
        [token for part in parts for token in part.tokens],
        [score for part in parts for score in part.token_scores],
        [step for part in parts for step in part.steps],
        any(part.cut for part in parts),
        sample,
        drafter=drafter,
    )
