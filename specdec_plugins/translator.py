"""Text to text: tokenise, decode by a strategy, and put the words together again.

    >>> from specdec_plugins import Translator
    >>> translator = Translator.from_pretrained("data/demo.en-de")
    >>> translator.translate(["A dog runs."])[0].text
    'Ein Hund rennt.'

Knows the engine and the model folder; fairseq only where its own generator is the strategy.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.acceptance.unverified import accept_all
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.assembly import THREADS, assemble, assemble_part
from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.control.arms import GATES
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.thompson import Thompson
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.control.ucb import Ucb
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import OPEN, Tree
from specdec_plugins.decoding.portfolio import Portfolio
from specdec_plugins.decoding.ranks import LedAdmission, LedController, all_ranks, local
from specdec_plugins.decoding.roles import Admission, Controller, Drafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Hypothesis, Request, Step
from specdec_plugins.decoding.verifier import Unverified
from specdec_plugins.documents import Documents, Task, decode, windows
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.formats.spec import extended
from specdec_plugins.measure.machine import place
from specdec_plugins.measure.tuned import read_tuning
from specdec_plugins.settings import OptionError, Settings
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.bpe import remove_bpe as join_subwords
from specdec_plugins.text.sentences import cut
from specdec_plugins.text.sentences import sentences as sentences_of
from specdec_plugins.text.tokenizers import Tokenizer, load_codes, load_tokenizer
from specdec_plugins.text.vocabulary import Vocabulary

USUAL_ROWS = 32  # windows at a time where nothing says how many
USUAL_BLOCK_SIZE = 8  # of a drafter that no model folder speaks of


@dataclass(frozen=True)
class Translation:
    """One sentence's result. ``source_tokens`` and ``tokens`` are subwords; ``token_scores`` (nats) include the closing eos."""

    text: str
    source_tokens: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    token_scores: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    cut: bool = False  # the length limit ended the output
    sample: int = 0  # its number among the samples of a sentence
    shortened: bool = False  # the source was too long for the models: cut, or, if there are no source_tokens, skipped
    drafter: str | None = None  # the drafter's name; None where none drafts

    @property
    def score(self) -> float:
        """Mean log-probability of the tokens under the verifier, in nats (fairseq's score with --lenpen 1)."""
        return sum(self.token_scores) / max(1, len(self.token_scores))

    @property
    def iterations(self) -> int:
        """Verifier passes that the output took."""
        return len(self.steps)

    @property
    def drafted(self) -> int:
        """Tokens offered for verification, in all iterations."""
        return sum(len(step.drafted) for step in self.steps)

    @property
    def accepted(self) -> int:
        """Of these, the accepted ones."""
        return sum(step.accepted for step in self.steps)

    @property
    def accepted_lengths(self) -> list[int]:
        """Tokens that each iteration committed, the verifier's own included."""
        return [step.accepted + (step.own is not None) for step in self.steps]


class SourceTooLong(ValueError):
    """A source longer than the models' positions; ``index`` is its number among the sentences given, from 0."""

    def __init__(self, index: int, length: str, limit: int):
        super().__init__(f"{length} tokens, and the models read at most {limit:,}")
        self.index = index


class Translator:
    """A loaded pair and its settings; ``stats`` sums over everything translated. Not for use by several threads at once.

    ``roles`` are those that sessions are made of, except under strategy ``fairseq``; they may be replaced.

    ``drafter`` is one of your own in place of the pair's and the settings'.
    """

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        self.trained_block_size = pair.block_size
        joined = pair.drafter is not None and len(settings.members) > 1 and pair.drafter.code in settings.members
        if drafter is not None or (settings.members and not joined):
            self.trained_block_size = pair.block_size or USUAL_BLOCK_SIZE
            pair = replace(pair, drafter=None)
        elif pair.drafter is None and settings.strategy in ("specdec", "drafter"):
            choice = ", or one without weights, by name (--draft-with)" if settings.strategy == "specdec" else ""
            raise ValueError(f"{pair.name} has no drafter, which strategy {settings.strategy} needs{choice}")
        if settings.max_positions:
            pair = beyond_training(pair, settings.max_positions, settings.strategy != "ar")
        self.ranks = all_ranks() if settings.tensor_parallel else None
        if self.ranks is not None:
            settings = settings.share(local("RANK"), local("WORLD_SIZE"))
        self.pair, self.settings = pair, settings
        self.drafter_name: str | None = None
        if settings.strategy in ("specdec", "drafter"):
            packed = pair.drafter.code if pair.drafter else type(drafter).__name__
            self.drafter_name = settings.draft_with or packed
        self.stats = DecodeStats()
        number = settings.block_size if isinstance(settings.block_size, int) else self.trained_block_size
        self.block_size = "auto" if settings.adaptive else number
        device = usable_device(settings.device)
        wants_drafter = pair.drafter is not None and settings.strategy in ("specdec", "drafter")
        drafting = pair.drafter if wants_drafter else None
        specs = [pair.verifier.spec] + ([drafting.spec] if drafting and drafting.spec else [])
        self.max_source = min(spec.encoder.max_positions for spec in specs)
        self.max_target = pair.verifier.spec.decoder.max_positions - 1  # as in fairseq, which counts the closing eos
        if settings.strategy == "drafter":
            self.max_target = min(spec.decoder.max_positions for spec in specs) - 1
        if isinstance(settings.windows, int) and settings.windows >= self.max_source:
            raise OptionError([("windows", f"of {settings.windows} tokens: the models read at most {self.max_source - 1:,}")])
        if settings.strategy == "fairseq":
            from specdec_plugins.measure.fairseq_generator import FairseqGenerator

            torch.set_num_threads(settings.threads or THREADS)
            self._generator = FairseqGenerator(pair.verifier, settings.beam, device, getattr(torch, settings.dtype))
        else:
            self.roles = self._assign(pair.verifier, drafting, device, drafter)
        self._kept: tuple[tuple, Session] | None = None  # the last session, with its caches, and what it was made for
        self._codes = load_codes(pair.tokenizer, pair.codes, pair.source.symbols) if pair.codes else None
        self._tokenizers: tuple[Tokenizer, Tokenizer] | None = None
        self._encode_target: Callable[[str], list[int]] | None = None

    @classmethod
    def from_pretrained(cls, folder: str, drafter: Drafter | None = None, **settings) -> "Translator":
        """Load a model folder; keywords are the fields of `Settings`. Raises ValueError with what is wrong."""
        return cls(load_folder(folder), Settings(**settings), drafter)

    def _assign(self, verifier, drafter, device, own: Drafter | None) -> Roles:
        """The loop's roles under the strategy; the drafter is ``own``, if there is one, else what the settings name."""
        how = self.settings
        if self.ranks is not None:
            drafting, verifying = assemble_part(self.ranks, how.drafter_ranks, verifier, drafter, device, how.dtype, how.threads)
        else:
            drafting, verifying = assemble(verifier, drafter, device, how.dtype, how.threads)
        if own is not None:
            drafting = own
        elif how.members:
            facts = facts_of(self.pair, how, verifying.model)
            others = [drafters.without_weights(name, facts) for name in how.members if not drafter or name != drafter.code]
            joined = len(how.members) > 1
            drafting = Portfolio(others, drafting if drafter else None) if joined else others[0]
        if how.tree and not getattr(drafting, "trees", False):
            raise ValueError(f"drafter '{self.drafter_name}' drafts no trees")
        controller: Controller = FixedLength(0)
        if how.strategy != "ar":
            fixed = self.block_size != "auto"
            tree = Tree(how.tree) if how.tree else None
            controller = (
                FixedLength(int(self.block_size), how.gate, tree)
                if fixed
                else self._controller(own is None and not how.members and self.ranks is None)
            )
            if self.ranks is not None and not fixed:
                controller = LedController(controller, self.ranks)
        if how.strategy == "drafter":
            if getattr(drafting, "needs_verifier", False):
                raise ValueError(f"{self.pair.name}: its drafter reads the verifier's hidden states: strategy drafter has none")
            return Roles(drafting, Unverified(), accept_all, controller)
        return Roles(drafting, verifying, TopBetaTau(how.beta, how.tau), controller)

    def _controller(self, tuned: bool) -> Controller:
        """What chooses the block size; it starts from what `specdec-tune` learned of the pair here, if ``tuned``."""
        how = self.settings
        learned = read_tuning(Path(self.pair.name), place(how.dtype, how.threads, how.device)) if tuned else None
        if how.controller == "throughput":
            return Throughput(self.trained_block_size, how.gate, learned, how.tree or 0)
        gates = GATES if how.gate == OPEN and how.indifferent else ()
        bandit = {"thompson": Thompson, "ucb": Ucb}[how.controller]
        return bandit(self.trained_block_size, how.gate, gates, learned, how.tree or 0)

    def translate(
        self,
        sentences: Sequence[str],
        batch_size: int | None = 32,
        bpe: bool = False,
        remove_bpe: bool = True,
        max_tokens: int | None = None,
        too_long: Literal["error", "truncate", "skip"] = "error",
        first: int = 0,
        hints: Sequence[str] | None = None,
    ) -> list[Translation]:
        """The translations of some sentences, in their order; several of each, one after the other, with `Settings.samples`.

        ``batch_size`` sentences are decoded at a time, and at most ``max_tokens`` source tokens, padding included.
        With ``bpe`` the sentences are tokens in BPE already, and so are the texts, joined to words under ``remove_bpe``.
        ``too_long``: what to do with a source beyond the models' positions. Raises SourceTooLong before anything is decoded.
        ``first`` is the number of the first sentence in a longer text, of which samples depend. ``hints`` are earlier
        translations of the sentences, for a drafter that uses them; empty where there is none.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not one string")
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        if self.settings.windows is None:
            results = self._translate_lines(sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints)
        elif hints is not None:
            raise ValueError("hints are of whole lines, and do not go with windows")
        else:
            results = self._translate_documents(sentences, batch_size, bpe, remove_bpe, max_tokens, first)
        if self.settings.mbr:
            samples = self.settings.mbr
            groups = [results[start : start + samples] for start in range(0, len(results), samples)]
            results = [group[most_agreed([result.text for result in group])] for group in groups]
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

    def _translate_lines(self, sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints) -> list[Translation]:
        """All samples of each line, each of which is a sentence."""
        sources = [self._encode(index, line, bpe, too_long) for index, line in enumerate(sentences)]
        if hints is not None and len(hints) != len(sentences):
            raise ValueError(f"{len(sentences):,} sentences, and {len(hints):,} hints")
        hinted = self.encode_target(hints, bpe) if hints else []
        requests = self._requests({i: source.tokens for i, source in enumerate(sources) if len(source.tokens) > 1}, first, hinted)
        found = {hypothesis.index: hypothesis for hypothesis in self._decode(requests, batch_size, max_tokens)}
        samples, keep_bpe = self.settings.drawn, bpe and not remove_bpe
        return [
            self._finish(source, found.get(samples * index + sample), keep_bpe, bpe, sample)
            for index, source in enumerate(sources)
            for sample in range(samples)
        ]

    def _translate_documents(self, lines, batch_size, bpe, remove_bpe, max_tokens, first) -> list[Translation]:
        """All samples of each line, each of which is a document: what its windows say, joined by spaces."""
        rows, samples = batch_size or USUAL_ROWS, self.settings.drawn
        given = len(self.pair.verifier.spec.forced)

        def fits(source: int, output: int) -> bool:
            return source <= self.max_source and given + output <= self.max_target

        def request(number: int, task: Task) -> Request:
            begun = given + len(task.forced) if task.forced else 0
            limit = min(begun + self.limit(task.own + 1), self.max_target)
            later = [task.window] if task.window else []  # the first is drawn as a line of its own is
            seed = mixed(self.settings.seed, first + task.document, task.sample, *later)
            return self.request(
                number, task.tokens, forced=task.forced, limit=limit, min_length=begun + self.settings.min_len, seed=seed
            )

        sources = (self.windows(line, bpe) for line in lines)
        documents = Documents(sources, samples, self.settings.context, fits, rows, self.pair.source.EOS)
        parts: list[list[tuple[int, Translation]]] = [[] for _ in range(samples * len(lines))]
        with self._borrowed(rows, max_tokens) as session:
            for task, hypothesis in decode(documents, session, rows, request, given):
                source = Encoded(task.tokens[-task.own - 1 :], False)
                text = self._finish(source, hypothesis, bpe and not remove_bpe, bpe, task.sample)
                parts[samples * task.document + task.sample].append((task.window, text))
        return [
            joined([text for _, text in sorted(each, key=lambda part: part[0])], number % samples, self.drafter_name)
            for number, each in enumerate(parts)
        ]

    def windows(self, line: str, bpe: bool = False) -> Iterator[list[int]]:
        """Yield the windows of a line, as the settings say: token numbers of the source, without eos."""
        alone = not isinstance(self.settings.windows, int)
        most = self.settings.windows if isinstance(self.settings.windows, int) else self.max_source - 1
        vocabulary = self.pair.source
        texts = sentences_of(line, self.pair.source_lang, most, bpe)
        tokens = (vocabulary.encode(text if bpe else self._to_subwords(text))[:-1] for text in texts)
        return windows(tokens, most, alone, lambda sentence: cut([vocabulary.symbols[each] for each in sentence[:most]], most))

    def translate_tokens(
        self, sources: Sequence[Sequence[int]], batch_size: int | None = 32, max_tokens: int | None = None, first: int = 0
    ) -> list[Hypothesis]:
        """The outputs of some sources in their order, all samples of each: tokens in, tokens out.

        A source is its token numbers with the closing eos. ``batch_size``, ``max_tokens`` and ``first`` as for `translate`.
        """
        requests = self._requests(dict(enumerate(sources)), first)
        return sorted(self._decode(requests, batch_size, max_tokens), key=lambda hypothesis: hypothesis.index)

    def encode(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """What `translate_tokens` takes: the token numbers of some sentences, eos included. Raises SourceTooLong."""
        return [self._encode(index, line, bpe, "error").tokens for index, line in enumerate(sentences)]

    def encode_target(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """The token numbers of some translations, without eos, as `Request.hint` has them."""
        if bpe:
            return [self.pair.target.encode(line)[:-1] for line in sentences]
        if self._encode_target is None:
            self._encode_target = target_encoder(self.pair)
        return list(map(self._encode_target, sentences))

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        """A request for a session, with the lengths, the rule against repeats and the sampling of the settings; ``options`` are
        further fields of `Request`."""
        how = self.settings
        usual = {
            "limit": self.limit(len(source)), "min_length": how.min_len, "no_repeat": how.no_repeat_ngram_size,
            "sampling": how.drawing,
        }  # fmt: skip
        return Request(index, source, **{**usual, **options})

    def _requests(self, sources: Mapping[int, Sequence[int]], first: int, hints: Sequence[Sequence[int]] = ()) -> list[Request]:
        """A request for each sample of each source; those of source i have the numbers from i * samples on."""
        samples, seed = self.settings.drawn, self.settings.seed
        return [
            self.request(
                samples * index + sample, source, seed=mixed(seed, first + index, sample), hint=hints[index] if hints else ()
            )
            for index, source in sources.items()
            for sample in range(samples)
        ]

    def session(self, rows: int, max_tokens: int | None = None, max_bytes: int | None = None) -> Session:
        """A session on this translator's roles; adds to its statistics. At most ``rows`` requests are in flight, ``max_tokens``
        source tokens (padding included) and about ``max_bytes`` bytes of cache. Not under strategy ``fairseq``.
        """
        roles = self.roles

        def bytes_for(request: Request) -> int:
            return sum(role.bytes_for(request) for role in (roles.drafter, roles.verifier) if hasattr(role, "bytes_for"))

        admission: Admission = BoundedAdmission(rows, max_tokens, max_bytes, bytes_for)
        if self.ranks is not None:
            admission = LedAdmission(admission, self.ranks)
        constraints = Constraints.of(self.pair.verifier.spec)
        return Session(*roles, admission, rows, constraints, self.stats, self.settings.device)

    def stream(self, sentences: Iterable[str], buffer_size: int = 512, **options) -> Iterator[Translation]:
        """Yield the translations in order, reading ``buffer_size`` sentences at a time. Options as for `translate`."""
        if isinstance(sentences, str):
            raise TypeError("stream takes a list of sentences, or another iterable, not one string")
        lines = iter(sentences)
        first = options.pop("first", 0)
        while buffer := list(islice(lines, buffer_size)):
            yield from self.translate(buffer, first=first, **options)
            first += len(buffer)

    def take_stats(self) -> DecodeStats:
        """What ``stats`` summed up since the last time; they begin again."""
        taken, self.stats = self.stats, DecodeStats()
        return taken

    def _encode(self, index: int, line: str, bpe: bool, too_long: str) -> "Encoded":
        """The tokens of a sentence with eos."""
        words = line.split()
        limit = self.max_source - 1  # without eos
        count = f"over {limit:,}"  # a line has at least as many tokens as words
        if len(words) <= limit or too_long == "truncate":
            text = " ".join(words[:limit])
            tokens = self.pair.source.encode(text if bpe else self._to_subwords(text))
            shortened = len(words) > limit or len(tokens) - 1 > limit
            if not shortened or too_long == "truncate":
                return Encoded([*tokens[:-1][:limit], tokens[-1]], shortened)
            count = f"{len(tokens) - 1:,}"
        if too_long == "error":
            raise SourceTooLong(index, count, limit)
        return Encoded([], True)

    def _to_subwords(self, line: str) -> str:
        if self._codes is None:
            raise ValueError(f"{self.pair.name} has no BPE codes, so its input must be tokens in BPE already (bpe)")
        return self._codes.apply(self._languages()[0].tokenize(line)) if line else ""

    def _languages(self) -> tuple[Tokenizer, Tokenizer]:
        """The tokenisers of both languages, loaded when they are used."""
        if self._tokenizers is None:
            name, pair = self.pair.tokenizer, self.pair
            source, target = (load_tokenizer(name, lang, pair.codes) for lang in (pair.source_lang, pair.target_lang))
            self._tokenizers = source, target
        return self._tokenizers

    def _decode(self, requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> Iterator[Hypothesis]:
        options = self.settings
        if not requests:
            return
        requests = sorted(requests, key=lambda request: -len(request.tokens))  # short outputs end a run, and leave few rows idle
        rows = batch_size or len(requests)
        if options.strategy == "fairseq":
            yield from self._generator.decode(requests, rows, max_tokens, options.max_len_a, options.max_len_b, self.stats)
            return
        with self._borrowed(min(rows, len(requests)), max_tokens) as session:
            yield from session.run(requests)

    @contextmanager
    def _borrowed(self, rows: int, max_tokens: int | None) -> Iterator[Session]:
        """The last session, if it was for as many; one whose caller went away is not used again."""
        how = rows, max_tokens, self.roles
        kept, self._kept = self._kept, None
        session = kept[1] if kept and kept[0] == how else self.session(rows, max_tokens)
        session.stats = self.stats
        yield session
        self._kept = how, session

    def limit(self, source_length: int) -> int:
        """The most tokens that the output of so many source tokens, eos included, may have (fairseq's --max-len-a, -b)."""
        return min(int(self.settings.max_len_a * source_length + self.settings.max_len_b), self.max_target)

    def _finish(
        self, source: "Encoded", hypothesis: Hypothesis | None, keep_bpe: bool, keep_tokens: bool, sample: int
    ) -> Translation:
        if hypothesis is None:
            return Translation("", shortened=source.shortened, sample=sample, drafter=self.drafter_name)
        line = self.pair.target.decode(hypothesis.tokens)
        text = line if keep_bpe else join_subwords(line)
        return Translation(
            text if keep_tokens else self._languages()[1].detokenize(text),
            [self.pair.source.symbols[token] for token in source.tokens[:-1]],
            self.words(hypothesis.tokens),
            hypothesis.token_scores,
            hypothesis.steps,
            hypothesis.cut,
            sample,
            source.shortened,
            self.drafter_name,
        )

    def text(self, subwords: Sequence[str]) -> str:
        """Plain text of the target's subwords."""
        return self._languages()[1].detokenize(join_subwords(" ".join(subwords)))

    def words(self, tokens: Iterable[int]) -> list[str]:
        """Target tokens as subwords; eos is ``</s>``."""
        return [self.pair.target.symbols[token] for token in tokens]


def joined(parts: Sequence[Translation], sample: int, drafter: str | None) -> Translation:
    """A document's translation, of its windows'."""
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


def beyond_training(pair: Pair, positions: int, drafting: bool = True) -> Pair:
    """The pair, whose verifier, and drafter if it is ``drafting``, take so many tokens. Raises OptionError if they cannot."""
    models: dict[str, Any] = {"verifier": pair.verifier} | ({"drafter": pair.drafter} if pair.drafter and drafting else {})
    faults = []
    for role, model in models.items():
        try:
            models[role] = extended(model, positions)
        except ValueError as error:
            faults.append(f"{role}: {error}")
    if faults:
        what = f"{positions}: only sinusoidal positions go on beyond those of the training ({'; '.join(faults)})"
        raise OptionError([("max_positions", what)])
    return replace(pair, **models)


def usable_device(name: str) -> torch.device:
    """The device of that name. Raises ValueError if there is none."""
    try:
        torch.zeros(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name}: {str(error).splitlines()[0]}") from None


def target_encoder(pair: Pair) -> Callable[[str], list[int]]:
    """The function that turns a line of the target language into token numbers, without eos."""
    return text_encoder(pair, pair.target, pair.target_lang)


def source_encoder(pair: Pair) -> Callable[[str], list[int]]:
    """The same for the source language; it cuts no line."""
    return text_encoder(pair, pair.source, pair.source_lang)


def text_encoder(pair: Pair, vocabulary: Vocabulary, language: str) -> Callable[[str], list[int]]:
    """The function that turns a line of one of the pair's languages into token numbers, without eos."""
    if pair.codes is None:
        raise ValueError(f"{pair.name} has no BPE codes, so text in its languages must be tokens in BPE already")
    tokenizer = load_tokenizer(pair.tokenizer, language)
    codes = load_codes(pair.tokenizer, pair.codes, vocabulary.symbols)
    return lambda line: vocabulary.encode(codes.apply(tokenizer.tokenize(" ".join(line.split()))))[:-1]


def facts_of(pair: Pair, settings: Settings, verifier: LoadedModel) -> drafters.PairFacts:
    """What a drafter without weights may know of a pair, and of how to decode with it."""
    copies = [pair.target.numbers.get(symbol, -1) for symbol in pair.source.symbols]
    symbols = pair.target.symbols
    return drafters.PairFacts(
        pair.verifier.spec.symbols, copies, pair.target.fingerprint(), len(symbols), settings.datastore, subwords=symbols,
        source_dictionary=pair.source.fingerprint(), verifier=verifier, budget=settings.budget,
    )  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """A source as token numbers with eos; without any if it is to be skipped for its length."""

    tokens: list[int]
    shortened: bool
