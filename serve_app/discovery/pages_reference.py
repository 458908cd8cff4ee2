"""The reference page: the interface document, operation by operation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from serve_app.api.html import as_json, templates

TEMPLATES = Path(__file__).parent / "templates"
_CREDENTIALS = {
    "bearerKey": ("API key", "$VAS_KEY"),
    "session": ("dashboard session", "$VAS_SESSION"),
}


def reference_page(document: dict[str, Any]) -> str:
    """The whole page as HTML."""
    entries = [
        _entry(path, method.upper(), operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    template = templates(TEMPLATES).get_template("reference.html")
    return template.render(document=document, entries=entries)


def _entry(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    words = (operation["operationId"], method, path, operation["summary"])
    schemes = [name for scheme in operation["security"] for name in scheme]
    errors = [
        (status, code)
        for status, response in operation["responses"].items()
        for code in response.get("content", {}).get("application/json", {}).get("examples", ())
    ]
    return {
        "path": path,
        "method": method,
        "operation": operation,
        "search": " ".join(words).lower(),
        "credential": _CREDENTIALS[schemes[0]][0] if schemes else "no credential",
        "sample": curl_sample(path, method, operation),
        "errors": errors,
    }


def curl_sample(path: str, method: str, operation: dict[str, Any]) -> str:
    """A command that calls the operation."""
    query = "&".join(
        f"{parameter['name']}={parameter['schema']['examples'][0]}"
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["required"]
    )
    path = path.replace("{", "$").replace("}", "")
    verb = "" if method == "GET" else f"-X {method} "
    lines = [f'curl {verb}"$BASE_URL{path}{"?" + query if query else ""}"']
    for scheme in operation["security"][:1]:
        lines += [f'-H "Authorization: Bearer {_CREDENTIALS[name][1]}"' for name in scheme]
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(as_json(example))}"]
    return " \\\n  ".join(lines)
