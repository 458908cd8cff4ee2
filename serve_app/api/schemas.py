"""Types of answers that all resources share; those of records are in ``storage.records``.

Answers are ``TypedDict``: they go out as they were rendered, without a second validation, and the
interface document and mypy read the same declaration. ``NotRequired`` is a field that may be
absent, ``X | None`` one that may be null.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from pipelines.types import StageCode
from serve_app.errors import CATALOGUE, ErrorCode
from storage.records import Count, Seconds, Share, Timestamp, Url, Uuid, doc, rendered, timestamp
from storage.types import JobState, Role, SkipReason, StageName, StageStatus, Tier

__all__ = ["Count", "Seconds", "Share", "Timestamp", "Url", "Uuid", "doc", "rendered", "timestamp"]


def each_once(noun: str) -> AfterValidator:
    """For lists that name each thing once, in whatever case."""

    def check(value: list[Any]) -> list[Any]:
        if len({each.lower() for each in value}) < len(value):
            raise PydanticCustomError("each_once", "must name each {noun} once", {"noun": noun})
        return value

    return AfterValidator(check)


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is the integer 5 (JSON Schema, "integer")."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Last in an annotation, so that the bounds before it stand in the JSON schema."""

NO_NUL_PATTERN = r"^[^\u0000]*$"

RequestId = Annotated[
    str,
    Field(
        description="The id of the request.",
        pattern="^req_[0-9a-f]{32}$",
        examples=["req_5f0c2b7a9d3e4f1a8b6c7d8e9f0a1b2c"],
    ),
]


class Body(BaseModel):
    """The body of a request; fields that no operation has are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


Data = TypeVar("Data")


class Answer(TypedDict, Generic[Data]):
    """What every success answers."""

    data: Data
    requestId: RequestId


PAGE: dict[str, Any] = {"hasMore": bool, "nextCursor": str | None}
"""Fields of a page beside its data."""


def list_of(name: str, data: Any, text: str, **more: Any) -> Any:
    """Return the type of an answer that is a list, with what the document says of it."""
    kind: Any = TypedDict(name, {"data": data, **more, "requestId": RequestId})  # type: ignore[misc]
    kind.__doc__ = text
    return kind


_Param = Annotated[
    str,
    doc(
        "JSON path of the field or name of the query parameter at fault; present only "
        "when one is to blame."
    ),
]


class Error(TypedDict):
    """What every error answers."""

    error: Annotated[str, doc("For people; may change.")]
    code: Annotated[
        str,
        doc(
            "Stable: clients branch on it.",
            json_schema_extra={"enum": [str(code) for code in ErrorCode]},
        ),
    ]
    docUrl: Annotated[Url, doc("The code's entry in the error reference.")]
    requestId: RequestId
    param: NotRequired[_Param]


RESULT_REASONS = (*SkipReason, "track_failed")
"""Why a result does not exist: a stage was skipped, or one track of several failed."""


def _stage_fields(state: JobState, stage: StageName, status: StageStatus) -> dict[str, Any]:
    """Return where a stage stands, with the values of the example."""
    return {
        "state": Annotated[JobState, Field(examples=[str(state)])],
        "stage": Annotated[StageName, Field(examples=[str(stage)])],
        "stageStatus": Annotated[StageStatus, Field(examples=[str(status)])],
    }


_Reason = Annotated[
    str,
    doc(
        "Why there is no such result.",
        "no_audio",
        json_schema_extra={"enum": [str(reason) for reason in RESULT_REASONS]},
    ),
]
REQUIRED_FIELDS: dict[ErrorCode, dict[str, Any]] = {
    ErrorCode.INVALID_CALLBACK_URL: {"param": _Param},
    ErrorCode.RESULTS_UNAVAILABLE: _stage_fields(
        JobState.COMPLETED, StageName.TRANSCRIPT, StageStatus.SKIPPED
    )
    | {"reason": _Reason},
    ErrorCode.OIDC_SIGN_IN_FAILED: {
        "reason": Annotated[str, doc("What is wrong with the issuer's answer.", "nonce")]
    },
    ErrorCode.ROLE_NOT_ALLOWED: {"role": Annotated[Role, Field(examples=["viewer"])]},
    ErrorCode.JOB_NOT_CANCELLABLE: {
        "jobId": Uuid,
        "state": Annotated[JobState, Field(examples=["completed"])],
    },
    ErrorCode.RESULTS_NOT_READY: _stage_fields(
        JobState.PROCESSING, StageName.VISION, StageStatus.RUNNING
    ),
    ErrorCode.REVISION_CONFLICT: {
        "currentRevision": Annotated[int, doc("The transcript's now.", 3, ge=0)]
    },
    ErrorCode.FILE_TOO_LARGE: {
        "maxUploadBytes": Annotated[int, doc("The most that the tier takes.", ge=1)],
        "formatTier": Tier,
    },
    ErrorCode.TOO_MANY_ACTIVE_JOBS: {
        "maxActiveJobs": Annotated[int, doc("The account's limit.", ge=1)],
        "activeJobs": Annotated[int, doc("Unfinished jobs now.", ge=0)],
    },
}
"""Fields that a code always adds to the envelope."""
OPTIONAL_FIELDS: dict[ErrorCode, dict[str, Any]] = {
    ErrorCode.RESULTS_UNAVAILABLE: {
        "errorCode": StageCode,
        "trackIndex": Annotated[int, doc("The track that has no result.", ge=0)],
    }
}
"""Fields that a code adds where they mean something."""

PARAM_EXAMPLES = {
    ErrorCode.INVALID_REQUEST: "audioTracks[2].offsetMs",
    ErrorCode.INVALID_URL: "clips[3].sourceUrl",
    ErrorCode.URL_NOT_ALLOWED: "url",
    ErrorCode.INVALID_CALLBACK_URL: "callbackUrl",
    ErrorCode.FILE_TOO_LARGE: "fileSizeBytes",
    ErrorCode.UNSUPPORTED_FORMAT: "fileName",
}


def schema_name(code: ErrorCode) -> str:
    """``INVALID_URL`` as ``InvalidUrlError``."""
    return "".join(part.capitalize() for part in code.removesuffix("_ERROR").split("_")) + "Error"


def error_schemas() -> dict[str, dict[str, Any]]:
    """``Error``, a schema for each code, and what they refer to, by name."""
    types = [Error, *map(_error_type, ErrorCode)]
    _, document = TypeAdapter.json_schemas(
        [(index, "serialization", TypeAdapter(kind)) for index, kind in enumerate(types)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, dict[str, Any]] = document["$defs"]
    return schemas


def _error_type(code: ErrorCode) -> Any:
    fields = get_type_hints(Error, include_extras=True) | {"code": Literal[code]}
    optional = {name: NotRequired[kind] for name, kind in OPTIONAL_FIELDS.get(code, {}).items()}
    kind: Any = TypedDict(schema_name(code), fields | REQUIRED_FIELDS.get(code, {}) | optional)  # type: ignore[misc]
    kind.__doc__ = CATALOGUE[code].summary
    return kind
