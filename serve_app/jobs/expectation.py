"""When a running job will be done, from how far its stages are and how long that took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.job_records import StageRecord
from storage.types import ENDED_STATUSES, StageName, StageStatus

ANALYSES = (StageName.VISION, StageName.TRANSCRIPT)
_LEAST_PROGRESS = 0.03
"""Before that a stage's pace says nothing: models are loading, the first shards are running."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An analysis under way: its progress, and the work it needs in seconds beside the other."""

    progress: float
    pace: float
    """Progress a second while the other analysis runs beside it."""

    @property
    def seconds_left(self) -> float:
        return (1 - self.progress) / self.pace


def seconds_left(stages: Mapping[StageName, StageRecord]) -> float | None:
    """Seconds until the last analysis ends; None where too little is known yet."""
    if stages[StageName.INGEST].status is not StageStatus.COMPLETED:
        return None
    open_stages = [name for name in ANALYSES if stages[name].status not in ENDED_STATUSES]
    if any(stages[name].progress < _LEAST_PROGRESS for name in open_stages):
        return None
    gain = _gain_alone(stages[StageName.INGEST].timings)
    left = sorted(_running(name, stages, gain).seconds_left for name in open_stages)
    if not left:
        return 0.0
    # The slower one has the processors to itself once the other has ended.
    return left[0] + (left[1] - left[0]) / gain if len(left) > 1 else left[0] / gain


def _gain_alone(timings: Mapping[str, float]) -> float:
    """How much faster an analysis gets once it no longer shares the processors.

    Pictures are read on all of them, transcribers take one each: on two processors with
    two transcribers each analysis gets half of what it gets alone, on many hardly less.
    """
    cpus = max(1.0, timings.get("cpus", 1.0))
    return 1.0 + min(1.0, timings.get("transcribers", 1.0) / cpus)


def _running(name: StageName, stages: Mapping[StageName, StageRecord], gain: float) -> _Running:
    stage = stages[name]
    [other] = [stages[each] for each in ANALYSES if each is not name]
    shared = min(stage.seconds, other.seconds)
    effort = shared + gain * (stage.seconds - shared)
    return _Running(stage.progress, stage.progress / max(effort, 1e-3))
