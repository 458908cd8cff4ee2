"""An agent analyses a file by its address and quotes from it, over MCP, with the real service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import EXCERPT_SECONDS
from tests.acceptance.service import JOB_SECONDS, Service, serving_files
from tests.acceptance.test_main_job import TRUTH, word_error_rate
from tests.serve_app.test_mcp import call, over_stdio

pytestmark = pytest.mark.service

NEAR_SECONDS = 0.5


async def test_an_agent_analyses_a_url_and_quotes_what_was_said_with_its_time(
    service: Service, excerpt: Path
) -> None:
    sentence = next(each for each in TRUTH["sentences"] if "short film" in each["text"])
    with serving_files(excerpt.parent) as url:
        async with over_stdio(service.base_url, service.api_key) as client:
            made = await call(client, "analyze_url", url=f"{url}/{excerpt.name}", mode="transcript")
            job_id = made["jobId"]
            ended = await call(client, "wait_for_job", job_id=job_id, seconds=JOB_SECONDS)
            assert ended["state"] == "completed", ended
            found = await call(client, "search", query='"short film"', job_id=job_id)
            [hit] = found["hits"]
            start, end = hit["startTime"], hit["endTime"]
            read = await call(client, "read_transcript", job_id=job_id, start=start, end=end)
            chapters = (await call(client, "list_chapters", job_id=job_id))["chapters"]
    assert hit["jobId"] == job_id
    assert start - NEAR_SECONDS <= sentence["start_ms"] / 1000
    assert sentence["end_ms"] / 1000 <= end + NEAR_SECONDS
    [quoted] = [each for each in read["segments"] if each["startTime"] == start]
    assert quoted["text"] in hit["text"]
    said = [each for each in TRUTH["sentences"]
            if start - NEAR_SECONDS <= each["start_ms"] / 1000 < end - NEAR_SECONDS]  # fmt: skip
    words = " ".join(each["text"] for each in said).split()
    assert word_error_rate(words, quoted["text"].lower().replace(",", "").split()) < 0.3
    assert chapters[0]["startTime"] == 0
    assert chapters[-1]["endTime"] == pytest.approx(EXCERPT_SECONDS, abs=0.5)
