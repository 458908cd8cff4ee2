"""A job's results on pages: the first part of them, and the others as they come into view.

Scripts fetch the pages of parts, and take the part out of them; without scripts they are read one
after the other. A timeline needs a little of everything, and so does who searches in a job: those
are answers of their own, made once. The page of a comparison has two cuts side by side.
"""

# ruff: noqa: N803  (names of paths)
from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from pipelines.speech.edits import Difference, differences
from serve_app.api.authentication import admit_anybody
from serve_app.api.downloads import LargeResults
from serve_app.api.envelope import Context
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.urls import parse_job_id, require_active_owner, still_path
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError, Signer
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, OpenPageRoute, PageRoute, Viewer
from serve_app.dashboard.pages import HEADERS, page, takes_gzip
from serve_app.errors import ApiError, ErrorCode, existing
from serve_app.exports import comparisons
from serve_app.exports.captions import lint
from serve_app.jobs import service
from serve_app.media.source import find_media
from serve_app.results import transcripts
from serve_app.results.comments import SHARE_PURPOSE, SHARED_PATH
from serve_app.results.scenes import scene_json, scenes_of
from storage.comments import note_editing
from storage.comparisons import get_document
from storage.duplicates import find_prints
from storage.history import find_muted, list_revisions
from storage.job_records import JobRecord, list_jobs
from storage.jobs import find_job
from storage.results import Element, Parts, Track, list_tracks
from storage.types import ComparisonState

_MOST_CHANGES = 1_000
_REVISIONS_SHOWN = 50
_DOUBTFUL = 0.5
"""A word of less confidence is as likely wrong as right; it is marked where a reader asks."""
TrackIndex = Annotated[int, WHOLE_NUMBER]

router = APIRouter(route_class=PageRoute, include_in_schema=False)
open_router = APIRouter(route_class=OpenPageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Part:
    """Scenes or lines of a page."""

    rows: Sequence[Mapping[str, Any]]
    parts: Parts
    page: str
    """The job's own page."""
    query: str
    """Leads from there to another part, with the index of its first row at the end."""

    @property
    def path(self) -> str:
        return self.page + self.query

    @property
    def first(self) -> int:
        return int(self.rows[0]["index"]) if self.rows else 0

    @property
    def before(self) -> int | None:
        """The first of the part before; None at the beginning."""
        return self.first - self.parts.size if self.first else None

    @property
    def after(self) -> int | None:
        """The first of the next part; None at the end."""
        after = self.first + self.parts.size
        return after if after < self.parts.count else None


def scenes_part(signer: Signer, job: JobRecord, parts: Parts, first: int = 0) -> Part:
    """Return the part that scene ``first`` is in."""
    scenes = scenes_of(parts.read_json(first))
    rows = [scene_json(scene, partial(still_path, signer, job.id)) for scene in scenes]
    return Part(rows, parts, f"{PATH}/jobs/{job.id}", "/scenes?from=")


def lines_part(job: JobRecord, track: Track, parts: Parts, first: int = 0) -> Part:
    """Return the part that segment ``first`` is in; ``speaker`` where another one begins."""
    segments = parts.read(first)
    ahead = parts.read(segments[0]["index"] - 1)[-1:] if segments else []
    before, rows = (each["speaker"] for each in [*ahead, *segments]), []
    labels = speaker_labels(track, parts)
    for segment, previous in zip(segments, before if ahead else [None, *before], strict=False):
        speaker = segment["speaker"] if segment["speaker"] != previous else None
        text, times = spelled(segment)
        rows.append(
            {
                "index": segment["index"],
                "startTime": segment["start_ms"] / 1000,
                "voice": segment["speaker"] or "",
                "speaker": speaker,
                "label": speaker and labels.get(speaker, speaker),
                "text": text,
                "times": times,
            }
        )
    return Part(rows, parts, f"{PATH}/jobs/{job.id}", f"/segments?track={track.track_index}&from=")


def speaker_labels(track: Track, parts: Parts) -> dict[str, str]:
    """Return names by the ids that stand in the transcript, those that were given before others."""
    return {each["id"]: track.labels.get(each["id"], each["label"]) for each in parts.speakers}


def spelled(segment: Element) -> tuple[Markup, str]:
    """The text with each word in an element of its own, and the words' starts and ends in seconds.

    Without both where the words do not stand in the text.
    """
    text, at = segment["text"], 0
    parts, times = list[Markup](), list[float]()
    for word in segment["words"]:
        start = text.find(word["text"], at)
        if start < 0:
            return escape(text), ""
        doubt = Markup(' class="doubt"') if word.get("confidence", 1) < _DOUBTFUL else ""
        parts += [escape(text[at:start]), Markup("<i{}>{}</i>").format(doubt, word["text"])]
        times += [word["start_ms"] / 1000, word["end_ms"] / 1000]
        at = start + len(word["text"])
    return Markup("").join([*parts, escape(text[at:])]), " ".join(map(str, times))


@router.get(f"{PATH}/jobs/{{jobId}}/captions")
async def get_captions(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    jobId: str,
    rules: str = "netflix",
    track: Annotated[int | None, WHOLE_NUMBER] = None,
) -> Response:
    """Captions by a house's rules: files of them, and what a person is to mend."""
    job = await context.database.read(service.get_job, viewer.account.id, jobId)
    found = await lint(context, job, track, rules)
    houses = {name: languages[""].title for name, languages in context.caption_rules.items()}
    return await page(request, "captions.html", job=job, lint=found, houses=houses, track=track)


@router.get(f"{PATH}/jobs/{{jobId}}/changes")
async def get_changes(
    request: Request, context: Context, viewer: CurrentViewer, jobId: str, track: TrackIndex = 0
) -> Response:
    """What people corrected in a transcript, beside what the machine wrote."""
    async with context.database.statement() as connection:
        job = await service.get_job(connection, viewer.account.id, jobId)
        now = transcripts.choose_track(job, await transcripts.read_tracks(connection, job), track)
        latest = now.revision + 1
        made = await list_revisions(
            connection, job.id, track, before=latest, limit=_REVISIONS_SHOWN
        )
    machine = await transcripts.at_revision(context.database, job, now, now.redacted_revision or 0)

    def compared() -> list[Difference]:
        found = transcripts.transcript_of(now)
        changes = differences(transcripts.transcript_of(machine).segments, found.segments)
        return [*islice(changes, _MOST_CHANGES + 1)]

    changes = await run_in_threadpool(compared)
    more, changes = len(changes) > _MOST_CHANGES, changes[:_MOST_CHANGES]
    labels = {each.id: each.label for each in transcripts.transcript_of(now).speakers}
    return await page(
        request, "changes.html", job=job, track=track, changes=changes, more=more, labels=labels,
        revisions=made, first=now.redacted_revision or 0)  # fmt: skip


@router.get(f"{PATH}/jobs/{{jobId}}/editors")
async def get_editors(context: Context, viewer: CurrentViewer, jobId: str) -> Response:
    """Who else edits the transcript, for the script of whoever does, which asks again and again."""
    async with context.database.transaction() as connection:
        job = await service.get_job(connection, viewer.account.id, jobId)
        return JSONResponse(await note_editing(connection, viewer.session, job.id))


@open_router.get(f"{SHARED_PATH}/{{jobId}}")
async def get_shared(
    request: Request, context: Context, jobId: str, expires: str = "", signature: str = ""
) -> Response:
    """Show a job to whoever has the link that was made of it: all of its results, nothing to
    change."""
    await admit_anybody(request)
    try:
        path = f"{SHARED_PATH}/{jobId}"
        context.signer.check_path(SHARE_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise ApiError(ErrorCode.NOT_FOUND, "This link has expired, or is not complete.") from None
    async with context.database.statement() as connection:
        job = await find_job(connection, parse_job_id(jobId))
        if job is None or job.erased_at is not None:
            raise ApiError(ErrorCode.NOT_FOUND, "What this link showed was erased.")
        if job.shows_personal_data:
            raise ApiError(ErrorCode.NOT_FOUND, "Personal data of this job is being hidden.")
        await require_active_owner(connection, job.id)
        media = await find_media(context, connection, job)
        track = transcripts.default_track(await list_tracks(connection, job.id))
    seen = await context.parts.find_scenes(job.id)
    spoken = {} if track is None else await context.parts.read_segments(job.id, track.track_index)

    def parts() -> tuple[list[Part], ...]:
        scenes = [
            replace(scenes_part(context.signer, job, each, at), page="")
            for each in ([] if seen is None else [seen])
            for at in range(0, each.count, each.size)
        ]
        lines = [
            replace(lines_part(job, track, each, at), page="")
            for each in spoken.values()
            for at in range(0, each.count, each.size)
            if track
        ]
        return scenes, lines

    scenes, lines = await run_in_threadpool(parts)
    shown: dict[str, Any] = {"job": job, "media": media, "scene_parts": scenes, "line_parts": lines}
    until = datetime.fromtimestamp(int(expires), UTC)
    return await page(request, "shared.html", until=until, **shown)


@router.get(f"{PATH}/jobs/{{jobId}}/{{kind}}")
async def get_part(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    jobId: str,
    kind: str,
    first: Annotated[int, WHOLE_NUMBER, Query(alias="from")] = 0,
    track: TrackIndex = 0,
) -> Response:
    """A part of the ``scenes``, or of a track's ``segments``."""
    job, parts = await _find(context, viewer, jobId, kind, track)
    if kind == "scenes":
        part = scenes_part(context.signer, job, parts, first)
    else:
        tracks = await context.database.read(list_tracks, job.id)
        [shown] = [each for each in tracks if each.track_index == track]
        part = lines_part(job, shown, parts, first)
    if not part.rows:
        raise ApiError(ErrorCode.NOT_FOUND, "The results end before.")
    return await page(request, "part.html", job=job, kind=kind, part=part)


@router.get(f"{PATH}/jobs/{{jobId}}/segments/wave")
async def get_wave(
    context: Context, viewer: CurrentViewer, jobId: str, track: TrackIndex = 0
) -> Response:
    """The levels of a track over time as a picture, from the job's start to its end; nothing of
    what is muted."""
    async with context.database.statement() as connection:
        job = await service.get_job(connection, viewer.account.id, jobId)
        prints = await find_prints(connection, job.id)
        muted = await find_muted(connection, job.id)
    found = prints and not job.shows_personal_data and prints.sounds.get(track)
    data = existing(found or None, "track")

    def drawn() -> bytes:
        # A page that is seldom asked for; the API does without PyAV and NumPy until then.
        from pipelines.media.audio import SoundPrint

        levels = SoundPrint.from_bytes(data).muted(muted).peaks(job.duration_ms or 1, _PEAKS)
        bars = (f"M{at} {50 - 50 * each:.0f}v{100 * each:.0f}" for at, each in enumerate(levels))
        return gzip.compress(_WAVE.format(count=len(levels), bars="".join(bars)).encode())

    headers = HEADERS | {"Content-Encoding": "gzip"}
    return Response(await run_in_threadpool(drawn), media_type="image/svg+xml", headers=headers)


_PEAKS = 1000
_WAVE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{count}" height="100" viewBox="0 0 {count} 100"'
    ' preserveAspectRatio="none"><path d="{bars}" stroke="#757b94"/></svg>'
)


@router.get(f"{PATH}/jobs/{{jobId}}/{{kind}}/{{content}}")
async def get_whole(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    jobId: str,
    kind: str,
    content: str,
    track: TrackIndex = 0,
) -> Response:
    """A little of each scene or segment, for scripts: its ``outline`` or its ``texts``."""
    _, parts = await _find(context, viewer, jobId, kind, track)
    found = {"outline": parts.outline, "texts": parts.texts}.get(content)
    found = existing(found, "page")
    if takes_gzip(request):
        headers = HEADERS | {"Content-Encoding": "gzip"}
        return Response(found, media_type="application/json", headers=headers)
    return Response(gzip.decompress(found), media_type="application/json", headers=HEADERS)


async def _find(
    context: AppContext, viewer: Viewer, job_id: str, kind: str, track: int
) -> tuple[JobRecord, Parts]:
    job = await context.database.read(service.get_job, viewer.account.id, job_id)
    parts = None
    if kind == "scenes":
        parts = await context.parts.find_scenes(job.id)
    elif kind == "segments":
        parts = (await context.parts.read_segments(job.id, track)).get(track)
    if parts is None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job has no such results.")
    return job, parts


_JOBS_SHOWN = 100
_REFRESH_SECONDS = "3"


@router.get(f"{PATH}/compare")
async def get_compare(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    answer: LargeResults,
    before: Annotated[str, Query(alias="from")] = "",
    after: Annotated[str, Query(alias="to")] = "",
) -> Response:
    """What became of a cut in another, with stills; a form of the latest jobs above. It is loaded
    again until the comparison is made."""
    problem: ApiError | None = None
    status: comparisons.ComparisonStatus | None = None
    found: comparisons.ComparisonJson | None = None
    if before and after:
        try:
            asked = await comparisons.request_comparison(context, viewer.account.id, before, after)
            status = comparisons.status_json(asked)
        except ApiError as error:
            problem = error
        else:
            document = await context.database.read(get_document, asked.id)
            if document is not None:
                make = partial(comparisons.result_json, asked, document, context, "")
                found = await answer.prepared(request, len(document), make)
    listed = await context.database.read(list_jobs, viewer.account.id, limit=_JOBS_SHOWN)
    shown = await page(
        request,
        "compare.html",
        status=200 if problem is None else problem.status,
        jobs=listed,
        chosen={"from": before, "to": after},
        problem=problem,
        comparison=status,
        found=found,
    )
    if status is not None and status["state"] == ComparisonState.PENDING:
        shown.headers["Refresh"] = _REFRESH_SECONDS
    return shown
