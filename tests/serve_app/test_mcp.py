"""An agent's session over MCP, by the SDK's own client: stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

import storage.types
from serve_app.client.api import JobState
from serve_app.client.mcp_server import MOST_CALLS
from tests.places import PROJECT
from tests.serve_app.published_jobs import SENTENCES, SUMMARY, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_duplicates import compare_all

STDIO, HTTP = (
    json.loads(block)["mcpServers"]["video-analysis"]
    for block in re.findall("```json\n(.*?)```", (PROJECT / "docs/examples.md").read_text(), re.S)
)
VAS = Path(sys.executable).with_name(STDIO["command"])


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def job(api: RunningApi, owner: Customer) -> str:
    job_id = created(api, owner)
    complete(api, job_id, [track(0)], [], SENTENCES)
    compare_all(api)
    return job_id


def base(api: RunningApi) -> str:
    return f"{api.root}/v1/api"


@asynccontextmanager
async def over_stdio(url: str, key: str) -> AsyncIterator[Client]:
    """As ``docs/examples.md`` configures a client."""
    assert set(STDIO["env"]) == {"VAS_URL", "VAS_KEY"}
    environment = {**os.environ, "VAS_URL": url, "VAS_KEY": key}
    parameters = StdioServerParameters(command=str(VAS), args=STDIO["args"], env=environment)
    async with Client(stdio_client(parameters)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    return answer


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    [content] = result.content
    assert content.type == "text"
    return content.text


async def test_a_session_over_stdio_finds_reads_and_quotes_with_times(
    api: RunningApi, owner: Customer, job: str
) -> None:
    async with over_stdio(base(api), owner.key) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"list_jobs", "analyze_url", "wait_for_job", "read_transcript"} <= tools
        [hit] = (await call(client, "search", query='"good morning"'))["hits"]
        assert (hit["jobId"], hit["startTime"], hit["text"]) == (job, 1.2, "Good morning.")
        listed = await call(client, "list_jobs", limit=1)
        assert listed["jobs"][0]["jobId"] == job
        waited = await call(client, "wait_for_job", job_id=job, seconds=5)
        assert waited["state"] == "completed"
        said = await call(client, "read_transcript", job_id=job)
        assert said["segments"] == [
            {
                "startTime": 1.2,
                "endTime": 2.06,
                "speaker": "speaker_0",
                "speakerLabel": "Speaker 1",
                "text": "Good morning.",
            }
        ]
        assert hit["speaker"] == "speaker_0"
        assert (await call(client, "read_transcript", job_id=job, start=3))["segments"] == []
        scenes = await call(client, "list_scenes", job_id=job)
        assert scenes["scenes"][0]["onScreenText"] == ["Anna Weber, baker"]
        chapters = (await call(client, "list_chapters", job_id=job))["chapters"]
        assert [each["title"] for each in chapters] == ["Morning"]
        assert (await call(client, "read_summary", job_id=job))["sentences"] == SUMMARY
        same = await call(client, "list_duplicates", job_id=job)
        assert same == {"duplicates": [], "nextCursor": None}
        found = await call(client, "get_job", job_id=job)
        assert found["stages"]["transcript"] == "completed"


async def test_a_url_is_analysed_and_a_refusal_is_read(api: RunningApi) -> None:
    customer = api.customer()
    async with over_stdio(base(api), customer.key) as client:
        made = await call(client, "analyze_url", url="https://media.example.com/talk.mp4")
        assert made["state"] == "queued"
        assert (await call(client, "wait_for_job", job_id=made["jobId"], seconds=1))[
            "state"
        ] == "queued"
        api.client.post(f"/jobs/{made['jobId']}/cancel", headers=customer.headers)
        refused = await refusal(client, "analyze_url", url="http://127.0.0.1/a.mp4")
        assert "URL_NOT_ALLOWED" in refused
        states = get_args(JobState)
        assert set(states) == set(storage.types.JobState)
        listed = {s: (await call(client, "list_jobs", state=s))["jobs"] for s in states}
        assert [state for state in states if listed[state]] == ["cancelled"]


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a foreign job": ("get_job", {"job_id": str(uuid.UUID(int=1))}, "NOT_FOUND", "job_id"),
    "no id": ("get_job", {"job_id": ""}, "at least 1 character", "job_id"),
    "an id that leads elsewhere": ("get_job", {"job_id": "../keys"}, "NOT_FOUND", "job_id"),
    "a list that is longer": ("list_jobs", {"limit": 1000}, "less than or equal", "limit"),
    "a state that is none": ("list_jobs", {"state": "done"}, "'processing'", "state"),
    "a place in no list": ("list_jobs", {"cursor": "x"}, "INVALID_REQUEST", "cursor"),
    "a long query": ("search", {"query": "a" * 501}, "INVALID_REQUEST", "query"),
    "nothing to search": ("search", {}, "INVALID_REQUEST: Either query or like", "query"),
    "an open quotation": ("search", {"query": '"a'}, "INVALID_REQUEST: query: A quot", "query"),
    "an address within": ("analyze_url", {"url": "http://[::1]/a.mp4"}, "URL_NOT_ALLOWED", "url"),
    "a mode that is none": ("analyze_url", {"url": "x", "mode": "audio"}, "'vision'", "mode"),
}


async def test_a_refusal_names_the_tools_own_parameter(api: RunningApi, owner: Customer) -> None:
    async with over_stdio(base(api), owner.key) as client:
        for name, (tool, arguments, reason, parameter) in REFUSED.items():
            told = await refusal(client, tool, **arguments)
            assert reason in told, name
            assert parameter in told.replace(reason, ""), name


async def test_tools_state_what_they_do_and_whom_not_to_trust(
    api: RunningApi, owner: Customer
) -> None:
    async with over_stdio(base(api), owner.key) as client:
        for tool in (await client.list_tools()).tools:
            assert tool.annotations is not None
            assert tool.annotations.open_world_hint is True
            assert tool.annotations.read_only_hint == (tool.name != "analyze_url")
            assert tool.name == "analyze_url" or "untrusted" in (tool.description or "")


@contextmanager
def served_over_http(api: RunningApi) -> Iterator[str]:
    """``vas mcp --http 0``; yields the address that it prints."""
    environment = {**os.environ, "VAS_URL": base(api)}
    command = [str(VAS), "mcp", "--http", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in range(3))
            address = re.search(r"http://127\.0\.0\.1:\d+/mcp", printed)
            assert address is not None, printed
            assert "Authorization: Bearer" in printed
            assert base(api) in printed
            assert urlsplit(address[0]).path == urlsplit(HTTP["url"]).path
            yield address[0]
        finally:
            process.terminate()


@asynccontextmanager
async def over_http(url: str, headers: dict[str, str]) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=180) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def test_waits_of_one_customer_hold_up_no_other_and_are_bounded(
    api: RunningApi, owner: Customer
) -> None:
    busy = api.customer()
    job_id = created(api, busy)
    with served_over_http(api) as url:
        async with over_http(url, busy.headers) as many, over_http(url, owner.headers) as one:
            wait = {"job_id": job_id, "seconds": 60}
            waits = [asyncio.create_task(many.call_tool("wait_for_job", wait)) for _ in range(45)]
            for first in asyncio.as_completed(waits):
                await first
                if sum(wait.done() for wait in waits) == 45 - MOST_CALLS:
                    break
            await call(one, "list_jobs")
            assert sum(not wait.done() for wait in waits) == MOST_CALLS, "they wait on meanwhile"
            cancelled = api.client.post(f"/jobs/{job_id}/cancel", headers=busy.headers)
            assert cancelled.is_success, cancelled.text
            ended = await asyncio.gather(*waits)
            refused = [each for each in ended if each.is_error]
            assert len(refused) == 45 - MOST_CALLS
            assert all("TOO_MANY_CALLS" in str(each.content) for each in refused)
            assert (await call(many, "get_job", job_id=job_id))["state"] == "cancelled"


async def test_over_http_each_request_has_its_own_key(
    api: RunningApi, owner: Customer, job: str
) -> None:
    other = api.customer()
    with served_over_http(api) as url:
        for customer, expected in ((owner, [job]), (other, [])):
            headers = {"Authorization": f"Bearer {customer.key}"}
            assert headers.keys() == HTTP["headers"].keys()
            async with over_http(url, headers) as client:
                jobs = (await call(client, "list_jobs"))["jobs"]
                assert [each["jobId"] for each in jobs] == expected
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(url, json={})
            assert answer.status_code == 401
            for wrong in ("vas_live_" + "x" * 43, "no key"):
                answer = await http.post(url, json={}, headers={"X-API-Key": wrong})
                assert answer.status_code == 401
