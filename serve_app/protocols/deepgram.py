"""Deepgram's interface for recordings: ``POST /v1/listen``.

Source of names, defaults and errors: Deepgram's API reference, "Pre-recorded audio", and the models
of its Python SDK, 7.x.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import CurrentAccount
from serve_app.api.envelope import Context, ExactJSONResponse, request_id
from serve_app.api.parameters import parse_json_object, read_bounded
from serve_app.context import AppContext
from serve_app.errors import ApiError, invalid
from serve_app.jobs.plans import plan_from_url
from serve_app.jobs.schemas import MAX_KEYTERMS, CreateJobBody, CreateJobFromUrlBody
from serve_app.protocols import base
from serve_app.protocols.answers import deepgram, read_spoken
from serve_app.uploads.receiving import closing_unread, content_length
from storage.job_records import JobRecord

_ERRORS = {
    401: "INVALID_AUTH",
    402: "ASR_PAYMENT_REQUIRED",
    403: "INSUFFICIENT_PERMISSIONS",
    413: "PAYLOAD_TOO_LARGE",
    429: "TOO_MANY_REQUESTS",
}
_WITHOUT_EFFECT = frozenset({"model", "version", "numerals", "encoding", "mip_opt_out"})
"""Options that a client sends of habit, and that no word of the answer depends on."""
_REPEATED = frozenset({"keyterm", "keywords", "tag", "extra"})


class DeepgramRoute(base.ProtocolRoute):
    """A route that takes ``Authorization: Token KEY`` too, with Deepgram's errors."""

    @staticmethod
    def key(request: Request) -> str | None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "token" else None

    @staticmethod
    def failure(request: Request, error: ApiError) -> Response:
        code = _ERRORS.get(error.status, "Bad Request" if error.status < 500 else str(error.code))
        body = {
            "err_code": code,
            "err_msg": error.message,
            "request_id": error.extra.get("jobId", request_id(request)),
        }
        headers = base.answer_headers(request, error)
        return ExactJSONResponse(body, status_code=error.status, headers=headers)


class Options(BaseModel):
    """The query of a request."""

    model_config = ConfigDict(extra="allow")

    callback: str | None = None
    callback_method: str = Field("post", pattern="(?i)^post$")
    language: str | None = None
    detect_language: bool = False
    diarize: bool = False
    diarize_model: str | None = None
    keyterm: list[str] = []
    keywords: list[str] = []
    multichannel: bool = False
    paragraphs: bool = False
    punctuate: bool = False
    smart_format: bool = False
    utterances: bool = False
    utt_split: float | None = Field(None, gt=0, le=60)
    tag: list[str] = []
    extra: list[str] = []
    redact: list[str] | str | None = None

    def warnings(self) -> list[dict[str, str]]:
        """Return a warning for each option that is not followed."""
        return [
            {"parameter": name, "type": "unsupported_option", "message": f"{name} was ignored."}
            for name, value in (self.model_extra or {}).items()
            if name not in _WITHOUT_EFFECT and value not in ("false", "")
        ]

    def job(self) -> dict[str, Any]:
        """Return the fields of the native request. Raises INVALID_REQUEST for what would be
        followed wrongly: a transcript without the redaction that was asked for."""
        if self.redact not in (None, "false"):
            raise invalid("Redaction has the native interface only: POST /jobs.", "redact")
        terms = [*self.keyterm, *(each.rpartition(":")[0] or each for each in self.keywords)]
        spoken = self.language not in (None, "multi") and not self.detect_language
        return {
            "processingMode": "transcript",
            **({"keyterms": terms[:MAX_KEYTERMS]} if terms else {}),
            **({"language": self.language} if spoken else {}),
            **({"channels": "separate"} if self.multichannel else {}),
            **({"callbackUrl": self.callback} if self.callback else {}),
        }

    def protocol(self) -> dict[str, Any]:
        """Return what the answer follows from."""
        return {
            "name": "deepgram",
            **self.model_dump(
                include={
                    "language", "detect_language", "multichannel", "paragraphs", "punctuate",
                    "smart_format", "utterances", "utt_split",
                },
                exclude_defaults=True,
            ),
            "diarize": self.diarize or self.diarize_model is not None,
            "tags": self.tag,
            "extra": dict(each.partition(":")[::2] for each in self.extra),
            "warnings": self.warnings(),
        }  # fmt: skip


router = APIRouter(prefix="/v1", route_class=DeepgramRoute, include_in_schema=False)


@router.post("/listen")
async def listen(
    request: Request, context: Context, account_id: CurrentAccount, resources: base.Resources
) -> Response:
    """Transcribe a file, or what is at an address; the words are in the answer or the callback."""
    query = request.query_params
    given = {name: query.getlist(name) if name in _REPEATED else query[name] for name in query}
    options = base.checked(Options, given)
    if options.callback is None:
        resources.enter_context(base.WAITING.place(account_id))
    if request.headers.get("content-type", "").startswith("application/json"):
        limit = context.settings.max_body_bytes
        url = parse_json_object(await read_bounded(request, limit)).get("url")
        body = base.checked(CreateJobFromUrlBody, options.job() | {"url": url})
        plan = lambda planner: plan_from_url(planner, body)  # noqa: E731
        job = await base.create(request, context, account_id, plan, options.protocol())
    else:
        job = await _sent(request, context, account_id, options)
    if options.callback is not None:
        return ExactJSONResponse({"request_id": str(job.id)})
    goes_on = asyncio.Event()
    resources.push_async_callback(base.forget, context, job, goes_on)
    ended = await base.wait_for_end(request, context, job.id, goes_on)
    spoken = await read_spoken(context.database, ended)
    return ExactJSONResponse(await run_in_threadpool(deepgram, ended, spoken))


async def _sent(
    request: Request, context: AppContext, account_id: uuid.UUID, options: Options
) -> JobRecord:
    """Create the job and store the body as its media; a job without it is cancelled."""
    length = content_length(request)
    if length == 0:
        raise invalid("The body has no file.", "body")
    named = {"fileName": "audio"} | ({"fileSizeBytes": length} if length else {})
    body = base.checked(CreateJobBody, options.job() | named)
    with closing_unread(request), contextlib.ExitStack() as held:
        await base.place_among_uploads(held, request, account_id)
        job = await base.create_sent(
            request, context, account_id, body, protocol=options.protocol()
        )
        request.state.body_read = True
    return job
