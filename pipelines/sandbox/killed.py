"""Children that somebody else killed: mostly it is this process that is to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

OWN_END_SECONDS = 4.0
"""How long a process whose child was killed waits for its own end."""
_POLL_SECONDS = 0.1


def await_own_end(status: int, check: Callable[[], None]) -> None:
    """Where a child's exit ``status`` is a kill by another hand, wait a moment before it is told.

    Ray kills the children of a worker that it ends before the worker, and so may whoever ends a
    tree of processes: told at once, the file would be blamed, for good, in the process's last
    moments. Whatever ``check`` raises ends the wait.
    """
    if status != -signal.SIGKILL:
        return
    until = time.monotonic() + OWN_END_SECONDS
    while time.monotonic() < until:
        check()
        time.sleep(_POLL_SECONDS)
