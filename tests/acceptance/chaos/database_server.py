"""PostgreSQL as its operator, or a power cut, treats it: restarted, or killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_GONE_SECONDS = 30.0
_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A server whose data lie in ``folder``; it is started again as it was started first."""

    folder: Path
    url: str

    @property
    def postmaster(self) -> psutil.Process:
        """The server's first process; raises psutil.NoSuchProcess, FileNotFoundError."""
        return psutil.Process(int((self.folder / "postmaster.pid").read_text().split()[0]))

    def restart(self) -> None:
        """As an operator does: connections are ended, everything is written, and back."""
        words = self._words()
        self._control(words[0], "-m", "fast", "stop")
        self._start(words)

    def crash(self, down_seconds: float) -> None:
        """SIGKILL to all of it; it recovers from its log when it is started again."""
        with self.away():
            time.sleep(down_seconds)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """It is killed, and started again when the block is over."""
        words, postmaster = self._words(), self.postmaster
        everything = [postmaster, *postmaster.children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(everything, _GONE_SECONDS)
        yield
        self._start(words)

    def _words(self) -> list[str]:
        """The command line that the server writes down when it starts."""
        return shlex.split((self.folder / "postmaster.opts").read_text())

    def _start(self, words: list[str]) -> None:
        options = [word for word in words[1:] if word not in {"-D", str(self.folder)}]
        quoted = " ".join(shlex.quote(word) for word in options)
        self._control(words[0], "-o", quoted, "-l", str(self.folder / "log"), "start")

    def _control(self, program: str, *arguments: str) -> None:
        control = str(Path(program).with_name("pg_ctl"))
        owner = self.folder.stat().st_uid
        user = pwd.getpwuid(owner).pw_name if owner != os.getuid() else None
        subprocess.run(
            [control, "-w", "-D", str(self.folder), *arguments],
            user=user,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_START_SECONDS,
        )
