"""Ray nodes as ``ray start`` makes them, several on this machine: each with its own address of
loopback, its own temporary folder and its own environment; nothing shared but the network."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from serve_app.deployment.local import free_port

START_SECONDS = 300
STOP_SECONDS = 15
PROGRAMS = Path(sys.executable).parent


@dataclass(slots=True)
class RayNode:
    """A node: its foreground process, and everything that was ever seen below it."""

    ip: str
    process: subprocess.Popen[str]
    folder: Path
    environment: dict[str, str]
    _seen: dict[int, psutil.Process] = field(default_factory=dict)

    def processes(self) -> list[psutil.Process]:
        """All processes of the node that live, those included that their parents left."""
        if self.process.poll() is None:
            self._seen.setdefault(self.process.pid, psutil.Process(self.process.pid))
        for known in list(self._seen.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen |= {child.pid: child for child in known.children(recursive=True)}
        return [process for process in self._seen.values() if _lives(process)]

    def kill(self) -> None:
        """SIGKILL for all of it at once, as when its machine is lost."""
        while living := self.processes():
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(living, STOP_SECONDS)
        self.process.wait(STOP_SECONDS)

    @property
    def data(self) -> Path:
        """The data folder that the node's environment names."""
        return self.folder / "data"

    def log(self) -> str:
        """What ``ray start`` printed."""
        return (self.folder / "start.log").read_text()


def _lives(process: psutil.Process) -> bool:
    """False for zombies too, which whoever adopted them may leave lying."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def ray_node(
    folder: Path, ip: str, environment: dict[str, str], *arguments: str
) -> Iterator[RayNode]:
    """Run ``ray start --block`` with ``arguments`` until the block ends, then kill what is left."""
    folder.mkdir(parents=True)
    (folder / "tmp").mkdir()
    own = {"TMPDIR": str(folder / "tmp"), "VAS_DATA_DIR": str(folder / "data")}
    complete = {**os.environ, **environment, **own}
    complete |= _environment_of_node(folder / "hap", complete)
    command = [str(PROGRAMS / "ray"), "start", "--block", f"--node-ip-address={ip}", *arguments]
    command += [f"--temp-dir={folder / 'ray'}", f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
    command += [f"--object-store-memory={200 * 1024**2}"]
    with (folder / "start.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=complete, stdout=log, stderr=subprocess.STDOUT, text=True
        )
    node = RayNode(ip, process, folder, complete)
    try:
        yield node
    finally:
        node.kill()


def _environment_of_node(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """What ``vas node-environment`` says, on ports that no other service of this machine has."""
    command = [str(PROGRAMS / "vas"), "node-environment", "--folder", str(folder), "--json"]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=True
    )
    found: dict[str, str] = json.loads(ended.stdout)
    ports = ("HAPROXY_METRICS_PORT", "HAPROXY_STATS_PORT", "FALLBACK_PROXY_HTTP_PORT")
    return found | {f"RAY_SERVE_{name}": str(free_port()) for name in ports}
