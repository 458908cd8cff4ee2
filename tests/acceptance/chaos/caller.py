"""One HTTP request to its final answer, by the retry rules of the API and by nothing else.

Every 429 and 503, and the two codes of 409 that pass, are waited out as ``Retry-After`` says; a
500 is repeated with exponential backoff and jitter. A connection that breaks or is refused is
repeated likewise: the rules are silent on it, and every HTTP client must bear it. Everything else
is final, and a violation unless the caller expects it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.acceptance.chaos.journal import Change, Journal

PATIENCE_SECONDS = 240.0
"""A request that has found no final answer by then has failed its client."""
PASSING_CODES = frozenset({"IDEMPOTENCY_IN_PROGRESS", "RESULTS_NOT_READY"})
LONGEST_BACKOFF_SECONDS = 8.0
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class UncoveredError(Exception):
    """The client was left with a failure that the retry rules do not cover."""


@dataclass(slots=True)
class Caller:
    """A client's connections. ``headers`` go with every request to the API."""

    base_url: str
    headers: Mapping[str, str]
    journal: Journal
    chance: random.Random
    http: httpx.Client = field(
        default_factory=lambda: httpx.Client(timeout=_TIMEOUT, trust_env=False)
    )

    def data(self, method: str, path: str, *expected: int | str, **request: Any) -> Any:
        """``data`` of an API answer, else the error envelope of an ``expected`` status or code."""
        answer = self.final(method, f"{self.base_url}{path}", *expected, **request)
        body = answer.json()
        if body.get("requestId") != answer.headers.get("x-request-id"):
            self.journal.violated(f"{method} {path}: header and body name two requests")
        return body["data"] if answer.is_success else body

    def final(self, method: str, url: str, *expected: int | str, **request: Any) -> httpx.Response:
        """Ask until the answer is final; raises UncoveredError for one that is not covered.

        A code that is ``expected`` is final even where the answer has Retry-After.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        attempt = 0
        while time.monotonic() < deadline:
            attempt += 1
            answer = self.once(method, url, attempt, *expected, **request)
            if answer is None:
                continue
            if answer.is_success or {answer.status_code, _code(answer)} & set(expected):
                return answer
            raise self._uncovered(f"{method} {url}: {answer.status_code} {answer.text[:300]}")
        raise self._uncovered(f"{method} {url}: no final answer in {PATIENCE_SECONDS:.0f} s")

    def once(
        self, method: str, url: str, attempt: int, *expected: int | str, **request: Any
    ) -> httpx.Response | None:
        """Ask once; None, after the wait that is due, where it is to be asked again."""
        headers = {**self.headers, **request.pop("headers", {})}
        try:
            answer = self.http.request(method, url, headers=headers, **request)
        except httpx.TransportError as error:
            self.journal.broke(type(error).__name__)
            self._back_off(attempt)
            return None
        code = _code(answer)
        self.journal.answered(_name(method, answer, code))
        if code in expected:
            pass
        elif answer.status_code == 500:
            self._back_off(attempt)
            return None
        elif answer.status_code in {429, 503} or code in PASSING_CODES:
            time.sleep(self._told_to_wait(answer, method, url))
            return None
        if method not in {"GET", "HEAD"}:
            self.journal.changed(
                Change(
                    method,
                    answer.url.path,
                    answer.status_code,
                    answer.headers.get("x-request-id", ""),
                    "idempotent-replayed" in answer.headers,
                )
            )
        return answer

    def store(self, url: str, content: bytes, headers: Mapping[str, str]) -> None:
        """PUT to an upload URL, which may be the object store's own: its 5xx pass."""
        for attempt in range(1, 100):
            try:
                answer = self.http.put(url, content=content, headers=dict(headers))
            except httpx.TransportError as error:
                self.journal.broke(f"upload: {type(error).__name__}")
                self._back_off(attempt)
                continue
            self.journal.answered(f"upload: {answer.status_code}")
            if answer.is_success:
                return
            if answer.status_code < 500:
                raise self._uncovered(f"PUT: {answer.status_code} {answer.text[:300]}")
            self._back_off(attempt)
        raise self._uncovered("PUT: no end of failures")

    def _told_to_wait(self, answer: httpx.Response, method: str, url: str) -> float:
        stated = answer.headers.get("retry-after", "")
        if stated.isdigit():
            return float(stated)
        self.journal.violated(f"{method} {url}: {answer.status_code} without Retry-After")
        return 1.0

    def _back_off(self, attempt: int) -> None:
        longest = min(LONGEST_BACKOFF_SECONDS, 0.25 * 2 ** min(attempt, 8))
        time.sleep(self.chance.uniform(longest / 2, longest))

    def _uncovered(self, sentence: str) -> UncoveredError:
        self.journal.violated(sentence)
        return UncoveredError(sentence)


def _code(answer: httpx.Response) -> str:
    """Of the catalogue; a failed HEAD says that it is JSON, and has no body."""
    json_body = "json" in answer.headers.get("content-type", "") and answer.content
    if answer.is_success or not json_body:
        return ""
    body = answer.json()
    return str(body.get("code", "")) if isinstance(body, dict) else ""


def _name(method: str, answer: httpx.Response, code: str) -> str:
    """What the journal counts answers by; what failed without a code is told in full."""
    if code or answer.status_code < 400:
        return f"{answer.status_code} {code}".strip()
    if "html" in answer.headers.get("content-type", ""):
        return f"{answer.status_code} page"
    return f"{answer.status_code} {method} {answer.text[:200]}".strip()
