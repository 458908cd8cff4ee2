"""JSON Schemas as people read them: tables of fields, types and rules."""

from __future__ import annotations

import json
from typing import Any

from serve_app.api.html import Child, Html, join, prose, table, tag
from serve_app.discovery.components_forms import Schema

_RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " entries"),
)


class SchemaPages:
    """Renders the schemas of a document."""

    def __init__(self, schemas: dict[str, Schema]) -> None:
        self.schemas = schemas

    def resolve(self, schema: Schema) -> Schema:
        """``schema`` or what it refers to."""
        return self.schemas[_name(schema)] if "$ref" in schema else schema

    def fields(self, schema: Schema) -> tuple[dict[str, Schema], set[str]]:
        """All fields of an object, those of its ``allOf`` included, and which are required."""
        resolved = self.resolve(schema)
        found: dict[str, Schema] = {}
        required: set[str] = set(resolved.get("required", []))
        for part in resolved.get("allOf", []):
            inner, needed = self.fields(part)
            found |= inner
            required |= needed
        own = resolved.get("properties", {})
        for name, field in own.items():
            if not (name in found and set(field) <= {"type", "not"}):
                found[name] = field
        return found, required

    def type_of(self, schema: Schema) -> Html:
        """The type in a few words, with links to named schemas."""
        if "$ref" in schema:
            name = _name(schema)
            return tag("a", name, href=f"#schema-{name}")
        if "const" in schema:
            return tag("code", json.dumps(schema["const"]))
        if "anyOf" in schema:
            return _alternatives([self.type_of(part) for part in schema["anyOf"]])
        kinds = schema.get("type", "any")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return _alternatives([self._kind(kind, schema) for kind in kinds])

    def _kind(self, kind: str, schema: Schema) -> Html:
        if kind == "array" and "items" in schema:
            return join("array of ", self.type_of(schema["items"]))
        if kind == "string" and "format" in schema:
            return join("string ", tag("span", f"({schema['format']})", class_="quiet"))
        return join(kind)

    def notes(self, schema: Schema) -> Html:
        """Description, values and bounds."""
        parts: list[Child] = []
        if schema.get("description"):
            parts.append(prose(schema["description"]))
        if "enum" in schema:
            values = [str(value) for value in schema["enum"] if value is not None]
            listed = [item for value in values for item in (" ", tag("code", value))]
            parts.append(tag("span", "One of", *listed, class_="rule"))
        rules = [_range(schema.get(low), schema.get(high), unit) for low, high, unit in _RANGES]
        rules = [rule for rule in rules if rule]
        if "default" in schema:
            rules.append(f"default `{schema['default']}`")
        if rules:
            parts.append(tag("span", prose("; ".join(rules)), class_="rule"))
        if "pattern" in schema:
            parts.append(tag("span", "Pattern ", tag("code", schema["pattern"]), class_="rule"))
        return join(*(item for part in parts for item in (part, " ")))

    def field_table(self, schema: Schema) -> Html | None:
        """The fields of an object schema; None if it has none."""
        fields, required = self.fields(schema)
        if not fields:
            return None
        rows: list[list[Child]] = []
        for name, field in fields.items():
            self._add_rows(rows, name, field, required=name in required)
        return table(["Field", "Type", "Notes"], rows, class_="fields")

    def _add_rows(
        self, rows: list[list[Child]], path: str, field: Schema, *, required: bool
    ) -> None:
        """A row for the field, and rows for the fields of an object that has no name."""
        mark = tag("span", "required", class_="required") if required else None
        label = join(tag("code", path), mark)
        rows.append([label, self.type_of(field), self.notes(field)])
        inner = field.get("items", field) if field.get("type") == "array" else field
        suffix = "[]" if inner is not field else ""
        if "properties" in inner and "$ref" not in inner:
            needed = set(inner.get("required", []))
            for name, below in inner["properties"].items():
                self._add_rows(rows, f"{path}{suffix}.{name}", below, required=name in needed)


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[1]


def _range(low: int | None, high: int | None, unit: str) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}{unit}"
    if high is not None:
        return f"at most {high}{unit}"
    return f"at least {low}{unit}" if low is not None else ""


def _alternatives(parts: list[Html]) -> Html:
    nodes: list[Child] = []
    for part in parts:
        nodes.extend((" or ", part) if nodes else (part,))
    return join(*nodes)


def as_json(value: Any) -> str:
    """A value as shown in examples."""
    return json.dumps(value, indent=2, ensure_ascii=False)
