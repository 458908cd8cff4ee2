"""Clips of a job's source, while it is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pipelines.codec import from_json
from pipelines.media.files import MOST_FETCHED_BYTES, Fetch
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import ConfinedTask, TaskCrashedError, TaskRefusedError, run_confined
from pipelines.types import Timeline
from serve_app.api.authentication import Bucket, CurrentJob, KeyedRoute
from serve_app.api.downloads import ClipPlace, DownloadPlace, RangedContent, ranged_response
from serve_app.api.envelope import API_PREFIX, Context
from serve_app.api.openapi import OF_RESULTS, errors, headers
from serve_app.api.parameters import NUMBER
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.exports.captions import attachment
from serve_app.media.formats import MAX_DURATION_SECONDS
from serve_app.results.availability import require_stage
from serve_app.results.redaction import find_muted
from storage.history import Span
from storage.job_records import JobRecord
from storage.jobs import find_ingest_result
from storage.objects import ObjectNotFoundError, ObjectStore, RangedCopy
from storage.objects.local_files import temporary_folder
from storage.types import StageName
from storage.uploads import MEDIA_SLOT, find_upload, source_prefix

LONGEST_SECONDS = 600
_MEMORY_BYTES = 2 << 30
_WALL_SECONDS = 90.0
"""Less than the proxy waits for an answer (``VAS_PROXY_TIMEOUT_SECONDS``)."""
_TYPES = {"mp4": ("video/mp4", "mp4"), "matroska": ("video/x-matroska", "mkv")}
_ANY_BYTES = "application/octet-stream"
"""For clients that accept nothing else: generated ones know no type of video."""


class ClipRoute(KeyedRoute):
    """Counted with the writes: it takes work, though it changes nothing."""

    bucket = Bucket.WRITES


router = APIRouter(prefix=API_PREFIX, route_class=ClipRoute, tags=["Results"])
_Time = Annotated[float, Field(ge=0, le=MAX_DURATION_SECONDS), NUMBER]
_BODY = {
    media_type: {"schema": {"type": "string", "format": "binary"}, "example": "…"}
    for media_type in (*(each for each, _ in _TYPES.values()), _ANY_BYTES)
}


@router.get(
    "/jobs/{jobId}/clip",
    response_description="The clip.",
    response_class=Response,
    responses=errors(*OF_RESULTS)
    | {
        200: {
            "headers": headers("X-Clip-Start", "Content-Disposition", "Accept-Ranges"),
            "content": _BODY,
        },
        206: {
            "description": "The part that `Range` asked for.",
            "headers": headers("X-Clip-Start", "Content-Range", "Accept-Ranges"),
            "content": _BODY,
        },
    },
)
async def get_clip(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: ClipPlace,
    start: Annotated[_Time, Query(description="Seconds of the media.", examples=[12.5])],
    end: Annotated[
        _Time,
        Query(
            description=f"Seconds of the media; at most {LONGEST_SECONDS} after `start`.",
            examples=[20],
        ),
    ],
) -> Response:
    """Cut a clip out of the source.

    The clip is copied without encoding; only the sound of a redacted job is encoded anew, silent
    where something was redacted.

    It begins at the last key frame at or before `start`; `X-Clip-Start` says where that is. The
    container is MP4 where the source's is, else Matroska. A source is kept for a while after its
    job has ended; then the answer is 404. A clip of a continuous programme lies within one of its
    clips. `Range` is honoured: one range.

    At most four at once; more get 429. A client that reads less than 16 KiB a second for a
    minute is disconnected."""
    if end <= start:
        raise invalid("The end must lie behind the start.", "end")
    if end - start > LONGEST_SECONDS:
        raise invalid(f"A clip lasts at most {LONGEST_SECONDS} seconds.", "end")
    require_stage(job, StageName.INGEST)
    async with context.database.statement() as connection:
        ingested = await find_ingest_result(connection, job.id)
        upload = await find_upload(connection, job.id, MEDIA_SLOT)
        muted = await find_muted(connection, job)
    key = None if upload is None else upload.object_key
    interval = _interval(job, ingested or {}, key, round(start * 1000), round(end * 1000))
    heard = [(first - interval.at_ms, last - interval.at_ms) for first, last in muted]
    silent = tuple(it for it in heard if it[0] < interval.end_ms and it[1] > 0)
    interval = replace(interval, muted=silent)
    async with place.turn(request):
        clip = await run_in_threadpool(_cut, context.objects, interval)
    place.resources.enter_context(clip.file)
    return _answer(request, place, job, clip)


@dataclass(frozen=True, slots=True)
class _Interval:
    """What to cut out of which object; times from the start of that file."""

    key: str
    start_ms: int
    end_ms: int
    origin_ms: int
    """Of the file, in its own times."""
    timeline: Timeline
    picture: int | None
    at_ms: int
    """Of the file, on the job's timeline."""
    muted: tuple[Span, ...] = ()
    """From the start of that file too."""


def _interval(
    job: JobRecord, ingested: Mapping[str, Any], key: str | None, start_ms: int, end_ms: int
) -> _Interval:
    """Raises NOT_FOUND where the job has no source; INVALID_REQUEST for times that it lacks."""
    if job.duration_ms is not None and start_ms >= job.duration_ms:
        raise invalid("The media ends before.", "start")
    if job.duration_ms is not None and end_ms > job.duration_ms + 1:
        raise invalid(f"The media ends at {job.duration_ms / 1000:.3f} seconds.", "end")
    media = ingested.get("media") or {}
    if job.source.kind == "backfill":
        raise _no_source("There is no file that a clip could be cut out of.")
    if not job.clips:
        key = key or f"{source_prefix(job.id)}/clip-000"
        timeline = from_json(Timeline, media.get("timeline") or {})
        picture = (media.get("video") or {}).get("index")
        return _Interval(key, start_ms, end_ms, media.get("origin_ms", 0), timeline, picture, 0)
    clip = [each for each in job.clips if each["start_ms"] <= start_ms][-1]
    at_ms, length_ms = clip["start_ms"], clip["duration_ms"]
    if end_ms > at_ms + length_ms + 1:
        raise invalid("The interval lies in more than one of the job's clips.", "end")
    parts = (ingested.get("video") or {}).get("parts") or []
    part = next((part for part in parts if part["start_ms"] == at_ms), None)
    # A part's origin is that of the whole timeline in its own times.
    origin_ms = 0 if part is None else part["origin_ms"] + at_ms
    key = f"{source_prefix(job.id)}/clip-{clip['index']:03d}"
    return _Interval(
        key,
        start_ms - at_ms,
        end_ms - at_ms,
        origin_ms,
        from_json(Timeline, clip.get("timeline") or {}),
        None if part is None else part["stream"]["index"],
        at_ms,
    )


def _no_source(message: str) -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, message)


@dataclass(frozen=True, slots=True)
class _Clip:
    """A clip without a name in any folder: it goes when ``file`` is closed."""

    file: BinaryIO
    size_bytes: int
    container: str
    start_ms: int

    def read(self, first: int, count: int) -> bytes:
        return os.pread(self.file.fileno(), count, first)


@contextmanager
def _source(store: ObjectStore, interval: _Interval) -> Iterator[RangedCopy]:
    """All of it where FFmpeg opens a part of it by its path: one of several joined files."""
    if not (interval.timeline.joined_at or interval.timeline.begins_at):
        with store.ranged_copy(interval.key) as copy:
            yield copy
    else:
        with store.local_copy(interval.key) as path:
            yield RangedCopy(path, path.stat().st_size, None)


def _cut(store: ObjectStore, interval: _Interval) -> _Clip:
    """Raises NOT_FOUND where the source is gone or cannot be copied."""
    # PyAV, which a process that cuts no clips need not load.
    from pipelines.ingest import clip
    from pipelines.media.files import Source

    try:
        with _source(store, interval) as copy, temporary_folder("clip-") as folder:
            path, fetch, size_bytes = copy.path.resolve(), copy.fetch, copy.size_bytes
            task = ConfinedTask(
                program=clip.copy,
                order=clip.ClipOrder(
                    source=Source(path, *interval.timeline.layout),
                    is_ranged=fetch is not None,
                    picture=interval.picture,
                    folder=folder.resolve(),
                    start_ms=interval.start_ms,
                    end_ms=interval.end_ms,
                    origin_ms=interval.origin_ms,
                    muted=interval.muted,
                ),
                allowance=Allowance(_MEMORY_BYTES, round(_WALL_SECONDS), size_bytes + (64 << 20)),
                wall_seconds=_WALL_SECONDS,
                readable=(path,),
                writable=(folder,),
            )

            def on_event(event: Any) -> None:
                needed = from_json(Fetch, event)
                first, end = max(0, needed.first), min(needed.end, size_bytes)
                if fetch is not None and first < end <= first + MOST_FETCHED_BYTES:
                    fetch(first, end)

            found = run_confined(task, clip.CutClip, on_event=on_event)
            file = (folder / clip.NAME).open("rb")
    except ObjectNotFoundError:
        raise _no_source("The source of the job is not kept any more.") from None
    except (TaskRefusedError, TaskCrashedError) as error:
        raise _no_source(str(getattr(error, "message", error))) from error
    return _Clip(file, file.seek(0, 2), found.container, found.start_ms + interval.at_ms)


def _answer(request: Request, place: DownloadPlace, job: JobRecord, clip: _Clip) -> Response:
    media_type, extension = _TYPES[clip.container]
    name = f"{PurePosixPath(job.file_name).stem}-{clip.start_ms}ms.{extension}"
    if request.headers.get("accept") == _ANY_BYTES:
        media_type = _ANY_BYTES
    headers = {
        "X-Clip-Start": f"{clip.start_ms / 1000:.3f}",
        "Content-Disposition": attachment(name, extension),
    }
    content = RangedContent(clip.size_bytes, media_type, clip.read)
    return ranged_response(request, place, content, headers, refuse_beyond=False)
