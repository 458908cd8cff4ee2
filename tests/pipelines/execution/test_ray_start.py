"""Ray that comes up late is waited for, or started again. Its token is on no disk."""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import node, services

from pipelines.execution.ray_start import RayStartError, start_ray
from tests.places import PROJECT
from tests.tables import every

LATE = RayStartError("Ray's raylet has ended while it started.")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception | None]]:
    """What becomes of each start of Ray, in turn; empty once all were made."""
    planned: list[Exception | None] = []

    def init(**_: Any) -> None:
        outcome = planned.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(ray, "init", init)
    # Set and removed, so that what a start leaves in the environment goes with the test.
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield planned
    assert planned == []


def test_ray_looks_for_its_node_by_what_is_replaced() -> None:
    text = inspect.getsource(node)
    assert "ray._private.services.get_node(" in text
    assert "ray._private.services.start_raylet(" in text


def asking_for_a_node(monkeypatch: pytest.MonkeyPatch, missing: int) -> list[Any]:
    """``ray.init`` asks once for its node, which is registered after so many asked in vain."""
    found: list[Any] = []
    asked = iter(range(missing + 1))

    def get_node(*of_node: str) -> tuple[str, ...]:
        if next(asked) < missing:
            raise RuntimeError("GCS cannot find the node")
        return of_node

    def init(**_: Any) -> None:
        of_machine: Any = services
        found.append(of_machine.get_node("address", "id"))

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one of an operator")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return found


def test_a_node_that_registers_late_is_waited_for_while_its_raylet_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = asking_for_a_node(monkeypatch, missing=3)
    raylet = Path(shutil.copy("/bin/sleep", tmp_path / "raylet"))
    with subprocess.Popen([raylet, "600"]) as child:
        start_ray(num_cpus=1)
        child.kill()
    assert found == [("address", "id")]


def test_a_node_whose_raylet_has_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asking_for_a_node(monkeypatch, missing=2)
    start_ray(num_cpus=1)
    assert found == [("address", "id")]


def test_ports_of_agents_are_chosen_before_the_raylet_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(services, "start_raylet", lambda *_, **ports: started.append(ports))

    def init(**_: Any) -> None:
        of_machine: Any = services
        of_machine.start_raylet(metrics_export_port=9000, runtime_env_agent_port=0, node="id")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one of an operator")
    start_ray(iter(range(1, 9)).__next__)
    [options] = started
    assert options.pop("node") == "id"
    assert options.pop("metrics_export_port") == 9000
    assert sorted(options.values()) == sorted({*options.values()} - {0})
    assert options.keys() == {
        "metrics_agent_port",
        "dashboard_agent_listen_port",
        "runtime_env_agent_port",
    }


def test_processes_of_a_late_start_are_ended_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def init(**_: Any) -> None:
        if not children:
            wait = [sys.executable, "-c", "import time; time.sleep(600)"]
            children.extend(subprocess.Popen([*wait, of]) for of in (ray.__file__, "another's"))
            raise LATE

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one of an operator")
    start_ray(num_cpus=1)
    try:
        of_ray, other = children
        assert of_ray.poll() is not None
        assert other.poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_after_three_starts_the_reason_is_raised(starts: list[Exception | None]) -> None:
    starts += [LATE, LATE, LATE]
    with pytest.raises(RayStartError, match="has ended"):
        start_ray(num_cpus=1)


def test_anything_else_is_not_tried_again(starts: list[Exception | None]) -> None:
    starts += [ValueError("num_cpus must be a number")]
    with pytest.raises(ValueError, match="num_cpus"):
        start_ray(num_cpus="many")


@pytest.mark.parametrize(
    ("environment", "options", "own"),
    [
        pytest.param({}, {}, True, id="a cluster of our own"),
        pytest.param({}, {"address": "local"}, True, id="a cluster of our own, by its name"),
        pytest.param({}, {"address": "10.0.0.1:6379"}, False, id="one that is joined"),
        pytest.param({"RAY_ADDRESS": "10.0.0.1:6379"}, {}, False, id="one by Ray's variable"),
        pytest.param({"RAY_AUTH_TOKEN_PATH": "/run/token"}, {}, False, id="an operator's token"),
    ],
)
def test_a_cluster_of_our_own_gets_a_token_that_is_written_nowhere(
    starts: list[Exception | None],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    options: dict[str, Any],
    own: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    starts += [None]
    start_ray(**options)
    assert len(os.environ.get("RAY_AUTH_TOKEN", "")) == (64 if own else 0)


def test_ray_that_prints_for_its_driver_keeps_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    for name in ("start_log_monitor", "start_monitor"):
        monkeypatch.setattr(node.Node, name, started.append)
    monkeypatch.setattr(services, "start_api_server", started.append)

    def init(**_: Any) -> None:
        of_node: Any = node.Node
        of_machine: Any = services
        of_node.start_monitor("autoscaler")
        of_node.start_log_monitor("log")
        of_machine.start_api_server("dashboard")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one of an operator")
    start_ray()
    assert started == ["log", "dashboard"]


MIB = 2**20
FREED_MIB = 128

SCATTERED = f"""
import psutil
from pipelines.execution.chain import release_free_memory

own = psutil.Process()
pieces = [bytearray(64 * 1024) for _ in range({FREED_MIB} * 16)]
kept = pieces[::100]
del pieces
before = own.memory_info().rss
release_free_memory()
print(before - own.memory_info().rss)
"""
"""Pieces too small for pages of their own; those that are kept lie all over the heap."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to")
def test_free_pages_between_used_ones_are_given_back() -> None:
    given = subprocess.run(
        [sys.executable, "-c", SCATTERED], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(given.stdout) > FREED_MIB * MIB * 0.8


@every(("first", "found"), [("", True), ("import pipelines.execution.lean_imports", False)])
def test_serve_is_imported_without_pandas_which_others_find(first: str, found: bool) -> None:
    """Fails once Ray no longer imports pandas for Serve: the module is superfluous then."""
    program = f"{first}\nimport sys, ray.serve; print('pandas' in sys.modules)\nimport pandas"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(found)]
