"""Schemas of jobs: the Job object, its reduced form, what creations answer."""

from __future__ import annotations

from pipelines.types import StageCode
from serve_app.discovery.components_forms import (
    Schema,
    address,
    choice,
    extended,
    flag,
    identifier,
    integer,
    list_of,
    moment,
    nullable,
    number,
    record,
    reference,
    text,
)
from serve_app.jobs.metadata import MAX_BYTES, MAX_ENTRIES, MAX_VALUE_CHARACTERS
from storage.job_lists import LEGACY_FILTERS
from storage.types import JobState, ProcessingMode, SkipReason, StageName, StageStatus, Tier

LEGACY_GROUPS = ("COMPLETED", "FAILED")
"""Values of the deprecated ``status`` filter that are no status of a job."""

RESULT_REASONS = (*SkipReason, "track_failed")
"""Why a result does not exist: a stage was skipped, or one track of several failed."""


def _enumerations() -> dict[str, Schema]:
    return {
        "JobState": choice(
            "Where a job stands. `completed`, `failed`, `cancelled` and `expired` are final.",
            JobState,
        ),
        "ProcessingMode": choice("Which analysis stages run.", ProcessingMode),
        "Tier": choice("Price tier: `raw` for camera RAW formats.", Tier),
        "StageName": choice("A stage of a job.", StageName),
        "StageStatus": choice("Where a stage stands.", StageStatus),
        "SkipReason": choice("Why a stage did not run.", SkipReason),
        "JobErrorCode": choice("Why a job or a stage failed or was skipped.", StageCode),
        "LegacyStatus": choice(
            "The state as older clients read it.",
            [name for name in LEGACY_FILTERS if name not in LEGACY_GROUPS],
        ),
    }


def _metadata() -> Schema:
    return {
        "type": "object",
        "description": (
            f"Your own data, echoed on the job and in its webhooks: at most {MAX_ENTRIES} "
            f"entries, {MAX_BYTES} bytes as JSON."
        ),
        "maxProperties": MAX_ENTRIES,
        "propertyNames": {"pattern": "^[A-Za-z0-9_.-]{1,40}$"},
        "additionalProperties": {
            "type": ["string", "number", "boolean", "null"],
            "maxLength": MAX_VALUE_CHARACTERS,
            "pattern": r"^[^\u0000]*$",
        },
    }


def _stage() -> Schema:
    return record(
        "One stage of a job.",
        {
            "status": reference("StageStatus"),
            "progress": number("0 to 1.", minimum=0, maximum=1),
        },
        {
            "reason": reference("SkipReason"),
            "error": {
                **reference("JobError"),
                "description": "Of a failed or cancelled stage; not in lists.",
            },
        },
    )


def _job_error() -> Schema:
    return record(
        "Why a job or a stage failed.",
        {"code": reference("JobErrorCode")},
        {"message": nullable(text("For people; may change."))},
    )


def _summary() -> Schema:
    return record(
        "A job as lists show it.",
        {
            "jobId": identifier("The job's id."),
            "state": reference("JobState"),
            "processingMode": reference("ProcessingMode"),
            "stages": reference("Stages"),
            "metadata": reference("Metadata"),
            "fileName": text("Name of the media file."),
            "tier": reference("Tier"),
            "createdAt": moment("When the job was created."),
            "startedAt": nullable(moment("When work on it began.")),
            "completedAt": nullable(moment("When it reached a final state.")),
            "durationSeconds": nullable(number("Of the media; null until ingest knows it.")),
            "progress": number("0 to 1 over the stages that run.", minimum=0, maximum=1),
            "chargedCents": integer("What its completed stages cost, in US cents.", minimum=0),
            "callbackUrl": nullable(address("Where its webhook goes.")),
            "originalFilename": text("The same as `fileName`, for older clients."),
            "status": reference("LegacyStatus"),
            "estimatedCompletionTimeSeconds": nullable(
                number("Seconds until it is done, while its stages run and their pace is known.")
            ),
        },
        {
            "error": {**reference("JobError"), "description": "Present when `state` is `failed`."},
            "errorMessage": nullable(text("The message of `error`, for older clients.")),
            "batchId": identifier("The batch that the job came from."),
            "index": integer("Position of its clip in that batch.", minimum=0),
            "audioTrackCount": integer("On multi-track jobs.", minimum=2),
            "audioTracksCompleted": integer("On multi-track jobs.", minimum=0),
            "audioTrackNames": list_of(text(), "On multi-track jobs, by track index."),
        },
    ) | {
        "if": {"required": ["state"], "properties": {"state": {"const": "failed"}}},
        "then": {"required": ["error"]},
    }


def _job() -> Schema:
    return extended(
        "A job with its links and, where asked for, its results.",
        "JobSummary",
        record(
            "",
            {
                "links": record(
                    "Absolute URLs of the job and its results.",
                    {
                        "self": address("The job."),
                        "transcript": address("Its transcript."),
                        "scenes": address("Its scenes."),
                    },
                ),
                "warnings": list_of(reference("JobWarning"), "What else is worth knowing."),
            },
            {
                "processedData": reference("ProcessedData"),
                "clips": list_of(
                    reference("ProgrammeClip"), "Of a continuous programme: its clips in order."
                ),
            },
        ),
    )


def _upload_headers(description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": {"type": "string"},
    }


_RESUMABLE = (
    "The same file over tus 1.0.0, which goes on where a broken upload stopped: an upload that is "
    "created already, for `HEAD`, `PATCH`, `DELETE` and `OPTIONS`, with the extensions checksum, "
    "expiration and termination. Its length is deferred where `fileSizeBytes` was not given. "
    "Signed, needs no key; pages of any origin may use it."
)


def _created_upload_job() -> Schema:
    upload_fields = record(
        "",
        {
            "uploadUrl": address("Where to `PUT` the media; signed, needs no key."),
            "resumableUploadUrl": address(_RESUMABLE),
            "uploadMethod": {"const": "PUT", "description": "Always `PUT`."},
            "uploadHeaders": _upload_headers("Headers to send with the upload."),
            "expiresInSeconds": integer("Life of the upload URLs.", minimum=1),
            "maxUploadBytes": integer("The most that the file's tier takes.", minimum=1),
        },
        {
            "audioUploadUrl": address("For `audioFileName`."),
            "audioResumableUploadUrl": address(f"For `audioFileName`. {_RESUMABLE}"),
            "audioUploadHeaders": _upload_headers("Headers for uploads of separate audio."),
            "audioTrackUploadUrls": list_of(
                reference("AudioTrackUpload"), "For `audioTracks`, in their order."
            ),
        },
    )
    return extended("A job that waits for its upload.", "Job", upload_fields)


def _audio_track_upload() -> Schema:
    return record(
        "Where one separate audio file goes.",
        {
            "trackIndex": integer("Position in `audioTracks`.", minimum=0),
            "url": address("Where to `PUT` the file; signed, needs no key."),
            "resumableUrl": address(_RESUMABLE),
            "headers": _upload_headers("Headers to send with the upload."),
        },
    )


def _programme_clip() -> Schema:
    known_later = "Null until ingest has seen all clips."
    return record(
        "A clip of a continuous programme, on the common timeline.",
        {
            "index": integer("Position in `clips` of the request.", minimum=0),
            "fileName": nullable(text("Its name.")),
            "startTime": nullable(number(f"Seconds. {known_later}", minimum=0)),
            "durationSeconds": nullable(number(known_later, minimum=0)),
            "metadata": {**reference("Metadata"), "description": "The clip's own, as given."},
        },
    )


def _batch_job() -> Schema:
    fields = record(
        "",
        {
            "batchId": identifier("The batch."),
            "index": integer("Position of the clip in `clips`.", minimum=0),
        },
    )
    return extended("A job of a batch.", "Job", fields)


def job_schemas() -> dict[str, Schema]:
    """Components of jobs, by name."""
    stages = {
        str(name): {**reference("Stage"), "description": f"The {name} stage."} for name in StageName
    }
    batch = {
        "batchId": identifier("The batch."),
        "mode": choice("As requested.", ("independent", "continuous")),
        "jobs": list_of(reference("BatchJob"), "In the order of the clips.", minItems=1),
    }
    return _enumerations() | {
        "Metadata": _metadata(),
        "JobError": _job_error(),
        "JobWarning": record(
            "What a client should know although the work went on.",
            {"code": text("Stable."), "message": text("For people.")},
        ),
        "Stage": _stage(),
        "Stages": record("The stages of a job.", stages),
        "JobSummary": _summary(),
        "Job": _job(),
        "CreatedUploadJob": _created_upload_job(),
        "AudioTrackUpload": _audio_track_upload(),
        "BatchJob": _batch_job(),
        "ProgrammeClip": _programme_clip(),
        "BatchResult": record("The jobs of a batch.", batch),
    }


def list_envelope() -> Schema:
    """``GET /jobs``: a page instead of the usual envelope."""
    return record(
        "A page of jobs, newest first.",
        {
            "data": list_of(reference("JobSummary"), "May hold fewer than `limit`."),
            "hasMore": flag("Whether another page follows."),
            "nextCursor": nullable(text("Pass it as `cursor` for the next page.")),
        },
        {"requestId": reference("RequestId")},
    )
