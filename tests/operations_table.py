"""``serve_app/client/operations.json``: what the client and ``vas`` know of the interface document.

python -m tests.operations_table > serve_app/client/operations.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.serve_app.interface_contract import DOCUMENT

KEPT = ("type", "enum", "minimum", "maximum", "default", "deprecated")


def table() -> str:
    """A line an operation, by its id: how it is called."""
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in operations())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            yield (
                operation["operationId"],
                {
                    "method": method.upper(),
                    "path": path,
                    "parameters": list(map(parameter, operation.get("parameters", ()))),
                    "body": sorted(resolved(body.get("schema", {})).get("properties", {})),
                },
            )


def parameter(documented: dict[str, Any]) -> dict[str, Any]:
    schema = resolved(documented["schema"])
    found = {name: documented[name] for name in ("name", "in")}
    # Without the marks of code, which a terminal does not show.
    found["help"] = documented["description"].replace("`", "")
    found |= {"required": True} if documented.get("required") else {}
    return found | {name: schema[name] for name in KEPT if name in schema}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, also where it stands among the document's components."""
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


if __name__ == "__main__":
    print(table(), end="")
