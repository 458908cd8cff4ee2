"""People in an account: users with their roles, invitations, and sessions, each in one transaction
with its entry in the audit log."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Uuid, delete, func, insert, literal, null, or_, select, union_all, update

from storage.audit import act_as, current_actor, record
from storage.database import Connection
from storage.keys import fingerprint, lock_account, start_session
from storage.records import columns, from_row, read, read_one
from storage.tables import (
    Flow,
    Invitation,
    User,
    accounts,
    api_keys,
    display_key,
    invitations,
    oidc_flows,
    sessions,
    users,
)
from storage.types import ActorKind, Role

__all__ = ["Flow"]

INVITATION_LIFETIME = timedelta(days=7)
FLOW_LIFETIME = timedelta(minutes=10)
MOST_PEOPLE = 500
"""Users and open invitations of an account together."""


class LastOwnerError(Exception):
    """The account would have users, and none of them an owner."""


class TooManyPeopleError(Exception):
    """An account has MOST_PEOPLE."""


class UserExistsError(Exception):
    """A user of the account has that address."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session that is not over, without its token."""

    id: uuid.UUID
    user_id: uuid.UUID | None
    email: str | None
    """None: of a one-time link of the account."""
    address: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Identity:
    """A user whom an issuer's claims may sign in; without ``user_id`` an invitation makes them."""

    user_id: uuid.UUID | None
    account_id: uuid.UUID
    account_name: str


_PRESENT = users.c.removed_at.is_(None)
_OPEN = invitations.c.used_at.is_(None) & (invitations.c.expires_at > func.now())


def canonical_email(email: str) -> str:
    """Of the same mailbox, as far as can be known, the same text."""
    return email.strip().lower()


async def list_users(connection: Connection, account_id: uuid.UUID) -> list[User]:
    """Return the account's users by address."""
    query = select(*columns(User)).where(users.c.account_id == account_id, _PRESENT)
    return await read(connection, User, query.order_by(users.c.email))


async def list_names(connection: Connection, account_id: uuid.UUID) -> dict[uuid.UUID, str]:
    """Return what the actors of the account's audit log are called: addresses of users, those who
    were removed too, and keys without their secrets."""
    people = select(users.c.id, users.c.email).where(users.c.account_id == account_id)
    own = select(api_keys.c.id, api_keys.c.name, api_keys.c.last_four).where(
        api_keys.c.account_id == account_id
    )
    return {
        **{row.id: row.email for row in await connection.execute(people)},
        **{row.id: row.name or display_key(row.last_four) for row in await connection.execute(own)},
    }


async def find_user(connection: Connection, account_id: uuid.UUID, email: str) -> User | None:
    """By address."""
    wanted = canonical_email(email)
    found = await list_users(connection, account_id)
    return next((each for each in found if each.email == wanted), None)


async def list_invitations(connection: Connection, account_id: uuid.UUID) -> list[Invitation]:
    """Return the account's open invitations, the latest first."""
    query = select(*columns(Invitation)).where(invitations.c.account_id == account_id, _OPEN)
    return await read(connection, Invitation, query.order_by(invitations.c.created_at.desc()))


async def invite(connection: Connection, account_id: uuid.UUID, email: str, role: Role) -> str:
    """Return a token that makes whoever has it a user, once; an earlier one for the address is
    void.

    Raises UserExistsError and TooManyPeopleError.
    """
    await lock_account(connection, account_id)
    address, token = canonical_email(email), secrets.token_urlsafe(32)
    present = await list_users(connection, account_id)
    if any(each.email == address for each in present):
        raise UserExistsError(address)
    await connection.execute(
        delete(invitations).where(
            invitations.c.account_id == account_id,
            (invitations.c.email == address) & invitations.c.used_at.is_(None),
        )
    )
    if len(present) + len(await list_invitations(connection, account_id)) >= MOST_PEOPLE:
        raise TooManyPeopleError(str(account_id))
    values = {
        "id": uuid.uuid4(),
        "account_id": account_id,
        "email": address,
        "role": role,
        "token_sha256": fingerprint(token),
        "expires_at": func.now() + INVITATION_LIFETIME,
    }
    await connection.execute(insert(invitations).values(values))
    await record(connection, account_id, "invite", target=values["id"], detail=f"role={role}")
    return token


async def withdraw_invitation(
    connection: Connection, account_id: uuid.UUID, invitation_id: uuid.UUID
) -> bool:
    """Return whether an open invitation was there to withdraw."""
    statement = delete(invitations).where(
        invitations.c.account_id == account_id, invitations.c.id == invitation_id, _OPEN
    )
    withdrawn = (await connection.execute(statement)).rowcount == 1
    if withdrawn:
        await record(connection, account_id, "withdrawInvitation", target=invitation_id)
    return withdrawn


async def find_invitation(connection: Connection, token: str) -> tuple[Invitation, str] | None:
    """Return the open invitation that a token is of, and the name of its account."""
    query = (
        select(*columns(Invitation), accounts.c.name.label("account_name"))
        .join(accounts, accounts.c.id == invitations.c.account_id)
        .where(invitations.c.token_sha256 == fingerprint(token), _OPEN)
    )
    row = (await connection.execute(query)).mappings().first()
    return None if row is None else (from_row(Invitation, row), row["account_name"])


async def accept_invitation(
    connection: Connection, invitation: str | uuid.UUID, issued: tuple[str, str] | None = None
) -> str | None:
    """Return a session of the user that an open invitation makes; None where it is not open.

    ``invitation`` is its token, or its id where an issuer has verified the invited address. Who has
    the token alone may be anybody, so only ``issued``, issuer and subject, lets OpenID Connect sign
    the user in later.
    """
    own = invitations.c
    given = (
        own.token_sha256 == fingerprint(invitation)
        if isinstance(invitation, str)
        else (own.id == invitation)
    )
    statement = (
        update(invitations)
        .where(given, _OPEN)
        .values(used_at=func.now())
        .returning(
            invitations.c.id, invitations.c.account_id, invitations.c.email, invitations.c.role
        )
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    user_id = uuid.uuid4()
    values = {"id": user_id, "account_id": row.account_id, "email": row.email, "role": row.role}
    if issued is not None:
        values["issuer"], values["subject"] = issued
    await connection.execute(insert(users).values(values))
    act_as(current_actor().being(ActorKind.USER, user_id))
    await record(
        connection, row.account_id, "acceptInvitation", target=row.id, detail=f"role={row.role}"
    )
    return await start_session(connection, row.account_id, user_id)


async def change_role(
    connection: Connection, account_id: uuid.UUID, user_id: uuid.UUID, role: Role
) -> bool:
    """Return False without such a user. It takes effect with the next request of each of their
    sessions.

    Raises LastOwnerError.
    """
    return await _change_user(connection, account_id, user_id, role)


async def remove_user(connection: Connection, account_id: uuid.UUID, user_id: uuid.UUID) -> bool:
    """Return False without such a user. Their sessions end; keys that they made are the account's,
    and stay. Raises LastOwnerError."""
    if not await _change_user(connection, account_id, user_id, None):
        return False
    await connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
    return True


async def _change_user(
    connection: Connection, account_id: uuid.UUID, user_id: uuid.UUID, role: Role | None
) -> bool:
    # The lock makes two owners who remove each other come one after the other.
    await lock_account(connection, account_id)
    present = {each.id: each for each in await list_users(connection, account_id)}
    if user_id not in present:
        return False
    owners = {each.id for each in present.values() if each.role is Role.OWNER}
    if role is not Role.OWNER and owners == {user_id}:
        raise LastOwnerError(str(account_id))
    values = {"removed_at": func.now()} if role is None else {"role": role}
    await connection.execute(update(users).where(users.c.id == user_id).values(values))
    action = "removeUser" if role is None else "changeRole"
    detail = None if role is None else f"from={present[user_id].role} role={role}"
    await record(connection, account_id, action, target=user_id, detail=detail)
    return True


async def list_sessions(connection: Connection, account_id: uuid.UUID) -> list[SessionRecord]:
    """Return the account's sessions that are not over, the latest first."""
    own = sessions.c
    query = (
        select(own.id, own.user_id, users.c.email, own.address, own.created_at, own.expires_at)
        .outerjoin(users, users.c.id == own.user_id)
        .where(own.account_id == account_id, own.expires_at > func.now())
        .order_by(own.created_at.desc())
    )
    return [SessionRecord(*row) for row in await connection.execute(query)]


async def end_session_of(
    connection: Connection, account_id: uuid.UUID, session_id: uuid.UUID
) -> bool:
    """Return whether such a session was there to end."""
    statement = delete(sessions).where(
        sessions.c.account_id == account_id, sessions.c.id == session_id
    )
    ended = (await connection.execute(statement)).rowcount == 1
    if ended:
        await record(connection, account_id, "endSession", target=session_id)
    return ended


async def keep_flow(connection: Connection, flow: Flow) -> None:
    """Remember a sign-in until it is answered."""
    values = {
        "state_sha256": fingerprint(flow.state),
        "browser_sha256": fingerprint(flow.browser),
        "expires_at": func.now() + FLOW_LIFETIME,
        **{each.name: getattr(flow, each.name) for each in columns(Flow)},
    }
    await connection.execute(insert(oidc_flows).values(values))


async def take_flow(connection: Connection, state: str, browser: str) -> Flow | None:
    """Return the sign-in that this browser began, which nobody can answer again; None without."""
    known = oidc_flows.c
    statement = (
        delete(oidc_flows)
        .where(
            known.state_sha256 == fingerprint(state),
            known.browser_sha256 == fingerprint(browser),
            known.expires_at > func.now(),
        )
        .returning(*columns(Flow), literal(state).label("state"), literal(browser).label("browser"))
    )
    return await read_one(connection, Flow, statement)


async def find_identities(
    connection: Connection, issuer: str, subject: str, email: str | None, flow: Flow
) -> list[Identity]:
    """Return whom an issuer's subject may sign in as, by account.

    These are the users that the subject is connected with, and, where the issuer has verified
    their address, the user who began this sign-in and the invitation that it accepts. A user's
    address alone opens nothing: whoever invited them may have accepted the invitation as well.
    """
    mailbox = canonical_email(email or "")
    known = (users.c.issuer == issuer) & (users.c.subject == subject)
    connects = (users.c.id == flow.user_id) & users.c.subject.is_(None) & (users.c.email == mailbox)
    invited = (invitations.c.id == flow.invitation_id) & (invitations.c.email == mailbox) & _OPEN
    sources = (
        select(users.c.id, users.c.account_id).where(_PRESENT, or_(known, connects)),
        select(null().cast(Uuid).label("id"), invitations.c.account_id).where(invited),
    )
    found = union_all(*sources).subquery()
    query = (
        select(found.c.id, found.c.account_id, accounts.c.name)
        .join(accounts, accounts.c.id == found.c.account_id)
        .where(accounts.c.suspended_at.is_(None))
        .order_by(accounts.c.name)
    )
    return [Identity(*row) for row in await connection.execute(query)]


async def sign_in_identity(connection: Connection, issuer: str, flow: Flow) -> str | None:
    """Return a session of the user that ``flow`` ended with, who is its subject's from now on.

    None where the user or the invitation is there no more.
    """
    if flow.user_id is None:
        if flow.invitation_id is None or flow.subject is None:
            return None
        return await accept_invitation(connection, flow.invitation_id, (issuer, flow.subject))
    own = (users.c.issuer == issuer) & (users.c.subject == flow.subject)
    statement = (
        update(users)
        .where(users.c.id == flow.user_id, _PRESENT, or_(users.c.subject.is_(None), own))
        .values(issuer=issuer, subject=flow.subject)
        .returning(users.c.account_id)
    )
    account_id = (await connection.execute(statement)).scalar_one_or_none()
    return None if account_id is None else await start_session(connection, account_id, flow.user_id)
