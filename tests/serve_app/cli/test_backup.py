"""``vas backup`` and ``vas restore``: the same jobs, balances and events on an empty machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from typer.testing import CliRunner

from serve_app.cli.main import app as vas
from serve_app.cli.output import UsageError
from serve_app.deployment.data import prepared
from serve_app.settings import Settings
from storage.backup import BackupError
from storage.database import embedded_postgres
from tests.databases import fresh_database
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.serve_app.test_retention import fill, remove

RUN_BY = {"VAS_SECRET_KEY": SECRET}


def run_vas(*arguments: object, env: dict[str, str] | None = None) -> str:
    """What a command printed. Raises what the command does, which ``vas`` prints as a sentence."""
    done = CliRunner().invoke(vas, [*map(str, arguments)], env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def run_in_a_process(*arguments: object) -> None:
    """For commands that start a database of their own, which ends with its process."""
    command = [sys.executable, "-m", "serve_app.cli", *map(str, arguments)]
    subprocess.run(command, capture_output=True, timeout=120, check=True)


def rows_of(url: str) -> dict[str, list[str]]:
    """All rows of all tables, as JSON texts in order."""
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace ORDER BY relname"
        ).fetchall()
        rows = {}
        for (name,) in names:
            query = SQL("SELECT to_jsonb(t)::text FROM {} t").format(Identifier(name))
            rows[name] = sorted(text for (text,) in connection.execute(query))
        return rows


def objects_of(settings: Settings) -> dict[str, bytes]:
    store = settings.object_store
    return {key: store.read_bytes(key) for key in store.list_keys("jobs")}


@pytest.fixture
def job_id(api: RunningApi, customer: Customer) -> str:
    """A completed job with an object, and one that waits for its upload."""
    made = created(api, customer)
    complete(api, made, [track(0)], [])
    api.context.objects.write_bytes(f"jobs/{made}/stills/00000.jpg", b"\xff\xd8still")
    api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
    return made


def settings_of(api: RunningApi) -> dict[str, str]:
    return RUN_BY | {
        "VAS_DATABASE_URL": api.settings.database_url or "",
        "VAS_DATA_DIR": str(api.settings.data_dir),
    }


def test_a_restore_into_an_empty_machine_gives_the_same_rows_and_objects(
    api: RunningApi, customer: Customer, job_id: str, postgres_url: str, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    record = json.loads(run_vas("backup", backup, "--json", env=settings_of(api)))
    assert record["objects"] == {"count": 1, "bytes": 7}
    before = rows_of(api.settings.database_url or "")
    assert before["jobs"]
    assert before["ledger_entries"]
    with fresh_database(postgres_url, migrated=False) as url:
        other = {"VAS_DATABASE_URL": url, "VAS_DATA_DIR": str(tmp_path / "new")}
        with pytest.raises(BackupError, match="another secret key"):
            run_vas("restore", backup, env=other | {"VAS_SECRET_KEY": SECRET[::-1]})
        run_vas("restore", backup, env=RUN_BY | other)
        assert rows_of(url) == before
        with pytest.raises(BackupError, match="not empty"):
            run_vas("restore", backup, env=RUN_BY | other)
        moved = api.settings.model_copy(update={"database_url": url, "data_dir": tmp_path / "new"})
        assert objects_of(moved) == objects_of(api.settings)
        with RunningApi(moved) as restored:
            found = restored.client.get(f"/jobs/{job_id}/transcript", headers=customer.headers)
            assert found.json()["data"]["segments"][0]["text"] == "Good morning."
            quota = restored.client.get("/quota", headers=customer.headers).json()["data"]
            assert quota == api.client.get("/quota", headers=customer.headers).json()["data"]


@pytest.mark.parametrize("known_by", ["a later backup", "the object store"])
def test_a_restore_does_not_bring_back_what_was_erased_since(
    api: RunningApi, customer: Customer, job_id: str, postgres_url: str, tmp_path: Path,
    known_by: str,
) -> None:  # fmt: skip
    fill(api.context.objects, job_id)
    run_vas("backup", tmp_path / "backups/old", env=settings_of(api))
    assert api.client.post(f"/jobs/{job_id}/erase", headers=customer.headers).status_code == 202
    remove(api, api.context.objects)
    new = tmp_path / "new"
    if known_by == "a later backup":
        run_vas("backup", tmp_path / "backups/later", env=settings_of(api))
    else:
        shutil.copytree(api.settings.data_dir / "objects/erased", new / "objects/erased")
    with fresh_database(postgres_url, migrated=False) as url:
        other = {"VAS_DATABASE_URL": url, "VAS_DATA_DIR": str(new)}
        said = run_vas("restore", tmp_path / "backups/old", "--json", env=RUN_BY | other)
        assert json.loads(said)["erasedAgain"] == 1
        rows = [row for each in rows_of(url).values() for row in each if job_id in row]
        assert rows
        assert not any("Good morning" in row for row in rows)
        moved = api.settings.model_copy(update={"database_url": url, "data_dir": new})
        assert [key for key in objects_of(moved) if job_id in key] == []


def test_older_backups_beside_a_new_one_are_pruned(api: RunningApi, tmp_path: Path) -> None:
    for name in ("old", "linked", "young"):
        run_vas("backup", tmp_path / name, env=settings_of(api))
    for name in ("old", "linked"):
        path = tmp_path / name / "backup.json"
        record = json.loads(path.read_text()) | {"createdAt": "2026-01-01T00:00:00+00:00"}
        path.write_text(json.dumps(record))
    (tmp_path / "linked").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    (tmp_path / "linked").symlink_to(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    (tmp_path / "other").mkdir()
    said = run_vas("backup", tmp_path / "new", "--prune", 7, "--json", env=settings_of(api))
    assert json.loads(said)["pruned"] == ["old"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"linked", "young", "other", "new"}


def test_the_embedded_database_and_its_secret_key_come_along(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with prepared(Settings(data_dir=data)):
        run_in_a_process("accounts", "create", "studio", "--data", data)
    run_in_a_process("backup", backup, "--data", data)
    assert (backup / "secret.key").stat().st_mode & 0o777 == 0o600
    run_in_a_process("restore", backup, "--data", tmp_path / "new")
    assert (tmp_path / "new/secret.key").read_text() == (data / "secret.key").read_text()
    with embedded_postgres(tmp_path / "new/postgres") as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT name FROM accounts").fetchall() == [("studio",)]


def _break_off(backup: Path) -> None:
    (backup / "backup.json").unlink()


def _alter(backup: Path) -> None:
    with (backup / "database.dump").open("ab") as dump:
        dump.write(b"x")


def _lose_an_object(backup: Path) -> None:
    next((backup / "objects").rglob("*.jpg")).unlink()


def _link_an_object(backup: Path) -> None:
    """To a file of the same size, which only the one who restores can read."""
    still = next((backup / "objects").rglob("*.jpg"))
    still.replace(backup.parent / "private")
    still.symlink_to(backup.parent / "private")


def _link_the_objects(backup: Path) -> None:
    (backup / "objects").replace(backup.parent / "elsewhere")
    (backup / "objects").symlink_to(backup.parent / "elsewhere")


def _link_the_dump(backup: Path) -> None:
    (backup / "database.dump").replace(backup.parent / "dump")
    (backup / "database.dump").symlink_to(backup.parent / "dump")


def _put_a_pipe(backup: Path) -> None:
    os.mkfifo(backup / "objects/pipe")


def _raise_the_schema(backup: Path) -> None:
    record = json.loads((backup / "backup.json").read_text())
    (backup / "backup.json").write_text(json.dumps(record | {"schema": "9999"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_break_off, "no complete backup"),
        (_alter, "damaged"),
        (_lose_an_object, "damaged"),
        (_link_an_object, "neither a file nor a folder"),
        (_link_the_objects, "neither a file nor a folder"),
        (_link_the_dump, "neither a file nor a folder"),
        (_put_a_pipe, "neither a file nor a folder"),
        (_raise_the_schema, "A newer version made the backup"),
    ],
)
def test_what_is_no_whole_backup_is_refused_and_nothing_is_written(
    api: RunningApi,
    job_id: str,
    postgres_url: str,
    tmp_path: Path,
    damage: Callable[[Path], None],
    said: str,
) -> None:
    backup = tmp_path / "backup"
    run_vas("backup", backup, env=settings_of(api))
    damage(backup)
    with fresh_database(postgres_url, migrated=False) as url:
        other = {"VAS_DATABASE_URL": url, "VAS_DATA_DIR": str(tmp_path / "new")}
        with pytest.raises((UsageError, BackupError), match=said):
            run_vas("restore", backup, env=RUN_BY | other)
        assert rows_of(url) == {}
    assert not (tmp_path / "new").exists()


def test_a_restore_that_is_refused_has_written_nothing(
    api: RunningApi, job_id: str, tmp_path: Path
) -> None:
    backup, new = tmp_path / "backup", tmp_path / "new"
    run_vas("backup", backup, env=settings_of(api))
    with pytest.raises(BackupError, match="not empty"):
        run_vas("restore", backup, env=settings_of(api) | {"VAS_DATA_DIR": str(new)})
    assert list(new.iterdir()) == []


def modes_of(folder: Path) -> set[tuple[str, int]]:
    """Kind and permissions of the folder, and of everything in it."""
    return {
        ("folder" if path.is_dir() else "file", path.stat().st_mode & 0o777)
        for path in (folder, *folder.rglob("*"))
    }


def test_nobody_else_can_read_a_backup_or_what_is_restored(
    api: RunningApi, job_id: str, postgres_url: str, tmp_path: Path
) -> None:
    """Also in folders that were there before, and that everybody can read."""
    backup, new = tmp_path / "backup", tmp_path / "new"
    (api.settings.data_dir / "secret.key").write_text(SECRET)
    own_key = {name: value for name, value in settings_of(api).items() if "SECRET" not in name}
    for folder in (backup, new):
        folder.mkdir(mode=0o755)
    run_vas("backup", backup, env=own_key)
    assert modes_of(backup) == {("folder", 0o700), ("file", 0o600)}
    with fresh_database(postgres_url, migrated=False) as url:
        run_vas("restore", backup, env={"VAS_DATABASE_URL": url, "VAS_DATA_DIR": str(new)})
    assert (new / "secret.key").read_text() == SECRET
    assert list(new.rglob("*.jpg"))
    assert modes_of(new) == {("folder", 0o700), ("file", 0o600)}
    (tmp_path / "after").touch()
    assert (tmp_path / "after").stat().st_mode & 0o077 != 0


def test_a_folder_with_something_in_it_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="is not empty: name a new folder"):
        run_vas("backup", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
