"""Starts that fail, are killed, or meet what an earlier one left."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ray.serve._private import constants

from serve_app.deployment import local as local_service
from serve_app.deployment.data import own_secret_key
from serve_app.deployment.local import ServiceStartError
from serve_app.settings import Settings
from storage.database import embedded_postgres
from tests.acceptance.service import Service, running, wait_until
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]


def test_a_folder_that_a_running_service_has_is_not_cleared_under_it(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        created = psutil.Process(other.pid).create_time()
        record = {"run_dir": str(tmp_path / "run"), "service": [other.pid, created]}
        (tmp_path / "run").mkdir()
        (tmp_path / "run.json").write_text(json.dumps(record))
        with pytest.raises(ServiceStartError, match=f"in use by .* process {other.pid}"):
            local_service._clear_earlier_run(tmp_path)
        assert (tmp_path / "run").exists()
        other.kill()
    local_service._clear_earlier_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{"], ids=["empty", "broken off"])
def test_a_record_that_a_power_cut_left_behind_does_not_keep_the_service_down(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "secret.key").write_text("")
    local_service._clear_earlier_run(tmp_path)
    assert not (tmp_path / "run.json").exists()
    key = own_secret_key(tmp_path)
    assert len(key) >= 32
    assert own_secret_key(tmp_path) == key
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_services_on_one_machine_share_no_port(tmp_path: Path) -> None:
    """A spare proxy on Serve's own port, 8500, answered for another service, which refused keys."""
    settings = Settings(data_dir=tmp_path)
    with local_service._run_folder() as one, local_service._run_folder() as other:
        services = [local_service._environment(settings, folder) for folder in (one, other)]
    ports = [
        environment[name] for environment in services for name in environment if "_PORT" in name
    ]
    assert len(ports) == len(set(ports)) == 6
    known = Path(str(constants.__file__)).read_text()
    assert all(name in known for name in services[0] if "_PORT" in name)


def test_a_port_is_given_once_and_only_if_it_is_free_at_every_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = local_service.free_port()
    monkeypatch.setattr(local_service, "QUIET_PORTS", range(first, first + 3))
    with socket.create_server(("127.0.0.2", first + 1)):
        assert local_service.free_port() == first + 2
        with pytest.raises(ServiceStartError, match="no free port"):
            local_service.free_port()


def test_processes_that_start_at_once_have_one_key(tmp_path: Path) -> None:
    """Forked from one that has imported everything, so that they do start at once."""
    program = (
        "import os, sys; from pathlib import Path;"
        "from serve_app.deployment.data import own_secret_key;"
        "os.fork(); os.fork();"
        "os.write(1, f'{own_secret_key(Path(sys.argv[1]))}\\n'.encode())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as starting:
        keys = starting.communicate(timeout=120)[0].splitlines()
    assert keys == [(tmp_path / "secret.key").read_text()] * 4


def test_a_start_that_was_killed_leaves_word_of_what_it_had_begun(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "serve_app.cli", "serve", "--data", str(data), "--port", "0"]
    command[-1] = str(local_service.free_port())
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL) as starting:
        record = data / "run.json"
        wait_until(record.exists, 300, "no record")
        run_dir = Path(json.loads(record.read_text())["run_dir"])
        wait_until(lambda: bool(local_service._processes_of(run_dir)), 300, "no process")
        starting.kill()
    local_service._clear_earlier_run(data)
    assert local_service._processes_of(run_dir) == []
    assert not run_dir.exists()
    # The database goes on for the next start, which stops it at its end.
    with embedded_postgres(data / "postgres"):
        pass


@pytest.mark.long
def test_a_lost_machine_is_restored_from_a_backup_made_while_a_job_ran(
    tmp_path: Path, excerpt: Path
) -> None:
    """What was completed is the same; what was under way is completed on the new machine."""
    old, new, backup = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    vas = [sys.executable, "-m", "serve_app.cli"]
    with running(old, tmp_path / "old.log") as service:
        key, completed = service.api_key, service.submit(excerpt)
        service.ended(completed)
        results, under_way = service.results(completed), service.submit(DEMO)
        wait_until(lambda: state_of(service, under_way) == "processing", 300, "not begun")
        subprocess.run([*vas, "backup", str(backup), "--data", str(old)], check=True, timeout=120)
        money = service.query(LEDGER, completed)
        assert state_of(service, under_way) == "processing"
        for process in service.processes():
            process.kill()
    local_service._clear_earlier_run(old)
    with embedded_postgres(old / "postgres"):
        pass
    shutil.rmtree(old)
    subprocess.run([*vas, "restore", str(backup), "--data", str(new)], check=True, timeout=120)
    with running(new, tmp_path / "new.log") as service:
        service.api_key = key
        assert service.results(completed) == results
        assert service.query(LEDGER, completed) == money
        service.completed(under_way)


LEDGER = """
    SELECT kind, balance_delta_cents, hold_delta_cents, stage, created_at
      FROM ledger_entries WHERE job_id = %s ORDER BY id
"""


def state_of(service: Service, job_id: str) -> str:
    ((state,),) = service.query("SELECT state FROM jobs WHERE id = %s", job_id)
    return str(state)
