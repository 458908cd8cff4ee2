"""The sender's leases

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


ENDPOINT = "account_id::text || ' ' || lower(coalesce(substring(url from '^[^:]+://[^/?#]*'), url))"
OPEN = "status IN ('in_flight', 'pending_retry')"


# One call, one transaction, all of it in the server: a sender that is frozen in the middle
# keeps no lock that the others wait for. A function and not a plain statement, because
# what is counted must be read after the lock is held.
LEASE_FUNCTION = """
CREATE FUNCTION lease_webhook_events(
    ahead interval, lease interval, overlap interval, per_endpoint int, per_account int,
    most int, most_strained int, strained_endpoints text[]
) RETURNS TABLE (
    id text, token uuid, account_id uuid, endpoint text, url text, body bytea,
    attempts smallint, current_secret bytea, previous_secret bytea
) LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    -- One sender leases at a time ("vas_webs"), so that limits hold across all of them.
    PERFORM pg_advisory_xact_lock(8530226023078650483);
    -- A lease that a crash of the server undoes is an event that is due: nothing to wait for.
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    WITH RECURSIVE
    -- The endpoints with open events, each found by one step in the index: a backlog
    -- of a million events for one of them costs no more than one event.
    endpoints AS (
        (SELECT endpoint, account_id FROM webhook_events
          WHERE status IN ('in_flight', 'pending_retry') ORDER BY endpoint LIMIT 1)
        UNION ALL
        SELECT following.* FROM endpoints, LATERAL (
            SELECT event.endpoint, event.account_id FROM webhook_events AS event
             WHERE status IN ('in_flight', 'pending_retry') AND event.endpoint > endpoints.endpoint
             ORDER BY event.endpoint LIMIT 1) AS following
    ),
    flying AS (
        SELECT endpoint, account_id, count(*) AS events FROM webhook_events
         WHERE lease_token IS NOT NULL AND next_attempt_at > now() + ahead
         GROUP BY endpoint, account_id
    ),
    flying_of_account AS (
        SELECT account_id, sum(events) AS events FROM flying GROUP BY account_id
    ),
    -- Of each endpoint what its limit leaves, numbered behind what is under way already.
    turns AS (
        SELECT due.*, endpoints.account_id,
               endpoints.endpoint = ANY(strained_endpoints) AS strained,
               coalesce(flying.events, 0)
               + row_number() OVER (PARTITION BY endpoints.endpoint
                                    ORDER BY due.next_attempt_at, due.id) AS turn
          FROM endpoints LEFT JOIN flying USING (endpoint)
         CROSS JOIN LATERAL (
            SELECT event.id, event.next_attempt_at FROM webhook_events AS event
             WHERE event.endpoint = endpoints.endpoint AND status IN ('in_flight', 'pending_retry')
               AND event.next_attempt_at <= now() + ahead
             ORDER BY event.next_attempt_at
             LIMIT greatest(per_endpoint - coalesce(flying.events, 0), 0)) AS due
    ),
    shares AS (
        SELECT turns.*,
               coalesce(flying_of_account.events, 0)
               + row_number() OVER (PARTITION BY account_id
                                    ORDER BY turn, next_attempt_at) AS account_turn,
               row_number() OVER (PARTITION BY strained
                                  ORDER BY turn, next_attempt_at) AS strained_turn
          FROM turns LEFT JOIN flying_of_account USING (account_id)
    ),
    -- Round robin: every endpoint's first, then every endpoint's second, …
    chosen AS (
        SELECT id FROM shares
         WHERE account_turn <= per_account
           AND (NOT strained OR strained_turn <= most_strained)
         ORDER BY turn, next_attempt_at LIMIT most
    ),
    taken AS (
        SELECT event.id FROM webhook_events AS event JOIN chosen USING (id)
         WHERE status IN ('in_flight', 'pending_retry') AND event.next_attempt_at <= now() + ahead
           FOR UPDATE OF event SKIP LOCKED
    )
    UPDATE webhook_events AS event
       SET status = 'in_flight', lease_token = gen_random_uuid(),
           next_attempt_at = now() + ahead + lease
      FROM taken
      JOIN webhook_events AS before USING (id)
      LEFT JOIN signing_secrets AS secret ON secret.account_id = before.account_id
     WHERE event.id = taken.id
    RETURNING event.id, event.lease_token AS token, event.account_id, event.endpoint,
              event.url, event.body, event.attempts, secret.current AS current_secret,
              CASE WHEN secret.rotated_at > now() + ahead - overlap
                   THEN secret.previous END AS previous_secret;
END $$
"""


def upgrade() -> None:
    op.add_column("webhook_events", sa.Column("lease_token", sa.Uuid(), nullable=True))
    op.add_column(
        "webhook_events",
        sa.Column(
            "endpoint",
            sa.Text(collation="C"),
            sa.Computed(ENDPOINT, persisted=True),
            nullable=False,
        ),
    )
    # Nothing was ever sent before: what waits has not failed yet.
    op.alter_column("webhook_events", "status", server_default=sa.text("'in_flight'"))
    op.execute("UPDATE webhook_events SET status = 'in_flight' WHERE status = 'pending_retry'")
    op.create_check_constraint(
        op.f("ck_webhook_events_leased_is_in_flight"),
        "webhook_events",
        "lease_token IS NULL OR status = 'in_flight'",
    )
    op.create_check_constraint(
        op.f("ck_webhook_events_open_has_time"),
        "webhook_events",
        f"({OPEN}) = (next_attempt_at IS NOT NULL)",
    )
    op.drop_index("ix_webhook_events_due", table_name="webhook_events")
    op.create_index(
        "ix_webhook_events_due",
        "webhook_events",
        ["endpoint", "next_attempt_at"],
        postgresql_where=sa.text(OPEN),
    )
    op.create_index(
        "ix_webhook_events_leased",
        "webhook_events",
        ["endpoint"],
        postgresql_where=sa.text("lease_token IS NOT NULL"),
    )
    op.execute(LEASE_FUNCTION)


def downgrade() -> None:
    op.execute("DROP FUNCTION lease_webhook_events")
    op.drop_index("ix_webhook_events_leased", table_name="webhook_events")
    op.drop_index("ix_webhook_events_due", table_name="webhook_events")
    op.create_index(
        "ix_webhook_events_due",
        "webhook_events",
        ["next_attempt_at"],
        postgresql_where=sa.text(OPEN),
    )
    op.drop_constraint(op.f("ck_webhook_events_open_has_time"), "webhook_events", type_="check")
    op.drop_constraint(
        op.f("ck_webhook_events_leased_is_in_flight"), "webhook_events", type_="check"
    )
    op.alter_column("webhook_events", "status", server_default=sa.text("'pending_retry'"))
    op.drop_column("webhook_events", "endpoint")
    op.drop_column("webhook_events", "lease_token")
