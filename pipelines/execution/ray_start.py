"""Ray's processes, started with the patience that a busy machine needs."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

_PATIENCE_SECONDS = 240.0
"""For a node of our own to register."""
_STARTS = 3
_LOOK_SECONDS = 0.1
_ENDING_SECONDS = 10.0
_OWN = (None, "local")
"""Addresses of a cluster that ``ray.init`` starts rather than joins."""
_TOKENS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}

log = logging.getLogger(__name__)


class RayStartError(Exception):
    """Ray's processes did not come up in time."""


def start_ray(free_port: Callable[[], int] | None = None, **options: Any) -> None:
    """``ray.init`` with ``options``; a node of our own gets _PATIENCE_SECONDS to come up.

    A cluster of our own has its token in the environment of its processes only, unless the caller's
    environment names one: whoever has it runs code as the cluster's user, and Ray writes those that
    it makes into the home folder, readable by all. ``free_port`` returns ports for Ray's agents.

    Raises RayStartError where that was not enough, three times, and whatever else ``ray.init``
    raises.
    """
    import ray

    own = options.get("address", os.environ.get("RAY_ADDRESS")) in _OWN
    if own and not _TOKENS & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    before = set(psutil.Process().children(recursive=True))
    for attempt in range(1, _STARTS + 1):
        try:
            with _private_parts(options, free_port, own=own):
                ray.init(**options)
        except RayStartError:
            log.warning("Ray did not start (%s of %s)", attempt, _STARTS)
            # End what Ray has started since ``before``: ``ray.shutdown`` knows nothing of a node
            # that did not come up, whose processes take what the next attempt is short of.
            import ray

            late = []
            for process in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if str(Path(ray.__file__).parent) in " ".join(process.cmdline()):
                        process.kill()
                        late.append(process)
            psutil.wait_procs(late, _ENDING_SECONDS)
            with quiet():
                ray.shutdown()
            if attempt == _STARTS:
                raise
        else:
            return


@contextlib.contextmanager
def _private_parts(
    options: Mapping[str, Any], free_port: Callable[[], int] | None, *, own: bool
) -> Iterator[None]:
    """``ray.init`` in this block starts no process that has nothing to do under ``options``, and
    waits longer for a node of its ``own``.

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
    if own:
        # ``Node`` asks for 30 s, a literal (ray#47087).
        places.append((services, "get_node", functools.partial(_registered, services.get_node)))
    if free_port is not None:
        # The raylet waits 15 s for ports that its agents choose, then ends (ray#65983).
        start = functools.partial(_started_with_ports, services.start_raylet, free_port)
        places.append((services, "start_raylet", start))
    with contextlib.ExitStack() as stack:
        for owner, name, instead in places:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, instead)
        yield


def _nothing(*_: Any) -> None:
    """Instead of a process."""


def _registered(get_node: Callable[..., Any], *of_node: str) -> Any:
    """``get_node``, asked until the node is registered. Raises RayStartError."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return get_node(*of_node)
        except RuntimeError as error:
            # Whether this process still has the raylet that it started: one that ended never comes.
            raylets = [each for each in psutil.Process().children() if each.name() == "raylet"]
            if all(each.status() == psutil.STATUS_ZOMBIE for each in raylets):
                raise RayStartError("Ray's raylet has ended while it started.") from error
            if time.monotonic() > deadline:
                message = "Ray's processes do not start in time: the machine is too busy."
                raise RayStartError(message) from error
            time.sleep(_LOOK_SECONDS)


_AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)


def _started_with_ports(
    start: Callable[..., Any], free_port: Callable[[], int], *arguments: Any, **options: Any
) -> Any:
    """``start_raylet`` with a port for each agent; that of the metrics may be given."""
    given = options.get("metrics_export_port")
    ports = {name: free_port() for name in _AGENT_PORTS}
    return start(*arguments, **options | ports | ({"metrics_export_port": given} if given else {}))


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
