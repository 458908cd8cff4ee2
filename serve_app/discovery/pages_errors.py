"""The error reference that ``docUrl`` leads to: every code, what it means, what to do."""

from __future__ import annotations

from typing import Any

from pipelines.types import StageCode, WarningCode
from serve_app.api.error_schemas import OPTIONAL_FIELDS, REQUIRED_FIELDS
from serve_app.api.html import templates
from serve_app.discovery.pages_reference import TEMPLATES
from serve_app.errors import CATALOGUE, ErrorCode

_RETRY: dict[ErrorCode, str] = {
    ErrorCode.INSUFFICIENT_CREDITS: "After topping up.",
    ErrorCode.RESULTS_UNAVAILABLE: "Never.",
    ErrorCode.THROTTLED: "Not in practice; `Retry-After` says 3600 seconds.",
    ErrorCode.RATE_LIMITED: "Yes, after `Retry-After` seconds: the rest of the minute.",
    ErrorCode.INTERNAL_ERROR: (
        "Yes, with exponential backoff and the same `Idempotency-Key`; there is no `Retry-After`."
    ),
}

REASONS: dict[str, str] = {
    "processing_mode": "The job's `processingMode` did not ask for it.",
    "audio_only_input": "The media has no picture.",
    "no_audio": "The media has no sound.",
    "stage_skipped": "The stage was skipped.",
    "stage_failed": "The stage failed; `errorCode` says why.",
    "track_failed": "This audio track could not be transcribed; others may be readable.",
    "job_cancelled": "The job was cancelled before the stage had ended.",
    "job_expired": "The upload never came.",
    "job_failed": "The job failed before the stage ran.",
    "job_erased": "The job's content was erased.",
}
"""``RESULTS_UNAVAILABLE.reason``."""

JOB_ERRORS: dict[StageCode, tuple[str, str]] = {
    StageCode.VALIDATION_FAILED: (
        "ingest",
        "The media is unsupported or corrupt, or over a limit such as the longest duration.",
    ),
    StageCode.INSUFFICIENT_CREDITS: (
        "ingest",
        "The balance did not cover the full file once its duration was known. Nothing is charged.",
    ),
    StageCode.FETCH_FAILED: (
        "ingest",
        "The source URL could not be downloaded: unreachable, an HTTP error, or an expired link "
        "or token.",
    ),
    StageCode.INGEST_FAILED: ("ingest", "The file could not be processed."),
    StageCode.EXTERNAL_AUDIO_FAILED: ("ingest", "A separate audio file could not be processed."),
    StageCode.VISION_FAILED: (
        "vision",
        "The analysis of scenes failed. Resubmit with `processingMode` `vision`.",
    ),
    StageCode.CONTENT_BLOCKED: (
        "vision",
        "The content is not permitted by the acceptable-use policy.",
    ),
    StageCode.TRANSCRIPT_FAILED: (
        "transcript",
        "The transcription failed. Resubmit with `processingMode` `transcript`.",
    ),
    StageCode.PROCESSING_FAILED: ("any", "Another failure."),
    StageCode.CANCELLED: ("any", "The stage was skipped because the job was cancelled."),
    StageCode.EXPIRED: ("any", "The job expired before the stage ran."),
}
"""Codes of jobs and stages: the stage, and what happened."""


def retry_rule(code: ErrorCode) -> str:
    """Whether and when to send the same request again."""
    if code in _RETRY:
        return _RETRY[code]
    wait_seconds = CATALOGUE[code].retry_after_seconds
    return "No." if wait_seconds is None else f"Yes, after `Retry-After`: {wait_seconds} seconds."


def errors_page(document: dict[str, Any]) -> str:
    """The whole page as HTML, from the interface document."""
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    return (
        templates(TEMPLATES)
        .get_template("errors.html")
        .render(
            entries=[_entry(code, document, operations) for code in ErrorCode],
            operations=len(operations),
            reasons=[(f"`{name}`", text) for name, text in REASONS.items()],
            job_errors=[(code, *texts) for code, texts in JOB_ERRORS.items()],
            warnings=[(code, code.meaning) for code in WarningCode],
        )
    )


def _entry(
    code: ErrorCode, document: dict[str, Any], operations: list[dict[str, Any]]
) -> dict[str, Any]:
    entry = CATALOGUE[code]
    required, optional = (table.get(code, {}) for table in (REQUIRED_FIELDS, OPTIONAL_FIELDS))
    fields = [(f"`{name}`", "always") for name in required]
    fields += [(f"`{name}`", "where it applies") for name in optional]
    reference = f"#/components/examples/{code}'"
    return {
        "code": str(code),
        "status": entry.status,
        "summary": entry.summary,
        "remedy": entry.remedy,
        "retry": retry_rule(code),
        "fields": fields,
        "example": document["components"]["examples"][code]["value"],
        "operations": [
            operation["operationId"]
            for operation in operations
            if reference in str(operation["responses"].get(str(entry.status)))
        ],
    }
