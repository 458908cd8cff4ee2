"""The data that a service keeps: its folder, its secret key, its database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from serve_app.crypto import DecryptionError, Encrypter
from serve_app.settings import InvalidSettingsError, Settings, strong_secret
from storage import database
from storage.webhooks import find_any_encrypted_secret

SECRET_KEY_FILE = "secret.key"  # noqa: S105  (a file's name)
_WAL_SEGMENT_BYTES = 16 * 1024**2
"""PostgreSQL needs room for one to commit anything."""


class DataFolderError(Exception):
    """The data folder, or a folder in it, cannot be used."""


class NoServiceDataError(DataFolderError):
    """No service has begun with these settings."""


class DatabaseUnreachableError(Exception):
    """The database server does not answer, or lets us not in."""


class OtherDataError(Exception):
    """The data are of another secret key, or of a newer version."""


@contextlib.contextmanager
def prepared(
    settings: Settings, *, migrated: bool = True, existing: bool = False
) -> Iterator[Settings]:
    """Settings completed: data folder, secret key, a database that runs and is ``migrated``.

    Where the data must be ``existing`` ones, nothing is made that a service would begin with: no
    folder, no database, no secret key, which is empty where there is none. What the database
    refuses within the block is raised in a sentence too. Raises DataFolderError,
    DatabaseUnreachableError, OtherDataError and InvalidSettingsError.
    """
    complete = with_folder(settings, existing=existing)
    with contextlib.ExitStack() as stack:
        try:
            if complete.database_url is None:
                url = stack.enter_context(
                    database.embedded_postgres(complete.data_dir / "postgres")
                )
                complete = complete.model_copy(update={"database_url": url})
            revision, encrypted = asyncio.run(marks(complete.database_url or ""))
            if existing and revision is None:
                raise _no_data("the database")
            complete = _with_secret_key(complete, encrypted, existing=existing)
            if migrated:
                _require_known(revision, settings)
                database.migrate(complete.database_url or "")
            yield complete
        except database.DatabaseUrlError as error:
            raise InvalidSettingsError(f"VAS_DATABASE_URL: {error}.") from None
        except database.PostgresStartError as error:
            raise DataFolderError(f"PostgreSQL cannot be started: {error}.") from error
        except database.UNAVAILABLE as error:
            origin = getattr(error, "orig", error)
            if isinstance(origin, database.DiskFull) or (
                # PostgreSQL's own words for it depend on where it finds out.
                settings.database_url is None
                and shutil.disk_usage(complete.data_dir).free < _WAL_SEGMENT_BYTES
            ):
                advice = "make room on its disk."
            elif settings.database_url is None:
                advice = f"{complete.data_dir / 'postgres/log'} has more."
            else:
                advice = "is VAS_DATABASE_URL right?"
            message = f"The database cannot be used ({str(origin).splitlines()[0]}): {advice}"
            raise DatabaseUnreachableError(message) from error


def with_folder(settings: Settings, *, existing: bool = False) -> Settings:
    """Return settings with a data folder that is there, and a log folder. Raises as ``prepared``
    does."""
    data_dir = settings.data_dir.expanduser().resolve()
    own = settings.database_url is None
    if existing and own and not (data_dir / "postgres" / "PG_VERSION").exists():
        raise _no_data(data_dir)
    with _usable(data_dir):
        if not existing:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (data_dir / "objects", data_dir / "logs"):
                if folder.exists():  # of a version that left them readable to all
                    folder.chmod(0o700)
    return settings.model_copy(
        update={"data_dir": data_dir, "log_dir": settings.log_dir or data_dir / "logs"}
    )


def _no_data(place: Path | str) -> NoServiceDataError:
    return NoServiceDataError(
        f"There is no service data in {place}: name the service's folder with --data, or start a "
        "service with vas serve."
    )


@contextlib.contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    """Raises DataFolderError where the block cannot use the folder."""
    try:
        yield
    except OSError as error:
        message = f"{data_dir} cannot be the data folder ({error.strerror}): name another with "
        raise DataFolderError(f"{message}--data or VAS_DATA_DIR.") from error


@contextlib.contextmanager
def own_files_private() -> Iterator[None]:
    """Let all files that are made in the block, also by processes, be for this user alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


async def marks(url: str) -> tuple[str | None, bytes | None]:
    """Return the schema's revision, and a text that the service encrypted; None where there is
    none."""
    opened = database.Database(url, pool_size=2)
    try:
        async with opened.statement() as connection:
            revision = await database.database_revision(connection)
            if revision is None:
                return None, None
            return revision, await find_any_encrypted_secret(connection)
    finally:
        await opened.close()


def _require_known(revision: str | None, settings: Settings) -> None:
    """Raises OtherDataError where the database is older than what upgrades start from, or was
    migrated by a newer version."""
    newest = database.newest_revision()
    if revision is not None and revision < database.OLDEST_REVISION:
        raise OtherDataError(
            f"These data are of a version before 0.3.0 (schema {revision}): start version 0.3.0 "
            "on them once, then this one."
        )
    if revision is not None and revision > newest and not settings.accept_newer_schema:
        raise OtherDataError(
            f"A newer version has migrated this database (to {revision}, this one has {newest}): "
            "start that version. To go back one version, set VAS_ACCEPT_NEWER_SCHEMA=true."
        )


def _with_secret_key(settings: Settings, encrypted: bytes | None, *, existing: bool) -> Settings:
    """Return settings with the key given, or the data folder's, which is made where nothing needs
    it yet.

    Raises OtherDataError where ``encrypted`` was encrypted with another, and DataFolderError.
    """
    path, key = settings.data_dir / SECRET_KEY_FILE, settings.secret_key.get_secret_value()
    with _usable(settings.data_dir):
        if not key and (path.exists() or not (existing or encrypted)):
            key = own_secret_key(settings.data_dir)
    try:
        strong_secret(SecretStr(key))
    except ValueError as error:
        raise InvalidSettingsError(f"{path}: {error}.") from None
    if encrypted is not None:
        try:
            Encrypter(key.encode()).decrypt(encrypted)
        except DecryptionError:
            message = (
                f"VAS_SECRET_KEY, or else {path}, is not the key of this database: put it back."
            )
            raise OtherDataError(message) from None
    return settings.model_copy(update={"secret_key": SecretStr(key)})


def own_secret_key(data_dir: Path) -> str:
    """Return the data folder's key, made once. Raises OSError."""
    path = data_dir / SECRET_KEY_FILE
    if path.exists() and not path.read_text():
        path.unlink()  # of a version that wrote it in place, as the machine went down
    if not path.exists():
        part = write_privately(path, secrets.token_urlsafe(48))
        # Of processes that start at once the first one's key is everybody's.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(part)
        part.unlink()
    return path.read_text()


def write_privately(path: Path, text: str) -> Path:
    """Return all of ``text`` in a file beside ``path``, on the disk, readable by us alone."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        part.unlink()
        raise
    return part
