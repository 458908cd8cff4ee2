"""What is spoken: transcripts and summaries from what is stored, and as the API shows them."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, NotRequired, TypeVar, cast

from typing_extensions import TypedDict

from models.contracts import SoundKind
from pipelines import types
from pipelines.codec import decode, encode, list_parts
from serve_app.api.schemas import Count, Seconds, Share, Uuid, doc, rendered
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.results.availability import no_result, require_stage
from storage import results
from storage.database import Connection, Database
from storage.history import document_at
from storage.job_records import JobRecord
from storage.results import Track, TrackTranscript
from storage.types import SkipReason, StageName, StageStatus

AnyTrack = TypeVar("AnyTrack", Track, TrackTranscript)
Timing = Literal["estimated"]
_UNDETERMINED = "und"
"""The language of a track without words: the specification has the field always, and a published
client in Rust takes a string only."""


class TranscriptEntry(TypedDict):
    """A transcript segment as older clients read it."""

    StartTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    EndTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    Text: Annotated[str, doc("What is said.", "Good morning.")]
    Speaker: Annotated[str | None, doc("Who says it.", "Speaker 1")]


class WordJson(TypedDict):
    """A word and when it is spoken."""

    text: Annotated[str, doc("As written.", "Good")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]
    timing: NotRequired[Annotated[Timing, doc("Of a correction, until it is aligned.")]]


class TranscriptSegmentJson(TypedDict):
    """A sentence-like run of words by one speaker."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    text: Annotated[str, doc("Its words, joined.", "Good morning.")]
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]
    confidence: Share
    words: list[WordJson]
    language: NotRequired[Annotated[str, doc("BCP 47, where it is not its track's.", "fr")]]
    timing: NotRequired[Annotated[Timing, doc("Where the times of some words are estimated.")]]


class SpeakerJson(TypedDict):
    """A voice of the media."""

    id: Annotated[str, doc("`speaker_0`, `speaker_1`…", "speaker_0")]
    label: Annotated[str, doc("A name to show.", "Speaker 1")]
    speakingSeconds: Annotated[Seconds, doc("How long they speak in all.")]
    voiceId: NotRequired[Annotated[Uuid, doc("The account's named voice that they have.")]]


class TurnJson(TypedDict):
    """Somebody speaks, words or not."""

    speaker: Annotated[str, doc("A speaker's `id`.", "speaker_0")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]


class SoundJson(TypedDict):
    """Speech, singing or music."""

    kind: Annotated[SoundKind, doc("What.", "music")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share


class SummarySentenceJson(TypedDict):
    """A sentence of a summary."""

    text: Annotated[str, doc("Written by a model.", "A baker shows how a sourdough is kept.")]
    startTime: Annotated[Seconds, doc("Where what it rests on begins to be said.")]
    endTime: Annotated[Seconds, doc("Where that ends.")]


class Summary(TypedDict):
    """What is said in a job's media, in few sentences."""

    jobId: Annotated[Uuid, doc("The job.")]
    sentences: Annotated[
        list[SummarySentenceJson], doc("To be read in order; empty without speech.")
    ]


class AudioTrackJson(TypedDict):
    """One audio track of a multi-track job."""

    trackIndex: Annotated[Count, doc("From 0.")]
    trackName: Annotated[str, doc("Its label, or the name of its file.", "Lavalier")]
    status: StageStatus
    transcript: Annotated[list[TranscriptEntry], doc("Empty until it is transcribed.")]
    speakers: Annotated[list[str], doc("In order of first appearance.")]
    language: Annotated[
        str,
        doc(
            "BCP 47; `und` where there is none: without words, or before they are known. Never left"
            " out, and never null, which published clients refuse.",
            "en",
        ),
    ]
    errorCode: NotRequired[types.StageCode]


class AudioTrackList(TypedDict):
    """The audio tracks of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    tracks: Annotated[list[AudioTrackJson], doc("By `trackIndex`.", min_length=2)]


class Transcript(TypedDict):
    """What is said, by whom and when."""

    jobId: Annotated[Uuid, doc("The job.")]
    language: Annotated[str | None, doc("BCP 47.", "en")]
    speakers: Annotated[list[SpeakerJson], doc("In order of first appearance.")]
    text: Annotated[str, doc("The segments, a line each.", "Good morning.")]
    segments: Annotated[list[TranscriptSegmentJson], doc("In order of time.")]
    turns: Annotated[
        list[TurnJson], doc("Who speaks when, by start; those of different speakers may overlap.")
    ]
    sounds: Annotated[
        list[SoundJson], doc("Speech, singing and music, by start; kinds may overlap.")
    ]
    revision: Annotated[Count, doc("How often people corrected it; what an edit sends back.")]
    calibrated: Annotated[
        bool,
        doc("Whether a confidence of 0.9 means nine in ten right; else it is the model's own."),
    ]
    trackIndex: NotRequired[Annotated[Count, doc("On multi-track jobs.")]]
    trackName: NotRequired[Annotated[str, doc("On multi-track jobs.")]]
    tracks: NotRequired[
        Annotated[list[AudioTrackJson], doc("On multi-track jobs, unless one track was asked for.")]
    ]


def track_transcript(track: types.TrackOutcome) -> TrackTranscript:
    """Return a track as it is stored with its job."""
    found = track.transcript
    kept = found and replace(found, voices=(), sound_print=None)
    return TrackTranscript(
        track_index=track.index,
        track_name=track.name,
        status=StageStatus.FAILED if found is None else StageStatus.COMPLETED,
        error_code=track.code,
        language=None if found is None else found.language,
        document=None if kept is None else encode(kept).decode(),
    )


_SEGMENTS = re.compile(r'"segments"\s*:\s*\[')
"""In texts the quotation marks are escaped: only the field looks so."""


def transcript_of(track: TrackTranscript) -> types.TranscriptResult:
    """Return what is stored of a track, with the names that were given to speakers; empty if it
    failed."""
    if track.document is None:
        return types.TranscriptResult(None, (), ())
    text, segments = track.document, list[types.TranscriptSegment]()
    if begins := _SEGMENTS.search(text):
        end = start = begins.end() - 1
        for part, end in list_parts(text, start):  # noqa: B007
            segments += decode(
                tuple[types.TranscriptSegment, ...], part.encode(), ignore_unknown=True
            )
        text = f"{text[:start]}[]{text[end:]}"
    found = decode(types.TranscriptResult, text.encode(), ignore_unknown=True)
    speakers = (
        replace(each, label=track.labels.get(each.id, each.label)) for each in found.speakers
    )
    return replace(found, speakers=tuple(speakers), segments=tuple(segments))


def speakers_json(
    track: TrackTranscript, found: types.TranscriptResult | None = None
) -> list[SpeakerJson]:
    """Return who speaks on a track; ``found`` is what is stored of it, where it was read
    already."""
    voices = {speaker: {"voiceId": voice} for speaker, voice in track.voices.items()}
    speakers = (found or transcript_of(track)).speakers
    return [rendered(SpeakerJson, each, **voices.get(each.id, {})) for each in speakers]


def segment_json(segment: types.TranscriptSegment) -> TranscriptSegmentJson:
    """Return a run of words by one speaker."""
    words = [_word(word) for word in segment.words]
    document = rendered(TranscriptSegmentJson, segment, words=words)
    for at in segment.estimated_words[: len(segment.words)]:
        document["timing"] = document["words"][at]["timing"] = "estimated"
    return document


def _word(word: types.TranscriptWord) -> WordJson:
    # By hand: an answer may have a hundred thousand, and this takes a third of the time.
    return {
        "text": word.text,
        "startTime": word.start_ms / 1000,
        "endTime": word.end_ms / 1000,
        "confidence": round(word.confidence, 4),
        "speaker": word.speaker,
    }


async def read_tracks(
    connection: Connection, job: JobRecord, *, words: bool = True
) -> list[TrackTranscript]:
    """Return the transcripts of a job whose transcript stage is completed."""
    require_stage(job, StageName.TRANSCRIPT)
    return await results.list_transcripts(connection, job.id, words=words)


async def read_summary(connection: Connection, job: JobRecord) -> list[SummarySentenceJson]:
    """Return the summary of a job whose transcript stage is completed.

    Raises RESULTS_UNAVAILABLE where none was made too.
    """
    require_stage(job, StageName.TRANSCRIPT)
    found = await find_summary(connection, job.id)
    if found is not None:
        return found
    if any(warning["code"] == types.WarningCode.SUMMARY_FAILED for warning in job.warnings):
        message, reason = "The transcript could not be summed up.", SkipReason.STAGE_FAILED
    else:
        message = "The service had no model that writes summaries when the job was analysed."
        reason = SkipReason.STAGE_SKIPPED
    raise no_result(job, StageName.TRANSCRIPT, message, reason)


async def find_summary(
    connection: Connection, job_id: uuid.UUID
) -> list[SummarySentenceJson] | None:
    """Return the summary of a job, of whatever stage; None where none was made."""
    found = await results.find_summary(connection, job_id)
    if found is None:
        return None
    return [rendered(SummarySentenceJson, each) for each in sentences_of(found)]


def sentences_of(stored: str) -> tuple[types.TimedSentence, ...]:
    """Return a summary as it is stored."""
    return decode(tuple[types.TimedSentence, ...], stored.encode(), ignore_unknown=True)


async def at_revision(
    database: Database,
    job: JobRecord,
    track: TrackTranscript,
    revision: int | None,
    *,
    original: bool = False,
) -> TrackTranscript:
    """Return the track as it was at a revision, at the present one for None; at the last that was
    not redacted if the ``original`` is meant. Raises NOT_FOUND, for redacted revisions too."""
    redacted = track.redacted_revision or 0
    if original and revision is None and redacted:
        revision = redacted - 1
    if revision is not None and revision < redacted and not original:
        raise ApiError(ErrorCode.NOT_FOUND, "What it had was redacted.", param="revision")
    if revision is None or revision == track.revision or track.document is None:
        return track
    if revision > track.revision:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such revision.", param="revision")
    found = await document_at(
        database, job.id, track.track_index, track.document, track.revision, revision
    )
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
    document = await asyncio.to_thread(encode, found)
    return replace(track, document=document.decode(), revision=revision)


def require_choice(job: JobRecord, index: int | None, param: str = "track") -> None:
    """As ``choose_track``, of a job whose transcripts are not there yet: a request that must name
    a track then must do so before."""
    if index is None and len(job.track_names) > 1:
        raise invalid("This job has several audio tracks: say which.", param)


def choose_track(
    job: JobRecord, tracks: list[AnyTrack], index: int | None, param: str = "track"
) -> AnyTrack:
    """Return the track that a request means; raises NOT_FOUND or RESULTS_UNAVAILABLE."""
    if index is None:
        if len(tracks) > 1:
            raise invalid("This job has several audio tracks: say which.", param)
        index = tracks[0].track_index
    track = next((track for track in tracks if track.track_index == index), None)
    track = existing(track, "audio track", param=param)
    if track.status != StageStatus.COMPLETED:
        raise no_result(
            job,
            StageName.TRANSCRIPT,
            "The track could not be transcribed.",
            "track_failed",
            trackIndex=track.track_index,
            errorCode=track.error_code,
        )
    return track


def default_track(tracks: Sequence[AnyTrack]) -> AnyTrack:
    """Return the track that is shown where none is named: the first with words, which have a
    language or were written by hand; else the first that could be transcribed; else the first."""
    readable = [each for each in tracks if each.status == StageStatus.COMPLETED]
    worded = (each for each in readable if each.language or each.revision)
    return next(worded, (readable or tracks)[0])


def transcript_json(
    job: JobRecord, track: TrackTranscript, found: types.TranscriptResult, *, multi: bool
) -> Transcript:
    """Return the JSON transcript of one track; ``found`` is what is stored of it."""
    tracks = {"trackIndex": track.track_index, "trackName": track.track_name} if multi else {}
    return rendered(
        Transcript,
        found,
        jobId=str(job.id),
        language=track.language,
        speakers=speakers_json(track, found),
        text="\n".join(segment.text for segment in found.segments),
        segments=[segment_json(segment) for segment in found.segments],
        revision=track.revision,
        **tracks,
    )


def combined_transcript_json(job: JobRecord, tracks: list[TrackTranscript]) -> Transcript:
    """Return the JSON transcript of a multi-track job: its default track, and all in ``tracks``."""
    first = default_track(tracks)
    all_of: list[AudioTrackJson] = []
    for track in tracks:  # decoded one at a time: they may be long
        found = transcript_of(track)
        if track is first:
            combined = transcript_json(job, track, found, multi=True)
        all_of.append(track_json(track, found))
    combined["tracks"] = all_of
    return combined


def track_json(track: TrackTranscript, found: types.TranscriptResult) -> AudioTrackJson:
    """Return an Audio track object; ``found`` is what is stored of it."""
    rendered: AudioTrackJson = {
        "trackIndex": track.track_index,
        "trackName": track.track_name,
        "status": track.status,
        "transcript": legacy_entries(found),
        "speakers": [speaker.label for speaker in found.speakers],
        "language": track.language or _UNDETERMINED,
    }
    if track.error_code is not None:
        rendered["errorCode"] = cast("types.StageCode", track.error_code)
    return rendered


async def read_audio_tracks(connection: Connection, job: JobRecord) -> list[TrackTranscript]:
    """The tracks of a multi-track job without words, also while they are still worked on.

    Raises NOT_FOUND for a job without several tracks.
    """
    names = job.track_names
    if len(names) < 2:
        raise ApiError(ErrorCode.NOT_FOUND, "The job has not several audio tracks.")
    found = await results.list_transcripts(connection, job.id, words=False)
    stored = {track.track_index: track for track in found}
    status = job.stages[StageName.TRANSCRIPT].status
    waiting = [
        TrackTranscript(
            index, name, status, job.stages[StageName.TRANSCRIPT].error_code, None, None
        )
        for index, name in enumerate(names)
    ]
    return [stored.get(track.track_index, track) for track in waiting]


def legacy_entries(found: types.TranscriptResult) -> list[TranscriptEntry]:
    """Return segments as older clients read them: ``{ StartTime, EndTime, Text, Speaker }``."""
    labels = {speaker.id: speaker.label for speaker in found.speakers}
    return [
        {
            "StartTime": segment.start_ms / 1000,
            "EndTime": segment.end_ms / 1000,
            "Text": segment.text,
            "Speaker": labels.get(segment.speaker or ""),
        }
        for segment in found.segments
    ]
