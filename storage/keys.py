"""Accounts, API keys and dashboard sessions. Secrets are stored as SHA-256 only."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from storage.audit import act_as, current_actor, record
from storage.database import Connection, run
from storage.records import columns, read, read_one
from storage.tables import (
    KEY_PREFIX,
    Account,
    Key,
    accounts,
    api_keys,
    display_key,
    invitations,
    jobs,
    oidc_flows,
    operator_sessions,
    sessions,
    sign_in_links,
    users,
)
from storage.types import ActorKind, KeyStatus, Role

__all__ = ["KEY_PREFIX", "Account", "display_key"]

SESSION_PREFIX = "vas_sess_"
OPERATOR_PREFIX = "vas_oper_"
SIGN_IN_LINK_LIFETIME = timedelta(minutes=15)
SESSION_LIFETIME = timedelta(hours=12)
OPERATOR_SESSION_LIFETIME = timedelta(hours=4)


MOST_KEYS = 200
"""Active ones of an account that its owners may make; the operator's do not count."""


MOST_NAME_CHARACTERS = 100
"""Of a key's name."""


class TooManyKeysError(Exception):
    """The account has MOST_KEYS that are active."""


class AccountExistsError(Exception):
    """An account of that name exists already."""


class AccountNotFoundError(Exception):
    """No account has that name or id."""


class LimitTooLowError(Exception):
    """The account's debt and holds exceed that limit."""


@dataclass(frozen=True, slots=True)
class KeyCaps:
    """What a key may do at most, together with those it was rotated from; None: no cap."""

    max_monthly_cents: int | None = None
    """What jobs that it creates in a month of UTC may be charged and hold."""
    max_active_jobs: int | None = None
    """How many of its jobs may be unfinished."""


@dataclass(frozen=True, slots=True)
class CappedKey:
    """A key with caps, and what it has used of one of them."""

    first_id: uuid.UUID
    """Of those that it was rotated from."""
    max_active_jobs: int | None
    active_jobs: int


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new API key; its secret is returned only here."""

    id: uuid.UUID
    secret: str
    display_key: str
    created_at: datetime
    expires_at: datetime | None
    benefit_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SignIn:
    """What opens the dashboard: a session, or the link for one that nobody has used yet."""

    is_link: bool
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SessionAccount:
    """The account of a dashboard session."""

    account_id: uuid.UUID
    suspended: bool
    role: Role
    user_id: uuid.UUID | None = None
    """None: of a one-time link of the account, which is as good as an owner."""
    email: str | None = None


_ACCOUNT = sa.select(*columns(Account))
_LOCKED = _ACCOUNT.where(accounts.c.id == sa.bindparam("account_id")).with_for_update(
    key_share=True
)


def fingerprint(secret: str) -> bytes:
    """SHA-256 of a secret. The secrets are 32 random bytes, so that no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


def new_secret(prefix: str) -> str:
    """``prefix`` and 43 URL-safe characters (32 random bytes)."""
    return prefix + secrets.token_urlsafe(32)


async def create_account(connection: Connection, name: str) -> Account:
    """Raises AccountExistsError."""
    account_id = uuid.uuid4()
    try:
        async with connection.begin_nested():
            await connection.execute(sa.insert(accounts).values(id=account_id, name=name))
    except IntegrityError as error:
        raise AccountExistsError(name) from error
    await record(connection, account_id, "createAccount")
    return await get_account(connection, str(account_id))


async def get_account(connection: Connection, name_or_id: str) -> Account:
    """By name or by id; raises AccountNotFoundError."""
    query = _ACCOUNT.where(
        (accounts.c.name == name_or_id) | (sa.cast(accounts.c.id, sa.Text) == name_or_id)
    )
    account = await read_one(connection, Account, query)
    if account is None:
        raise AccountNotFoundError(name_or_id)
    return account


async def is_owner_suspended(connection: Connection, job_id: uuid.UUID) -> bool:
    """Return whether the account of a job is suspended; False without such a job."""
    query = sa.select(accounts.c.suspended_at).join(jobs).where(jobs.c.id == job_id)
    return (await connection.execute(query)).scalar_one_or_none() is not None


async def lock_account(connection: Connection, account_id: uuid.UUID) -> Account:
    """Return the account, locked: money operations of one account wait for each other.

    NO KEY UPDATE, not UPDATE: every insert that refers to the account takes a
    key-share lock on it, and two of those beside a waiting UPDATE are a deadlock.
    Raises AccountNotFoundError.
    """
    for row in await run(connection, _LOCKED, account_id=account_id):
        return Account(**row)
    raise AccountNotFoundError(str(account_id))


async def replace_vocabulary(
    connection: Connection, account_id: uuid.UUID, vocabulary: Mapping[str, Any]
) -> None:
    """Jobs that are created from now on have this one."""
    statement = sa.update(accounts).where(accounts.c.id == account_id)
    await connection.execute(statement.values(vocabulary=vocabulary))
    detail = " ".join(f"{name}={len(each)}" for name, each in vocabulary.items())
    await record(connection, account_id, "replaceVocabulary", detail=detail)


async def set_recognition(
    connection: Connection, account_id: uuid.UUID, *, recognises: bool
) -> None:
    """Have the jobs that do not state it recognise people and voices from now on, or not."""
    statement = sa.update(accounts).where(accounts.c.id == account_id)
    await connection.execute(statement.values(recognises=recognises))
    detail = f"recognises={recognises}"
    await record(connection, account_id, "setRecognition", detail=detail)


async def create_key(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    expires_at: datetime | None = None,
    benefit_id: str | None = None,
    caps: KeyCaps = KeyCaps(),
    name: str | None = None,
) -> IssuedKey:
    """Return a new active key for the account, with the name of the user who makes it.

    Raises TooManyKeysError.
    """
    maker = current_actor()
    if maker.kind in {ActorKind.USER, ActorKind.LINK}:
        await lock_account(connection, account_id)
        active = [each for each in await list_keys(connection, account_id)
                  if each.status is KeyStatus.ACTIVE]  # fmt: skip
        if len(active) >= MOST_KEYS:
            raise TooManyKeysError(str(account_id))
    issued = await _insert_key(connection, account_id, expires_at, benefit_id, caps, name)
    detail = f"expires_at={expires_at} {caps}" if expires_at or caps != KeyCaps() else None
    await record(connection, account_id, "createKey", target=issued.id, detail=detail)
    return issued


async def _insert_key(
    connection: Connection,
    account_id: uuid.UUID,
    expires_at: datetime | None,
    benefit_id: str | None,
    caps: KeyCaps,
    name: str | None,
    first_id: uuid.UUID | None = None,
) -> IssuedKey:
    maker = current_actor()
    secret = new_secret(KEY_PREFIX)
    key_id = uuid.uuid4()
    statement = (
        sa.insert(api_keys)
        .values(
            id=key_id,
            account_id=account_id,
            secret_sha256=fingerprint(secret),
            last_four=secret[-4:],
            status=KeyStatus.ACTIVE,
            expires_at=expires_at,
            benefit_id=benefit_id,
            made_by=maker.id if maker.kind is ActorKind.USER else None,
            name=name,
            first_id=first_id,
            max_monthly_cents=caps.max_monthly_cents,
            max_active_jobs=caps.max_active_jobs,
        )
        .returning(api_keys.c.created_at)
    )
    created_at = (await connection.execute(statement)).scalar_one()
    shown = display_key(secret[-4:])
    return IssuedKey(key_id, secret, shown, created_at, expires_at, benefit_id, name)


async def has_active_key(connection: Connection, account_id: uuid.UUID, secret: str) -> bool:
    """Return whether ``secret`` is a key of the account that is active and not past its time."""
    query = sa.select(api_keys.c.id).where(
        api_keys.c.secret_sha256 == fingerprint(secret),
        api_keys.c.account_id == account_id,
        api_keys.c.status == KeyStatus.ACTIVE,
        sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > sa.func.now()),
    )
    return (await connection.execute(query)).first() is not None


async def revoke_key(
    connection: Connection, key_id: uuid.UUID, account_id: uuid.UUID | None = None
) -> bool:
    """Return whether an active key was there to revoke (of this account)."""
    own = sa.true() if account_id is None else api_keys.c.account_id == account_id
    statement = (
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.status == KeyStatus.ACTIVE, own)
        .values(status=KeyStatus.REVOKED)
        .returning(api_keys.c.account_id)
    )
    owner = (await connection.execute(statement)).scalar_one_or_none()
    if owner is not None:
        await record(connection, owner, "revokeKey", target=key_id)
    return owner is not None


async def find_capped_key(connection: Connection) -> CappedKey | None:
    """Return the key that acts, where one does and it has caps; count under the account's lock."""
    actor = current_actor()
    if actor.kind is not ActorKind.KEY or actor.id is None:
        return None
    first = sa.func.coalesce(api_keys.c.first_id, api_keys.c.id)
    active = (
        sa.select(sa.func.count())
        .select_from(jobs)
        .where(jobs.c.capped_key_id == first, jobs.c.completed_at.is_(None))
        .scalar_subquery()
    )
    has_caps = sa.or_(
        api_keys.c.max_monthly_cents.is_not(None), api_keys.c.max_active_jobs.is_not(None)
    )
    query = sa.select(first, api_keys.c.max_active_jobs, active).where(
        api_keys.c.id == actor.id, has_caps
    )
    row = (await connection.execute(query)).first()
    return None if row is None else CappedKey(*row)


async def create_sign_in_link(
    connection: Connection, account_id: uuid.UUID, user_id: uuid.UUID | None = None
) -> str:
    """Return a one-time token that the dashboard exchanges for a session, of a user if one is
    given."""
    token = secrets.token_urlsafe(32)
    await connection.execute(
        sa.insert(sign_in_links).values(
            token_sha256=fingerprint(token),
            account_id=account_id,
            user_id=user_id,
            expires_at=sa.func.now() + SIGN_IN_LINK_LIFETIME,
        )
    )
    await record(connection, account_id, "createSignInLink", target=user_id)
    return token


async def list_keys(connection: Connection, account_id: uuid.UUID) -> list[Key]:
    """Return all keys of an account, newest first; an active one past its time shows as expired."""
    is_over = (api_keys.c.status == KeyStatus.ACTIVE) & (api_keys.c.expires_at <= sa.func.now())
    status = sa.case((is_over, KeyStatus.EXPIRED), else_=api_keys.c.status).label("status")
    query = (
        sa.select(*columns(Key, "status", "made_by"), status, users.c.email.label("made_by"))
        .outerjoin(users, users.c.id == api_keys.c.made_by)
        .where(api_keys.c.account_id == account_id)
        .order_by(api_keys.c.created_at.desc(), api_keys.c.id)
    )
    return await read(connection, Key, query)


async def rotate_key(
    connection: Connection, account_id: uuid.UUID, key_id: uuid.UUID
) -> IssuedKey | None:
    """Replace a valid key of the account by a new one; None if there is none."""
    statement = (
        sa.update(api_keys)
        .where(
            api_keys.c.id == key_id,
            api_keys.c.account_id == account_id,
            api_keys.c.status == KeyStatus.ACTIVE,
            sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > sa.func.now()),
        )
        .values(status=KeyStatus.ROTATED)
        .returning(
            api_keys.c.expires_at,
            api_keys.c.benefit_id,
            api_keys.c.max_monthly_cents,
            api_keys.c.max_active_jobs,
            api_keys.c.name,
            sa.func.coalesce(api_keys.c.first_id, api_keys.c.id).label("first_id"),
        )
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    caps = KeyCaps(row.max_monthly_cents, row.max_active_jobs)
    issued = await _insert_key(
        connection, account_id, row.expires_at, row.benefit_id, caps, row.name, row.first_id
    )
    await record(connection, account_id, "rotateKey", target=key_id, detail=f"by {issued.id}")
    return issued


async def exchange_sign_in_link(connection: Connection, token: str) -> str | None:
    """Return a session token for a link that is unused and not too old; None for any other
    string."""
    statement = (
        sa.update(sign_in_links)
        .where(
            sign_in_links.c.token_sha256 == fingerprint(token),
            sign_in_links.c.used_at.is_(None),
            sign_in_links.c.expires_at > sa.func.now(),
        )
        .values(used_at=sa.func.now())
        .returning(sign_in_links.c.account_id, sign_in_links.c.user_id)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else await start_session(connection, row.account_id, row.user_id)


async def start_session(
    connection: Connection, account_id: uuid.UUID, user_id: uuid.UUID | None
) -> str:
    """Return the token of a new session, of a user or of nobody in particular."""
    if user_id is not None:
        act_as(current_actor().being(ActorKind.USER, user_id))
    session = new_secret(SESSION_PREFIX)
    await connection.execute(
        sa.insert(sessions).values(
            token_sha256=fingerprint(session),
            account_id=account_id,
            user_id=user_id,
            address=current_actor().address,
            expires_at=sa.func.now() + SESSION_LIFETIME,
        )
    )
    await record(connection, account_id, "createSession")
    return session


async def find_session(connection: Connection, token: str) -> SessionAccount | None:
    """Return the account that a session token signs in; None if it is unknown or its time is
    over."""
    query = (
        sa.select(
            sessions.c.account_id, accounts.c.suspended_at, users.c.id, users.c.role, users.c.email
        )
        .join(accounts, accounts.c.id == sessions.c.account_id)
        .outerjoin(users, users.c.id == sessions.c.user_id)
        .where(
            sessions.c.token_sha256 == fingerprint(token),
            sessions.c.expires_at > sa.func.now(),
            users.c.removed_at.is_(None),
        )
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    suspended = row.suspended_at is not None
    role = Role.OWNER if row.id is None else Role(row.role)
    return SessionAccount(row.account_id, suspended, role, row.id, row.email)


async def end_session(connection: Connection, token: str) -> None:
    """Sign out: the session token opens nothing any more."""
    own = sessions.c.token_sha256 == fingerprint(token)
    ended = await connection.execute(
        sa.delete(sessions).where(own).returning(sessions.c.account_id)
    )
    for account_id in ended.scalars():
        await record(connection, account_id, "endSession")


async def create_operator_link(connection: Connection) -> str:
    """Return a one-time token that the dashboard exchanges for a session of an operator."""
    token = secrets.token_urlsafe(32)
    await connection.execute(
        sa.insert(operator_sessions).values(
            link_sha256=fingerprint(token), link_expires_at=sa.func.now() + SIGN_IN_LINK_LIFETIME
        )
    )
    return token


async def exchange_operator_link(connection: Connection, token: str) -> str | None:
    """Return an operator's session token for a link that is unused and not too old; else None."""
    session = new_secret(OPERATOR_PREFIX)
    statement = (
        sa.update(operator_sessions)
        .where(
            operator_sessions.c.link_sha256 == fingerprint(token),
            operator_sessions.c.token_sha256.is_(None),
            operator_sessions.c.link_expires_at > sa.func.now(),
        )
        .values(
            token_sha256=fingerprint(session), expires_at=sa.func.now() + OPERATOR_SESSION_LIFETIME
        )
    )
    return session if (await connection.execute(statement)).rowcount == 1 else None


async def is_operator_session(connection: Connection, token: str) -> bool:
    """Return whether the token is of an operator's session whose time is not over."""
    query = sa.select(operator_sessions.c.expires_at).where(
        operator_sessions.c.token_sha256 == fingerprint(token),
        operator_sessions.c.expires_at > sa.func.now(),
    )
    return (await connection.execute(query)).first() is not None


async def end_operator_session(connection: Connection, token: str) -> None:
    """Sign out: the operator's session token opens nothing any more."""
    own = operator_sessions.c.token_sha256 == fingerprint(token)
    await connection.execute(sa.delete(operator_sessions).where(own))


async def list_sign_ins(connection: Connection, account_id: uuid.UUID | None) -> list[SignIn]:
    """Return an account's sessions and unused links that are not over; None: operators'."""
    if account_id is None:
        table = operator_sessions.c
        ends_at = sa.func.coalesce(table.expires_at, table.link_expires_at)
        query = sa.select(table.token_sha256.is_(None), ends_at).where(ends_at > sa.func.now())
        return [SignIn(*row) for row in await connection.execute(query)]
    links, signed_in = sign_in_links.c, sessions.c
    unused = sa.select(sa.true(), links.expires_at).where(
        links.account_id == account_id, links.used_at.is_(None), links.expires_at > sa.func.now()
    )
    used = sa.select(sa.false(), signed_in.expires_at).where(
        signed_in.account_id == account_id, signed_in.expires_at > sa.func.now()
    )
    return [SignIn(*row) for row in await connection.execute(used.union_all(unused))]


async def end_sign_ins(connection: Connection, account_id: uuid.UUID | None) -> int:
    """End all of ``list_sign_ins``; returns how many there were.

    Links first: a session that one of them is being exchanged for is there once the link is ours.
    """
    ended = len(await list_sign_ins(connection, account_id))
    if account_id is None:
        await connection.execute(sa.delete(operator_sessions))
        return ended
    for table in (sign_in_links, sessions):
        await connection.execute(sa.delete(table).where(table.c.account_id == account_id))
    await record(connection, account_id, "endSessions", detail=str(ended))
    return ended


async def set_restrictions(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    suspended: bool | None = None,
    throttled: bool | None = None,
) -> None:
    """Suspend, throttle or resume an account; None leaves a restriction as it is."""
    values: dict[str, object] = {}
    for column, value in (("suspended_at", suspended), ("throttled_at", throttled)):
        if value is not None:
            values[column] = sa.func.now() if value else None
    await connection.execute(sa.update(accounts).where(accounts.c.id == account_id).values(values))
    detail = f"suspended={suspended} throttled={throttled}"
    await record(connection, account_id, "restrictAccount", detail=detail)


async def set_retention(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    source_seconds: int | None,
    result_days: int | None,
) -> None:
    """How long the account's jobs keep their media and their content; None: as the service does."""
    values = {"source_retention_seconds": source_seconds, "result_retention_days": result_days}
    await connection.execute(sa.update(accounts).where(accounts.c.id == account_id).values(values))
    detail = f"source_seconds={source_seconds} result_days={result_days}"
    await record(connection, account_id, "setRetention", detail=detail)


async def set_limits(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    max_active_jobs: int | None = None,
    pay_as_you_go: bool | None = None,
    credit_limit_cents: int | None = None,
) -> None:
    """Change an account's own limits; None leaves one as it is, 0 active jobs is the default.

    Raises LimitTooLowError if the account owes more than the new limit allows.
    """
    limits = {
        "max_active_jobs": max_active_jobs,
        "pay_as_you_go": pay_as_you_go,
        "credit_limit_cents": credit_limit_cents,
    }
    values: dict[str, object] = {key: value for key, value in limits.items() if value is not None}
    if max_active_jobs == 0:
        values["max_active_jobs"] = None
    if not values:
        return
    try:
        async with connection.begin_nested():
            await connection.execute(
                sa.update(accounts).where(accounts.c.id == account_id).values(values)
            )
    except IntegrityError as error:
        raise LimitTooLowError(str(account_id)) from error
    detail = " ".join(f"{name}={value}" for name, value in values.items())
    await record(connection, account_id, "limitAccount", detail=detail)


async def forget_old_sign_ins(connection: Connection) -> None:
    """Drop sign-in links, invitations and sessions whose time is over."""
    for table in (sign_in_links, invitations, sessions, oidc_flows):
        await connection.execute(sa.delete(table).where(table.c.expires_at < sa.func.now()))
    ends_at = sa.func.coalesce(operator_sessions.c.expires_at, operator_sessions.c.link_expires_at)
    await connection.execute(sa.delete(operator_sessions).where(ends_at < sa.func.now()))
