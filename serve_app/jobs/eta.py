"""When a running job will be done, from how far its stages are and how long that took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from storage.job_records import StageRecord
from storage.types import ANALYSES, ENDED_STATUSES, StageName, StageStatus

_LEAST_PROGRESS = 0.03
"""Before that a stage's pace shows nothing: models are loading, the first shards are running."""
_START_SECONDS = 2.0
"""Of a stage's time, in which workers start and nothing moves yet."""
_TRUSTED_PROGRESS = 0.15
"""Where a stage's own pace counts as much as what was expected of it."""


def timings_of(gain: float, expected_seconds: Mapping[StageName, float]) -> dict[str, float]:
    """What ingest stores with its own timings for ``seconds_left``.

    ``expected_seconds`` of an analysis by itself; without those of which nothing is known.
    """
    expected = {f"{stage}_expected": seconds for stage, seconds in expected_seconds.items()}
    return {"gain": gain} | expected


def gain_alone(cpus: float, transcribers: float) -> float:
    """How much faster an analysis gets once it no longer shares the processors.

    Pictures are read on all of them, transcribers take one each: on two processors with
    two transcribers each analysis gets half of what it gets alone, on many hardly less.
    """
    return 1.0 + min(1.0, transcribers / max(1.0, cpus))


def alone_seconds(seconds: float, beside_seconds: float, gain: float) -> float:
    """What ``seconds`` come to alone, if another analysis ran for ``beside_seconds`` of them."""
    shared = min(seconds, beside_seconds)
    return seconds - shared + shared / gain


def seconds_left(stages: Mapping[StageName, StageRecord]) -> float | None:
    """Seconds until the last analysis ends; None where too little is known yet."""
    ingest = stages[StageName.INGEST]
    if ingest.status is not StageStatus.COMPLETED:
        return None
    gain = ingest.timings.get("gain", 1.0)
    left = [0.0, 0.0]
    for name, other in permutations(ANALYSES):
        if stages[name].status in ENDED_STATUSES:
            continue
        expected = ingest.timings.get(f"{name}_expected")
        seconds = _left_alone(stages[name], stages[other], expected, gain)
        if seconds is None:
            return None
        left.append(seconds)
    # The longer one has the processors to itself once the other has ended.
    shorter, longer = sorted(left)[-2:]
    return shorter * gain + longer - shorter


def _left_alone(
    stage: StageRecord, other: StageRecord, expected_seconds: float | None, gain: float
) -> float | None:
    """What a running analysis has left by itself.

    At first what was expected counts, then ever more its own pace; None where there is neither.
    """
    whole, progress = expected_seconds, stage.progress
    if progress >= _LEAST_PROGRESS:
        moving = max(stage.seconds - _START_SECONDS, stage.seconds / 2)
        by_pace = alone_seconds(moving, other.seconds, gain) / progress
        trust = progress**2 / (progress**2 + _TRUSTED_PROGRESS**2)
        whole = by_pace if whole is None else trust * by_pace + (1 - trust) * whole
    return None if whole is None else (1 - progress) * whole
