"""Options of a `Translator`'s methods: their names, types and meanings, listed once for Python and for the server.

A call may change the settings in `PER_REQUEST`; `CallOptions` say how its sentences are read and what is returned for them.
`Settings` and `CallOptions` check values. The TypedDicts repeat their fields for editors and type checkers; a test compares them.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, TypeVar

from specdec_plugins.fields import MOST, Fault, OptionError, count, option, option_of, value_faults
from specdec_plugins.settings import PER_REQUEST, Settings
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.text.words import Span

TooLong = Literal["error", "truncate", "skip"]
Languages = str | Sequence[str | None] | None  # of all sentences, or of each; None: the model's own
LanguagePair = tuple[str | None, str | None]  # of a source and its translation
Function = TypeVar("Function", bound=Callable)
Item = TypeVar("Item")
COUNTS = {"nbest", "num_samples"}  # a call that names one of them gets a list of outputs per sentence
BATCHES = "sentences in flight; auto: 32, or 1 with beta on a CPU; None: no bound"
WIDTH, INDENT = 100, "    "  # of help texts


@dataclass(frozen=True)
class CallOptions:
    """How sentences are read, and what is returned for them. Raises `OptionError` listing every fault."""

    batch_size: int | str | None = option("auto", BATCHES, kind=int, least=1, most=MOST, words=("auto",), none=True)
    max_tokens: int | None = count(None, "source tokens in flight, padding included")
    tokenized: bool = option(False, "sentences are subwords, separated by spaces, and so are the texts")
    remove_bpe: bool = option(True, "with tokenized: join a text's subwords to words")
    too_long: str = option(
        "error",
        "sources longer than the model reads: raise SourceTooLong, truncate or skip them",
        words=("error", "truncate", "skip"),
    )
    first: int = option(0, "the first sentence's index in a longer text; samples depend on it", least=0)
    hints: Sequence[str] | None = option(
        None, "earlier translations of the sentences, for drafters that use them, such as previous; '' for none", kind=Sequence
    )
    source_lang: Languages = option(None, "the sentences' language, or each one's, for multilingual models", kind=Sequence)
    target_lang: Languages = option(None, "the translations' language, likewise", kind=Sequence)
    max_length: int | None = count(None, "most tokens of an output as transformers counts, with the one before the first")
    alignments: bool = option(False, "fill in Translation.alignment")
    scores: bool = option(False, "fill in Translation.token_scores, and so score and confidence; a beam search does anyway")
    word_scores: bool = option(False, "fill in Translation.word_scores, and the other scores")
    protect: re.Pattern[str] | None = option(
        None, "outputs contain unchanged what this matches (text/patterns.py), and numbers", kind=re.Pattern
    )
    protected: Sequence[Sequence[Span] | None] | None = option(
        None, "and these spans of characters of each sentence", kind=Sequence
    )
    glossary: Glossary | None = option(None, "outputs use its terms", kind=Glossary)
    beginnings: Sequence[str] | None = option(None, "texts that the outputs begin with", kind=Sequence)

    def __post_init__(self) -> None:
        values = vars(self)
        given = [each for each in CALL_FIELDS if values[each.name] is not each.default]  # most calls give few
        if faults := [fault for each in given for fault in value_faults(each, values[each.name])]:
            raise OptionError(faults)

    def scored(self, beam: int) -> bool:
        """Whether results have scores; ``beam`` is the search's size."""
        return self.scores or self.word_scores or beam > 1

    def rows(self, settings: Settings) -> int | None:
        """Sentences in flight."""
        return self.batch_size if isinstance(self.batch_size, int | None) else settings.usual_batch_size


class RequestSettings(TypedDict, total=False):
    """The settings that a call may change, without `COUNTS`, which change what is returned."""

    beta: int
    tau: float | None
    max_len_a: float
    max_len_b: int | None
    min_len: int | None
    no_repeat_ngram_size: int | None
    beam: int | None
    lenpen: float | None
    unkpen: float
    sampling: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    mbr: int | None
    rule: str
    windows: int | str | None
    context: int
    prefix: str | None


class AllSettings(RequestSettings, total=False):
    """The fields of `Settings`."""

    nbest: int
    num_samples: int
    strategy: str
    block_size: int | str | None
    tree: int | None
    draft_with: str | None
    datastore: str | None
    kv_budget: int | None
    sinks: int
    kv_choice: str
    max_positions: int | None
    device: str
    dtype: str
    threads: int | None
    kernels: str | None


class TranslateOptions(RequestSettings, total=False):
    """What `Translator.translate` takes: settings of the call, and the fields of `CallOptions`."""

    batch_size: int | str | None
    max_tokens: int | None
    tokenized: bool
    remove_bpe: bool
    too_long: str
    first: int
    hints: Sequence[str] | None
    source_lang: Languages
    target_lang: Languages
    max_length: int | None
    alignments: bool
    scores: bool
    word_scores: bool
    protect: re.Pattern[str] | None
    protected: Sequence[Sequence[Span] | None] | None
    glossary: Glossary | None
    beginnings: Sequence[str] | None


def settings_of(options: Mapping[str, Any]) -> Settings:
    """The settings that a translator is made with. Raises TypeError for other names, OptionError for faults."""
    for name in options:
        if name in CALL:
            raise TypeError(f"{name} is an option of translate, not of from_pretrained")
        check_name(name, [*SETTINGS, "drafter"], "setting")
    return Settings(**options)


def settings_for(
    usual: Settings, options: Mapping[str, Any], call: Sequence[str] | None = None
) -> tuple[Settings, dict[str, Any]]:
    """The settings of a call, and its other options, which are those in ``call`` (default: `CallOptions`). Raises TypeError for
    other names, OptionError for faults."""
    call = CALL if call is None else call
    if options.keys() <= {*call}:
        return usual, {**options}
    for name in options:
        check_name(name, [*call, *SETTINGS], "option")
    changes = {name: value for name, value in options.items() if name in SETTINGS}
    if faults := sorted(fixed(name) for name in changes.keys() - PER_REQUEST):
        raise OptionError(faults)
    rest = {name: value for name, value in options.items() if name not in changes}
    return replace(usual, **changes), rest


def fixed(name: str) -> Fault:
    return name, "belongs to the loaded model, and a call cannot change it; pass it to from_pretrained"


def check_name(name: str, known: Sequence[str], what: str) -> None:
    """Raise TypeError for an unknown name."""
    if name not in known:
        near = get_close_matches(name, known, 1)
        raise TypeError(f"no {what} is called {name!r:.80}" + (f"; did you mean {near[0]}?" if near else ""))


def check_list(sentences: object, taker: str) -> None:
    """Raise TypeError for what is not several strings."""
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        given = "one string" if isinstance(sentences, str) else f"{sentences!r:.80}"
        raise TypeError(f"{taker} takes a list of strings, not {given}")


def texts_of(sentences: Iterable[str], what: str, taker: str = "", first: int = 0) -> list[str]:
    """A list of sentences, numbered from ``first`` in errors. Raises TypeError for anything else."""
    check_list(sentences, taker or what)
    texts = [*sentences]
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise TypeError(f"{what}[{number}] is {text!r:.80}, not a string")
    return texts


def languages_of(options: CallOptions, count: int) -> list[LanguagePair]:
    """The languages of each sentence and of its translation."""
    return [*zip(*(each_language(value, count) for value in (options.source_lang, options.target_lang)))]


def each_language(value: Languages, count: int) -> Sequence[str | None]:
    """The language of each of ``count`` sentences."""
    known: Sequence[str | None] = [value] * count if isinstance(value, str | None) else value
    values_of("source_lang and target_lang", known, count, "languages")
    return known


def values_of(name: str, values: Sequence[Item] | None, count: int, what: str = "") -> Sequence[Item] | None:
    """An option's values, one per sentence. Raises ValueError if there are more or fewer, TypeError if they are one string."""
    if isinstance(values, str):
        raise TypeError(f"{name} takes a list, not one string")
    if values is not None and len(values) != count:
        raise ValueError(f"{count:,} sentence{'s' * (count != 1)}, but {len(values):,} {what or name}")
    return values


def per_sentence(results: list[Item], outputs: int, options: Iterable[str]) -> list[Item] | list[list[Item]]:
    """The results of a call: a list for each sentence if its options name a number of outputs."""
    if COUNTS.isdisjoint(options):
        return results
    return [results[start : start + outputs] for start in range(0, len(results), outputs)]


def described(*options: Field) -> Callable[[Function], Function]:
    """Adds options and their meanings to a function's docstring, for ``help``."""

    def add(function: Function) -> Function:
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", *map(entry, options)])
        return function

    return add


def entry(one: Field) -> str:
    """The help text of an option: name, type, default and meaning."""
    how = option_of(one)
    kind = re.sub(r"\b(\w+\.)+", "", one.type.__name__ if isinstance(one.type, type) else str(one.type))
    text = re.sub(r"--([a-z][a-z-]+)", lambda match: match[1].replace("-", "_"), how.help)
    words = [word for word in how.words if word not in how.hidden]
    if not all(word in text for word in words):
        text = f"{text}. Available: {', '.join(words)}"
    return f"{one.name}: {kind} = {one.default!r}\n{textwrap.fill(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)}"


SETTING_FIELDS, CALL_FIELDS = fields(Settings), fields(CallOptions)
REQUEST_FIELDS = [each for each in SETTING_FIELDS if each.name in PER_REQUEST]
SETTINGS, CALL = ([each.name for each in some] for some in (SETTING_FIELDS, CALL_FIELDS))
