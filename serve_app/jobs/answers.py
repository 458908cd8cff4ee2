"""Answers about jobs and their results, as ``rendering`` and ``results`` make them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from models.contracts import CameraMotion, ShotAngle, ShotType
from pipelines.types import StageCode
from serve_app.api.schemas import Count, RequestId, Seconds, Share, Timestamp, Url, Uuid
from serve_app.jobs.metadata import EchoedMetadata
from storage.job_lists import LEGACY_STATUSES
from storage.types import JobState, ProcessingMode, SkipReason, StageStatus, Tier

FileName = Annotated[str, Field(description="Name of the media file.", examples=["interview.mp4"])]


class JobError(TypedDict):
    """Why a job or a stage failed."""

    code: StageCode
    message: NotRequired[Annotated[str | None, Field(description="For people; may change.")]]


class JobWarning(TypedDict):
    """What a client should know although the work went on."""

    code: Annotated[str, Field(description="Stable.", examples=["AUDIO_SYNC_UNCERTAIN"])]
    message: Annotated[str, Field(description="For people.")]


class Stage(TypedDict):
    """One stage of a job."""

    status: Annotated[StageStatus, Field(examples=["completed"])]
    progress: Annotated[Share, Field(examples=[1.0])]
    reason: NotRequired[SkipReason]
    error: NotRequired[
        Annotated[JobError, Field(description="Of a failed or cancelled stage; not in lists.")]
    ]


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

    jobId: Annotated[Uuid, Field(description="The job's id.")]
    state: Annotated[JobState, Field(examples=["completed"])]
    processingMode: ProcessingMode
    stages: Stages
    metadata: EchoedMetadata
    fileName: FileName
    tier: Tier
    createdAt: Annotated[Timestamp, Field(description="When the job was created.")]
    startedAt: Annotated[Timestamp | None, Field(description="When work on it began.")]
    completedAt: Annotated[Timestamp | None, Field(description="When it reached a final state.")]
    durationSeconds: Annotated[
        float | None, Field(description="Of the media; null until ingest knows it.")
    ]
    progress: Annotated[
        Share, Field(description="0 to 1 over the stages that run.", examples=[1.0])
    ]
    chargedCents: Annotated[
        Count, Field(description="What its completed stages cost, in US cents.")
    ]
    callbackUrl: Annotated[Url | None, Field(description="Where its webhook goes.")]
    originalFilename: Annotated[
        FileName, Field(description="The same as `fileName`, for older clients.")
    ]
    status: Annotated[
        str,
        Field(
            description="The state as older clients read it.",
            json_schema_extra={"enum": list(LEGACY_STATUSES)},
        ),
    ]
    estimatedCompletionTimeSeconds: Annotated[
        float | None,
        Field(
            description="Seconds until it is done, while its stages run and their pace is known."
        ),
    ]
    error: NotRequired[Annotated[JobError, Field(description="Present when `state` is `failed`.")]]
    errorMessage: NotRequired[
        Annotated[str | None, Field(description="The message of `error`, for older clients.")]
    ]
    batchId: NotRequired[Annotated[Uuid, Field(description="The batch that the job came from.")]]
    index: NotRequired[Annotated[Count, Field(description="Position of its clip in that batch.")]]
    audioTrackCount: NotRequired[Annotated[int, Field(ge=2, description="On multi-track jobs.")]]
    audioTracksCompleted: NotRequired[Annotated[Count, Field(description="On multi-track jobs.")]]
    audioTrackNames: NotRequired[
        Annotated[list[str], Field(description="On multi-track jobs, by track index.")]
    ]


class Links(TypedDict):
    """Absolute URLs of a job and its results."""

    self: Annotated[Url, Field(description="The job.")]
    transcript: Annotated[Url, Field(description="Its transcript.")]
    scenes: Annotated[Url, Field(description="Its scenes.")]


class ProgrammeClip(TypedDict):
    """A clip of a continuous programme, on the common timeline."""

    index: Annotated[Count, Field(description="Position in `clips` of the request.")]
    fileName: Annotated[str | None, Field(description="Its name.")]
    startTime: Annotated[
        Seconds | None, Field(description="Seconds. Null until ingest has seen all clips.")
    ]
    durationSeconds: Annotated[
        Seconds | None, Field(description="Null until ingest has seen all clips.")
    ]
    metadata: Annotated[EchoedMetadata, Field(description="The clip's own, as given.")]


class ObjectTrack(TypedDict):
    """A thing in a stretch of a scene."""

    label: Annotated[str, Field(description="A lower-case noun.", examples=["woman"])]
    start: Annotated[Seconds, Field(description="Where it begins, in seconds of the media.")]
    end: Annotated[Seconds, Field(description="Where it ends, in seconds of the media.")]
    confidence: Share


class Box(TypedDict):
    """A rectangle in the picture, in shares of its width and height."""

    left: Annotated[Share, Field(description="Of its left edge.")]
    top: Annotated[Share, Field(description="Of its upper edge.")]
    width: Annotated[Share, Field(description="How wide it is.")]
    height: Annotated[Share, Field(description="How high it is.")]


class TextLine(TypedDict):
    """A line of writing on the screen."""

    text: Annotated[str, Field(description="As read.", examples=["Anna Weber, baker"])]
    confidence: Share
    box: Box


class Scene(TypedDict):
    """A stretch between two cuts."""

    index: Annotated[Count, Field(description="From 0.")]
    startTime: Annotated[Seconds, Field(description="Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, Field(description="Where it ends: the next scene's start.")]
    description: Annotated[
        str,
        Field(
            description="What is seen, in one or two sentences.",
            examples=["A woman speaks to the camera in a bright kitchen."],
        ),
    ]
    objects: Annotated[
        list[str],
        Field(
            description="What is in it: lower-case nouns, sorted.", examples=[["kettle", "woman"]]
        ),
    ]
    colorPalette: Annotated[
        list[Annotated[str, Field(pattern="^#[0-9a-f]{6}$")]],
        Field(
            description="Its colours, most of the picture first.",
            min_length=1,
            max_length=5,
            examples=[["#e8e2d6", "#6b4f3a", "#2f3a40"]],
        ),
    ]
    shotType: Annotated[ShotType, Field(description="How much of the subject is in the frame.")]
    shotAngle: Annotated[ShotAngle, Field(description="From where the camera looks.")]
    cameraMotion: NotRequired[
        Annotated[CameraMotion, Field(description="What the camera does.", examples=["static"])]
    ]
    confidence: NotRequired[
        Annotated[Share, Field(description="Of the cut that opens it, 0 to 1.")]
    ]
    thumbnailUrl: NotRequired[
        Annotated[Url, Field(description="A still; signed, needs no key, expires.")]
    ]
    objectTracks: NotRequired[
        Annotated[
            list[ObjectTrack],
            Field(
                description="When things of known classes are in the picture, sampled once a "
                "second, by start; empty where no detector of objects serves.",
            ),
        ]
    ]
    onScreenText: NotRequired[
        Annotated[
            list[TextLine],
            Field(
                description="Writing read in one of its stills, top to bottom. Absent from scenes "
                "that were analysed before writing was read.",
            ),
        ]
    ]


class SceneList(TypedDict):
    """The scenes of a job."""

    jobId: Annotated[Uuid, Field(description="The job.")]
    scenes: Annotated[
        list[Scene], Field(description="Cover the whole video; empty when it has no cuts.")
    ]


class ProcessedScene(Scene):
    """A scene with the field that older clients read."""

    endTs: Annotated[Seconds, Field(description="The same as `endTime`.")]


class TranscriptEntry(TypedDict):
    """A transcript segment as older clients read it."""

    StartTime: Annotated[Seconds, Field(description="Where it begins, in seconds of the media.")]
    EndTime: Annotated[Seconds, Field(description="Where it ends, in seconds of the media.")]
    Text: Annotated[str, Field(description="What is said.", examples=["Good morning."])]
    Speaker: Annotated[str | None, Field(description="Who says it.", examples=["Speaker 1"])]


class ProcessedData(TypedDict):
    """The results of a job, each only once its stage is completed."""

    length: Annotated[
        float | None, Field(description="Of the media, in seconds; null until it is known.")
    ]
    scenes: NotRequired[list[ProcessedScene]]
    transcript: NotRequired[list[TranscriptEntry]]


class Job(JobSummary):
    """A job with its links and, where asked for, its results."""

    links: Links
    warnings: Annotated[list[JobWarning], Field(description="What else is worth knowing.")]
    processedData: NotRequired[ProcessedData]
    clips: NotRequired[
        Annotated[
            list[ProgrammeClip], Field(description="Of a continuous programme: its clips in order.")
        ]
    ]


_RESUMABLE = (
    "The same file over tus 1.0.0, which goes on where a broken upload stopped: an upload that is "
    "created already, for `HEAD`, `PATCH`, `DELETE` and `OPTIONS`, with the extensions checksum, "
    "expiration and termination. Its length is deferred where `fileSizeBytes` was not given. "
    "Signed, needs no key; pages of any origin may use it."
)
_UploadHeaders = Annotated[
    dict[str, str],
    Field(
        description="Headers to send with the upload.",
        examples=[{"Content-Type": "application/octet-stream"}],
    ),
]


class AudioTrackUpload(TypedDict):
    """Where one separate audio file goes."""

    trackIndex: Annotated[Count, Field(description="Position in `audioTracks`.")]
    url: Annotated[Url, Field(description="Where to `PUT` the file; signed, needs no key.")]
    resumableUrl: Annotated[Url, Field(description=_RESUMABLE)]
    headers: _UploadHeaders


class CreatedUploadJob(Job):
    """A job that waits for its upload."""

    uploadUrl: Annotated[Url, Field(description="Where to `PUT` the media; signed, needs no key.")]
    resumableUploadUrl: Annotated[Url, Field(description=_RESUMABLE)]
    uploadMethod: Annotated[Literal["PUT"], Field(description="Always `PUT`.")]
    uploadHeaders: _UploadHeaders
    expiresInSeconds: Annotated[
        int, Field(ge=1, description="Life of the upload URLs.", examples=[3600])
    ]
    maxUploadBytes: Annotated[
        int, Field(ge=1, description="The most that the file's tier takes.", examples=[21474836480])
    ]
    audioUploadUrl: NotRequired[Annotated[Url, Field(description="For `audioFileName`.")]]
    audioResumableUploadUrl: NotRequired[
        Annotated[Url, Field(description=f"For `audioFileName`. {_RESUMABLE}")]
    ]
    audioUploadHeaders: NotRequired[
        Annotated[_UploadHeaders, Field(description="Headers for uploads of separate audio.")]
    ]
    audioTrackUploadUrls: NotRequired[
        Annotated[list[AudioTrackUpload], Field(description="For `audioTracks`, in their order.")]
    ]


class BatchJob(Job):
    """A job of a batch."""

    batchId: Annotated[Uuid, Field(description="The batch.")]  # type: ignore[misc]
    index: Annotated[Count, Field(description="Position of the clip in `clips`.")]  # type: ignore[misc]


class BatchResult(TypedDict):
    """The jobs of a batch."""

    batchId: Annotated[Uuid, Field(description="The batch.")]
    mode: Annotated[Literal["independent", "continuous"], Field(description="As requested.")]
    jobs: Annotated[list[BatchJob], Field(min_length=1, description="In the order of the clips.")]


class JobPage(TypedDict):
    """A page of jobs, newest first."""

    data: Annotated[list[JobSummary], Field(description="May hold fewer than `limit`.")]
    hasMore: Annotated[bool, Field(description="Whether another page follows.", examples=[False])]
    nextCursor: Annotated[
        str | None, Field(description="Pass it as `cursor` for the next page.", examples=[None])
    ]
    requestId: NotRequired[RequestId]


class Word(TypedDict):
    """A word and when it is spoken."""

    text: Annotated[str, Field(description="As written.", examples=["Good"])]
    startTime: Annotated[Seconds, Field(description="Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, Field(description="Where it ends, in seconds of the media.")]
    confidence: Share
    speaker: Annotated[str | None, Field(description="A speaker's `id`.", examples=["speaker_0"])]


class TranscriptSegment(TypedDict):
    """A sentence-like run of words by one speaker."""

    index: Annotated[Count, Field(description="From 0.")]
    startTime: Annotated[Seconds, Field(description="Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, Field(description="Where it ends, in seconds of the media.")]
    text: Annotated[str, Field(description="Its words, joined.", examples=["Good morning."])]
    speaker: Annotated[str | None, Field(description="A speaker's `id`.", examples=["speaker_0"])]
    confidence: Share
    words: list[Word]


class Speaker(TypedDict):
    """Somebody who is heard."""

    id: Annotated[str, Field(description="`speaker_0`, `speaker_1`…", examples=["speaker_0"])]
    label: Annotated[str, Field(description="A name to show.", examples=["Speaker 1"])]
    speakingSeconds: Annotated[Seconds, Field(description="How long they speak in all.")]


class AudioTrack(TypedDict):
    """One audio track of a multi-track job."""

    trackIndex: Annotated[Count, Field(description="From 0.")]
    trackName: Annotated[
        str, Field(description="Its label, or the name of its file.", examples=["Lavalier"])
    ]
    status: StageStatus
    transcript: Annotated[
        list[TranscriptEntry], Field(description="Empty until it is transcribed.")
    ]
    speakers: Annotated[list[str], Field(description="In order of first appearance.")]
    language: Annotated[str | None, Field(description="BCP 47.", examples=["en"])]
    errorCode: NotRequired[StageCode]


class AudioTrackList(TypedDict):
    """The audio tracks of a job."""

    jobId: Annotated[Uuid, Field(description="The job.")]
    tracks: Annotated[list[AudioTrack], Field(min_length=2, description="By `trackIndex`.")]


class Transcript(TypedDict):
    """What is said, by whom and when."""

    jobId: Annotated[Uuid, Field(description="The job.")]
    language: Annotated[str | None, Field(description="BCP 47.", examples=["en"])]
    speakers: Annotated[list[Speaker], Field(description="In order of first appearance.")]
    text: Annotated[
        str, Field(description="The segments, a line each.", examples=["Good morning."])
    ]
    segments: Annotated[list[TranscriptSegment], Field(description="In order of time.")]
    trackIndex: NotRequired[Annotated[Count, Field(description="On multi-track jobs.")]]
    trackName: NotRequired[Annotated[str, Field(description="On multi-track jobs.")]]
    tracks: NotRequired[
        Annotated[
            list[AudioTrack],
            Field(description="On multi-track jobs, unless one track was asked for."),
        ]
    ]
