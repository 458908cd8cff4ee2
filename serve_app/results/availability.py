"""Whether a job's results are there, not yet, or never."""

from __future__ import annotations

from typing import Any

from serve_app.errors import ApiError, ErrorCode
from storage.job_records import JobRecord
from storage.types import SkipReason, StageName, StageStatus

_OPEN = {StageStatus.PENDING, StageStatus.RUNNING}


def require_stage(job: JobRecord, stage: StageName) -> None:
    """Raises RESULTS_NOT_READY, RESULTS_UNAVAILABLE or, once it was erased, NOT_FOUND."""
    record = job.stages[stage]
    if job.erased_at is not None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
    if record.status is StageStatus.COMPLETED:
        return
    if record.status in _OPEN:
        raise no_result(job, stage, f"The {stage} stage is {record.status}.")
    reason = record.skip_reason or SkipReason.STAGE_FAILED
    more = {} if record.error_code is None else {"errorCode": record.error_code}
    raise no_result(job, stage, f"The {stage} stage has no result: {reason}.", reason, **more)


def no_result(
    job: JobRecord, stage: StageName, message: str, reason: str | None = None, **more: Any
) -> ApiError:
    """RESULTS_UNAVAILABLE for a ``reason``, with ``more`` to name; RESULTS_NOT_READY without."""
    status = str(job.stages[stage].status)
    where = {"state": str(job.state), "stage": str(stage), "stageStatus": status}
    if reason is None:
        return ApiError(ErrorCode.RESULTS_NOT_READY, message, extra=where)
    extra = where | {"reason": str(reason)} | more
    return ApiError(ErrorCode.RESULTS_UNAVAILABLE, message, extra=extra)
