"""The error reference that ``docUrl`` leads to: every code, what it means, what to do."""

from __future__ import annotations

from pipelines.types import StageCode
from serve_app.api.html import (
    Child,
    Html,
    code_block,
    join,
    page,
    prose,
    table,
    tag,
)
from serve_app.discovery import examples
from serve_app.discovery.components_errors import OPTIONAL_FIELDS, REQUIRED_FIELDS
from serve_app.discovery.operations import OPERATIONS
from serve_app.discovery.pages_schemas import as_json
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


def errors_page() -> Html:
    """The whole page."""
    return page(
        "Error reference",
        tag(
            "header",
            tag("h1", "Error reference"),
            tag(
                "p",
                prose(
                    "Every error has this envelope. Branch on `code`; the message may change. "
                    "`param` is there when one field is to blame."
                ),
            ),
            code_block(as_json(examples.error(ErrorCode.INVALID_REQUEST))),
        ),
        *(_entry(code) for code in ErrorCode),
        _job_errors(),
        nav=_navigation(),
    )


def _navigation() -> Html:
    by_status: dict[int, list[ErrorCode]] = {}
    for code in ErrorCode:
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    groups = [
        tag("section", tag("h2", str(status)), tag("ul", *map(_nav_item, codes)))
        for status, codes in sorted(by_status.items())
    ]
    return join(
        tag("a", "Video Analysis Service", class_="brand", href="/docs"),
        tag(
            "input",
            type="search",
            id="filter",
            placeholder="Filter (press /)",
            aria_label="Filter errors",
            autocomplete="off",
        ),
        tag(
            "ul",
            tag("li", tag("a", "API reference", href="/docs")),
            tag("li", tag("a", "Job and stage errors", href="#job-errors")),
            class_="pages",
        ),
        *groups,
        tag("p", "Nothing fits.", id="nothing", hidden=True),
    )


def _nav_item(code: ErrorCode) -> Html:
    return tag("li", tag("a", tag("code", str(code)), href=f"#{code}"), data_search=code.lower())


def _entry(code: ErrorCode) -> Html:
    entry = CATALOGUE[code]
    facts: list[list[Child]] = [
        ["What to do", prose(entry.remedy)],
        ["Retry", prose(retry_rule(code))],
        ["Answered by", _answered_by(code)],
    ]
    return tag(
        "article",
        tag(
            "h2",
            tag("a", tag("code", str(code)), href=f"#{code}", class_="self"),
            " ",
            tag("span", str(entry.status), class_="status"),
        ),
        tag("p", prose(entry.summary)),
        table(["", ""], facts, class_="facts"),
        _extra_fields(code),
        _reasons() if code is ErrorCode.RESULTS_UNAVAILABLE else None,
        tag("details", tag("summary", "Example"), code_block(as_json(examples.error(code)))),
        id=str(code),
        data_search=f"{code} {entry.status} {entry.summary}".lower(),
    )


def _answered_by(code: ErrorCode) -> Html:
    names = [operation.operation_id for operation in OPERATIONS if code in operation.all_errors]
    if not names:
        return join("no operation")
    if len(names) == len(OPERATIONS):
        return join("every operation")
    links = [tag("a", name, href=f"/docs#op-{name}") for name in names]
    return join(*(item for link in links for item in (link, " ")))


def _extra_fields(code: ErrorCode) -> Html | None:
    fields = REQUIRED_FIELDS.get(code, {}) | OPTIONAL_FIELDS.get(code, {})
    if not fields:
        return None
    rows: list[list[Child]] = [
        [tag("code", name), "always" if name in REQUIRED_FIELDS[code] else "where it applies"]
        for name in fields
    ]
    return join(tag("h3", "Extra fields"), table(["Field", "Present"], rows))


def _reasons() -> Html:
    rows: list[list[Child]] = [[tag("code", name), prose(text)] for name, text in REASONS.items()]
    return join(tag("h3", prose("Values of `reason`")), table(["Reason", "Meaning"], rows))


def _job_errors() -> Html:
    rows: list[list[Child]] = [
        [tag("code", str(code), id=f"job-{code}"), stage, prose(text)]
        for code, (stage, text) in JOB_ERRORS.items()
    ]
    return tag(
        "article",
        tag("h2", tag("a", "Job and stage errors", href="#job-errors", class_="self")),
        tag(
            "p",
            prose(
                "These are no HTTP errors: they stand in a job's `error.code` when its `state` is "
                "`failed`, and in `stages.<stage>.error.code`. A failed stage is never charged; "
                "completed stages are charged and stay readable. Resubmitting with one "
                "`processingMode` charges only the missing stage."
            ),
        ),
        table(["Code", "Stage", "Meaning"], rows),
        id="job-errors",
        data_search=" ".join(JOB_ERRORS).lower(),
    )
