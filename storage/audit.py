"""The audit log: who did what to an account, when and from where: a chain of hashes an account.

An entry is written in the transaction of what it records. Its place in the chain is given by the
database as that transaction commits (``storage/functions.sql``), when no other lock is waited for
any more.
Entries hold ids, never content; the address alone is personal, and goes when its account is erased:
the chain has a salted hash of it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC

from sqlalchemy import func, insert, select, update

from storage.database import Connection
from storage.records import columns, read
from storage.tables import MOMENT, AuditEntry, audit_log
from storage.types import ActorKind

PAGE_ENTRIES = 1000
"""Read at once."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and from where."""

    kind: ActorKind
    id: uuid.UUID | None = None
    """Of the key or the user."""
    address: str | None = None
    request_id: str = ""

    def being(self, kind: ActorKind, actor_id: uuid.UUID | None) -> Actor:
        """Return who turned out to act by the same request."""
        return replace(self, kind=kind, id=actor_id)


_BY_ITSELF = Actor(ActorKind.SERVICE)
_ACTOR: ContextVar[Actor] = ContextVar("vas_actor", default=_BY_ITSELF)


def act_as(actor: Actor) -> None:
    """What this task records from now on was done by ``actor``."""
    _ACTOR.set(actor)


def current_actor() -> Actor:
    """Return who acts in this task."""
    return _ACTOR.get()


async def record(
    connection: Connection,
    account_id: uuid.UUID,
    action: str,
    *,
    job_id: uuid.UUID | None = None,
    target: object = None,
    detail: str | None = None,
) -> None:
    """Write down what the connection's transaction does; without it, it is not done.

    ``action`` is the operation's name where an operation of the interface does it.
    """
    actor = _ACTOR.get()
    salt = secrets.token_hex(16) if actor.address else None
    hashed = hashlib.sha256(f"{salt}{actor.address}".encode()).hexdigest() if salt else None
    await connection.execute(
        insert(audit_log).values(
            account_id=account_id,
            actor_kind=actor.kind,
            actor_id=actor.id,
            action=action,
            job_id=job_id,
            target=None if target is None else str(target),
            detail=detail,
            request_id=actor.request_id,
            address=actor.address,
            address_salt=salt,
            address_sha256=hashed,
        )
    )


async def list_entries(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = PAGE_ENTRIES,
    job_id: uuid.UUID | None = None,
    actor_id: uuid.UUID | None = None,
) -> list[AuditEntry]:
    """Of an account: the first ones after position ``after``, or the last ones before ``before``,
    the latest first; of one job or actor alone where that is given."""
    query = select(*columns(AuditEntry)).where(audit_log.c.account_id == account_id)
    if job_id is not None:
        query = query.where(audit_log.c.job_id == job_id)
    if actor_id is not None:
        query = query.where(audit_log.c.actor_id == actor_id)
    if before is None:
        query = query.where(audit_log.c.position > after).order_by(audit_log.c.position)
    else:
        query = query.where(audit_log.c.position < before).order_by(audit_log.c.position.desc())
    return await read(connection, AuditEntry, query.limit(limit))


async def read_chain(
    connection: Connection, account_id: uuid.UUID, *, after: int = 0
) -> AsyncIterator[AuditEntry]:
    """Yield all entries of an account after position ``after``, in order, page by page."""
    while entries := await list_entries(connection, account_id, after=after):
        for entry in entries:
            yield entry
        after = entries[-1].position


def entry_hash(entry: AuditEntry, before: str) -> str:
    """Return the hash that the entry must have after the hash ``before``; that of the first is
    ""."""
    values = [
        before,
        str(entry.position),
        str(entry.account_id),
        entry.created_at.astimezone(UTC).strftime(MOMENT),
        entry.actor_kind,
        None if entry.actor_id is None else str(entry.actor_id),
        entry.action,
        None if entry.job_id is None else str(entry.job_id),
        entry.target,
        entry.detail,
        entry.request_id,
        entry.address_sha256,
    ]
    # PostgreSQL's json_build_array writes the same bytes: see the migration.
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()


@dataclass(slots=True)
class ChainCheck:
    """A chain that is verified entry by entry."""

    position: int = 0
    hash: str = ""

    def find_break(self, entry: AuditEntry) -> str | None:
        """Why ``entry`` does not follow, in a sentence; None where it does."""
        if entry.position != self.position + 1:
            return f"Entry {self.position + 1} is missing: {entry.position} follows."
        if entry.hash != entry_hash(entry, self.hash):
            return f"Entry {entry.position} was changed, or one before it."
        if entry.address is not None:
            salted = f"{entry.address_salt}{entry.address}".encode()
            if hashlib.sha256(salted).hexdigest() != entry.address_sha256:
                return f"The address of entry {entry.position} was changed."
        self.position, self.hash = entry.position, entry.hash
        return None


async def count_unplaced(connection: Connection, account_id: uuid.UUID) -> int:
    """Return entries that came past the trigger which gives them their place."""
    query = select(func.count()).where(
        audit_log.c.account_id == account_id, audit_log.c.position.is_(None)
    )
    return int((await connection.execute(query)).scalar_one())


async def forget_addresses(connection: Connection, account_id: uuid.UUID) -> None:
    """Erase from where an account was used; its chain stays whole."""
    await connection.execute(
        update(audit_log)
        .where(audit_log.c.account_id == account_id, audit_log.c.address.is_not(None))
        .values(address=None, address_salt=None)
    )
