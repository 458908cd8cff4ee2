"""``deploy/Dockerfile``, carried out in a fresh Debian root: from nothing to scenes and words.

Downloads Debian and every package: about ten minutes on two cores, 2 GB below ``TMPDIR``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serve_app.deployment.local import free_port
from tests.acceptance.image_root import Image, build, process_one
from tests.places import DEMO

_MISSING = [name for name in ("debootstrap", "unshare", "nsenter") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.service,
    pytest.mark.long,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root of its own"),
    pytest.mark.skipif(bool(_MISSING), reason=f"no {', '.join(_MISSING)}"),
]

STOP_SECONDS = 60


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    begun = time.monotonic()
    built = build(folder)
    size = subprocess.run(["du", "-sxm", built.root], capture_output=True, text=True, check=True)
    print(f"built in {time.monotonic() - begun:.0f} s, {size.stdout.split()[0]} MiB", flush=True)
    yield built
    shutil.rmtree(folder, ignore_errors=True)


def test_the_demo_is_analysed_in_the_image_by_a_user_who_is_not_root(image: Image) -> None:
    media = image.root / "data" / "demo.mp4"
    shutil.copy(DEMO, media)
    assert image.run("id", "-un").strip() == "vas"
    begun = time.monotonic()
    image.run(*image.exec_form("ENTRYPOINT"), "vas", "analyze", media.name, "--out", "out")
    print(f"analysed in {time.monotonic() - begun:.0f} s", flush=True)
    out = image.root / "data" / "out"
    scenes = json.loads((out / "scenes.json").read_text())["scenes"]
    assert len(scenes) > 3
    assert "-->" in (out / "transcript.vtt").read_text()
    assert out.stat().st_uid == int(image.run("id", "-u"))


def test_a_container_becomes_healthy_and_stops_in_order_at_sigterm(image: Image) -> None:
    port = str(free_port())
    settings = {"VAS_PORT": port, "VAS_HOST": "127.0.0.1"}
    healthy = image.exec_form("HEALTHCHECK")
    with image.container(**settings) as container:
        deadline = time.monotonic() + 150
        while image.inside(container, *healthy, **settings) and time.monotonic() < deadline:
            time.sleep(2)
        assert image.inside(container, *healthy, **settings) == 0
        assert image.inside(container, "vas", "accounts", "create", "studio", **settings) == 0
        # KubeRay asks the head for this before it sends clients there.
        answer = httpx.get(f"http://127.0.0.1:{port}/-/healthz", trust_env=False, timeout=5)
        assert (answer.status_code, answer.text) == (200, "success")
        first = process_one(container)
        assert first is not None
        assert Path(f"/proc/{first}/comm").read_text() == "tini\n"
        os.kill(first, signal.Signals[image.described["STOPSIGNAL"]])
        assert container.wait(STOP_SECONDS) == 0
        assert container.stdout is not None
        assert container.stdout.read().endswith("Stopped.\n")


def test_a_login_shell_has_the_commands_that_ray_nodes_are_started_with(image: Image) -> None:
    script = 'eval "$(vas node-environment)" && ray --version && command -v serve'
    assert "/opt/vas/bin/serve" in image.run("bash", "-lc", script)
    assert not list((image.root / "opt/vas").rglob("pip/__main__.py"))
