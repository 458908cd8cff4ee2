"""One queue of work beside the jobs, comparisons in the background, sizes of revisions, sign-ins
that ask, phrases that are hidden, what is not charged of a price.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

from storage.database import schema_functions

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


# Results that versions before 0.3.0 stored: in the form of the API, with times in seconds.
_RESULTS = {"scene_lists": ("scenes", "overview"), "summaries": ("sentences",)}
_TIMES = {"startTime": "start_ms", "endTime": "end_ms", "start": "start_ms", "end": "end_ms"}


def _of_today(older: Any) -> Any:
    if isinstance(older, list):
        return [_of_today(each) for each in older]
    if not isinstance(older, dict):
        return older
    return {
        _TIMES.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): (
            round(value * 1000) if name in _TIMES else _of_today(value)
        )
        for name, value in older.items()
    }


def _rewrite_older_results() -> None:
    database = op.get_bind()
    for table, columns in _RESULTS.items():
        for column in columns:
            older = f"SELECT job_id FROM {table} WHERE {column}::text LIKE '%\"startTime\":%'"  # noqa: S608
            for (job_id,) in database.execute(sa.text(older)).all():
                key = {"job": job_id}
                read = sa.text(f"SELECT {column} FROM {table} WHERE job_id = :job")  # noqa: S608
                found = json.dumps(_of_today(database.execute(read, key).scalar_one()))
                written = f"UPDATE {table} SET {column} = :found WHERE job_id = :job"  # noqa: S608
                database.execute(sa.text(written), key | {"found": found})
    older = (
        "SELECT job_id, track_index FROM transcripts WHERE document IS NOT NULL AND"
        " (document -> 'language' IS NULL OR document::text LIKE '%\"startTime\":%')"
    )
    for job_id, track in database.execute(sa.text(older)).all():
        place = {"job": job_id, "track": track}
        where = "WHERE job_id = :job AND track_index = :track"
        read = sa.text(f"SELECT document FROM transcripts {where}")  # noqa: S608
        document = database.execute(read, place).scalar_one()
        of_today = {name: _of_today(document[name]) for name in ("speakers", "segments")}
        statement = sa.text(f"UPDATE transcripts SET document = :found {where}")  # noqa: S608
        database.execute(statement, place | {"found": json.dumps({"language": None, **of_today})})


def upgrade() -> None:
    size = sa.Column("size_bytes", sa.Integer, nullable=False, server_default=sa.text("0"))
    op.add_column("transcript_revisions", size)
    op.execute("UPDATE transcript_revisions SET size_bytes = octet_length(before::text)")
    sizes = "ix_transcript_revisions_sizes", "transcript_revisions"
    op.create_index(*sizes, ["job_id"], postgresql_include=["size_bytes"])
    for column in ("user_id", "invitation_id"):
        op.add_column("oidc_flows", sa.Column(column, sa.Uuid()))
    op.add_column("oidc_flows", sa.Column("subject", sa.Text()))
    waived = sa.Column("waived_cents", sa.BigInteger, nullable=False, server_default=sa.text("0"))
    op.add_column("stages", waived)
    op.create_check_constraint("waived_not_negative", "stages", "waived_cents >= 0")
    # Foreign keys were named after the table that they refer to as well, some of them.
    op.execute(
        """
        DO $$ DECLARE each record; BEGIN
            FOR each IN
                SELECT conrelid::regclass AS held_by, conname,
                       left(conname, -1 - length(confrelid::regclass::text)) AS shorter
                  FROM pg_constraint
                 WHERE contype = 'f' AND connamespace = current_schema()::regnamespace
                   AND conname LIKE 'fk\\_%\\_' || confrelid::regclass::text
            LOOP
                EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I',
                               each.held_by, each.conname, each.shorter);
            END LOOP;
        END $$
        """
    )
    op.execute(schema_functions())
    op.execute("SELECT adopt_work()")
    _rewrite_older_results()


def downgrade() -> None:
    """Leave the additions, which version 0.3.0 does not look at, and the functions."""
