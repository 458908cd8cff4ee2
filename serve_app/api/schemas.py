"""What the answers of all resources are made of.

Answers are ``TypedDict``: they go out as they were rendered, without a second validation, and
the interface document and mypy read the same declaration. ``NotRequired`` is a field that may be
absent, ``X | None`` one that may be null.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field
from typing_extensions import TypedDict


def doc(description: str, *examples: Any, **rules: Any) -> Any:
    """A pydantic ``Field`` for an annotation: its description in the document, with examples."""
    if examples:
        rules["examples"] = list(examples)
    return Field(description=description, **rules)


NO_NUL_PATTERN = r"^[^\u0000]*$"

Uuid = Annotated[
    str,
    Field(json_schema_extra={"format": "uuid"}, examples=["6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77"]),
]
Url = Annotated[
    str,
    Field(json_schema_extra={"format": "uri"}, examples=["https://video.example.com/v1/api/jobs"]),
]
Timestamp = Annotated[
    str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-03-02T09:15:04.120Z"])
]
"""ISO 8601, UTC."""
Share = Annotated[float, Field(ge=0, le=1, description="0 to 1.", examples=[0.97])]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, examples=[12.48])]
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
