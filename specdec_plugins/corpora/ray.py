"""Runs shards on Ray: a pool of actors, each with a model of its own on cores of its own.

Ray Data schedules: it starts, scales and restarts actors, and repeats the shards of those that die. The manifest alone says what
is finished. Ray's checkpoints would not do: they hold the id of every row in memory, know nothing of models and options, and do
not notice a file that was cut short.
"""

import faulthandler
import fcntl
import logging
import os
import pickle
import tempfile
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from specdec_plugins.corpora.shard import translate_shard
from specdec_plugins.corpora.values import Answers, Job, Shard, ShardReport
from specdec_plugins.cpus import usable_cpus
from specdec_plugins.extras import needed
from specdec_plugins.formats.errors import brief, listed
from specdec_plugins.workers import EXPECTED

ATTEMPTS = 3  # at a shard
# A machine that died counts as alive for half a minute, in which its shards and one more per actor may lose all attempts.
ROUNDS = 2
PATIENCE = 3600.0  # seconds for a batch, after which an actor counts as stuck: the largest models take minutes on one core
STORE = 80 << 20  # bytes of the object store of a Ray started here, its minimum: only shards and reports pass through it


@dataclass(frozen=True)
class RayActors:
    """An executor. ``address`` is that of a cluster, ``auto`` to find one, or ``local`` to start Ray on this machine.

    It has at most ``actors``, or as many as there is room for (0), each with ``threads`` cores and ``gpus``.
    """

    address: str = "local"
    actors: int = 0
    threads: int = 1
    gpus: int = 0
    patience: float = PATIENCE

    def run(self, shards: Iterable[Shard], job: Job) -> Iterator[ShardReport]:
        """A shard that fails does not stop the others; ValueError names them at the end."""
        left = {shard.number: shard for shard in shards}
        failed = list[str]()
        with needed("corpora", "--ray"):
            import ray.data
        try:
            with self._connected(), closing(self._rounds(left, job)) as outcomes:
                for number, outcome in outcomes:
                    if isinstance(outcome, Exception):  # such as a model that cannot be loaded: it concerns all shards
                        raise outcome
                    shard = left.pop(number)
                    if isinstance(outcome, ShardReport):
                        yield outcome
                    else:
                        failed.append(f"{shard.output}: {outcome}")
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise ValueError(f"Ray: {brief(error)}") from None
        failed += [f"{shard.output}: its worker died {ATTEMPTS * ROUNDS} times" for shard in left.values()]
        if failed:
            raise ValueError(f"shards that failed: {len(failed):,}: {listed(failed, '; ', most=20)}")

    @contextmanager
    def _connected(self) -> Iterator[None]:
        import ray

        if ray.is_initialized():  # by the caller
            yield
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default
            cpus = max(usable_cpus(), self.actors * self.threads)
            ray.init("local", num_cpus=cpus, object_store_memory=STORE, include_dashboard=False, **quiet)
        else:
            ray.init(self.address, **quiet)
        try:
            yield
        finally:
            ray.shutdown()

    def _size(self, shards: int) -> int:
        """How many actors to start. Raises ValueError if there is no room for one."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.threads, "GPU": self.gpus}
        room = sum(min(int(node.get(name, 0)) // count for name, count in wanted.items() if count) for node in nodes)
        if not self.actors and not room:
            raise ValueError(f"Ray: no machine of the cluster has {self.threads} CPUs" + " and a GPU" * bool(self.gpus))
        return min(shards, self.actors or room)

    def _rounds(self, left: Mapping[int, Shard], job: Job) -> Generator[tuple[int, ShardReport | str | Exception]]:
        """The outcomes of all shards, and again of those without one, which are still ``left``."""
        for _ in range(ROUNDS):
            if left:
                yield from self._outcomes(list(left.values()), job)

    def _outcomes(self, shards: Sequence[Shard], job: Job) -> Generator[tuple[int, ShardReport | str | Exception]]:
        """The number of each shard that did not kill its actors, and its report, its error, or an error that concerns all."""
        import ray.data

        for handler in logging.getLogger("ray.data").handlers:
            if handler.name == "console":
                handler.setLevel(logging.CRITICAL)
        size = self._size(len(shards))
        rows = [{"shard": pickle.dumps(shard)} for shard in shards]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))  # one in each block, because a block is a task
        context = dataset.context
        context.enable_progress_bars = context.print_on_execution_start = False
        context.actor_task_retry_on_errors = True
        context.max_errored_blocks = -1  # a lost shard ends nothing
        context.max_consecutive_actor_init_deaths = ATTEMPTS - 1
        context.execution_no_progress_timeout_s = -1  # large shards may take hours; actors watch themselves
        context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0  # all busy; the default needs queues
        # No queues: a shard that kills its actor would cost the shards queued there an attempt.
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=size, initial_size=size, max_tasks_in_flight_per_actor=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the last two are deprecated before there is another way to give them
            done = dataset.map_batches(
                Actor,
                fn_constructor_args=(job, self, os.getcwd()),
                compute=pool,
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=self.threads,
                num_gpus=self.gpus or None,
                max_restarts=-1,
                max_task_retries=ATTEMPTS - 1,
            )
        for batch in done.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
            yield pickle.loads(batch["outcome"][0].as_py())


class Actor:
    """Translates shards in a process that Ray started."""

    def __init__(self, job: Job, executor: RayActors, folder: str):
        """``folder`` is that of the driver, where relative paths start."""
        if os.path.isdir(folder):
            os.chdir(folder)
        self.job, self.patience, self.failures = job, executor.patience, Counter[int]()
        self.slot = pin(executor.threads)
        self.fault: Exception | None = None
        try:
            self.translate = job.build(0)
        except EXPECTED as error:
            self.fault = error

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        shard = pickle.loads(batch["shard"][0].as_py())
        outcome = self.fault or self._outcome(shard)
        return pyarrow.table({"outcome": [pickle.dumps((shard.number, outcome))]})

    def _outcome(self, shard: Shard) -> ShardReport | str:
        """A report, or why the shard failed. Raises errors that may pass, so that Ray tries again."""
        self._watch()
        try:
            return translate_shard(self._watched, shard, self.job)
        except ValueError as error:  # lines that cannot be translated
            return str(error)
        except Exception as error:
            self.failures[shard.number] += 1
            if self.failures[shard.number] < ATTEMPTS:
                raise
            return brief(error)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _watched(self, first: int, lines: Sequence[str]) -> Answers:
        self._watch()
        return self.translate(first, lines)

    def _watch(self) -> None:
        """Exit if this is not called again in time, whatever holds the interpreter up. Ray starts another."""
        faulthandler.dump_traceback_later(self.patience, exit=True)


def pin(threads: int) -> int | None:
    """Keep this process on cores that no other actor of the machine uses: those whose lock file it holds, until it ends.

    Returns the open file, or None if there are more actors than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    for start in range(0, len(cores) - threads + 1, threads):
        path = os.path.join(tempfile.gettempdir(), f"specdec-{os.getuid()}-core-{cores[start]}.lock")
        try:
            slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(slot)
            continue
        for task in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(task), cores[start : start + threads])
        return slot
    return None
