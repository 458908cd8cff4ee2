"""Whether the audit log has what clients and people did, once, and nothing that was refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.acceptance.chaos.journal import Change

if TYPE_CHECKING:
    from tests.acceptance.chaos.checker import Checker

VERIFY_SECONDS = 120
_PREFIX = re.compile(r"^(/v1/api|/dashboard/api|/dashboard)")
_ID = "([0-9a-f-]{36})"
ACTIONS: dict[str, str | None] = {
    r"POST /jobs(/from-url|/batch)?": "createJob",
    rf"POST /jobs/{_ID}/cancel": "cancelJob",
    rf"POST /jobs/{_ID}/erase": "eraseJob",
    rf"POST /jobs/{_ID}/redact": "redactJob",
    rf"PATCH /jobs/{_ID}": "changeJob",
    rf"POST /jobs/{_ID}/rerun": "rerunJob",
    rf"PATCH /jobs/{_ID}/transcript": "editTranscript",
    r"POST /comparisons": None,
    r"PATCH /uploads/.*": None,
    r"POST /archives": "createArchive",
    rf"POST /archives/{_ID}/pause": "pauseArchive",
    rf"POST /archives/{_ID}/resume": "resumeArchive",
    r"POST /invitations": "invite",
    r"POST /invitation": "acceptInvitation",
    r"POST /sign-in": "createSession",
    rf"POST /people/{_ID}/link": "createSignInLink",
    rf"POST /people/{_ID}/role": "changeRole",
    rf"POST /people/{_ID}/remove": "removeUser",
    r"POST /keys": "createKey",
    rf"POST /keys/{_ID}/rotate": "rotateKey",
    rf"POST /keys/{_ID}/revoke": "revokeKey",
}
"""Requests of the load to what they are recorded as; None: they change nothing that is recorded."""
ONCE_ONLY = frozenset(
    {
        "eraseJob",
        "redactJob",
        "rerunJob",
        "editTranscript",
        "pauseArchive",
    }
)
"""What changes nothing where it is done already, by a request whose answer was lost."""


def what_was_done_is_recorded(checker: Checker) -> Iterator[str]:
    """By the request that did it; of one that was refused there is nothing."""
    recorded: dict[str, Counter[str]] = defaultdict(Counter)
    of_subject = set[tuple[str, str]]()
    for request_id, action, job_id, target in checker.ledger(
        "SELECT l.request_id, l.action, l.job_id::text, l.target FROM audit_log l"
        " JOIN accounts a ON a.id = l.account_id WHERE a.name = ANY(%(accounts)s)"
    ):
        recorded[request_id][action] += 1
        of_subject |= {(action, subject) for subject in (job_id, target) if subject}
    for change in checker.journal.changes:
        action, subject = _action(change)
        found = recorded[change.request_id]
        named = f"{change.method} {change.path}: {change.status} {change.request_id}"
        if not change.request_id:
            yield f"{named} names no request"
        elif change.status >= 400 or action is None:
            if found:
                yield f"{named} is recorded: {dict(found)}"
        elif found[action] == 0:
            done = change.repeated or (action in ONCE_ONLY and (action, subject) in of_subject)
            if not done:
                yield f"{named} is not recorded: {dict(found)}"
        elif found[action] > 1 and action != "createJob":
            yield f"{named} is recorded {found[action]} times"


def _action(change: Change) -> tuple[str | None, str]:
    """What it is recorded as, and whom or what it names."""
    asked = f"{change.method} {_PREFIX.sub('', change.path)}"
    for pattern, action in ACTIONS.items():
        if matched := re.fullmatch(pattern, asked):
            return action, (matched[1] or "") if matched.re.groups else ""
    raise AssertionError(f"the load does what the checker does not know: {asked}")


STATES = {
    "a job's creation": """
        SELECT j.id, count(l.id) FROM jobs j LEFT JOIN audit_log l
            ON l.job_id = j.id AND l.action = 'createJob'
         WHERE j.account_id IN (%(ids)s) GROUP BY j.id HAVING count(l.id) <> 1""",
    "a job's cancellation": """
        SELECT j.id, j.state, count(l.id) FROM jobs j LEFT JOIN audit_log l
            ON l.job_id = j.id AND l.action = 'cancelJob'
         WHERE j.account_id IN (%(ids)s) GROUP BY j.id
        HAVING count(l.id) <> (j.state = 'cancelled')::int""",
    "a job's erasing": """
        SELECT j.id, j.erased_at, count(l.id) FROM jobs j LEFT JOIN audit_log l
            ON l.job_id = j.id AND l.action = 'eraseJob'
         WHERE j.account_id IN (%(ids)s) GROUP BY j.id
        HAVING count(l.id) <> (j.erased_at IS NOT NULL)::int""",
    "a rerun": """
        SELECT j.id, count(l.id) FROM jobs j LEFT JOIN audit_log l
            ON l.target = j.id::text AND l.action = 'rerunJob' AND l.job_id = j.rerun_of
         WHERE j.account_id IN (%(ids)s) AND j.rerun_of IS NOT NULL
         GROUP BY j.id HAVING count(l.id) <> 1""",
    "a transcript's changes": """
        SELECT * FROM (
               SELECT t.job_id, sum(t.revision - (t.redacted_revision IS NOT NULL)::int) AS edits, (
                      SELECT count(*) FROM audit_log l
                       WHERE l.job_id = t.job_id AND l.action = 'editTranscript') AS recorded
                 FROM transcripts t JOIN jobs j ON j.id = t.job_id AND j.erased_at IS NULL
                WHERE j.account_id IN (%(ids)s) GROUP BY t.job_id) AS each
         WHERE edits <> recorded""",
    "an accepted invitation": """
        SELECT u.id, count(l.id) FROM users u LEFT JOIN audit_log l
            ON l.actor_id = u.id AND l.action = 'acceptInvitation'
         WHERE u.account_id IN (%(ids)s) GROUP BY u.id HAVING count(l.id) <> 1""",
    "a user's removal": """
        SELECT u.id, u.removed_at, count(l.id) FROM users u LEFT JOIN audit_log l
            ON l.target = u.id::text AND l.action = 'removeUser'
         WHERE u.account_id IN (%(ids)s) GROUP BY u.id
        HAVING count(l.id) <> (u.removed_at IS NOT NULL)::int""",
    "a user's role": """
        SELECT u.id, u.role, recorded.role FROM users u, LATERAL (
               SELECT substring(l.detail FROM '\\mrole=(\\w+)') AS role FROM audit_log l
                WHERE l.account_id = u.account_id
                  AND (l.action = 'changeRole' AND l.target = u.id::text
                       OR l.action = 'acceptInvitation' AND l.actor_id = u.id)
                ORDER BY l.position DESC LIMIT 1) AS recorded
         WHERE u.account_id IN (%(ids)s) AND recorded.role <> u.role""",
    "a key's creation": """
        SELECT k.id, count(l.id) FROM api_keys k LEFT JOIN audit_log l
            ON l.action = 'createKey' AND l.target = k.id::text
            OR l.action = 'rotateKey' AND l.detail = 'by ' || k.id
         WHERE k.account_id IN (%(ids)s) GROUP BY k.id HAVING count(l.id) <> 1""",
    "a key's end": """
        SELECT k.id, k.status, count(l.id) FROM api_keys k LEFT JOIN audit_log l
            ON l.target = k.id::text AND l.action IN ('revokeKey', 'rotateKey')
         WHERE k.account_id IN (%(ids)s) GROUP BY k.id
        HAVING count(l.id) <> (k.status IN ('revoked', 'rotated'))::int""",
    "an archive's creation": """
        SELECT r.id, count(l.id) FROM archives r LEFT JOIN audit_log l
            ON l.target = r.id::text AND l.action = 'createArchive'
         WHERE r.account_id IN (%(ids)s) GROUP BY r.id HAVING count(l.id) <> 1""",
}
"""Statements that find what is so and not recorded once, or recorded and not so."""


def what_is_so_was_recorded(checker: Checker) -> Iterator[str]:
    """Whatever became of the requests that did it."""
    ids = "SELECT id FROM accounts WHERE name = ANY(%(accounts)s)"
    for what, statement in STATES.items():
        rows = checker.ledger(statement.replace("%(ids)s", ids))
        yield from (f"{what} is not recorded once: {row}" for row in rows)


def audit_logs_are_whole(checker: Checker) -> Iterator[str]:
    """As ``vas audit verify`` finds, and each goes on from what was exported under way."""
    for customer in checker.stage.customers:
        exported = checker.journal.exports.get(customer.account)
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "serve_app.cli", "audit", "verify", customer.account]
            if exported is not None:
                file = Path(folder) / "log.jsonl"
                file.write_text(exported, encoding="utf-8")
                words += ["--file", str(file)]
            ended = subprocess.run(
                words,
                env={**os.environ, **checker.stage.head.environment},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=VERIFY_SECONDS,
                check=False,
            )
        if ended.returncode != 0:
            yield f"the audit log of {customer.account}: {ended.stdout} {ended.stderr[-500:]}"


def keys_keep_to_their_caps(checker: Checker) -> Iterator[str]:
    """What their jobs cost, and how many there are at once for longer than half a minute."""
    rows = checker.ledger(
        """
        SELECT k.id, k.max_monthly_cents, sum(j.charged_cents + j.held_cents)
          FROM api_keys k JOIN accounts a ON a.id = k.account_id
          JOIN jobs j ON j.capped_key_id = k.id
         WHERE a.name = ANY(%(accounts)s) GROUP BY k.id
        HAVING sum(j.charged_cents + j.held_cents) > k.max_monthly_cents
        """
    )
    yield from (f"the key {key} may cost {cap} cents and cost {cost}" for key, cap, cost in rows)
    rows = checker.ledger(
        """
        SELECT k.id, k.max_active_jobs, count(*) FROM api_keys k
          JOIN accounts a ON a.id = k.account_id JOIN jobs j ON j.capped_key_id = k.id
          JOIN jobs other ON other.capped_key_id = k.id AND other.created_at <= j.created_at
               AND coalesce(other.completed_at, now()) > j.created_at + interval '30 seconds'
         WHERE a.name = ANY(%(accounts)s)
         GROUP BY k.id, j.id HAVING count(*) > k.max_active_jobs
        """
    )
    yield from (f"the key {key} may have {cap} jobs and had {count}" for key, cap, count in rows)
