"""Request bodies of job creation. Strict: no coercion; unknown fields are ignored.

Names are those of the wire.
"""

# ruff: noqa: N815
from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipelines.net.addresses import MAX_URL_LENGTH
from serve_app.api.urls import CallbackUrl
from serve_app.jobs.metadata import Metadata

MAX_AUDIO_TRACKS = 16
MAX_CLIPS = 100
MAX_OFFSET_MS = 86_400_000
MAX_KEYTERMS = 100
MAX_SPEAKERS = 20

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


def plain_file_name(value: str) -> str:
    """Only the last path component counts, whichever way its slashes lean."""
    if _CONTROL_CHARACTERS.search(value):
        raise PydanticCustomError("file_name", "must not hold control characters")
    name = re.split(r"[/\\]", value)[-1]
    if name in {"", ".", ".."}:
        raise PydanticCustomError("file_name", "must name a file")
    return name


def whole_number(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is the integer 5 (JSON Schema, "integer")."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole_number)
"""Last in an annotation, so that the bounds before it stand in the JSON schema."""
FileName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(plain_file_name)]
MediaUrl = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_URL_LENGTH})]
"""What is wrong with it, its length too, is said with INVALID_URL."""
Token = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$")]
OffsetMs = Annotated[int, Field(ge=-MAX_OFFSET_MS, le=MAX_OFFSET_MS), WHOLE]
SyncMode = Literal["auto", "timecode", "offset"]
Provider = Literal["gdrive", "dropbox"]
Keyterm = Annotated[str, Field(min_length=1, max_length=100)]


class Body(BaseModel):
    """Strict about types, indifferent to fields it does not know."""

    model_config = ConfigDict(strict=True, extra="ignore")


class JobOptions(Body):
    """What every creation takes."""

    processingMode: Literal["all", "transcript", "vision"] = "all"
    callbackUrl: CallbackUrl | None = None
    idempotencyKey: str | None = None
    metadata: Metadata | None = None
    keyterms: Annotated[list[Keyterm], Field(max_length=MAX_KEYTERMS)] | None = None
    speakersExpected: Annotated[int, Field(ge=1, le=MAX_SPEAKERS), WHOLE] | None = None


class AudioTrackOptions(Body):
    """How one separate audio file is aligned and split."""

    syncMode: SyncMode = "auto"
    offsetMs: OffsetMs | None = None
    label: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    perChannelTranscription: bool = False
    channels: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=31), WHOLE]], Field(min_length=1, max_length=32)
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _offset_is_given_where_it_is_needed(self) -> Self:
        if self.offsetMs is not None and "syncMode" not in self.model_fields_set:
            self.syncMode = "offset"
        if self.syncMode == "offset" and self.offsetMs is None:
            raise _blaming("offsetMs", "is required when syncMode is offset")
        return self


class UploadedTrack(AudioTrackOptions):
    """A separate audio file that is uploaded."""

    fileName: FileName


class FetchedTrack(AudioTrackOptions):
    """A separate audio file that is fetched."""

    url: MediaUrl
    downloadToken: Token | None = None


class SeparateAudio(JobOptions):
    """Options of a single separate audio file, for uploads and URLs alike."""

    audioSyncMode: SyncMode = "auto"
    audioOffsetMs: OffsetMs | None = None

    @model_validator(mode="after")
    def _audio_offset_is_given_where_it_is_needed(self) -> Self:
        if self.audioOffsetMs is not None and "audioSyncMode" not in self.model_fields_set:
            self.audioSyncMode = "offset"
        if self.audioSyncMode == "offset" and self.audioOffsetMs is None:
            raise _blaming("audioOffsetMs", "is required when audioSyncMode is offset")
        return self


class CreateJobBody(SeparateAudio):
    """Body of ``POST /jobs``."""

    fileName: FileName
    fileSizeBytes: Annotated[int, Field(ge=0), WHOLE] | None = None
    audioFileName: FileName | None = None
    audioTracks: (
        Annotated[list[UploadedTrack], Field(min_length=1, max_length=MAX_AUDIO_TRACKS)] | None
    ) = None

    @model_validator(mode="after")
    def _one_kind_of_separate_audio(self) -> Self:
        if self.audioFileName is not None and self.audioTracks is not None:
            raise _blaming("audioTracks", "and audioFileName exclude each other")
        return self


class CreateJobFromUrlBody(SeparateAudio):
    """Body of ``POST /jobs/from-url``."""

    url: MediaUrl
    fileName: FileName | None = None
    downloadToken: Token | None = None
    provider: Provider | None = None
    audioUrl: MediaUrl | None = None
    audioDownloadToken: Token | None = None
    audioTracks: (
        Annotated[list[FetchedTrack], Field(min_length=1, max_length=MAX_AUDIO_TRACKS)] | None
    ) = None

    @model_validator(mode="after")
    def _one_kind_of_separate_audio(self) -> Self:
        if self.audioUrl is not None and self.audioTracks is not None:
            raise _blaming("audioTracks", "and audioUrl exclude each other")
        return self


class Clip(Body):
    """One clip of a batch."""

    sourceUrl: MediaUrl
    fileName: FileName | None = None
    downloadToken: Token | None = None
    provider: Provider | None = None
    metadata: Metadata | None = None


class CreateBatchBody(JobOptions):
    """Body of ``POST /jobs/batch``."""

    mode: Literal["independent", "continuous"]
    clips: Annotated[list[Clip], Field(min_length=1, max_length=MAX_CLIPS)]


def _blaming(field: str, message: str) -> ValidationError:
    """An error of a field, found by a rule between fields."""
    error = InitErrorDetails(
        type=PydanticCustomError("rule", f"{field} {message}"),
        loc=(field,),
        input=None,
    )
    return ValidationError.from_exception_data("body", [error])
