"""What Schemathesis needs to try a running API from its own interface document.

Examples, coverage of boundaries, valid and invalid data, methods that nobody
documented, missing and wrong credentials; then sequences along the document's
links. ``VAS_SCHEMATHESIS_EXAMPLES`` raises the number of random cases an operation.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import Failure
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.openapi.checks import (
    EnsureResourceAvailability,
    RejectedPositiveData,
    UseAfterFree,
)
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.schemas import OpenApiSchema
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.api.authentication import Auth
from storage import keys, ledger
from tests.examples import every_example, examples
from tests.serve_app.interface_contract import BY_ID, DOCUMENT

EXAMPLES = int(os.environ.get("VAS_SCHEMATHESIS_EXAMPLES", examples(8)))
SCENARIOS = 5 * EXAMPLES
Result = TypeVar("Result")
CUSTOMERS = 120
CANCELLING_DELETE = "DELETE /jobs/{jobId}"
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
    ("INVALID_REQUEST", "end"): "behind the start, and not too far",
    ("INVALID_REQUEST", "status"): "not together with state",
    ("INVALID_REQUEST", "q"): "quotation marks are closed, and there is a word to look for",
    ("INVALID_REQUEST", "like"): "not together with q, language or other kinds",
    ("INVALID_REQUEST", "to"): "after from",
    ("INVALID_REQUEST", "people"): "whether faces are put together depends on the operator",
    ("INVALID_REQUEST", "voices"): "whether voices are recognised depends on the operator",
    ("INVALID_REQUEST", "replacements"): "the same words once, in whatever case",
    ("INVALID_REQUEST", "vocabulary.replacements"): "the same words once, in whatever case",
    ("INVALID_REQUEST", "name"): "an account has so many voices, a voice so many samples",
    ("INVALID_REQUEST", "rules"): "which houses there are depends on the operator",
    ("INVALID_REQUEST", "url"): "an account has so many endpoints, and so many archives",
    ("INVALID_REQUEST", "retention.sourceSeconds"): "the most depends on the operator",
    ("INVALID_REQUEST", "retention.resultDays"): "the most depends on the operator",
    ("INVALID_REQUEST", "speakersAtMost"): "no fewer than are expected",
    ("INVALID_REQUEST", "trackIndex"): "required where there are several tracks",
    ("INVALID_REQUEST", "segments[].index"): "a segment of the transcript, named once",
    ("INVALID_REQUEST", "segments[].text"): "a word takes a millisecond",
    ("INVALID_REQUEST", "segments[].speaker"): "a speaker of the track",
    ("INVALID_REQUEST", "segments[].startTime"): "behind the segment before",
    ("INVALID_REQUEST", "segments[].endTime"): "behind the start, before the next segment",
    ("INVALID_REQUEST", "split[].index"): "a segment that is not merged too",
    ("INVALID_REQUEST", "split[].word"): "a word of the segment, but not the first",
    ("INVALID_REQUEST", "merge[].count"): "segments of the transcript, each once",
    (
        "INVALID_REQUEST",
        "language",
    ): "one that the service translates into, and none that is spoken",
    ("INVALID_REQUEST", "revision"): "a translation has none",
    ("SOURCE_GONE", None): "how long media is kept depends on settings",
    ("REVISION_CONFLICT", None): "the revision is that of the transcript",
}
"""Codes (and fields) with which valid data may be refused, and the rule that no schema tells."""


class Served(Protocol):
    """A running API, and a way into its database."""

    @property
    def root(self) -> str: ...

    def transact(self, work: Callable[[AsyncConnection], Awaitable[Result]]) -> Result: ...


@dataclass(frozen=True, slots=True)
class Visitor:
    """A customer with a key, a session and an address; counted apart from all others."""

    account_id: uuid.UUID
    key: str
    session: str
    address: str

    def headers_for(self, operation_id: str) -> dict[str, str]:
        match BY_ID[operation_id].auth:
            case Auth.KEY:
                return {"X-API-Key": self.key}
            case Auth.SESSION:
                return {"Authorization": f"Bearer {self.session}"}
            case Auth.NONE:
                return {"X-Forwarded-For": self.address}


class Visitors:
    """Hands out customers, so many that the real limits stay in force and are not reached."""

    def __init__(self, api: Served, customers: int = CUSTOMERS) -> None:
        self.api = api
        self._addresses = itertools.count(int(IPv4Address("198.18.0.1")))
        self._in_turn = itertools.cycle(self._created(customers))
        self._unused: list[Visitor] = []

    def next(self) -> Visitor:
        """One that had requests before."""
        return next(self._in_turn)

    def new(self) -> Visitor:
        """One whose account is empty: the same sequence meets the same answers again."""
        if not self._unused:
            self._unused = self._created(SCENARIOS)
        return self._unused.pop()

    def _created(self, count: int) -> list[Visitor]:
        async def create(connection: AsyncConnection) -> list[Visitor]:
            return [
                await _create_visitor(connection, str(IPv4Address(next(self._addresses))))
                for _ in range(count)
            ]

        created = self.api.transact(create)
        # In a transaction of its own, so that it is the newer key, which links lead to.
        self.api.transact(lambda connection: _create_spare_keys(connection, created))
        return created


async def _create_spare_keys(connection: AsyncConnection, visitors: list[Visitor]) -> None:
    for visitor in visitors:
        await keys.create_key(connection, visitor.account_id)


async def _create_visitor(connection: AsyncConnection, address: str) -> Visitor:
    account = await keys.create_account(connection, uuid.uuid4().hex)
    await ledger.grant(connection, account.id, 10**6, "test")
    issued = await keys.create_key(connection, account.id)
    link = await keys.create_sign_in_link(connection, account.id)
    session = await keys.exchange_sign_in_link(connection, link)
    assert session is not None
    return Visitor(account.id, issued.secret, session, address)


def _configuration(*, coverage: bool) -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "phases": {"coverage": {"enabled": coverage}},
            "generation": {
                "deterministic": True,
                # NUL is refused anywhere in a body, also in fields that are ignored otherwise.
                "allow-x00": False,
                "with-security-parameters": False,
            },
            "checks": {
                # The usual ones, and 413: other fields of a bad request may be at fault too.
                "negative_data_rejection": {
                    "expected-statuses": [400, 401, 404, 405, 409, 413, 415, 422]
                },
            },
        }
    )


schemathesis.openapi.format("uri", URLS)
load_all_checks()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=_configuration(coverage=True))
SECOND_LOOK = (
    SCHEMA
    if every_example()
    else schemathesis.openapi.from_dict(DOCUMENT, config=_configuration(coverage=False))
)
"""For the same API behind a proxy: in the suite of a pull request, without the edges of values."""
OPERATIONS = sorted(BY_ID)


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext,
    failure: Failure,
    case: schemathesis.Case[Any],
    response: schemathesis.Response,
) -> bool:
    """Whether a failure counts: not where the rule is one that no schema can tell."""
    answer = response.json()
    if isinstance(failure, RejectedPositiveData):
        param = re.sub(r"\[\d+\]", "[]", answer.get("param") or "")
        blamed = {(answer["code"], None), (answer["code"], param)}
        return blamed.isdisjoint(BEYOND_SCHEMAS)
    if isinstance(failure, EnsureResourceAvailability):
        # The job is there; the result asked for never will be.
        return bool(answer["code"] != "RESULTS_UNAVAILABLE")
    # The verb is reserved; today it cancels, and a cancelled job stays readable.
    cancelled_only = isinstance(failure, UseAfterFree) and failure.operation == CANCELLING_DELETE
    return not cancelled_only


def invalid_queries_are_refused(
    context: schemathesis.CheckContext,
    response: schemathesis.Response,
    case: schemathesis.Case[Any],
) -> None:
    """Schemathesis excuses a bad parameter when another one of the same query is good."""
    operation = BY_ID[case.operation.definition.raw["operationId"]]
    if case.method != operation.method:
        return
    sent = parse_qs(urlsplit(str(response.request.url)).query, keep_blank_values=True)
    for parameter in operation.parameters:
        name, values = parameter["name"], sent.get(parameter["name"], [])
        if parameter["in"] == "query" and not all(
            _fits(parameter["schema"], text) for text in values
        ):
            assert 400 <= response.status_code < 500, f"{name}={values} was accepted"


def _fits(schema: dict[str, Any], text: str) -> bool:
    """Whether the text of a query parameter is what the schema asks for."""
    value: Any = text
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if schema["type"] in {"integer", "number"}:
        try:
            value = json.loads(text)
        except ValueError:
            return False
    return Draft202012Validator(schema).is_valid(value)


def try_operation(
    schema: OpenApiSchema, operation_id: str, visitors: Visitors, bounds: settings = BOUNDS
) -> None:
    """Send every case of one operation.

    They are made here: ``schema.parametrize`` would make them while tests are collected, which
    takes every worker of a run seconds.
    """

    def check(case: schemathesis.Case[Any]) -> None:
        _call(case, visitors)

    run_cases = build_operation_test(
        config=schema.config,
        operation=schema.find_operation_by_id(operation_id),
        test_func=check,
        given_kwargs={},
        feedback=FeedbackSources(constants_value_source=make_constants_value_source(schema)),
        explicit_settings=bounds,
    )
    run_cases()


def _call(case: schemathesis.Case[Any], visitors: Visitors) -> None:
    """Send one case, hold the answer to every check."""
    visitor = visitors.next()
    headers = visitor.headers_for(case.operation.definition.raw["operationId"])
    answer = case.call_and_validate(
        base_url=f"{visitors.api.root}/v1/api",
        headers=headers,
        additional_checks=[invalid_queries_are_refused],
    )
    assert answer.status_code != 429, "the limits were reached: raise CUSTOMERS"


def run_sequences(visitors: Visitors, scenarios: int) -> None:
    """Walk along the document's links, each walk as a customer of its own."""

    class Sequences(SCHEMA.as_state_machine()):  # type: ignore[misc]
        visitor: Visitor

        def setup(self) -> None:
            self.visitor = visitors.new()

        def get_call_kwargs(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
            name = case.operation.definition.raw["operationId"]
            return {
                "base_url": f"{visitors.api.root}/v1/api",
                "headers": self.visitor.headers_for(name),
            }

    Sequences.run(settings=settings(BOUNDS, max_examples=scenarios, stateful_step_count=6))
