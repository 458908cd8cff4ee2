"""When a running job will be done, from how far its stages are and how long that took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.job_records import StageRecord
from storage.types import ANALYSES, ENDED_STATUSES, StageName, StageStatus

_LEAST_PROGRESS = 0.03
"""Before that a stage's pace says nothing: models are loading, the first shards are running."""
_START_SECONDS = 2.0
"""Of a stage's time, in which workers start and nothing moves yet."""
_TRUSTED_PROGRESS = 0.15
"""Where a stage's own pace counts as much as what was expected of it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the analyses of a job share, and what they were expected to take: ingest's word."""

    gain: float
    """How much faster an analysis gets once it no longer shares the processors."""
    expected_seconds: Mapping[StageName, float]
    """Of an analysis by itself; without those that nobody can tell of."""


def timings_of(
    cpus: float, transcribers: float, expected_seconds: Mapping[StageName, float]
) -> dict[str, float]:
    """What ingest stores with its own timings for ``seconds_left``."""
    expected = {f"{stage}_expected": seconds for stage, seconds in expected_seconds.items()}
    return {"cpus": cpus, "transcribers": transcribers} | expected


def _shared(timings: Mapping[str, float]) -> Shared:
    expected = {stage: timings.get(f"{stage}_expected") for stage in ANALYSES}
    return Shared(
        gain_alone(timings.get("cpus", 1.0), timings.get("transcribers", 1.0)),
        {stage: seconds for stage, seconds in expected.items() if seconds is not None},
    )


def seconds_left(stages: Mapping[StageName, StageRecord]) -> float | None:
    """Seconds until the last analysis ends; None where too little is known yet."""
    if stages[StageName.INGEST].status is not StageStatus.COMPLETED:
        return None
    shared = _shared(stages[StageName.INGEST].timings)
    left = []
    for name in ANALYSES:
        if stages[name].status in ENDED_STATUSES:
            continue
        seconds = _seconds_beside(name, stages, shared)
        if seconds is None:
            return None
        left.append(seconds)
    if not left:
        return 0.0
    left.sort()
    # The slower one has the processors to itself once the other has ended.
    alone = left[0] if len(left) == 1 else left[1] - left[0]
    return (left[0] if len(left) > 1 else 0.0) + alone / shared.gain


def gain_alone(cpus: float, transcribers: float) -> float:
    """How much faster an analysis gets once it no longer shares the processors.

    Pictures are read on all of them, transcribers take one each: on two processors with
    two transcribers each analysis gets half of what it gets alone, on many hardly less.
    """
    return 1.0 + min(1.0, transcribers / max(1.0, cpus))


def _seconds_beside(
    name: StageName, stages: Mapping[StageName, StageRecord], shared: Shared
) -> float | None:
    """What a running analysis has left if the other ran beside it all the time.

    At first what was expected counts, then ever more its own pace; None where there is neither.
    """
    progress = stages[name].progress
    by_pace = _by_pace(name, stages, shared.gain) if progress >= _LEAST_PROGRESS else None
    expected = shared.expected_seconds.get(name)
    if expected is None:
        return by_pace
    by_expectation = expected * shared.gain * (1 - progress)
    if by_pace is None:
        return by_expectation
    trust = progress**2 / (progress**2 + _TRUSTED_PROGRESS**2)
    return trust * by_pace + (1 - trust) * by_expectation


def _by_pace(name: StageName, stages: Mapping[StageName, StageRecord], gain: float) -> float:
    """What is left if it goes on as so far."""
    stage = stages[name]
    [other] = [stages[each] for each in ANALYSES if each is not name]
    moving = max(stage.seconds - _START_SECONDS, stage.seconds / 2)
    shared_seconds = min(moving, other.seconds)
    effort = shared_seconds + gain * (moving - shared_seconds)
    return (1 - stage.progress) * effort / stage.progress
