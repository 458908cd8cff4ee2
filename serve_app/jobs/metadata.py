"""The ``metadata`` of a job: small, flat, echoed as it came."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from serve_app.api.schemas import NO_NUL_PATTERN, doc

MAX_ENTRIES = 50
MAX_VALUE_CHARACTERS = 500
MAX_BYTES = 16 * 1024
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return ``metadata`` if it is within the limits; the error names the entry at fault."""
    if len(metadata) > MAX_ENTRIES:
        raise PydanticCustomError("metadata", f"must have at most {MAX_ENTRIES} entries")
    for key, value in metadata.items():
        problem = _problem(key, value)
        if problem is not None:
            raise _blaming_entry(key, problem)
    if len(json.dumps(metadata, ensure_ascii=False).encode()) > MAX_BYTES:
        raise PydanticCustomError("metadata", f"must be at most {MAX_BYTES} bytes of JSON")
    return metadata


def _problem(key: str, value: Any) -> str | None:
    if not _KEY.fullmatch(key):
        return "a key must be 1 to 40 characters of A-Z a-z 0-9 _ . -"
    if isinstance(value, str):
        too_long = len(value) > MAX_VALUE_CHARACTERS
        return f"must be at most {MAX_VALUE_CHARACTERS} characters long" if too_long else None
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if value is not None and not isinstance(value, (bool, int, float)):
        return "must be a string, a number, a boolean or null"
    return None


def _blaming_entry(key: str, problem: str) -> ValidationError:
    error = InitErrorDetails(
        type=PydanticCustomError("metadata_entry", problem), loc=(key,), input=None
    )
    return ValidationError.from_exception_data("metadata", [error])


EchoedMetadata = Annotated[
    dict[str, Any],
    doc(
        f"Your own data, echoed on the job and in its webhooks: at most {MAX_ENTRIES} "
        f"entries, {MAX_BYTES} bytes as JSON.",
        {"assetId": "A-1042"},
        json_schema_extra={
            "maxProperties": MAX_ENTRIES,
            "propertyNames": {"pattern": "^[A-Za-z0-9_.-]{1,40}$"},
            "additionalProperties": {
                "type": ["string", "number", "boolean", "null"],
                "maxLength": MAX_VALUE_CHARACTERS,
                "pattern": NO_NUL_PATTERN,
            },
        },
    ),
]
Metadata = Annotated[EchoedMetadata, AfterValidator(check_metadata)]
