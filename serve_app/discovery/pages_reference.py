"""The reference page: the interface document, operation by operation."""

from __future__ import annotations

import shlex
from typing import Any

from serve_app.api.html import (
    Child,
    Html,
    code_block,
    join,
    page,
    paragraphs,
    prose,
    table,
    tag,
)
from serve_app.api.rate_limits import LIMITS, Bucket
from serve_app.discovery.components_forms import Schema
from serve_app.discovery.openapi import rate_bucket
from serve_app.discovery.operations import OPERATIONS, TAGS
from serve_app.discovery.operations_forms import Auth, Operation
from serve_app.discovery.pages_schemas import SchemaPages, as_json
from serve_app.errors import CATALOGUE

_AUTH = {
    Auth.KEY: "API key",
    Auth.NONE: "no credential",
    Auth.SESSION: "dashboard session",
}
_BUCKETS = {
    Bucket.READS: "every `GET` with a key",
    Bucket.CREATION: "job creations, whatever their number of clips",
    Bucket.WRITES: "all other requests with a key",
    Bucket.WEBHOOK_TEST: "test webhooks",
    Bucket.DISCOVERY: "discovery, for each client address",
}


def reference_page(document: dict[str, Any]) -> Html:
    """The whole page."""
    schemas = SchemaPages(document["components"]["schemas"])
    return page(
        f"{document['info']['title']}: API reference",
        _introduction(document),
        *(_group(name, document, schemas) for name in TAGS),
        _webhooks(document, schemas),
        _components(schemas),
        nav=_navigation(document),
    )


def anchor(operation: Operation) -> str:
    """The operation's id on the page."""
    return f"op-{operation.operation_id}"


def _navigation(document: dict[str, Any]) -> Html:
    groups = [
        tag("section", tag("h2", name), tag("ul", *map(_nav_item, _of_tag(name)))) for name in TAGS
    ]
    events = [
        tag("li", tag("a", tag("code", kind), href=f"#event-{kind}"), data_search=kind)
        for kind in document["webhooks"]
    ]
    return join(
        tag("a", document["info"]["title"], class_="brand", href="/docs"),
        tag(
            "input",
            type="search",
            id="filter",
            placeholder="Filter (press /)",
            aria_label="Filter operations",
            autocomplete="off",
        ),
        tag(
            "ul",
            tag("li", tag("a", "Error reference", href="/docs/errors")),
            tag("li", tag("a", "openapi.json", href="/v1/api/openapi.json")),
            class_="pages",
        ),
        *groups,
        tag("section", tag("h2", "Events"), tag("ul", *events)),
        tag("p", "Nothing fits.", id="nothing", hidden=True),
    )


def _nav_item(operation: Operation) -> Html:
    link = tag(
        "a",
        _method(operation.method),
        tag("span", operation.summary, class_="struck" if operation.deprecated else None),
        href=f"#{anchor(operation)}",
        title=operation.path,
    )
    return tag("li", link, data_search=_search_text(operation))


def _search_text(operation: Operation) -> str:
    words = (operation.operation_id, operation.method, operation.path, operation.summary)
    return " ".join(words).lower()


def _of_tag(name: str) -> list[Operation]:
    return [operation for operation in OPERATIONS if operation.tag == name]


def _method(method: str) -> Html:
    return tag("span", method, class_=f"method {method.lower()}")


def _introduction(document: dict[str, Any]) -> Html:
    schemes = document["components"]["securitySchemes"].values()
    limits: list[list[Child]] = [
        [prose(_BUCKETS[bucket]), f"{limit} a minute"] for bucket, limit in LIMITS.items()
    ]
    return tag(
        "header",
        tag("h1", document["info"]["title"]),
        paragraphs(document["info"]["description"]),
        tag("p", "Base address: ", tag("code", "/v1/api", class_="base")),
        code_block('export BASE_URL="https://your-service/v1/api"\nexport VAS_KEY="vas_live_…"'),
        tag("h2", "Credentials"),
        tag("ul", *(tag("li", prose(scheme["description"])) for scheme in schemes)),
        tag("h2", "Request rates"),
        tag(
            "p",
            prose(
                "Counted in whole minutes, for all keys of an account together. "
                "`X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` tell where "
                "you stand."
            ),
        ),
        table(["What is counted", "Limit"], limits),
    )


def _group(name: str, document: dict[str, Any], schemas: SchemaPages) -> Html:
    sections = [_operation(operation, document, schemas) for operation in _of_tag(name)]
    heading = tag("h2", name, id=f"tag-{name.lower()}")
    return tag("section", heading, tag("p", TAGS[name]), *sections, class_="group")


def _operation(operation: Operation, document: dict[str, Any], schemas: SchemaPages) -> Html:
    described = document["paths"][operation.path][operation.method.lower()]
    chips: list[Child] = [tag("span", _AUTH[operation.auth], class_="chip")]
    bucket = rate_bucket(operation)
    if bucket is not None:
        chips.append(tag("span", f"{LIMITS[bucket]} a minute", class_="chip"))
    if operation.deprecated:
        chips.append(tag("span", "deprecated", class_="chip warn"))
    return tag(
        "article",
        tag("h3", tag("a", operation.summary, href=f"#{anchor(operation)}", class_="self")),
        tag(
            "p",
            _method(operation.method),
            tag("code", operation.path, class_="path"),
            *chips,
            class_="line",
        ),
        paragraphs(operation.description),
        _parameters(operation, schemas),
        _body(described, schemas),
        tag("h4", "Sample"),
        code_block(curl_sample(operation, described)),
        _answers(operation, described, schemas),
        id=anchor(operation),
        data_search=_search_text(operation),
    )


def _parameters(operation: Operation, schemas: SchemaPages) -> Html | None:
    if not operation.parameters:
        return None
    rows: list[list[Child]] = []
    for parameter in operation.parameters:
        marks = [
            tag("span", word, class_=word)
            for word, wanted in (
                ("required", parameter.required),
                ("deprecated", parameter.deprecated),
            )
            if wanted
        ]
        notes = join(prose(parameter.description), " ", schemas.notes(parameter.schema))
        label = join(tag("code", parameter.name), *marks)
        rows.append([label, parameter.where, schemas.type_of(parameter.schema), notes])
    return join(tag("h4", "Parameters"), table(["Name", "In", "Type", "Notes"], rows))


def _body(described: dict[str, Any], schemas: SchemaPages) -> Html | None:
    if "requestBody" not in described:
        return None
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    return join(tag("h4", "Body"), schemas.field_table(schema))


def curl_sample(operation: Operation, described: dict[str, Any]) -> str:
    """A command that calls the operation."""
    required = [p for p in operation.parameters if p.where == "query" and p.required]
    query = "&".join(f"{parameter.name}={parameter.example}" for parameter in required)
    path = operation.path.replace("{", "$").replace("}", "")
    address = f'"$BASE_URL{path}{"?" + query if query else ""}"'
    verb = "" if operation.method == "GET" else f"-X {operation.method} "
    lines = [f"curl {verb}{address}"]
    if operation.auth is Auth.KEY:
        lines.append('-H "Authorization: Bearer $VAS_KEY"')
    if operation.auth is Auth.SESSION:
        lines.append('-H "Authorization: Bearer $VAS_SESSION"')
    if "requestBody" in described:
        example = described["requestBody"]["content"]["application/json"]["example"]
        lines.append('-H "Content-Type: application/json"')
        lines.append(f"-d {shlex.quote(as_json(example))}")
    return " \\\n  ".join(lines)


def _answers(operation: Operation, described: dict[str, Any], schemas: SchemaPages) -> Html:
    status = str(operation.success.status)
    success = described["responses"][status]
    examples = [
        _example(media_type, content)
        for media_type, content in success["content"].items()
        if "example" in content
    ]
    errors: list[list[Child]] = [
        [
            str(CATALOGUE[code].status),
            tag("a", tag("code", str(code)), href=f"/docs/errors#{code}"),
            CATALOGUE[code].summary,
        ]
        for code in sorted(operation.all_errors, key=lambda code: CATALOGUE[code].status)
    ]
    return join(
        tag("h4", "Answers"),
        tag("p", tag("span", status, class_="status"), " ", success["description"]),
        _payload(operation.success.data, schemas),
        *examples,
        _headers(success["headers"]),
        tag(
            "details",
            tag("summary", f"{len(errors)} errors"),
            table(["Status", "Code", "Meaning"], errors),
        ),
    )


def _payload(data: Schema, schemas: SchemaPages) -> Html | None:
    if "$ref" in data or data.get("type") == "array":
        return tag("p", tag("code", "data"), ": ", schemas.type_of(data))
    return schemas.field_table(data)


def _example(media_type: str, content: dict[str, Any]) -> Html:
    example = content["example"]
    shown = example if isinstance(example, str) else as_json(example)
    return tag("details", tag("summary", f"Example, {media_type}"), code_block(shown))


def _headers(headers: dict[str, Any]) -> Html:
    names = [item for name in headers for item in (" ", tag("code", name))]
    return tag("p", "Headers:", *names, class_="headers")


def _webhooks(document: dict[str, Any], schemas: SchemaPages) -> Html:
    articles = []
    for kind, item in document["webhooks"].items():
        post = item["post"]
        body = post["requestBody"]["content"]["application/json"]
        articles.append(
            tag(
                "article",
                tag("h3", tag("a", post["summary"], href=f"#event-{kind}", class_="self")),
                tag("p", tag("code", kind, class_="path"), class_="line"),
                schemas.field_table(body["schema"]),
                _example("application/json", body),
                id=f"event-{kind}",
                data_search=f"{kind} {post['summary']}".lower(),
            )
        )
    first = next(iter(document["webhooks"].values()))["post"]
    headers: list[list[Child]] = [
        [tag("code", header["name"]), prose(header["description"])]
        for header in first["parameters"]
    ]
    answers: list[list[Child]] = [
        [tag("code", status), prose(answer["description"])]
        for status, answer in first["responses"].items()
    ]
    return tag(
        "section",
        tag("h2", "Events", id="events"),
        tag("p", prose(f"Sent by `POST` to `callbackUrl`. {first['description']}")),
        table(["Header", "Meaning"], headers),
        table(["Your answer", "What it does"], answers),
        *articles,
        class_="group",
    )


def _components(schemas: SchemaPages) -> Html:
    shown = [
        tag(
            "article",
            tag("h3", tag("a", name, href=f"#schema-{name}", class_="self")),
            tag("p", prose(schema.get("description", ""))) if schema.get("description") else None,
            schemas.field_table(schema) or _plain(schema, schemas),
            id=f"schema-{name}",
            data_search=name.lower(),
        )
        for name, schema in schemas.schemas.items()
    ]
    return tag("section", tag("h2", "Schemas", id="schemas"), *shown, class_="group schemas")


def _plain(schema: Schema, schemas: SchemaPages) -> Html:
    bare = {name: value for name, value in schema.items() if name != "description"}
    return tag("p", schemas.type_of(bare), ". ", schemas.notes(bare))
