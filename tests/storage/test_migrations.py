"""A new database has the schema that the code uses, and one of version 0.3.0 gets the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import storage.tables  # noqa: F401  (its tables belong to the metadata)
from serve_app.cli.main import user_sentence
from serve_app.deployment.data import OtherDataError, marks, prepared
from serve_app.exports.timeline import YOUTUBE_FEWEST
from serve_app.settings import Settings
from storage.database import driver_url, migrate, newest_revision, postgres_package
from storage.tables import metadata
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET, RunningApi
from tests.storage.old_statements import restore, restore_objects, stored
from tests.tables import every


@pytest.fixture
def of_version_0_3_0(postgres_url: str) -> Iterator[str]:
    """A database as version 0.3.0 left it."""
    with fresh_database(postgres_url, migrated=False) as url:
        restore(url)
        yield url


def differences(url: str) -> list[Any]:
    engine = sqlalchemy.create_engine(driver_url(url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, metadata)
    engine.dispose()
    return found


def schema(url: str) -> set[str]:
    """The statements of ``pg_dump``, columns of a table in alphabetical order."""
    program = Path(postgres_package().__file__).parent / "pginstall18/bin/pg_dump"
    command = [str(program), "--schema-only", "--no-owner", "--no-comments", "-d", url]
    dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in dump.splitlines() if line and not line.startswith(("--", "\\"))]
    statements = re.split(r";\n(?=[A-Z])", "\n".join(lines))
    return {_with_sorted_columns(each) for each in statements}


def _with_sorted_columns(statement: str) -> str:
    if not statement.startswith("CREATE TABLE"):
        return statement
    head, *columns = [line.strip().rstrip(",") for line in statement.splitlines()]
    return "\n".join([head, *sorted(columns)])


def test_a_new_database_has_the_tables_of_the_code(database_url: str) -> None:
    assert differences(database_url) == []


def test_a_database_of_version_0_3_0_gets_the_schema_of_a_new_one(
    of_version_0_3_0: str, database_url: str
) -> None:
    before = schema(of_version_0_3_0)
    migrate(of_version_0_3_0)
    assert schema(of_version_0_3_0) ^ schema(database_url) == set()
    assert schema(of_version_0_3_0) != before
    assert differences(of_version_0_3_0) == []
    migrate(of_version_0_3_0)  # again, as another process of the same start does


def test_a_database_of_0031_gets_what_that_lacked_at_first(
    of_version_0_3_0: str, database_url: str
) -> None:
    migrate(of_version_0_3_0)
    with psycopg.connect(of_version_0_3_0) as connection:
        connection.execute("DROP TRIGGER stage_fits_charge ON stages")
        connection.execute("ALTER TABLE stages DROP COLUMN waived_cents")
        connection.execute("UPDATE alembic_version SET version_num = '0031'")
    migrate(of_version_0_3_0)
    assert schema(of_version_0_3_0) ^ schema(database_url) == set()


def test_a_table_that_is_declared_is_made_without_a_migration(database_url: str) -> None:
    before = schema(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("DROP TABLE comments")
    assert schema(database_url) != before
    migrate(database_url)
    assert schema(database_url) ^ before == set()


def test_what_version_0_3_0_answered_is_answered_the_same(
    of_version_0_3_0: str, tmp_path: Path
) -> None:
    former = stored()
    restore_objects(tmp_path)
    with psycopg.connect(of_version_0_3_0) as connection:
        connection.execute("UPDATE sessions SET expires_at = now() + interval '1 day'")
        connection.execute("UPDATE jobs SET upload_expires_at = now() + interval '1 day'")
    settings = Settings(data_dir=tmp_path, database_url=of_version_0_3_0, secret_key=SECRET)
    with prepared(settings) as complete, RunningApi(complete) as api:
        different = {}
        for path, answer in former["answers"].items():
            key = former["session"] if answer["session"] else {"X-API-Key": former["key"]}
            now = api.client.get(path, headers=key)
            if path.endswith("format=youtube") and answer["body"].count("\n") < YOUTUBE_FEWEST:
                assert (now.status_code, now.json()["param"]) == (400, "format")
                continue
            texts = [_comparable(text) for text in (answer["body"], now.text)]
            if now.status_code != answer["status"] or not _holds(*texts):
                different[path] = texts
        assert different == {}
        assert len(former["answers"]) > 50


def test_results_of_versions_before_0_3_0_are_rewritten(of_version_0_3_0: str) -> None:
    query = (
        "SELECT t.job_id, document, scenes, overview, sentences FROM transcripts t"
        " JOIN scene_lists USING (job_id) JOIN summaries USING (job_id)"
        " WHERE track_index = 0 AND document IS NOT NULL ORDER BY 1"
    )
    with psycopg.connect(of_version_0_3_0, autocommit=True) as connection:
        [job_id, *former] = connection.execute(query).fetchone() or ()
        document, scenes, overview, sentences = (json.dumps(_shown(each)) for each in former)
        keys = "speakers", "segments"
        document = json.dumps({name: json.loads(document)[name] for name in keys})
        place = {"job": job_id}
        for table, column, value in (
            ("transcripts", "document", document),
            ("scene_lists", "scenes", scenes),
            ("scene_lists", "overview", overview),
            ("summaries", "sentences", sentences),
        ):
            written = psycopg.sql.SQL("UPDATE {} SET {} = %(value)s WHERE job_id = %(job)s").format(
                psycopg.sql.Identifier(table), psycopg.sql.Identifier(column)
            )
            connection.execute(written, place | {"value": value})
        migrate(of_version_0_3_0)
        [_, rewritten, *others] = connection.execute(query).fetchone() or ()
    assert others == former[1:]
    assert rewritten["language"] is None
    assert {name: rewritten[name] for name in keys} == {name: former[0][name] for name in keys}


def test_work_that_version_0_3_0_has_queued_is_done_by_this_one(of_version_0_3_0: str) -> None:
    """What is under way there, leased or not, is queued here, and once."""
    with psycopg.connect(of_version_0_3_0, autocommit=True) as connection:
        rows = "SELECT id, account_id FROM jobs WHERE state = 'completed' AND erased_at IS NULL"
        [(job, account), *_] = connection.execute(f"{rows} ORDER BY id").fetchall()
        for statement in (
            "DELETE FROM translations",
            "DELETE FROM previews",
            "UPDATE archives SET state = 'paused'",
            "UPDATE jobs SET compare_after = NULL, redact_after = NULL",
            "UPDATE transcripts SET align_after = NULL",
            "INSERT INTO previews (job_id, source_key) VALUES (%(job)s, 'k')",
            "INSERT INTO translations (job_id, language, price_cents, source, lease_token,"
            " lease_expires_at) VALUES (%(job)s, 'en', 0, '', gen_random_uuid(), now())",
            "INSERT INTO translations (job_id, language, price_cents, source, status, documents,"
            " completed_at) VALUES (%(job)s, 'fr', 0, '', 'completed', '{}', now())",
            "UPDATE jobs SET compare_after = now(), redact_after = now() + interval '1 min'"
            " WHERE id = %(job)s",
            "INSERT INTO transcripts (job_id, track_index, track_name, status, error_code,"
            " align_after) VALUES (%(job)s, 7, 'Mic', 'failed', 'X', now())",
            "INSERT INTO archives (id, account_id, url, patterns, max_active_jobs, options,"
            " base_url) VALUES (%(job)s, %(account)s, 's3://bucket', '{}', 1, '{}', '')",
        ):
            connection.execute(statement, {"job": job, "account": account})
        migrate(of_version_0_3_0)
        queued = "SELECT kind, part, subject_id = %s, account_id = %s, attempts, token FROM work"
        expected = {
            (kind, part, True, True, 0, None)
            for kind, part in (
                ("alignment", "7"),
                ("archive", ""),
                ("duplicates", ""),
                ("preview", ""),
                ("redaction", ""),
                ("translation", "en"),
            )
        }
        for _ in range(2):
            assert {*connection.execute(queued, (job, account)).fetchall()} == expected
            connection.execute("SELECT adopt_work()")


def _shown(stored: Any) -> Any:
    """A stored result in the form of the API, as versions before 0.3.0 stored it."""
    if isinstance(stored, list):
        return [_shown(each) for each in stored]
    if not isinstance(stored, dict):
        return stored
    names = {"start_ms": "startTime", "end_ms": "endTime"}
    return {
        names.get(name) or re.sub(r"_([a-z])", lambda found: found[1].upper(), name): (
            value / 1000 if name in names else _shown(value)
        )
        for name, value in stored.items()
    }


def _comparable(text: str) -> Any:
    """An answer without what is of its request, its address or its time."""
    text = re.sub(r"https?://127\.0\.0\.1:\d+", "", text)
    text = re.sub(r"\?expires=\d+&signature=[0-9a-f]+", "", text)
    text = re.sub(r'"requestId": ?"req_[0-9a-f]+"', "", text)
    try:
        return json.loads(re.sub(r",\s*([}\]])", r"\1", text))
    except ValueError:
        return text


def _holds(before: Any, now: Any) -> bool:
    """Whether all of ``before`` is in ``now``, which may have fields that were added since."""
    match before, now:
        case dict(), dict():
            return all(name in now and _holds(each, now[name]) for name, each in before.items())
        case list(), list():
            return len(before) == len(now) and all(map(_holds, before, now))
        case _:
            return bool(before == now)


def test_processes_that_migrate_an_empty_database_at_once_all_succeed(postgres_url: str) -> None:
    with fresh_database(postgres_url, migrated=False) as url:
        program = f"from storage.database import migrate; migrate({url!r})"
        running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
        assert [process.wait(timeout=170) for process in running] == [0, 0, 0]


@every("url", ["mysql://x/y", "sqlite://"])
def test_only_postgresql_is_spoken(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql"):
        driver_url(url)


async def test_a_start_reads_the_marks_of_the_oldest_and_the_newest_schema(
    of_version_0_3_0: str, database_url: str, postgres_url: str
) -> None:
    with fresh_database(postgres_url, migrated=False) as url:
        assert await marks(url) == (None, None)
    revision, encrypted = await marks(of_version_0_3_0)
    assert revision == "0030"
    assert encrypted is not None
    assert await marks(database_url) == (newest_revision(), None)


def test_data_of_a_version_before_0_3_0_are_refused_in_a_sentence(
    of_version_0_3_0: str, tmp_path: Path
) -> None:
    with psycopg.connect(of_version_0_3_0) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0012'")
    settings = Settings(data_dir=tmp_path, database_url=of_version_0_3_0, secret_key=SECRET)
    with pytest.raises(OtherDataError) as refused, prepared(settings):
        """Never reached."""
    sentence = str(user_sentence(refused.value))
    assert sentence.startswith("These data are of a version before 0.3.0 (schema 0012): start ")
