"""Words to write JSON Schemas with: short, so that a schema reads like the table it came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def reference(name: str) -> Schema:
    """The component schema ``name``."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(description: str = "", **rules: Any) -> Schema:
    """A string."""
    return _described("string", description, rules)


def integer(description: str = "", **rules: Any) -> Schema:
    """A whole number."""
    return _described("integer", description, rules)


def number(description: str = "", **rules: Any) -> Schema:
    """A number."""
    return _described("number", description, rules)


def flag(description: str = "", **rules: Any) -> Schema:
    """True or false."""
    return _described("boolean", description, rules)


def moment(description: str) -> Schema:
    """An ISO 8601 time in UTC."""
    return text(description, format="date-time")


def address(description: str) -> Schema:
    """An absolute URL."""
    return text(description, format="uri")


def identifier(description: str) -> Schema:
    """A UUID."""
    return text(description, format="uuid")


def choice(description: str, values: Iterable[str]) -> Schema:
    """One of some strings."""
    return text(description, enum=[str(value) for value in values])


def list_of(items: Schema, description: str = "", **rules: Any) -> Schema:
    """An array."""
    return _described("array", description, {"items": items, **rules})


def nullable(schema: Schema) -> Schema:
    """``schema`` or null."""
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def record(
    description: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None
) -> Schema:
    """An object. Fields may be added to it without notice, so none is forbidden."""
    schema = _described("object", description, {"properties": required | (optional or {})})
    if required:
        schema["required"] = list(required)
    return schema


def extended(description: str, base: str, *parts: Schema) -> Schema:
    """All of the component ``base`` and ``parts``."""
    return {"description": description, "allOf": [reference(base), *parts]}


def _described(kind: str, description: str, rules: dict[str, Any]) -> Schema:
    return {"type": kind} | ({"description": description} if description else {}) | rules
