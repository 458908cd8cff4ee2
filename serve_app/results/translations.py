"""Transcripts in other languages: requested, and what became of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from typing_extensions import TypedDict

from models.contracts import written_language
from serve_app.api.schemas import Uuid, doc
from serve_app.errors import ApiError, ErrorCode
from serve_app.results.availability import no_result
from storage import translations
from storage.database import Connection
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.tables import Translation
from storage.types import StageName, TranslationStatus


class TranslationList(TypedDict):
    """The translations of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    translations: Annotated[list[Translation], doc("By language.")]


async def in_language(
    connection: Connection, job: JobRecord, track: TrackTranscript, language: str
) -> TrackTranscript:
    """Return the track in the language. Raises as ``require_translation``."""
    found = await require_translation(connection, job, language)
    document = await translations.find_translated(
        connection, job.id, found.language, track.track_index
    )
    return replace(track, document=document, language=found.language)


async def require_translation(connection: Connection, job: JobRecord, language: str) -> Translation:
    """Return one that is made. Raises NOT_FOUND where it was not requested, else RESULTS_NOT_READY
    or RESULTS_UNAVAILABLE."""
    found = await find_requested(connection, job, language)
    if found.status is TranslationStatus.PENDING:
        raise no_result(job, StageName.TRANSCRIPT, "The translation is being made.")
    if found.reason is not None:
        raise no_result(job, StageName.TRANSCRIPT, found.reason, "translation_failed")
    return found


async def find_requested(connection: Connection, job: JobRecord, language: str) -> Translation:
    """Return a translation that was requested. Raises NOT_FOUND."""
    found = await translations.find_translation(connection, job.id, written_language(language))
    if found is None:
        message = "There is no such translation: request it first."
        raise ApiError(ErrorCode.NOT_FOUND, message, param="language")
    return found
