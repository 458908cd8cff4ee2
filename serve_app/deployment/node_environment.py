"""What Ray and Serve must find in the environment of every node that runs the service.

Ray reads these when it is imported, in each process of a node: the raylet hands
its own environment to the workers, replicas and proxies below it. So they are set
before the raylet starts: by ``vas serve`` for the one node that it starts itself,
by ``eval "$(vas node-environment)"`` ahead of ``ray start`` on the nodes of a cluster.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from serve_app.deployment.proxy import write_front
from serve_app.settings import Settings

_LONGEST_SOCKET_PATH = 97
"""Of the 108 bytes of a Unix socket's address, without what HAProxy appends while it binds."""
_SOCKET_BELOW = "/" + 56 * "0" + "/admin.sock"
"""Ray puts HAProxy's socket into a folder of the node's id, 56 digits."""

LONGEST_HAPROXY_FOLDER = _LONGEST_SOCKET_PATH - len(_SOCKET_BELOW)
"""Bytes of the longest path that HAProxy's files may lie under."""

SERVE_ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # Serve kills a proxy that needs longer to start: 5 s, if it is not told otherwise, are too few
    # on a busy machine. Less than the 60 s for which ``serve.start`` waits.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "40",
    # A replica that was lost with reads under way: another one answers them.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "10",
    # Replicas run our code on their own event loop: nothing in the API process blocks.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Ray Data tasks call models from plain threads, which have no event loop.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "1",
    # Model calls carry arrays of megabytes, which Ray's object store moves without copies.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
    # Ray would keep what it knows of the last 100,000 tasks.
    "RAY_task_events_max_num_task_in_gcs": "2000",
    # Ray would try a task for ever that is killed for the memory it takes; it waits 1, 2, 4, ... s.
    "RAY_task_oom_retries": "6",
    # Each process has some 30 threads; without a limit glibc keeps freed memory for each of them.
    "MALLOC_ARENA_MAX": "2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""The same on every node, whatever the settings."""


class HaproxyFolderError(ValueError):
    """HAProxy's folder has too long a path for the socket that Ray puts below it."""


def node_environment(settings: Settings, folder: Path) -> dict[str, str]:
    """The environment of a node that keeps HAProxy's files in ``folder``; writes its start script.

    Raises HaproxyFolderError, OSError.
    """
    if len(str(folder).encode()) > LONGEST_HAPROXY_FOLDER:
        message = f"{folder} is longer than {LONGEST_HAPROXY_FOLDER} bytes: name a shorter folder."
        raise HaproxyFolderError(message)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    front = write_front(folder, docs_url=f"{public_address(settings)}/docs/errors")
    patience = str(settings.answer_timeout_seconds)
    return SERVE_ENVIRONMENT | {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(front),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": patience,
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": patience,
    }


def public_address(settings: Settings) -> str:
    """Where clients reach the service, without a slash at its end."""
    own = f"http://{reachable(settings.host)}:{settings.port}"
    return (settings.public_url or own).rstrip("/")


def reachable(host: str) -> str:
    """The address by which this machine reaches what listens on ``host``."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104  (compared, not bound)


def export_lines(environment: dict[str, str]) -> str:
    """``environment`` as lines for a shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    return "\n".join(lines)
