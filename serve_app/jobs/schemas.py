"""Request bodies of job creation. Strict: no coercion; unknown fields are ignored."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

METADATA_MAX_ENTRIES = 50
METADATA_MAX_VALUE_CHARACTERS = 500
METADATA_MAX_BYTES = 16 * 1024
_METADATA_KEY = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


def _plain_file_name(value: str) -> str:
    """Only the last path component counts, whichever way its slashes lean."""
    if _CONTROL_CHARACTERS.search(value):
        raise PydanticCustomError("file_name", "must not hold control characters")
    name = re.split(r"[/\\]", value)[-1]
    if name in {"", ".", ".."}:
        raise PydanticCustomError("file_name", "must name a file")
    return name


FileName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_plain_file_name)]
Mode = Literal["all", "transcript", "vision"]


class CreateJobBody(BaseModel):
    """Body of ``POST /jobs``."""

    model_config = ConfigDict(strict=True, extra="ignore")

    fileName: FileName  # noqa: N815  (names of the wire)
    fileSizeBytes: Annotated[int, Field(ge=0, le=2**53)] | None = None  # noqa: N815
    processingMode: Mode = "all"  # noqa: N815
    metadata: dict[str, Any] | None = None


class MetadataError(ValueError):
    """An entry of ``metadata`` is over a limit; ``key`` names it, None for the whole."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return ``metadata`` if it is within the limits; raises MetadataError."""
    if len(metadata) > METADATA_MAX_ENTRIES:
        raise MetadataError(f"metadata must have at most {METADATA_MAX_ENTRIES} entries")
    for key, value in metadata.items():
        _check_entry(key, value)
    if len(json.dumps(metadata, ensure_ascii=False).encode()) > METADATA_MAX_BYTES:
        raise MetadataError(f"metadata must be at most {METADATA_MAX_BYTES} bytes of JSON")
    return metadata


def _check_entry(key: str, value: Any) -> None:
    if not _METADATA_KEY.fullmatch(key):
        raise MetadataError("a key must be 1 to 40 characters of A-Z a-z 0-9 _ . -", key)
    if isinstance(value, str):
        if len(value) > METADATA_MAX_VALUE_CHARACTERS:
            raise MetadataError(
                f"must be at most {METADATA_MAX_VALUE_CHARACTERS} characters long", key
            )
    elif isinstance(value, float) and not math.isfinite(value):
        raise MetadataError("must be a finite number", key)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise MetadataError("must be a string, a number, a boolean or null", key)
