"""One statement by libpq on the event loop itself.

psycopg's own way, through a cursor and a generator for each statement, takes most of the processor
time of a small read. What it does for values stays: its adapters dump and load them.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%(%)")
_prepared: WeakKeyDictionary[Any, dict[tuple[bytes, tuple[int, ...]], bytes]] = WeakKeyDictionary()
"""Of each connection: a statement with its parameters' types -> its name there."""


@functools.lru_cache(maxsize=64)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement with ``$1`` in place of names, and the names in that order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return found[2] or f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACEHOLDER.sub(number, text).encode(), tuple(names)


async def rows_of(
    connection: psycopg.AsyncConnection[Any], text: str, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of a statement with ``%(name)s`` for values. Raises psycopg.Error.

    Cancelled, it leaves the connection in the middle of the statement.
    """
    query, names = _numbered(text)
    columns = Transformer(connection)
    given = columns.dump_sequence([values[name] for name in names], [PyFormat.AUTO] * len(names))
    known, types = _prepared.setdefault(connection, {}), columns.types or ()
    pgconn = connection.pgconn
    if (query, types) not in known:
        name = b"vas_%d" % len(known)
        pgconn.send_prepare(name, query, types)
        await _result(connection)
        known[query, types] = name
    pgconn.send_query_prepared(known[query, types], given, columns.formats, Format.TEXT)
    columns.set_pgresult(result := await _result(connection))
    labels = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
    return columns.load_rows(0, result.ntuples, lambda row: dict(zip(labels, row, strict=True)))


async def _result(connection: psycopg.AsyncConnection[Any]) -> PGresult:
    """Return the only result of what was sent. Raises psycopg.Error."""
    pgconn, loop = connection.pgconn, asyncio.get_running_loop()
    while pgconn.flush():
        await asyncio.sleep(0.001)  # longer than what the socket takes at once
    while True:
        ready = asyncio.Event()
        loop.add_reader(pgconn.socket, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(pgconn.socket)
        pgconn.consume_input()
        if not pgconn.is_busy():
            break
    found = pgconn.get_result()
    while found is not None and pgconn.get_result() is not None:
        pass  # there is no other; libpq's way to the end of a statement
    if found is None or found.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(found, "utf-8") if found else (
            psycopg.OperationalError("the connection is lost")
        )  # fmt: skip
    return found
