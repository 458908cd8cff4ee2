"""OpenAI's audio interface: transcriptions, translations and models below ``/v1``.

A request is an ordinary job: planned, held, charged and listed as others are. It waits for its job
without a place of the database, cancels it when the client goes away, and has it erased after the
answer unless its account has chosen how long jobs are kept.
Source of names, formats, events and errors: OpenAI's API reference, "Audio", and the models of its
Python SDK, 2.x.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import math
import re
import time
import uuid
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message

from pipelines.across.voices import recognise
from pipelines.types import SpeakerVoice, TranscriptResult, TranscriptSegment
from serve_app import __version__
from serve_app.api.authentication import CurrentAccount
from serve_app.api.downloads import Download, downloads_of
from serve_app.api.envelope import NO_STORE, Context, ExactJSONResponse
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.jobs.schemas import MAX_KEYTERMS, CreateJobBody
from serve_app.protocols import base
from serve_app.protocols.answers import Spoken, read_spoken
from serve_app.results.routes import TranslationBody, create_translation
from serve_app.results.transcripts import default_track, read_tracks
from serve_app.uploads.receiving import closing_unread, content_length
from storage.job_records import JobRecord
from storage.translations import find_translation
from storage.types import TranslationStatus
from storage.voices import list_speakers

PREFIX = "/v1"
MODELS = ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-4o-transcribe-diarize")
"""Names that clients send; each of them means the transcriber that the service runs."""
_MOST_FIELDS = 64
_FIELD_BYTES = 4 * 1024**2
"""Of a field: ten seconds of sound in base64, uncompressed."""
_FORM_BYTES = 17 * 1024**2
"""Of the multipart body beside its file."""
_REFERENCES = "known_speaker_references"
_PIECE_BYTES = 1024**2
_TRANSLATION_SECONDS = 1.0
"""How often a request looks whether its translation is made."""
_TERM_WORDS = 5
"""A part of a prompt with more words is a sentence: of that the names are key terms."""


class Form(BaseModel):
    """The fields of both operations, beside ``file``."""

    model_config = ConfigDict(extra="ignore")

    model: str
    language: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"] = "json"
    temperature: float = Field(0, ge=0, le=1)
    stream: bool = False
    timestamp_granularities: list[Literal["word", "segment"]] = []
    known_speaker_names: list[str] = Field([], max_length=4)
    known_speaker_references: list[str] = Field([], max_length=4)
    """Sound of each of them, as data URLs."""


_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class OpenAIRoute(base.ProtocolRoute):
    """A route whose errors have OpenAI's form, by which its SDKs raise their own exceptions."""

    @staticmethod
    def failure(request: Request, error: ApiError) -> Response:
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        code = "invalid_api_key" if error.status == 401 else str(error.code)
        body: dict[str, Any] = {
            "message": error.message,
            "type": _TYPES.get(error.status, kind),
            "param": error.param,
            "code": error.extra.get("stageCode", code),
        }
        if "jobId" in error.extra:
            body["jobId"] = error.extra["jobId"]
        headers = base.answer_headers(request, error)
        return ExactJSONResponse({"error": body}, status_code=error.status, headers=headers)


router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute, include_in_schema=False)


@router.get("/models")
async def list_models() -> Response:
    """List the names by which the transcriber may be called."""
    return ExactJSONResponse({"object": "list", "data": [_model(name) for name in MODELS]})


@router.get("/models/{model}")
async def get_model(model: str) -> Response:
    """Read one of these names; NOT_FOUND for others."""
    return ExactJSONResponse(_model(_known(model)))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": f"vas-{__version__}"}


def _known(model: str) -> str:
    if model not in MODELS:
        message = f"There is no model {model!r}. Models: {', '.join(MODELS)}."
        raise ApiError(ErrorCode.NOT_FOUND, message, param="model")
    return model


@router.post("/audio/transcriptions")
async def transcribe(
    request: Request, context: Context, account_id: CurrentAccount, resources: base.Resources
) -> Response:
    """Transcribe a file; its words are in the answer."""
    return await _answer(request, context, account_id, resources, translates=False)


@router.post("/audio/translations")
async def translate(
    request: Request, context: Context, account_id: CurrentAccount, resources: base.Resources
) -> Response:
    """Transcribe a file; its words are in the answer, in English."""
    return await _answer(request, context, account_id, resources, translates=True)


async def _answer(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    resources: contextlib.AsyncExitStack,
    *,
    translates: bool,
) -> Response:
    resources.enter_context(base.WAITING.place(account_id))
    async with _sent(request, context, account_id) as (form, file):
        asked = _form_of(form)
        if asked.known_speaker_names and not context.settings.voices:
            message = "This service does not recognise voices (VAS_VOICES)."
            raise invalid(message, "known_speaker_names")
        references = [
            await _create_reference(request, context, account_id, each, resources)
            for each in asked.known_speaker_references
        ]
        asked.known_speaker_references.clear()
        job = await _create(request, context, account_id, asked, file)
    goes_on = asyncio.Event()
    resources.push_async_callback(base.forget, context, job, goes_on)
    try:
        for each in references:
            await base.wait_for_end(request, context, each.id, asyncio.Event())
    except ApiError as error:
        error.param = _REFERENCES
        raise
    if asked.stream and not translates:
        place = resources.enter_context(downloads_of(request, Download.EVENTS).place(account_id))
        body = _events(request, context, job, asked, references, goes_on)
        return place.stream(body, media_type="text/event-stream", headers=NO_STORE)
    ended = await base.wait_for_end(request, context, job.id, goes_on)
    language = await _translated(request, context, ended) if translates else None
    task = "translate" if translates else "transcribe"
    return await _rendered(request, context, ended, asked, references, task, language)


async def _create_reference(
    request: Request,
    context: AppContext,
    account_id: uuid.UUID,
    address: str,
    resources: contextlib.AsyncExitStack,
) -> JobRecord:
    """Create the job that finds out what a known speaker sounds like; it is erased with the
    request's resources."""
    try:
        content = base64.b64decode(address.partition(";base64,")[2], validate=True)
    except binascii.Error as error:
        raise invalid("A reference is no data URL in base64.", _REFERENCES) from error
    if not content:
        raise invalid("A reference is empty, or no data URL in base64.", _REFERENCES)
    named = {"fileName": "reference", "fileSizeBytes": len(content)}
    options = named | {"processingMode": "transcript", "voices": True, "speakersExpected": 1}
    body = base.checked(CreateJobBody, options)
    job = await base.create_sent(request, context, account_id, body, base.received(content))
    resources.push_async_callback(base.forget, context, job)
    return job


async def _named(
    context: AppContext,
    spoken: Spoken,
    job: JobRecord,
    asked: Form,
    references: Sequence[JobRecord],
) -> Spoken:
    """Return what is spoken with the names of the known speakers."""
    if not references:
        return spoken
    async with context.database.statement() as connection:
        heard = await list_speakers(connection, job.id)
        known = [
            (name, vector)
            for name, each in zip(asked.known_speaker_names, references, strict=True)
            for _, vector in (await list_speakers(connection, each.id))[:1]
        ]
    found = [SpeakerVoice(speaker, tuple(vector.tolist())) for speaker, vector in heard]
    names = await run_in_threadpool(recognise, found, known)
    speakers = tuple(
        replace(each, label=names.get(each.id, each.label)) for each in spoken.found.speakers
    )
    return replace(spoken, found=replace(spoken.found, speakers=speakers))


@contextlib.asynccontextmanager
async def _sent(
    request: Request, context: AppContext, account_id: uuid.UUID
) -> AsyncIterator[tuple[FormData, UploadFile]]:
    """Yield the form and its file, which lies on the local disk until the block ends.

    Raises FILE_TOO_LARGE before a byte of a file that is declared too large is read, 408 for a
    client that is slower than the least rate.
    """
    limit = context.settings.standard_max_bytes + _FORM_BYTES
    with closing_unread(request):
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Send multipart/form-data.", status=415)
        if (content_length(request) or 0) > limit:
            raise base.too_large(limit)
        with contextlib.ExitStack() as held:
            await base.place_among_uploads(held, request, account_id)
            limited = Request(request.scope, base.bounded(request, limit))
            try:
                form = await limited.form(
                    max_files=1, max_fields=_MOST_FIELDS, max_part_size=_FIELD_BYTES
                )
            except MultiPartException as error:
                raise invalid(f"The form cannot be read: {error.message}") from error
            request.state.body_read = True
            try:
                file = form.get("file")
                if not isinstance(file, UploadFile) or not file.size:
                    raise invalid("The form has no file, or an empty one.", "file")
                yield form, file
            finally:
                await form.close()


def _form_of(form: FormData) -> Form:
    """Return the fields. Raises INVALID_REQUEST, naming the one at fault; NOT_FOUND of a model."""
    given: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            if name.endswith("[]"):
                given.setdefault(name.removesuffix("[]"), []).append(value)
            else:
                given[name] = value
    asked = base.checked(Form, given)
    _known(asked.model)
    if len(asked.known_speaker_names) != len(asked.known_speaker_references):
        raise invalid("Each name needs a reference.", "known_speaker_references")
    return asked


def key_terms(prompt: str) -> list[str]:
    """Return the key terms of a prompt: its parts between commas and lines; of a sentence the words
    with a capital or a digit behind its first one."""
    terms: list[str] = []
    for part in re.split(r"[,;\n]|(?<=[.!?])\s", prompt):
        words = part.strip(" .!?").split()
        if len(words) > _TERM_WORDS:
            named = (each.strip(".!?:\"'()") for each in words[1:])
            terms += [each for each in named if re.search(r"[A-Z0-9]", each)]
        elif words:
            terms.append(" ".join(words))
    return [each[:100] for each in dict.fromkeys(terms)][:MAX_KEYTERMS]


async def _create(
    request: Request, context: AppContext, account_id: uuid.UUID, asked: Form, file: UploadFile
) -> JobRecord:
    """Create the job and give it its file."""
    name = PurePosixPath(file.filename or "").name or "audio"
    body: dict[str, Any] = {
        "fileName": name[-255:],
        "fileSizeBytes": file.size,
        "processingMode": "transcript",
    }
    if asked.language:
        body["language"] = asked.language
    if asked.known_speaker_names:
        body["voices"] = True
    if terms := key_terms(asked.prompt):
        body["keyterms"] = terms
    return await base.create_sent(
        request, context, account_id, base.checked(CreateJobBody, body), _pieces(file)
    )


def _pieces(file: UploadFile) -> Callable[[], Any]:
    async def receive() -> Message:
        piece = await file.read(_PIECE_BYTES)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    return receive


async def _translated(request: Request, context: AppContext, job: JobRecord) -> str | None:
    """Have the transcript translated into English, and wait for that; return the language to read
    it in, None where it is in English already or nothing is said."""
    async with context.database.statement() as connection:
        spoken = default_track(await read_tracks(connection, job, words=False)).language
    if spoken in {None, "en"}:
        return None
    await create_translation(context, job, TranslationBody(language="en"))
    deadline = time.monotonic() + base.WAIT_SECONDS
    while time.monotonic() < deadline:
        found = await context.database.read(find_translation, job.id, "en")
        if found is None or found.status is not TranslationStatus.PENDING:
            return "en"
        if await request.is_disconnected():
            raise ApiError(ErrorCode.INVALID_REQUEST, "The client is gone.", status=499)
        await asyncio.sleep(_TRANSLATION_SECONDS)
    raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "The translation takes too long.")


async def _rendered(
    request: Request,
    context: AppContext,
    job: JobRecord,
    asked: Form,
    references: Sequence[JobRecord],
    task: str,
    language: str | None,
) -> Response:
    """Return the transcript as the form asks, translated into the ``language`` if one is given."""
    if asked.response_format in {"srt", "vtt"}:
        form: Literal["srt", "vtt"] = "srt" if asked.response_format == "srt" else "vtt"
        return PlainTextResponse(
            await base.captions(request, context, job, form, language=language)
        )
    spoken = await read_spoken(context.database, job, language)
    spoken = await _named(context, spoken, job, asked, references)
    if asked.response_format == "text":
        return PlainTextResponse(spoken.text + "\n")
    document = {"json": _plain, "verbose_json": _verbose, "diarized_json": _diarized}
    make = document[asked.response_format]
    return ExactJSONResponse(await run_in_threadpool(make, spoken, asked, task))


def _usage(spoken: Spoken) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(spoken.duration_seconds)}


def _plain(spoken: Spoken, _: Form, __: str) -> dict[str, Any]:
    return {"text": spoken.text, "usage": _usage(spoken)}


def _verbose(spoken: Spoken, asked: Form, task: str) -> dict[str, Any]:
    wanted = set(asked.timestamp_granularities) or {"segment"}
    document: dict[str, Any] = {
        "task": task,
        "language": spoken.language,
        "duration": spoken.duration_seconds,
        "text": spoken.text,
        "usage": _usage(spoken),
    }
    if "segment" in wanted:
        document["segments"] = [
            _segment(number, each, asked) for number, each in enumerate(spoken.found.segments)
        ]
    if "word" in wanted:
        document["words"] = [
            {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
            for each in spoken.found.segments
            for word in each.words
        ]
    return document


def _segment(number: int, segment: TranscriptSegment, asked: Form) -> dict[str, Any]:
    """Return a segment with Whisper's measures: the mean logarithm of its words' confidences, and
    how well its text compresses. Silence is cut before, so none is likely to have no speech."""
    raw = segment.text.encode()
    confidences = [max(word.confidence, 1e-4) for word in segment.words] or [1.0]
    return {
        "id": number,
        "seek": segment.start_ms // 10,
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "tokens": [],
        "temperature": asked.temperature,
        "avg_logprob": round(sum(map(math.log, confidences)) / len(confidences), 4),
        "compression_ratio": round(len(raw) / max(1, len(zlib.compress(raw))), 4),
        "no_speech_prob": 0.0,
    }


def _diarized(spoken: Spoken, _: Form, task: str) -> dict[str, Any]:
    return {
        "task": task,
        "duration": spoken.duration_seconds,
        "text": spoken.text,
        "segments": [*_turns(spoken.found)],
        "usage": _usage(spoken),
    }


def _turns(found: TranscriptResult) -> Iterator[dict[str, Any]]:
    labels = {each.id: each.label for each in found.speakers}
    for number, each in enumerate(found.segments):
        yield {
            "type": "transcript.text.segment",
            "id": f"seg_{number}",
            "start": each.start_ms / 1000,
            "end": each.end_ms / 1000,
            "text": each.text,
            "speaker": labels.get(each.speaker or "", "Speaker"),
        }


async def _events(
    request: Request,
    context: AppContext,
    job: JobRecord,
    asked: Form,
    references: Sequence[JobRecord],
    goes_on: asyncio.Event,
) -> AsyncGenerator[str | bytes]:
    """Yield comments while the job runs, then its text as OpenAI's events, segment by segment."""
    try:
        async for now in base.progress(request, context, job.id, goes_on):
            if now.completed_at is None:
                yield ": working\n\n"
                continue
            spoken = await read_spoken(context.database, base.completed(now))
            spoken = await _named(context, spoken, now, asked, references)
            for event in _deltas(spoken, diarized=asked.response_format == "diarized_json"):
                yield f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
            yield "data: [DONE]\n\n"
    except ApiError as error:
        yield f"event: error\ndata: {bytes(OpenAIRoute.failure(request, error).body).decode()}\n\n"


def _deltas(spoken: Spoken, *, diarized: bool) -> Iterator[dict[str, Any]]:
    segments: Sequence[dict[str, Any]] = [*_turns(spoken.found)]
    for number, each in enumerate(segments):
        yield {"type": "transcript.text.delta", "delta": (" " if number else "") + each["text"]}
        if diarized:
            yield each
    yield {"type": "transcript.text.done", "text": spoken.text, "usage": _usage(spoken)}
