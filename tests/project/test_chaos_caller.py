"""The client of the chaos run: what it makes of answers that are not as they should be."""

from __future__ import annotations

import random

import httpx

from tests.acceptance.chaos.caller import Caller
from tests.acceptance.chaos.journal import Journal

JSON = {"Content-Type": "application/json"}
BUSY = {"code": "SERVICE_UNAVAILABLE", "error": "Later."}


def caller_of(*answers: httpx.Response) -> Caller:
    waiting = iter(answers)
    transport = httpx.MockTransport(lambda _: next(waiting))
    return Caller(
        "http://service", {}, Journal(), random.Random(1), httpx.Client(transport=transport)
    )


def test_a_busy_answer_without_a_body_is_waited_out() -> None:
    busy = httpx.Response(503, headers=JSON | {"Retry-After": "0"})
    caller = caller_of(busy, httpx.Response(200))
    assert caller.final("HEAD", "http://service/upload").status_code == 200
    assert caller.journal.violations == []
    assert caller.journal.answers["503 HEAD"] == 1


def test_answers_are_counted_by_their_code() -> None:
    busy = httpx.Response(503, json=BUSY, headers={"Retry-After": "0"})
    caller = caller_of(busy, busy, httpx.Response(204))
    caller.final("GET", "http://service/")
    assert caller.journal.answers == {"503 SERVICE_UNAVAILABLE": 2, "204": 1}


def test_a_failure_without_a_code_is_kept_with_what_it_said() -> None:
    caller = caller_of(httpx.Response(500, text="Internal Server Error"), httpx.Response(200))
    caller.final("GET", "http://service/")
    assert caller.journal.answers["500 GET Internal Server Error"] == 1
