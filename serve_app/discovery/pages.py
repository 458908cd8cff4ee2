"""``/docs``: the reference and the error reference, open to everybody, all assets our own.

The pages are built once a process from the interface document; they hold nothing
of the request, so that one copy serves all.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from markdown_it import MarkdownIt
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from pipelines.types import StageCode, WarningCode
from serve_app.api.envelope import as_json, templates
from serve_app.api.schemas import OPTIONAL_FIELDS, REQUIRED_FIELDS
from serve_app.errors import CATALOGUE, ErrorCode

_STATIC = Path(__file__).parent / "static"
_ASSETS = {"docs.css": "text/css", "docs.js": "text/javascript"}

HEADERS = {
    "Cache-Control": "public, max-age=300",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Bytes to serve, with their type and version."""

    content: bytes
    media_type: str
    etag: str


def _page(content: bytes, media_type: str) -> DocumentPage:
    return DocumentPage(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@lru_cache(maxsize=1)
def _reference(app: FastAPI) -> DocumentPage:
    return _page(reference_page(app.openapi()).encode(), "text/html")


@lru_cache(maxsize=1)
def _errors(app: FastAPI) -> DocumentPage:
    return _page(errors_page(app.openapi()).encode(), "text/html")


@lru_cache(maxsize=1)
def _protocols() -> dict[str, tuple[str, str]]:
    """Return the title and the text of each protocol, by the name of its page."""
    whole = (Path(__file__).parent / "protocols.md").read_text(encoding="utf-8")
    titled = [part.partition("\n") for part in whole.split("\n## ")]
    (_, _, introduction), *parts = titled
    return {
        title.split()[0].lower(): (title, f"# {title}\n{introduction}\n{text}")
        for title, _, text in parts
    }


@lru_cache(maxsize=8)
def _protocol(name: str) -> DocumentPage:
    title, text = _protocols()[name]
    content = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    pages = {each: of for each, (of, _) in _protocols().items()}
    template = templates(TEMPLATES).get_template("protocol.html")
    shown = template.render(title=title, content=content, pages=pages)
    return _page(shown.encode(), "text/html")


@lru_cache(maxsize=len(_ASSETS))
def _asset(name: str) -> DocumentPage:
    return _page((_STATIC / name).read_bytes(), _ASSETS[name])


def _answer(request: Request, page: DocumentPage) -> Response:
    headers = HEADERS | {"ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.content, media_type=page.media_type, headers=headers)


@router.get("/")
async def get_root(request: Request) -> Response:
    """The dashboard for a browser, the reference for a client."""
    is_browser = "text/html" in request.headers.get("accept", "")
    return RedirectResponse("/dashboard" if is_browser else "/docs", status_code=307)


@router.get("/docs")
async def get_reference(request: Request) -> Response:
    """The reference page."""
    return _answer(request, await run_in_threadpool(_reference, request.app))


@router.get("/docs/errors")
async def get_error_reference(request: Request) -> Response:
    """The error reference."""
    return _answer(request, await run_in_threadpool(_errors, request.app))


@router.get("/docs/protocols/{name}")
async def get_protocol(request: Request, name: str) -> Response:
    """The page of another service's interface."""
    if name not in _protocols():
        raise HTTPException(404)
    return _answer(request, await run_in_threadpool(_protocol, name))


@router.get("/docs/assets/{name}")
async def get_asset(request: Request, name: str) -> Response:
    """A style sheet or script of the pages."""
    if name not in _ASSETS:
        raise HTTPException(404)
    return _answer(request, _asset(name))


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
    """Return whether and when to send the same request again."""
    if code in _RETRY:
        return _RETRY[code]
    wait_seconds = CATALOGUE[code].retry_after_seconds
    return "No." if wait_seconds is None else f"Yes, after `Retry-After`: {wait_seconds} seconds."


def errors_page(document: dict[str, Any]) -> str:
    """Return the whole page as HTML, from the interface document."""
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    return (
        templates(TEMPLATES)
        .get_template("errors.html")
        .render(
            entries=[_error(code, document, operations) for code in ErrorCode],
            operations=len(operations),
            reasons=[(f"`{name}`", text) for name, text in REASONS.items()],
            job_errors=[(code, *texts) for code, texts in JOB_ERRORS.items()],
            warnings=[(code, code.sentence) for code in WarningCode],
        )
    )


def _error(
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


TEMPLATES = Path(__file__).parent / "templates"
_CREDENTIALS = {
    "bearerKey": ("API key", "$VAS_KEY"),
    "session": ("dashboard session", "$VAS_SESSION"),
}


def reference_page(document: dict[str, Any]) -> str:
    """Return the whole page as HTML."""
    entries = [
        _operation(path, method.upper(), operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    template = templates(TEMPLATES).get_template("reference.html")
    protocols = {name: title for name, (title, _) in _protocols().items()}
    return template.render(document=document, entries=entries, protocols=protocols)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    words = (operation["operationId"], method, path, operation["summary"])
    schemes = [name for scheme in operation["security"] for name in scheme]
    errors = [
        (status, code)
        for status, response in operation["responses"].items()
        for code in response.get("content", {}).get("application/json", {}).get("examples", ())
    ]
    return {
        "path": path,
        "method": method,
        "operation": operation,
        "search": " ".join(words).lower(),
        "credential": _CREDENTIALS[schemes[0]][0] if schemes else "no credential",
        "sample": curl_sample(path, method, operation),
        "errors": errors,
    }


def curl_sample(path: str, method: str, operation: dict[str, Any]) -> str:
    """Return a command that calls the operation."""
    query = "&".join(
        f"{parameter['name']}={parameter['schema']['examples'][0]}"
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["required"]
    )
    path = path.replace("{", "$").replace("}", "")
    verb = "" if method == "GET" else f"-X {method} "
    lines = [f'curl {verb}"$BASE_URL{path}{"?" + query if query else ""}"']
    for scheme in operation["security"][:1]:
        lines += [f'-H "Authorization: Bearer {_CREDENTIALS[name][1]}"' for name in scheme]
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(as_json(example))}"]
    return " \\\n  ".join(lines)
