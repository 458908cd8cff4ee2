"""An agent's session over MCP, by the SDK's own client: stdio and streamable HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.api.published_jobs import SUMMARY, complete, created, track
from tests.api.running_api import Customer, RunningApi

VAS = [sys.executable, "-m", "serve_app.cli", "mcp"]


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def job(api: RunningApi, owner: Customer) -> str:
    job_id = created(api, owner)
    complete(api, job_id, [track(0)], [], SUMMARY)
    return job_id


def base(api: RunningApi) -> str:
    return f"{api.root}/v1/api"


@asynccontextmanager
async def over_stdio(url: str, key: str) -> AsyncIterator[Client]:
    environment = {**os.environ, "VAS_URL": url, "VAS_KEY": key}
    parameters = StdioServerParameters(command=VAS[0], args=VAS[1:], env=environment)
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
            {"startTime": 1.2, "endTime": 2.06, "speaker": "Speaker 1", "text": "Good morning."}
        ]
        assert (await call(client, "read_transcript", job_id=job, start=3))["segments"] == []
        scenes = await call(client, "list_scenes", job_id=job)
        assert scenes["scenes"][0]["onScreenText"] == ["Anna Weber, baker"]
        chapters = (await call(client, "list_chapters", job_id=job))["chapters"]
        assert [each["title"] for each in chapters] == ["Morning"]
        assert (await call(client, "read_summary", job_id=job))["sentences"] == SUMMARY
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
        assert "NOT_FOUND" in await refusal(client, "get_job", job_id="x")
        assert "limit" in await refusal(client, "list_jobs", limit=1000)


@contextmanager
def served_over_http(api: RunningApi) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "VAS_URL": base(api)}
    process = subprocess.Popen([*VAS, "--http", str(port)], env=environment)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


async def test_over_http_each_request_has_its_own_key(
    api: RunningApi, owner: Customer, job: str
) -> None:
    other = api.customer()
    with served_over_http(api) as url:
        for customer, expected in ((owner, [job]), (other, [])):
            headers = {"Authorization": f"Bearer {customer.key}"}
            async with (
                httpx2.AsyncClient(headers=headers, trust_env=False) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                jobs = (await call(client, "list_jobs"))["jobs"]
                assert [each["jobId"] for each in jobs] == expected
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(url, json={})
            assert answer.status_code == 401
            wrong = {"X-API-Key": "vas_live_" + "x" * 43}
        async with (
            httpx2.AsyncClient(headers=wrong, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            assert "UNAUTHORIZED" in await refusal(client, "list_jobs")
