"""What a gateway counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class GatewayMetrics:
    """One registry per gateway, so that several live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by protocol and outcome.", "protocol", "outcome")
        self.turns = self._counter("turns", "Committed turns by how their history was recognised.", "drift")
        self.scenarios = self._counter("scenario_requests", "Requests for turns by scenario.", "scenario")
        self.sampled = self._counter("sampled_tokens", "Tokens of committed turns.")
        self.prompt = self._counter("prompt_tokens", "Tokens of prompts; reused ones were not rendered.", "source")
        self.dropped = self._counter("dropped_tokens", "Sampled tokens that no turn holds, by reason.", "reason")
        self.rerendered = self._counter("rerendered", "Prompts for which the template could not continue the chain.")
        self.sessions = self._counter("sessions", "Sessions by what became of them.", "event")
        self.journal_failures = self._counter("journal_failures", "Records that could not be written at once.")
        self.active = self._gauge("active_sessions", "Sessions that take turns.")
        self.in_flight = self._gauge("turns_in_flight", "Turns under way.")
        self.turn_seconds = self._histogram("turn_seconds", "A turn from its request to its commit.", _SECONDS)
        self.own_seconds = self._histogram("own_seconds", "A turn without the time spent in the engine.", _SECONDS)
        self.loop_lag = self._histogram("event_loop_lag_seconds", "Delay of a timer on the event loop.", _LAG)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"uni_agent_gateway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"uni_agent_gateway_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"uni_agent_gateway_{name}", text, registry=self.registry, buckets=buckets)

    def exposition(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)


class _Fixed:
    """Families that were collected elsewhere, as a collector."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def summed(texts: Sequence[str]) -> bytes:
    """Expositions of several processes as one: samples of the same name and labels are added."""
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            mine = values.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                first = sample.name.endswith("_created")  # the time of the first process' start, not a sum
                mine[key] = min(mine.get(key, sample.value), sample.value) if first else mine.get(key, 0) + sample.value
    for name, family in families.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Fixed(families.values()))  # pyright: ignore[reportArgumentType] - a collector by its method
    return generate_latest(registry)
