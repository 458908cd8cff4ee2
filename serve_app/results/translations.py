"""Transcripts in other languages: requested, and what became of that."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated, NotRequired

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from models.contracts import written_language
from models.profiles import translation_targets
from serve_app import pricing
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, success, timestamp
from serve_app.api.openapi import OF_RESULTS, errors
from serve_app.api.schemas import Answer, Count, Timestamp, Uuid, doc
from serve_app.errors import CREDITS_OR_CAP, ApiError, ErrorCode, invalid
from serve_app.results.availability import no_result, require_stage
from storage import jobs, keys, ledger, results, translations
from storage.audit import AuditAction, record
from storage.database import Connection
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.translations import Translation
from storage.types import StageName, TranslationStatus

LanguageTag = Annotated[
    str, Field(max_length=60, pattern="^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,6}$")
]
_LanguagePath = Annotated[
    LanguageTag, Path(description="BCP 47; its region makes no difference.", examples=["en"])
]


class TranslationBody(BaseModel):
    """Body of ``POST /jobs/{jobId}/translations``."""

    model_config = ConfigDict(strict=True, extra="ignore")
    language: Annotated[LanguageTag, doc("BCP 47; its region makes no difference.", "en")]


class TranslationJson(TypedDict):
    """A transcript in another language; what it reads: `GET …/transcript?language=`."""

    jobId: Annotated[Uuid, doc("The job.")]
    language: Annotated[str, doc("BCP 47.", "en")]
    status: TranslationStatus
    reason: NotRequired[Annotated[str, doc("Why there is none, where it failed.")]]
    priceCents: Annotated[Count, doc("Charged when it is requested; given back if it fails.", 0)]
    createdAt: Annotated[Timestamp, doc("When it was requested.")]
    completedAt: NotRequired[Annotated[Timestamp, doc("When it was made, or failed.")]]


class TranslationList(TypedDict):
    """The translations of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    translations: Annotated[list[TranslationJson], doc("By language.")]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.post(
    "/jobs/{jobId}/translations",
    status_code=202,
    response_model=Answer[TranslationJson],
    response_description="It is made, or was already.",
    responses=errors(
        ErrorCode.INVALID_REQUEST, ErrorCode.INSUFFICIENT_CREDITS, ErrorCode.NOT_FOUND, *OF_RESULTS
    ),
)
async def create_translation(
    request: Request, context: Context, job: CurrentJob, body: TranslationBody
) -> Response:
    """Translate the transcript.

    All audio tracks, segment by segment, so that times stay.

    One that is there already is made anew only if it failed, or if the transcript was corrected
    since. English is made of the sound as long as the media is kept."""
    language = written_language(body.language)
    settings = context.settings
    targets = translation_targets(settings.model_profile, settings.models_dir)
    if language not in targets:
        some = "English" if targets == {"en"} else f"{len(targets)} languages, not this one"
        raise invalid(f"The service translates into {some}.", "language")
    async with context.database.transaction() as connection:
        locked = await jobs.find_job(connection, job.id, for_update=True)
        if locked is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
        require_stage(locked, StageName.TRANSCRIPT)
        tracks = await results.list_tracks(connection, job.id)
        spoken = {each.language for each in tracks if each.language is not None}
        if spoken and {written_language(each) for each in spoken} == {language}:
            raise invalid("The transcript is in this language.", "language")
        versions = await results.transcript_versions(connection, job.id)
        source = " ".join(f"{index}:{version}" for index, version in versions)
        found = await translations.find_translation(connection, job.id, language)
        is_there = found is not None and found.source == source
        if found is None or found.status is TranslationStatus.FAILED or not is_there:
            price = pricing.translation_cents(
                context.prices, locked.billable_seconds or 0, len(tracks)
            )
            if found is not None and found.status is TranslationStatus.PENDING:
                # Charged already, and nothing was made for it.
                price, capped_key_id = found.price_cents, found.capped_key_id
            else:
                capped_key_id = await _charge(connection, job, price, language)
            found = await translations.queue_translation(
                connection,
                job.id,
                language,
                price_cents=price,
                capped_key_id=capped_key_id,
                source=source,
            )
            action, detail = AuditAction.CREATE_TRANSLATION, f"language={language}"
            await record(connection, job.account_id, action, job_id=job.id, detail=detail)
    return success(request, translation_json(job, found), status=202)


async def _charge(
    connection: Connection, job: JobRecord, price_cents: int, language: str
) -> uuid.UUID | None:
    """Charge the price; the key whose cap it counts for, if any. Raises INSUFFICIENT_CREDITS."""
    if not price_cents:
        return None
    # The lock makes what a key spends at once count one after the other.
    await keys.lock_account(connection, job.account_id)
    key = await keys.find_capped_key(connection)
    key_id = None if key is None else key.first_id
    why = f"translation of {job.id} into {language}"
    try:
        await ledger.adjust(connection, job.account_id, -price_cents, why, capped_key_id=key_id)
    except ledger.InsufficientCreditsError as error:
        message = None if key_id is None else CREDITS_OR_CAP
        raise ApiError(ErrorCode.INSUFFICIENT_CREDITS, message) from error
    return key_id


@router.get(
    "/jobs/{jobId}/translations",
    response_model=Answer[TranslationList],
    response_description="The translations.",
    responses=errors(*OF_RESULTS),
)
async def list_translations(request: Request, context: Context, job: CurrentJob) -> Response:
    """List the translations.

    Those that were requested."""
    require_stage(job, StageName.TRANSCRIPT)
    async with context.database.statement() as connection:
        found = await translations.list_translations(connection, job.id)
    listed: TranslationList = {
        "jobId": str(job.id),
        "translations": [translation_json(job, each) for each in found],
    }
    return success(request, listed)


@router.get(
    "/jobs/{jobId}/translations/{language}",
    response_model=Answer[TranslationJson],
    response_description="The translation.",
    responses=errors(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND, *OF_RESULTS),
)
async def get_translation(
    request: Request, context: Context, job: CurrentJob, language: _LanguagePath
) -> Response:
    """Read what became of a translation.

    Its text is a transcript's: `GET …/transcript?language=`, in every format."""
    require_stage(job, StageName.TRANSCRIPT)
    async with context.database.statement() as connection:
        found = await _translation_of(connection, job, language)
    return success(request, translation_json(job, found))


def translation_json(job: JobRecord, found: Translation) -> TranslationJson:
    """A translation as the API shows it."""
    rendered: TranslationJson = {
        "jobId": str(job.id),
        "language": found.language,
        "status": found.status,
        "priceCents": found.price_cents,
        "createdAt": timestamp(found.created_at),
    }
    if found.reason is not None:
        rendered["reason"] = found.reason
    if found.completed_at is not None:
        rendered["completedAt"] = timestamp(found.completed_at)
    return rendered


async def in_language(
    connection: Connection, job: JobRecord, track: TrackTranscript, language: str
) -> TrackTranscript:
    """The track in the language. Raises as ``require_translation``."""
    found = await require_translation(connection, job, language)
    document = await translations.find_translated(
        connection, job.id, found.language, track.track_index
    )
    return replace(track, document=document, language=found.language)


async def require_translation(connection: Connection, job: JobRecord, language: str) -> Translation:
    """One that is made. Raises NOT_FOUND where it was not requested, else RESULTS_NOT_READY or
    RESULTS_UNAVAILABLE."""
    found = await _translation_of(connection, job, language)
    if found.status is TranslationStatus.PENDING:
        raise no_result(job, StageName.TRANSCRIPT, "The translation is being made.")
    if found.reason is not None:
        raise no_result(job, StageName.TRANSCRIPT, found.reason, "translation_failed")
    return found


async def _translation_of(connection: Connection, job: JobRecord, language: str) -> Translation:
    found = await translations.find_translation(connection, job.id, written_language(language))
    if found is None:
        message = "There is no such translation: request it first."
        raise ApiError(ErrorCode.NOT_FOUND, message, param="language")
    return found
