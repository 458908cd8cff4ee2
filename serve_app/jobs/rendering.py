"""A stored job as the API shows it: pure functions from records to JSON values."""

from __future__ import annotations

from typing import Any

from pipelines.codec import from_json
from pipelines.types import ClipSpan
from serve_app.api.envelope import timestamp
from serve_app.jobs.eta import seconds_left
from storage.job_records import JobRecord, StageRecord
from storage.types import ENDED_STATUSES, JobState, StageName, StageStatus

_LEGACY_STATUS = {
    JobState.AWAITING_UPLOAD: "AWAITING_UPLOAD",
    JobState.QUEUED: "QUEUED",
    JobState.PROCESSING: "PROCESSING",
    JobState.CANCELLED: "FAILED_CANCELLED",
    JobState.EXPIRED: "FAILED_EXPIRED",
}
_STAGE_SHARE = {StageName.INGEST: 0.1, StageName.VISION: 0.45, StageName.TRANSCRIPT: 0.45}
"""Share of each stage in the job's progress, before the skipped ones are left out."""


def render_job(job: JobRecord, base_url: str) -> dict[str, Any]:
    """The Job object without ``processedData``."""
    rendered = render_summary(job) | {
        "stages": {str(name): _stage(stage, with_error=True) for name, stage in _stages(job)},
        "links": links(job, base_url),
        "warnings": job.warnings,
    }
    if job.source.continuous:
        rendered["clips"] = _clips(job)
    return rendered


def _clips(job: JobRecord) -> list[dict[str, Any]]:
    """The clips of a programme; where each starts is known once ingest has seen all of them."""
    spans = {span["index"]: from_json(ClipSpan, span) for span in job.clips or []}
    return [
        {
            "index": index,
            "fileName": clip.name,
            "startTime": spans[index].start_ms / 1000 if spans else None,
            "durationSeconds": spans[index].duration_ms / 1000 if spans else None,
            "metadata": clip.metadata,
        }
        for index, clip in enumerate(job.source.clips)
    ]


def render_summary(job: JobRecord) -> dict[str, Any]:
    """The reduced form of list items."""
    rendered: dict[str, Any] = {
        "jobId": str(job.id),
        "state": str(job.state),
        "processingMode": str(job.processing_mode),
        "stages": {str(name): _stage(stage, with_error=False) for name, stage in _stages(job)},
        "metadata": job.metadata,
        "fileName": job.file_name,
        "tier": str(job.tier),
        "createdAt": timestamp(job.created_at),
        "startedAt": timestamp(job.started_at),
        "completedAt": timestamp(job.completed_at),
        "durationSeconds": None if job.duration_ms is None else job.duration_ms / 1000,
        "progress": progress(job),
        "chargedCents": job.charged_cents,
        "callbackUrl": job.callback_url,
        "originalFilename": job.file_name,
        "status": legacy_status(job),
        "estimatedCompletionTimeSeconds": estimated_seconds(job),
    }
    if job.state is JobState.FAILED:
        rendered["error"] = {"code": job.error_code, "message": job.error_message}
        rendered["errorMessage"] = job.error_message
    if job.batch_id is not None:
        rendered |= {"batchId": str(job.batch_id), "index": job.batch_index}
    names = job.audio_track_names or []
    if len(names) > 1:
        rendered |= {
            "audioTrackCount": len(names),
            "audioTracksCompleted": job.tracks_completed,
            "audioTrackNames": names,
        }
    return rendered


def _stages(job: JobRecord) -> list[tuple[StageName, StageRecord]]:
    return [(name, job.stages[name]) for name in StageName]


def _stage(stage: StageRecord, *, with_error: bool) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "status": str(stage.status),
        "progress": round(stage.progress, 6),
    }
    if stage.skip_reason is not None:
        rendered["reason"] = str(stage.skip_reason)
    if with_error and stage.error_code is not None:
        rendered["error"] = {"code": stage.error_code, "message": stage.error_message}
    return rendered


def links(job: JobRecord, base_url: str) -> dict[str, str]:
    """Absolute URLs of the job and its results; ``base_url`` includes the path prefix."""
    job_url = f"{base_url}/jobs/{job.id}"
    return {"self": job_url, "transcript": f"{job_url}/transcript", "scenes": f"{job_url}/scenes"}


def estimated_seconds(job: JobRecord) -> float | None:
    """Seconds until a job that is being processed is done; None where nobody can tell."""
    left = seconds_left(job.stages) if job.state is JobState.PROCESSING else None
    return None if left is None else round(left, 1)


def progress(job: JobRecord) -> float:
    """0 to 1 over the stages that run; 1 once all of them have ended."""
    done = total = 0.0
    for name, stage in _stages(job):
        if stage.status is StageStatus.SKIPPED:
            continue
        total += _STAGE_SHARE[name]
        ended = stage.status in ENDED_STATUSES
        done += _STAGE_SHARE[name] * (1.0 if ended else stage.progress)
    if total == 0:
        return 1.0
    return round(done / total, 6)


def legacy_status(job: JobRecord) -> str:
    """The ``status`` that older clients read (decisions.md §2)."""
    if job.state is JobState.COMPLETED:
        return "VISION_COMPLETED" if job.scene_count else "VIDEO_COMPLETED_NO_SCENES"
    if job.state is JobState.FAILED:
        if job.error_code == "FETCH_FAILED":
            return "FAILED_FETCH"
        failed = [name for name, stage in _stages(job) if stage.status is StageStatus.FAILED]
        return f"{failed[0].upper()}_FAILED" if failed else "INGEST_FAILED"
    return _LEGACY_STATUS[job.state]
