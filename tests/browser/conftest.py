"""A real browser on the running API, signed in to accounts with jobs; no Ray, no runner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.visits import Visits, launched
from tests.contract.calling import ContractApi, fresh_api
from tests.contract.runner_side import RunnerSide


@pytest.fixture(scope="session")
def api(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractApi]:
    """The running API."""
    with fresh_api(postgres_url, tmp_path_factory.mktemp("browsed")) as running:
        yield running


@pytest.fixture(scope="session")
def runner(api: ContractApi) -> RunnerSide:
    """What runners would do."""
    return RunnerSide(api)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium without a window; skips where there is none.

    Not for the session: while it is open, Playwright's event loop runs in this thread, and no test
    of another module could run one.
    """
    with launched() as browser:
        yield browser


@pytest.fixture
def visits(api: ContractApi, chromium: Browser) -> Iterator[Visits]:
    """Browser windows of this test; no script of a page may fail in them."""
    opened = Visits(api, chromium)
    yield opened
    opened.close()
