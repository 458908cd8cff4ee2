"""Who has queued much background work delays nobody else's by more than one piece of it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from storage import duplicates, previews, redactions, revisions, translations
from storage.database import Database
from tests.storage.old_statements import create_account, play_every_state

LEASE = timedelta(minutes=5)
QUEUED = 4
"""By the first account, before the second queues one."""

Queue = dict[str, tuple[str, Callable[..., Awaitable[Any]]]]

KINDS: Queue = {
    "translations": (
        "INSERT INTO translations (job_id, language, price_cents, source) VALUES (%s, 'en', 0, '')",
        translations.lease_next_translation,
    ),
    "previews": (
        "INSERT INTO previews (job_id, source_key) VALUES (%s, 'k')",
        previews.lease_next_preview,
    ),
    "redactions": (
        "UPDATE jobs SET redact_after = clock_timestamp() WHERE id = %s",
        redactions.lease_redaction,
    ),
    "duplicates": (
        "UPDATE jobs SET compare_after = clock_timestamp() WHERE id = %s",
        duplicates.lease_comparison,
    ),
    "alignment": (
        "UPDATE transcripts SET align_after = clock_timestamp() WHERE job_id = %s",
        revisions.lease_unaligned,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_accounts_take_turns_with_background_work(database_url: str, kind: str) -> None:
    queue, lease = KINDS[kind]
    owners: dict[uuid.UUID, str] = {}
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name, count in (("first", QUEUED), ("second", 1)):
            account = create_account(connection)
            for _ in range(count):
                job = play_every_state(connection, account)["completed"]
                connection.execute(queue, [job])
                owners[job] = name
    database = Database(database_url)
    try:
        served = [owners[(await lease(database, lease=LEASE)).job_id] for _ in owners]
        assert await lease(database, lease=LEASE) is None
    finally:
        await database.close()
    assert served == ["first", "second", *["first"] * (QUEUED - 1)]
