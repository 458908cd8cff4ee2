"""A video from the browser through the whole service and back, by the operator's link."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.acceptance.service import JOB_SECONDS, Service
from tests.browser.visits import DESK, launched
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(600)]


def sign_in_url(service: Service) -> str:
    command = [sys.executable, "-m", "serve_app.cli", "sessions", "create", "demo", "--json",
               "--data", str(service.data)]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    query: str = json.loads(made.stdout)["signInUrl"].partition("?")[2]
    return f"{service.root}/dashboard/sign-in?{query}"


def test_a_video_is_sent_watched_searched_and_taken_away(service: Service) -> None:
    with launched() as browser:
        page = browser.new_page(viewport=DESK)
        page.goto(sign_in_url(service))
        page.wait_for_url("**/dashboard")
        page.set_input_files("#files", DEMO)
        done = page.locator(".job", has_text=DEMO.name).filter(has_text="Done").first
        expect(done).to_be_visible(timeout=JOB_SECONDS * 1000)
        page.fill("#q", "mountains")
        page.press("#q", "Enter")
        page.locator(".hits h2 a", has_text="mountains").first.click()
        page.wait_for_selector("#watch[data-ready]")
        assert page.locator("#player").evaluate("player => player.currentTime") > 5
        page.locator(".segment i", has_text="morning").first.click()
        expect(page.locator(".segment i.now")).to_have_text("morning")
        page.click("text=Download")
        with page.expect_download() as download:
            page.click("text=Captions, SRT")
        assert "Good morning" in Path(download.value.path()).read_text()
