"""A real browser on the running API, signed in to accounts with jobs; no Ray, no runner."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from serve_app.settings import Settings
from tests.browser.visits import Visits
from tests.contract.calling import ContractApi, fresh_settings
from tests.contract.runner_side import RunnerSide


@pytest.fixture(scope="session")
def browser_settings(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    with fresh_settings(postgres_url, tmp_path_factory.mktemp("browsed")) as settings:
        yield settings


@pytest.fixture(scope="session")
def api(browser_settings: Settings) -> Iterator[ContractApi]:
    """The running API."""
    with ContractApi(browser_settings) as running:
        yield running


@pytest.fixture(scope="session")
def runner(api: ContractApi) -> RunnerSide:
    """What runners would do."""
    return RunnerSide(api)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium without a window; skips where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    # Of its own, so that nothing of it is left behind.
    with tempfile.TemporaryDirectory(prefix="vas-browser-") as folder, sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=path,
            # In a container the sandbox of the browser has no namespaces to use.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
            env={**os.environ, "TMPDIR": folder},
        )
        yield browser
        browser.close()


@pytest.fixture
def visits(api: ContractApi, chromium: Browser) -> Iterator[Visits]:
    """Browser windows of this test; no script of a page may fail in them."""
    opened = Visits(api, chromium)
    yield opened
    opened.close()
