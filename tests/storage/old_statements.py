"""What the first version says to its database, as SQL: every state of a job, money and events.

Written down once and not derived from the code, which has moved on. Later versions' schemas must
go on taking it, for processes of the version before are at work while a migration runs.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

CREDITS_CENTS = 100_000
MINIMUM_CENTS, VISION_CENTS, TRANSCRIPT_CENTS = 2, 4, 1
CALLBACK = "https://customer.example.com/hook"


def create_account(connection: Connection) -> uuid.UUID:
    """With a key, a session, a signing secret, a remembered answer and credits."""
    account = uuid.uuid4()
    values = {"id": account, "text": account.hex, "bytes": account.bytes}
    for statement in (
        "INSERT INTO accounts (id, name) VALUES (%(id)s, %(text)s)",
        "INSERT INTO api_keys (id, account_id, secret_sha256, last_four, status)"
        " VALUES (%(id)s, %(id)s, %(bytes)s, 'abcd', 'active')",
        "INSERT INTO sessions (token_sha256, account_id, expires_at)"
        " VALUES (%(bytes)s, %(id)s, now() + interval '1 hour')",
        "INSERT INTO sign_in_links (token_sha256, account_id, expires_at)"
        " VALUES (%(bytes)s, %(id)s, now() + interval '1 hour')",
        "INSERT INTO signing_secrets (account_id, current) VALUES (%(id)s, %(bytes)s)",
        "INSERT INTO idempotency_records"
        " (account_id, operation, key, body_sha256, status, headers, body)"
        " VALUES (%(id)s, 'createJob', 'k', %(bytes)s, 201, '{}', %(bytes)s)",
        "INSERT INTO rate_limits (bucket, minute, used) VALUES (%(text)s, 1, 1)",
    ):
        connection.execute(statement, values)
    _enter(connection, account, "grant", CREDITS_CENTS, 0, reason="credits")
    return account


def play_every_state(connection: Connection, account: uuid.UUID) -> dict[str, uuid.UUID]:
    """A job of the account in each state, by state, brought there as runners and clients do."""
    jobs = {
        state: _create(connection, account, state in {"awaiting_upload", "expired"})
        for state in (
            "awaiting_upload",
            "queued",
            "processing",
            "completed",
            "failed",
            "cancelled",
            "expired",
        )
    }
    for state in ("processing", "completed", "failed"):
        _lease(connection, jobs[state])
    for state in ("completed", "failed"):
        _ingest(connection, account, jobs[state])
    _publish(connection, account, jobs["completed"], "vision", VISION_CENTS)
    _publish(connection, account, jobs["completed"], "transcript", TRANSCRIPT_CENTS)
    _publish(connection, account, jobs["failed"], "vision", VISION_CENTS)
    _fail(connection, jobs["failed"], "transcript")
    _end(connection, account, jobs["completed"], "completed")
    _end(connection, account, jobs["failed"], "failed")
    _end(connection, account, jobs["cancelled"], "cancelled")
    _end(connection, account, jobs["expired"], "expired")
    return jobs


def _create(connection: Connection, account: uuid.UUID, by_upload: bool) -> uuid.UUID:
    job = uuid.uuid4()
    state = "awaiting_upload" if by_upload else "queued"
    with connection.transaction():
        connection.execute(
            "INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name,"
            " callback_url, metadata, source, upload_expires_at) VALUES (%s, %s, %s, 'all',"
            ' \'standard\', \'clip.mp4\', %s, \'{"a": 1}\', \'{"kind": "url", "base_url": "http://x",'
            ' "clips": [{"url": "http://y/z.mp4"}], "audio": [], "keyterms": []}\','
            " now() + interval '1 hour')",
            [job, account, state, CALLBACK],
        )
        for stage in ("ingest", "vision", "transcript"):
            connection.execute(
                "INSERT INTO stages (job_id, stage, status) VALUES (%s, %s, 'pending')",
                [job, stage],
            )
        if by_upload:
            connection.execute(
                "INSERT INTO uploads (job_id, slot, file_name, object_key, declared_bytes)"
                " VALUES (%s, 'media', 'clip.mp4', 'jobs/x/source/media', 100)",
                [job],
            )
        _enter(connection, account, "hold", 0, MINIMUM_CENTS, job=job, reason="minimum")
    return job


def _lease(connection: Connection, job: uuid.UUID) -> None:
    connection.execute(
        "UPDATE jobs SET state = 'processing', lease_token = %s, lease_count = lease_count + 1,"
        " lease_expires_at = now() + interval '1 second', started_at = now() WHERE id = %s",
        [uuid.uuid4(), job],
    )
    connection.execute(
        "UPDATE stages SET status = 'running', started_at = now()"
        " WHERE job_id = %s AND stage = 'ingest'",
        [job],
    )


def _ingest(connection: Connection, account: uuid.UUID, job: uuid.UUID) -> None:
    with connection.transaction():
        connection.execute(
            "UPDATE jobs SET duration_ms = 95200, billable_seconds = 96, quoted_at = now(),"
            " quote_cents = '{\"vision\": 4, \"transcript\": 1}', ingest_result = '{}',"
            " audio_track_names = '[]' WHERE id = %s",
            [job],
        )
        rest = VISION_CENTS + TRANSCRIPT_CENTS - MINIMUM_CENTS
        _enter(connection, account, "hold", 0, rest, job=job, reason="price")
        _set_stage(connection, job, "ingest", "completed")


def _publish(
    connection: Connection, account: uuid.UUID, job: uuid.UUID, stage: str, cents: int
) -> None:
    with connection.transaction():
        if stage == "vision":
            connection.execute(
                "INSERT INTO scene_lists (job_id, scenes, scene_count) VALUES (%s, '[]', 0)", [job]
            )
        else:
            connection.execute(
                "INSERT INTO transcripts (job_id, track_index, track_name, status, language,"
                " document) VALUES (%s, 0, 'sound', 'completed', 'en',"
                ' \'{"speakers": [], "text": "", "segments": []}\')',
                [job],
            )
        _enter(connection, account, "charge", -cents, -cents, job=job, stage=stage)
        _set_stage(connection, job, stage, "completed")


def _fail(connection: Connection, job: uuid.UUID, stage: str) -> None:
    connection.execute(
        "UPDATE stages SET status = 'failed', error_code = 'TRANSCRIPT_FAILED',"
        " error_message = 'It broke.', ended_at = now() WHERE job_id = %s AND stage = %s",
        [job, stage],
    )


def _set_stage(connection: Connection, job: uuid.UUID, stage: str, status: str) -> None:
    connection.execute(
        "UPDATE stages SET status = %s, progress = 1, ended_at = now()"
        " WHERE job_id = %s AND stage = %s",
        [status, job, stage],
    )


def _end(connection: Connection, account: uuid.UUID, job: uuid.UUID, state: str) -> None:
    code = "TRANSCRIPT_FAILED" if state == "failed" else None
    with connection.transaction():
        connection.execute(
            "UPDATE stages SET status = 'skipped', skip_reason = 'job_cancelled', ended_at = now()"
            " WHERE job_id = %s AND status IN ('pending', 'running')",
            [job],
        )
        found = connection.execute("SELECT held_cents FROM jobs WHERE id = %s", [job]).fetchone()
        if found is not None and found[0] > 0:
            _enter(connection, account, "release", 0, -found[0], job=job)
        connection.execute(
            "UPDATE jobs SET state = %s, completed_at = now(), lease_token = NULL,"
            " lease_expires_at = NULL, error_code = %s WHERE id = %s",
            [state, code, job],
        )
        if state != "expired":
            connection.execute(
                "INSERT INTO webhook_events (id, account_id, job_id, event_type, url, body)"
                " VALUES (%s, %s, %s, %s, %s, 'body')",
                [f"{job}:job.{state}", account, job, f"job.{state}", CALLBACK],
            )


def _enter(
    connection: Connection,
    account: uuid.UUID,
    kind: str,
    balance_cents: int,
    hold_cents: int,
    *,
    job: uuid.UUID | None = None,
    stage: str | None = None,
    reason: str = "played",
) -> None:
    connection.execute(
        "INSERT INTO ledger_entries (account_id, kind, balance_delta_cents, hold_delta_cents,"
        " job_id, stage, reason) VALUES (%s, %s, %s, %s, %s, %s, %s)",
        [account, kind, balance_cents, hold_cents, job, stage, reason],
    )


FILE = Path(__file__).with_name("version_0_3_0.json.gz")


@functools.cache
def stored() -> dict[str, Any]:
    """SQL of ``pg_dump`` by section, objects in base64, answers by path with their credentials."""
    found: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found


def restore(url: str, *, with_rows: bool = True) -> None:
    """Fill an empty database; without rows it has the schema and its mark only."""
    mark = "INSERT INTO public.alembic_version VALUES ('0030')"
    parts = ("pre-data", "data", "post-data") if with_rows else ("pre-data", "post-data")
    with psycopg.connect(url, autocommit=True) as connection:
        for part in parts:
            connection.execute(stored()[part].encode())
    if not with_rows:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(mark)


def restore_objects(folder: Path) -> None:
    """Write the media that its jobs have into a data folder."""
    for key, content in stored()["objects"].items():
        path = folder / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
