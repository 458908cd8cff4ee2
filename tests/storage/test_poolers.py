"""Poolers in front of PostgreSQL: a connection that is none of the server's sessions is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from serve_app.deployment.data import DatabaseUnreachableError, prepared
from serve_app.deployment.local import free_port
from serve_app.settings import Settings
from storage.database import UNAVAILABLE, Database, NoSessionError, require_session
from tests.serve_app.running_api import SECRET, RunningApi
from tests.storage.tcp_postgres import tcp_postgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tcp_postgres(tmp_path_factory.mktemp("postgres") / "pg") as url:
        yield url


def without_options(head: bytes) -> bytes:
    """A startup message as a pooler that ignores ``options`` passes it on."""
    version, fields = head[4:8], head[8:].split(b"\0")
    pairs = zip(fields[:-2:2], fields[1:-2:2], strict=True)
    kept = b"".join(name + b"\0" + text + b"\0" for name, text in pairs if name != b"options")
    return struct.pack("!I", len(kept) + 9) + version + kept + b"\0"


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def connect_through(client: socket.socket, port: int) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        head = client.recv(1 << 16)
        server.sendall(without_options(head))
        back = threading.Thread(target=pass_on, args=(server, client), daemon=True)
        back.start()
        pass_on(client, server)
        back.join(60)


@pytest.fixture
def ignorer(server: str) -> Iterator[str]:
    """A pooler that drops ``options``, as ``ignore_startup_parameters`` has PgBouncer do."""
    port = int(str(psycopg.conninfo.conninfo_to_dict(server)["port"]))

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=connect_through, args=(client, port), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/postgres?sslmode=disable"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


@pytest.fixture
def pgbouncer(server: str, tmp_path: Path) -> Iterator[str]:
    """PgBouncer in transaction mode, as it is often configured."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    port, of_server = free_port(), psycopg.conninfo.conninfo_to_dict(server)["port"]
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={of_server} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\n"
        "ignore_startup_parameters = options,extra_float_digits\n"
    )
    words = [program, str(tmp_path / "pgbouncer.ini")]
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        finally:
            process.kill()


@pytest.fixture(params=["ignorer", "pgbouncer"])
def pooled(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    for _ in range(200):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url):
            return url
        threading.Event().wait(0.05)
    raise AssertionError("the pooler does not answer")


def test_the_server_itself_is_a_session(server: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=server, secret_key=SECRET)
    with prepared(settings), RunningApi(settings) as api:
        assert api.client.get(f"{api.root}/readyz").json()["checks"]["database"] == "ok"


async def test_options_of_the_url_hold_beside_the_services_own(server: str) -> None:
    database = Database(f"{server}?options=-c%20geqo%3Doff")
    shown = text("SELECT current_setting('geqo') AS geqo, current_setting('jit') AS jit")
    async with database.statement() as connection:
        assert tuple((await connection.execute(shown)).one()) == ("off", "off")
    assert [*(await database.query(shown))[0].values()] == ["off", "off"]
    await database.close()


def test_a_start_behind_a_pooler_is_refused_in_a_sentence(pooled: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=pooled, secret_key=SECRET)
    with (
        pytest.raises(DatabaseUnreachableError, match=r"through a pooler .* the server itself"),
        prepared(settings),
    ):
        pass


async def test_no_connection_behind_a_pooler_is_used(pooled: str) -> None:
    database = Database(pooled)
    with pytest.raises(UNAVAILABLE, match="through a pooler"):
        async with database.statement() as connection:
            await connection.execute(text("SELECT 1"))
    await database.close()
    async with await psycopg.AsyncConnection.connect(pooled) as connection:
        with pytest.raises(NoSessionError):
            await require_session(connection)
        assert connection.closed


def test_readiness_names_a_pooler_that_came_later(server: str, pooled: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=server, secret_key=SECRET)
    with prepared(settings):
        pass
    with RunningApi(settings.model_copy(update={"database_url": pooled})) as api:
        answer = api.client.get(f"{api.root}/readyz")
    assert answer.status_code == 503
    assert "through a pooler" in answer.json()["checks"]["database"]
