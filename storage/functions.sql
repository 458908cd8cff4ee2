-- The functions, triggers and sequence of the schema; storage/tables.py has its tables and indexes.
-- A new database gets all of this as it is, and a migrated one gets it again: so each statement
-- replaces what an earlier version has.

-- Money.
-- The running totals move with the entry, in one statement.
CREATE OR REPLACE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The running totals move with the entry, in one statement, and the CHECKs on
    -- accounts, jobs and refunds refuse an entry that would overdraw any of them.
    UPDATE accounts
       SET balance_cents = balance_cents + NEW.balance_delta_cents,
           held_cents = held_cents + NEW.hold_delta_cents
     WHERE id = NEW.account_id;
    IF NEW.job_id IS NOT NULL THEN
        UPDATE jobs
           SET held_cents = held_cents + NEW.hold_delta_cents,
               charged_cents = charged_cents - NEW.balance_delta_cents
         WHERE id = NEW.job_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s job';
        END IF;
    END IF;
    IF NEW.refund_id IS NOT NULL THEN
        UPDATE refunds
           SET taken_cents = taken_cents - NEW.balance_delta_cents
         WHERE id = NEW.refund_id AND account_id = NEW.account_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'ledger entry of another account''s refund';
        END IF;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER ledger_apply AFTER INSERT ON ledger_entries
    FOR EACH ROW EXECUTE FUNCTION ledger_apply();

-- What was charged once can be adjusted by another entry, never changed.
CREATE OR REPLACE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ledger_entries is append-only';
END $$;
CREATE OR REPLACE TRIGGER ledger_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();

-- A total that anything but a ledger entry could change would be no total.
CREATE OR REPLACE FUNCTION totals_follow_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'running totals of % follow ledger_entries only', TG_TABLE_NAME
        USING ERRCODE = 'check_violation';
END $$;
CREATE OR REPLACE TRIGGER totals_follow_ledger BEFORE UPDATE ON accounts FOR EACH ROW
    WHEN (pg_trigger_depth() = 0
          AND (NEW.balance_cents <> OLD.balance_cents OR NEW.held_cents <> OLD.held_cents))
    EXECUTE FUNCTION totals_follow_ledger();
CREATE OR REPLACE TRIGGER totals_start_at_zero BEFORE INSERT ON accounts FOR EACH ROW
    WHEN (NEW.balance_cents <> 0 OR NEW.held_cents <> 0) EXECUTE FUNCTION totals_follow_ledger();
CREATE OR REPLACE TRIGGER totals_follow_ledger BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (pg_trigger_depth() = 0
          AND (NEW.charged_cents <> OLD.charged_cents OR NEW.held_cents <> OLD.held_cents))
    EXECUTE FUNCTION totals_follow_ledger();
CREATE OR REPLACE TRIGGER totals_start_at_zero BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.charged_cents <> 0 OR NEW.held_cents <> 0) EXECUTE FUNCTION totals_follow_ledger();
CREATE OR REPLACE TRIGGER totals_follow_ledger BEFORE UPDATE ON refunds FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND NEW.taken_cents <> OLD.taken_cents)
    EXECUTE FUNCTION totals_follow_ledger();
CREATE OR REPLACE TRIGGER totals_start_at_zero BEFORE INSERT ON refunds FOR EACH ROW
    WHEN (NEW.taken_cents <> 0) EXECUTE FUNCTION totals_follow_ledger();

-- Completed stages are charged their price less what is waived, all others nothing: looked at when
-- the transaction commits, because result, charge and status are written one after the other. The
-- share lock makes a rival change of the same stage wait for our commit.
CREATE OR REPLACE FUNCTION stages_are_charged() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    of_job uuid := CASE WHEN TG_OP = 'DELETE' THEN OLD.job_id ELSE NEW.job_id END;
    of_stage text := CASE WHEN TG_OP = 'DELETE' THEN OLD.stage ELSE NEW.stage END;
    due bigint;
    charged bigint;
BEGIN
    SELECT CASE WHEN s.status = 'completed'
                THEN coalesce((j.quote_cents ->> s.stage)::bigint, 0) - s.waived_cents ELSE 0 END
      INTO due
      FROM stages s JOIN jobs j ON j.id = s.job_id
     WHERE s.job_id = of_job AND s.stage = of_stage
       FOR SHARE OF s;
    SELECT coalesce(-sum(balance_delta_cents), 0)
      INTO charged
      FROM ledger_entries
     WHERE job_id = of_job AND stage = of_stage AND kind = 'charge';
    IF charged <> coalesce(due, 0) THEN
        RAISE EXCEPTION 'stages_are_charged: % of job % is due % and charged %',
            of_stage, of_job, coalesce(due, 0), charged
            USING ERRCODE = 'check_violation', CONSTRAINT = 'stages_are_charged';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS charge_fits_stage ON ledger_entries;
CREATE CONSTRAINT TRIGGER charge_fits_stage AFTER INSERT ON ledger_entries
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.kind = 'charge') EXECUTE FUNCTION stages_are_charged();
DROP TRIGGER IF EXISTS new_stage_fits_charge ON stages;
CREATE CONSTRAINT TRIGGER new_stage_fits_charge AFTER INSERT ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'completed') EXECUTE FUNCTION stages_are_charged();
DROP TRIGGER IF EXISTS stage_fits_charge ON stages;
CREATE CONSTRAINT TRIGGER stage_fits_charge AFTER UPDATE ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ((NEW.status, NEW.waived_cents) <> (OLD.status, OLD.waived_cents)
          AND 'completed' IN (NEW.status, OLD.status))
    EXECUTE FUNCTION stages_are_charged();
DROP TRIGGER IF EXISTS gone_stage_fits_charge ON stages;
CREATE CONSTRAINT TRIGGER gone_stage_fits_charge AFTER DELETE ON stages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status = 'completed') EXECUTE FUNCTION stages_are_charged();

-- The price of a job is what was promised at its ingest.
CREATE OR REPLACE FUNCTION quote_is_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'quote_is_fixed: the price of job % was promised', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'quote_is_fixed';
END $$;
CREATE OR REPLACE TRIGGER quote_is_fixed BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.quote_cents IS NOT NULL AND NEW.quote_cents IS DISTINCT FROM OLD.quote_cents)
    EXECUTE FUNCTION quote_is_fixed();

-- Money that came in is in the ledger when the transaction that took it commits.
CREATE OR REPLACE FUNCTION purchases_are_credited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ledger_entries WHERE purchase_id = NEW.id) THEN
        RAISE EXCEPTION 'purchases_are_credited: purchase % has no ledger entry', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'purchases_are_credited';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS purchases_are_credited ON purchases;
CREATE CONSTRAINT TRIGGER purchases_are_credited AFTER INSERT ON purchases
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION purchases_are_credited();
CREATE OR REPLACE FUNCTION receipts_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'purchases are append-only';
END $$;
CREATE OR REPLACE TRIGGER receipts_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON purchases
    FOR EACH STATEMENT EXECUTE FUNCTION receipts_are_final();

-- The queue.
-- Self-clocked fair queueing (Golestani, INFOCOM 1994): the virtual clock is the finish tag of the
-- job leased last; a job's own is a step of 1,000,000 / weight after the clock, or after the last
-- one of the same account with its priority or a higher one. The 1 less lets whoever has nothing
-- waiting go before the next job of a backlog, with which it would share the tag.
CREATE SEQUENCE IF NOT EXISTS virtual_clock MINVALUE 0 START 0;
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
        (SELECT max(last_tag) FROM unnest(ARRAY['low', 'normal', 'high']) AS above,
          LATERAL (SELECT max(finish_tag) AS last_tag FROM jobs
                    WHERE account_id = NEW.account_id AND parked = NEW.parked AND priority = above
                      AND completed_at IS NULL AND finish_tag IS NOT NULL) AS own
          WHERE above = NEW.priority OR above = 'high' OR NEW.priority = 'low') + step);
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER tag_queued_job BEFORE INSERT OR UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state = 'queued' AND (NEW.finish_tag IS NULL OR NEW.parked))
    EXECUTE FUNCTION tag_queued_job();

-- An account has one share, whatever priorities it uses: what it queues goes before its own jobs of
-- lower priority, which wait a step longer. An AFTER trigger, for what its own statement is still
-- to change may be among them. Those that are locked are just being leased or cancelled.
CREATE OR REPLACE FUNCTION postpone_lower_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE TRIGGER postpone_lower_jobs AFTER INSERT OR UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state = 'queued' AND NEW.priority <> 'low')
    EXECUTE FUNCTION postpone_lower_jobs();

-- A job that waited for its account's limit of running jobs is queued when another one ends.
CREATE OR REPLACE FUNCTION admit_parked_job() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE TRIGGER admit_parked_job AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.completed_at IS NOT NULL AND OLD.completed_at IS NULL
          AND OLD.finish_tag IS NOT NULL AND NEW.running_limit IS NOT NULL)
    EXECUTE FUNCTION admit_parked_job();

-- Streams of a job's events wait for these notifications.
CREATE OR REPLACE FUNCTION notify_job_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('vas_job_changes', CASE TG_TABLE_NAME
        WHEN 'jobs' THEN to_jsonb(NEW) ->> 'id' ELSE to_jsonb(NEW) ->> 'job_id' END);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER job_changes AFTER UPDATE OF state, erased_at ON jobs
    FOR EACH ROW EXECUTE FUNCTION notify_job_change();
CREATE OR REPLACE TRIGGER stage_changes AFTER UPDATE ON stages FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION notify_job_change();

-- The audit log.
-- An entry gets its place as its transaction commits: the lock of its account's chain is the last
-- that the transaction takes, so that nobody waits for one that goes on, and none in a circle.
-- storage.audit.entry_hash makes the same bytes of an entry.
CREATE OR REPLACE FUNCTION audit_log_place(entry bigint, account uuid) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    former record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('audit_log ' || account, 0));
    SELECT position, hash INTO former FROM audit_log
     WHERE account_id = account AND position IS NOT NULL ORDER BY position DESC LIMIT 1;
    UPDATE audit_log
       SET position = coalesce(former.position, 0) + 1,
           hash = encode(sha256(convert_to(json_build_array(
               coalesce(former.hash, ''),
               (coalesce(former.position, 0) + 1)::text,
               account_id::text,
               to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               actor_kind, actor_id::text, action, job_id::text, target, detail, request_id,
               address_sha256)::text, 'UTF8')), 'hex')
     WHERE id = entry;
END $$;
CREATE OR REPLACE FUNCTION audit_log_chain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit_log_place(NEW.id, NEW.account_id);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS audit_log_chain ON audit_log;
CREATE CONSTRAINT TRIGGER audit_log_chain AFTER INSERT ON audit_log
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit_log_chain();
CREATE OR REPLACE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.hash IS NULL OR (
            NEW.address IS NULL AND NEW.address_salt IS NULL
            AND to_jsonb(NEW) - '{address,address_salt}'::text[]
                = to_jsonb(OLD) - '{address,address_salt}'::text[]
        ) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit_log is append-only';
END $$;
CREATE OR REPLACE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only();
CREATE OR REPLACE TRIGGER audit_log_is_never_emptied BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();

-- Webhooks.
-- One call, one transaction, all of it in the server: a sender that is frozen in the middle keeps no
-- lock that the others wait for. A function and not a plain statement, because what is counted must be
-- read after the lock is held.
CREATE OR REPLACE FUNCTION lease_webhook_events(
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
      LEFT JOIN LATERAL (
        SELECT current, previous, rotated_at FROM webhook_endpoints WHERE id = before.endpoint_id
        UNION ALL
        SELECT current, previous, rotated_at FROM signing_secrets
         WHERE account_id = before.account_id AND before.endpoint_id IS NULL) AS secret ON true
     WHERE event.id = taken.id
    RETURNING event.id, event.lease_token AS token, event.account_id, event.endpoint,
              event.url, event.body, event.attempts, secret.current AS current_secret,
              CASE WHEN secret.rotated_at > now() + ahead - overlap
                   THEN secret.previous END AS previous_secret;
END $$;

-- Work beside the jobs that version 0.3.0 has queued in the tables of its results: before the
-- upgrade, and while such a version is at work beside this one.
CREATE OR REPLACE FUNCTION adopt_work() RETURNS void LANGUAGE sql AS $$
    WITH aligned AS (
        UPDATE transcripts SET align_after = NULL WHERE align_after IS NOT NULL
        RETURNING job_id, track_index),
    compared AS (
        UPDATE jobs SET compare_after = NULL
         WHERE compare_after IS NOT NULL AND completed_at IS NOT NULL
        RETURNING id)
    INSERT INTO work (kind, subject_id, part, account_id)
    SELECT found.kind, found.job_id, found.part, jobs.account_id
      FROM (SELECT 'alignment' AS kind, job_id, track_index::text AS part FROM aligned
            UNION ALL SELECT 'duplicates', id, '' FROM compared
            UNION ALL SELECT 'preview', job_id, '' FROM previews WHERE status = 'waiting'
            UNION ALL SELECT 'redaction', id, '' FROM jobs WHERE redact_after IS NOT NULL
            UNION ALL SELECT 'translation', job_id, language FROM translations
                       WHERE status = 'pending') AS found
      JOIN jobs ON jobs.id = found.job_id
     UNION ALL
    SELECT 'archive', id, '', account_id FROM archives
     WHERE state = 'active' OR removed_at IS NOT NULL
        ON CONFLICT DO NOTHING
$$;
