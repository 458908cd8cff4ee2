"""Examples of requests and answers, by operation. Tests hold each to its schema."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from pipelines.speech.captions import to_srt, to_txt, to_vtt
from pipelines.types import Speaker, TranscriptResult, TranscriptSegment, TranscriptWord
from serve_app import formats, pricing
from serve_app.api.context import API_PREFIX
from serve_app.api.envelope import timestamp
from serve_app.errors import CATALOGUE, ErrorCode
from serve_app.jobs.documents import transcript_document
from serve_app.jobs.rendering import render_job, render_summary
from serve_app.pricing import price_table
from serve_app.webhooks.routes import TEST_MESSAGE
from storage.job_records import JobRecord, JobSource, StageRecord
from storage.types import (
    TERMINAL_STATES,
    JobState,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
    Tier,
)

ORIGIN = "https://video.example.com"
BASE_URL = f"{ORIGIN}{API_PREFIX}"
JOB_ID = "6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77"
BATCH_ID = "0b7a5b0e-91c4-4f3c-8b1e-5a4f0f6f9d10"
KEY_ID = "c2a3f0de-7a52-4e0e-b3e7-30c6f6f0a911"
REQUEST_ID = "req_5f0c2b7a9d3e4f1a8b6c7d8e9f0a1b2c"
CREATED = datetime(2026, 3, 2, 9, 15, 4, 120_000, tzinfo=UTC)
ENDED = CREATED + timedelta(seconds=147.75)
_UPLOAD = f"{BASE_URL}/uploads/{JOB_ID}"
_SIGNED = "?expires=1772446504&signature=7f3c…"
_OCTETS = {"Content-Type": "application/octet-stream"}


def _stage(state: JobState) -> StageRecord:
    statuses = {
        JobState.COMPLETED: StageStatus.COMPLETED,
        JobState.CANCELLED: StageStatus.SKIPPED,
    }
    cancelled = state is JobState.CANCELLED
    return StageRecord(
        status=statuses.get(state, StageStatus.PENDING),
        progress=1.0 if state is JobState.COMPLETED else 0.0,
        skip_reason=SkipReason.JOB_CANCELLED if cancelled else None,
        error_code="CANCELLED" if cancelled else None,
        error_message=None,
        timings={},
    )


def _record(state: JobState, **changes: Any) -> JobRecord:
    """A stored job in ``state``, so that examples are rendered as real jobs are."""
    completed = state is JobState.COMPLETED
    fields: dict[str, Any] = dict.fromkeys(JobRecord.__dataclass_fields__) | {
        "id": uuid.UUID(JOB_ID),
        "state": state,
        "processing_mode": ProcessingMode.ALL,
        "tier": Tier.STANDARD,
        "file_name": "interview.mp4",
        "callback_url": "https://hooks.example.com/video",
        "metadata": {"assetId": "A-1042"},
        "source": JobSource(kind="url"),
        "created_at": CREATED,
        "started_at": CREATED + timedelta(seconds=36) if completed else None,
        "completed_at": ENDED if state in TERMINAL_STATES else None,
        "duration_ms": 95_200 if completed else None,
        "warnings": [],
        "charged_cents": 5 if completed else 0,
        "scene_count": 9 if completed else None,
        "stages": {name: _stage(state) for name in StageName},
    }
    return JobRecord(**fields | changes)


def job(state: JobState, **changes: Any) -> dict[str, Any]:
    """A Job object in ``state``."""
    return render_job(_record(state, **changes), BASE_URL)


def _failed_job() -> dict[str, Any]:
    failure = ("FETCH_FAILED", "The source answered 404.")
    skipped = StageRecord(StageStatus.SKIPPED, 0.0, SkipReason.JOB_FAILED, None, None, {})
    stages = dict.fromkeys(StageName, skipped)
    stages[StageName.INGEST] = StageRecord(StageStatus.FAILED, 0.0, None, *failure, {})
    return job(JobState.FAILED, stages=stages, error_code=failure[0], error_message=failure[1])


SCENE: dict[str, Any] = {
    "index": 0,
    "startTime": 0.0,
    "endTime": 12.48,
    "description": "A woman speaks to the camera in a bright kitchen.",
    "objects": ["kettle", "woman"],
    "colorPalette": ["#e8e2d6", "#6b4f3a", "#2f3a40"],
    "shotType": "medium",
    "shotAngle": "eye_level",
    "cameraMotion": "static",
    "confidence": 0.97,
    "thumbnailUrl": f"{BASE_URL}/jobs/{JOB_ID}/thumbnails/0.jpg{_SIGNED}",
    "objectTracks": [{"label": "woman", "start": 0.0, "end": 12.48, "confidence": 0.91}],
    "onScreenText": [
        {
            "text": "Anna Weber, baker",
            "confidence": 0.98,
            "box": {"left": 0.08, "top": 0.82, "width": 0.31, "height": 0.06},
        }
    ],
}
_SPOKEN = TranscriptSegment(
    index=0,
    start_ms=1200,
    end_ms=2060,
    text="Good morning.",
    speaker="speaker_0",
    confidence=0.96,
    words=(
        TranscriptWord("Good", 1200, 1500, 0.98, "speaker_0"),
        TranscriptWord("morning.", 1500, 2060, 0.95, "speaker_0"),
    ),
)
_SPEAKER = Speaker("speaker_0", "Speaker 1", 0.86)
_SPOKEN_ALL = TranscriptResult("en", (_SPEAKER,), (_SPOKEN,), shards_computed=1, shards_reused=0)
_ENTRY = {"StartTime": 1.2, "EndTime": 2.06, "Text": "Good morning.", "Speaker": "Speaker 1"}
_TRACK = {
    "trackIndex": 0,
    "trackName": "Lavalier",
    "status": "completed",
    "transcript": [_ENTRY],
    "speakers": ["Speaker 1"],
    "language": "en",
}
_PROCESSED = {
    "length": 95.2,
    "scenes": [SCENE | {"endTs": SCENE["endTime"]}],
    "transcript": [_ENTRY],
}
_KEY = {
    "id": KEY_ID,
    "displayKey": "vas_live_…q7Zk",
    "status": "active",
    "expiresAt": None,
    "benefitId": None,
    "createdAt": timestamp(CREATED),
}
_SECRET = {
    "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "createdAt": timestamp(CREATED),
    "rotatedAt": None,
}

REQUESTS: dict[str, dict[str, Any]] = {
    "createJob": {
        "fileName": "interview.mp4",
        "fileSizeBytes": 734003200,
        "callbackUrl": "https://hooks.example.com/video",
        "metadata": {"assetId": "A-1042"},
    },
    "createJobFromUrl": {
        "url": "https://media.example.com/interview.mp4",
        "processingMode": "all",
        "metadata": {"assetId": "A-1042"},
    },
    "createBatch": {
        "mode": "independent",
        "clips": [
            {"sourceUrl": "https://media.example.com/a.mp4"},
            {"sourceUrl": "https://media.example.com/b.mp4", "metadata": {"take": 2}},
        ],
    },
    "sendTestWebhook": {"url": "https://hooks.example.com/video"},
}
"""Bodies that the API takes."""


def _estimate() -> dict[str, Any]:
    stages = pricing.MODE_ANALYSES[ProcessingMode.ALL]
    quote = pricing.quote(pricing.default_prices(), 3600, Tier.STANDARD, stages)
    cents = sum(quote.values())
    return {
        "cents": cents,
        "usd": cents / 100,
        "currency": pricing.CURRENCY,
        "billableSeconds": 3600,
        "durationSeconds": 3600,
        "tier": "standard",
        "mode": "all",
        "audioTracks": 1,
        "priorUsageSeconds": 0,
        "stages": {str(stage): quote.get(stage, 0) for stage in StageName},
    }


def _formats() -> dict[str, Any]:
    families = {name: list(known) for name, known in formats.RAW_FAMILIES.items()}
    return {
        "standard": list(formats.STANDARD),
        "audioOnly": list(formats.AUDIO_ONLY),
        "raw": families,
        "rawExtensions": [name for known in families.values() for name in known],
        "rawEnabled": [],
        "blocked": list(formats.BLOCKED),
        "unknownExtensions": formats.UNKNOWN_EXTENSIONS,
        "limits": {
            "standardMaxBytes": 21474836480,
            "rawMaxBytes": 107374182400,
            "maxDurationSec": 86400,
            "uploadUrlExpirySeconds": 3600,
        },
    }


def _upload_fields() -> dict[str, Any]:
    return {
        "uploadUrl": f"{_UPLOAD}/media{_SIGNED}",
        "resumableUploadUrl": f"{_UPLOAD}/media/resumable{_SIGNED}",
        "uploadMethod": "PUT",
        "uploadHeaders": _OCTETS,
        "expiresInSeconds": 3600,
        "maxUploadBytes": 21474836480,
    }


@lru_cache(maxsize=1)
def responses() -> dict[str, Any]:
    """``data`` of each operation's success (the whole body where there is no envelope)."""
    queued = job(JobState.QUEUED)
    cancelled = job(JobState.CANCELLED)
    in_batch = job(JobState.QUEUED, batch_id=uuid.UUID(BATCH_ID), batch_index=0)
    transcript = {"jobId": JOB_ID, "language": "en"} | transcript_document(_SPOKEN_ALL)
    return {
        "createJob": job(JobState.AWAITING_UPLOAD) | _upload_fields(),
        "createJobFromUrl": queued,
        "createBatch": {"batchId": BATCH_ID, "mode": "independent", "jobs": [in_batch]},
        "listJobs": {
            "data": [render_summary(_record(JobState.COMPLETED))],
            "hasMore": False,
            "nextCursor": None,
            "requestId": REQUEST_ID,
        },
        "getJob": job(JobState.COMPLETED) | {"processedData": _PROCESSED},
        "cancelJob": cancelled,
        "cancelJobDeprecated": cancelled,
        "getTranscript": transcript,
        "getScenes": {"jobId": JOB_ID, "scenes": [SCENE]},
        "listAudioTracks": {
            "jobId": JOB_ID,
            "tracks": [_TRACK, _TRACK | {"trackIndex": 1, "trackName": "Boom"}],
        },
        "getAudioTrack": _TRACK,
        **_account_responses(),
    }


def _account_responses() -> dict[str, Any]:
    quota = {
        "available": True,
        "balanceCents": 5000,
        "heldCents": 3,
        "availableCents": 4997,
        "payAsYouGo": False,
        "monthUsageSeconds": 5400,
        "tier": "standard",
        "volumeThresholdSeconds": pricing.default_prices().volume_threshold_seconds,
    }
    delivery = {
        "id": f"{JOB_ID}:job.completed",
        "jobId": JOB_ID,
        "eventType": "job.completed",
        "urlHost": "hooks.example.com",
        "status": "delivered",
        "attempts": 1,
        "lastStatus": 204,
        "lastError": None,
        "disabled": False,
        "deliveredAt": timestamp(ENDED + timedelta(milliseconds=540)),
        "createdAt": timestamp(ENDED),
    }
    return {
        "getQuota": {"api": quota},
        "listWebhookDeliveries": [delivery],
        "sendTestWebhook": {"delivered": True, "statusCode": 204, "latencyMs": 85},
        "getPricing": price_table(pricing.default_prices()),
        "estimatePrice": _estimate(),
        "listFormats": _formats(),
        "listKeys": [_KEY],
        "getKeysPortal": {"url": f"{ORIGIN}/portal/…"},
        "rotateKey": _KEY | {"key": "vas_live_…"},
        "getWebhookSecret": _SECRET,
        "rotateWebhookSecret": _SECRET | {"rotatedAt": timestamp(ENDED)},
    }


FILES: dict[str, str] = {
    "application/x-subrip": to_srt([_SPOKEN]),
    "text/vtt": to_vtt([_SPOKEN], [_SPEAKER]),
    "text/plain": to_txt([_SPOKEN], [_SPEAKER]),
}
"""Transcripts as files, by media type."""

_ERROR_FIELDS: dict[ErrorCode, dict[str, Any]] = {
    ErrorCode.INVALID_REQUEST: {"param": "audioTracks[2].offsetMs"},
    ErrorCode.INVALID_URL: {"param": "clips[3].sourceUrl"},
    ErrorCode.URL_NOT_ALLOWED: {"param": "url"},
    ErrorCode.INVALID_CALLBACK_URL: {"param": "callbackUrl"},
    ErrorCode.RESULTS_UNAVAILABLE: {
        "state": "completed",
        "stage": "transcript",
        "stageStatus": "skipped",
        "reason": "no_audio",
    },
    ErrorCode.JOB_NOT_CANCELLABLE: {"jobId": JOB_ID, "state": "completed"},
    ErrorCode.RESULTS_NOT_READY: {
        "state": "processing",
        "stage": "vision",
        "stageStatus": "running",
    },
    ErrorCode.FILE_TOO_LARGE: {
        "param": "fileSizeBytes",
        "maxUploadBytes": 21474836480,
        "formatTier": "standard",
    },
    ErrorCode.UNSUPPORTED_FORMAT: {"param": "fileName"},
    ErrorCode.TOO_MANY_ACTIVE_JOBS: {"maxActiveJobs": 50, "activeJobs": 50},
}


def error(code: ErrorCode) -> dict[str, Any]:
    """The envelope of ``code``."""
    return {
        "error": CATALOGUE[code].summary,
        "code": str(code),
        "docUrl": f"{ORIGIN}/docs/errors#{code}",
        **_ERROR_FIELDS.get(code, {}),
        "requestId": REQUEST_ID,
    }


def event(kind: str) -> dict[str, Any]:
    """The body of a webhook."""
    data: dict[str, dict[str, Any]] = {
        "webhook.test": {"message": TEST_MESSAGE},
        "job.completed": job(JobState.COMPLETED),
        "job.cancelled": job(JobState.CANCELLED),
        "job.failed": _failed_job(),
    }
    return {"type": kind, "timestamp": timestamp(ENDED), "data": data[kind]}
