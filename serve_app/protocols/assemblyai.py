"""AssemblyAI's interface for recordings: uploads and transcripts below ``/v2``.

An upload is a job that waits for its options; the request for a transcript gives it those.
Source of names, states and errors: AssemblyAI's API reference, "Transcripts", and the models of its
Python SDK, 1.x.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from pipelines.across.redaction_patterns import PersonalData
from pipelines.speech.caption_rules import USUAL
from serve_app.api.authentication import CurrentAccount, CurrentJob
from serve_app.api.envelope import Context, ExactJSONResponse, base_url, public_url
from serve_app.api.parameters import parse_json_object, read_bounded
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError, ExpiredSignatureError
from serve_app.errors import ApiError, invalid
from serve_app.jobs import service
from serve_app.jobs.plans import Planner, plan_from_url, plan_upload
from serve_app.jobs.schemas import MAX_KEYTERMS, CreateJobBody, CreateJobFromUrlBody
from serve_app.protocols import answers, base
from serve_app.uploads.access import open_slot, record_complete, resumable_key
from serve_app.uploads.receiving import closing_unread, content_length, keep, upload_limiter
from storage import jobs
from storage.job_records import JobRecord
from storage.uploads import MEDIA_SLOT

_UPLOAD = "assemblyai-upload"
"""What the signature of an upload's address is for."""
_UPLOAD_PATH = re.compile(r"/v2/upload/([0-9a-f-]{36})/([0-9]+)/([0-9a-f]{32})$")
"""A proxy may have put a prefix before it."""
_POLICIES = {
    "banking_information": PersonalData.IBAN,
    "credit_card_number": PersonalData.CARD,
    "email_address": PersonalData.EMAIL,
    "location": PersonalData.PLACE,
    "person_name": PersonalData.NAME,
    "phone_number": PersonalData.PHONE,
    "us_social_security_number": PersonalData.NATIONAL_NUMBER,
}
_REFUSED = frozenset(
    (
        "audio_end_at", "audio_start_from", "auto_chapters", "auto_highlights", "content_safety",
        "custom_spelling", "entity_detection", "filter_profanity", "iab_categories",
        "redact_pii_audio", "redact_pii_return_unredacted", "sentiment_analysis",
        "speech_understanding", "summarization", "webhook_auth_header_name",
    )
)  # fmt: skip
"""Options whose results the service does not have; those that change no word are ignored."""


class AssemblyAIRoute(base.ProtocolRoute):
    """A route that takes the key alone in ``Authorization``, with AssemblyAI's errors."""

    @staticmethod
    def key(request: Request) -> str | None:
        given = request.headers.get("authorization", "").strip()
        return given if given and " " not in given else None

    @staticmethod
    def failure(request: Request, error: ApiError) -> Response:
        body = {"error": error.message} | ({"param": error.param} if error.param else {})
        headers = base.answer_headers(request, error)
        return ExactJSONResponse(body, status_code=error.status, headers=headers)


class Asked(BaseModel):
    """The body of a request for a transcript."""

    model_config = ConfigDict(extra="allow")

    audio_url: str
    language_code: str | None = None
    language_detection: bool | None = None
    language_codes: list[str] | None = None
    speaker_labels: bool | None = None
    speakers_expected: int | None = None
    multichannel: bool | None = None
    dual_channel: bool | None = None
    word_boost: list[str] = Field(default_factory=list)
    keyterms_prompt: list[str] = Field(default_factory=list)
    redact_pii: bool | None = None
    redact_pii_policies: list[str] = Field(default_factory=list)
    webhook_url: str | None = None

    def job(self) -> dict[str, Any]:
        """Return the fields of the native request. Raises INVALID_REQUEST, naming an option whose
        result the service does not have."""
        for name, value in (self.model_extra or {}).items():
            if name in _REFUSED and value:
                raise invalid(f"{name} is not supported.", name)
        terms = [*self.word_boost, *self.keyterms_prompt][:MAX_KEYTERMS]
        detects = self.language_detection or not self.language_code
        apart = self.multichannel or self.dual_channel
        return {
            "processingMode": "transcript",
            **({} if detects else {"language": _tag(self.language_code or "")}),
            **({"languages": [*map(_tag, self.language_codes)]} if self.language_codes else {}),
            **({"speakersExpected": self.speakers_expected} if self.speakers_expected else {}),
            **({"channels": "separate"} if apart else {}),
            **({"keyterms": terms} if terms else {}),
            **({"redact": self._redacted()} if self.redact_pii else {}),
            **({"callbackUrl": self.webhook_url} if self.webhook_url else {}),
        }

    def _redacted(self) -> list[str]:
        others = [each for each in self.redact_pii_policies if each not in _POLICIES]
        if others or not self.redact_pii_policies:
            known = ", ".join(_POLICIES)
            message = f"Not supported: {', '.join(others) or 'no policy'}. Policies: {known}."
            raise invalid(message, "redact_pii_policies")
        return [*dict.fromkeys(str(_POLICIES[each]) for each in self.redact_pii_policies)]

    def protocol(self) -> dict[str, Any]:
        """Return what the answers follow from."""
        shown = {"audio_url", "speaker_labels", "multichannel", "dual_channel", "webhook_url"}
        return {"name": "assemblyai", **self.model_dump(include=shown, exclude_none=True)}


def _tag(code: str) -> str:
    """Return ``en_us`` in BCP 47."""
    language, _, region = code.partition("_")
    return f"{language}-{region.upper()}" if region else language


router = APIRouter(prefix="/v2", route_class=AssemblyAIRoute, include_in_schema=False)


@router.post("/upload")
async def upload(request: Request, context: Context, account_id: CurrentAccount) -> Response:
    """Store a file; answer with an address for ``audio_url``, good while the job awaits it."""
    length = content_length(request)
    if length == 0:
        raise invalid("The body has no file.", "body")
    named = {"fileName": "audio", "processingMode": "transcript"}
    body = base.checked(CreateJobBody, named | ({"fileSizeBytes": length} if length else {}))
    with closing_unread(request), contextlib.ExitStack() as held:
        await base.place_among_uploads(held, request, account_id)
        plan = lambda planner: plan_upload(planner, body)  # noqa: E731
        job = await base.create(request, context, account_id, plan)
        try:
            slot = await open_slot(context, str(job.id), MEDIA_SLOT)
            received, key = await keep(request, context, upload_limiter(request), slot)
        except BaseException:
            await base.forget(context, job)
            raise
    if job.upload_expires_at is None:
        raise ValueError("The job takes no upload.")
    path = f"/v2/upload/{job.id}/{received}/{key[-32:]}"
    signed = context.signer.sign_path(
        _UPLOAD, path, expires_at=int(job.upload_expires_at.timestamp())
    )
    return ExactJSONResponse({"upload_url": public_url(request) + signed})


@router.post("/transcript")
async def transcribe(request: Request, context: Context, account_id: CurrentAccount) -> Response:
    """Have what lies at ``audio_url`` transcribed: an upload, or any address."""
    limit = context.settings.max_body_bytes
    asked = base.checked(Asked, parse_json_object(await read_bounded(request, limit)))
    if found := _uploaded(context, asked.audio_url):
        job = await _start(request, context, account_id, asked, *found)
    else:
        body = base.checked(CreateJobFromUrlBody, asked.job() | {"url": asked.audio_url})
        plan = lambda planner: plan_from_url(planner, body)  # noqa: E731
        job = await base.create(request, context, account_id, plan, asked.protocol())
    return ExactJSONResponse(_document(job, None))


def _uploaded(context: AppContext, url: str) -> tuple[str, int, str] | None:
    """Return the job, the bytes and the end of the key of an upload; None for other addresses.

    Raises INVALID_REQUEST once its time is over, and for one that is not signed.
    """
    parts = urlsplit(url)
    found = _UPLOAD_PATH.search(parts.path)
    query = parse_qs(parts.query)
    if found is None:
        return None
    try:
        context.signer.check_path(
            _UPLOAD,
            found[0],
            expires="".join(query.get("expires", ())),
            signature="".join(query.get("signature", ())),
        )
    except ExpiredSignatureError as error:
        raise invalid("The upload is over: send the file again.", "audio_url") from error
    except BadSignatureError as error:
        raise invalid("This is no address of an upload.", "audio_url") from error
    return found[1], int(found[2]), found[3]


async def _start(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    asked: Asked,
    job_id: str,
    size_bytes: int,
    mark: str,
) -> JobRecord:
    """Give an upload's job its options, and queue it."""
    body = base.checked(CreateJobBody, asked.job() | {"fileName": "audio"})
    planner = Planner(context.settings, context.encrypter, account_id, base_url(request))
    planned = base.through(plan_upload(planner, body).job, asked.protocol())
    async with context.database.transaction() as connection:
        job = await service.get_job(connection, account_id, job_id)
        if not await jobs.change_awaiting(connection, job.id, planned):
            raise invalid("The upload was used: send the file again.", "audio_url")
    key = f"{resumable_key(job.id, MEDIA_SLOT)}-{mark}"
    await record_complete(context, job.id, MEDIA_SLOT, size_bytes, key)
    return await context.database.read(service.get_job, account_id, job_id)


@router.get("/transcript/{jobId}")
async def read_transcript(context: Context, job: CurrentJob) -> Response:
    """Read a transcript, or how far it is."""
    spoken = None
    if job.erased_at is None and answers.assemblyai_status(job) == "completed":
        spoken = await answers.read_spoken(context.database, job)
    return ExactJSONResponse(await run_in_threadpool(_document, job, spoken))


@router.get("/transcript/{jobId}/sentences")
async def read_sentences(context: Context, job: CurrentJob) -> Response:
    """Read the sentences."""
    return await _runs(context, job, "sentences")


@router.get("/transcript/{jobId}/paragraphs")
async def read_paragraphs(context: Context, job: CurrentJob) -> Response:
    """Read the sentences by paragraph."""
    return await _runs(context, job, "paragraphs")


async def _runs(context: AppContext, job: JobRecord, kind: str) -> Response:
    _require_completed(job)
    spoken = await answers.read_spoken(context.database, job)
    segments, letters = spoken.found.segments, answers.letters_of(job, spoken)
    runs = answers.paragraphs(segments) if kind == "paragraphs" else [[each] for each in segments]
    return ExactJSONResponse(
        {
            "id": str(job.id),
            kind: [answers.assemblyai_run(each, letters) for each in runs],
            "confidence": answers.mean_confidence(segments),
            "audio_duration": round(spoken.duration_seconds),
        }
    )


@router.get("/transcript/{jobId}/{form}")
async def read_captions(
    request: Request,
    context: Context,
    job: CurrentJob,
    form: Literal["srt", "vtt"],
    chars_per_caption: int = USUAL.line_columns,
) -> Response:
    """Read the transcript as a file of captions."""
    _require_completed(job)
    columns = min(120, max(12, chars_per_caption))
    return PlainTextResponse(await base.captions(request, context, job, form, columns=columns))


@router.delete("/transcript/{jobId}")
async def delete_transcript(context: Context, job: CurrentJob) -> Response:
    """Erase the job, which is cancelled first where it has not ended."""
    erased = await context.database.write(service.erase_job, job.account_id, str(job.id))
    return ExactJSONResponse(_document(erased, None))


def _require_completed(job: JobRecord) -> None:
    status = "erased" if job.erased_at else answers.assemblyai_status(job)
    if status != "completed":
        raise invalid(f"The transcript is not completed: it is {status}.")


def _document(job: JobRecord, spoken: answers.Spoken | None) -> dict[str, Any]:
    status, protocol = answers.assemblyai_status(job), job.source.protocol
    clips = job.source.clips
    document: dict[str, Any] = {
        "id": str(job.id),
        "status": status,
        "audio_url": protocol.get("audio_url") or (clips[0].url if clips else job.file_name),
        "punctuate": True,
        "format_text": True,
        **{name: protocol.get(name) for name in ("speaker_labels", "multichannel", "webhook_url")},
        "language_code": job.source.language,
        "text": None,
        "words": None,
        "utterances": None,
        "confidence": None,
        "audio_duration": job.duration_ms and round(job.duration_ms / 1000),
    }
    if job.erased_at is not None:
        return document | {"text": "Deleted by user.", "status": "completed"}
    if status == "error":
        document["error"] = job.error_message or job.redact_error or answers.NO_TRANSCRIPT
    if spoken is None:
        return document
    segments, letters = spoken.found.segments, answers.letters_of(job, spoken)
    said = (
        [answers.assemblyai_run(each, letters) for each in answers.turns(spoken.found)]
        if letters
        else None
    )
    return document | {
        "text": spoken.text,
        "language_code": spoken.language,
        "words": [
            answers.assemblyai_word(word, letters) for each in segments for word in each.words
        ],
        "utterances": said,
        "confidence": answers.mean_confidence(segments),
    }
