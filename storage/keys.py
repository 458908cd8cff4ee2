"""Accounts, API keys and dashboard sessions. Secrets are stored as SHA-256 only."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Text, cast, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import accounts, api_keys, sign_in_links
from storage.types import KeyStatus

KEY_PREFIX = "vas_live_"
SESSION_PREFIX = "vas_sess_"
SIGN_IN_LINK_LIFETIME = timedelta(minutes=15)


class AccountExistsError(Exception):
    """An account of that name exists already."""


class AccountNotFoundError(Exception):
    """No account has that name or id."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account with its running totals, in cents."""

    id: uuid.UUID
    name: str
    created_at: datetime
    balance_cents: int
    held_cents: int
    suspended_at: datetime | None
    throttled_at: datetime | None

    @property
    def available_cents(self) -> int:
        return self.balance_cents - self.held_cents


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new API key; the only time that its secret is seen."""

    id: uuid.UUID
    secret: str
    display_key: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: the account behind a valid key."""

    account_id: uuid.UUID
    key_id: uuid.UUID
    suspended: bool


def fingerprint(secret: str) -> bytes:
    """SHA-256 of a secret. The secrets are 32 random bytes, so that no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


def new_secret(prefix: str) -> str:
    """``prefix`` and 43 URL-safe characters (32 random bytes)."""
    return prefix + secrets.token_urlsafe(32)


async def create_account(connection: AsyncConnection, name: str) -> Account:
    """Raises AccountExistsError."""
    account_id = uuid.uuid4()
    try:
        async with connection.begin_nested():
            await connection.execute(insert(accounts).values(id=account_id, name=name))
    except IntegrityError as error:
        raise AccountExistsError(name) from error
    return await get_account(connection, str(account_id))


async def get_account(connection: AsyncConnection, name_or_id: str) -> Account:
    """By name or by id; raises AccountNotFoundError."""
    columns = [accounts.c[name] for name in Account.__dataclass_fields__]
    query = select(*columns).where(
        (accounts.c.name == name_or_id) | (cast(accounts.c.id, Text) == name_or_id)
    )
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        raise AccountNotFoundError(name_or_id)
    return Account(**row)


async def create_key(
    connection: AsyncConnection, account_id: uuid.UUID, *, expires_at: datetime | None = None
) -> IssuedKey:
    """A new active key for the account."""
    secret = new_secret(KEY_PREFIX)
    key_id = uuid.uuid4()
    statement = (
        insert(api_keys)
        .values(
            id=key_id,
            account_id=account_id,
            secret_sha256=fingerprint(secret),
            last_four=secret[-4:],
            status=KeyStatus.ACTIVE,
            expires_at=expires_at,
        )
        .returning(api_keys.c.created_at)
    )
    created_at = (await connection.execute(statement)).scalar_one()
    return IssuedKey(key_id, secret, display_key(secret[-4:]), created_at)


def display_key(last_four: str) -> str:
    """How a key is shown once its secret is gone."""
    return f"{KEY_PREFIX}…{last_four}"


async def find_principal(connection: AsyncConnection, secret: str) -> Principal | None:
    """The account behind an active, unexpired key; None for any other string.

    The look-up is by the secret's hash, so that its time tells nothing of how
    much of a guess was right.
    """
    query = (
        select(api_keys.c.account_id, api_keys.c.id, accounts.c.suspended_at)
        .join(accounts, accounts.c.id == api_keys.c.account_id)
        .where(
            api_keys.c.secret_sha256 == fingerprint(secret),
            api_keys.c.status == KeyStatus.ACTIVE,
            api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > func.now()),
        )
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    return Principal(row.account_id, row.id, suspended=row.suspended_at is not None)


async def revoke_key(connection: AsyncConnection, key_id: uuid.UUID) -> bool:
    """Whether an active key was there to revoke."""
    statement = (
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.status == KeyStatus.ACTIVE)
        .values(status=KeyStatus.REVOKED)
    )
    return (await connection.execute(statement)).rowcount == 1


async def create_sign_in_link(connection: AsyncConnection, account_id: uuid.UUID) -> str:
    """A one-time token that the dashboard exchanges for a session."""
    token = secrets.token_urlsafe(32)
    await connection.execute(
        insert(sign_in_links).values(
            token_sha256=fingerprint(token),
            account_id=account_id,
            expires_at=text(f"now() + interval '{SIGN_IN_LINK_LIFETIME.total_seconds()} seconds'"),
        )
    )
    return token
