"""The programs of ``docs/examples.md``, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serve_app.deployment.local import free_port
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from tests.contract.calling import Caller, fresh_api
from tests.contract.runner_side import RunnerSide
from tests.places import PROJECT

PAGE = (PROJECT / "docs" / "examples.md").read_text()
SCENES = "    0.000  A person speaks to the camera.\n   30.000  A person speaks to the camera.\n"
NATIVE_TYPES = (22, 18)
"""The first version of Node that runs TypeScript."""


def program(heading: str, language: str) -> str:
    """The block of code in a section."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    [code] = re.findall(rf"```{language}\n(.*?)```", section, re.S)
    return str(code)


@pytest.fixture(scope="module")
def caller(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A customer of a service whose jobs complete."""
    folder = tmp_path_factory.mktemp("examples")
    with fresh_api(postgres_url, folder) as api, RunnerSide(api).completing():
        yield api.caller()


def environment(caller: Caller) -> dict[str, str]:
    return os.environ | {
        "VAS_URL": f"{caller.api.root}/v1/api",
        "VAS_KEY": caller.customer.key,
        "NO_PROXY": "*",
        "NODE_DISABLE_COMPILE_CACHE": "1",
    }


def run(caller: Caller, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(caller), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["film.mp4", "bad.mp4"])
def test_the_python_script_prints_scenes_and_writes_captions(
    caller: Caller, tmp_path: Path, name: str
) -> None:
    code = program("Python", "python")
    assert len(code.splitlines()) - code.count("\n\n") <= 30
    (tmp_path / "analyse.py").write_text(code)
    (tmp_path / name).write_bytes(b"footage")
    ended = run(caller, sys.executable, "analyse.py", name, folder=tmp_path)
    if name.startswith("bad"):
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "INGEST_FAILED" in ended.stderr
        return
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, SCENES, "")
    assert (tmp_path / "film.srt").read_text().startswith("1\n00:00:01,000 -->")


def test_a_refusal_is_told_in_the_services_words(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "analyse.py").write_text(program("Python", "python"))
    (tmp_path / "tool.exe").write_bytes(b"x")
    ended = run(caller, sys.executable, "analyse.py", "tool.exe", folder=tmp_path)
    assert ended.returncode == 1
    assert "UNSUPPORTED_FORMAT: Executables" in ended.stderr


def runnable(folder: Path) -> str:
    """The example as a file that Node runs, checked where ``tsc`` is; skips without either."""
    node, tsc = shutil.which("node"), shutil.which("tsc")
    if node is None:
        pytest.skip("no Node is installed")
    (folder / "analyse.ts").write_text(program("TypeScript", "typescript"))
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    if tsc is not None:
        modules = next(each for each in Path(tsc).resolve().parents if each.name == "node_modules")
        (folder / "node_modules").symlink_to(modules)
        options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]
        built = subprocess.run(
            [tsc, *options, "analyse.ts"], cwd=folder, capture_output=True, text=True, timeout=120,
            env=os.environ | {"NODE_DISABLE_COMPILE_CACHE": "1"}, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stdout
        return "analyse.js"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if tuple(numbers) < NATIVE_TYPES:
        pytest.skip(f"Node {version.strip()} runs no TypeScript, and no tsc is installed")
    return "analyse.ts"


def test_the_typescript_example_prints_scenes_and_writes_captions(
    caller: Caller, tmp_path: Path
) -> None:
    script = runnable(tmp_path)
    (tmp_path / "film.mp4").write_bytes(b"footage")
    ended = run(caller, "node", script, "film.mp4", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, SCENES), ended.stderr
    assert (tmp_path / "film.srt").read_text().startswith("1\n00:00:01,000 -->")
    (tmp_path / "bad.mp4").write_bytes(b"footage")
    failed = run(caller, "node", script, "bad.mp4", folder=tmp_path)
    assert failed.returncode == 1
    assert "failed: INGEST_FAILED It broke." in failed.stderr


def test_the_receiver_believes_an_event_that_was_signed_lately_and_once(tmp_path: Path) -> None:
    secret, port = new_signing_secret(), free_port()
    (tmp_path / "receive.py").write_text(program("A receiver of webhooks", "python"))
    receiver = subprocess.Popen(
        [sys.executable, "receive.py"],
        cwd=tmp_path,
        env=os.environ | {"VAS_WEBHOOK_SECRET": secret, "PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        body, now = b'{"type": "job.completed", "data": {"jobId": "j-1"}}', int(time.time())
        good = signed_headers([new_signing_secret(), secret], "j-1:job.completed", now, body)
        other = signed_headers([secret], "j-2:job.completed", now - 600, body)
        forged = signed_headers([new_signing_secret()], "j-3:job.completed", now, body)
        sent = [good, good, other, forged, {}, good | {"webhook-timestamp": "soon"}]
        answers = [deliver(port, headers, body) for headers in sent]
        chunked = deliver(port, good, iter([body]))
    finally:
        receiver.terminate()
        printed, errors = receiver.communicate(timeout=120)
    assert answers == [204, 204, 401, 401, 401, 401]
    assert chunked == 411
    assert printed == "job.completed j-1\n"
    assert "Traceback" not in errors


def deliver(port: int, headers: dict[str, str], body: bytes | Iterator[bytes]) -> int:
    """The answer's status, once the receiver listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return httpx.post(
                f"http://127.0.0.1:{port}/", content=body, headers=headers, trust_env=False
            ).status_code
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
