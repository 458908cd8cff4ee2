"""Answers about jobs, as ``rendering`` makes them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from pipelines.types import StageCode, WarningCode
from serve_app.api.schemas import Count, RequestId, Seconds, Share, Timestamp, Url, Uuid, doc
from serve_app.jobs.metadata import EchoedMetadata
from serve_app.results.redaction import RedactionJson
from serve_app.results.scenes import OVERVIEW, OverviewJson, ProcessedScene
from serve_app.results.transcripts import TranscriptEntry
from storage.job_records import LEGACY_STATUSES
from storage.types import (
    JobState,
    Priority,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
    Tier,
)

FileName = Annotated[str, doc("Name of the media file.", "interview.mp4")]


class ProcessedData(TypedDict):
    """The results of a job, each only once its stage is completed."""

    length: Annotated[float | None, doc("Of the media, in seconds; null until it is known.")]
    scenes: NotRequired[list[ProcessedScene]]
    overview: NotRequired[Annotated[OverviewJson, doc(OVERVIEW)]]
    transcript: NotRequired[list[TranscriptEntry]]


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
    priority: Priority
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
    erasedAt: NotRequired[Annotated[Timestamp, doc("When its content was erased.")]]
    rerunOf: NotRequired[
        Annotated[Uuid, doc("The job whose results it renews; then it has those it replaced.")]
    ]
    redaction: NotRequired[Annotated[RedactionJson, doc("Where personal data is hidden.")]]
    batchId: NotRequired[Annotated[Uuid, doc("The batch that the job came from.")]]
    index: NotRequired[Annotated[Count, doc("Position of its clip in that batch.")]]
    audioTrackCount: NotRequired[
        Annotated[int, doc("On multi-track jobs; until ingest as the request says.", ge=2)]
    ]
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


class RetentionJson(TypedDict):
    """How long a job keeps things after its end, as its creation had it."""

    sourceSeconds: NotRequired[Annotated[Count, doc("Media, segments and unused stills.", 0)]]
    resultDays: NotRequired[Annotated[Count, doc("Everything else; then it is erased.", 30)]]


class Job(JobSummary):
    """A job with its links and, where included, its results."""

    links: Links
    retention: NotRequired[
        Annotated[RetentionJson, doc("Where chosen; else its account's, or the service's.")]
    ]
    warnings: Annotated[list[JobWarning], doc("What else is worth knowing.")]
    processedData: NotRequired[ProcessedData]
    clips: NotRequired[
        Annotated[list[ProgrammeClip], doc("Of a continuous programme: its clips in order.")]
    ]
    queuePosition: NotRequired[
        Annotated[
            int | None,
            doc(
                "While it waits for its turn: 1 is the next. Null beyond 10,000, and while it "
                "waits for other jobs of its account to end."
            ),
        ]
    ]
    estimatedStartSeconds: NotRequired[
        Annotated[
            float | None,
            doc(
                "While it waits: seconds until its turn, by what the last completed jobs took. "
                "Null where that is not known."
            ),
        ]
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
