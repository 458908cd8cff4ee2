"""Makes the translations that were requested, one at a time beside the jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from models.provider import ModelProvider
from pipelines.codec import from_json, to_json
from pipelines.speech.texts import TranslationError, passages_of, translate_passages
from pipelines.types import AudioTrack, TranscriptResult, TranscriptSegment
from serve_app.context import AppContext
from serve_app.jobs.service import announce_translation
from serve_app.observability.logs import log_context
from serve_app.results.transcripts import transcript_of
from serve_app.results.translations import translation_json
from storage import jobs, ledger, results, translations
from storage.database import UNAVAILABLE
from storage.objects import is_outage
from storage.redactions import Span, find_muted
from storage.results import TrackTranscript
from storage.translations import MAX_ATTEMPTS, LeasedTranslation
from storage.types import EventType

log = logging.getLogger("vas.translations")

TRANSLATE_SECONDS = 2.0
"""Until it is looked again whether a translation is to be made."""
_LEASE = timedelta(minutes=5)
_AT_ONCE = 4
"""Passages between two renewals of the lease."""


class TranslationMaker:
    """Any number may be at work, each on another translation."""

    def __init__(self, context: AppContext, models: ModelProvider) -> None:
        self._context, self._models = context, models

    async def step(self) -> float | None:
        """Make the oldest that is pending; None where there is none."""
        database = self._context.database
        held = await translations.lease_next_translation(database, lease=_LEASE)
        if held is None:
            return None
        with log_context(jobId=held.job_id):
            try:
                reason = await self._translate(held)
            except BaseException as error:
                await self._give_back(held, error)
                raise
            if reason is not None:
                await self._fail(held, reason)
        return 0.0

    async def _give_back(self, held: LeasedTranslation, error: BaseException) -> None:
        """What is the machine's fault alone does not count; what broke too often is given up."""
        is_its_own = not isinstance(error, UNAVAILABLE) and isinstance(error, Exception)
        if is_its_own and not is_outage(error):
            if held.attempts >= MAX_ATTEMPTS:
                await self._fail(held, f"Translating broke ({type(error).__name__}).")
            return  # again when the lease ends
        async with self._context.database.transaction() as connection:
            await translations.give_back_translation(connection, held)

    async def _translate(self, held: LeasedTranslation) -> str | None:
        """Why there is none; None where it is stored, or is somebody else's."""
        if held.attempts > MAX_ATTEMPTS:
            return "Who translated it was lost again and again."
        async with self._context.database.statement() as connection:
            found = await results.list_transcripts(connection, held.job_id, words=False)
            ingested = await jobs.find_ingest_result(connection, held.job_id) or {}
            muted = await find_muted(connection, held.job_id)
        kept = {each["index"]: each for each in ingested.get("tracks", ())}
        made: dict[int, object] = {}
        for track in found:
            if track.document is None:
                continue
            sound = kept.get(track.track_index)
            try:
                spoken = sound and from_json(AudioTrack, sound)
                document = await self._track(held, track, spoken, muted)
            except TranslationError as error:
                return str(error)
            if document is None:
                return None
            made[track.track_index] = to_json(document)
        await self._end(held, made)
        return None

    async def _track(
        self,
        held: LeasedTranslation,
        track: TrackTranscript,
        sound: AudioTrack | None,
        muted: Sequence[Span],
    ) -> TranscriptResult | None:
        """None where the lease was lost: the job was erased, or somebody else has it."""
        found = transcript_of(track)
        passages = [*passages_of(found.segments, track.language)]
        segments: list[TranscriptSegment] = []
        for first in range(0, len(passages), _AT_ONCE):
            segments += await asyncio.to_thread(
                translate_passages,
                passages[first : first + _AT_ONCE],
                held.language,
                sound,
                self._models,
                self._context.objects,
                muted,
            )
            async with self._context.database.transaction() as connection:
                if not await translations.extend_translation(connection, held, lease=_LEASE):
                    return None
        numbered = tuple(replace(each, index=index) for index, each in enumerate(segments))
        return TranscriptResult(held.language, found.speakers, numbered)

    async def _fail(self, held: LeasedTranslation, reason: str) -> None:
        log.info("no translation into %s: %s", held.language, reason)
        await self._end(held, None, reason)

    async def _end(
        self, held: LeasedTranslation, made: dict[int, object] | None, reason: str | None = None
    ) -> None:
        """With its event, and its price given back where it failed."""
        async with self._context.database.transaction() as connection:
            job = await jobs.find_job(connection, held.job_id, for_update=True)
            ended = await translations.end_translation(connection, held, made, reason)
            if ended is None or job is None:
                return
            if reason is not None:
                await ledger.refund_translation(connection, job.account_id, job.id, ended)
            completed, failed = EventType.TRANSLATION_COMPLETED, EventType.TRANSLATION_FAILED
            event_type = completed if reason is None else failed
            await announce_translation(connection, job, event_type, **translation_json(job, ended))
