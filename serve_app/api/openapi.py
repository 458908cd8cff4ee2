"""The OpenAPI 3.1 document: FastAPI's own, finished with what holds for all operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, get_args

from serve_app.api.authentication import LIMITS, Auth, Bucket, OperationRoute
from serve_app.api.envelope import API_PREFIX, DOCS_ERRORS_PATH
from serve_app.api.schemas import PARAM_EXAMPLES, Answer, error_schemas, schema_name
from serve_app.errors import CATALOGUE, ErrorCode
from storage.keys import KEY_PREFIX, SESSION_PREFIX
from storage.records import Record, form_of

Schema = dict[str, Any]

SECURITY_SCHEMES: dict[str, Schema] = {
    "bearerKey": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": f"{KEY_PREFIX}…",
        "description": "An API key as `Authorization: Bearer <key>`.",
    },
    "apiKeyHeader": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "An API key as `X-API-Key: <key>`.",
    },
    "session": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": f"{SESSION_PREFIX}…",
        "description": "A signed-in dashboard session; an API key does not open these operations.",
    },
}
_SECURITY: dict[Auth, list[dict[str, list[str]]]] = {
    Auth.KEY: [{"bearerKey": []}, {"apiKeyHeader": []}],
    Auth.NONE: [],
    Auth.SESSION: [{"session": []}],
}
_COMMON_ERRORS: dict[Auth, frozenset[ErrorCode]] = {
    Auth.NONE: frozenset(),
    Auth.KEY: frozenset({ErrorCode.UNAUTHORIZED, ErrorCode.ACCOUNT_SUSPENDED}),
    Auth.SESSION: frozenset(
        {ErrorCode.UNAUTHORIZED, ErrorCode.ACCOUNT_SUSPENDED, ErrorCode.ROLE_NOT_ALLOWED}
    ),
}
_ANY_ERRORS = frozenset({ErrorCode.INTERNAL_ERROR, ErrorCode.SERVICE_UNAVAILABLE})
OF_RESULTS = (ErrorCode.RESULTS_UNAVAILABLE, ErrorCode.RESULTS_NOT_READY)
"""Of operations that read results."""
_REASONS = {
    400: "The request is malformed, incomplete or out of range.",
    401: "The credential is missing or not valid.",
    402: "The credits do not cover it.",
    403: "The account may not do this.",
    404: "What the path names does not exist.",
    409: "Not in the present state.",
    410: "Not kept any more.",
    413: "The file is too large.",
    415: "The file type is not taken.",
    422: "The idempotency key does not fit the body.",
    429: "Too many requests or jobs.",
    500: "The service failed.",
    503: "The service cannot answer at the moment.",
}
_RATE_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_HEADERS: dict[str, tuple[str, Schema]] = {
    "X-Request-Id": (
        "The id of this request, also in the body.",
        {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
    ),
    "X-RateLimit-Limit": (
        "Requests allowed per minute in this bucket.",
        {"type": "integer", "minimum": 1},
    ),
    "X-RateLimit-Remaining": ("Requests left in this minute.", {"type": "integer", "minimum": 0}),
    "X-RateLimit-Reset": ("When the minute ends, Unix seconds.", {"type": "integer", "minimum": 0}),
    "Retry-After": ("Seconds to wait before the next try.", {"type": "integer", "minimum": 1}),
    "Location": ("The job.", {"type": "string", "format": "uri"}),
    "Link": ("Related addresses (RFC 8288), e.g. the next page.", {"type": "string"}),
    "Deprecation": ("`true`: the operation is deprecated.", {"type": "string", "const": "true"}),
    "Idempotent-Replayed": (
        "`true` where this is the answer to an earlier request with the same key.",
        {"type": "string", "const": "true"},
    ),
    "Cache-Control": ("How long the answer may be kept.", {"type": "string"}),
    "ETag": ("Of this version of the document.", {"type": "string", "pattern": '^"[0-9a-f]{32}"$'}),
    "Content-Disposition": ("Name of the file, on caption and text files.", {"type": "string"}),
    "Accept-Ranges": ("`bytes`: `Range` is honoured.", {"type": "string", "const": "bytes"}),
    "Content-Range": (
        "Which bytes these are.",
        {"type": "string", "pattern": "^bytes [0-9]+-[0-9]+/[0-9]+$"},
    ),
    "X-Clip-Start": (
        "Seconds of the media at which the clip begins.",
        {"type": "string", "pattern": "^[0-9]+\\.[0-9]{3}$"},
    ),
    "WWW-Authenticate": ("The scheme to authenticate with.", {"type": "string", "const": "Bearer"}),
}


def headers(*always: str, sometimes: Iterable[str] = ()) -> dict[str, Any]:
    """Return a response's headers: references to those it always has, copies of the others."""
    shown: dict[str, Any] = {name: {"$ref": f"#/components/headers/{name}"} for name in always}
    for name in sometimes:
        description, schema = _HEADERS[name]
        shown[name] = {"description": description, "required": False, "schema": schema}
    return shown


def links(parameters: dict[str, str], *operation_ids: str) -> dict[str, Any]:
    """Operations that go on from an answer, with their parameters as runtime expressions."""
    return {name: {"operationId": name, "parameters": parameters} for name in operation_ids}


def errors(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """``responses`` of an operation: its errors besides those that follow from it."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        found.setdefault(CATALOGUE[code].status, {"codes": []})["codes"].append(code)
    return found


def answers(
    model: object, description: str, *codes: ErrorCode, status: int = 200, **success: object
) -> dict[str, Any]:
    """Return what a route is declared with: its answer and its errors, as ``errors`` has them.

    ``success`` is what the document says of the answer besides: headers, links, other contents.
    """
    responses = errors(*codes)
    if isinstance(record := next(iter(get_args(model)), None), type) and issubclass(record, Record):
        model = Answer[form_of(record)]  # type: ignore[misc]  # schemas are named after the form
    if success:
        responses[status] = success
    declared = {"response_model": model, "response_description": description}
    return declared | {"status_code": status, "responses": responses}


def error_codes(route: OperationRoute) -> list[ErrorCode]:
    """Return every code that the operation may answer, in the catalogue's order."""
    own = {code for answer in route.responses.values() for code in answer.get("codes", ())}
    counted = {ErrorCode.RATE_LIMITED} if route.bucket else set()
    codes = own | counted | _COMMON_ERRORS[route.auth] | _ANY_ERRORS
    return [code for code in ErrorCode if code in codes]


def finish(document: dict[str, Any], routes: Iterable[OperationRoute]) -> dict[str, Any]:
    """FastAPI's document with credentials, rates, errors, headers and examples."""
    # ``Answer[Job]`` is ``Answer_Job_`` to pydantic; generators make class names of it.
    # ``SceneJson`` in the code is the answer's form of the domain's ``Scene``.
    names = re.sub(r"\b(\w+)Json(?=_?\")", r"\1", json.dumps(document))
    document = json.loads(re.sub(r"Answer_(\w+)_(?=\")", r"\1Answer", names))
    document["jsonSchemaDialect"] = "https://json-schema.org/draft/2020-12/schema"
    schemas: dict[str, Schema] = document["components"]["schemas"] | error_schemas()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for schema in schemas.values():
        _plain(schema)
    examples = {
        str(code): {"summary": CATALOGUE[code].summary, "value": _error_example(code, schemas)}
        for code in ErrorCode
    }
    items = document["paths"].items()
    document["paths"] = {path.removeprefix(API_PREFIX): item for path, item in items}
    for route in routes:
        for method in route.methods or ():
            path = route.path_format.removeprefix(API_PREFIX)
            _finish_operation(document["paths"][path][method.lower()], route, schemas)
    for item in document["webhooks"].values():
        item["post"]["security"] = []
        for generated in ("200", "422"):
            item["post"]["responses"].pop(generated, None)
        _finish_inputs(item["post"], schemas)
    used = json.dumps(document["paths"])
    document["components"] = {
        "schemas": schemas,
        "headers": {
            name: {"description": description, "required": True, "schema": schema}
            for name, (description, schema) in _HEADERS.items()
            if f"#/components/headers/{name}" in used
        },
        "securitySchemes": SECURITY_SCHEMES,
        "examples": examples,
    }
    return document


def _finish_operation(
    operation: dict[str, Any], route: OperationRoute, schemas: dict[str, Schema]
) -> None:
    operation["security"] = _SECURITY[route.auth]
    if route.bucket is not None:
        whom = "client address" if route.bucket is Bucket.DISCOVERY else "account"
        operation["description"] += (
            f"\n\nAt most {LIMITS[route.bucket]} such requests a minute, per {whom}."
        )
    if "parameters" in operation:
        # FastAPI lists what a dependency takes of the path behind what the endpoint takes itself.
        place = route.path_format.find
        operation["parameters"].sort(
            key=lambda each: (each["in"] != "path", place(f"{{{each['name']}}}"))
        )
    _finish_inputs(operation, schemas)
    responses = operation["responses"]
    by_status: dict[int, list[ErrorCode]] = {}
    for code in error_codes(route):
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    responses.pop("422", None)
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = _failure(route, status, codes)
    rates = _RATE_HEADERS if route.bucket else ()
    for status, response in responses.items():
        if int(status) >= 400:
            continue
        response["headers"] = headers("X-Request-Id", *rates) | response.get("headers", {})
        for content in response.get("content", {}).values():
            _plain(content["schema"])
            content.setdefault("example", sample(content["schema"], schemas))


def _finish_inputs(operation: dict[str, Any], schemas: dict[str, Schema]) -> None:
    for parameter in operation.get("parameters", ()):
        schema = _plain(parameter["schema"])
        schema.pop("description", None)
        if "anyOf" in schema:
            schema |= schema.pop("anyOf")[0]  # the other one is null: not given
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        content.setdefault("example", sample(content["schema"], schemas))


def _failure(route: OperationRoute, status: int, codes: list[ErrorCode]) -> dict[str, Any]:
    always, sometimes = ["X-Request-Id"], list[str]()
    # A failure may come before the request was counted, or from the proxy in front.
    counted = sometimes if status >= 500 else always
    if status == 401:
        always.append("WWW-Authenticate")
    elif route.bucket:
        counted.extend(_RATE_HEADERS)
    waits = [CATALOGUE[code].retry_after_seconds is not None for code in codes]
    if any(waits):
        (always if all(waits) else sometimes).append("Retry-After")
    if route.deprecated:
        counted.extend(("Deprecation", "Link"))
    references = {str(code): f"#/components/schemas/{schema_name(code)}" for code in codes}
    several = {
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": "code", "mapping": references},
    }
    content = {
        "schema": several if len(codes) > 1 else several["oneOf"][0],  # type: ignore[index]
        "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in references},
    }
    return {
        "description": f"{_REASONS[status]} {', '.join(f'`{code}`' for code in codes)}.",
        "headers": headers(*always, sometimes=sometimes),
        "content": {"application/json": content},
    }


def _error_example(code: ErrorCode, schemas: dict[str, Schema]) -> dict[str, Any]:
    example: dict[str, Any] = sample(schemas[schema_name(code)], schemas)
    docs = f"https://video.example.com{DOCS_ERRORS_PATH}#{code}"
    param = {"param": PARAM_EXAMPLES[code]} if code in PARAM_EXAMPLES else {}
    return example | {"error": CATALOGUE[code].summary, "docUrl": docs} | param


def _plain(schema: Any) -> Any:
    """``schema`` without generated titles, in place.

    A default is in the description: generators take ``default`` of a body's field for
    a promise that it is always there.
    """
    if isinstance(schema, list):
        for item in schema:
            _plain(item)
    elif isinstance(schema, dict):
        schema.pop("title", None)
        if "description" in schema and isinstance(schema["description"], str):
            schema["description"] = schema["description"].replace("``", "`")
        for name, field in schema.get("properties", {}).items():
            _plain(field)
            if "default" in field:
                shown = str(field.pop("default")).lower()
                text = f"{field.get('description', '')} `{shown}` if not given."
                schema["properties"][name] = field | {"description": text.strip()}
        for keyword, inner in schema.items():
            if isinstance(inner, float) and inner.is_integer():
                schema[keyword] = int(inner)  # FastAPI's document has all bounds as floats
            if keyword not in {"properties", "examples", "const", "enum", "description"}:
                _plain(inner)
    return schema


_SAMPLES: dict[str, Any] = {"string": "…", "boolean": True, "null": None}


def sample(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """Return a value that fits: ``examples`` where given; required fields and those with
    examples."""
    for keyword in ("examples", "enum"):
        if keyword in schema:
            return schema[keyword][0]
    if "const" in schema:
        return schema["const"]
    if "$ref" in schema or "anyOf" in schema:
        named = schema.get("$ref", "").rsplit("/", 1)[-1]
        return sample(schemas[named] if named else schema["anyOf"][0], schemas)
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {
            name: sample(field, schemas)
            for name, field in schema.get("properties", {}).items()
            if name in required or "examples" in field
        }
    if schema.get("type") == "array":
        return [sample(schema["items"], schemas)] * schema.get("minItems", 1)
    return _SAMPLES.get(schema.get("type", ""), schema.get("minimum", 0))
