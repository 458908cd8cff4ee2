"""``vas`` in processes that fork from one which has imported what its commands begin with.

Each is a process of its own with its own environment, folder, streams and exit status, as a shell
starts it; only the second of imports is paid once. Ray is not among them: it reads its environment
when it is imported.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.places import PROJECT

BEGINNINGS = (
    "pipelines.vision.tags",
    "serve_app.cli.accounts",
    "serve_app.cli.analyze",
    "serve_app.cli.service",
    "serve_app.context",
    "serve_app.deployment.local",
    "storage.migrations",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a shell has of a command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class VasProcesses:
    """Starts commands, one at a time."""

    def __init__(self, source: subprocess.Popen[str]) -> None:
        self._source = source

    def run(self, arguments: Sequence[str], folder: Path, settings: Mapping[str, str]) -> Ended:
        """``vas`` with ``arguments`` in ``folder``; ``settings`` by name, without ``VAS_``."""
        environment = {name: value for name, value in os.environ.items() if name[:4] != "VAS_"}
        environment |= {"PYTHONPATH": str(PROJECT), "COLUMNS": "200", "TERM": "dumb"}
        environment |= {f"VAS_{name}": value for name, value in settings.items()}
        assert self._source.stdin is not None
        assert self._source.stdout is not None
        with tempfile.TemporaryDirectory() as streams:
            json.dump([list(arguments), str(folder), environment, streams], self._source.stdin)
            self._source.stdin.write("\n")
            self._source.stdin.flush()
            status = int(self._source.stdout.readline())
            out, error = ((Path(streams) / name).read_text() for name in ("1", "2"))
        return Ended(status, out, error)


@contextmanager
def vas_processes() -> Iterator[VasProcesses]:
    """The process that the others fork from, until the block ends."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as source:
        yield VasProcesses(source)
        assert source.stdin is not None
        source.stdin.close()


def _serve() -> None:
    for module in BEGINNINGS:
        import_module(module)
    # Else each child's first collection, and its end, would copy all that was imported.
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin:
        child = fork.Process(target=_become_vas, args=json.loads(line))
        child.start()
        child.join()
        print(child.exitcode, flush=True)


def _become_vas(
    arguments: list[str], folder: str, environment: dict[str, str], streams: str
) -> None:
    from serve_app.cli.main import main

    for number in (1, 2):
        os.dup2(os.open(f"{streams}/{number}", os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["vas", *arguments]
    main()


if __name__ == "__main__":
    _serve()
