"""What the clients of a chaos run were told: written while it runs, judged afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Accepted:
    """A job that the API has accepted."""

    job_id: str
    account: str
    way: str
    """How it came in, as the load's table names it."""
    clip: str
    """Whose results it must give: a clip, or several laid end to end, joined by ``+``."""
    mode: str
    at_seconds: float
    """Since the journal's beginning, as all times here."""
    cancel_asked: bool = False
    cancelled: bool = False
    """Whether a cancellation was confirmed."""
    ended: dict[str, Any] | None = None
    """The job as the client first saw it ended."""
    ended_seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)
    """What the client was given of the completed job: path below the job to the text."""
    edits: dict[int, str] = field(default_factory=dict)
    """Texts of segments that were stored."""
    marker: str = ""
    """A word of its edits that redaction hides, or erasing removes."""
    redacted: bool = False
    erase_asked: bool = False
    rerun_of: str | None = None
    """The job whose results it makes again."""

    @property
    def is_changed(self) -> bool:
        """Whether its results are not those of an undisturbed run any more."""
        return bool(self.edits) or self.erase_asked


@dataclass(frozen=True, slots=True)
class Change:
    """The final answer to a request that may have changed something."""

    method: str
    path: str
    status: int
    request_id: str
    repeated: bool
    """Whether it gives the answer to an earlier request with the same idempotency key."""


@dataclass(slots=True)
class Walked:
    """An archive."""

    archive_id: str
    account: str
    put: dict[str, list[str]]
    """Key to the clips that its object was, one after the other. Of other objects is no job."""
    at_seconds: float
    listed_seconds: float | None = None
    """When objects of it were shown first."""


@dataclass(slots=True)
class Journal:
    """Safe to write from any thread."""

    started: float = field(default_factory=time.monotonic)
    jobs: dict[str, Accepted] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    """Status and, for errors, code of every answer, to how often it came."""
    broken: Counter[str] = field(default_factory=Counter)
    """Connections that failed, by the name of the failure."""
    violations: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    archives: list[Walked] = field(default_factory=list)
    perhaps: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Account, URL, mode and clip of creations that were refused to who lost the role meanwhile: an
    earlier try, whose answer was lost, may have made the job."""
    team: Counter[str] = field(default_factory=Counter)
    """What people of the accounts did, to how often."""
    exports: dict[str, str] = field(default_factory=dict)
    """Account to its audit log as it was exported under way."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def accept(self, job: Accepted) -> None:
        with self._lock:
            if job.job_id in self.jobs:
                self.violations.append(f"job {job.job_id} was given out twice")
            self.jobs[job.job_id] = job

    def changed(self, change: Change) -> None:
        with self._lock:
            self.changes.append(change)

    def did(self, what: str) -> None:
        with self._lock:
            self.team[what] += 1

    def answered(self, what: str) -> None:
        with self._lock:
            self.answers[what] += 1

    def broke(self, failure: str) -> None:
        with self._lock:
            self.broken[failure] += 1

    def violated(self, sentence: str) -> None:
        with self._lock:
            self.violations.append(f"{self.seconds():.0f} s: {sentence}")
