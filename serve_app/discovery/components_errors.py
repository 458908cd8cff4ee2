"""Schemas of errors: the envelope, and one for each code with the fields that it adds."""

from __future__ import annotations

from serve_app.discovery.components_forms import (
    Schema,
    address,
    choice,
    extended,
    identifier,
    integer,
    record,
    reference,
    text,
)
from serve_app.discovery.components_jobs import RESULT_REASONS
from serve_app.errors import CATALOGUE, ErrorCode

_STAGE_FIELDS = {
    "state": reference("JobState"),
    "stage": reference("StageName"),
    "stageStatus": reference("StageStatus"),
}
_PARAM = {"param": text("The field at fault.")}

REQUIRED_FIELDS: dict[ErrorCode, dict[str, Schema]] = {
    ErrorCode.INVALID_CALLBACK_URL: _PARAM,
    ErrorCode.RESULTS_UNAVAILABLE: _STAGE_FIELDS
    | {"reason": choice("Why there is no such result.", RESULT_REASONS)},
    ErrorCode.JOB_NOT_CANCELLABLE: {
        "jobId": identifier("The job."),
        "state": reference("JobState"),
    },
    ErrorCode.RESULTS_NOT_READY: _STAGE_FIELDS,
    ErrorCode.FILE_TOO_LARGE: {
        "maxUploadBytes": integer("The most that the tier takes.", minimum=1),
        "formatTier": reference("Tier"),
    },
    ErrorCode.TOO_MANY_ACTIVE_JOBS: {
        "maxActiveJobs": integer("The account's limit.", minimum=1),
        "activeJobs": integer("Unfinished jobs now.", minimum=0),
    },
}
"""Fields that a code always adds to the envelope."""

OPTIONAL_FIELDS: dict[ErrorCode, dict[str, Schema]] = {
    ErrorCode.RESULTS_UNAVAILABLE: {
        "errorCode": reference("JobErrorCode"),
        "trackIndex": integer("The track that has no result.", minimum=0),
    },
}
"""Fields that a code adds where they mean something."""


def schema_name(code: ErrorCode) -> str:
    """``INVALID_URL`` as ``InvalidUrlError``."""
    return "".join(part.capitalize() for part in code.removesuffix("_ERROR").split("_")) + "Error"


def error_schemas() -> dict[str, Schema]:
    """``Error``, and a schema for each code."""
    base = record(
        "What every error answers.",
        {
            "error": text("For people; may change."),
            "code": choice("Stable: clients branch on it.", ErrorCode),
            "docUrl": address("The code's entry in the error reference."),
            "requestId": reference("RequestId"),
        },
        {
            "param": text(
                "JSON path of the field or name of the query parameter at fault; present only "
                "when one is to blame."
            )
        },
    )
    return {"Error": base} | {schema_name(code): _of_code(code) for code in ErrorCode}


def _of_code(code: ErrorCode) -> Schema:
    fields = {"code": {"const": str(code)}} | REQUIRED_FIELDS.get(code, {})
    return extended(CATALOGUE[code].summary, "Error", record("", fields, OPTIONAL_FIELDS.get(code)))
