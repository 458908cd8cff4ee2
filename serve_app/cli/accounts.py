"""What operators do to accounts, keys and credits: each one transaction, returning a record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from serve_app.api.envelope import timestamp
from serve_app.deployment.local import prepared
from serve_app.settings import Settings
from storage import keys, ledger
from storage.database import Connection, Database

Result = TypeVar("Result")


def in_transaction(settings: Settings, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    """Run ``work`` in one transaction on the service's database, started if need be."""
    return in_service(settings, lambda connection, _: work(connection))


def in_service(
    settings: Settings, work: Callable[[Connection, Settings], Awaitable[Result]]
) -> Result:
    """As ``in_transaction``; ``work`` is also given the settings completed, secret key and all."""

    async def run(complete: Settings) -> Result:
        database = Database(complete.database_url or "", pool_size=2)
        try:
            async with database.transaction() as connection:
                return await work(connection, complete)
        finally:
            await database.close()

    with prepared(settings) as complete:
        return asyncio.run(run(complete))


async def create_account(connection: Connection, name: str) -> dict[str, Any]:
    """Raises keys.AccountExistsError."""
    account = await keys.create_account(connection, name)
    return account_record(account)


async def restrict(
    connection: Connection,
    account_name: str,
    *,
    suspended: bool | None,
    throttled: bool | None,
) -> dict[str, Any]:
    """Suspend, throttle or resume an account. Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    await keys.set_restrictions(connection, account.id, suspended=suspended, throttled=throttled)
    return account_record(await keys.get_account(connection, account_name))


async def create_key(connection: Connection, account_name: str) -> dict[str, Any]:
    """A new key with its secret, seen only now. Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    issued = await keys.create_key(connection, account.id)
    return {
        "id": str(issued.id),
        "account": account.name,
        "key": issued.secret,
        "displayKey": issued.display_key,
        "createdAt": timestamp(issued.created_at),
    }


async def create_session(connection: Connection, account_name: str) -> dict[str, Any]:
    """A one-time sign-in token for the dashboard. Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    token = await keys.create_sign_in_link(connection, account.id)
    return {
        "account": account.name,
        "signInToken": token,
        "validForSeconds": int(keys.SIGN_IN_LINK_LIFETIME.total_seconds()),
    }


async def ensure_demo_account(connection: Connection) -> dict[str, Any]:
    """The local account ``demo`` with some credits, and a new key for it."""
    try:
        account = await keys.get_account(connection, "demo")
    except keys.AccountNotFoundError:
        account = await keys.create_account(connection, "demo")
    if account.available_cents < DEMO_CREDIT_CENTS // 2:
        await ledger.grant(connection, account.id, DEMO_CREDIT_CENTS, "demo credits")
    return await create_key(connection, "demo")


DEMO_CREDIT_CENTS = 10_000


def account_record(account: keys.Account) -> dict[str, Any]:
    """An account as commands print it."""
    return {
        "id": str(account.id),
        "name": account.name,
        "balanceCents": account.balance_cents,
        "heldCents": account.held_cents,
        "availableCents": account.available_cents,
        "createdAt": timestamp(account.created_at),
        "suspendedAt": timestamp(account.suspended_at),
        "throttledAt": timestamp(account.throttled_at),
    }
