"""The running API under Schemathesis, from its own interface document.

Examples, coverage of boundaries, valid and invalid data, methods that nobody
documented, missing and wrong credentials; then sequences along the document's
links. ``VAS_SCHEMATHESIS_EXAMPLES`` raises the number of random cases an operation.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from pathlib import Path
from typing import Any

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import Failure
from schemathesis.openapi.checks import RejectedPositiveData
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.discovery.openapi import build_document
from serve_app.discovery.operations import OPERATIONS
from serve_app.discovery.operations_forms import Auth
from serve_app.settings import Settings
from storage import keys, ledger
from tests.api.conftest import SECRET, RunningApi

EXAMPLES = int(os.environ.get("VAS_SCHEMATHESIS_EXAMPLES", "4"))
CUSTOMERS = 120
AUTH_OF = {operation.operation_id: operation.auth for operation in OPERATIONS}
DOCUMENT = build_document()
BOUNDS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
URLS = st.integers(0, 999).map(lambda number: f"https://127.0.0.1/{number}.mp4")
"""The only addresses that the API of these tests may call: nothing leaves this machine."""


BEYOND_SCHEMAS = {
    ("INVALID_URL", None): "a URL with a scheme is not yet one with a host",
    ("URL_NOT_ALLOWED", None): "which addresses are public",
    ("INVALID_CALLBACK_URL", None): "which addresses are public",
    ("FILE_TOO_LARGE", None): "the limit depends on the type and on settings",
    ("UNSUPPORTED_FORMAT", None): "which extensions are taken depends on settings",
    ("IDEMPOTENCY_BODY_MISMATCH", None): "header and body must name the same key",
    ("INVALID_REQUEST", "cursor"): "a cursor is what the service gave out",
    ("INVALID_REQUEST", "status"): "not together with state",
}
"""Codes (and fields) with which valid data may be refused, and the rule that no schema tells."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A customer with a key, a session and an address; counted apart from all others."""

    key: str
    session: str
    address: str

    def headers_for(self, operation_id: str) -> dict[str, str]:
        match AUTH_OF[operation_id]:
            case Auth.KEY:
                return {"X-API-Key": self.key}
            case Auth.SESSION:
                return {"Authorization": f"Bearer {self.session}"}
            case Auth.NONE:
                return {"X-Forwarded-For": self.address}


class Visitors:
    """Hands out customers in turn, so that the real limits stay in force and are not reached."""

    def __init__(self, api: RunningApi) -> None:
        self.api = api
        self._visitors = itertools.cycle(api.transact(_create_visitors))

    def next(self) -> Visitor:
        return next(self._visitors)


async def _create_visitors(connection: AsyncConnection) -> list[Visitor]:
    return [await _create_visitor(connection, number) for number in range(CUSTOMERS)]


async def _create_visitor(connection: AsyncConnection, number: int) -> Visitor:
    account = await keys.create_account(connection, uuid.uuid4().hex)
    await ledger.grant(connection, account.id, 10**6, "test")
    issued = await keys.create_key(connection, account.id)
    link = await keys.create_sign_in_link(connection, account.id)
    session = await keys.exchange_sign_in_link(connection, link)
    assert session is not None
    return Visitor(issued.secret, session, str(IPv4Address("198.18.0.1") + number))


@pytest.fixture(scope="module")
def visitors(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitors]:
    name = f"schemathesis_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template_vas')
        configured = Settings(
            data_dir=Path(tmp_path_factory.mktemp("data")),
            database_url=postgres_url.replace("/postgres?", f"/{name}?"),
            secret_key=SECRET,
            max_active_jobs=100_000,
            allowed_networks=(ip_network("127.0.0.0/8"),),
        )
        with RunningApi(configured) as running:
            yield Visitors(running)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _configuration() -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "generation": {
                "deterministic": True,
                # NUL is refused anywhere in a body, also in fields that are ignored otherwise.
                "allow-x00": False,
                "with-security-parameters": False,
            },
        }
    )


schemathesis.openapi.format("uri", URLS)
load_all_checks()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=_configuration())


@SCHEMA.hook
def filter_failure(
    context: schemathesis.HookContext,
    failure: Failure,
    case: schemathesis.Case,
    response: schemathesis.Response,
) -> bool:
    """Whether a failure counts: not where a schema cannot say what was wrong with the data."""
    if not isinstance(failure, RejectedPositiveData):
        return True
    body = response.json()
    blamed = {(body["code"], None), (body["code"], body.get("param"))}
    return blamed.isdisjoint(BEYOND_SCHEMAS)


@SCHEMA.parametrize()
@BOUNDS
def test_operation(case: schemathesis.Case, visitors: Visitors) -> None:
    visitor = visitors.next()
    headers = visitor.headers_for(case.operation.definition.raw["operationId"])
    answer = case.call_and_validate(base_url=f"{visitors.api.root}/v1/api", headers=headers)
    assert answer.status_code != 429, "the limits were reached: raise CUSTOMERS"


def test_sequences_along_the_links(visitors: Visitors) -> None:
    class Sequences(SCHEMA.as_state_machine()):  # type: ignore[misc]
        visitor: Visitor

        def setup(self) -> None:
            self.visitor = visitors.next()

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            name = case.operation.definition.raw["operationId"]
            return {
                "base_url": f"{visitors.api.root}/v1/api",
                "headers": self.visitor.headers_for(name),
            }

    Sequences.run(settings=settings(BOUNDS, max_examples=5 * EXAMPLES, stateful_step_count=6))
