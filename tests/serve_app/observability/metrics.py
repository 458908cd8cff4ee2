"""Metrics that keep what they are given, so that tests can read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_app.observability.metrics import Metric

Labels = frozenset[tuple[str, str]]


@dataclass(slots=True)
class RecordedMetrics:
    """Every recorded value, in order, by metric and labels; refuses labels nobody declared."""

    values: dict[tuple[str, Labels], list[float]] = field(default_factory=lambda: defaultdict(list))

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        assert set(labels) == set(metric.labels), (metric.name, labels)
        self.values[metric.name, frozenset(labels.items())].append(value)

    def of(self, metric: Metric, **labels: str) -> list[float]:
        """What was recorded under exactly these labels."""
        return self.values.get((metric.name, frozenset(labels.items())), [])
