"""A name that was corrected is right in the next job, and in a rerun of one before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.service import Service
from tests.acceptance.test_rerun import rerun

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]


def send(service: Service, method: str, path: str, **body: Any) -> Any:
    key = {"X-API-Key": service.api_key}
    url = f"{service.base_url}{path}"
    answer = httpx.request(method, url, json=body or None, headers=key, trust_env=False)
    assert answer.is_success, answer.text
    return answer.json()["data"]


def test_a_corrected_name_is_right_in_the_next_job(service: Service, excerpt: Path) -> None:
    corrected, before = (service.submit(excerpt, "transcript") for _ in range(2))
    service.completed(corrected)
    service.completed(before)
    segments = send(service, "GET", f"/jobs/{corrected}/transcript")["segments"]
    heard = max(re.findall("[a-z]{4,}", segments[0]["text"]), key=len)
    texts = [re.sub(rf"(?i)\b{heard}\b", "Pemberley", each["text"]) for each in segments]
    edits = [{"index": at, "text": text} for at, text in enumerate(texts)]
    send(service, "PATCH", f"/jobs/{corrected}/transcript", revision=0, segments=edits)
    [proposal] = send(service, "GET", "/vocabulary")["proposals"]
    assert (proposal["from"].lower(), proposal["to"]) == (heard, "Pemberley")
    chosen = [{name: proposal[name] for name in ("from", "to")}]
    send(service, "PUT", "/vocabulary", keyterms=[], replacements=chosen)
    try:
        following = service.submit(excerpt, "transcript")
        forced = rerun(service, before, stages=["transcript"])
        service.completed(forced["rerunJobId"])
        service.completed(following)
    finally:
        send(service, "PUT", "/vocabulary", keyterms=[], replacements=[])
    for job in (following, before):
        found = send(service, "GET", f"/jobs/{job}/transcript")["segments"]
        assert [each["text"] for each in found] == texts
