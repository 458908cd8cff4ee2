"""Data that a start refuses in a sentence: a newer version's, another key's, a full disk's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from pipelines.backfill.output import begin_output
from pipelines.collection import BucketAccess, place_at
from serve_app.cli.accounts import demo_key
from serve_app.cli.main import app, user_sentence
from serve_app.cli.output import UsageError
from serve_app.deployment import local
from serve_app.deployment.data import DatabaseUnreachableError, OtherDataError, prepared
from serve_app.deployment.doctor import CHECKS, MachineFacts
from serve_app.settings import Settings
from storage.database import newest_revision
from tests.databases import fresh_database
from tests.disks import mounted, resize
from tests.serve_app.running_api import SECRET, RunningApi
from tests.tables import every

OTHER = SecretStr("another secret key that is long enough")


@pytest.fixture
def served(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a service that has run, with a secret key of the data folder's own."""
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url)
    assert demo_key(settings).startswith("vas_live_")
    return settings


def refusal(settings: Settings, *, migrated: bool = True) -> str | None:
    """The sentence on these data; None if they can be worked on."""
    try:
        with prepared(settings, migrated=migrated):
            return None
    except OtherDataError as error:
        return user_sentence(error)


def test_data_of_a_newer_version_are_refused_unless_the_operator_goes_back_to_this_one(
    served: Settings,
) -> None:
    assert refusal(served) is None
    with psycopg.connect(served.database_url or "") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    sentence = refusal(served)
    assert sentence is not None
    assert sentence.startswith("A newer version has migrated this database (to 9999, this one has ")
    assert newest_revision() in sentence
    assert refusal(served, migrated=False) is None  # a backup is made of it all the same
    assert refusal(served.model_copy(update={"accept_newer_schema": True})) is None


ADMINISTERING = (
    "accounts create studio",
    "accounts suspend studio",
    "backfill import {results} --account studio",
    "backup {folder}/backup",
    "credits audit",
    "keys create studio",
    "payments set-secret",
    "sessions create --operator",
    "usage studio",
    "webhooks secret studio",
)


@every("command", ADMINISTERING)
@every("database", ["its own", "a server's"])
def test_a_command_that_administers_creates_no_service(
    command: str, database: str, tmp_path: Path, postgres_url: str
) -> None:
    results = tmp_path / "results"
    begin_output(place_at(str(results), BucketAccess()), {"profile": "packaged"})
    words = command.format(results=results, folder=tmp_path).split()
    with ExitStack() as stack:
        stack.enter_context(contextlib.chdir(tmp_path))
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        place = str(tmp_path / "data")
        if database == "a server's":
            url = stack.enter_context(fresh_database(postgres_url, migrated=False))
            monkeypatch.setenv("VAS_DATABASE_URL", url)
            place = "the database"
        result = CliRunner().invoke(app, words, input=f"whsec_{'x' * 32}\n")
    assert isinstance(result.exception, Exception)
    sentence = user_sentence(result.exception)
    assert sentence is not None
    assert sentence.startswith(f"There is no service data in {place}: ")
    assert [each.name for each in tmp_path.iterdir()] == ["results"]


def test_a_key_that_a_service_does_not_have_is_made_by_no_command(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VAS_DATABASE_URL", database_url)
    assert CliRunner().invoke(app, ["accounts", "create", "studio"]).exit_code == 0
    result = CliRunner().invoke(app, ["webhooks", "secret", "studio"])
    assert isinstance(result.exception, UsageError)
    assert "set VAS_SECRET_KEY as the service has it" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_links_and_the_doctor_lead_to_the_service_that_runs(
    api: RunningApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to the port of the settings, at which a service would be started."""
    port = urlsplit(api.root).port
    assert port is not None
    settings = api.settings.model_copy(update={"data_dir": tmp_path, "port": port})
    monkeypatch.setenv("VAS_DATABASE_URL", settings.database_url or "")
    monkeypatch.setenv("VAS_SECRET_KEY", SECRET)
    monkeypatch.setenv("VAS_DATA_DIR", str(tmp_path))

    def link() -> str:
        made = CliRunner().invoke(app, ["sessions", "create", "--operator", "--json"]).stdout
        return str(json.loads(made)["signInUrl"])

    assert link().startswith("http://127.0.0.1:8000/")
    local._record_run(settings, tmp_path / "run")
    assert link().startswith(f"{api.root}/")
    elsewhere = settings.model_copy(update={"port": 1})
    answer = f"the service of {tmp_path} answers at 127.0.0.1:{port}"
    assert CHECKS["port"](MachineFacts(elsewhere)) == answer
    local._record_run(elsewhere, tmp_path / "run")
    with pytest.raises(httpx.ConnectError):
        CHECKS["port"](MachineFacts(settings))


def test_the_doctor_looks_at_a_database_and_begins_none(postgres_url: str, tmp_path: Path) -> None:
    with fresh_database(postgres_url, migrated=False) as url:
        settings = Settings(data_dir=tmp_path / "data", database_url=url)
        assert CHECKS["database"](MachineFacts(settings)).endswith(", empty")
    assert "(embedded)" in CHECKS["database"](MachineFacts(Settings(data_dir=tmp_path / "data")))
    assert list(tmp_path.iterdir()) == []


def _another(path: Path) -> None:
    path.write_text(OTHER.get_secret_value())


@pytest.mark.parametrize("migrated", [True, False], ids=["to work", "to back up"])
@pytest.mark.parametrize("lose", [_another, Path.unlink], ids=["another", "none"])
def test_a_secret_key_that_is_not_the_databases_is_refused(
    served: Settings, lose: Callable[[Path], None], migrated: bool
) -> None:
    path = served.data_dir / "secret.key"
    own = path.read_text()
    lose(path)
    before = path.exists()
    assert refusal(served, migrated=migrated) == (
        f"VAS_SECRET_KEY, or else {path}, is not the key of this database: put it back."
    )
    assert path.exists() == before
    path.write_text(own)
    assert refusal(served, migrated=migrated) is None
    assert refusal(served.model_copy(update={"secret_key": SecretStr(SECRET)})) is not None


KIB = 1024


def vas(*words: object, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit status of a command, and its standard error."""
    command = [sys.executable, "-m", "serve_app.cli", *map(str, words)]
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("size_bytes", [4 * KIB, 64 * KIB, 8 * KIB**2])
def test_a_first_start_on_a_full_disk_ends_with_a_sentence(tmp_path: Path, size_bytes: int) -> None:
    with mounted(tmp_path, size_bytes):
        status, said = vas("serve", "--json", "--data", tmp_path / "data")
    assert status == 2
    assert said.startswith("PostgreSQL cannot be started: could not write ")
    assert said.endswith(": No space left on device.\n")
    assert said.count("\n") == 1


def end_a_connection_on_a_full_disk(settings: Settings) -> None:
    with prepared(settings) as complete:
        free = shutil.disk_usage(complete.data_dir).free
        (complete.data_dir / "other").write_bytes(bytes(free - KIB**2))
        with psycopg.connect(complete.database_url or "") as connection:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_an_error_of_the_embedded_database_on_a_full_disk_names_the_disk(tmp_path: Path) -> None:
    """It may also end by "cannot abort transaction", without the class of a full disk."""
    settings = Settings(data_dir=tmp_path / "data")
    sentence = "make room on its disk"
    with mounted(tmp_path, 96 * KIB**2), pytest.raises(DatabaseUnreachableError, match=sentence):
        end_a_connection_on_a_full_disk(settings)


def test_a_start_opens_no_folder_above_its_data_for_reading(tmp_path: Path) -> None:
    """Under root the package of PostgreSQL makes all of them readable, a home folder too."""
    above = tmp_path / "home"
    above.mkdir(mode=0o700)
    with prepared(Settings(data_dir=above / "data")) as settings:
        assert not above.stat().st_mode & 0o066
        assert not settings.data_dir.stat().st_mode & 0o066
        for name in ("objects", "logs"):
            (settings.data_dir / name).mkdir(mode=0o755)
    with prepared(settings.model_copy(update={"database_url": None})):
        for name in ("objects", "logs"):
            assert not (settings.data_dir / name).stat().st_mode & 0o077


@pytest.fixture
def with_an_object(served: Settings) -> dict[str, str]:
    """The environment for commands on ``served``, which has an object of a megabyte."""
    served.object_store.write_bytes("jobs/0/stills/00000.jpg", os.urandom(KIB**2))
    return {
        "VAS_DATABASE_URL": served.database_url or "",
        "VAS_DATA_DIR": str(served.data_dir),
        "VAS_SECRET_KEY": "",
    }


@pytest.mark.parametrize(
    ("size_bytes", "what"),
    [
        pytest.param(64 * KIB, "No more can be written", id="object"),
        pytest.param(KIB**2 + 24 * KIB, "pg_dump failed", id="dump"),
    ],
)
def test_a_backup_that_finds_no_room_leaves_nothing_and_says_so(
    with_an_object: dict[str, str], tmp_path: Path, size_bytes: int, what: str
) -> None:
    out = tmp_path / "disk"
    out.mkdir()
    with mounted(out, size_bytes):
        status, said = vas("backup", out, environment=with_an_object)
        assert (status, list(out.iterdir())) == (2, [])
        assert said.startswith(what)
        assert "No space left on device" in said
        assert said.count("\n") == 1
        resize(out, 4 * KIB**2)
        assert vas("backup", out, environment=with_an_object) == (0, "")


def test_a_restore_that_finds_no_room_goes_on_once_there_is(
    with_an_object: dict[str, str], postgres_url: str, tmp_path: Path
) -> None:
    backup, new = tmp_path / "backup", tmp_path / "new"
    assert vas("backup", backup, environment=with_an_object) == (0, "")
    new.mkdir()
    with fresh_database(postgres_url, migrated=False) as url, mounted(new, 256 * KIB):
        target = with_an_object | {"VAS_DATABASE_URL": url, "VAS_DATA_DIR": str(new)}
        sentence = "No more can be written (No space left on device): make room, then repeat the"
        assert vas("restore", backup, environment=target) == (2, f"{sentence} command.\n")
        resize(new, 4 * KIB**2)
        assert vas("restore", backup, environment=target) == (0, "")
        assert Settings(data_dir=new).object_store.size_bytes("jobs/0/stills/00000.jpg") == KIB**2
