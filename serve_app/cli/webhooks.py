"""``vas webhooks listen | replay | secret``: try deliveries out, and send one again."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_app.cli.output import (
    DataOption,
    JsonOption,
    administer,
    console,
    encrypter_of,
    in_service,
    settings_with,
    show,
)

if TYPE_CHECKING:
    from serve_app.settings import Settings
    from storage.database import Connection


ADDRESS = "127.0.0.1"
LISTEN_FOLDER = "webhooks-listen"

webhooks_app = typer.Typer(no_args_is_help=True, help="Webhooks.")


@webhooks_app.command("replay")
def webhooks_replay(
    job: Annotated[str, typer.Argument(help="Id of a job that has ended.")],
    endpoint: Annotated[
        str | None, typer.Option(help="Its events to this endpoint of its account, by its id.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver a job's event again: eight new attempts under the same webhook-id.

    That of its callbackUrl, or with --endpoint all that an endpoint of its account gets.
    """
    from serve_app.jobs.service import replay

    administer(data, lambda connection: replay(connection, job, endpoint), as_json)


@webhooks_app.command("secret")
def webhooks_secret(
    account: Annotated[str, typer.Argument(help="Name or id.")],
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace it; for 24 hours both sign.")
    ] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the secret that an account's webhooks are signed with; made where there is none."""

    async def read(connection: Connection, complete: Settings) -> dict[str, Any]:
        return await signing_secret(connection, complete, account, rotate=rotate)

    show(in_service(settings_with(data), read), as_json=as_json)


async def signing_secret(
    connection: Connection, settings: Settings, account_name: str, *, rotate: bool
) -> dict[str, Any]:
    """Raises keys.AccountNotFoundError."""
    from serve_app.api.envelope import timestamp
    from serve_app.webhooks.signing import new_signing_secret
    from storage import keys, webhooks

    account = await keys.get_account(connection, account_name)
    encrypter = encrypter_of(settings)
    get = webhooks.rotate_signing_secret if rotate else webhooks.get_or_create_signing_secret
    stored = await get(connection, account.id, encrypter.encrypt(new_signing_secret()))
    return {
        "account": account.name,
        "secret": encrypter.decrypt(stored.current),
        "createdAt": timestamp(stored.created_at),
        "rotatedAt": timestamp(stored.rotated_at),
    }


@webhooks_app.command("listen")
def webhooks_listen(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1.")] = 8443,
    secret: Annotated[
        list[str] | None,
        typer.Option(envvar="VAS_WEBHOOK_SECRET", help="Signing secret, whsec_…; may be repeated."),
    ] = None,
    answer: Annotated[
        list[int] | None,
        typer.Option(min=200, max=599, help="Status to answer with; repeated: one after another."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without TLS, for use behind a tunnel.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Receive, verify and print deliveries on this machine until interrupted."""
    from serve_app.deployment.data import DataFolderError
    from serve_app.deployment.local import PortInUseError
    from serve_app.webhooks.listening import ACCEPTED, Listener, listening_server, own_certificate
    from serve_app.webhooks.signing import decode_secret

    for given in secret or []:
        decode_secret(given)
    listener = Listener(secret or [], _write, answer or [ACCEPTED])
    folder = settings_with(data).data_dir.expanduser().resolve() / LISTEN_FOLDER
    try:
        authority, tls = (None, None) if plain else own_certificate(folder)
    except OSError as error:
        message = f"{folder} cannot keep a certificate ({error.strerror}): name another data folder"
        raise DataFolderError(f"{message} with --data.") from error
    try:
        server = listening_server(listener, ADDRESS, port, tls)
    except OSError as error:
        message = f"Port {port} on {ADDRESS} cannot be used ({error.strerror}): name another with"
        raise PortInUseError(f"{message} --port.") from error
    with server, contextlib.suppress(KeyboardInterrupt):
        _write(_welcome(server.server_address[1], authority, verifies=bool(secret)))
        server.serve_forever()


def _welcome(port: int, authority: Path | None, *, verifies: bool) -> str:
    scheme = "http" if authority is None else "https"
    lines = [f"Listening on {scheme}://{ADDRESS}:{port}/  (Ctrl-C stops it)"]
    if authority is None:
        lines.append("Put an HTTPS tunnel before it and use the tunnel's address as callbackUrl.")
    else:
        trust = shlex.quote(str(authority))
        lines += [
            "A service on this machine may send here if it is started like this:",
            f"  VAS_ALLOWED_NETWORKS={ADDRESS} VAS_WEBHOOK_CA_FILE={trust} vas serve",
            "Then send a test event, or create jobs with this url as callbackUrl:",
            '  curl "$VAS_URL/webhooks/test" -H "X-API-Key: $VAS_KEY" \\',
            "       -H 'Content-Type: application/json' \\",
            f"       -d '{json.dumps({'url': f'https://{ADDRESS}:{port}/'})}'",
        ]
    if not verifies:
        lines.append("Nothing is verified without --secret: vas webhooks secret ACCOUNT prints it.")
    return "\n".join(lines)


def _write(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
