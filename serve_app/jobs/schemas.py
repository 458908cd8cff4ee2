"""Request bodies about jobs. Strict: no coercion; unknown fields are ignored.

Names are those of the wire.
"""

# ruff: noqa: N815
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from models.contracts import SAME_LANGUAGES, SPOKEN_LANGUAGES
from pipelines import collection
from pipelines.collection import BucketAccess, plain_file_name
from pipelines.net.addresses import MAX_CALLBACK_URL_LENGTH, MAX_URL_LENGTH
from serve_app.api.schemas import NO_NUL_PATTERN, WHOLE, doc, each_once
from serve_app.api.urls import CallbackUrl, uri
from serve_app.jobs.answers import Metadata
from serve_app.results.redaction import RedactedKinds

MAX_AUDIO_TRACKS = 16
MAX_CLIPS = 100
MAX_OFFSET_MS = 86_400_000
MAX_SPEAKERS = collection.MAX_SPEAKERS
MAX_KEYTERMS, MAX_FILE_NAME = collection.MAX_KEYTERMS, collection.MAX_FILE_NAME
MAX_LANGUAGES = 10
MOST_SOURCE_SECONDS = 365 * 86_400

_LONGEST_NAME = 100
"""Characters of an unknown field's name that are shown."""


FILE_NAME_PATTERN = r"^([^\u0000-\u001f\u007f]*[/\\])?(?!\.{1,2}$)[^/\\\u0000-\u001f\u007f]+$"
IDEMPOTENCY_KEY_PATTERN = "^[ -~]{1,255}$"
FileName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_FILE_NAME, json_schema_extra={"pattern": FILE_NAME_PATTERN}),
    AfterValidator(plain_file_name),
]
Tag = Annotated[
    str,
    Field(max_length=50, pattern=r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"),
]
Tags = Annotated[
    list[Tag],
    Field(max_length=20, json_schema_extra={"uniqueItems": True}),
    each_once("tag"),
    doc("Words that put jobs together; lists filter by one.", ["council"]),
]
MEDIA_URL_PATTERN = "^([Hh][Tt][Tt][Pp][Ss]?|[Ss]3|[Gg][Ss])://"
MediaUrl = Annotated[str, uri(MEDIA_URL_PATTERN, MAX_URL_LENGTH)]
"""What is wrong with it, its length too, is refused with INVALID_URL."""
Token = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$")]
DownloadToken = Annotated[
    Token | None, doc("Sent as `Authorization: Bearer` to this URL's own origin only.")
]
OffsetMs = Annotated[
    Annotated[int, Field(ge=-MAX_OFFSET_MS, le=MAX_OFFSET_MS), WHOLE] | None,
    doc(
        "Milliseconds; positive: the audio starts that much after the picture. "
        "Required where the sync mode is `offset`."
    ),
]
SyncMode = Annotated[
    Literal["auto", "timecode", "offset"],
    doc(
        "How the audio is aligned: by itself (`auto`), by timecode, or by the given "
        "offset, which is what happens where an offset is given and no mode."
    ),
]
Provider = Annotated[
    Literal["gdrive", "dropbox"] | None, doc("Turns a share link into its direct download.")
]
Channel = Annotated[int, Field(ge=0, le=31), WHOLE]
Channels = Annotated[list[Channel], Field(min_length=1, max_length=32)]


def _listed(value: Any) -> Any:
    """Return one number as a list of it."""
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


Keyterm = Annotated[
    str, Field(min_length=1, max_length=100, json_schema_extra={"pattern": NO_NUL_PATTERN})
]


def _either_case(subtag: str) -> str:
    return "".join(f"[{each.upper()}{each}]" for each in subtag)


LANGUAGE_PATTERN = (
    f"^({'|'.join(map(_either_case, sorted(SPOKEN_LANGUAGES | set(SAME_LANGUAGES))))})"
    "(-[A-Za-z0-9]{1,8}){0,6}$"
)


def _known_language(value: str) -> str:
    if not re.match(LANGUAGE_PATTERN, value):
        raise PydanticCustomError("language", "is no language that can be transcribed")
    return value


SpokenLanguage = Annotated[
    str,
    Field(max_length=60, json_schema_extra={"pattern": LANGUAGE_PATTERN}),
    AfterValidator(_known_language),
]


def _needs(condition: str, value: str, field: str) -> dict[str, Any]:
    return {
        "if": {"required": [condition], "properties": {condition: {"const": value}}},
        "then": {"required": [field], "properties": {field: {"type": "integer"}}},
    }


def _exclude(first: str, second: str) -> dict[str, Any]:
    """Not both of two fields, null counting as absent."""
    given = {"not": {"type": "null"}}
    return {"not": {"required": [first, second], "properties": {first: given, second: given}}}


def _accompanies(field: str, other: str) -> dict[str, object]:
    """Whoever gives ``field`` gives ``other`` too, null counting as absent."""
    return {
        "if": {"required": [field], "properties": {field: {"not": {"type": "null"}}}},
        "then": {"required": [other], "properties": {other: {"not": {"type": "null"}}}},
    }


def _ruled(*rules: dict[str, Any]) -> ConfigDict:
    """Return the rules between fields that the validators below hold, in the words of JSON
    Schema."""
    return ConfigDict(json_schema_extra={"allOf": list(rules)})


class Body(BaseModel):
    """Strict about types; fields that it does not know are ignored, see ``unknown_fields``."""

    model_config = ConfigDict(strict=True, extra="ignore")
    _unknown: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _remember_unknown(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        body = validate(given)
        if isinstance(given, dict):
            unknown = tuple(name for name in given if name not in cls.model_fields)
            body._unknown = unknown  # noqa: SLF001  (of our own class)
        return body

    def unknown_fields(self, path: str = "") -> Iterator[tuple[str, list[str]]]:
        """Yield each field given that there is none of, and the fields that there are in its
        place."""
        known = [path + name for name in type(self).model_fields]
        for name in self._unknown:
            shown = "".join(each if each.isprintable() else "?" for each in name[:_LONGEST_NAME])
            yield path + shown, known
        for field, value in self:
            if isinstance(value, Body):
                yield from value.unknown_fields(f"{path}{field}.")
            for index, each in enumerate(value if isinstance(value, list) else ()):
                if isinstance(each, Body):
                    yield from each.unknown_fields(f"{path}{field}[{index}].")


class RetentionOptions(Body):
    """How long a job keeps its media and its results, where not as long as its account's jobs."""

    sourceSeconds: Annotated[
        Annotated[int, Field(ge=0, le=MOST_SOURCE_SECONDS), WHOLE] | None,
        doc("Media, segments and unused stills.", 0),
    ] = None
    resultDays: Annotated[
        Annotated[int, Field(ge=0, le=36_500), WHOLE] | None,
        doc("Everything else: then the job is erased, once its webhook was delivered.", 30),
    ] = None


class BucketAccessOptions(Body):
    """How addresses in buckets (`s3://bucket/key`, `gs://bucket/key`) are read."""

    model_config = _ruled(
        _accompanies("accessKeyId", "secretAccessKey"),
        _accompanies("secretAccessKey", "accessKeyId"),
        _accompanies("sessionToken", "accessKeyId"),
    )

    endpoint: Annotated[
        Annotated[str, uri("^[Hh][Tt][Tt][Pp][Ss]?://", MAX_CALLBACK_URL_LENGTH)] | None,
        doc(
            "Server that speaks S3; else Amazon's for `s3` and Google's for `gs`.",
            "https://minio.example.com:9000",
        ),
    ] = None
    region: Annotated[
        Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")] | None,
        doc("Found out at Amazon where it is not given.", "eu-central-1"),
    ] = None
    accessKeyId: Annotated[
        Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")] | None,
        doc("Of Google, an HMAC key. Public buckets are read without."),
    ] = None
    secretAccessKey: Annotated[
        Token | None, doc("Stored encrypted, and shown by nothing. Required with `accessKeyId`.")
    ] = None
    sessionToken: Annotated[Token | None, doc("Of temporary credentials.")] = None

    @model_validator(mode="after")
    def _key_and_secret_belong_together(self) -> Self:
        if (self.accessKeyId is None) != (self.secretAccessKey is None):
            missing = "accessKeyId" if self.accessKeyId is None else "secretAccessKey"
            raise _blaming(missing, "is required: a key and its secret belong together")
        if self.sessionToken is not None and self.accessKeyId is None:
            raise _blaming("accessKeyId", "is required with sessionToken")
        return self

    def access(self) -> BucketAccess:
        """Return the same for what reads buckets."""
        return BucketAccess(
            self.endpoint, self.region, self.accessKeyId, self.secretAccessKey, self.sessionToken
        )


class JobOptions(Body):
    """What every creation takes."""

    processingMode: Annotated[
        Literal["all", "transcript", "vision"], doc("Which analysis stages run.")
    ] = "all"
    priority: Annotated[
        Literal["low", "normal", "high"],
        doc("How urgent it is; refused where the account may not use it."),
    ] = "normal"
    callbackUrl: Annotated[
        CallbackUrl | None, doc("Public HTTPS endpoint that gets the webhook.")
    ] = None
    idempotencyKey: Annotated[
        Annotated[str, Field(json_schema_extra={"pattern": IDEMPOTENCY_KEY_PATTERN})] | None,
        doc("The same as the `Idempotency-Key` header."),
    ] = None
    metadata: Metadata | None = None
    tags: Tags | None = None
    keyterms: Annotated[
        Annotated[list[Keyterm], Field(max_length=MAX_KEYTERMS)] | None,
        doc("Words that the transcription should know."),
    ] = None
    language: Annotated[
        SpokenLanguage | None,
        doc("BCP 47: all that is said is in this language. Detected where it is not given.", "en"),
    ] = None
    languages: Annotated[
        Annotated[
            list[SpokenLanguage],
            Field(min_length=1, max_length=MAX_LANGUAGES, json_schema_extra={"uniqueItems": True}),
            each_once("language"),
        ]
        | None,
        doc("BCP 47: no other language is considered. Without effect beside `language`."),
    ] = None
    people: Annotated[
        bool,
        doc(
            "Put faces of the same person together; refused where the service does not do it. Where"
            " not given, as the account's switch has it."
        ),
    ] = False
    voices: Annotated[
        bool,
        doc(
            "Recognise the voices that the account has named, and keep what the speakers sound like"
            " so that they can be named; refused where the service does not do it. Where not given,"
            " as the account's switch has it."
        ),
    ] = False
    speakersExpected: Annotated[
        Annotated[int, Field(ge=1, le=MAX_SPEAKERS), WHOLE] | None,
        doc("How many people speak, where you know; of several audio tracks, on each of them."),
    ] = None
    speakersAtMost: Annotated[
        Annotated[int, Field(ge=1, le=MAX_SPEAKERS), WHOLE] | None,
        doc("No more people than these speak; not less than `speakersExpected`."),
    ] = None
    channels: Annotated[
        Literal["auto", "separate", "mixed"],
        doc(
            "How the channels of the file's own sound are transcribed: one by one, each a speaker "
            "whose words may overlap those of others (`separate`, up to eight), mixed (`mixed`), "
            "or one by one where each has a voice of its own (`auto`). The price is the same. "
            "Clips of one timeline are mixed; separate audio has `perChannelTranscription`."
        ),
    ] = "auto"

    redact: Annotated[
        RedactedKinds | None,
        doc("Personal data that nothing shows: see `redactJob`.", ["email", "phone", "name"]),
    ] = None
    retention: Annotated[
        RetentionOptions | None,
        doc("Overrides the account's; not longer than the operator allows."),
    ] = None
    bucketAccess: Annotated[
        BucketAccessOptions | None, doc("For the request's addresses in buckets.")
    ] = None

    @model_validator(mode="after")
    def _no_more_speakers_are_expected_than_there_are_at_most(self) -> Self:
        if (self.speakersExpected or 1) > (self.speakersAtMost or MAX_SPEAKERS):
            raise _blaming("speakersAtMost", "must not be less than speakersExpected")
        return self


class AudioTrackOptions(Body):
    """How one separate audio file is aligned and split."""

    syncMode: SyncMode = "auto"
    offsetMs: OffsetMs = None
    label: Annotated[
        Annotated[
            str, Field(min_length=1, max_length=100, json_schema_extra={"pattern": NO_NUL_PATTERN})
        ]
        | None,
        doc("Name of the track."),
    ] = None
    perChannelTranscription: Annotated[bool, doc("Each channel becomes a track of its own.")] = (
        False
    )
    channels: Annotated[
        Channels | None,
        BeforeValidator(_listed, json_schema_input_type=Channels | Channel | None),
        doc("Which channels, from 0, or one of them; all if not given."),
    ] = None

    @model_validator(mode="after")
    def _offset_is_given_where_it_is_needed(self) -> Self:
        if self.offsetMs is not None and "syncMode" not in self.model_fields_set:
            self.syncMode = "offset"
        if self.syncMode == "offset" and self.offsetMs is None:
            raise _blaming("offsetMs", "is required when syncMode is offset")
        return self


class UploadedTrack(AudioTrackOptions):
    """A separate audio file of an uploaded video: uploaded too, or fetched from `url`."""

    model_config = _ruled(
        _needs("syncMode", "offset", "offsetMs"),
        _exclude("fileName", "url"),
        {
            "anyOf": [
                {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
                for name in ("fileName", "url")
            ]
        },
    )

    fileName: Annotated[FileName | None, doc("Of a file that is uploaded.", "lavalier.wav")] = None
    url: Annotated[
        MediaUrl | None, doc("Of a file that the service fetches; may lie in a bucket.")
    ] = None
    downloadToken: DownloadToken = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.fileName is None and self.url is None:
            raise _blaming("fileName", "is required where no url is given")
        if self.fileName is not None and self.url is not None:
            raise _blaming("url", "and fileName exclude each other")
        return self


class FetchedTrack(AudioTrackOptions):
    """A separate audio file that is fetched."""

    model_config = _ruled(_needs("syncMode", "offset", "offsetMs"))

    url: Annotated[MediaUrl, doc("Public http or https address, or one in a bucket, of the file.")]
    downloadToken: DownloadToken = None


class SeparateAudio(JobOptions):
    """Options of a single separate audio file, for uploads and URLs alike."""

    audioSyncMode: SyncMode = "auto"
    audioOffsetMs: OffsetMs = None

    @model_validator(mode="after")
    def _audio_offset_is_given_where_it_is_needed(self) -> Self:
        if self.audioOffsetMs is not None and "audioSyncMode" not in self.model_fields_set:
            self.audioSyncMode = "offset"
        if self.audioSyncMode == "offset" and self.audioOffsetMs is None:
            raise _blaming("audioOffsetMs", "is required when audioSyncMode is offset")
        return self

    @model_validator(mode="after")
    def _one_kind_of_separate_audio(self) -> Self:
        given = dict(self)
        for single in ("audioFileName", "audioUrl"):
            if given.get(single) is not None and given["audioTracks"] is not None:
                raise _blaming("audioTracks", f"and {single} exclude each other")
        return self


class CreateJobBody(SeparateAudio):
    """Body of ``POST /jobs``."""

    model_config = _ruled(
        _needs("audioSyncMode", "offset", "audioOffsetMs"), _exclude("audioFileName", "audioTracks")
    )

    fileName: Annotated[FileName, doc("Only the last path component is kept.", "interview.mp4")]
    fileSizeBytes: Annotated[
        Annotated[int, Field(ge=1), WHOLE] | None,
        doc(
            "Lets an oversized file be refused before it is sent; a file of another "
            "size is refused, and an empty one always."
        ),
    ] = None
    audioFileName: Annotated[FileName | None, doc("A separate audio file, to be uploaded too.")] = (
        None
    )
    audioTracks: Annotated[
        Annotated[list[UploadedTrack], Field(min_length=1, max_length=MAX_AUDIO_TRACKS)] | None,
        doc("Separate audio in several files."),
    ] = None


class CreateJobFromUrlBody(SeparateAudio):
    """Body of ``POST /jobs/from-url``."""

    model_config = _ruled(
        _needs("audioSyncMode", "offset", "audioOffsetMs"), _exclude("audioUrl", "audioTracks")
    )

    url: Annotated[
        MediaUrl,
        doc(
            "Public http or https address, or one in a bucket, of the media.",
            "https://media.example.com/interview.mp4",
        ),
    ]
    fileName: Annotated[FileName | None, doc("Only the last path component is kept.")] = None
    downloadToken: DownloadToken = None
    provider: Provider = None
    audioUrl: Annotated[
        MediaUrl | None, doc("Public http or https address of a separate audio file.")
    ] = None
    audioDownloadToken: DownloadToken = None
    audioTracks: Annotated[
        Annotated[list[FetchedTrack], Field(min_length=1, max_length=MAX_AUDIO_TRACKS)] | None,
        doc("Separate audio in several files."),
    ] = None


class JobChangesBody(Body):
    """Body of ``PATCH /jobs/{jobId}``: what is not given stays."""

    fileName: FileName | None = None
    metadata: Metadata | None = None
    tags: Tags | None = None
    priority: Annotated[
        Literal["low", "normal", "high"] | None,
        doc("Of a job that waits; refused where the account may not use it, or later."),
    ] = None
    retention: RetentionOptions | None = None


class Clip(Body):
    """One clip of a batch."""

    sourceUrl: Annotated[
        MediaUrl,
        doc(
            "Public http or https address, or one in a bucket, of the clip.",
            "https://media.example.com/a.mp4",
        ),
    ]
    fileName: FileName | None = None
    downloadToken: DownloadToken = None
    provider: Provider = None
    metadata: Metadata | None = None


class CreateBatchBody(JobOptions):
    """Body of ``POST /jobs/batch``."""

    mode: Annotated[
        Literal["independent", "continuous"], doc("A job a clip, or all clips as one programme.")
    ]
    clips: Annotated[list[Clip], doc("The clips, in order.", min_length=1, max_length=MAX_CLIPS)]


def _blaming(field: str, message: str) -> ValidationError:
    """Return an error of a field, found by a rule between fields."""
    error = InitErrorDetails(
        type=PydanticCustomError("rule", f"{field} {message}"), loc=(field,), input=None
    )
    return ValidationError.from_exception_data("body", [error])
