"""Figures for Prometheus, of requests and of each model."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specdec_plugins.serving.service import Service

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One server's figures."""

    def __init__(self, service: Service):
        self.registry, self.service = CollectorRegistry(), service
        self.requests = Counter("specdec_requests", "Requests", ["path", "status"], registry=self.registry)
        self.latency = Histogram("specdec_request_seconds", "Time to answer", ["path"], buckets=SECONDS, registry=self.registry)
        ProcessCollector(registry=self.registry)  # memory, CPU time, open files
        self.registry.register(self)

    def note(self, path: str, status: int, seconds: float) -> None:
        self.requests.labels(path, status).inc()
        self.latency.labels(path).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The models' figures. They are read while they change."""
        counters = {
            "sentences": "Finished outputs",
            "passes": "Verifier passes over a batch",
            "iterations": "Verifier passes, per row",
            "drafted": "Drafted tokens",
            "accepted": "Accepted tokens",
            "committed": "Tokens of outputs",
        }
        totals = {name: CounterMetricFamily(f"specdec_{name}", text, labels=["model"]) for name, text in counters.items()}
        times = CounterMetricFamily("specdec_seconds", "Time of the engine's thread by activity", labels=["model", "activity"])
        lengths = CounterMetricFamily("specdec_draft_length_passes", "Passes by longest draft", labels=["model", "tokens"])
        texts = GaugeMetricFamily("specdec_texts", "Texts waiting or in flight", labels=["model"])
        rows = GaugeMetricFamily("specdec_batch_rows", "Rows in flight", labels=["model"])
        for model in self.service.models:
            served, stats = model.served, model.served.stats
            for name, total in totals.items():
                total.add_metric([model.name], getattr(stats, name))
            for activity, seconds in stats.seconds.items():
                times.add_metric([model.name, activity], seconds)
            for length, passes in sorted(stats.lengths.copy().items()):
                lengths.add_metric([model.name, str(length)], passes)
            texts.add_metric([model.name], served.pending)
            rows.add_metric([model.name], served.line.rows_in_flight)
        yield from (*totals.values(), times, lengths, texts, rows, *self._learned())

    def _learned(self) -> Iterator[Metric]:
        """Of the models whose drafters learn."""
        counters = {
            "updates": "Updates of the drafter in training",
            "swaps": "Faster states that took over",
            "refused": "States that were not faster, or damaged",
        }
        totals = {
            name: CounterMetricFamily(f"specdec_learning_{name}", text, labels=["model"]) for name, text in counters.items()
        }
        tokens = GaugeMetricFamily(
            "specdec_learning_tokens_per_pass", "On the latest held-back requests", labels=["model", "drafter"]
        )
        for model in self.service.models:
            if (learning := model.served.learning) is not None:
                for name, total in totals.items():
                    total.add_metric([model.name], getattr(learning, name))
                for drafter in ("first", "present"):
                    tokens.add_metric([model.name, drafter], getattr(learning, drafter))
        yield from (*totals.values(), tokens) if tokens.samples else ()
