"""Moto's S3 server in a process of its own, which can be told to be full, or to fail.

python -m tests.acceptance.chaos.object_store PORT MODE_FILE
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_app.deployment.local import free_port
from tests.places import PROJECT
from tests.storage.s3_server import wait_for_server

WORKS, FULL, FAILS = "works", "full", "fails"
REFUSALS = {
    FULL: ("507 Insufficient Storage", "XMinioStorageFull", frozenset({"PUT", "POST"})),
    FAILS: ("503 Slow Down", "SlowDown", frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})),
}
"""Mode to the status and code that servers of this kind give, and the methods that get them."""

Respond = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], Respond], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class StoreServer:
    """The running server."""

    process: subprocess.Popen[bytes]
    endpoint: str
    mode_file: Path

    def set_mode(self, mode: str) -> None:
        self.mode_file.write_text(mode)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections are taken, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def mode(self, mode: str) -> Iterator[None]:
        """Refuse as ``mode`` says for the block."""
        self.set_mode(mode)
        try:
            yield
        finally:
            self.set_mode(WORKS)


@contextlib.contextmanager
def store_server(folder: Path) -> Iterator[StoreServer]:
    """Run the server until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    mode_file, port = folder / "mode", free_port()
    mode_file.write_text(WORKS)
    command = [sys.executable, "-m", __name__, str(port), str(mode_file)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = StoreServer(process, f"http://127.0.0.1:{port}", mode_file)
    try:
        wait_for_server(server.endpoint)
        yield server
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(20)


def refusing(application: Wsgi, mode_file: Path) -> Wsgi:
    """``application`` behind the mode that ``mode_file`` names at each request."""

    def answer(environ: dict[str, Any], start_response: Respond) -> Iterable[bytes]:
        refusal = REFUSALS.get(mode_file.read_text())
        if refusal is None or environ["REQUEST_METHOD"] not in refusal[2]:
            return application(environ, start_response)
        status, code, _ = refusal
        # A connection that is kept must not have a body lying on it.
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{code}</Code><Message>{status}</Message></Error>".encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start_response(status, headers)
        return [body]

    return answer


def main() -> None:
    """Serve for ever."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    port, mode_file = int(sys.argv[1]), Path(sys.argv[2])
    application = refusing(DomainDispatcherApplication(create_backend_app), mode_file)
    handler = MotoRequestHandler
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=handler)


if __name__ == "__main__":
    main()
