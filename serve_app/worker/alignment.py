"""Aligns the words of corrections beside the jobs, a track at a time; none waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from models.provider import ModelProvider
from models.tasks import ALIGN
from pipelines.codec import from_json, to_json
from pipelines.speech.alignment import align_segment
from pipelines.types import AudioTrack, TranscriptSegment
from serve_app.context import AppContext
from serve_app.observability.logs import log_context
from storage import jobs, revisions
from storage.objects import ObjectNotFoundError
from storage.result_parts import Element
from storage.revisions import LeasedAlignment, ReadTranscript

log = logging.getLogger("vas.alignment")

ALIGN_SECONDS = 1.0
"""Until it is looked again whether words are to be aligned."""
_LEASE = timedelta(minutes=2)
_AT_ONCE = 8
"""Segments, before those that are done are stored."""


class Realigner:
    """Any number may be at work, each on another track."""

    def __init__(self, context: AppContext, models: ModelProvider) -> None:
        self._context, self._models = context, models

    async def step(self) -> float | None:
        """Align the words of the track that is due for longest; None where none is."""
        held = await revisions.lease_unaligned(self._context.database, lease=_LEASE)
        if held is None:
            return None
        with log_context(jobId=held.job_id):
            try:
                await self._align(held)
            except Exception:
                # The model or the store may be away: again when the lease ends.
                async with self._context.database.transaction() as connection:
                    if await revisions.give_up_aligning(connection, held):
                        log.warning("words of a correction stay estimated")
                raise
        return 0.0

    async def _align(self, held: LeasedAlignment) -> None:
        async with self._context.database.transaction() as connection:
            ingested = await jobs.find_ingest_result(connection, held.job_id) or {}
            read = await revisions.read_transcript(connection, held.job_id, held.track_index)
        tracks = {each["index"]: each for each in ingested.get("tracks", ())}
        leased: LeasedAlignment | None = held
        if read is not None and held.track_index in tracks:
            track = from_json(AudioTrack, tracks[held.track_index])
            leased = await self._align_segments(held, read, track)
        if leased is not None:
            async with self._context.database.transaction() as connection:
                await revisions.end_alignment(connection, leased)

    async def _align_segments(
        self, held: LeasedAlignment, read: ReadTranscript, track: AudioTrack
    ) -> LeasedAlignment | None:
        """None where the track was corrected meanwhile: it is due again."""
        segments: list[Element] = read.document["segments"]
        pending = [at for at, each in enumerate(segments) if each.get("estimated_words")]
        for first in range(0, len(pending), _AT_ONCE):
            places = pending[first : first + _AT_ONCE]
            try:
                made = await asyncio.gather(
                    *(
                        asyncio.to_thread(self._aligned, segments, at, read.language, track)
                        for at in places
                    )
                )
            except ObjectNotFoundError:
                log.info("the sound is not kept: words of a correction stay estimated")
                break
            pairs = [(segments[at], after) for at, after in zip(places, made, strict=True)]
            stored, leased = False, None
            while not stored:
                async with self._context.database.statement() as connection:
                    present = await revisions.read_transcript(
                        connection, held.job_id, held.track_index
                    )
                if present is None:
                    return None
                prepared = await asyncio.to_thread(revisions.prepare_aligned, present, pairs)
                async with self._context.database.transaction() as connection:
                    await jobs.find_job(connection, held.job_id, for_update=True)
                    if stored := await revisions.store_aligned(connection, prepared):
                        leased = await revisions.go_on_aligning(connection, held, lease=_LEASE)
            if leased is None:
                return None
            held = leased
        return held

    def _aligned(
        self, segments: Sequence[Element], at: int, language: str | None, track: AudioTrack
    ) -> Element:
        room = (
            segments[at - 1]["end_ms"] if at else 0,
            segments[at + 1]["start_ms"] if at + 1 < len(segments) else 2**62,
        )
        segment = from_json(TranscriptSegment, segments[at])
        model, store = self._models.get(ALIGN), self._context.objects
        made: Element = to_json(align_segment(segment, room, language, track, model, store))
        return made
