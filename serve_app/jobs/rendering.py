"""A stored job as the API shows it: pure functions from records to JSON values."""

from __future__ import annotations

from typing import cast

from pipelines.codec import from_json
from pipelines.types import ClipSpan, PipelineWarning, StageCode
from serve_app.api.envelope import timestamp
from serve_app.jobs import answers
from serve_app.jobs.eta import seconds_left
from serve_app.results.redaction import redaction_json
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


def render_job(job: JobRecord, base_url: str) -> answers.Job:
    """The Job object without ``processedData``."""
    rendered: answers.Job = {
        **render_summary(job),  # type: ignore[typeddict-item]  # it lacks what a job may lack
        "stages": _stages(job, with_errors=True),
        "links": links(job, base_url),
        "warnings": cast("list[answers.JobWarning]", job.warnings),
    }
    if job.source.continuous:
        rendered["clips"] = _clips(job)
    retention: answers.RetentionJson = {}
    if job.source.source_retention_seconds is not None:
        retention["sourceSeconds"] = job.source.source_retention_seconds
    if job.source.result_retention_days is not None:
        retention["resultDays"] = job.source.result_retention_days
    if retention:
        rendered["retention"] = retention
    return rendered


def _clips(job: JobRecord) -> list[answers.ProgrammeClip]:
    """The clips of a timeline; where each starts is known once ingest has seen all of them."""
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


def render_summary(job: JobRecord) -> answers.JobSummary:
    """The reduced form of list items."""
    rendered: answers.JobSummary = {
        "jobId": str(job.id),
        "state": job.state,
        "processingMode": job.processing_mode,
        "priority": job.priority,
        "stages": _stages(job, with_errors=False),
        "metadata": job.metadata,
        "fileName": job.file_name,
        "tier": job.tier,
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
        rendered["error"] = _error(job)
        rendered["errorMessage"] = job.error_message
    if job.rerun_of is not None:
        rendered["rerunOf"] = str(job.rerun_of)
    if job.erased_at is not None:
        rendered["erasedAt"] = timestamp(job.erased_at)
    if job.source.redact:
        rendered["redaction"] = redaction_json(job)
    if job.batch_id is not None:
        rendered |= {"batchId": str(job.batch_id), "index": cast("int", job.batch_index)}
    names = job.track_names
    if len(names) > 1:
        rendered |= {
            "audioTrackCount": len(names),
            "audioTracksCompleted": job.tracks_completed,
            "audioTrackNames": names,
        }
    return rendered


def _stages(job: JobRecord, *, with_errors: bool) -> answers.Stages:
    return {
        "ingest": _stage(job.stages[StageName.INGEST], with_error=with_errors),
        "vision": _stage(job.stages[StageName.VISION], with_error=with_errors),
        "transcript": _stage(job.stages[StageName.TRANSCRIPT], with_error=with_errors),
    }


def _stage(stage: StageRecord, *, with_error: bool) -> answers.Stage:
    rendered: answers.Stage = {"status": stage.status, "progress": round(stage.progress, 6)}
    if stage.skip_reason is not None:
        rendered["reason"] = stage.skip_reason
    if with_error and stage.error_code is not None:
        rendered["error"] = _error(stage)
    return rendered


def _error(failed: JobRecord | StageRecord) -> answers.JobError:
    return {"code": cast("StageCode", failed.error_code), "message": failed.error_message}


def links(job: JobRecord, base_url: str) -> answers.Links:
    """Absolute URLs of the job and its results; ``base_url`` includes the path prefix."""
    job_url = f"{base_url}/jobs/{job.id}"
    return {"self": job_url, "transcript": f"{job_url}/transcript", "scenes": f"{job_url}/scenes"}


def estimated_seconds(job: JobRecord) -> float | None:
    """Seconds until a job that is being processed is done; None where there is no estimate."""
    left = seconds_left(job.stages) if job.state is JobState.PROCESSING else None
    return None if left is None else round(left, 1)


def progress(job: JobRecord) -> float:
    """0 to 1 over the stages that run; 1 once all of them have ended."""
    done = total = 0.0
    for name, stage in job.stages.items():
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
        failed = [name for name in StageName if job.stages[name].status is StageStatus.FAILED]
        return f"{failed[0].upper()}_FAILED" if failed else "INGEST_FAILED"
    return _LEGACY_STATUS[job.state]


def warning_document(warning: PipelineWarning, stage: StageName) -> answers.JobWarning:
    """A warning of ``stage`` as it is stored and shown, without what it is not about."""
    about = {
        "stage": warning.stage or stage,
        "trackIndex": warning.track_index,
        "startTime": None if warning.start_ms is None else warning.start_ms / 1000,
        "endTime": None if warning.end_ms is None else warning.end_ms / 1000,
    }
    known = {name: value for name, value in about.items() if value is not None}
    shown = {"code": warning.code, "message": warning.message, **known}
    return cast("answers.JobWarning", shown)
