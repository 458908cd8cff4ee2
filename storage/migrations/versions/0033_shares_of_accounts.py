"""An account has one share of the queue, whatever priorities it uses.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# As in 0018, but for the tag before a job's own.
TAG = """
CREATE OR REPLACE FUNCTION tag_queued_job() RETURNS trigger LANGUAGE plpgsql AS $$
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
        {last_tag} + step);
    RETURN NEW;
END $$;
"""
OF_ITS_PRIORITY = """(SELECT max(finish_tag) FROM jobs
          WHERE account_id = NEW.account_id AND parked = NEW.parked AND priority = NEW.priority
            AND completed_at IS NULL AND finish_tag IS NOT NULL)"""
# An entry of the index each.
OF_ITS_PRIORITY_AND_ABOVE = """(SELECT max(last_tag) FROM unnest(ARRAY['low', 'normal', 'high']) AS above,
          LATERAL (SELECT max(finish_tag) AS last_tag FROM jobs
                    WHERE account_id = NEW.account_id AND parked = NEW.parked AND priority = above
                      AND completed_at IS NULL AND finish_tag IS NOT NULL) AS own
          WHERE above = NEW.priority OR above = 'high' OR NEW.priority = 'low')"""
# An AFTER trigger: what its own statement is still to change may be among them. Those that are
# locked are just being leased or cancelled.
POSTPONE = """
CREATE FUNCTION postpone_lower_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR OLD.finish_tag IS DISTINCT FROM NEW.finish_tag THEN
        UPDATE jobs SET finish_tag = finish_tag + round(1000000 / NEW.queue_weight)
         WHERE id IN (
            SELECT id FROM jobs WHERE account_id = NEW.account_id AND parked = NEW.parked
               AND (priority = 'low' OR priority = 'normal' AND NEW.priority = 'high')
               AND state = 'queued' AND completed_at IS NULL AND finish_tag IS NOT NULL
               FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER postpone_lower_jobs AFTER INSERT OR UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state = 'queued' AND NEW.priority <> 'low')
    EXECUTE FUNCTION postpone_lower_jobs();
"""


def upgrade() -> None:
    op.execute(TAG.format(last_tag=OF_ITS_PRIORITY_AND_ABOVE))
    op.execute(POSTPONE)


def downgrade() -> None:
    op.execute("DROP FUNCTION postpone_lower_jobs CASCADE")
    op.execute(TAG.format(last_tag=OF_ITS_PRIORITY))
