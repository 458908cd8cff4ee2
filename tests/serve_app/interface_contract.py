"""Holds values and answers to the interface document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from serve_app.api.authentication import Auth
from serve_app.api.envelope import API_PREFIX
from serve_app.api.openapi import error_codes
from serve_app.app import operation_routes, routed_api
from serve_app.errors import ErrorCode

_ROOT = "urn:openapi"
DOCUMENT = routed_api().openapi()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as its route declares it and as the interface document shows it."""

    operation_id: str
    method: str
    path: str
    auth: Auth
    errors: tuple[ErrorCode, ...]
    documented: dict[str, Any]

    @property
    def parameters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.documented.get("parameters", [])
        return found

    @property
    def success(self) -> str:
        """The status of its success."""
        status: str = min(self.documented["responses"])
        return status


def _operations() -> tuple[Operation, ...]:
    return tuple(
        Operation(
            str(route.operation_id),
            method,
            path,
            route.auth,
            tuple(error_codes(route)),
            DOCUMENT["paths"][path][method.lower()],
        )
        for route in operation_routes()
        for path in [route.path.removeprefix(API_PREFIX)]
        for method in route.methods or ()
    )


OPERATIONS = _operations()
BY_ID = {operation.operation_id: operation for operation in OPERATIONS}


class Contract:
    """An interface document that values can be held to."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.registry: Registry[Any] = Registry().with_resource(
            _ROOT, DRAFT202012.create_resource(document)
        )

    def validator(self, *path: str) -> Draft202012Validator:
        """Of the schema at ``path`` in the document."""
        pointer = "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)
        open_validator = partial(Draft202012Validator, registry=self.registry)
        schema = {"$ref": f"{_ROOT}#/{quote(pointer, safe='/~')}"}
        return open_validator(schema, format_checker=FormatChecker())

    def check(self, operation_id: str, answer: httpx.Response) -> None:
        """Raises where status, media type, headers or body are not as documented."""
        operation = BY_ID[operation_id]
        path = ("paths", operation.path, operation.method.lower(), "responses")
        responses = self.document["paths"][operation.path][operation.method.lower()]["responses"]
        status = str(answer.status_code)
        assert status in responses, (operation_id, status, answer.text)
        self._check_headers(responses[status]["headers"], answer)
        if "content" not in responses[status]:
            assert answer.content == b""
            return
        media_type = answer.headers["content-type"].split(";")[0]
        assert media_type in responses[status]["content"]
        bodies: list[Any] = [answer.text]
        if media_type == "application/json":
            bodies = [answer.json()]
        elif media_type == "text/event-stream":  # The schema is of each event.
            events = [each for each in answer.text.split("\n\n") if each and each[0] != ":"]
            bodies = [dict(line.split(": ", 1) for line in each.split("\n")) for each in events]
            assert bodies
        for body in bodies:
            self.validator(*path, status, "content", media_type, "schema").validate(body)

    def _check_headers(self, described: dict[str, Any], answer: httpx.Response) -> None:
        components = self.document["components"]["headers"]
        for name, header in described.items():
            resolved = components[name] if "$ref" in header else header
            value = answer.headers.get(name)
            if value is None:
                assert not resolved["required"], f"{answer.request.url}: {name} is missing"
                continue
            schema = resolved["schema"]
            read = int(value) if schema["type"] == "integer" else value
            Draft202012Validator(schema, format_checker=FormatChecker()).validate(read)
