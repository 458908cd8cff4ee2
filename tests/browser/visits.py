"""Windows of a browser, signed in; and jobs whose media plays and whose results fit it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from serve_app.work import publishing
from storage import keys
from storage.results import TrackTranscript
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import FOOTAGE, RunnerSide
from tests.places import DEMO

PHONE = ViewportSize(width=360, height=740)
PLAIN_HOST = "plain.test"
"""Leads to the API; to browsers it is an address without TLS on another machine."""
DESK = ViewportSize(width=1280, height=800)
ZOOMED = ViewportSize(width=640, height=400)
"""What of DESK is left at 200 %."""
PATIENCE_MS = 60_000
"""What pages come to is waited for so long; Playwright's own 5 s pass on a busy machine."""


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Chromium without a window; skips the test where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    # A folder of its own, so that nothing of it is left behind.
    with tempfile.TemporaryDirectory(prefix="vas-browser-") as folder, sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=path,
            # In a container the sandbox of the browser has no namespaces to use.
            args=[f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1"]
            + (["--no-sandbox"] if os.geteuid() == 0 else []),
            env={**os.environ, "TMPDIR": folder},
        )
        # Whatever a failed test leaves it in, nothing of it stays.
        with _ending_our_children():
            try:
                yield browser
            finally:
                browser.close()


@contextlib.contextmanager
def _ending_our_children() -> Iterator[None]:
    """End what the browser is made of, where closing it failed or left something."""
    try:
        yield
    finally:
        started = psutil.Process().children(recursive=True)
        ours = [each for each in started if _is_browser(each)]
        for each in psutil.wait_procs(ours, timeout=3)[1]:
            with contextlib.suppress(psutil.Error):
                each.kill()


def _is_browser(process: psutil.Process) -> bool:
    try:
        return "chrom" in process.name()
    except psutil.Error:
        return False


@dataclass(slots=True)
class Visits:
    """The windows that a test opens, and what went wrong in them."""

    api: ContractApi
    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    """Whom the pages sent requests to."""

    def open(self, caller: Caller | None, **options: Any) -> Page:
        """A window on the list of jobs; on the sign-in page for nobody."""
        context = self.browser.new_context(**{"base_url": self.api.root} | options)
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda told: self._note(told.type, told.text))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(sign_in_path(caller) if caller else "/dashboard/sign-in")
        if caller and options.get("java_script_enabled") is False:
            page.click("text=Continue")
        if caller:
            page.wait_for_url("**/dashboard")
        return page

    def _note(self, kind: str, text: str) -> None:
        # Refusals that a test provokes are said in the console too.
        if kind == "error" and "Failed to load resource" not in text:
            self.problems.append(text)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for context in self.contexts:
                closing.callback(context.close)
        assert self.problems == []


def sign_in_as_operator(page: Page, api: ContractApi) -> None:
    """Whoever is signed in in the window besides stays so."""
    page.goto(f"/dashboard/sign-in?token={api.transact(keys.create_operator_link)}")
    page.wait_for_url("**/dashboard/operator")


def sign_in_path(caller: Caller) -> str:
    account = caller.customer.account_id
    token = caller.api.transact(lambda c: keys.create_sign_in_link(c, account))
    return f"/dashboard/sign-in?token={token}"


def playable_job(
    runner: RunnerSide, caller: Caller, said: TrackTranscript | None = None, **body: Any
) -> str:
    """A completed job whose media is the demo video; 'track 1' is said from second 1 on."""
    job = caller.create(fileName="demo.mp4", **body)
    content = DEMO.read_bytes()
    sent = httpx.put(
        job["uploadUrl"], content=content, headers=job["uploadHeaders"], trust_env=False
    )
    assert sent.status_code == 200, sent.text
    lease = runner.lease(job["jobId"])
    runner.ingest(lease, replace(FOOTAGE, duration_seconds=29.0))
    runner.start(lease, "vision")
    runner.publish_scenes(lease)
    runner.start(lease, "transcript")
    if said is None:
        runner.publish_transcripts(lease)
    else:
        tracks = [said]
        runner.api.transact(lambda c: publishing.publish_transcripts(c, lease, tracks, {}))
    assert caller.job(job["jobId"])["state"] == "completed"
    return str(job["jobId"])


_BLOCK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Line:
    """Forwards TCP connections to a port of loopback until it is cut."""

    def __init__(self, port: int, *, bytes_a_second: int) -> None:
        self._target = port
        self._pause_seconds = _BLOCK_BYTES / bytes_a_second
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.is_cut = False
        self.root = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Line]:
        threading.Thread(target=self._accept, daemon=True).start()
        yield self
        self.cut()
        # Wakes the thread that accepts, too.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """End all connections in the middle of what they do; new ones end at once."""
        self.is_cut = True
        for each in list(self._open):
            with contextlib.suppress(OSError):
                # Closed with a reset, which a browser that only sends notices at once.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open |= {client, server}
            for pair, pause in (((client, server), self._pause_seconds), ((server, client), 0.0)):
                threading.Thread(target=self._forward, args=(*pair, pause), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, pause: float) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK_BYTES):
                target.sendall(block)
                if len(block) > _BLOCK_BYTES // 4:
                    time.sleep(pause)
            target.shutdown(socket.SHUT_WR)
        self._open -= {source}
        source.close()
