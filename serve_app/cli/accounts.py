"""``vas accounts | legal-hold | keys | users | sessions | audit``: accounts, and who is in them.

Each command is a function that works in one transaction; tables at the end name them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from serve_app.cli import output
from serve_app.dashboard import SIGN_IN_PATH
from storage.types import Priority, Role

if TYPE_CHECKING:
    from serve_app.settings import Settings
    from storage import audit, cleaning, keys, ledger, people, queue, tables, webhooks
    from storage.audit import ChainCheck
    from storage.database import Connection
    from storage.tables import AuditEntry
else:
    audit, cleaning, keys, ledger, people, queue, tables, webhooks = output.lazily(
        *("storage.audit", "storage.cleaning", "storage.keys", "storage.ledger"),
        *("storage.people", "storage.queue", "storage.tables", "storage.webhooks"),
    )

DEMO_CREDIT_CENTS = 10_000
DEMO_KEY_FILE = "demo.key"

Days = Annotated[int | None, typer.Option(min=1, max=3650, help="Until it ends.")]
MonthCents = Annotated[
    int | None, typer.Option(min=1, max=10**9, help="Most that its jobs may cost in a month.")
]
KeyJobs = Annotated[int | None, typer.Option(min=1, max=100_000, help="Most of its jobs at once.")]
KeyName = Annotated[str | None, typer.Option(help="What it is for, as lists show it.")]
Whose = Annotated[str | None, typer.Argument(help="Whose dashboard it is.")]
OperatorOption = Annotated[
    bool, typer.Option("--operator", help="Of the whole service, in place of an account.")
]
Email = Annotated[str, typer.Argument(help="Of the user.")]


def account_record(account: keys.Account) -> output.Record:
    """Return an account as commands print it."""
    cents = ("balance_cents", "held_cents", "available_cents")
    return output.record_of(
        account, "id", "name", *cents, "created_at", "suspended_at", "throttled_at"
    )


async def create_account(connection: Connection, name: str) -> output.Record:
    """Create an account."""
    return account_record(await keys.create_account(connection, name))


async def suspend(connection: Connection, name: str) -> output.Record:
    """Refuse every request of the account (403 ACCOUNT_SUSPENDED)."""
    return await _restrict(connection, name, suspended=True)


async def throttle(connection: Connection, name: str) -> output.Record:
    """Refuse new jobs of the account (429 THROTTLED)."""
    return await _restrict(connection, name, throttled=True)


async def resume(connection: Connection, name: str) -> output.Record:
    """Lift suspension and throttling."""
    return await _restrict(connection, name, suspended=False, throttled=False)


async def _restrict(connection: Connection, name: str, **restrictions: bool) -> output.Record:
    account = await keys.get_account(connection, name)
    await keys.set_restrictions(connection, account.id, **restrictions)
    return account_record(await keys.get_account(connection, name))


async def limit(
    connection: Connection,
    account: str,
    active_jobs: Annotated[
        int | None, typer.Option(min=0, max=100_000, help="Unfinished jobs; 0 for the default.")
    ] = None,
    pay_as_you_go: Annotated[
        bool | None, typer.Option("--pay-as-you-go/--prepaid", help="Whether it may go below zero.")
    ] = None,
    credit_limit: Annotated[
        int | None, typer.Option(min=0, max=10**12, help="Cents below zero, pay as you go.")
    ] = None,
) -> output.Record:
    """Change an account's own limits; those not named stay as they are."""
    found = await keys.get_account(connection, account)
    await keys.set_limits(
        connection,
        found.id,
        max_active_jobs=active_jobs,
        pay_as_you_go=pay_as_you_go,
        credit_limit_cents=credit_limit,
    )
    changed = await keys.get_account(connection, account)
    limits = output.record_of(changed, "max_active_jobs", "pay_as_you_go", "credit_limit_cents")
    return account_record(changed) | limits


async def set_share(
    connection: Connection,
    settings: Settings,
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
) -> output.Record:
    """Set an account's share of the queue; what is not named stays as it is."""
    found = await keys.get_account(connection, account)
    await queue.set_rules(
        connection, found.id, weight=weight, max_running_jobs=running, highest_priority=priority
    )
    changed = await keys.get_account(connection, account)
    if running is not None:
        most = changed.max_running_jobs or settings.max_running_jobs
        await queue.limit_running(connection, found.id, most)
    share = output.record_of(changed, "queue_weight", "max_running_jobs", "highest_priority")
    return account_record(changed) | share


async def retain(
    connection: Connection,
    account: str,
    source_seconds: Annotated[
        int | None, typer.Option(min=0, max=365 * 86_400, help="Media, after a job's end.")
    ] = None,
    result_days: Annotated[
        int | None, typer.Option(min=0, max=36_500, help="All content: then the job is erased.")
    ] = None,
) -> output.Record:
    """Set how long an account's jobs are kept; what is not named is as the service's settings."""
    found = await keys.get_account(connection, account)
    await keys.set_retention(
        connection, found.id, source_seconds=source_seconds, result_days=result_days
    )
    changed = account_record(await keys.get_account(connection, account))
    return changed | {"sourceSeconds": source_seconds, "resultDays": result_days}


async def erase(connection: Connection, account: str) -> output.Record:
    """Shut an account for good and erase all of its jobs; ledger and receipts stay."""
    found = await keys.get_account(connection, account)
    if not await cleaning.erase_account(connection, found.id):
        raise output.UsageError(
            f"A legal hold is on {account}: vas legal-hold {account} --release."
        )
    erased = await keys.get_account(connection, str(found.id))
    return account_record(erased) | output.record_of(erased, "erased_at")


async def put_legal_hold(
    connection: Connection,
    target: Annotated[str, typer.Argument(metavar="JOB|ACCOUNT", help="A job's id, or account.")],
    release: Annotated[bool, typer.Option("--release", help="Lift it.")] = False,
) -> output.Record:
    """Keep a job, or all that an account has, from being deleted by anybody, or lift that."""
    holds = not release
    with contextlib.suppress(ValueError):
        if await cleaning.set_legal_hold(connection, tables.jobs, UUID(target), holds=holds):
            return {"job": target, "legalHold": holds}
    account = await keys.get_account(connection, target)
    await cleaning.set_legal_hold(connection, tables.accounts, account.id, holds=holds)
    return {"account": account.name, "legalHold": holds}


async def create_key(
    connection: Connection,
    account: str,
    days: Days = None,
    month_cents: MonthCents = None,
    active_jobs: KeyJobs = None,
    name: KeyName = None,
) -> output.Record:
    """Create an API key; its secret is printed this once."""
    found = await keys.get_account(connection, account)
    if len(name or "") > keys.MOST_NAME_CHARACTERS:
        raise output.UsageError(f"--name: at most {keys.MOST_NAME_CHARACTERS} characters.")
    issued = await keys.create_key(
        connection,
        found.id,
        expires_at=None if days is None else datetime.now(UTC) + timedelta(days=days),
        caps=keys.KeyCaps(month_cents, active_jobs),
        name=name,
    )
    return {
        **output.record_of(issued, "id"),
        "account": found.name,
        "key": issued.secret,
        **output.record_of(issued, "display_key", "created_at"),
    }


async def list_keys(connection: Connection, account: str) -> output.Record:
    """List an account's API keys, newest first, without their secrets."""
    found = await keys.get_account(connection, account)
    caps = ("name", "last_used_at", "max_monthly_cents", "max_active_jobs")
    rows = [
        output.record_of(each, "id")
        | {"displayKey": keys.display_key(each.last_four)}
        | output.record_of(each, "status", "created_at", "expires_at", "made_by", *caps)
        for each in await keys.list_keys(connection, found.id)
    ]
    return {"keys": rows}


async def revoke_key(
    connection: Connection,
    key_id: Annotated[UUID, typer.Argument(metavar="ID", help="As vas keys list shows it.")],
) -> output.Record:
    """Revoke an API key: from now on it opens nothing."""
    if not await keys.revoke_key(connection, key_id):
        raise output.UsageError(
            f"There is no active key {key_id}: vas keys list ACCOUNT shows the ids."
        )
    return {"id": str(key_id), "status": "revoked"}


async def list_users(connection: Connection, account: str) -> output.Record:
    """List an account's users, and the invitations that nobody has accepted yet."""
    found = await keys.get_account(connection, account)
    names = ("email", "role", "created_at")
    users = await people.list_users(connection, found.id)
    invitations = await people.list_invitations(connection, found.id)
    return {
        "users": [output.record_of(each, *names) for each in users],
        "invitations": [output.record_of(each, *names, "expires_at") for each in invitations],
    }


async def invite(
    connection: Connection,
    settings: Settings,
    account: str,
    email: Email,
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.OWNER,
) -> output.Record:
    """Make an invitation, whose link works once, for a week."""
    found = await keys.get_account(connection, account)
    try:
        token = await people.invite(connection, found.id, email, role)
    except people.UserExistsError:
        raise output.UsageError(f"{email} is in {account} already.") from None
    except people.TooManyPeopleError:
        raise output.UsageError(f"An account has at most {people.MOST_PEOPLE} people.") from None
    link = f"{_sign_in_address(settings)}?invitation={token}"
    return {"account": found.name, "email": email, "role": str(role), "invitationUrl": link}


async def change_role(
    connection: Connection,
    account: str,
    email: Email,
    role: Annotated[Role, typer.Argument(help="What they may do from now on.")],
) -> output.Record:
    """Give a user another role."""
    user = await _get_user(connection, account, email)
    with _last_owner_named(account, email):
        await people.change_role(connection, user.account_id, user.id, role)
    return {"account": account, "email": user.email, "role": str(role)}


async def remove_user(connection: Connection, account: str, email: Email) -> output.Record:
    """Remove a user, who is signed out everywhere; keys that they made stay."""
    user = await _get_user(connection, account, email)
    with _last_owner_named(account, email):
        await people.remove_user(connection, user.account_id, user.id)
    return {"account": account, "email": user.email, "removed": True}


@contextlib.contextmanager
def _last_owner_named(account: str, email: str) -> Iterator[None]:
    """Raises UsageError in place of people.LastOwnerError."""
    try:
        yield
    except people.LastOwnerError:
        raise output.UsageError(f"{email} is the only owner of {account}.") from None


async def _get_user(connection: Connection, account: str, email: str) -> tables.User:
    """Raises UsageError and keys.AccountNotFoundError."""
    owner = await keys.get_account(connection, account)
    user = await people.find_user(connection, owner.id, email)
    if user is None:
        raise output.UsageError(f"There is no user {email} in {account}.")
    return user


async def create_session(
    connection: Connection,
    settings: Settings,
    account: Whose = None,
    operator: OperatorOption = False,
    user: Annotated[
        str | None, typer.Option(help="E-mail address; without it the link is an owner's.")
    ] = None,
) -> output.Record:
    """Make a one-time link that signs in to the dashboard."""
    _require_one(account, operator)
    made: output.Record = {}
    if account is None:
        token = await keys.create_operator_link(connection)
    else:
        found = await keys.get_account(connection, account)
        owner = None if user is None else (await _get_user(connection, account, user)).id
        token = await keys.create_sign_in_link(connection, found.id, owner)
        made = {"account": found.name}
    return made | {
        "signInUrl": f"{_sign_in_address(settings)}?token={token}",
        "token": token,
        "expiresInSeconds": int(keys.SIGN_IN_LINK_LIFETIME.total_seconds()),
    }


def _sign_in_address(settings: Settings) -> str:
    from serve_app.deployment.local import with_running_address
    from serve_app.deployment.proxy import public_address

    running, _ = with_running_address(settings)
    return f"{public_address(running)}{SIGN_IN_PATH}"


async def list_sessions(
    connection: Connection, account: Whose = None, operator: OperatorOption = False
) -> output.Record:
    """List who may be in the dashboard: sessions, and links for one that nobody has used yet."""
    found = await keys.list_sign_ins(connection, await _find_id(connection, account, operator))
    return {
        "sessions": [
            {"kind": "link" if each.is_link else "session"} | output.record_of(each, "expires_at")
            for each in found
        ]
    }


async def end_sessions(
    connection: Connection, account: Whose = None, operator: OperatorOption = False
) -> output.Record:
    """End all sessions of an account, or all of operators; unused links open nothing any more."""
    account_id = await _find_id(connection, account, operator)
    return {"ended": await keys.end_sign_ins(connection, account_id)}


async def _find_id(connection: Connection, account: str | None, operator: bool) -> UUID | None:
    """Return None for operators. Raises UsageError and keys.AccountNotFoundError."""
    _require_one(account, operator)
    return None if account is None else (await keys.get_account(connection, account)).id


def _require_one(account: str | None, operator: bool) -> None:
    """Raises UsageError."""
    if operator == (account is not None):
        raise output.UsageError("Name an account, or give --operator, one of both.")


def demo_key(settings: Settings) -> str:
    """Return the key that ``ensure_demo_account`` gives in the database of ``settings``."""

    async def ensure(connection: Connection, complete: Settings) -> str:
        key = await ensure_demo_account(connection, complete.data_dir)
        # Something encrypted, by which a start with another secret key is noticed.
        await signing_secret(connection, complete, "demo")
        return key

    return output.in_service(settings, ensure, existing=False)


async def ensure_demo_account(connection: Connection, data_dir: Path) -> str:
    """Return a key of the local account ``demo``, which gets some credits.

    The key is kept in ``data_dir`` and replaced once it is valid no more: revoked, rotated, or of
    another database.
    """
    from serve_app.deployment.data import write_privately

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


async def signing_secret(
    connection: Connection,
    settings: Settings,
    account: Annotated[str, typer.Argument(help="Name or id.")],
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace it; for 24 hours both sign.")
    ] = False,
) -> output.Record:
    """Print the secret that an account's webhooks are signed with; made where there is none."""
    from serve_app.webhooks.signing import new_signing_secret

    found = await keys.get_account(connection, account)
    encrypter = output.encrypter_of(settings)
    get = webhooks.rotate_signing_secret if rotate else webhooks.get_or_create_signing_secret
    stored = await get(connection, found.id, encrypter.encrypt(new_signing_secret()))
    secret = {"account": found.name, "secret": encrypter.decrypt(stored.current)}
    return secret | output.record_of(stored, "created_at", "rotated_at")


async def list_audit(
    connection: Connection,
    account: str,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most entries.")] = 100,
) -> output.Record:
    """List who did what, the latest first."""
    found = await keys.get_account(connection, account)
    entries = await audit.list_entries(connection, found.id, before=2**62, limit=limit)
    names = ("position", "createdAt", "actor", "action", "jobId", "target", "detail", "address")
    rows: list[output.Record] = [each.json() for each in entries]
    return {"entries": [{name: row[name] for name in names} for row in rows]}


def audit_export(
    account: str,
    out: Annotated[Path | None, typer.Option(help="A file; standard output without it.")] = None,
    data: output.DataOption = None,
) -> None:
    """Write an account's whole audit log, an entry as JSON a line."""
    from serve_app.keys.routes import entry_line

    async def export(connection: Connection) -> None:
        found = await keys.get_account(connection, account)
        with sys.stdout if out is None else out.open("w", encoding="utf-8") as target:
            async for entry in audit.read_chain(connection, found.id):
                target.write(entry_line(entry))

    output.fetch(data, export)


def audit_verify(
    account: Annotated[str | None, typer.Argument(help="Whose log in the database.")] = None,
    file: Annotated[Path | None, typer.Option(help="An export, verified by itself.")] = None,
    data: output.DataOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Verify that no entry was changed, taken out or put in; with an account and an export, that
    the account's log goes on from the export too. Exits 1 where it does not."""
    from serve_app.keys.routes import read_lines

    exported = audit.ChainCheck()
    if file is not None:
        try:
            with file.open(encoding="utf-8") as lines:
                _require_whole(str(file), exported, list(read_lines(lines)))
        except (OSError, ValueError) as error:
            raise output.UsageError(f"{file} is no export of an audit log: {error}") from None
    if account is None:
        if file is None:
            raise output.UsageError("Name an account, or an export with --file, or both.")
        output.show({"entries": exported.position, "lastHash": exported.hash}, as_json=as_json)
        return

    async def verify(connection: Connection) -> output.Record:
        found = await keys.get_account(connection, account)
        check, met = audit.ChainCheck(), exported.position == 0
        if await audit.count_unplaced(connection, found.id):
            raise output.UsageError(f"The log of {account} is broken: an entry has no place in it.")
        async for entry in audit.read_chain(connection, found.id):
            _require_whole(f"The log of {account}", check, [entry])
            met = met or (check.position, check.hash) == (exported.position, exported.hash)
        if not met:
            raise output.UsageError(f"The log of {account} does not go on from {file}.")
        return {"account": found.name, "entries": check.position, "lastHash": check.hash}

    output.show(output.fetch(data, verify), as_json=as_json)


def _require_whole(name: str, check: ChainCheck, entries: list[AuditEntry]) -> None:
    """Raises UsageError."""
    for entry in entries:
        if reason := check.find_break(entry):
            raise output.UsageError(f"{name} is broken. {reason}")


accounts_app = output.group(
    "Accounts.",
    {
        "create": create_account,
        "suspend": suspend,
        "throttle": throttle,
        "resume": resume,
        "limit": limit,
        "queue": set_share,
        "retain": retain,
        "erase": output.operation(erase, "Erase all that {account} has? It cannot be undone."),
    },
)
legal_hold = output.operation(put_legal_hold)
keys_app = output.group(
    "API keys.", {"create": create_key, "list": list_keys, "revoke": revoke_key}
)
users_app = output.group(
    "People in an account.",
    {"list": list_users, "invite": invite, "role": change_role, "remove": remove_user},
)
sessions_app = output.group(
    "Dashboard sessions.", {"create": create_session, "list": list_sessions, "end": end_sessions}
)
audit_app = output.group(
    "Audit logs of accounts.", {"list": list_audit, "export": audit_export, "verify": audit_verify}
)
