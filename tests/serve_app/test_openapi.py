"""The interface document: valid, complete, and the same as the code it describes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import TypeAdapter

from serve_app.api.authentication import Auth
from serve_app.api.schemas import schema_name
from serve_app.app import ROUTERS, TAGS
from serve_app.archives.routes import ArchiveChangesBody, NewArchiveBody
from serve_app.errors import CATALOGUE, ErrorCode
from serve_app.exports.routes import ComparisonBody
from serve_app.jobs.reruns import RerunBody
from serve_app.jobs.schemas import (
    CreateBatchBody,
    CreateJobBody,
    CreateJobFromUrlBody,
    JobChangesBody,
)
from serve_app.jobs.vocabulary import VocabularyJson
from serve_app.keys.routes import SignInBody
from serve_app.results.comments import CommentBody, CommentChangesBody, ShareBody
from serve_app.results.edits import TranscriptEditBody, TranscriptRevertBody
from serve_app.results.people import VoiceBody
from serve_app.results.routes import (
    RedactionBody,
    SpeakerBody,
    TranslationBody,
)
from serve_app.search.ask import AskBody
from serve_app.webhooks.routes import EndpointChangesBody, NewEndpointBody, TestWebhookBody
from storage.types import EventType
from tests.serve_app.interface_contract import DOCUMENT, OPERATIONS, Contract, Operation
from tests.tables import every

BODIES: dict[str, Any] = {
    model.__name__: model
    for model in (
        CreateJobBody,
        CreateJobFromUrlBody,
        CreateBatchBody,
        JobChangesBody,
        SpeakerBody,
        VoiceBody,
        TranscriptEditBody,
        TranscriptRevertBody,
        RedactionBody,
        TranslationBody,
        ComparisonBody,
        AskBody,
        CommentBody,
        CommentChangesBody,
        ShareBody,
        RerunBody,
        TestWebhookBody,
        NewEndpointBody,
        EndpointChangesBody,
        SignInBody,
        NewArchiveBody,
        ArchiveChangesBody,
    )
} | {"Vocabulary": VocabularyJson}
CONTRACT = Contract(DOCUMENT)
validator = CONTRACT.validator

KEYWORDS = {
    "$ref", "type", "enum", "const", "format", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "items", "minItems", "maxItems", "properties", "required", "propertyNames",
    "additionalProperties", "maxProperties", "uniqueItems", "allOf", "anyOf", "oneOf", "not", "if",
    "then", "description", "examples",
}  # fmt: skip


def by_id(operation: Operation) -> str:
    return operation.operation_id


def test_the_document_is_valid_openapi_3_1() -> None:
    errors = list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors())
    assert errors == []


def test_every_component_is_a_valid_schema() -> None:
    checker = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    schemas = DOCUMENT["components"]["schemas"]
    errors = {name: [*checker.iter_errors(schema)] for name, schema in schemas.items()}
    assert len(errors) > 100
    assert {name: found for name, found in errors.items() if found} == {}


def test_every_component_speaks_json_schema_only() -> None:
    """A word that JSON Schema does not know is a rule that nobody checks."""
    schemas = DOCUMENT["components"]["schemas"]
    others = {name: {*_keywords(schema)} - KEYWORDS for name, schema in schemas.items()}
    assert {name: words for name, words in others.items() if words} == {}


def _keywords(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield keyword
        if keyword == "properties":
            for inner in value.values():
                yield from _keywords(inner)
        elif isinstance(value, list) and keyword != "examples":
            for inner in value:
                yield from _keywords(inner)
        elif keyword not in {"const", "examples", "discriminator"}:
            yield from _keywords(value)


def test_the_document_holds_the_operations_of_the_routes_and_no_others() -> None:
    published = {
        (method, str(route.operation_id))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    assert published == {(operation.method, operation.operation_id) for operation in OPERATIONS}
    documented = [
        operation["operationId"]
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
    ]
    assert sorted(documented) == sorted(operation.operation_id for operation in OPERATIONS)


OF_NO_OPERATION = {
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.OIDC_SIGN_IN_FAILED,
    ErrorCode.LAST_OWNER,
    ErrorCode.INVITATION_NOT_VALID,
}
"""Reserved, or answers of the dashboard's pages, which the document leaves out."""
SECURITY: dict[Auth, list[dict[str, list[str]]]] = {
    Auth.KEY: [{"bearerKey": []}, {"apiKeyHeader": []}],
    Auth.NONE: [],
    Auth.SESSION: [{"session": []}],
}


@every("operation", OPERATIONS, ids=by_id)
def test_an_operation_documents_who_may_call_it(operation: Operation) -> None:
    assert operation.documented["security"] == SECURITY[operation.auth]


@every("code", sorted(set(ErrorCode) - OF_NO_OPERATION))
def test_every_error_code_is_an_answer_of_some_operation(code: ErrorCode) -> None:
    answered = [operation for operation in OPERATIONS if code in operation.errors]
    assert answered
    for operation in answered:
        response = operation.documented["responses"][str(CATALOGUE[code].status)]
        content = response["content"]["application/json"]
        assert code in content["examples"]
        assert f"#/components/schemas/{schema_name(code)}" in str(content["schema"])


@every("code", sorted(OF_NO_OPERATION))
def test_a_code_of_no_operation_is_described_and_never_answered(code: ErrorCode) -> None:
    assert schema_name(code) in DOCUMENT["components"]["schemas"]
    assert not any(code in operation.errors for operation in OPERATIONS)


@every("code", ErrorCode)
def test_the_example_of_an_error_fits_its_schema_and_no_other(code: ErrorCode) -> None:
    example = DOCUMENT["components"]["examples"][str(code)]["value"]
    fitting = [
        other
        for other in ErrorCode
        if validator("components", "schemas", schema_name(other)).is_valid(example)
    ]
    assert fitting == [code]


@every("operation", OPERATIONS, ids=by_id)
def test_examples_of_answers_fit_their_schemas(operation: Operation) -> None:
    responses = operation.documented["responses"]
    method, status = operation.method.lower(), operation.success
    path = ("paths", operation.path, method, "responses", status, "content")
    for media_type, content in responses[operation.success]["content"].items():
        if operation.operation_id != "getOpenApi":
            validator(*path, media_type, "schema").validate(content["example"])


@every(
    "operation",
    [operation for operation in OPERATIONS if "requestBody" in operation.documented],
    ids=by_id,
)
def test_examples_of_requests_fit_schema_and_model(operation: Operation) -> None:
    content = operation.documented["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rsplit("/", 1)[1]
    validator("components", "schemas", name).validate(content["example"])
    TypeAdapter(BODIES[name]).validate_python(content["example"])


@every("operation", OPERATIONS, ids=by_id)
def test_examples_of_parameters_fit_their_schemas(operation: Operation) -> None:
    for index, parameter in enumerate(operation.parameters):
        path = ("paths", operation.path, operation.method.lower(), "parameters", str(index))
        for example in parameter["schema"].get("examples", ()):
            validator(*path, "schema").validate(example)


@every("kind", DOCUMENT["webhooks"])
def test_examples_of_webhooks_fit_their_schemas(kind: str) -> None:
    path = ("webhooks", kind, "post", "requestBody", "content", "application/json")
    example = DOCUMENT["webhooks"][kind]["post"]["requestBody"]["content"]["application/json"]
    validator(*path, "schema").validate(example["example"])
    assert "processedData" not in example["example"]["data"]


def test_all_events_are_described_with_their_headers() -> None:
    assert set(DOCUMENT["webhooks"]) == {*EventType, "webhook.test"}
    for event in DOCUMENT["webhooks"].values():
        names = {parameter["name"] for parameter in event["post"]["parameters"]}
        assert names == {"webhook-id", "webhook-timestamp", "webhook-signature"}


@every("operation", OPERATIONS, ids=by_id)
def test_a_path_declares_its_parameters_and_no_others(operation: Operation) -> None:
    declared = [item for item in operation.parameters if item["in"] == "path"]
    assert {item["name"] for item in declared} == set(re.findall(r"{(\w+)}", operation.path))
    assert all(item["required"] for item in declared)


@every("operation", OPERATIONS, ids=by_id)
def test_every_answer_documents_its_headers(operation: Operation) -> None:
    for status, response in operation.documented["responses"].items():
        headers = response["headers"]
        assert "X-Request-Id" in headers
        assert ("X-RateLimit-Reset" in headers) == (status != "401")
        if status in {"429", "503"}:
            assert headers["Retry-After"] == {"$ref": "#/components/headers/Retry-After"}


def test_every_reference_leads_somewhere() -> None:
    resolver = CONTRACT.registry.resolver("urn:openapi")
    references = set(_references(DOCUMENT))
    assert references
    for reference in references:
        resolver.lookup(f"urn:openapi{reference}")


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def test_no_component_is_left_over() -> None:
    used = {reference.rsplit("/", 1)[1] for reference in _references(DOCUMENT)}
    left_over = set(DOCUMENT["components"]["schemas"]) - used
    assert left_over == {*map(schema_name, OF_NO_OPERATION), "Error"}


def test_answers_may_grow() -> None:
    bodies = set(BODIES) | {"Clip", "UploadedTrack", "FetchedTrack"}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if name not in bodies:
            assert "'additionalProperties': False" not in str(schema), name


def test_fields_with_defaults_are_optional_for_generators() -> None:
    """openapi-typescript takes a field with ``default`` for one that is always there."""
    for name in BODIES:
        schema = DOCUMENT["components"]["schemas"][name]
        assert not [field for field in schema["properties"].values() if "default" in field]
    assert DOCUMENT["components"]["schemas"]["CreateJobBody"]["required"] == ["fileName"]


@every("code", ErrorCode)
def test_an_error_has_a_flat_schema_that_generators_type(code: ErrorCode) -> None:
    """openapi-python-client drops an ``allOf`` of an enumeration and a constant."""
    schema = DOCUMENT["components"]["schemas"][schema_name(code)]
    assert "allOf" not in schema
    assert schema["properties"]["code"] == {"type": "string", "const": code}


def test_every_tag_is_used_and_described() -> None:
    used = {tag for operation in OPERATIONS for tag in operation.documented["tags"]}
    assert used == set(TAGS)
    assert [tag["name"] for tag in DOCUMENT["tags"]] == list(TAGS)


REDOCLY = "@redocly/cli@2.77.0"
SPECTRAL = "@stoplight/spectral-cli@6.16.3"
TYPES = "openapi-typescript@7.13.0"
TYPESCRIPT = "typescript@5.9.3"

UNUSED = {
    "schemas/Error": "any of the errors, for clients that read all of them by one type",
    "schemas/InsufficientScopeError": "reserved: its code is in the catalogue, not yet returned",
    "examples/INSUFFICIENT_SCOPE": "reserved, as its schema",
    "schemas/OidcSignInFailedError": "an answer of the dashboard's pages",
    "examples/OIDC_SIGN_IN_FAILED": "as its schema",
    "schemas/LastOwnerError": "an answer of the dashboard's pages",
    "examples/LAST_OWNER": "as its schema",
    "schemas/InvitationNotValidError": "an answer of the dashboard's pages",
    "examples/INVITATION_NOT_VALID": "as its schema",
}
"""Components that no operation refers to, and why they are there."""

PROGRAM = """
import type { components, paths } from "./api";
type Answers = paths["/jobs"]["post"]["responses"];
const least: components["schemas"]["CreateJobBody"] = { fileName: "a.mp4" };
const code = (e: Answers["402"]["content"]["application/json"]): "INSUFFICIENT_CREDITS" => e.code;
const url = (a: Answers["201"]["content"]["application/json"]): string => a.data.uploadUrl;
console.log(least, code, url);
"""
REFUSED = """
import type { components } from "./api";
const none: components["schemas"]["CreateJobBody"] = {};
console.log(none);
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def install(folder: Path, *packages: str) -> None:
    """Put ``packages`` into ``folder``; skips where that cannot be."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{', '.join(packages)}: npm is not installed")
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run(
        [npm, "install", *options, *packages],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages)}: npm cannot install: {done.stderr[-200:]}")


def run(folder: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "node_modules" / ".bin" / tool), *arguments],
        check=False,
        cwd=folder,
        env=os.environ | {"REDOCLY_TELEMETRY": "off", "NO_UPDATE_NOTIFIER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.long
def test_redocly_remarks_only_on_what_is_unused_on_purpose(tmp_path: Path, document: Path) -> None:
    install(tmp_path, REDOCLY)
    done = run(tmp_path, "redocly", "lint", document.name, "--format=json")
    problems = json.loads(done.stdout)["problems"]
    found = [
        (problem["ruleId"], location["pointer"].removeprefix("#/components/"))
        for problem in problems
        for location in problem["location"]
    ]
    assert sorted(found) == sorted(("no-unused-components", name) for name in UNUSED), done.stderr


@pytest.mark.long
def test_spectral_remarks_only_on_what_is_unused_on_purpose(tmp_path: Path, document: Path) -> None:
    install(tmp_path, SPECTRAL)
    (tmp_path / "ruleset.yaml").write_text('extends: "spectral:oas"\n')
    done = run(
        tmp_path, "spectral", "lint", document.name, "--ruleset=ruleset.yaml", "--format=json"
    )
    problems: list[dict[str, Any]] = json.loads(done.stdout)
    found = [(problem["code"], "/".join(problem["path"][1:])) for problem in problems]
    assert sorted(found) == sorted(("oas3-unused-component", name) for name in UNUSED), done.stderr


@pytest.mark.long
def test_strict_typescript_takes_the_least_body_and_knows_errors(
    tmp_path: Path, document: Path
) -> None:
    install(tmp_path, TYPES, TYPESCRIPT)
    made = run(tmp_path, "openapi-typescript", document.name, "--output=api.d.ts")
    assert made.returncode == 0, made.stderr
    assert compiled(tmp_path, PROGRAM) == []
    [error] = compiled(tmp_path, REFUSED)
    assert "'fileName' is missing" in error


def compiled(folder: Path, program: str) -> list[str]:
    """What the compiler has against ``program``."""
    (folder / "program.ts").write_text(program)
    done = run(folder, "tsc", "--strict", "--noEmit", "program.ts")
    return [line for line in done.stdout.splitlines() if "error TS" in line]
