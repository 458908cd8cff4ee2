"""``vas accounts | keys | sessions``, and what these do, each in one transaction.

What the commands run is imported in it: their help must not wait for the database's libraries.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from serve_app.cli.output import (
    DataOption,
    JsonOption,
    UsageError,
    administer,
    fetch,
    in_service,
    settings_with,
    show,
    show_list,
)
from serve_app.dashboard import SIGN_IN_PATH
from storage.types import Priority

if TYPE_CHECKING:
    from serve_app.settings import Settings
    from storage import keys
    from storage.database import Connection

accounts_app = typer.Typer(no_args_is_help=True, help="Accounts.")
keys_app = typer.Typer(no_args_is_help=True, help="API keys.")
sessions_app = typer.Typer(no_args_is_help=True, help="Dashboard sessions.")

DEMO_CREDIT_CENTS = 10_000
DEMO_KEY_FILE = "demo.key"


async def create_account(connection: Connection, name: str) -> dict[str, Any]:
    """Raises keys.AccountExistsError."""
    from storage import keys

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
    from storage import keys

    account = await keys.get_account(connection, account_name)
    await keys.set_restrictions(connection, account.id, suspended=suspended, throttled=throttled)
    return account_record(await keys.get_account(connection, account_name))


async def create_key(
    connection: Connection,
    account_name: str,
    *,
    days: int | None = None,
    caps: keys.KeyCaps | None = None,
) -> dict[str, Any]:
    """A new key with its secret, seen only now. Raises keys.AccountNotFoundError."""
    from datetime import UTC, datetime, timedelta

    from serve_app.api.envelope import timestamp
    from storage import keys

    account = await keys.get_account(connection, account_name)
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    issued = await keys.create_key(
        connection, account.id, expires_at=expires_at, caps=caps or keys.KeyCaps()
    )
    return {
        "id": str(issued.id),
        "account": account.name,
        "key": issued.secret,
        "displayKey": issued.display_key,
        "createdAt": timestamp(issued.created_at),
    }


async def create_session(
    connection: Connection, settings: Settings, account_name: str, email: str | None = None
) -> dict[str, Any]:
    """A one-time link into the dashboard, of an owner or of a user.

    Raises keys.AccountNotFoundError and UsageError.
    """
    from storage import keys, people

    account = await keys.get_account(connection, account_name)
    user = None if email is None else await people.find_user(connection, account.id, email)
    if email is not None and user is None:
        raise UsageError(f"There is no user {email} in {account_name}.")
    token = await keys.create_sign_in_link(connection, account.id, user.id if user else None)
    return {"account": account.name} | _link(settings, token)


async def create_operator_session(connection: Connection, settings: Settings) -> dict[str, Any]:
    """A one-time link to the pages of the operator."""
    from storage import keys

    return _link(settings, await keys.create_operator_link(connection))


def _link(settings: Settings, token: str) -> dict[str, Any]:
    from serve_app.deployment.local import with_running_address
    from serve_app.deployment.proxy import public_address
    from storage import keys

    settings, _ = with_running_address(settings)

    return {
        "signInUrl": f"{public_address(settings)}{SIGN_IN_PATH}?token={token}",
        "token": token,
        "expiresInSeconds": int(keys.SIGN_IN_LINK_LIFETIME.total_seconds()),
    }


def demo_key(settings: Settings) -> str:
    """The key that ``ensure_demo_account`` gives in the database of ``settings``."""
    from serve_app.cli.webhooks import signing_secret

    async def ensure(connection: Connection, complete: Settings) -> str:
        key = await ensure_demo_account(connection, complete.data_dir)
        # Something encrypted, by which a start with another secret key is noticed.
        await signing_secret(connection, complete, "demo", rotate=False)
        return key

    return in_service(settings, ensure, existing=False)


async def ensure_demo_account(connection: Connection, data_dir: Path) -> str:
    """A key of the local account ``demo``, which gets some credits.

    The key is kept in ``data_dir`` and replaced once it is valid no more: revoked, rotated, or of
    another database.
    """
    from serve_app.deployment.data import write_privately
    from storage import keys, ledger

    try:
        account = await keys.get_account(connection, "demo")
    except keys.AccountNotFoundError:
        account = await keys.create_account(connection, "demo")
    if account.available_cents < DEMO_CREDIT_CENTS // 2:
        await ledger.grant(connection, account.id, DEMO_CREDIT_CENTS, "demo credits")
    path = data_dir / DEMO_KEY_FILE
    if path.exists():
        kept = path.read_text()
        if await keys.has_active_key(connection, account.id, kept):
            return kept
    issued = await keys.create_key(connection, account.id)
    write_privately(path, issued.secret).replace(path)
    return issued.secret


def account_record(account: keys.Account) -> dict[str, Any]:
    """An account as commands print it."""
    from serve_app.api.envelope import timestamp

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


@accounts_app.command("create")
def accounts_create(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Create an account."""
    administer(data, lambda c: create_account(c, name), as_json)


def _restrict(
    name: str, data: Path | None, as_json: bool, *, suspended: bool | None, throttled: bool | None
) -> None:
    administer(
        data,
        lambda c: restrict(c, name, suspended=suspended, throttled=throttled),
        as_json,
    )


@accounts_app.command("suspend")
def accounts_suspend(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Refuse every request of the account (403 ACCOUNT_SUSPENDED)."""
    _restrict(name, data, as_json, suspended=True, throttled=None)


@accounts_app.command("throttle")
def accounts_throttle(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Refuse new jobs of the account (429 THROTTLED)."""
    _restrict(name, data, as_json, suspended=None, throttled=True)


@accounts_app.command("resume")
def accounts_resume(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Lift suspension and throttling."""
    _restrict(name, data, as_json, suspended=False, throttled=False)


@accounts_app.command("limit")
def accounts_limit(
    account: str,
    active_jobs: Annotated[
        int | None, typer.Option(min=0, max=100_000, help="Unfinished jobs; 0 for the default.")
    ] = None,
    pay_as_you_go: Annotated[
        bool | None,
        typer.Option("--pay-as-you-go/--prepaid", help="Whether it may go below zero."),
    ] = None,
    credit_limit: Annotated[
        int | None, typer.Option(min=0, max=10**12, help="Cents below zero, pay as you go.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change an account's own limits; those not named stay as they are."""
    from storage import keys

    async def limit(connection: Connection) -> dict[str, Any]:
        found = await keys.get_account(connection, account)
        await keys.set_limits(
            connection,
            found.id,
            max_active_jobs=active_jobs,
            pay_as_you_go=pay_as_you_go,
            credit_limit_cents=credit_limit,
        )
        changed = await keys.get_account(connection, account)
        return account_record(changed) | {
            "maxActiveJobs": changed.max_active_jobs,
            "payAsYouGo": changed.pay_as_you_go,
            "creditLimitCents": changed.credit_limit_cents,
        }

    administer(data, limit, as_json)


@accounts_app.command("queue")
def accounts_queue(
    account: str,
    weight: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="Its jobs that start while 1 does.")
    ] = None,
    running: Annotated[
        int | None, typer.Option(min=0, max=100_000, help="Run at once; 0 for the default.")
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option(help="The most urgent that it may use.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set an account's share of the queue; what is not named stays as it is."""
    from storage import keys, queue

    async def change(connection: Connection, settings: Settings) -> dict[str, object]:
        found = await keys.get_account(connection, account)
        await queue.set_rules(
            connection,
            found.id,
            weight=weight,
            max_running_jobs=running,
            highest_priority=priority,
        )
        changed = await keys.get_account(connection, account)
        if running is not None:
            limit = changed.max_running_jobs or settings.max_running_jobs
            await queue.limit_running(connection, found.id, limit)
        return account_record(changed) | {
            "queueWeight": changed.queue_weight,
            "maxRunningJobs": changed.max_running_jobs,
            "highestPriority": changed.highest_priority,
        }

    show(in_service(settings_with(data), change), as_json=as_json)


SourceSecondsOption = Annotated[
    int | None, typer.Option(min=0, max=365 * 86_400, help="Media, after a job's end.")
]
ResultDaysOption = Annotated[
    int | None, typer.Option(min=0, max=36_500, help="All content: then the job is erased.")
]


@accounts_app.command("retain")
def accounts_retain(
    account: str,
    source_seconds: SourceSecondsOption = None,
    result_days: ResultDaysOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set how long an account's jobs are kept; what is not named is as the service's settings."""
    from storage import keys

    async def retain(connection: Connection) -> dict[str, object]:
        found = await keys.get_account(connection, account)
        await keys.set_retention(
            connection, found.id, source_seconds=source_seconds, result_days=result_days
        )
        return account_record(await keys.get_account(connection, account)) | {
            "sourceSeconds": source_seconds,
            "resultDays": result_days,
        }

    administer(data, retain, as_json)


@accounts_app.command("erase")
def accounts_erase(
    account: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shut an account for good and erase all of its jobs; ledger and receipts stay."""
    from storage import cleaning, keys

    if not yes:
        typer.confirm(f"Erase all that {account} has? It cannot be undone.", abort=True, err=True)

    async def erase(connection: Connection) -> dict[str, object]:
        from serve_app.api.envelope import timestamp

        found = await keys.get_account(connection, account)
        if not await cleaning.erase_account(connection, found.id):
            raise UsageError(f"A legal hold is on {account}: vas legal-hold {account} --release.")
        erased = await keys.get_account(connection, str(found.id))
        return account_record(erased) | {"erasedAt": timestamp(erased.erased_at)}

    administer(data, erase, as_json)


def legal_hold(
    target: Annotated[str, typer.Argument(metavar="JOB|ACCOUNT", help="A job's id, or account.")],
    release: Annotated[bool, typer.Option("--release", help="Lift it.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a job, or all that an account has, from being deleted by anybody, or lift that."""
    from storage import cleaning, keys
    from storage.tables import accounts, jobs

    async def put(connection: Connection) -> dict[str, object]:
        with contextlib.suppress(ValueError):
            if await cleaning.set_legal_hold(connection, jobs, UUID(target), holds=not release):
                return {"job": target, "legalHold": not release}
        account = await keys.get_account(connection, target)
        await cleaning.set_legal_hold(connection, accounts, account.id, holds=not release)
        return {"account": account.name, "legalHold": not release}

    administer(data, put, as_json)


@keys_app.command("create")
def keys_create(
    account: str,
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="Until it ends.")] = None,
    month_cents: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="Most that its jobs may cost in a month.")
    ] = None,
    active_jobs: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Most of its jobs at once.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an API key; its secret is printed this once."""
    from storage import keys

    caps = keys.KeyCaps(month_cents, active_jobs)
    administer(data, lambda c: create_key(c, account, days=days, caps=caps), as_json)


@keys_app.command("list")
def keys_list(account: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List an account's API keys, newest first, without their secrets."""
    from serve_app.api.envelope import timestamp
    from storage import keys

    async def listed(connection: Connection) -> list[keys.KeyRecord]:
        return await keys.list_keys(connection, (await keys.get_account(connection, account)).id)

    rows = [
        {
            "id": str(each.id),
            "displayKey": keys.display_key(each.last_four),
            "status": each.status.value,
            "createdAt": timestamp(each.created_at),
            "expiresAt": timestamp(each.expires_at),
            "madeBy": each.made_by,
            "maxMonthlyCents": each.max_monthly_cents,
            "maxActiveJobs": each.max_active_jobs,
        }
        for each in fetch(data, listed)
    ]
    show_list(rows, "keys", as_json)


@keys_app.command("revoke")
def keys_revoke(
    key_id: Annotated[UUID, typer.Argument(metavar="ID", help="As vas keys list shows it.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke an API key: from now on it opens nothing."""
    from storage import keys

    if not fetch(data, lambda c: keys.revoke_key(c, key_id)):
        raise UsageError(f"There is no active key {key_id}: vas keys list ACCOUNT shows the ids.")
    show({"id": str(key_id), "status": "revoked"}, as_json=as_json)


AccountOption = Annotated[str | None, typer.Argument(help="Whose dashboard it is.")]
OperatorOption = Annotated[
    bool, typer.Option("--operator", help="Of the whole service, in place of an account.")
]


def _require_one(account: str | None, operator: bool) -> None:
    """Raises UsageError."""
    if operator == (account is not None):
        raise UsageError("Name an account, or give --operator, one of both.")


@sessions_app.command("create")
def sessions_create(
    account: AccountOption = None,
    operator: OperatorOption = False,
    user: Annotated[
        str | None, typer.Option(help="E-mail address; without it the link is an owner's.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a one-time link that signs in to the dashboard."""
    _require_one(account, operator)
    made = in_service(
        settings_with(data),
        lambda c, s: (
            create_operator_session(c, s)
            if account is None
            else create_session(c, s, account, user)
        ),
    )
    show(made, as_json=as_json)


@sessions_app.command("list")
def sessions_list(
    account: AccountOption = None,
    operator: OperatorOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who may be in the dashboard: sessions, and links for one that nobody has used yet."""
    from serve_app.api.envelope import timestamp
    from storage import keys

    _require_one(account, operator)

    async def listed(connection: Connection) -> list[keys.SignIn]:
        return await keys.list_sign_ins(connection, await _account_id(connection, account))

    rows = [
        {"kind": "link" if each.is_link else "session", "expiresAt": timestamp(each.expires_at)}
        for each in fetch(data, listed)
    ]
    show_list(rows, "sessions", as_json)


@sessions_app.command("end")
def sessions_end(
    account: AccountOption = None,
    operator: OperatorOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """End all sessions of an account, or all of operators; unused links open nothing any more."""
    from storage import keys

    _require_one(account, operator)

    async def end(connection: Connection) -> dict[str, Any]:
        account_id = await _account_id(connection, account)
        return {"ended": await keys.end_sign_ins(connection, account_id)}

    administer(data, end, as_json)


async def _account_id(connection: Connection, account: str | None) -> UUID | None:
    """Raises keys.AccountNotFoundError."""
    from storage import keys

    return None if account is None else (await keys.get_account(connection, account)).id
