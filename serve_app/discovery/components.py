"""``components`` of the interface document."""

from __future__ import annotations

from typing import Any

from serve_app.discovery.components_account import account_schemas
from serve_app.discovery.components_bodies import body_schemas
from serve_app.discovery.components_errors import error_schemas
from serve_app.discovery.components_forms import Schema, text
from serve_app.discovery.components_headers import header_components
from serve_app.discovery.components_jobs import job_schemas
from serve_app.discovery.components_results import result_schemas
from storage.keys import KEY_PREFIX, SESSION_PREFIX

SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
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


def component_schemas() -> dict[str, Schema]:
    """Every named schema."""
    request_id = text("The id of the request.", pattern="^req_[0-9a-f]{32}$")
    return (
        {"RequestId": request_id}
        | job_schemas()
        | body_schemas()
        | result_schemas()
        | account_schemas()
        | error_schemas()
    )


def components() -> dict[str, Any]:
    """The whole section."""
    return {
        "schemas": component_schemas(),
        "headers": header_components(),
        "securitySchemes": SECURITY_SCHEMES,
    }
