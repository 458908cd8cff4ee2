"""A fair queue: each job is tagged with its turn when it is queued.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Self-clocked fair queueing (Golestani, INFOCOM 1994): the virtual clock is the finish tag of the
# job leased last; a job's own is a step of 1,000,000 / weight after the clock, or after the one
# before it of the same account and priority. The 1 less lets whoever has nothing waiting go before
# the next job of a backlog, with which it would share the tag.
FUNCTIONS = """
CREATE SEQUENCE virtual_clock MINVALUE 0 START 0;

CREATE FUNCTION tag_queued_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    step bigint := round(1000000 / NEW.queue_weight);
BEGIN
    NEW.parked := false;
    IF NEW.running_limit IS NOT NULL THEN
        -- Else the end of one and the arrival of the next might not see each other.
        PERFORM pg_advisory_xact_lock(hashtextextended('queue ' || NEW.account_id, 0));
        NEW.parked := NEW.running_limit <= (SELECT count(*) FROM (
            SELECT FROM jobs WHERE account_id = NEW.account_id AND NOT parked
               AND completed_at IS NULL AND finish_tag IS NOT NULL
             LIMIT NEW.running_limit) AS admitted);
    END IF;
    NEW.finish_tag := greatest(
        (SELECT last_value FROM virtual_clock) + step - 1,
        (SELECT max(finish_tag) FROM jobs
          WHERE account_id = NEW.account_id AND parked = NEW.parked AND priority = NEW.priority
            AND completed_at IS NULL AND finish_tag IS NOT NULL) + step);
    RETURN NEW;
END $$;
CREATE TRIGGER tag_queued_job BEFORE INSERT OR UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state = 'queued' AND (NEW.finish_tag IS NULL OR NEW.parked))
    EXECUTE FUNCTION tag_queued_job();

CREATE FUNCTION admit_parked_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('queue ' || NEW.account_id, 0));
    UPDATE jobs SET state = 'queued' WHERE id = (
        SELECT id FROM jobs WHERE account_id = NEW.account_id AND state = 'queued' AND parked
         ORDER BY finish_tag, created_at LIMIT 1 FOR UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pg_notify('vas_jobs_queued', '');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER admit_parked_job AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.completed_at IS NOT NULL AND OLD.completed_at IS NULL
          AND OLD.finish_tag IS NOT NULL AND NEW.running_limit IS NOT NULL)
    EXECUTE FUNCTION admit_parked_job();
"""


def upgrade() -> None:
    none, one = sa.text("false"), sa.text("1")
    op.add_column(
        "accounts", sa.Column("queue_weight", sa.Float(), server_default=one, nullable=False)
    )
    op.add_column("accounts", sa.Column("max_running_jobs", sa.Integer()))
    op.add_column("accounts", sa.Column("highest_priority", sa.Text()))
    normal = sa.Column("priority", sa.Text(), server_default=sa.text("'normal'"), nullable=False)
    op.add_column("jobs", normal)
    op.add_column("jobs", sa.Column("queue_weight", sa.Float(), server_default=one, nullable=False))
    op.add_column("jobs", sa.Column("running_limit", sa.Integer()))
    op.add_column("jobs", sa.Column("parked", sa.Boolean(), server_default=none, nullable=False))
    op.add_column("jobs", sa.Column("finish_tag", sa.BigInteger()))
    for table, name, condition in (
        ("accounts", "queue_weight_positive", "queue_weight > 0"),
        ("accounts", "max_running_jobs_positive", "max_running_jobs > 0"),
        ("accounts", "highest_priority", "highest_priority IN ('low', 'normal', 'high')"),
        ("jobs", "priority", "priority IN ('low', 'normal', 'high')"),
        ("jobs", "queue_weight_positive", "queue_weight > 0"),
        ("jobs", "running_limit_positive", "running_limit > 0"),
    ):
        op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, condition)
    op.execute(
        "UPDATE jobs SET finish_tag = turns.turn * 1000000 FROM ("
        "SELECT id, row_number() OVER (PARTITION BY account_id ORDER BY created_at) AS turn"
        " FROM jobs WHERE state IN ('queued', 'processing')) AS turns WHERE jobs.id = turns.id"
    )
    op.create_index(
        "ix_jobs_turns",
        "jobs",
        ["finish_tag", "created_at"],
        postgresql_where=sa.text("state = 'queued' AND NOT parked"),
    )
    op.create_index(
        "ix_jobs_tagged",
        "jobs",
        ["account_id", "parked", "priority", "finish_tag"],
        postgresql_where=sa.text("completed_at IS NULL AND finish_tag IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_parked",
        "jobs",
        ["account_id", "finish_tag", "created_at"],
        postgresql_where=sa.text("state = 'queued' AND parked"),
    )
    op.execute(FUNCTIONS)


def downgrade() -> None:
    op.execute("DROP FUNCTION tag_queued_job, admit_parked_job CASCADE")
    op.execute("DROP SEQUENCE virtual_clock")
    for name in ("parked", "tagged", "turns"):
        op.drop_index(f"ix_jobs_{name}", "jobs")
    for name in ("finish_tag", "parked", "running_limit", "queue_weight", "priority"):
        op.drop_column("jobs", name)
    for name in ("highest_priority", "max_running_jobs", "queue_weight"):
        op.drop_column("accounts", name)
