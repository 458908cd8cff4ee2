"""What each process of the service imports before it does anything: most of its start."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from tests.places import PROJECT
from tests.tables import every


class Imports(NamedTuple):
    """The modules that a process begins with, and how many modules these import in all."""

    modules: str
    imported: int


PROCESSES = {
    "api": Imports("serve_app.deployment.application, serve_app.app", 2_293),
    "runner": Imports("serve_app.deployment.application, serve_app.work.runner", 2_764),
    "sender": Imports("serve_app.deployment.application, serve_app.webhooks.sender", 2_088),
    "model": Imports("serve_app.deployment.application, models.replica", 1_733),
    "driver": Imports("serve_app.deployment.local, serve_app.deployment.application", 2_077),
    "vas": Imports("serve_app.cli.main", 261),
}
"""Measured on 2026-11-27; lower a count that has fallen. Modules are counted, for their number is
the same on every machine; the processor seconds, 3.6, 3.8, 2.2, 1.5, 2.3 and 0.1, are printed."""
ROOM = 1.1


@every("process", PROCESSES)
def test_a_process_imports_no_more_than_it_did(process: str) -> None:
    modules, most = PROCESSES[process]
    program = f"import {modules}, json, sys, time\n"
    program += "print(json.dumps([len(sys.modules), time.process_time()]))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True
    )
    found, seconds = json.loads(done.stdout)
    print(f"{process}: {found} modules, {seconds:.1f} processor seconds")
    assert found <= most * ROOM
