"""Runs shards in this process, or in processes beside it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from specdec_plugins.corpora.shard import translate_shard
from specdec_plugins.corpora.values import Job, Shard, ShardReport
from specdec_plugins.workers import Workers


class ShardTranslator:
    """Translates shards in process ``number``."""

    def __init__(self, job: Job, number: int = 0):
        self.job, self.translate = job, job.build(number)

    def __call__(self, shard: Shard) -> ShardReport:
        return translate_shard(self.translate, shard, self.job)


@dataclass(frozen=True)
class LocalProcesses:
    """An executor. With one worker this process translates."""

    workers: int = 1

    def run(self, shards: Iterable[Shard], job: Job) -> Iterator[ShardReport]:
        if self.workers == 1:
            yield from map(ShardTranslator(job), shards)
            return
        with Workers(self.workers, partial(ShardTranslator, job)) as workers:
            yield from workers.map(shards)
