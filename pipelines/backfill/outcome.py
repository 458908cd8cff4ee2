"""Items of a backfill and their outcomes: frozen values, no I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pipelines.types import PipelineWarning, Scene, StageOutcome, TrackOutcome
from storage.types import ProcessingMode, StageStatus


@dataclass(frozen=True, slots=True)
class Item:
    """A row of the manifest, checked. ``id`` is unique; ``source`` is a path or a URL."""

    id: str
    row: int
    """In the manifest, from 1."""
    source: str
    name: str
    """File name, for people."""
    mode: ProcessingMode = ProcessingMode.ALL
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
class ItemOutcome:
    """All that came of an item. Scenes' ``thumbnail_key`` is a name in the output's place."""

    item: Item
    stages: tuple[StageOutcome, ...]
    duration_ms: int | None = None
    width: int | None = None
    height: int | None = None
    scenes: tuple[Scene, ...] = ()
    overview: Scene | None = None
    """None where vision did not complete."""
    tracks: tuple[TrackOutcome, ...] = ()
    warnings: tuple[PipelineWarning, ...] = ()
    seconds: float = 0.0
    """Wall time that it took."""

    @property
    def failures(self) -> tuple[StageOutcome, ...]:
        """Stages that failed."""
        return tuple(it for it in self.stages if it.status is StageStatus.FAILED)

    @property
    def status(self) -> StageStatus:
        """FAILED if any stage did."""
        return StageStatus.FAILED if self.failures else StageStatus.COMPLETED
