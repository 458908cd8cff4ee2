"""Metrics by ``ray.util.metrics``, and what a model's process records of its batches. The agent of
each node exports those of its processes.

Apart from the application: a model that is an actor by itself imports nothing of Serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from models.tasks import Task
from serve_app.observability.logs import LogTarget, configure_logging
from serve_app.observability.metrics import CATALOGUE, MODEL_BATCHES, MODEL_SECONDS, Kind, Metric

Record = Callable[[float, dict[str, str]], None]


class RayMetrics:
    """Metrics of one Ray process. 3 µs a value, measured, so nothing is gathered up first."""

    def __init__(self) -> None:
        self._record: dict[str, Record] = {each.name: _opened(each) for each in CATALOGUE}

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Record a value with Ray."""
        self._record[metric.name](value, dict(labels))


def _opened(metric: Metric) -> Record:
    common: dict[str, Any] = {"description": metric.description, "tag_keys": metric.labels}
    record: Record
    if metric.kind is Kind.COUNTER:
        record = Counter(metric.name, **common).inc
    elif metric.kind is Kind.GAUGE:
        record = Gauge(metric.name, **common).set
    else:
        record = Histogram(metric.name, boundaries=list(metric.boundaries), **common).observe
    return record


@dataclass(slots=True)
class ModelObserver:
    """What a model replica reports of its batches (models.replica.BatchObserver)."""

    target: LogTarget
    task: Task[Any]
    _metrics: RayMetrics | None = None

    def started(self) -> None:
        """Open log and metrics in the process that the model runs in."""
        configure_logging(self.target, f"model:{self.task.name}")
        self._metrics = RayMetrics()

    def batch(self, size: int, seconds: float) -> None:
        """Record one batch."""
        if self._metrics is not None:
            labels = {"task": self.task.name}
            self._metrics.record(MODEL_BATCHES, size, labels)
            self._metrics.record(MODEL_SECONDS, seconds, labels)
