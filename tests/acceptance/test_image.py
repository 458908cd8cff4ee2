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
import yaml
from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT

from serve_app.deployment.local import free_port
from tests.acceptance.image_root import Image, build, process_one
from tests.acceptance.service import wait_until
from tests.places import DEMO, PROJECT

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


def test_the_image_has_a_bill_of_what_is_in_it(image: Image) -> None:
    bill = json.loads((image.root / "opt/vas/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {each["name"].lower(): each["version"] for each in bill["components"]}
    there = image.run(
        "python", "-c", "import ray, fastapi; print(ray.__version__, fastapi.__version__)"
    )
    assert [listed["ray"], listed["fastapi"]] == there.split()


def test_a_container_becomes_healthy_and_stops_in_order_at_sigterm(image: Image) -> None:
    port = str(free_port())
    settings = {"VAS_PORT": port, "VAS_HOST": "127.0.0.1"}
    healthy = image.exec_form("HEALTHCHECK")
    with image.container(**settings) as container:

        def is_healthy() -> bool:
            return image.inside(container, *healthy, **settings)[0] == 0

        wait_until(is_healthy, 150, "health")
        command = ("vas", "accounts", "create", "studio")
        assert image.inside(container, *command, **settings)[0] == 0
        # KubeRay asks the head for this before it sends clients there.
        answer = httpx.get(f"http://127.0.0.1:{port}/-/healthz", trust_env=False, timeout=30)
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
    image.run("bash", "-lc", "ray kuberay-autoscaler --help")


def test_a_pod_of_kubernetes_starts_a_node_with_its_resources_and_its_environment(
    image: Image,
) -> None:
    """With the command of ``ray start`` that KubeRay makes of the manifest, on loopback."""
    manifest = yaml.safe_load((PROJECT / "deploy/kubernetes/service.yaml").read_text())
    cluster = manifest["spec"]["rayClusterConfig"]
    [pod] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    probe = worker["readinessProbe"]["httpGet"]
    assert probe["port"] == DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
    # Ports of its own, as other Rays may run on this machine.
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = {name: free_port() for name in names}
    start = "ray start --head --block --num-cpus=0 --resources='{\"service\":1}'"
    start += " --node-ip-address=127.0.0.1 --dashboard-host=127.0.0.1"
    start += "".join(f" --{name}={port}" for name, port in ports.items())
    health = f"http://127.0.0.1:{ports['dashboard-agent-listen-port']}{probe['path']}"
    settings = {"KUBERAY_GEN_RAY_START_CMD": start, "RAY_AUTH_MODE": "token"}
    settings |= {"RAY_AUTH_TOKEN": "t" * 64, "RAY_ADDRESS": f"127.0.0.1:{ports['port']}"}
    with image.container(entrypoint=[*pod["command"], *pod["args"]], **settings) as container:
        wait_until(lambda: _is_success(health), 90, "the probe finds the raylet")
        program = (
            "import os, ray; ray.init(log_to_driver=False);"
            "assert ray.cluster_resources()['service'] == 1, ray.cluster_resources();"
            "assert 'CPU' not in ray.cluster_resources();"
            "seen = ray.remote(num_cpus=0)(lambda: os.environ['RAY_SERVE_ENABLE_HA_PROXY']);"
            "assert ray.get(seen.remote()) == '1'"
        )
        status, printed = image.inside(container, "python", "-c", program, **settings)
        assert status == 0, printed


def _is_success(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=30).is_success
    except httpx.HTTPError:
        return False
