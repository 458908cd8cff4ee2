"""The transcript: as JSON, or as a file of captions, text or a table; captions checked by rules.

Files of late are kept: a day of speech takes seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.speech import captions
from pipelines.speech.caption_rules import (
    USUAL,
    CaptionLimits,
    CaptionRule,
    HouseRules,
    cues_of,
    find_rules,
    find_violations,
    with_speakers,
)
from pipelines.types import Speaker, TranscriptSegment
from serve_app.api.authentication import CurrentJob, KeyedRoute, Permission, require
from serve_app.api.downloads import FilePlace
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import OF_RESULTS, answers, headers
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.schemas import Answer, Count, Seconds, Uuid, doc, rendered
from serve_app.context import AppContext
from serve_app.errors import invalid
from serve_app.exports.timeline import csv_table, find_sources
from serve_app.results import transcripts
from serve_app.results.availability import require_stage
from serve_app.results.routes import LanguageTag, TrackQuery
from serve_app.results.transcripts import Transcript, transcript_of
from serve_app.results.translations import in_language, require_translation
from storage.audit import record
from storage.database import Connection, Database
from storage.history import MOST_REVISIONS
from storage.job_records import JobRecord
from storage.jobs import find_ingest_result
from storage.results import TrackTranscript, transcript_versions
from storage.types import Role, StageName

_MEDIA_TYPES = {
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "ttml": "application/ttml+xml",
    "ebu-tt-d": "application/ttml+xml",
    "ass": "text/x-ssa",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
}
_EXTENSIONS = {"ebu-tt-d": "ebu-tt-d.xml"}
_CAPTIONS = frozenset({"srt", "vtt", "ttml", "ebu-tt-d", "ass"})
_MOST_VIOLATIONS = 1_000
_COLUMNS = ("index", "startTime", "endTime", "speaker", "text", "confidence")

_FILES = {
    "application/x-subrip": (
        "SubRip captions.",
        "1\n00:00:01,200 --> 00:00:02,060\nGood morning.\n",
    ),
    "text/vtt": (
        "WebVTT captions.",
        "WEBVTT\n\n00:00:01.200 --> 00:00:02.060\n<v Speaker 1>Good morning.\n",
    ),
    "application/ttml+xml": ("TTML captions (IMSC 1.1 Text, EBU-TT-D).", '<tt xml:lang="en"/>'),
    "text/x-ssa": ("Advanced SubStation captions.", "[Script Info]\nScriptType: v4.00+\n"),
    "text/plain": ("A paragraph for each turn of a speaker.", "Speaker 1: Good morning.\n"),
    "text/markdown": (
        "The same as Markdown, with the time of each turn.",
        "**Speaker 1** `00:00:01` Good morning.\n",
    ),
    "text/csv": (
        "A line for each segment.",
        '"index","startTime","endTime","speaker","text","confidence"\r\n',
    ),
}
_KEPT_CHARACTERS = 16 * 2**20
_kept: OrderedDict[tuple[object, ...], str] = OrderedDict()
"""The files that were read last, by all that they depend on; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class _Style:
    """How captions are written."""

    limits: CaptionLimits
    house: str | None
    sounds: bool
    speaker_labels: bool


@dataclass(frozen=True, slots=True)
class _Which:
    """What of the transcripts is requested."""

    track: int | None = None
    revision: int | None = None
    language: str | None = None
    original: bool = False


House = Annotated[str, Field(pattern="^[a-z0-9_-]{1,40}$")]
_HOUSE = Query(
    description="Whose rules captions are written by: `netflix`, `bbc`, `ebu`, `ted`, `youtube`"
    " or another that the operator has set up.",
    examples=["bbc"],
)
SoundsQuery = Annotated[
    bool, Query(description="Captions have `[music]` and `[singing]` where nothing is spoken.")
]
SpeakerLabelsQuery = Annotated[
    bool, Query(description="Captions name each speaker who begins, where there are several.")
]


class CaptionViolationJson(TypedDict):
    """A rule that a caption does not keep."""

    cue: Annotated[Count, doc("The caption, from 1 as in `srt`.", 12)]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends.")]
    rule: CaptionRule
    severity: Annotated[
        Literal["violation", "advice"],
        doc("`advice`: the house leaves it to the writer, as speed where captions are verbatim."),
    ]
    message: Annotated[str, doc("What is, and what may be.", "41 columns, at most 37")]


class CaptionLint(TypedDict):
    """What captions by a house's rules still break: what only a person can mend."""

    jobId: Annotated[Uuid, doc("The job.")]
    rules: Annotated[str, doc("The house.", "bbc")]
    title: Annotated[str, doc("Whose rules these are.", "BBC Subtitle Guidelines")]
    source: Annotated[str, doc("Where they are written.")]
    cues: Annotated[Count, doc("How many captions there are.")]
    total: Annotated[Count, doc("How often they break a rule, advice included.")]
    violations: Annotated[list[CaptionViolationJson], doc("Of these the first 1,000, in order.")]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/transcript",
    **answers(
        Answer[Transcript],
        "The transcript.",
        *OF_RESULTS,
        headers=headers(sometimes=["Content-Disposition"]),
        content={
            media_type: {
                "schema": {"type": "string", "description": description},
                "example": example,
            }
            for media_type, (description, example) in _FILES.items()
        },
    ),
)
async def get_transcript(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: FilePlace,
    format: Annotated[  # noqa: A002
        Literal["json", "srt", "vtt", "ttml", "ebu-tt-d", "ass", "txt", "md", "csv"],
        Query(description="The form of the answer."),
    ] = "json",
    track: TrackQuery = None,
    revision: Annotated[
        Annotated[int, Field(ge=0, le=MOST_REVISIONS), WHOLE_NUMBER] | None,
        Query(description="As it was then: 0 is the machine's. The present one if left out."),
    ] = None,
    language: Annotated[
        LanguageTag | None,
        Query(
            description="A translation that was made (`POST …/translations`), in BCP 47. As it is"
            " spoken if left out.",
            examples=["en"],
        ),
    ] = None,
    maxLineLength: Annotated[  # noqa: N803 - the API's name
        Annotated[int, Field(ge=12, le=120), WHOLE_NUMBER],
        Query(
            description="Most columns of a line of captions. Wide and full-width characters, as"
            " those of Chinese and Japanese, take two. Without effect beside `rules`, as the next"
            " two."
        ),
    ] = USUAL.line_columns,
    maxLines: Annotated[  # noqa: N803
        Annotated[int, Field(ge=1, le=4), WHOLE_NUMBER],
        Query(description="Most lines of a caption."),
    ] = USUAL.lines,
    maxCharactersPerSecond: Annotated[  # noqa: N803
        Annotated[int, Field(ge=5, le=60), WHOLE_NUMBER],
        Query(
            description="How fast captions are to be read: they are cut, and stay on the screen "
            "into pauses, for that. Speech that is faster still makes captions that are."
        ),
    ] = USUAL.columns_per_second,
    rules: Annotated[House | None, _HOUSE] = None,
    sounds: SoundsQuery = False,
    speakerLabels: SpeakerLabelsQuery = False,  # noqa: N803
    original: Annotated[
        bool,
        Query(
            description="Of a redacted job: what was spoken, as JSON, at the last revision that was"
            " not redacted or at `revision`. Every such request is written to the audit log."
        ),
    ] = False,
) -> Response:
    """Read the transcript.

    As JSON, or as a file of captions, text or a table."""
    if language is not None and revision is not None:
        raise invalid("A translation has no revisions.", "revision")
    if original and (format != "json" or language is not None):
        raise invalid("The original is given as JSON, as it is spoken.", "original")
    which = _Which(track, revision, language, original)
    async with place.turn(request):
        if format == "json":
            return await _json_response(request, context, job, which)
        limits = CaptionLimits(maxLineLength, maxLines, maxCharactersPerSecond)
        style = _Style(limits, rules, sounds, speakerLabels)
        return await _file_response(context, job, which, format, style)


async def _json_response(
    request: Request, context: AppContext, job: JobRecord, which: _Which
) -> Response:
    if which.original and job.source.redact:
        # Whoever may correct it may read it; keys have no scopes.
        require(getattr(request.state, "role", Role.OWNER), Permission.WRITE)
    tracks = await context.database.read(transcripts.read_tracks, job)
    is_whole = which == _Which() and len(tracks) > 1
    chosen = tracks[0] if is_whole else await _chosen(context.database, job, tracks, which)
    if which.original and job.source.redact:
        read = job.account_id, "read_original_transcript"
        await context.database.write(record, *read, job_id=job.id)

    def rendered() -> Response:
        if is_whole:
            return success(transcripts.combined_transcript_json(job, tracks), large=True)
        found = transcript_of(chosen)
        shown = transcripts.transcript_json(job, chosen, found, multi=len(tracks) > 1)
        return success(shown, large=True)

    # Twenty megabytes of ten hours, for which other requests do not wait.
    return await run_in_threadpool(rendered)


@router.get(
    "/jobs/{jobId}/captions/lint",
    **answers(Answer[CaptionLint], "What is left to a person.", *OF_RESULTS),
)
async def lint_captions(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: FilePlace,
    rules: Annotated[House, _HOUSE],
    track: TrackQuery = None,
    sounds: SoundsQuery = False,
    speakerLabels: SpeakerLabelsQuery = False,  # noqa: N803
) -> Response:
    """Check captions by a house's rules.

    Captions written by the rules keep all that can be kept without changing what is spoken.

    What is listed is left to a person: speech that is faster than may be read."""
    async with place.turn(request):
        return success(await lint(context, job, track, rules, sounds, speakerLabels))


async def lint(
    context: AppContext,
    job: JobRecord,
    index: int | None,
    house: str,
    sounds: bool = False,
    speaker_labels: bool = False,
) -> CaptionLint:
    """Return the captions of a track by a house's rules, checked. Raises ApiError."""
    transcripts.require_choice(job, index)
    require_stage(job, StageName.TRANSCRIPT)
    async with context.database.statement() as connection:
        track = transcripts.choose_track(job, await transcripts.read_tracks(connection, job), index)
        rules = await house_rules(context, connection, job, track, house)
    style = _Style(rules.limits, house, sounds, speaker_labels)

    def linted() -> CaptionLint:
        cues = cues_of(_captioned(track, style, rules), rules)
        broken = list(find_violations(cues, rules))
        return {
            "jobId": str(job.id),
            "rules": house,
            "title": rules.title,
            "source": rules.source,
            "cues": len(cues),
            "total": len(broken),
            "violations": [
                rendered(
                    CaptionViolationJson, each, severity="advice" if each.is_advice else "violation"
                )
                for each in broken[:_MOST_VIOLATIONS]
            ],
        }

    return await run_in_threadpool(linted)


async def house_rules(
    context: AppContext, connection: Connection, job: JobRecord, track: TrackTranscript, house: str
) -> HouseRules:
    """Return the rules for the track's language and the picture's frame rate. Raises ApiError."""
    sources = find_sources(job.file_name, await find_ingest_result(connection, job.id))
    rate = sources[0].rate if sources else None
    found = find_rules(context.caption_rules, house, track.language, rate)
    if found is None:
        raise invalid(f"must be one of {', '.join(context.caption_rules)}.", "rules")
    return found


async def _chosen(
    database: Database, job: JobRecord, tracks: list[TrackTranscript], which: _Which
) -> TrackTranscript:
    """Raises ApiError."""
    track = transcripts.choose_track(job, tracks, which.track)
    if which.language is not None:
        return await database.read(in_language, job, track, which.language)
    return await transcripts.at_revision(
        database, job, track, which.revision, original=which.original
    )


async def _file_response(
    context: AppContext, job: JobRecord, which: _Which, extension: str, style: _Style
) -> Response:
    """Return a track as an attachment named after the media; ``extension`` is one of
    _MEDIA_TYPES."""
    transcripts.require_choice(job, which.track)
    require_stage(job, StageName.TRANSCRIPT)
    asked: tuple[object, ...] = (job.id, which, extension, style)
    async with context.database.statement() as connection:
        if which.language is not None:
            asked += (await require_translation(connection, job, which.language),)
        key = (*asked, *await transcript_versions(connection, job.id))
        text = _kept.get(key)
        if text is None:
            tracks = await transcripts.read_tracks(connection, job, words=extension in _CAPTIONS)
    if text is None:
        track = await _chosen(context.database, job, tracks, which)
        limits: CaptionLimits | HouseRules = style.limits
        if style.house is not None:
            async with context.database.statement() as connection:
                limits = await house_rules(context, connection, job, track, style.house)
        text = await run_in_threadpool(_text, track, extension, style, limits)
        key = (*asked, *((each.track_index, each.version) for each in tracks))
    _kept[key] = text
    _kept.move_to_end(key)
    while sum(map(len, _kept.values())) > _KEPT_CHARACTERS:
        _kept.popitem(last=False)
    kind = _EXTENSIONS.get(extension, extension)
    kind = kind if which.language is None else f"{which.language}.{kind}"
    named = {"Content-Disposition": attachment(job.file_name, kind)}
    return Response(text.encode(), media_type=_MEDIA_TYPES[extension], headers=named)


def _captioned(
    track: TrackTranscript, style: _Style, limits: CaptionLimits | HouseRules
) -> Sequence[TranscriptSegment]:
    """The segments, with the names of speakers and with sounds that the style has."""
    found, rules = transcript_of(track), limits if isinstance(limits, HouseRules) else None
    segments: Sequence[TranscriptSegment] = found.segments
    if style.speaker_labels:
        template = rules.speaker if rules else "{speaker}:"
        segments = list(with_speakers(segments, found.speakers, template))
    if style.sounds:
        segments = captions.with_sounds(
            segments, found.sounds, rules.sound if rules else "[{sound}]"
        )
    return segments


def _text(
    track: TrackTranscript, extension: str, style: _Style, limits: CaptionLimits | HouseRules
) -> str:
    found = transcript_of(track)
    if extension in _CAPTIONS:
        segments = _captioned(track, style, limits)
        write = {
            "srt": lambda: captions.to_srt(segments, limits),
            "vtt": lambda: captions.to_vtt(segments, found.speakers, limits),
            "ttml": lambda: captions.to_ttml(segments, found.speakers, track.language, limits),
            "ebu-tt-d": lambda: captions.to_ebu_tt_d(segments, track.language, limits),
            "ass": lambda: captions.to_ass(segments, limits),
        }
        return write[extension]()
    match extension:
        case "md":
            return captions.to_markdown(found.segments, found.speakers)
        case "csv":
            return csv_table(_COLUMNS, _rows(found.segments, found.speakers))
    return captions.to_txt(found.segments, found.speakers)


def _rows(
    segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]
) -> Iterator[tuple[object, ...]]:
    labels = {speaker.id: speaker.label for speaker in speakers}
    for each in segments:
        start, end = each.start_ms / 1000, each.end_ms / 1000
        label = labels.get(each.speaker or "", "")
        yield each.index, f"{start:.3f}", f"{end:.3f}", label, each.text, round(each.confidence, 4)


def attachment(file_name: str, extension: str) -> str:
    """``Content-Disposition`` of a file named after the media."""
    stem = PurePosixPath(file_name).stem or "transcript"
    name = f"{stem}.{extension}"
    # Some clients read %xx here as an escape (RFC 6266, appendix D).
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in name)
    header = f'attachment; filename="{plain}"'
    if plain != name:
        header += f"; filename*=UTF-8''{quote(name, safe='')}"
    return header
