"""Documents of any length: split into windows of whole sentences, which are decoded as their turn comes.

With a context of C windows, a window is read together with the C before it, and its output is forced to begin with theirs. What
follows belongs to the window, so nothing has to be aligned. The windows of a document are then decoded in turn, those of
different documents side by side. Without context all windows are independent. Windows are made and submitted a few at a time, so
memory does not grow with their number.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL
from specdec_plugins.decoding.requests import Hypothesis, Request
from specdec_plugins.interfaces import Texts, Translate
from specdec_plugins.options import CallOptions, languages_of
from specdec_plugins.sessions import Requests
from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.sentences import cut, sentences
from specdec_plugins.translations import Translation
from specdec_plugins.whole_lines import write_line

USUAL_ROWS = 32  # default number of windows in flight
ROOM = 1.5  # output tokens per source token of a window that its context must leave room for


def windows(sentences: Iterable[list[int]], most: int, alone: bool, cut: Callable[[list[int]], int]) -> Iterator[list[int]]:
    """Yield windows of up to ``most`` tokens: as many sentences as fit, or with ``alone`` one.

    ``cut`` returns where to split a longer sentence, at ``most`` tokens at the latest.
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
    """One sample of a window. ``tokens`` are the context's source and the window's ``text``, between special tokens. ``forced``
    is the context's translation.
    """

    document: int
    window: int  # its index in the document
    sample: int
    tokens: list[int]
    text: list[int]
    forced: list[int]


@dataclass
class Document:
    """A document decoded ``samples`` times. ``source`` yields its remaining windows; ``context`` holds the last windows taken,
    each with the output of every sample.
    """

    number: int
    source: Iterator[list[int]]
    samples: int
    context: deque[tuple[list[int], list[list[int]]]]
    taken: int = 0
    flying: int = 0  # unfinished outputs of the last window


class Documents:
    """Schedules windows. At most ``abreast`` documents are under way. ``framed(document, tokens)`` adds the special tokens.

    ``fits(source, output)`` tells whether a request may have that many source tokens, eos included, and output tokens. A context
    that does not fit loses its first windows.
    """

    def __init__(
        self,
        sources: Iterable[Iterator[list[int]]],
        samples: int,
        context: int,
        fits: Callable[[int, int], bool],
        abreast: int,
        framed: Callable[[int, list[int]], list[int]],
    ):
        self._coming = (Document(number, source, samples, deque(maxlen=context)) for number, source in enumerate(sources))
        self._open: list[Document] = []
        self.context, self.fits, self.abreast, self.framed = context, fits, abreast if context else 1, framed

    def take(self) -> list[Task]:
        """The tasks of one window, one per sample; empty if all remaining windows wait for others in flight."""
        while True:
            for document in [each for each in self._open if not each.flying]:
                if (window := next(document.source, None)) is not None:
                    return self._tasks(document, window)
                self._open.remove(document)
            opened = next(self._coming, None) if len(self._open) < self.abreast else None
            if opened is None:
                return []
            self._open.append(opened)

    def _tasks(self, document: Document, window: list[int]) -> list[Task]:
        tasks = []
        for sample in range(document.samples):
            context = [(source, outputs[sample]) for source, outputs in document.context]
            while True:
                tokens = self.framed(document.number, [*(token for source, _ in context for token in source), *window])
                forced = [token for _, output in context for token in output]
                if not context or self.fits(len(tokens), len(forced) + int(ROOM * len(window))):
                    break
                del context[0]
            tasks.append(Task(document.number, document.taken, sample, tokens, window, forced))
        document.taken += 1
        if self.context:
            document.context.append((window, [[] for _ in tasks]))
            document.flying = len(tasks)
        return tasks

    def finish(self, task: Task, output: list[int]) -> None:
        """Record the output of a task as context."""
        if self.context:
            document = next(each for each in self._open if each.number == task.document)
            document.context[-1][1][task.sample] = output
            document.flying -= 1


def decode(
    documents: Documents, session: Requests, rows: int, request: Callable[[int, Task], Request], given: Callable[[Task], int]
) -> Iterator[tuple[Task, Hypothesis]]:
    """Yield windows as they finish, each with its own part of the output. At most ``rows`` requests wait.

    ``request`` makes a task's request, with the index given. The outputs of a task begin with ``given(task)`` tokens that the
    model or the language demands.
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
        for hypothesis in [commit.finished for commit in session.step(ITERATIONS_PER_CALL) if commit.finished is not None]:
            if hypothesis.error is not None:
                raise hypothesis.error
            task = flying.pop(hypothesis.index)
            forced = given(task) + len(task.forced)
            documents.finish(task, hypothesis.tokens[forced:])
            yield task, without(hypothesis, forced) if task.forced else hypothesis
    session.stats.settle()


def without(hypothesis: Hypothesis, forced: int) -> Hypothesis:
    """An output without its first ``forced`` tokens, which belong to no step."""
    scores = hypothesis.token_scores and hypothesis.token_scores[forced:]
    return replace(hypothesis, tokens=hypothesis.tokens[forced:], token_scores=scores, prefilled=hypothesis.prefilled - forced)


def translate_documents(texts: Texts, translate: Translate, lines: Sequence[str], options: CallOptions) -> list[Translation]:
    """A rewriter that decodes by itself. Each line is a document: all its samples, the texts of its windows joined by spaces."""
    engine, settings = texts.engine, texts.engine.settings
    whole = "beginnings", "hints", "max_length", "alignments", "word_scores"
    if any(getattr(options, name) not in (None, False) for name in whole):
        raise ValueError("beginnings, hints, max_length, alignments and word_scores are for whole lines, not for windows")
    languages, tokenized = languages_of(options, len(lines)), options.tokenized
    rows, samples = options.rows(settings) or USUAL_ROWS, settings.drawn
    scored = options.scored(engine.search.size)
    frames = [texts.frame(*each) for each in languages]
    usual = len(engine.pair.verifier.spec.forced)
    longest = max((len(frame.forced) for frame in frames), default=0)

    def given(task: Task) -> int:
        return usual + len(frames[task.document].forced)

    def fits(source: int, output: int) -> bool:
        return source <= texts.max_source and usual + longest + output <= engine.max_target

    def request(number: int, task: Task) -> Request:
        frame = frames[task.document]
        begun = given(task) + len(task.forced) if task.forced else len(frame.forced)
        if engine.rules.library == "huggingface":  # its lengths count forced tokens
            begun = len(task.forced)
        later = [task.window] if task.window else []  # the first window is sampled like a line of its own
        limit = min(begun + engine.limit(len(task.text) + len(frame.ids)), engine.max_target)
        seeds = [engine.seeds(options.first + task.document, *later)[task.sample]]
        forced = [*frame.forced, *task.forced]
        how = {"min_length": begun + engine.min_length, "seeds": seeds, "scores": options.scores}
        return engine.request(number, task.tokens, forced=forced, limit=limit, **how)

    sources = (windows_of(texts, line, tokenized, *each) for line, each in zip(lines, languages))
    documents = Documents(sources, samples, settings.context, fits, rows, lambda number, text: frames[number].framed(text))
    parts: list[list[tuple[int, Translation]]] = [[] for _ in range(samples * len(lines))]
    with engine.borrowed(rows * (engine.beam.size if engine.beam else 1), options.max_tokens) as session:
        for task, hypothesis in decode(documents, session, rows, request, given):
            frame = frames[task.document]
            part = write_line(texts, replace(frame, ids=frame.framed(task.text)), hypothesis, task.sample, options)
            parts[samples * task.document + task.sample].append((task.window, part))
    return [
        joined([part for _, part in sorted(each, key=lambda part: part[0])], number % samples, engine.drafter_name, scored)
        for number, each in enumerate(parts)
    ]


def windows_of(
    texts: Texts, line: str, tokenized: bool, source_lang: str | None = None, target_lang: str | None = None
) -> Iterator[list[int]]:
    """Yield the windows of a line, as the settings say: token ids of the source without special tokens."""
    size, pair, codec = texts.engine.settings.windows, texts.engine.pair, texts.codec
    alone = not isinstance(size, int)
    most = size if isinstance(size, int) else texts.max_source - len(texts.frame(source_lang, target_lang).ids)
    lang = source_lang or pair.config.source_lang
    parts = sentences(line, two_letters(lang) or lang, most, tokenized)
    tokens = (
        codec.source.ids(part.split()) if tokenized else codec.encode(part, source_lang, target_lang).text for part in parts
    )
    return windows(tokens, most, alone, lambda sentence: cut(pair.source.tokens(sentence[:most]), most))


def joined(parts: Sequence[Translation], sample: int, drafter: str | None, scored: bool) -> Translation:
    """The translation of a document from those of its windows."""
    source, tokens, steps = (
        [each for part in parts for each in getattr(part, name)] for name in ("source_tokens", "tokens", "steps")
    )
    scores = [score for part in parts for score in part.token_scores or ()] if scored else None
    text = " ".join(part.text for part in parts if part.text)
    return Translation(text, source, tokens, scores, steps, any(part.cut for part in parts), sample, drafter=drafter)
