"""Types of answers that all resources share, and ``rendered``, which makes answers of records.

Answers are ``TypedDict``: they go out as they were rendered, without a second validation, and the
interface document and mypy read the same declaration. ``NotRequired`` is a field that may be
absent, ``X | None`` one that may be null.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict, is_typeddict

from pipelines.types import StageCode
from serve_app.errors import CATALOGUE, ErrorCode
from storage.types import JobState, Role, SkipReason, StageName, StageStatus, Tier


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


def doc(description: str, *examples: Any, **rules: Any) -> Any:
    """Return a pydantic ``Field`` for an annotation: its description in the document, with
    examples."""
    if examples:
        rules["examples"] = list(examples)
    return Field(description=description, **rules)


@overload
def timestamp(moment: datetime) -> str: ...


@overload
def timestamp(moment: datetime | None) -> str | None: ...


def timestamp(moment: datetime | None) -> str | None:
    """Return ISO 8601 in UTC with milliseconds."""
    if moment is None:
        return None
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Shown:
    """In an annotation: how ``rendered`` turns a record's value into the answer's."""

    convert: Callable[[Any], Any]


NO_NUL_PATTERN = r"^[^\u0000]*$"

Uuid = Annotated[
    str,
    Field(json_schema_extra={"format": "uuid"}, examples=["6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77"]),
    Shown(str),
]
Url = Annotated[
    str,
    Field(json_schema_extra={"format": "uri"}, examples=["https://video.example.com/v1/api/jobs"]),
]
Timestamp = Annotated[
    str,
    Field(json_schema_extra={"format": "date-time"}, examples=["2026-03-02T09:15:04.120Z"]),
    Shown(timestamp),
]
"""ISO 8601, UTC."""
Share = Annotated[
    float,
    Field(ge=0, le=1, description="0 to 1.", examples=[0.97]),
    Shown(lambda share: round(share, 4)),
]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, examples=[12.48])]
"""``rendered`` finds milliseconds where a record has them."""
RequestId = Annotated[
    str,
    Field(
        description="The id of the request.",
        pattern="^req_[0-9a-f]{32}$",
        examples=["req_5f0c2b7a9d3e4f1a8b6c7d8e9f0a1b2c"],
    ),
]
Data = TypeVar("Data")


class Answer(TypedDict, Generic[Data]):
    """What every success answers."""

    data: Data
    requestId: RequestId


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


Form = TypeVar("Form")
_NONE = frozenset[str]()


def rendered(form: type[Form], record: Any, **given: Any) -> Form:
    """Return ``record`` as ``form``, a TypedDict, has it: the one way from a record to an answer.

    ``fileName`` is the attribute ``file_name``; ``startTime``, ``time`` and ``waitSeconds`` are
    ``start_ms``, ``time_ms`` and ``wait_ms`` in seconds where the record has those. Types convert
    (``Shown``), forms in forms are rendered likewise. A field that may be absent is, where the
    record has None or no such attribute. ``given`` are fields that are worked out elsewhere.
    """
    found: Form = _renderer(
        cast("Hashable", form), cast("Hashable", type(record)), frozenset(given) if given else _NONE
    )(record, given)
    return found


@functools.cache
def _renderer(form: Any, record: Any, given: frozenset[str]) -> Callable[[Any, Any], Any]:
    """Prepare ``form`` for a type of records: answers may have a hundred thousand of them."""
    attributes, conversions, may_lack = dict[str, str](), dict[str, Callable[[Any], Any]](), set()
    order = get_type_hints(form, include_extras=True)
    for key, hint in order.items():
        attribute, is_optional = _attribute(record, key), get_origin(hint) is NotRequired
        if key in given or (attribute is None and is_optional):
            continue
        if attribute is None:
            raise TypeError(f"{record.__name__} has no {key}, which {form.__name__} shows")
        attributes[key] = attribute
        convert = _in_seconds if attribute.endswith("_ms") else _converter(hint)
        if convert is not None:
            conversions[key] = convert
        if is_optional:
            may_lack.add(key)
    keys, values_of = [*attributes], attrgetter(*attributes.values(), "__class__")

    def render(found: Any, given: Any) -> Any:
        shown = dict(zip(keys, values_of(found), strict=False))
        for key, convert in conversions.items():
            if (value := shown[key]) is not None:
                shown[key] = convert(value)
        for key in may_lack:
            if shown[key] is None:
                del shown[key]
        if given:
            shown |= given
            shown = {key: shown[key] for key in order if key in shown}
        return shown

    return render


def _rendered_list(form: Any, records: Sequence[Any]) -> list[Any]:
    if not records:
        return []
    render = _renderer(form, cast("Hashable", type(records[0])), _NONE)
    return [render(each, None) for each in records]


def _in_seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _attribute(record: type, key: str) -> str | None:
    name = re.sub(r"(?<!^)([A-Z])", lambda letter: "_" + letter[1].lower(), key)
    spans = [name.removesuffix(end) + "_ms" for end in ("_time", "_seconds") if name.endswith(end)]
    return next((it for it in (name, *spans, f"{name}_ms") if hasattr(record, it)), None)


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return what a value of this type is turned by; None where it goes out as it is."""
    if get_origin(hint) in {Annotated, NotRequired}:
        own = [it.convert for it in getattr(hint, "__metadata__", ()) if isinstance(it, Shown)]
        return own[-1] if own else _converter(get_args(hint)[0])
    if get_origin(hint) is UnionType or get_origin(hint) is Union:
        return next((found for it in get_args(hint) if (found := _converter(it))), None)
    if get_origin(hint) is list:
        each = get_args(hint)[0]
        return functools.partial(_rendered_list, each) if is_typeddict(each) else list
    return functools.partial(rendered, hint) if is_typeddict(hint) else None
