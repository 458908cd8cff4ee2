"""Answers about jobs and their results, as ``rendering`` and ``results`` make them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from models.contracts import CameraMotion, ShotAngle, ShotType
from pipelines.types import StageCode, WarningCode
from serve_app.api.schemas import Count, RequestId, Seconds, Share, Timestamp, Url, Uuid, doc
from serve_app.jobs.metadata import EchoedMetadata
from storage.job_records import LEGACY_STATUSES
from storage.types import JobState, ProcessingMode, SkipReason, StageName, StageStatus, Tier

FileName = Annotated[str, doc("Name of the media file.", "interview.mp4")]


class JobError(TypedDict):
    """Why a job or a stage failed."""

    code: StageCode
    message: NotRequired[Annotated[str | None, doc("For people; may change.")]]


class JobWarning(TypedDict):
    """What a client should know although the work went on."""

    code: Annotated[WarningCode, doc("Stable.", "AUDIO_SYNC_UNCERTAIN")]
    message: Annotated[str, doc("For people.")]
    stage: NotRequired[Annotated[StageName, doc("The stage that it came from.", "ingest")]]
    param: NotRequired[Annotated[str, doc("The field of the request.", "procesingMode")]]
    trackIndex: NotRequired[Annotated[int, doc("The audio track that it is about.", 0)]]
    startTime: NotRequired[Annotated[Seconds, doc("Where what it is about begins.", 12.5)]]
    endTime: NotRequired[Annotated[Seconds, doc("Where it ends.", 20.0)]]


class Stage(TypedDict):
    """One stage of a job."""

    status: Annotated[StageStatus, Field(examples=["completed"])]
    progress: Annotated[Share, Field(examples=[1.0])]
    reason: NotRequired[SkipReason]
    error: NotRequired[Annotated[JobError, doc("Of a failed or cancelled stage; not in lists.")]]


class Stages(TypedDict):
    """The stages of a job."""

    ingest: Stage
    vision: Stage
    transcript: Stage


_FAILED_SAYS_WHY = with_config(
    ConfigDict(
        json_schema_extra={
            "if": {"required": ["state"], "properties": {"state": {"const": "failed"}}},
            "then": {"required": ["error"], "properties": {"error": {}}},
        }
    )
)


@_FAILED_SAYS_WHY
class JobSummary(TypedDict):
    """A job as lists show it."""

    jobId: Annotated[Uuid, doc("The job's id.")]
    state: Annotated[JobState, Field(examples=["completed"])]
    processingMode: ProcessingMode
    stages: Stages
    metadata: EchoedMetadata
    fileName: FileName
    tier: Tier
    createdAt: Annotated[Timestamp, doc("When the job was created.")]
    startedAt: Annotated[Timestamp | None, doc("When work on it began.")]
    completedAt: Annotated[Timestamp | None, doc("When it reached a final state.")]
    durationSeconds: Annotated[float | None, doc("Of the media; null until ingest knows it.")]
    progress: Annotated[Share, doc("0 to 1 over the stages that run.", 1.0)]
    chargedCents: Annotated[Count, doc("What its completed stages cost, in US cents.")]
    callbackUrl: Annotated[Url | None, doc("Where its webhook goes.")]
    originalFilename: Annotated[FileName, doc("The same as `fileName`, for older clients.")]
    status: Annotated[
        str,
        doc(
            "The state as older clients read it.", json_schema_extra={"enum": list(LEGACY_STATUSES)}
        ),
    ]
    estimatedCompletionTimeSeconds: Annotated[
        float | None, doc("Seconds until it is done, while its stages run and their pace is known.")
    ]
    error: NotRequired[Annotated[JobError, doc("Present when `state` is `failed`.")]]
    errorMessage: NotRequired[
        Annotated[str | None, doc("The message of `error`, for older clients.")]
    ]
    batchId: NotRequired[Annotated[Uuid, doc("The batch that the job came from.")]]
    index: NotRequired[Annotated[Count, doc("Position of its clip in that batch.")]]
    audioTrackCount: NotRequired[Annotated[int, doc("On multi-track jobs.", ge=2)]]
    audioTracksCompleted: NotRequired[Annotated[Count, doc("On multi-track jobs.")]]
    audioTrackNames: NotRequired[Annotated[list[str], doc("On multi-track jobs, by track index.")]]


class Links(TypedDict):
    """Absolute URLs of a job and its results."""

    self: Annotated[Url, doc("The job.")]
    transcript: Annotated[Url, doc("Its transcript.")]
    scenes: Annotated[Url, doc("Its scenes.")]


class ProgrammeClip(TypedDict):
    """A clip of a continuous programme, on the common timeline."""

    index: Annotated[Count, doc("Position in `clips` of the request.")]
    fileName: Annotated[str | None, doc("Its name.")]
    startTime: Annotated[Seconds | None, doc("Seconds. Null until ingest has seen all clips.")]
    durationSeconds: Annotated[Seconds | None, doc("Null until ingest has seen all clips.")]
    metadata: Annotated[EchoedMetadata, doc("The clip's own, as given.")]


class ObjectTrack(TypedDict):
    """A thing in a stretch of a scene."""

    label: Annotated[str, doc("A lower-case noun.", "woman")]
    start: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    end: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share


class Box(TypedDict):
    """A rectangle in the picture, in shares of its width and height."""

    left: Annotated[Share, doc("Of its left edge.")]
    top: Annotated[Share, doc("Of its upper edge.")]
    width: Annotated[Share, doc("How wide it is.")]
    height: Annotated[Share, doc("How high it is.")]


class TextLine(TypedDict):
    """A line of writing on the screen."""

    text: Annotated[str, doc("As read.", "Anna Weber, baker")]
    confidence: Share
    box: Box


class Scene(TypedDict):
    """A stretch between two cuts."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next scene's start.")]
    description: Annotated[
        str,
        doc(
            "What is seen, in one or two sentences.",
            "A woman speaks to the camera in a bright kitchen.",
        ),
    ]
    objects: Annotated[
        list[str], doc("What is in it: lower-case nouns, sorted.", ["kettle", "woman"])
    ]
    colorPalette: Annotated[
        list[Annotated[str, Field(pattern="^#[0-9a-f]{6}$")]],
        doc(
            "Its colours, most of the picture first.",
            ["#e8e2d6", "#6b4f3a", "#2f3a40"],
            min_length=1,
            max_length=5,
        ),
    ]
    shotType: Annotated[ShotType, doc("How much of the subject is in the frame.")]
    shotAngle: Annotated[ShotAngle, doc("From where the camera looks.")]
    cameraMotion: NotRequired[Annotated[CameraMotion, doc("What the camera does.", "static")]]
    confidence: NotRequired[Annotated[Share, doc("Of the cut that opens it, 0 to 1.")]]
    thumbnailUrl: NotRequired[Annotated[Url, doc("A still; signed, needs no key, expires.")]]
    objectTracks: NotRequired[
        Annotated[
            list[ObjectTrack],
            doc(
                "When things of known classes are in the picture, sampled once a "
                "second, by start; empty where no detector of objects serves."
            ),
        ]
    ]
    onScreenText: NotRequired[
        Annotated[
            list[TextLine],
            doc(
                "Writing read in one of its stills, top to bottom. Absent from scenes "
                "that were analysed before writing was read."
            ),
        ]
    ]


class SceneList(TypedDict):
    """The scenes of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    scenes: Annotated[list[Scene], doc("Cover the whole video; empty when it has no cuts.")]


class ProcessedScene(Scene):
    """A scene with the field that older clients read."""

    endTs: Annotated[Seconds, doc("The same as `endTime`.")]


class TranscriptEntry(TypedDict):
    """A transcript segment as older clients read it."""

    StartTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    EndTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    Text: Annotated[str, doc("What is said.", "Good morning.")]
    Speaker: Annotated[str | None, doc("Who says it.", "Speaker 1")]


class ProcessedData(TypedDict):
    """The results of a job, each only once its stage is completed."""

    length: Annotated[float | None, doc("Of the media, in seconds; null until it is known.")]
    scenes: NotRequired[list[ProcessedScene]]
    transcript: NotRequired[list[TranscriptEntry]]


class Job(JobSummary):
    """A job with its links and, where asked for, its results."""

    links: Links
    warnings: Annotated[list[JobWarning], doc("What else is worth knowing.")]
    processedData: NotRequired[ProcessedData]
    clips: NotRequired[
        Annotated[list[ProgrammeClip], doc("Of a continuous programme: its clips in order.")]
    ]


_RESUMABLE = (
    "The same file over tus 1.0.0, which goes on where a broken upload stopped: an upload that is "
    "created already, for `HEAD`, `PATCH`, `DELETE` and `OPTIONS`, with the extensions checksum, "
    "expiration and termination. Its length is deferred where `fileSizeBytes` was not given: state "
    "it as `Upload-Length` of a `PATCH`, the last at the latest (tus-js-client: "
    "`uploadLengthDeferred: true`). "
    "Signed, needs no key; pages of any origin may use it."
)
_UploadHeaders = Annotated[
    dict[str, str],
    doc("Headers to send with the upload.", {"Content-Type": "application/octet-stream"}),
]


class AudioTrackUpload(TypedDict):
    """Where one separate audio file goes."""

    trackIndex: Annotated[Count, doc("Position in `audioTracks`.")]
    url: Annotated[Url, doc("Where to `PUT` the file; signed, needs no key.")]
    resumableUrl: Annotated[Url, doc(_RESUMABLE)]
    headers: _UploadHeaders


class CreatedUploadJob(Job):
    """A job that waits for its upload."""

    uploadUrl: Annotated[Url, doc("Where to `PUT` the media; signed, needs no key.")]
    resumableUploadUrl: Annotated[Url, doc(_RESUMABLE)]
    uploadMethod: Annotated[Literal["PUT"], doc("Always `PUT`.")]
    uploadHeaders: _UploadHeaders
    expiresInSeconds: Annotated[int, doc("Life of the upload URLs.", 3600, ge=1)]
    maxUploadBytes: Annotated[int, doc("The most that the file's tier takes.", 21474836480, ge=1)]
    audioUploadUrl: NotRequired[Annotated[Url, doc("For `audioFileName`.")]]
    audioResumableUploadUrl: NotRequired[Annotated[Url, doc(f"For `audioFileName`. {_RESUMABLE}")]]
    audioUploadHeaders: NotRequired[
        Annotated[_UploadHeaders, doc("Headers for uploads of separate audio.")]
    ]
    audioTrackUploadUrls: NotRequired[
        Annotated[list[AudioTrackUpload], doc("For `audioTracks`, in their order.")]
    ]


class BatchJob(Job):
    """A job of a batch."""

    batchId: Annotated[Uuid, doc("The batch.")]  # type: ignore[misc]
    index: Annotated[Count, doc("Position of the clip in `clips`.")]  # type: ignore[misc]


class BatchResult(TypedDict):
    """The jobs of a batch."""

    batchId: Annotated[Uuid, doc("The batch.")]
    mode: Annotated[Literal["independent", "continuous"], doc("As requested.")]
    jobs: Annotated[list[BatchJob], doc("In the order of the clips.", min_length=1)]


class JobPage(TypedDict):
    """A page of jobs, newest first."""

    data: Annotated[list[JobSummary], doc("May hold fewer than `limit`.")]
    hasMore: Annotated[bool, doc("Whether another page follows.", False)]
    nextCursor: Annotated[str | None, doc("Pass it as `cursor` for the next page.", None)]
    requestId: NotRequired[RequestId]


class Word(TypedDict):
    """A word and when it is spoken."""

    text: Annotated[str, doc("As written.", "Good")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]


class TranscriptSegment(TypedDict):
    """A sentence-like run of words by one speaker."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    text: Annotated[str, doc("Its words, joined.", "Good morning.")]
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]
    confidence: Share
    words: list[Word]


class Speaker(TypedDict):
    """Somebody who is heard."""

    id: Annotated[str, doc("`speaker_0`, `speaker_1`…", "speaker_0")]
    label: Annotated[str, doc("A name to show.", "Speaker 1")]
    speakingSeconds: Annotated[Seconds, doc("How long they speak in all.")]


class Chapter(TypedDict):
    """A part of the media on one subject."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next chapter's start.")]
    title: Annotated[str, doc("A phrase that was said and tells it from the others.", "Sourdough")]


class ChapterList(TypedDict):
    """The chapters of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    chapters: Annotated[list[Chapter], doc("Cover the whole media; empty when nothing is said.")]


class SummarySentence(TypedDict):
    """A sentence of a summary."""

    text: Annotated[str, doc("Written by a model.", "A baker shows how a sourdough is kept.")]
    startTime: Annotated[Seconds, doc("Where what it rests on begins to be said.")]
    endTime: Annotated[Seconds, doc("Where that ends.")]


class Summary(TypedDict):
    """What is said in a job's media, in few sentences."""

    jobId: Annotated[Uuid, doc("The job.")]
    sentences: Annotated[list[SummarySentence], doc("To be read in order; empty without speech.")]


class AudioTrack(TypedDict):
    """One audio track of a multi-track job."""

    trackIndex: Annotated[Count, doc("From 0.")]
    trackName: Annotated[str, doc("Its label, or the name of its file.", "Lavalier")]
    status: StageStatus
    transcript: Annotated[list[TranscriptEntry], doc("Empty until it is transcribed.")]
    speakers: Annotated[list[str], doc("In order of first appearance.")]
    language: NotRequired[Annotated[str, doc("BCP 47; left out where there is none.", "en")]]
    errorCode: NotRequired[StageCode]


class AudioTrackList(TypedDict):
    """The audio tracks of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    tracks: Annotated[list[AudioTrack], doc("By `trackIndex`.", min_length=2)]


class Transcript(TypedDict):
    """What is said, by whom and when."""

    jobId: Annotated[Uuid, doc("The job.")]
    language: Annotated[str | None, doc("BCP 47.", "en")]
    speakers: Annotated[list[Speaker], doc("In order of first appearance.")]
    text: Annotated[str, doc("The segments, a line each.", "Good morning.")]
    segments: Annotated[list[TranscriptSegment], doc("In order of time.")]
    trackIndex: NotRequired[Annotated[Count, doc("On multi-track jobs.")]]
    trackName: NotRequired[Annotated[str, doc("On multi-track jobs.")]]
    tracks: NotRequired[
        Annotated[list[AudioTrack], doc("On multi-track jobs, unless one track was asked for.")]
    ]
