"""The dashboard of a whole service in a real browser, from the link that the operator makes on."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from storage import keys, ledger
from storage.database import Connection
from tests.acceptance.service import JOB_SECONDS, Service
from tests.browser.visits import DESK, Line, launched
from tests.places import PROJECT

pytestmark = pytest.mark.long

MIB = 1024**2
SENT_BYTES = 50 * MIB
MILLISECONDS = 1000 * JOB_SECONDS


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@dataclass(frozen=True, slots=True)
class Account:
    """An account of its own: its key is rotated."""

    name: str
    key: str


@pytest.fixture
def account(service: Service) -> Account:
    name = f"dashboard-{uuid.uuid4().hex[:8]}"

    async def create(connection: Connection) -> Account:
        made = await keys.create_account(connection, name)
        await ledger.grant(connection, made.id, 1000, "test")
        return Account(name, (await keys.create_key(connection, made.id)).secret)

    return service.transact(create)


@pytest.fixture
def page(service: Service, account: Account, chromium: Browser) -> Iterator[Page]:
    """A window on the list of jobs, signed in by the link of ``vas sessions create``."""
    with Line(service.port, bytes_a_second=20 * MIB).running() as line:
        context = chromium.new_context(base_url=line.root, viewport=DESK)
        context.set_default_timeout(20_000)
        opened = context.new_page()
        opened.on("dialog", lambda dialog: dialog.accept())
        opened.line = line  # type: ignore[attr-defined]
        opened.goto(sign_in_path(service, account))
        opened.wait_for_url("**/dashboard")
        yield opened
        context.close()


def sign_in_path(service: Service, account: Account) -> str:
    command = [sys.executable, "-m", "serve_app.cli", "sessions", "create", account.name]
    command += ["--data", str(service.data), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    address = urlsplit(json.loads(done.stdout)["signInUrl"])
    return f"{address.path}?{address.query}"


def until(page: Page, condition: Callable[[], Any], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(50)


def plays(page: Page) -> None:
    """The picture's time goes on."""
    page.evaluate("document.getElementById('player').muted = true")
    page.evaluate("document.getElementById('player').play()")
    before = page.evaluate("document.getElementById('player').currentTime")
    now = "document.getElementById('player').currentTime"
    until(page, lambda: page.evaluate(now) > before + 0.2, 60, "it does not play")
    page.evaluate("document.getElementById('player').pause()")


@pytest.fixture(scope="module")
def large(excerpt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The excerpt with so much behind it that players pass over (an MP4 box called ``free``)."""
    path = tmp_path_factory.mktemp("large") / "Interview <b>one.mp4"
    content = excerpt.read_bytes()
    left = SENT_BYTES - len(content)
    path.write_bytes(content + struct.pack(">I4s", left, b"free") + os.urandom(left - 8))
    return path


def test_from_a_link_to_results_taken_away(
    service: Service, account: Account, page: Page, large: Path
) -> None:
    line: Line = page.line  # type: ignore[attr-defined]
    page.set_input_files("#files", large)
    bar = page.locator(".upload progress")
    until(page, lambda: bar.evaluate("bar => bar.value") > 0.3, 60, "nothing is sent")
    line.cut()
    expect(page.locator(".upload .line")).to_contain_text("connection broke")
    line.mend()
    expect(page.locator(".upload")).to_have_count(0, timeout=60_000)

    title = page.locator(".job h2 a")
    expect(title).to_have_text(large.name)
    expect(page.locator(".job .state")).to_have_text("Done", timeout=MILLISECONDS)
    title.click()
    page.wait_for_selector("#watch[data-ready]")
    plays(page)
    said = page.locator(".segment >> nth=-1").locator("i")
    texts = said.all_inner_texts()
    word = said.nth(max(range(len(texts)), key=lambda n: len(texts[n])))
    word.click()
    spoken = page.evaluate("document.getElementById('player').currentTime")
    assert spoken > 1
    expect(word).to_have_class("now")
    text = word.inner_text()

    page.fill("#find-text", text)
    expect(page.locator("#found")).to_contain_text("1 of")
    heading = page.locator(".speaker >> nth=0")
    heading.hover()
    heading.locator(".rename").click()
    page.keyboard.type("Anna Weber")
    page.keyboard.press("Enter")
    expect(heading.locator("span")).to_have_text("Anna Weber")

    captions = download(page, "Captions, SRT")
    assert captions.startswith("1\n00:00:")
    assert text in captions
    assert "Anna Weber" in download(page, "Transcript, JSON")
    edits = download(page, "Edit list, EDL")
    assert edits.startswith("TITLE:")
    assert "001" in edits

    page.goto(f"/dashboard/search?q={text.strip('.,!?')}")
    page.locator(".hits h2 a >> nth=0").click()
    page.wait_for_selector("#watch[data-ready]")
    assert page.evaluate("location.hash").startswith("#t=")

    page.goto("/dashboard/keys")
    page.click("button:has-text('Rotate') >> nth=0")
    fresh = page.inner_text("#new-key")
    page.goto("/dashboard/keys")
    assert fresh not in page.content()
    for key, status in ((fresh, 200), (account.key, 401)):
        headers = {"X-API-Key": key}
        answer = httpx.get(f"{service.base_url}/quota", headers=headers, trust_env=False)
        assert answer.status_code == status


def download(page: Page, name: str) -> str:
    page.click("text=Download")
    with page.expect_download() as found:
        page.click(f"text={name}")
    page.click("text=Download")
    return Path(found.value.path()).read_text()


def as_mpeg2(source: Path, target: Path) -> Path:
    """The same film as browsers cannot play it."""
    with av.open(str(source)) as reader, av.open(str(target), "w", format="dvd") as writer:
        picture: Any = writer.add_stream("mpeg2video", rate=25)
        shown = reader.streams.video[0].codec_context
        picture.width, picture.height, picture.pix_fmt = shown.width, shown.height, "yuv420p"
        picture.codec_context.bit_rate = 4_000_000
        sound: Any = writer.add_stream("mp2", rate=48_000)
        sound.codec_context.layout = "stereo"
        resampler = av.AudioResampler(format="s16", layout="stereo", rate=48_000)
        count = 0
        for frame in reader.decode(video=0, audio=0):
            if isinstance(frame, av.VideoFrame):
                frame.pts, frame.time_base, frame.pict_type = count, Fraction(1, 25), 0
                count += 1
                writer.mux(picture.encode(frame))
                continue
            for part in resampler.resample(frame):
                writer.mux(sound.encode(part))
        writer.mux(picture.encode(None))
        writer.mux(sound.encode(None))
    return target


def test_what_browsers_cannot_play_is_played(
    service: Service, account: Account, page: Page, excerpt: Path, tmp_path: Path
) -> None:
    path = as_mpeg2(excerpt, tmp_path / "archive.mpg")
    page.set_input_files("#files", path)
    expect(page.locator(".job .state")).to_have_text("Done", timeout=MILLISECONDS)
    page.locator(".job h2 a").click()
    shown = page.locator("#no-picture, #player")
    expect(shown).to_be_visible()
    if page.locator("#no-picture").count():
        expect(shown).to_contain_text("is being made")
        # Previews are made of processor time that nothing else takes.
        page.click("text=Show it", timeout=MILLISECONDS)
    page.wait_for_selector("#watch[data-ready]")
    plays(page)
    assert page.evaluate("document.getElementById('player').videoWidth") == 640
    word = page.locator(".segment >> nth=0").locator("i >> nth=0")
    word.click()
    plays(page)
