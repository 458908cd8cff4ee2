"""A scripted server, and a client of it that does not sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve_app.client.api import ApiClient
from tests.serve_app.client.scripted_api import ScriptedApi, serving


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedApi]:
    with serving(ScriptedApi()) as running:
        yield running


@pytest.fixture
def api(server: ScriptedApi) -> ScriptedApi:
    server.seen.clear()
    server._answers.clear()
    return server


@pytest.fixture
def pauses() -> list[float]:
    """The seconds that the client would have slept, in order."""
    return []


@pytest.fixture
def client(api: ScriptedApi, pauses: list[float]) -> Iterator[ApiClient]:
    with ApiClient(api.base_url, "vas_live_secret", sleep=pauses.append) as opened:
        yield opened
