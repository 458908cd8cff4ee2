"""What is recorded of jobs, after the transaction that made it so."""

from __future__ import annotations

from serve_app.observability.metrics import FOOTAGE, JOBS_ENDED, STAGES, Meters
from storage.types import JobState, StageName, StageStatus


def record_job_end(meters: Meters, state: JobState | None) -> None:
    """A job ended in ``state``; None: it has not ended, or not by us."""
    if state is not None:
        meters.record(JOBS_ENDED, 1, {"state": str(state)})


def record_stage(meters: Meters, stage: StageName, outcome: StageStatus, seconds: float) -> None:
    """A stage ended after so much time with this runner."""
    meters.record(STAGES, seconds, {"stage": str(stage), "outcome": str(outcome)})


def record_footage(meters: Meters, stage: StageName, seconds: float) -> None:
    """A stage was completed for footage of ``seconds``."""
    if seconds > 0:
        meters.record(FOOTAGE, seconds, {"stage": str(stage)})
