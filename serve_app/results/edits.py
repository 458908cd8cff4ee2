"""Correcting a transcript: an edit with the revision as it was read, history, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NotRequired, overload

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.across.redaction import Known, Span
from pipelines.codec import from_json, to_json
from pipelines.speech import edits
from pipelines.types import Speaker, SpeakerTurn, TranscriptSegment
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import turn_if_large
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import OF_RESULTS, answers
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.schemas import WHOLE, Answer, Body, Count, Timestamp, Uuid, doc, rendered
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.results import redaction
from serve_app.results.availability import require_stage
from serve_app.results.routes import MAX_TRACK_INDEX, TrackQuery
from serve_app.results.transcripts import (
    TranscriptSegmentJson,
    choose_track,
    require_choice,
    segment_json,
)
from storage import history, jobs
from storage.audit import record
from storage.database import Connection
from storage.history import (
    MOST_ACCOUNT_HISTORY_BYTES,
    MOST_CHANGE_BYTES,
    MOST_DOCUMENT_BYTES,
    MOST_HISTORY_BYTES,
    MOST_PHRASES,
    MOST_REVISIONS,
    Change,
    PreparedChange,
    ReadTranscript,
)
from storage.job_records import JobRecord
from storage.results import Element, list_tracks, stored_bytes
from storage.types import StageName

MOST_CHARACTERS = 10_000
MOST_AT_ONCE = 1_000
_MOST_REDACTED = 20_000
"""Words of a redacted job that are changed at once: names are looked for in them, for some seconds
of a processor."""
_MOST_TRIES = 10
"""Of an edit while words of the last one get their times, which changes what it was made of."""
_PLAIN = (
    "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]*$"
)
"""No controls, and nothing that turns the direction of what stands around it."""
_Index = Annotated[int, Field(ge=0, le=1_000_000), WHOLE]
_Time = Annotated[float, Field(ge=0, le=1_000_000)]
_Operations: Any = Field(min_length=1, max_length=MOST_AT_ONCE, default_factory=list)


class SegmentEdit(Body):
    """What a segment is to be instead."""

    index: Annotated[_Index, doc("Of the segment, as it was read.", 0)]
    text: Annotated[
        Annotated[str, Field(max_length=MOST_CHARACTERS, pattern=_PLAIN)] | None,
        doc("Plain text; without words it removes the segment.", "Good evening."),
    ] = None
    speaker: Annotated[
        Annotated[str, Field(max_length=100)] | None, doc("A speaker's `id`.", "speaker_1")
    ] = None
    startTime: Annotated[  # noqa: N815 - the API's name
        _Time | None, doc("Where it begins, if that is wrong, in seconds of the media.", 1.2)
    ] = None
    endTime: Annotated[_Time | None, doc("Where it ends, if that is wrong.", 2.5)] = None  # noqa: N815


class SegmentSplit(Body):
    """A segment becomes two."""

    index: Annotated[_Index, doc("Of the segment, as it was read.", 1)]
    word: Annotated[
        Annotated[int, Field(ge=1, le=MOST_CHARACTERS), WHOLE],
        doc("The word that begins the second, counted from 0 in the changed text.", 4),
    ]


class SegmentMerge(Body):
    """Neighbouring segments become one, of the first one's speaker."""

    index: Annotated[_Index, doc("Of the first, as it was read.", 2)]
    count: Annotated[Annotated[int, Field(ge=2, le=MOST_AT_ONCE), WHOLE], doc("How many.", 2)] = 2


class SegmentInsertion(Body):
    """A segment that the transcript lacks."""

    startTime: Annotated[_Time, doc("Where it begins, in seconds of the media.", 4.0)]  # noqa: N815
    endTime: Annotated[_Time, doc("Where it ends; no other segment is between.", 5.5)]  # noqa: N815
    text: Annotated[
        Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS, pattern=_PLAIN)],
        doc("Plain text.", "Good evening."),
    ]
    speaker: Annotated[
        Annotated[str, Field(max_length=100)] | None,
        doc("A speaker's `id`; nobody's if not given.", "speaker_1"),
    ] = None


class _TrackBody(Body):
    trackIndex: Annotated[  # noqa: N815
        Annotated[int, Field(ge=0, le=MAX_TRACK_INDEX), WHOLE] | None,
        doc("Required for files of multi-track jobs.", 0),
    ] = None
    revision: Annotated[
        Annotated[int, Field(ge=0, le=MOST_REVISIONS), WHOLE],
        doc("Of the transcript that is corrected, as it was read.", 0),
    ]


_OPERATIONS = ("segments", "split", "merge", "insert", "speakers")


class TranscriptEditBody(_TrackBody):
    """Body of ``PATCH /jobs/{jobId}/transcript``."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in _OPERATIONS],
            "examples": [{"revision": 0, "segments": [{"index": 0, "text": "Good evening."}]}],
        }
    )
    segments: Annotated[list[SegmentEdit], _Operations, doc("What changes.")]
    split: Annotated[list[SegmentSplit], _Operations, doc("Done after that.")]
    merge: Annotated[list[SegmentMerge], _Operations, doc("Done at last.")]
    insert: Annotated[list[SegmentInsertion], _Operations, doc("New segments, by their times.")]
    speakers: Annotated[
        list[Annotated[str, Field(pattern="^speaker_[0-9]{1,3}$")]],
        Field(min_length=1, max_length=100, default_factory=list),
        doc("Ids of speakers whom the track lacks, for segments of this and later edits."),
    ]

    @model_validator(mode="after")
    def _changes_something(self) -> TranscriptEditBody:
        if not any(getattr(self, name) for name in _OPERATIONS):
            raise PydanticCustomError("edit", f"must hold one of {', '.join(_OPERATIONS)}")
        return self


class TranscriptRevertBody(_TrackBody):
    """Body of ``POST /jobs/{jobId}/transcript/revert``."""

    to: Annotated[
        Annotated[int, Field(ge=0, le=MOST_REVISIONS), WHOLE],
        doc("The revision that it is to be like; 0 is the machine's.", 0),
    ] = 0


class TranscriptChange(TypedDict):
    """Segments in place of others."""

    index: Annotated[Count, doc("The first that is replaced, as it was read.", 0)]
    removed: Annotated[Count, doc("How many are replaced.", 1)]
    segments: Annotated[list[TranscriptSegmentJson], doc("In their place, with new indices.")]


class EditedTranscript(TypedDict):
    """What an edit did."""

    jobId: Annotated[Uuid, doc("The job.")]
    trackIndex: Annotated[Count, doc("The track.", 0)]
    revision: Annotated[Count, doc("The transcript's now; as before where nothing changed.", 1)]
    changes: Annotated[list[TranscriptChange], doc("In order.")]


class RevisionJson(TypedDict):
    """A state of a transcript."""

    revision: Annotated[Count, doc("0 is what the machine wrote.", 1)]
    createdAt: NotRequired[Annotated[Timestamp, doc("Of a correction.")]]
    changedSegments: NotRequired[Annotated[Count, doc("How many it changed.", 1)]]
    revertedTo: NotRequired[Annotated[Count, doc("Where it went back to an earlier one.", 0)]]


class RevisionList(TypedDict):
    """The states of a track's transcript."""

    jobId: Annotated[Uuid, doc("The job.")]
    trackIndex: Annotated[Count, doc("The track.", 0)]
    revisions: Annotated[list[RevisionJson], doc("The latest first.", max_length=100)]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
_EDIT_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.REVISION_CONFLICT,
    ErrorCode.NOT_FOUND,
    *OF_RESULTS,
)


@router.patch(
    "/jobs/{jobId}/transcript", **answers(Answer[EditedTranscript], "What changed.", *_EDIT_ERRORS)
)
async def edit_transcript(
    request: Request, context: Context, job: CurrentJob, body: TranscriptEditBody
) -> Response:
    """Correct the transcript.

    Changes, splits, merges and insertions of segments, and speakers that are added, all or none;
    captions, search, chapters and exports follow at once.

    Words that stay keep their times. Others share the time of those that they replace, with
    `timing: "estimated"`, and get measured ones within seconds, as long as the media is kept. Where
    the transcript is not at `revision` any more nothing changes.

    A segment that is changed or merged has at most 2,000 words, one request changes segments of
    100,000 (of a redacted job 20,000) and 16 MB as they are stored, and what all corrections of a
    job replaced takes at most 128 MB, of an account 2 GB."""
    ms = [[_ms(it.startTime), _ms(it.endTime)] for it in body.segments]
    edit = edits.Edit(
        tuple(
            edits.SegmentChange(it.index, it.text, it.speaker, *times)
            for it, times in zip(body.segments, ms, strict=True)
        ),
        tuple(edits.Split(it.index, it.word) for it in body.split),
        tuple(edits.Merge(it.index, it.count) for it in body.merge),
        tuple(
            edits.Insertion(
                round(it.startTime * 1000), round(it.endTime * 1000), it.text, it.speaker
            )
            for it in body.insert
        ),
        tuple(body.speakers),
    )

    async def make(job: JobRecord, read: ReadTranscript) -> Change:
        try:
            return await asyncio.to_thread(_change, edit, read, job.duration_ms)
        except edits.EditError as error:
            raise invalid(error.message, error.param) from None

    return await _edited(request, context, job, body, make, "segments")


@router.post(
    "/jobs/{jobId}/transcript/revert",
    **answers(Answer[EditedTranscript], "What changed.", *_EDIT_ERRORS),
)
async def revert_transcript(
    request: Request, context: Context, job: CurrentJob, body: TranscriptRevertBody
) -> Response:
    """Take corrections back.

    Makes a revision that is like an earlier one; no other is lost."""

    async def make(job: JobRecord, read: ReadTranscript) -> Change:
        if body.to > read.revision:
            raise invalid("There is no such revision.", "to")
        former = await history.document_at(
            context.database, job.id, read.track_index, read.document, read.revision, body.to
        )
        if former is None:
            raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
        return await asyncio.to_thread(history.difference, read.document, former)

    return await _edited(request, context, job, body, make, "to", reverted_to=body.to)


@router.get(
    "/jobs/{jobId}/transcript/revisions",
    **answers(Answer[RevisionList], "The revisions.", *OF_RESULTS),
)
async def list_transcript_revisions(
    context: Context,
    job: CurrentJob,
    track: TrackQuery = None,
    before: Annotated[
        Annotated[int, Field(ge=1, le=MOST_REVISIONS), WHOLE_NUMBER] | None,
        Query(description="Only those before this one: where the next page goes on."),
    ] = None,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=100), WHOLE_NUMBER], Query(description="Most of them.")
    ] = 20,
) -> Response:
    """List the corrections.

    Of a track, the latest first, the machine's at the end."""
    require_choice(job, track)
    require_stage(job, StageName.TRANSCRIPT)
    async with context.database.statement() as connection:
        chosen = choose_track(job, await list_tracks(connection, job.id), track)
        found = await history.list_revisions(
            connection, job.id, chosen.track_index, before=before or MOST_REVISIONS + 1, limit=limit
        )
    shown = [rendered(RevisionJson, each) for each in found]
    if len(shown) < limit:
        shown.append({"revision": 0})
    listed = {"jobId": str(job.id), "trackIndex": chosen.track_index, "revisions": shown}
    return success(listed)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


async def _prepared(
    context: AppContext,
    job: JobRecord,
    read: ReadTranscript,
    change: Change,
    known: Known,
    param: str,
) -> tuple[PreparedChange, list[Span]]:
    """Return what is to be stored of a change, and when the sound is to be silent for it; what is
    found in it is added to ``known``. Raises ApiError where it is too large."""
    muted = list[Span]()
    if kinds := redaction.redacted_kinds(job):
        if sum(len(it["words"]) for *_, new in change["splices"] for it in new) > _MOST_REDACTED:
            message = f"More than {_MOST_REDACTED} words of a redacted job are changed at once."
            raise invalid(message, param)
        before = len(known.kinds)
        change, muted = await asyncio.to_thread(
            redaction.redacted_change, change, read.language, kinds, context.recognizer, known
        )
        if len(known.kinds) > max(before, MOST_PHRASES):
            raise invalid("Too much is hidden of the job: nothing new can be corrected in.", param)
    prepared = await asyncio.to_thread(history.prepare, read, change)
    if prepared.size_bytes > MOST_CHANGE_BYTES:
        raise invalid("The correction changes too much at once: make it in parts.", param)
    if len(prepared.document) > max(MOST_DOCUMENT_BYTES, read.size_bytes):
        raise invalid("The transcript would be too long.", param)
    return prepared, muted


async def _find(connection: Connection, job: JobRecord, *, for_update: bool = False) -> JobRecord:
    """Return the job as it is now. Raises ApiError where it has no transcript any more."""
    found = existing(await jobs.find_job(connection, job.id, for_update=for_update), "job")
    require_stage(found, StageName.TRANSCRIPT)
    return found


def _conflict(read: ReadTranscript | None) -> ApiError:
    now = {"currentRevision": read.revision if read else 0}
    return ApiError(ErrorCode.REVISION_CONFLICT, param="revision", extra=now)


class _Segments(Sequence[TranscriptSegment]):
    """Stored segments, decoded as they are looked at."""

    def __init__(self, stored: Sequence[Element]) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, at: int) -> TranscriptSegment: ...
    @overload
    def __getitem__(self, at: slice) -> list[TranscriptSegment]: ...
    def __getitem__(self, at: int | slice) -> TranscriptSegment | list[TranscriptSegment]:
        if isinstance(at, slice):
            return [from_json(TranscriptSegment, each) for each in self._stored[at]]
        return from_json(TranscriptSegment, self._stored[at])


def _change(edit: edits.Edit, read: ReadTranscript, media_ms: int | None) -> Change:
    """Raises EditError."""
    document, segments = read.document, _Segments(read.document["segments"])
    speakers = from_json(tuple[Speaker, ...], document["speakers"])
    splices = edits.splices_of(edit, segments, speakers, media_ms)
    added = tuple(Speaker(it, f"Speaker {int(it[8:]) + 1}", 0.0) for it in edit.speakers)
    change: Change = {
        "splices": [(each.first, each.count, to_json(each.segments)) for each in splices]
    }
    turns = from_json(tuple[SpeakerTurn, ...], document.get("turns", []))
    spoken = edits.turns_after(turns, splices, segments)
    speak = turns or edit.insert
    if speak and spoken != [*turns]:
        change |= {"turns": to_json(spoken)}
    if added or "turns" in change:
        everybody = (*speakers, *added)
        found = edits.speakers_after(everybody, spoken) if speak else everybody
        change |= {"speakers": to_json(found)}
    return change


async def _edited(
    request: Request,
    context: AppContext,
    job: JobRecord,
    body: _TrackBody,
    make: Callable[[JobRecord, ReadTranscript], Awaitable[Change]],
    param: str,
    reverted_to: int | None = None,
) -> Response:
    """Make the change of what is read, and store it if that is unchanged then; ``param`` is the
    field at fault where it is too large."""
    require_choice(job, body.trackIndex, "trackIndex")
    revision: int | None = None
    for _ in range(_MOST_TRIES):
        _, size = await context.database.read(stored_bytes, job.id)
        async with turn_if_large(request, job.account_id, size):
            async with context.database.statement() as connection:
                found = await _find(connection, job)
                tracks = await list_tracks(connection, job.id)
                index = choose_track(found, tracks, body.trackIndex, "trackIndex").track_index
                read = await history.read_transcript(connection, job.id, index)
                known = await redaction.known_of(connection, found)
                account_bytes = await history.account_history_bytes(connection, job.account_id)
            if read is None or read.revision != body.revision:
                raise _conflict(read)
            if read.revision >= MOST_REVISIONS:
                raise invalid(f"A transcript has at most {MOST_REVISIONS} revisions.", "revision")
            change = await make(found, read)
            if not change["splices"] and len(change) == 1:
                revision = read.revision
                break
            prepared, muted = await _prepared(context, found, read, change, known, param)
        change = prepared.change
        if account_bytes + len(prepared.before) > MOST_ACCOUNT_HISTORY_BYTES:
            message = (
                "The account's corrections take all the room for them: erase a job that has some."
            )
            raise invalid(message, param)
        async with context.database.transaction() as connection:
            locked = await _find(connection, job, for_update=True)
            job_bytes = await history.history_bytes(connection, job.id) + len(prepared.before)
            if job_bytes > MOST_HISTORY_BYTES:
                raise invalid("The corrections of the job take all the room for them.", param)
            if redaction.redacted_kinds(locked) == redaction.redacted_kinds(found):
                revision = await history.store_revision(
                    connection, prepared, reverted_to=reverted_to
                )
            if revision is not None:
                await redaction.add_muted(context, connection, locked, muted)
                await redaction.keep_known(connection, locked, known)
                action = "editTranscript"
                if reverted_to is not None:
                    action = "revertTranscript"
                detail = f"revision={revision}"
                await record(connection, job.account_id, action, job_id=job.id, detail=detail)
                break
    if revision is None:
        raise _conflict(read)
    edited: EditedTranscript = {
        "jobId": str(job.id),
        "trackIndex": index,
        "revision": revision,
        "changes": _changes_json(change),
    }
    return success(edited)


def _changes_json(change: Change) -> list[TranscriptChange]:
    """Return what a client puts in place of its segments, in their order."""
    changes, shift = list[TranscriptChange](), 0
    for first, count, segments in change["splices"]:
        made = [
            segment_json(from_json(TranscriptSegment, each | {"index": first + shift + at}))
            for at, each in enumerate(segments)
        ]
        changes.append({"index": first, "removed": count, "segments": made})
        shift += len(segments) - count
    return changes
