"""``vas audit list | export | verify``: an account's audit log, and whether it is whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serve_app.cli.output import (
    DataOption,
    JsonOption,
    UsageError,
    administer,
    fetch,
    show,
    show_list,
)

if TYPE_CHECKING:
    from storage.audit import AuditEntry, ChainCheck
    from storage.database import Connection

audit_app = typer.Typer(no_args_is_help=True, help="Audit logs of accounts.")


@audit_app.command("list")
def audit_list(
    account: str,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most entries.")] = 100,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who did what, the latest first."""
    from serve_app.keys.routes import AuditEntryJson, entry_json
    from storage import audit, keys

    async def listed(connection: Connection) -> list[AuditEntryJson]:
        found = await keys.get_account(connection, account)
        entries = await audit.list_entries(connection, found.id, before=2**62, limit=limit)
        return [entry_json(each) for each in entries]

    names = ("position", "createdAt", "actor", "action", "jobId", "target", "detail", "address")
    rows = [{name: each[name] for name in names} for each in fetch(data, listed)]  # type: ignore[literal-required]
    show_list(rows, "entries", as_json)


@audit_app.command("export")
def audit_export(
    account: str,
    out: Annotated[Path | None, typer.Option(help="A file; standard output without it.")] = None,
    data: DataOption = None,
) -> None:
    """Write an account's whole audit log, an entry as JSON a line."""
    from serve_app.keys.routes import entry_line
    from storage import audit, keys

    async def export(connection: Connection) -> int:
        found = await keys.get_account(connection, account)
        count = 0
        with sys.stdout if out is None else out.open("w", encoding="utf-8") as target:
            async for entry in audit.read_chain(connection, found.id):
                target.write(entry_line(entry))
                count += 1
        return count

    fetch(data, export)


@audit_app.command("verify")
def audit_verify(
    account: Annotated[str | None, typer.Argument(help="Whose log in the database.")] = None,
    file: Annotated[Path | None, typer.Option(help="An export, verified by itself.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify that no entry was changed, taken out or put in; with an account and an export, that
    the account's log goes on from the export too. Exits 1 where it does not."""
    from serve_app.keys.routes import read_lines
    from storage import audit, keys

    exported = audit.ChainCheck()
    if file is not None:
        try:
            with file.open(encoding="utf-8") as lines:
                _require_whole(str(file), exported, list(read_lines(lines)))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} is no export of an audit log: {error}") from None
    if account is None:
        if file is None:
            raise UsageError("Name an account, or an export with --file, or both.")
        show({"entries": exported.position, "lastHash": exported.hash}, as_json=as_json)
        return

    async def verify(connection: Connection) -> dict[str, object]:
        found = await keys.get_account(connection, account)
        check, met = audit.ChainCheck(), exported.position == 0
        if await audit.count_unplaced(connection, found.id):
            raise UsageError(f"The log of {account} is broken: an entry has no place in it.")
        async for entry in audit.read_chain(connection, found.id):
            _require_whole(f"The log of {account}", check, [entry])
            met = met or (check.position, check.hash) == (exported.position, exported.hash)
        if not met:
            raise UsageError(f"The log of {account} does not go on from {file}.")
        return {"account": found.name, "entries": check.position, "lastHash": check.hash}

    administer(data, verify, as_json)


def _require_whole(name: str, check: ChainCheck, entries: list[AuditEntry]) -> None:
    """Raises UsageError."""
    for entry in entries:
        if reason := check.find_break(entry):
            raise UsageError(f"{name} is broken. {reason}")
