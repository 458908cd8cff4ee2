"""Examples of requests and answers, by operation. Tests hold each to its schema."""

from __future__ import annotations

from typing import Any

from serve_app.credits import pricing
from serve_app.discovery.routes import price_table
from serve_app.errors import CATALOGUE, ErrorCode
from serve_app.jobs import formats
from serve_app.discovery.components_jobs import LEGACY_STATUSES
from storage.types import JobState, ProcessingMode, StageName, Tier

ORIGIN = "https://video.example.com"
JOB_ID = "6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77"
BATCH_ID = "0b7a5b0e-91c4-4f3c-8b1e-5a4f0f6f9d10"
KEY_ID = "c2a3f0de-7a52-4e0e-b3e7-30c6f6f0a911"
REQUEST_ID = "req_5f0c2b7a9d3e4f1a8b6c7d8e9f0a1b2c"
CREATED = "2026-03-02T09:15:04.120Z"
_ENDED = "2026-03-02T09:17:31.870Z"
_UPLOAD = f"{ORIGIN}/v1/api/uploads/{JOB_ID}"
_SIGNED = "?expires=1772446504&signature=7f3c…"
_OCTETS = {"Content-Type": "application/octet-stream"}


def job(state: JobState, **changes: Any) -> dict[str, Any]:
    """A Job object in ``state``."""
    ended = state is JobState.COMPLETED
    statuses = {JobState.COMPLETED: "completed", JobState.CANCELLED: "skipped"}
    stage: dict[str, Any] = {
        "status": statuses.get(state, "pending"),
        "progress": 1.0 if ended else 0.0,
    }
    if state is JobState.CANCELLED:
        stage |= {
            "reason": "job_cancelled",
            "error": {"code": "CANCELLED", "message": None},
        }
    shown = {
        "jobId": JOB_ID,
        "state": str(state),
        "processingMode": "all",
        "stages": {str(name): dict(stage) for name in StageName},
        "metadata": {"assetId": "A-1042"},
        "fileName": "interview.mp4",
        "tier": "standard",
        "createdAt": CREATED,
        "startedAt": "2026-03-02T09:15:40.002Z" if ended else None,
        "completedAt": _ENDED if ended or state is JobState.CANCELLED else None,
        "durationSeconds": 95.2 if ended else None,
        "progress": 1.0 if ended else 0.0,
        "chargedCents": 5 if ended else 0,
        "callbackUrl": "https://hooks.example.com/video",
        "originalFilename": "interview.mp4",
        "status": LEGACY_STATUSES.get(state, "VISION_COMPLETED"),
        "estimatedCompletionTimeSeconds": None,
        "links": {
            "self": f"{ORIGIN}/v1/api/jobs/{JOB_ID}",
            "transcript": f"{ORIGIN}/v1/api/jobs/{JOB_ID}/transcript",
            "scenes": f"{ORIGIN}/v1/api/jobs/{JOB_ID}/scenes",
        },
        "warnings": [],
    }
    return shown | changes


def _summary() -> dict[str, Any]:
    shown = job(JobState.COMPLETED)
    return {name: value for name, value in shown.items() if name not in {"links", "warnings"}}


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
    "thumbnailUrl": f"{ORIGIN}/v1/api/jobs/{JOB_ID}/thumbnails/0.jpg{_SIGNED}",
}
_WORDS = [
    {"text": "Good", "startTime": 1.2, "endTime": 1.5, "confidence": 0.98, "speaker": "speaker_0"},
    {
        "text": "morning.",
        "startTime": 1.5,
        "endTime": 2.06,
        "confidence": 0.95,
        "speaker": "speaker_0",
    },
]
SEGMENT: dict[str, Any] = {
    "index": 0,
    "startTime": 1.2,
    "endTime": 2.06,
    "text": "Good morning.",
    "speaker": "speaker_0",
    "confidence": 0.96,
    "words": _WORDS,
}
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
    "createdAt": CREATED,
}
_SECRET = {
    "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",  # noqa: S105  (an example)
    "createdAt": CREATED,
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
    quote = pricing.quote(
        3600, Tier.STANDARD, pricing.MODE_ANALYSES[ProcessingMode.ALL], audio_tracks=1
    )
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


def responses() -> dict[str, Any]:
    """``data`` of each operation's success (the whole body where there is no envelope)."""
    queued = job(JobState.QUEUED)
    cancelled = job(JobState.CANCELLED)
    in_batch = queued | {"batchId": BATCH_ID, "index": 0}
    transcript = {
        "jobId": JOB_ID,
        "language": "en",
        "speakers": [{"id": "speaker_0", "label": "Speaker 1", "speakingSeconds": 0.86}],
        "text": "Good morning.",
        "segments": [SEGMENT],
    }
    return {
        "createJob": job(JobState.AWAITING_UPLOAD) | _upload_fields(),
        "createJobFromUrl": queued,
        "createBatch": {"batchId": BATCH_ID, "mode": "independent", "jobs": [in_batch]},
        "listJobs": {
            "data": [_summary()],
            "hasMore": False,
            "nextCursor": None,
            "requestId": REQUEST_ID,
        },
        "getJob": job(JobState.COMPLETED, processedData=_PROCESSED),
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
        "volumeThresholdSeconds": pricing.VOLUME_THRESHOLD_SECONDS,
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
        "deliveredAt": "2026-03-02T09:17:32.410Z",
        "createdAt": _ENDED,
    }
    return {
        "getQuota": {"api": quota},
        "listWebhookDeliveries": [delivery],
        "sendTestWebhook": {"delivered": True, "statusCode": 204, "latencyMs": 85},
        "getPricing": price_table(),
        "estimatePrice": _estimate(),
        "listFormats": _formats(),
        "listKeys": [_KEY],
        "getKeysPortal": {"url": f"{ORIGIN}/portal/…"},
        "rotateKey": _KEY | {"key": "vas_live_…"},
        "getWebhookSecret": _SECRET,
        "rotateWebhookSecret": _SECRET | {"rotatedAt": _ENDED},
    }


FILES: dict[str, str] = {
    "application/x-subrip": "1\n00:00:01,200 --> 00:00:02,060\nGood morning.\n",
    "text/vtt": "WEBVTT\n\n00:01.200 --> 00:02.060\n<v Speaker 1>Good morning.\n",
    "text/plain": "Speaker 1: Good morning.\n",
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
    if kind == "webhook.test":
        message = {"message": "This is a test event. No job has ended."}
        return {"type": kind, "timestamp": _ENDED, "data": message}
    states = {"job.cancelled": JobState.CANCELLED, "job.completed": JobState.COMPLETED}
    if kind in states:
        return {"type": kind, "timestamp": _ENDED, "data": job(states[kind])}
    failure = {"code": "FETCH_FAILED", "message": "The source answered 404."}
    shown = job(
        JobState.FAILED,
        completedAt=_ENDED,
        error=failure,
        errorMessage=failure["message"],
        status="FAILED_FETCH",
    )
    shown["stages"] = {
        "ingest": {"status": "failed", "progress": 0.0, "error": failure},
        "vision": {"status": "skipped", "progress": 0.0, "reason": "job_failed"},
        "transcript": {"status": "skipped", "progress": 0.0, "reason": "job_failed"},
    }
    return {"type": kind, "timestamp": _ENDED, "data": shown}
