"""Ray's processes, started with the patience that a busy machine needs."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

_STARTS = 3
_ENDING_SECONDS = 10.0
_OWN = (None, "local")
"""Addresses of a cluster that ``ray.init`` starts rather than joins."""
_TOKENS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}

log = logging.getLogger(__name__)


class RayStartError(Exception):
    """Ray's processes did not come up in time."""


def start_ray(**options: Any) -> None:
    """``ray.init`` with ``options``, tried three times.

    A cluster of our own has its token in the environment of its processes only, unless the caller's
    environment names one: whoever has it runs code as the cluster's user, and Ray writes those that
    it makes into the home folder, readable by all.

    Ray gives its processes 30 s, which no setting changes, and raises a plain Exception.
    Raises RayStartError where they were never enough, and whatever else ``ray.init`` raises.
    """
    import ray

    address = options.get("address", os.environ.get("RAY_ADDRESS"))
    if address in _OWN and not _TOKENS & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    before = set(psutil.Process().children(recursive=True))
    for attempt in range(1, _STARTS + 1):
        try:
            with _without_idle_processes(options):
                ray.init(**options)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            log.warning("Ray did not start in time (%s of %s)", attempt, _STARTS)
            # ``ray.shutdown`` knows nothing of a node that did not come up, whose processes take
            # what the next attempt is short of.
            late = []
            for process in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if str(Path(ray.__file__).parent) in " ".join(process.cmdline()):
                        process.kill()
                        late.append(process)
            psutil.wait_procs(late, _ENDING_SECONDS)
            with quiet():
                ray.shutdown()
        else:
            return
    raise RayStartError("Ray's processes do not start in time: the machine is too busy.")


@contextlib.contextmanager
def _without_idle_processes(options: Mapping[str, Any]) -> Iterator[None]:
    """``ray.init`` in this block starts no process that has nothing to do under ``options``.

    The autoscaler's monitor scales nothing on a node of its own; the log monitor passes lines to a
    driver that prints them; the dashboard's server, without the dashboard, reports usage. Each is
    a Python process that imports Ray, and ``ray.init`` waits for the server before it goes on.
    """
    from ray._private import services
    from ray._private.node import Node

    places: list[tuple[Any, str, Callable[..., Any]]] = [(Node, "start_monitor", _nothing)]
    if not options.get("log_to_driver", True):
        places.append((Node, "start_log_monitor", _nothing))
    if options.get("include_dashboard") is False:
        places.append((services, "start_api_server", lambda *_, **__: ("", None)))
    with contextlib.ExitStack() as stack:
        for owner, name, instead in places:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, instead)
        yield


def _nothing(*_: Any) -> None:
    """Instead of a process."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Ray's remarks on actors that it is just ending off the terminal.

    They are printed, not logged, so no log level reaches them. Exceptions pass.
    """
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield
