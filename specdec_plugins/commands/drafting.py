"""What ``specdec-draft`` does: distil, train, evaluate, write; resumable at any moment.

An output folder holds the work in ``training/``: ``run.json`` says what is trained and how long distilling took,
``pairs.jsonl`` has the verifier's translations, ``state.pt`` the training. The model's files follow at the end, and ``drafter/``,
the drafter alone with its card.
"""

import json
import os
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from specdec_plugins import __version__
from specdec_plugins.commands.card import ON_CARDS, SUBFOLDER, write_card
from specdec_plugins.commands.draft_text import LEAST_LINES, Text, read_text
from specdec_plugins.commands.evaluation import Evaluation, Evaluator, by_rows, gains
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import option_name
from specdec_plugins.cpus import usual_threads
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.loading import frequent
from specdec_plugins.formats.drafter_folder import Record, read, read_record
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import lock, write_json
from specdec_plugins.formats.folder import Pair, save_drafter, save_folder
from specdec_plugins.formats.spec import fingerprint
from specdec_plugins.measure.expectation import Costs, pays
from specdec_plugins.measure.machine import machine
from specdec_plugins.training.drafting import FALL, Plan, Training, load
from specdec_plugins.training.pairs import Pair as IdPair
from specdec_plugins.training.pairs import line_of, read_pairs
from specdec_plugins.training.precision import choose_kernels, keep_memory
from specdec_plugins.translator import Translator

CHUNK = 256  # lines translated between two writes of their translations
DISTILLING = 1 / 3  # of the time, at most: what has been translated by then is trained on
DISTILLED = "seconds_of_distilling"  # in run.json: a run that was killed meanwhile does not begin a new third
CHECKPOINT = 15.0  # seconds
EVALUATIONS, EVALUATING = 15, 0.1  # of a training; the part of the time that they may take
COOLDOWN = 0.2  # of the time spent: how long the learning rate falls once training no longer pays
TRIALS = 4  # first updates in each precision, to choose the faster


@dataclass
class Progress:
    """What a state keeps beside the training: how much of the ``budget`` is spent (seconds or updates), and what came of it. The
    learning rate's course runs from (``since``, ``passed``) to 1 at ``end``."""

    budget: float
    spent: float = 0.0
    since: float = 0.0
    passed: float = 0.0
    end: float = 0.0
    precision: str = ""
    history: list[float] = field(default_factory=list)  # tokens a pass

    @property
    def course(self) -> float:
        """From 0 to 1."""
        left = self.end - self.since
        return 1.0 if self.spent >= self.end else self.passed + (1 - self.passed) * (self.spent - self.since) / left


class Work:
    """The command's options at work on one output folder."""

    def __init__(self, options: Any, pair: Pair, steps: Steps):
        self.options, self.steps = options, steps
        self.given, self.pair = pair, replace(pair, drafter=None, others=())
        self.folder = Path(options.output) / "training"
        self.noted: dict[str, Any] = {}  # in run.json
        self.threads, self.languages = options.threads or usual_threads(), (options.source_lang, options.target_lang)
        self.evaluator = Evaluator(self.pair, self.threads, self.languages)
        self.timed = options.updates is None
        self.budget = 60.0 * options.minutes if self.timed else float(options.updates)

    def run(self) -> None:
        """Distil, train and write, from where an earlier run stopped. Raises ValueError or OSError."""
        options = self.options
        reader, skip = self.evaluator.translator(None), options.too_long == "skip"  # not kept during the training
        text = read_text(options.sources, reader, self.languages, skip, options.seed)
        del reader
        with self.begun(text):
            training, progress = self.training(text)
            if progress.spent >= progress.end:
                self.end(training, progress, text, "the training is over; more --minutes or --updates continue it")
                return
            self.steps.step("measuring passes", DISTILLING)
            costs = self.evaluator.costs(training.drafter(), text.held)
            self.end(training, progress, text, self.train(training, progress, costs, text.held))

    @contextmanager
    def begun(self, text: Text) -> Iterator[None]:
        """The output folder belongs to this run alone, and to what this run trains."""
        options, path = self.options, self.folder / "run.json"
        wanted = {
            "verifier": fingerprint(self.pair.verifier),
            "sources": text.digest,
            "recipe": options.recipe,
            "drafter_options": options.drafter_options,
            "seed": options.seed,
            "languages": [*self.languages],
            "kind_of_limit": "minutes" if self.timed else "updates",
        }
        self.noted = {**wanted, DISTILLED: 0.0}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w", encoding="utf-8") as file:
            lock(file.fileno(), f"{options.output}: another specdec-draft is at work in it")
            for left in self.folder.glob("*.tmp"):  # by a run that was killed: of a state, or of a whole model
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            if path.exists():
                try:
                    known = json.loads(path.read_text(encoding="utf-8"))
                except ValueError:
                    known = None
                if not isinstance(known, dict) or not isinstance(known.get(DISTILLED, 0.0), float):
                    raise ValueError(f"{path}: damaged; remove {self.folder} to start again")
                if other := [name for name, value in wanted.items() if known.get(name) != value]:
                    what = ", ".join(other).replace("_", " ")
                    raise ValueError(f"{options.output} was begun with another {what}; name another --output")
                self.noted |= known
            self.note(self.noted[DISTILLED])
            yield

    def note(self, seconds: float) -> None:
        """How long distilling has taken so far."""
        self.noted[DISTILLED] = seconds
        write_json(self.folder / "run.json", self.noted)

    # ---- distilling

    def distilled(self, text: Text) -> list[IdPair]:
        """The verifier's outputs for the text, as far as there is time. Those without an end of their own are left out."""
        path = self.folder / "pairs.jsonl"
        sizes = len(self.pair.source), len(self.pair.target)
        found, began = read_pairs(path, sizes), time.monotonic() - self.noted[DISTILLED]
        if len(found) < len(text.train):
            translator = self.evaluator.translator(None)
            with open(path, "a", encoding="utf-8") as file:
                while len(found) < len(text.train):
                    if self.timed and found and time.monotonic() - began > DISTILLING * self.budget:
                        break
                    some = self.outputs(translator, text.train[len(found) : len(found) + CHUNK])
                    file.writelines(map(line_of, some))
                    file.flush()
                    found += some
                    self.note(time.monotonic() - began)
                    part = len(found) / len(text.train)
                    done = self.noted[DISTILLED] / self.budget if self.timed else DISTILLING * part
                    self.steps.step(f"translating line {len(found):,} of {len(text.train):,}", done)
        pairs = [pair for pair in found if pair is not None]
        if len(pairs) < LEAST_LINES // 2:
            raise ValueError(f"the model ended only {len(pairs):,} of {len(found):,} outputs itself: nothing to learn from")
        tokens = sum(len(pair.target) + 1 for pair in pairs)
        self.steps.say(f"{len(pairs):,} of {len(text.train):,} lines translated: {tokens:,} tokens to learn from")
        return pairs

    def outputs(self, translator: Translator, lines: Sequence[str]) -> list[IdPair | None]:
        """A pair for each line; None for one whose output did not end by itself, or that has none."""
        requests = self.evaluator.requests(translator, lines)
        pairs: list[IdPair | None] = [None for _ in lines]
        sources = {request.index: request.tokens for request in requests}
        for each in translator.engine.decode(requests, translator.settings.usual_batch_size, None):
            if each.error is None and not each.cut and each.tokens:
                pairs[each.index] = IdPair(sources[each.index], each.tokens)
        return pairs

    # ---- training

    def training(self, text: Text) -> tuple[Training, Progress]:
        """From the state of an earlier run, or new."""
        options, path = self.options, self.folder / "state.pt"
        state = load(path) if path.exists() else None
        pairs = self.distilled(text) if state is None else self.known_pairs(path)
        drafted = self.drafted(pairs) if state is None else state["drafted"]
        plan = Plan.of(options.recipe, options.drafter_options, self.pair.verifier.spec.decoder.layers, drafted, options.seed)
        torch.set_num_threads(self.threads)
        keep_memory()
        training = Training(plan, self.pair.verifier, pairs)
        if state is None:
            progress = Progress(self.budget, self.noted[DISTILLED] if self.timed else 0.0, end=self.budget)
        else:
            try:
                training.restore(state)
                progress = Progress(**state["extra"])
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}: damaged or of another version ({error}); remove it to train from the start") from None
            self.steps.say(f"continuing after update {training.updates:,}")
            self.steps.resume(progress.spent / max(progress.end, self.budget))
            if self.budget > progress.budget:  # the learning rate rises again
                progress = Progress(self.budget, progress.spent, end=self.budget, precision=progress.precision)
        return training, progress

    def drafted(self, pairs: Sequence[IdPair]) -> list[int]:
        """The tokens that are drafted, none for all: code from elsewhere need not know the restriction."""
        if self.options.recipe not in drafters.built_in():
            return []
        counts = Counter(token for pair in pairs for token in pair.target)
        return frequent(counts, [self.pair.verifier.spec.symbols.eos])

    def known_pairs(self, state: Path) -> list[IdPair]:
        pairs = read_pairs(self.folder / "pairs.jsonl", (len(self.pair.source), len(self.pair.target)))
        if not pairs:
            raise ValueError(f"{self.folder / 'pairs.jsonl'} is missing; remove {state}, too, to start again")
        return [pair for pair in pairs if pair is not None]

    def train(self, training: Training, progress: Progress, costs: dict[int, Costs], held: Sequence[str]) -> str:
        """Train until the budget is spent or more no longer pays. Returns the reason for ending."""
        interval = progress.end / EVALUATIONS
        due, saved, reason = progress.spent + interval, time.monotonic(), ""
        trials: dict[str, list[float]] = {"float32": [], "bf16": []}
        while progress.spent < progress.end:
            began = time.monotonic()
            precision = progress.precision or self.precision(trials, progress)
            choose_kernels(precision)
            loss = training.update(progress.course)
            if not progress.precision:
                trials[precision].append(time.monotonic() - began)
            progress.spent += time.monotonic() - began if self.timed else 1
            part = progress.spent / progress.end
            self.steps.step(
                f"update {training.updates:,}, loss {loss:.2f}", part if self.timed else DISTILLING + (1 - DISTILLING) * part
            )
            if progress.spent >= due and progress.spent < progress.end:
                began = time.monotonic()
                found = self.evaluator.evaluate(training.drafter(), held)
                progress.history.append(found.tokens)
                taken = time.monotonic() - began
                progress.spent += taken if self.timed else 0
                if self.timed:
                    interval = max(interval, taken / EVALUATING)
                due = progress.spent + interval
                if self.timed and not reason and not pays(progress.history):
                    reason = f"more training no longer pays: tokens a pass grew by under 1 % over {3 * interval / 60:.0f} minutes"
                    progress.since, progress.passed = progress.spent, max(progress.course, 1 - FALL)
                    progress.end = min(progress.end, progress.spent * (1 + COOLDOWN))
                self.steps.say(f"update {training.updates:,}: {found.tokens:.2f} tokens a pass, {gains(found, costs)}")
            if time.monotonic() - saved > CHECKPOINT:
                self.save(training, progress)
                saved = time.monotonic()
        self.save(training, progress)
        return reason or "the time is over" if self.timed else "all updates made"

    def save(self, training: Training, progress: Progress) -> None:
        training.save(self.folder / "state.pt", asdict(progress))

    def precision(self, trials: dict[str, list[float]], progress: Progress) -> str:
        """Of the next update: both in turn on CPUs with products in bfloat16, then the faster for good."""
        if self.options.precision != "auto" or not torch.cpu._is_avx512_bf16_supported():
            progress.precision = "float32" if self.options.precision == "auto" else self.options.precision
            return progress.precision
        name = min(trials, key=lambda each: len(trials[each]))
        if len(trials[name]) == TRIALS:
            progress.precision = min(trials, key=lambda each: statistics.median(trials[each][1:]))
            speeds = ", ".join(f"{1 / statistics.median(each[1:]):.2f} in {which}" for which, each in trials.items())
            self.steps.say(f"updates a second: {speeds}")
            return progress.precision
        return name

    # ---- the end

    def end(self, training: Training, progress: Progress, text: Text, reason: str) -> None:
        """Write the model with its drafter and say what it is worth. Raises ValueError if an output differs from a plain one."""
        output, drafter = Path(self.options.output), training.drafter()
        self.steps.step("measuring", 1.0)
        found, lines = self.evaluator.evaluate(drafter, text.held), text.held
        measured = self.evaluator.measured(drafter, lines)
        record = self.record(training, progress, text, found, measured)
        pair, temporary = self.given.drafting(drafter), self.folder / "model"
        shutil.rmtree(temporary, ignore_errors=True)
        save_folder(pair, temporary)
        save_drafter(drafter, self.pair.verifier, record, temporary / SUBFOLDER)
        write_card(temporary / SUBFOLDER, read(temporary / SUBFOLDER).drafter, record)
        (output / SUBFOLDER).mkdir(exist_ok=True)
        names = sorted(
            (path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file()),
            key=lambda path: path.suffix == ".json",
        )
        for name in names:  # the descriptions last: until then this is no model folder, or still the earlier one
            os.replace(temporary / name, output / name)
        shutil.rmtree(temporary)
        made = f"{found.tokens:.2f} tokens a pass after {training.updates:,} updates"
        self.steps.say(f"{reason}: {made}, measured gain {by_rows(measured)}, all outputs identical to plain decoding's")

    def record(
        self, training: Training, progress: Progress, text: Text, found: Evaluation, measured: Mapping[int, float]
    ) -> Record:
        options, config = self.options, self.pair.config
        given = {
            "sources": "TEXT",
            "output": "FOLDER",
            "recipe": options.recipe,
            "seed": options.seed,
            "minutes" if self.timed else "updates": f"{options.minutes:g}" if self.timed else options.updates,
            "precision": options.precision,
            "source_lang": self.languages[0],
            "target_lang": self.languages[1],
        }
        words = [word for name, value in given.items() if value is not None for word in (option_name(name), str(value))]
        own = ["--drafter-options", *options.drafter_options] if options.drafter_options else []
        said = {name: getattr(options, name) for name in ON_CARDS}
        with suppress(OSError, ValueError):  # none before the first end; --card may have changed it since
            earlier = read_record(Path(options.output) / SUBFOLDER)
            said = {name: value or getattr(earlier, name) for name, value in said.items()}
        return Record(
            model=brief(options.named),
            source_lang=self.languages[0] or config.source_lang,
            target_lang=self.languages[1] or config.target_lang,
            multilingual=any(self.languages),
            data=said["data"] or brief(Path(options.sources).name),
            data_sha256=text.digest,
            trained=len(training.pairs),
            held_out=len(text.held),
            updates=training.updates,
            seed=options.seed,
            precision=progress.precision,
            tokens_per_pass=round(found.tokens, 3),
            acceptance=tuple(round(each, 3) for each in found.acceptance),
            gain={str(rows): round(gain, 2) for rows, gain in measured.items()},
            dtype=self.evaluator.dtype,
            threads=self.threads,
            machine=machine(),
            command=("specdec-draft", brief(options.named), *words, *own),
            specdec=__version__,
            licence=said["licence"],
            name=said["name"],
        )
