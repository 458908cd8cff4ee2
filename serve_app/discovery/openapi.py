"""The OpenAPI 3.1 document: built from the table of operations, once a process."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from serve_app.api.authentication import bucket_of
from serve_app.api.context import API_PREFIX
from serve_app.api.rate_limits import LIMITS, Bucket
from serve_app.discovery import examples
from serve_app.discovery.components import components
from serve_app.discovery.components_account import TEST_EVENT
from serve_app.discovery.components_errors import schema_name
from serve_app.discovery.components_forms import Schema, record, reference
from serve_app.discovery.components_headers import RATE_HEADERS, headers_of
from serve_app.discovery.operations import OPERATIONS, TAGS
from serve_app.discovery.operations_forms import Auth, Operation, Parameter
from serve_app.errors import CATALOGUE, ErrorCode
from storage.types import EventType

_SECURITY: dict[Auth, list[dict[str, list[str]]]] = {
    Auth.KEY: [{"bearerKey": []}, {"apiKeyHeader": []}],
    Auth.NONE: [],
    Auth.SESSION: [{"session": []}],
}
_DESCRIPTION = """\
Footage in, scenes and transcripts out, as asynchronous jobs.

Create a job, upload its media (or name a URL), then poll the job or wait for its webhook, and \
read the results. A success is `{ data, requestId }`. Every answer carries `X-Request-Id`; every \
error has the same envelope, with a stable `code` and a `docUrl` that explains it.

`429` and `503`, and `409` where it may pass, say in `Retry-After` how many seconds to wait. \
Repeat creations with the same `Idempotency-Key`.\
"""
_REASONS = {
    304: "Nothing changed.",
    400: "The request is malformed, incomplete or out of range.",
    401: "The credential is missing or not valid.",
    402: "The credits do not cover it.",
    403: "The account may not do this.",
    404: "There is no such thing.",
    409: "Not in the present state.",
    413: "The file is too large.",
    415: "The file type is not taken.",
    422: "The idempotency key does not fit the body.",
    429: "Too many requests or jobs.",
    500: "The service failed.",
    503: "The service cannot answer at the moment.",
}


@lru_cache(maxsize=1)
def openapi_bytes() -> bytes:
    """The document as served."""
    return json.dumps(build_document(), ensure_ascii=False, separators=(",", ":")).encode()


def build_document() -> dict[str, Any]:
    """The document as a JSON value."""
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Video Analysis Service",
            "summary": "Footage in, scenes and transcripts out.",
            "description": _DESCRIPTION,
            "version": "1.0.0",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": API_PREFIX, "description": "This service."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": _paths(),
        "webhooks": {kind: _webhook(kind) for kind in (*map(str, EventType), TEST_EVENT)},
        "components": components() | {"examples": _error_examples()},
    }


def _error_examples() -> dict[str, Any]:
    return {
        str(code): {"summary": CATALOGUE[code].summary, "value": examples.error(code)}
        for code in ErrorCode
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _operation(operation)
    return paths


def rate_bucket(operation: Operation) -> Bucket | None:
    """The bucket that an operation is counted in; None for the dashboard's."""
    if operation.auth is Auth.SESSION:
        return None
    if operation.auth is Auth.NONE:
        return Bucket.DISCOVERY
    return bucket_of(operation.operation_id, {operation.method})


def _operation(operation: Operation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": _description(operation),
        "security": _SECURITY[operation.auth],
    }
    if operation.deprecated:
        shown["deprecated"] = True
    if operation.parameters:
        shown["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        content = {
            "schema": reference(operation.body),
            "example": examples.REQUESTS[operation.operation_id],
        }
        shown["requestBody"] = {"required": True, "content": {"application/json": content}}
    shown["responses"] = _responses(operation)
    return shown


def _description(operation: Operation) -> str:
    bucket = rate_bucket(operation)
    if bucket is None:
        return operation.description
    whom = "client address" if bucket is Bucket.DISCOVERY else "account"
    return (
        f"{operation.description}\n\nAt most {LIMITS[bucket]} such requests a minute, per {whom}."
    )


def _parameter(parameter: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
    }
    if parameter.deprecated:
        shown["deprecated"] = True
    if parameter.example is not None:
        shown["example"] = parameter.example
    return shown


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {str(operation.success.status): _success(operation)}
    if operation.cacheable:
        always = ("X-Request-Id", *_rate_headers(operation), "Cache-Control", "ETag")
        responses["304"] = {"description": _REASONS[304], "headers": headers_of(always)}
    by_status: dict[int, list[ErrorCode]] = {}
    for code in operation.all_errors:
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = _failure(operation, status, codes)
    return responses


def _rate_headers(operation: Operation) -> tuple[str, ...]:
    return () if operation.auth is Auth.SESSION else RATE_HEADERS


def _success(operation: Operation) -> dict[str, Any]:
    success = operation.success
    schema = _enveloped(success.data) if success.enveloped else success.data
    content: dict[str, Any] = {"schema": schema}
    example = examples.responses().get(operation.operation_id)
    if example is not None:
        envelope = {"data": example, "requestId": examples.REQUEST_ID}
        content["example"] = envelope if success.enveloped else example
    media: dict[str, Any] = {"application/json": content}
    for media_type, description in success.files.items():
        media[media_type] = {
            "schema": {"type": "string", "description": description},
            "example": examples.FILES[media_type],
        }
    always = ("X-Request-Id", *_rate_headers(operation), *success.headers)
    shown: dict[str, Any] = {
        "description": success.description,
        "headers": headers_of(always, success.optional_headers),
        "content": media,
    }
    if success.links:
        shown["links"] = {
            name: {"operationId": name, "parameters": dict(parameters)}
            for name, parameters in success.links.items()
        }
    return shown


def _enveloped(data: Schema) -> Schema:
    return record("", {"data": data, "requestId": reference("RequestId")})


def _failure(operation: Operation, status: int, codes: list[ErrorCode]) -> dict[str, Any]:
    always = ["X-Request-Id"]
    sometimes: list[str] = []
    # A failure may come before the request was counted, or from the proxy in front.
    counted = sometimes if status >= 500 else always
    if status != 401:
        counted.extend(_rate_headers(operation))
    else:
        always.append("WWW-Authenticate")
    waits = [CATALOGUE[code].retry_after_seconds is not None for code in codes]
    if all(waits):
        always.append("Retry-After")
    elif any(waits):
        sometimes.append("Retry-After")
    if operation.deprecated:
        counted.extend(("Deprecation", "Link"))
    return {
        "description": f"{_REASONS[status]} {', '.join(f'`{code}`' for code in codes)}.",
        "headers": headers_of(always, sometimes),
        "content": {
            "application/json": {
                "schema": _one_of(codes),
                "examples": {
                    str(code): {"$ref": f"#/components/examples/{code}"} for code in codes
                },
            }
        },
    }


def _one_of(codes: list[ErrorCode]) -> Schema:
    if len(codes) == 1:
        return reference(schema_name(codes[0]))
    references = {str(code): reference(schema_name(code))["$ref"] for code in codes}
    return {
        "oneOf": [reference(schema_name(code)) for code in codes],
        "discriminator": {"propertyName": "code", "mapping": references},
    }


_WEBHOOK_HEADERS = (
    Parameter(
        "webhook-id",
        "header",
        {"type": "string"},
        "The event's id, the same on every attempt: use it to drop repetitions.",
        required=True,
        example=f"{examples.JOB_ID}:job.completed",
    ),
    Parameter(
        "webhook-timestamp",
        "header",
        {"type": "integer"},
        "Unix seconds at which this attempt was signed; refuse what is more than 5 minutes off.",
        required=True,
    ),
    Parameter(
        "webhook-signature",
        "header",
        {"type": "string", "pattern": "^v1,[A-Za-z0-9+/]+=*( v1,[A-Za-z0-9+/]+=*)*$"},
        "`v1,` and base64 of HMAC-SHA256 over `<webhook-id>.<webhook-timestamp>.<raw body>`; two "
        "of them for 24 hours after the secret was rotated.",
        required=True,
    ),
)
_WEBHOOK_ANSWERS = {
    "2XX": "Received. Answer within 10 seconds.",
    "410": "Received; no more events of this kind for this job, please.",
    "429": "Tried again later, 8 times in all; `Retry-After` is honoured.",
    "5XX": "Tried again later, 8 times in all.",
    "default": "Final: not tried again. Redirects are not followed.",
}
_EVENT_SUMMARIES = {
    "job.completed": "A job is completed",
    "job.failed": "A job has failed",
    "job.cancelled": "A job was cancelled",
    TEST_EVENT: "A test event",
}


def _webhook(kind: str) -> dict[str, Any]:
    schema = "WebhookTestEvent" if kind == TEST_EVENT else "JobEvent"
    typed = record("", {"type": {"const": kind}})
    body = {
        "schema": {"allOf": [reference(schema), typed]},
        "example": examples.event(kind),
    }
    post = {
        "operationId": "on" + "".join(part.capitalize() for part in kind.split(".")),
        "summary": _EVENT_SUMMARIES[kind],
        "description": "Signed as Standard Webhooks are. May come more than once, or out of order.",
        "security": [],
        "parameters": [_parameter(parameter) for parameter in _WEBHOOK_HEADERS],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            status: {"description": description} for status, description in _WEBHOOK_ANSWERS.items()
        },
    }
    return {"post": post}
