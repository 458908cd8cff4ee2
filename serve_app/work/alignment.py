"""Aligns the words of corrections beside the jobs, a track at a time; none waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from models.tasks import ALIGN
from pipelines.codec import from_json, to_json
from pipelines.speech.alignment import align_segment
from pipelines.types import AudioTrack, TranscriptSegment
from serve_app.work.queue import Work, work
from storage import history, jobs
from storage.history import ReadTranscript
from storage.objects import ObjectNotFoundError
from storage.results import Element
from storage.work import extend

log = logging.getLogger("vas.alignment")

_AT_ONCE = 8
"""Segments, before those that are done are stored."""


# The model may be away: an hour of attempts, then the words stay estimated.
@work(history.ALIGNMENT, lease=timedelta(minutes=2), attempts=30, pause=timedelta(minutes=2))
async def align(work: Work) -> None:
    """Align the words of a track's corrections."""
    job_id, index = work.held.subject_id, int(work.held.part)
    async with work.context.database.transaction() as connection:
        ingested = await jobs.find_ingest_result(connection, job_id) or {}
        read = await history.read_transcript(connection, job_id, index)
    tracks = {each["index"]: each for each in ingested.get("tracks", ())}
    if read is None or index not in tracks:
        return
    track = from_json(AudioTrack, tracks[index])
    segments: list[Element] = read.document["segments"]
    pending = [at for at, each in enumerate(segments) if each.get("estimated_words")]
    for first in range(0, len(pending), _AT_ONCE):
        places = pending[first : first + _AT_ONCE]
        aligning = (
            asyncio.to_thread(_aligned, work, segments, at, read.language, track) for at in places
        )
        try:
            made = await asyncio.gather(*aligning)
        except ObjectNotFoundError:
            log.info("the sound is not kept: words of a correction stay estimated")
            return
        pairs = [(segments[at], after) for at, after in zip(places, made, strict=True)]
        if not await _store(work, read, pairs):
            return


async def _store(
    work: Work, read: ReadTranscript, pairs: Sequence[tuple[Element, Element]]
) -> bool:
    """Put aligned segments in the place of those that are as they were; False where the track is
    gone. Raises WorkLostError where others were corrected meanwhile: it is due again."""
    while True:
        of = read.job_id, read.track_index
        present = await work.context.database.read(history.read_transcript, *of)
        if present is None:
            return False
        prepared = await asyncio.to_thread(history.prepare_aligned, present, pairs)
        async with work.context.database.transaction() as connection:
            await jobs.find_job(connection, read.job_id, for_update=True)
            stored = await history.store_aligned(connection, prepared)
        if stored:
            await work.context.database.read(extend, work.held, align.lease)
            return True


def _aligned(
    work: Work, segments: Sequence[Element], at: int, language: str | None, track: AudioTrack
) -> Element:
    room = (
        segments[at - 1]["end_ms"] if at else 0,
        segments[at + 1]["start_ms"] if at + 1 < len(segments) else 2**62,
    )
    segment = from_json(TranscriptSegment, segments[at])
    model, store = work.models.get(ALIGN), work.context.objects
    made: Element = to_json(align_segment(segment, room, language, track, model, store))
    return made
