"""A job's chapters, computed when they are requested: they follow from what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from starlette.concurrency import run_in_threadpool
from typing_extensions import TypedDict

from pipelines.across.chapters import Chapter, Vector, find_chapters
from pipelines.types import TranscriptSegment
from serve_app.api.schemas import Count, Seconds, Uuid, doc
from serve_app.context import AppContext
from serve_app.results.availability import require_stage
from storage.job_records import JobRecord
from storage.results import Element, Kept, Parts
from storage.search_vectors import count_vectors, vectors_of_job
from storage.types import StageName


class ChapterJson(TypedDict):
    """A part of the media on one subject."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next chapter's start.")]
    title: Annotated[str, doc("A phrase that was said and tells it from the others.", "Sourdough")]


class ChapterList(TypedDict):
    """The chapters of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    chapters: Annotated[
        list[ChapterJson], doc("Cover the whole media; empty when nothing is said.")
    ]


_kept: Kept[tuple[object, ...], list[Chapter]] = Kept(500)


async def find_chapters_of(context: AppContext, job: JobRecord) -> list[Chapter]:
    """Over all tracks of the job, beside its scenes where it has any.

    Raises RESULTS_NOT_READY or RESULTS_UNAVAILABLE as the transcript does.
    """
    require_stage(job, StageName.TRANSCRIPT)
    tracks = await context.parts.read_segments(job.id)
    scenes = await context.parts.find_scenes(job.id)
    versions = [each and each.version for each in (scenes, *tracks.values())]
    key = (job.id, *versions, await count_vectors(context.database, job.id))

    async def find() -> list[Chapter]:
        vectors = await vectors_of_job(context.database, job.id)
        return await run_in_threadpool(_find, job.duration_ms, scenes, tracks, vectors)

    return await _kept.get(key, find)


def _find(
    duration_ms: int | None,
    scenes: Parts | None,
    tracks: Mapping[int, Parts],
    vectors: Mapping[str, Vector],
) -> list[Chapter]:
    cuts_ms = [scene["start_ms"] for scene in (scenes.read_all() if scenes else ())]
    segments = [
        _segment(number, segment)
        for number, parts in tracks.items()
        for segment in parts.read_all()
    ]
    duration_ms = duration_ms or max((each.end_ms for each in segments), default=0)
    return find_chapters(segments, duration_ms=duration_ms, cuts_ms=cuts_ms, vectors=vectors)


def _segment(track_index: int, segment: Element) -> TranscriptSegment:
    """Without its words, with a speaker that is distinct from those of other tracks."""
    speaker = segment["speaker"]
    return TranscriptSegment(
        index=segment["index"],
        start_ms=segment["start_ms"],
        end_ms=segment["end_ms"],
        text=segment["text"],
        speaker=None if speaker is None else f"{track_index}/{speaker}",
        confidence=segment["confidence"],
        words=(),
    )
