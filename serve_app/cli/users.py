"""``vas users``: people in an account, as its owners manage them in the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    show_rows,
)
from serve_app.dashboard import SIGN_IN_PATH
from storage.types import Role

if TYPE_CHECKING:
    from serve_app.settings import Settings
    from storage.database import Connection
    from storage.people import Invitation, User

users_app = typer.Typer(no_args_is_help=True, help="People in an account.")

Email = Annotated[str, typer.Argument(help="Of the user.")]
RoleOption = Annotated[Role, typer.Option(help="What they may do.")]


@users_app.command("list")
def users_list(account: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List an account's users, and the invitations that nobody has accepted yet."""
    from serve_app.api.envelope import timestamp
    from storage import keys, people

    async def listed(connection: Connection) -> tuple[list[User], list[Invitation]]:
        found = await keys.get_account(connection, account)
        present = await people.list_users(connection, found.id)
        return present, await people.list_invitations(connection, found.id)

    users, invitations = fetch(data, listed)

    def row(each: User | Invitation) -> dict[str, object]:
        created = timestamp(each.created_at)
        return {"email": each.email, "role": str(each.role), "createdAt": created}

    present = [row(each) for each in users]
    invited = [row(each) | {"expiresAt": timestamp(each.expires_at)} for each in invitations]
    if as_json:
        show({"users": present, "invitations": invited}, as_json=True)
    else:
        show_rows([{"expiresAt": None} | each for each in (*present, *invited)])


@users_app.command("invite")
def users_invite(
    account: str,
    email: Email,
    role: RoleOption = Role.OWNER,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an invitation, whose link works once, for a week."""
    from serve_app.deployment.local import with_running_address
    from serve_app.deployment.proxy import public_address
    from storage import keys, people

    async def invite(connection: Connection, settings: Settings) -> dict[str, object]:
        found = await keys.get_account(connection, account)
        try:
            token = await people.invite(connection, found.id, email, role)
        except people.UserExistsError:
            raise UsageError(f"{email} is in {account} already.") from None
        except people.TooManyPeopleError:
            raise UsageError(f"An account has at most {people.MOST_PEOPLE} people.") from None
        running, _ = with_running_address(settings)
        link = f"{public_address(running)}{SIGN_IN_PATH}?invitation={token}"
        return {"account": found.name, "email": email, "role": str(role), "invitationUrl": link}

    show(in_service(settings_with(data), invite), as_json=as_json)


@users_app.command("role")
def users_role(
    account: str,
    email: Email,
    role: Annotated[Role, typer.Argument(help="What they may do from now on.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a user another role."""
    from storage import people

    async def change(connection: Connection) -> dict[str, object]:
        found = await _user(connection, account, email)
        try:
            await people.change_role(connection, found.account_id, found.id, role)
        except people.LastOwnerError:
            raise UsageError(f"{email} is the only owner of {account}.") from None
        return {"account": account, "email": found.email, "role": str(role)}

    administer(data, change, as_json)


@users_app.command("remove")
def users_remove(
    account: str, email: Email, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Remove a user, who is signed out everywhere; keys that they made stay."""
    from storage import people

    async def remove(connection: Connection) -> dict[str, object]:
        found = await _user(connection, account, email)
        try:
            await people.remove_user(connection, found.account_id, found.id)
        except people.LastOwnerError:
            raise UsageError(f"{email} is the only owner of {account}.") from None
        return {"account": account, "email": found.email, "removed": True}

    administer(data, remove, as_json)


async def _user(connection: Connection, account: str, email: str) -> User:
    """Raises UsageError and keys.AccountNotFoundError."""
    from storage import keys, people

    owner = await keys.get_account(connection, account)
    found = await people.find_user(connection, owner.id, email)
    if found is None:
        raise UsageError(f"There is no user {email} in {account}.")
    return found
