"""Makes the translations that were requested, one at a time beside the jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pipelines.codec import from_json, to_json
from pipelines.speech.texts import TranslationError, passages_of, translate_passages
from pipelines.types import AudioTrack, TranscriptResult, TranscriptSegment
from serve_app.jobs.service import announce_translation
from serve_app.results.transcripts import transcript_of
from serve_app.work.queue import Work, work
from storage import jobs, ledger, results, translations
from storage.history import Span, find_muted
from storage.results import TrackTranscript
from storage.types import EventType

log = logging.getLogger("vas.translations")

_AT_ONCE = 4
"""Passages of a request to the model."""


async def _give_up(work: Work, error: BaseException | None) -> None:
    reason = "Who translated it was lost again and again."
    if error is not None:
        reason = f"Translating broke ({type(error).__name__})."
    await _end(work, None, reason)


@work(translations.KIND, lease=timedelta(minutes=5), attempts=3, give_up=_give_up)
async def translate(work: Work) -> None:
    """Translate the transcripts of a job's tracks into a language."""
    job_id = work.held.subject_id
    async with work.context.database.statement() as connection:
        found = await results.list_transcripts(connection, job_id, words=False)
        ingested = await jobs.find_ingest_result(connection, job_id) or {}
        muted = await find_muted(connection, job_id)
    kept = {each["index"]: each for each in ingested.get("tracks", ())}
    made: dict[int, object] = {}
    for track in found:
        if track.document is None:
            continue
        sound = kept.get(track.track_index)
        try:
            spoken = sound and from_json(AudioTrack, sound)
            made[track.track_index] = to_json(await _translated(work, track, spoken, muted))
        except TranslationError as error:
            await _end(work, None, str(error))
            return
    await _end(work, made)


async def _translated(
    work: Work, track: TrackTranscript, sound: AudioTrack | None, muted: Sequence[Span]
) -> TranscriptResult:
    found, language = transcript_of(track), work.held.part
    passages = [*passages_of(found.segments, track.language)]
    segments: list[TranscriptSegment] = []
    for first in range(0, len(passages), _AT_ONCE):
        some, sources = passages[first : first + _AT_ONCE], (work.models, work.context.objects)
        segments += await asyncio.to_thread(
            translate_passages, some, language, sound, *sources, muted
        )
    numbered = tuple(replace(each, index=index) for index, each in enumerate(segments))
    return TranscriptResult(language, found.speakers, numbered)


async def _end(work: Work, made: dict[int, object] | None, reason: str | None = None) -> None:
    """With its event, and its price given back where it failed."""
    if reason is not None:
        log.info("no translation into %s: %s", work.held.part, reason)
    async with work.context.database.transaction() as connection:
        job = await jobs.find_job(connection, work.held.subject_id, for_update=True)
        ended = await translations.end_translation(connection, work.held, made, reason)
        if job is None or ended is None:
            return
        if reason is not None:
            await ledger.refund_translation(connection, job.account_id, job.id, ended)
        completed, failed = EventType.TRANSLATION_COMPLETED, EventType.TRANSLATION_FAILED
        event_type = completed if reason is None else failed
        await announce_translation(connection, job, event_type, **ended.json())
