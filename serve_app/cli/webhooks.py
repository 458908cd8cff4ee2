"""``vas webhooks listen | replay``: try deliveries out, and send one again."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.output import DataOption, JsonOption, administer, console, settings_with
from serve_app.deployment.local import PortInUseError
from serve_app.jobs.lifecycle import ReplayError, replay
from serve_app.webhooks.listening import ACCEPTED, Listener, listening_server, own_certificate
from serve_app.webhooks.signing import SECRET_PREFIX, InvalidSecretError, decode_secret

WEBHOOK_ERRORS = (ReplayError, InvalidSecretError)
"""What a user can fix; each message is a sentence."""

ADDRESS = "127.0.0.1"
LISTEN_FOLDER = "webhooks-listen"

webhooks_app = typer.Typer(no_args_is_help=True, help="Webhooks.")


@webhooks_app.command("replay")
def webhooks_replay(
    job: Annotated[str, typer.Argument(help="Id of a job that has ended.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver a job's event again: eight new attempts under the same webhook-id."""
    administer(data, lambda connection: replay(connection, job), as_json)


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
    for given in secret or []:
        decode_secret(given)
    listener = Listener(secret or [], _write, answer or [ACCEPTED])
    folder = settings_with(data).data_dir.expanduser().resolve() / LISTEN_FOLDER
    authority, tls = (None, None) if plain else own_certificate(folder)
    try:
        server = listening_server(listener, ADDRESS, port, tls)
    except OSError as error:
        raise PortInUseError(f"Port {port} on {ADDRESS} cannot be used: {error}.") from error
    _write(_welcome(server.server_address[1], authority, verifies=bool(secret)))
    with server, contextlib.suppress(KeyboardInterrupt):
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
            f"  VAS_ALLOWED_NETWORKS='[\"127.0.0.0/8\"]' VAS_WEBHOOK_CA_FILE={trust} vas serve",
            f'Then create jobs with "callbackUrl": "https://{ADDRESS}:{port}/".',
        ]
    if not verifies:
        lines.append(
            f"Nothing is verified without --secret {SECRET_PREFIX}…: the dashboard shows it."
        )
    return "\n".join(lines)


def _write(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
