"""What a backfill is asked about an item, and what it answers: frozen values, no I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from pipelines.types import PipelineWarning, Scene, Speaker, TranscriptSegment


class Mode(StrEnum):
    """Which analyses an item gets (``processingMode`` of the API)."""

    ALL = "all"
    VISION = "vision"
    TRANSCRIPT = "transcript"


class Stage(StrEnum):
    """The stages of an item; MANIFEST is where its row was read."""

    MANIFEST = "manifest"
    INGEST = "ingest"
    VISION = "vision"
    TRANSCRIPT = "transcript"


class Status(StrEnum):
    """How a stage, or an item as a whole, ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the manifest, checked. ``id`` is unique; ``source`` is a path or a URL."""

    id: str
    row: int
    """In the manifest, from 1."""
    source: str
    name: str
    """File name, for people."""
    mode: Mode = Mode.ALL
    language: str | None = None
    keyterms: tuple[str, ...] = ()
    speakers_expected: int | None = None
    provider: str | None = None
    metadata: str = "{}"
    """A JSON object, carried along as it is."""

    @property
    def folder(self) -> str:
        """Where its files lie: a name that every store takes, whatever the id is made of."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RowError:
    """A row of the manifest that cannot be worked on, and the column at fault."""

    id: str | None
    row: int
    source: str | None
    column: str | None
    message: str


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended. ``reason``: why it was skipped, as the API's ``reason``."""

    stage: Stage
    status: Status
    reason: str | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class TrackOutcome:
    """An audio track's transcript, or the code of its failure."""

    index: int
    name: str
    language: str | None = None
    speakers: tuple[Speaker, ...] = ()
    segments: tuple[TranscriptSegment, ...] = ()
    code: str | None = None


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """All that came of an item. Scenes' ``thumbnail_key`` is a name in the output's place."""

    item: Item
    stages: tuple[StageOutcome, ...]
    duration_ms: int | None = None
    width: int | None = None
    height: int | None = None
    scenes: tuple[Scene, ...] = ()
    tracks: tuple[TrackOutcome, ...] = ()
    warnings: tuple[PipelineWarning, ...] = ()
    seconds: float = 0.0
    """Wall time that it took."""

    @property
    def failures(self) -> tuple[StageOutcome, ...]:
        """Stages that failed."""
        return tuple(it for it in self.stages if it.status is Status.FAILED)

    @property
    def status(self) -> Status:
        """FAILED if any stage did."""
        return Status.FAILED if self.failures else Status.COMPLETED
