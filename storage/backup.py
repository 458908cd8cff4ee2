"""A backup in a folder: the database's dump and the objects, taken while the service works.

Objects never change under their key. They are copied before the dump and, those that are new,
after it, so every object that the dump's snapshot refers to is there, unless retention deleted it
meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from storage.database import postgres_package
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.search_vectors import STILLS, TEXTS
from storage.uploads import JOBS_PREFIX

_COPIES_AT_ONCE = 8
_DERIVED = (
    f"--exclude-table={TEXTS}",
    f"--exclude-table={STILLS}",
    "--exclude-extension=vector",
)
"""Runners make vectors again, and the server of the copy need not have the extension."""


class BackupError(Exception):
    """A backup cannot be made or restored; the message is a sentence."""


def dump_database(url: str, target: Path) -> None:
    """Write one snapshot of the database in ``pg_dump``'s custom format. Raises BackupError."""
    _run("pg_dump", url, f"--file={target}", "--format=custom", "--no-comments", *_DERIVED)


def list_erased(url: str) -> list[str]:
    """Return ids of the jobs that were erased; none in a database from before there was erasing."""
    with psycopg.connect(url) as connection:
        try:
            rows = connection.execute("SELECT id FROM jobs WHERE erased_at IS NOT NULL").fetchall()
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable):
            return []
    return [str(job_id) for (job_id,) in rows]


def require_empty(url: str) -> None:
    """Raises BackupError where the database has a table."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT count(*) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        ).fetchone()
    if tables != (0,):
        raise BackupError("The database is not empty: restore into a new one.")


def restore_database(url: str, source: Path) -> None:
    """Fill an empty database from a dump, all of it or nothing. Raises BackupError."""
    _run("pg_restore", url, str(source), "--single-transaction", "--exit-on-error")


def _run(program: str, url: str, *options: str) -> None:
    """Run a client program of PostgreSQL; the password is not among its arguments."""
    given = conninfo_to_dict(url)
    password = given.pop("password", None)
    environment = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    versions = postgres_package().utils.POSTGRES_VERSIONS
    command = [str(versions[max(versions)] / program), "--no-password"]
    command += ["--no-owner", "--no-privileges", f"--dbname={make_conninfo('', **given)}"]
    done = subprocess.run(  # noqa: S603  (a program of an installed package)
        [*command, *options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise BackupError(f"{program} failed: {lines[0]}")


def copy_objects(source: ObjectStore, target: ObjectStore, *, but_of: Collection[str] = ()) -> None:
    """Copy the objects of all jobs (but of these) that ``target`` does not have yet."""
    copy = partial(_copy, source, target)
    keys = (key for key in source.list_keys(JOBS_PREFIX) if key.split("/")[1] not in but_of)
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as threads:
        for _ in threads.map(copy, keys):
            pass


def _copy(source: ObjectStore, target: ObjectStore, key: str) -> None:
    if target.exists(key):
        return
    try:
        with (
            source.local_copy(key) as path,
            path.open("rb") as stream,
            target.writer(key) as copied,
        ):
            shutil.copyfileobj(stream, copied)
    except ObjectNotFoundError:
        return  # deleted since it was listed: by retention, or with its job


def measure_objects(store: ObjectStore) -> tuple[int, int]:
    """Return how many objects of jobs there are, and their bytes."""
    sizes = [store.size_bytes(key) for key in store.list_keys(JOBS_PREFIX)]
    return len(sizes), sum(sizes)


def sha256_of(path: Path) -> str:
    """Return the file's digest in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
