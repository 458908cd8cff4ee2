"""The metrics as a table of data, and what records them. Ray's side is in
``deployment.ray_metrics``.

Names are those in the code; Ray puts ``ray_`` before them, and ``_total`` behind a counter's: see
``Metric.series``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from storage.types import JobState, StageName, StageStatus

if TYPE_CHECKING:
    from storage.database import Database


class Kind(StrEnum):
    """How values of a metric add up."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``labels`` take few values each: every combination is a series."""

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus finds it."""
        exported = f"ray_{self.name}"
        endings = {
            Kind.COUNTER: ("_total",),
            Kind.GAUGE: ("",),
            Kind.HISTOGRAM: ("_bucket", "_count", "_sum"),
        }
        return tuple(exported + ending for ending in endings[self.kind])


LEVEL_SECONDS = 5.0
"""Gauges are set that often: Ray hands each value on once, at most every ten seconds."""
DATABASE_SECONDS = 15.0
"""The same of those that the database computes."""
_LEDGER_SECONDS = 60.0
"""Until the ledger is counted again, without the entries of the last minute."""


class Metrics(Protocol):
    """Where values go. Cheap enough for every request; never raises for a known metric."""

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Add to a counter (``value`` above 0), set a gauge, or observe for a histogram."""
        ...


class NullMetrics:
    """Records nothing: for processes that are not scraped."""

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Drop the value."""


NULL_METRICS = NullMetrics()

_ANSWER_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 120.0)
_WORK_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200)
_BATCH_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

HTTP_REQUESTS = Metric(
    "vas_http_request_seconds",
    Kind.HISTOGRAM,
    "Time from a request's arrival to the end of its answer.",
    ("operation", "status"),
    _ANSWER_SECONDS,
)
UPLOADS_UNDER_WAY = Metric(
    "vas_uploads_under_way", Kind.GAUGE, "Uploads that a replica is receiving."
)
JOBS = Metric("vas_jobs", Kind.GAUGE, "Unfinished jobs.", ("state",))
JOBS_ENDED = Metric("vas_jobs_ended", Kind.COUNTER, "Jobs that ended.", ("state",))
QUEUE_AGE = Metric(
    "vas_queue_age_seconds", Kind.GAUGE, "How long the oldest queued job has waited."
)
STAGES = Metric(
    "vas_stage_seconds",
    Kind.HISTOGRAM,
    "Wall time of a stage on its last runner.",
    ("stage", "outcome"),
    _WORK_SECONDS,
)
MEDIA = Metric(
    "vas_footage_seconds", Kind.COUNTER, "Seconds of media whose stage was completed.", ("stage",)
)
PREVIEWS = Metric(
    "vas_preview_seconds",
    Kind.HISTOGRAM,
    "Wall time of the preview of media that browsers cannot play, by what became of it.",
    ("outcome",),
    _WORK_SECONDS,
)
MODEL_BATCHES = Metric(
    "vas_model_batch_size", Kind.HISTOGRAM, "Inputs of a model's batch.", ("task",), _BATCH_SIZES
)
MODEL_SECONDS = Metric(
    "vas_model_batch_seconds",
    Kind.HISTOGRAM,
    "Time of a model for a batch.",
    ("task",),
    _BATCH_SECONDS,
)
WEBHOOK_ATTEMPTS = Metric(
    "vas_webhook_attempts", Kind.COUNTER, "Webhook attempts, by what became of them.", ("outcome",)
)
WEBHOOKS_OPEN = Metric(
    "vas_webhooks_open", Kind.GAUGE, "Webhook events neither delivered nor given up."
)
LEDGER_CENTS = Metric(
    "vas_ledger_cents", Kind.GAUGE, "Sum of all ledger entries, by kind.", ("kind",)
)
LEDGER_ENTRIES = Metric(
    "vas_ledger_entries", Kind.GAUGE, "Number of ledger entries, by kind.", ("kind",)
)
ACCOUNTS_CENTS = Metric(
    "vas_accounts_cents", Kind.GAUGE, "Credits of all accounts: balance and held.", ("part",)
)
LEDGER_MISMATCH_CENTS = Metric(
    "vas_ledger_mismatch_cents",
    Kind.GAUGE,
    "Stored totals of all accounts less the sum of the ledger's entries.",
    ("part",),
)
DISK_FREE = Metric(
    "vas_disk_free_bytes",
    Kind.GAUGE,
    "Free space where a runner keeps temporary copies, and of the data folder.",
    ("folder",),
)

CATALOGUE = tuple(each for each in [*globals().values()] if isinstance(each, Metric))
"""All of them: their ``series`` are what dashboards may query."""


def record_job_end(metrics: Metrics, state: JobState | None) -> None:
    """A job ended in ``state``; None: it has not ended, or not by us."""
    if state is not None:
        metrics.record(JOBS_ENDED, 1, {"state": str(state)})


def record_stage(metrics: Metrics, stage: StageName, outcome: StageStatus, seconds: float) -> None:
    """A stage ended after so much time with this runner."""
    metrics.record(STAGES, seconds, {"stage": str(stage), "outcome": str(outcome)})


def record_media(metrics: Metrics, stage: StageName, seconds: float) -> None:
    """A stage was completed for ``seconds`` of media."""
    if seconds > 0:
        metrics.record(MEDIA, seconds, {"stage": str(stage)})


_ELSEWHERE = "none"
"""Operation of requests to addresses that no route takes."""


def record_request(
    metrics: Metrics, scope: Mapping[str, object], status: int, seconds: float
) -> None:
    """Record a request that ended with ``status``; 0: it broke off before an answer began."""
    route = scope.get("route")
    operation = getattr(route, "operation_id", None) or getattr(route, "name", _ELSEWHERE)
    metrics.record(HTTP_REQUESTS, seconds, _labels(str(operation), status // 100))


@lru_cache(maxsize=512)
def _labels(operation: str, status_class: int) -> Mapping[str, str]:
    return {"operation": operation, "status": f"{status_class}xx" if status_class else "none"}


class DatabaseMetrics:
    """Counts again and again; the ledger only from where the last count ended."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        # Here, as the replicas of models, which know no database, use this module too.
        from storage.metrics import LedgerTotals

        self._database = database
        self._metrics = metrics
        self._ledger = LedgerTotals()
        self._ledger_at = 0.0

    async def take(self) -> None:
        """Count and record; the ledger once in _LEDGER_SECONDS."""
        from storage.metrics import count_now

        counts = await count_now(self._database)
        record = self._metrics.record
        for state, jobs in counts.unfinished_jobs.items():
            record(JOBS, jobs, {"state": state})
        record(QUEUE_AGE, counts.queue_age_seconds, {})
        record(WEBHOOKS_OPEN, counts.open_webhooks, {})
        record(ACCOUNTS_CENTS, counts.balance_cents, {"part": "balance"})
        record(ACCOUNTS_CENTS, counts.held_cents, {"part": "held"})
        if time.monotonic() >= self._ledger_at:
            from storage.metrics import count_ledger, ledger_mismatch

            self._ledger = await count_ledger(self._database, self._ledger)
            for kind, (entries, cents) in self._ledger.by_kind.items():
                self._metrics.record(LEDGER_ENTRIES, entries, {"kind": kind})
                self._metrics.record(LEDGER_CENTS, cents, {"kind": kind})
            balance, held = await ledger_mismatch(self._database, self._ledger)
            self._metrics.record(LEDGER_MISMATCH_CENTS, balance, {"part": "balance"})
            self._metrics.record(LEDGER_MISMATCH_CENTS, held, {"part": "held"})
            self._ledger_at = time.monotonic() + _LEDGER_SECONDS


def record_disks(metrics: Metrics, data_dir: Path) -> None:
    """Free space of the folder of temporary copies, and of the data folder where there is one."""
    folders = {"temporary": Path(tempfile.gettempdir()), "data": data_dir}
    for name, folder in folders.items():
        # A runner of a cluster keeps nothing in a data folder.
        if folder.exists():
            metrics.record(DISK_FREE, shutil.disk_usage(folder).free, {"folder": name})
