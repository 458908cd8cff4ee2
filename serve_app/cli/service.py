"""``vas serve | doctor | policy | node-environment | models | webhooks``: the service on this
machine, the weights that it needs, and webhooks tried out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from serve_app.cli import output
from serve_app.cli.accounts import create_session, demo_key, signing_secret

if TYPE_CHECKING:
    from models.profiles import Choice, ListedWeights
    from serve_app.settings import Settings
    from storage.database import Connection

LISTEN_ADDRESS = "127.0.0.1"
LISTEN_FOLDER = "webhooks-listen"
PROFILES = ("packaged", "cpu", "cpu-transformers", "gpu")
"""Of the registry, whose import the help need not wait for."""

ProfileOption = Annotated[
    str | None, typer.Option("--profile", help=f"{', '.join(PROFILES)}; else what serves here.")
]
FolderOption = Annotated[
    Path | None, typer.Option("--to", help="Models folder (default: VAS_MODELS_DIR).")
]
HaproxyFolderOption = Annotated[
    Path, typer.Option("--folder", help="Where HAProxy's script, configuration and sockets lie.")
]


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Port to listen on.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of Prometheus metrics.")
    ] = None,
    data: output.DataOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Run the service until it is interrupted."""
    settings = output.settings_with(data, host=host, port=port, metrics_port=metrics_port)
    with started(settings, quiet=as_json) as (base, key, complete):
        # With the settings completed: a second user of the data folder in this process would stop
        # the database as it leaves.
        link = output.in_service(complete, lambda c, s: create_session(c, s, "demo"))["signInUrl"]
        # Before the line that the service is up, after which anyone may stop it.
        stop = output.stop_signal()
        if as_json:
            output.show({"baseUrl": base, "apiKey": key, "dashboardUrl": link}, as_json=True)
            sys.stdout.flush()
        else:
            output.console.print(
                f"Dashboard: {link}", style="bold", highlight=False, soft_wrap=True
            )
            _print_welcome(base, key)
        stop.wait()
    if not as_json:
        output.console.print("Stopped.")


@contextlib.contextmanager
def started(settings: Settings, *, quiet: bool = False) -> Iterator[tuple[str, str, Settings]]:
    """A running service's base address, a key of its demo account, its settings completed."""
    from serve_app.deployment.local import running_service

    def print_choice(choice: Choice) -> None:
        if not quiet:
            output.console.print(f"Models: {choice.name} ({choice.reason})", highlight=False)

    status = contextlib.nullcontext() if quiet else output.console.status("Starting the service …")
    with contextlib.ExitStack() as stack:
        with status:
            serving = running_service(settings, on_choice=print_choice)
            base, complete = stack.enter_context(serving)
            key = demo_key(complete)
        yield base, key, complete


def _print_welcome(base: str, key: str) -> None:
    output.console.print(f"[bold green]The service is up.[/]  Base URL: [bold]{base}[/]")
    output.console.print(f"API key (account demo, with credits): [bold]{key}[/]\n")
    output.console.print("Try it:\n", highlight=False)
    lines = (
        f"  export VAS_URL={base} VAS_KEY={key}",
        '  curl -s -X POST "$VAS_URL/jobs" -H "X-API-Key: $VAS_KEY" \\',
        "       -H 'Content-Type: application/json' -d '{\"fileName\": \"demo.mp4\"}'",
        '  curl -s -X PUT "<uploadUrl of the answer>" --data-binary @tests/media/demo.mp4',
        '  curl -s "$VAS_URL/jobs/<jobId of the answer>" -H "X-API-Key: $VAS_KEY"\n',
        '  vas analyze FILE --url "$VAS_URL" --key "$VAS_KEY"\n',
    )
    for line in lines:
        output.console.print(line, highlight=False, markup=False, soft_wrap=True)
    output.console.print("Ctrl-C stops it.")


def doctor(data: output.DataOption = None, as_json: output.JsonOption = False) -> None:
    """Check ports, disk, GPU, codecs, database, and each model with one real inference."""
    from serve_app.deployment.doctor import examine

    show_checks(examine(output.settings_with(data)), as_json=as_json)


def show_checks(findings: list[output.Record], *, as_json: bool) -> None:
    """Print findings. Raises Exit of typer with status 1 where one is not ok."""
    if as_json:
        output.show({"checks": findings}, as_json=True)
    else:
        for finding in findings:
            mark = "[green]ok[/]  " if finding["ok"] else "[red]FAIL[/]"
            line = f"{mark} {finding['check']}: {escape(finding['detail'])}"
            output.console.print(line, highlight=False, soft_wrap=True)
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)


def print_node_environment(
    folder: HaproxyFolderOption = Path("~/.vas/haproxy"), as_json: output.JsonOption = False
) -> None:
    """Print what Ray must find in a node's environment, as lines for a shell.

    eval "$(vas node-environment)" && ray start …
    """
    from serve_app.deployment.proxy import export_lines, node_environment

    environment = node_environment(output.settings_with(), folder.expanduser().resolve())
    if as_json:
        output.show(dict(environment), as_json=True)
    else:
        sys.stdout.write(f"{export_lines(environment)}\n")


def policy_hash(
    files: Annotated[list[Path], typer.Argument(help="Pictures or videos.", exists=True)],
    every: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between stills of a video.")
    ] = 1.0,
    as_json: output.JsonOption = False,
) -> None:
    """Print perceptual hashes to put into VAS_BLOCKED_HASHES_FILE, a line each."""
    # Loads libraries of pictures, which no other command needs.
    from pipelines.vision.blocked_pictures import UnreadableMediaError, listed_stills

    seen: set[int] = set()
    try:
        for path in files:
            for still in listed_stills(path, every):
                fresh = [value for value in still.hashes if value not in seen]
                seen.update(fresh)
                for value in fresh:
                    found = {"hash": f"{value:016x}", "file": path.name, "timeMs": still.time_ms}
                    line = f"{value:016x}  {path.name} at {still.time_ms / 1000:.3f} s"
                    sys.stdout.write(f"{json.dumps(found) if as_json else line}\n")
    except UnreadableMediaError as error:
        raise output.UsageError(str(error)) from error
    if not seen:
        output.errors.print(
            "No picture was distinct enough to be recognised again; nothing to list."
        )
        raise typer.Exit(1)


def models_list(
    profile: ProfileOption = None, to: FolderOption = None, as_json: output.JsonOption = False
) -> None:
    """Show a profile's models: repository, revision, licence, whether they are here."""
    from models.backends.plugins import installed
    from models.registry import REGISTRY, own_profile

    folder = to or output.settings_with().models_dir
    chosen = _profile(profile)
    rows = _rows(chosen, folder)
    uses = {plugin: [task.name for task, row in REGISTRY[chosen].items() if row.plugin == plugin]
            for plugin, _ in installed()}  # fmt: skip
    if as_json:
        output.show({"profile": own_profile(chosen), "models": rows, "plugins": uses}, as_json=True)
        return
    output.console.print(f"Profile {own_profile(chosen)}", highlight=False)
    output.show_rows(rows, "models")
    for plugin, done in uses.items():
        use = f"does {', '.join(done)}" if done else "is installed, not in use"
        output.console.print(f"Plug-in {plugin} {use}", highlight=False)


def _rows(profile: str, folder: Path | None) -> list[output.Record]:
    from models.profiles import listed_weights

    return [
        {
            "task": each.task,
            "repository": each.weights.origin,
            "revision": each.weights.version[:12],
            "licence": each.weights.licence,
            "carrier": each.weights.carrier,
            "optional": "yes" if each.optional else "no",
            "here": each.weights.state(folder),
        }
        for each in listed_weights(profile)
    ]


def models_check(
    plugin: Annotated[str, typer.Argument(help="Name of an installed plug-in.")],
    to: FolderOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Try a plug-in's models by the contracts of their tasks, whether or not it is in use."""
    from models.backends.plugins import rows_of
    from models.conformance import examinations
    from models.provider import LocalModels
    from models.registry import with_others
    from serve_app.deployment.doctor import finding

    models = LocalModels(
        with_others("packaged", {}, [plugin]), to or output.settings_with().models_dir
    )
    found = [
        finding(f"{task.name}: {name}", examine)
        for task in rows_of(plugin)
        for name, examine in examinations(task, models.get(task))
    ]
    show_checks(found, as_json=as_json)


def models_pull(
    profile: ProfileOption = None,
    to: FolderOption = None,
    task: Annotated[
        str | None, typer.Option(help="This one alone, e.g. embed_pictures beside packaged.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Fetch everything a profile needs into the models folder; what is there is kept.

    HF_TOKEN opens repositories whose terms its account has accepted.
    """
    from models.profiles import pulled_weights
    from models.weights import Checkpoint
    from serve_app.deployment.model_choice import ModelProfileError, missing_packages

    folder = to or output.settings_with().models_dir
    if folder is None:
        raise output.UsageError("Name a folder: --to FOLDER, or VAS_MODELS_DIR.")
    folder = folder.expanduser().resolve()
    chosen = _profile(profile)
    wanted = pulled_weights(chosen, task, folder)
    if not wanted:
        names = ", ".join(dict.fromkeys(row["task"] for row in _rows(chosen, folder)))
        raise output.UsageError(f"--task: {task!r} is none of {names}.")
    from_hub = any(isinstance(each.weights, Checkpoint) for each in wanted)
    if from_hub and "transformers" in missing_packages():
        raise ModelProfileError(f"Profile {chosen} needs more packages: install extra models.")
    fetched = _pull_all(wanted, folder, quiet=as_json)
    if as_json:
        output.show({"folder": str(folder), "models": fetched}, as_json=True)


def _pull_all(wanted: list[ListedWeights], folder: Path, *, quiet: bool) -> list[str]:
    """Return each in turn; a gated one does not keep the others from being fetched."""
    from models.weights import GatedCheckpointError

    closed: list[GatedCheckpointError] = []
    fetched: dict[str, None] = {}
    for weights in dict.fromkeys(each.weights for each in wanted):
        if not quiet:
            output.console.print(f"{weights.origin} @ {weights.version[:12]}", highlight=False)
        try:
            weights.pull(folder, os.environ.get("HF_TOKEN"))
        except GatedCheckpointError as error:
            closed.append(error)
        else:
            fetched[weights.name] = None
    for refusal in closed:
        output.errors.print(f"[red]{refusal}[/]", soft_wrap=True)
    if closed:
        sys.exit(2)
    return list(fetched)


def _profile(name: str | None) -> str:
    from serve_app.deployment.model_choice import ModelProfileError, chosen_models, with_others_of

    if name is None:
        return chosen_models(output.settings_with()).profile
    if name not in PROFILES:
        raise ModelProfileError(f"--profile: {name!r} is none of {', '.join(PROFILES)}.")
    return with_others_of(output.settings_with().model_copy(update={"remote_models": {}}), name)


async def replay(
    connection: Connection,
    job: Annotated[str, typer.Argument(help="Id of a job that has ended.")],
    endpoint: Annotated[
        str | None, typer.Option(help="Its events to this endpoint of its account, by its id.")
    ] = None,
) -> output.Record:
    """Deliver a job's event again: eight new attempts under the same webhook-id.

    That of its callbackUrl, or with --endpoint all that an endpoint of its account gets.
    """
    from serve_app.jobs import service

    return await service.replay(connection, job, endpoint)


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
    data: output.DataOption = None,
) -> None:
    """Receive, verify and print deliveries on this machine until interrupted."""
    from serve_app.deployment.data import DataFolderError
    from serve_app.deployment.local import PortInUseError
    from serve_app.webhooks.listening import ACCEPTED, Listener, listening_server, own_certificate
    from serve_app.webhooks.signing import decode_secret

    for given in secret or []:
        decode_secret(given)
    listener = Listener(secret or [], _write, answer or [ACCEPTED])
    folder = output.settings_with(data).data_dir.expanduser().resolve() / LISTEN_FOLDER
    try:
        authority, tls = (None, None) if plain else own_certificate(folder)
    except OSError as error:
        message = f"{folder} cannot keep a certificate ({error.strerror}): name another data folder"
        raise DataFolderError(f"{message} with --data.") from error
    try:
        server = listening_server(listener, LISTEN_ADDRESS, port, tls)
    except OSError as error:
        message = (
            f"Port {port} on {LISTEN_ADDRESS} cannot be used ({error.strerror}): name another with"
        )
        raise PortInUseError(f"{message} --port.") from error
    with server, contextlib.suppress(KeyboardInterrupt):
        _write(_welcome(server.server_address[1], authority, verifies=bool(secret)))
        server.serve_forever()


def _welcome(port: int, authority: Path | None, *, verifies: bool) -> str:
    scheme = "http" if authority is None else "https"
    lines = [f"Listening on {scheme}://{LISTEN_ADDRESS}:{port}/  (Ctrl-C stops it)"]
    if authority is None:
        lines.append("Put an HTTPS tunnel before it and use the tunnel's address as callbackUrl.")
    else:
        trust = shlex.quote(str(authority))
        lines += [
            "A service on this machine may send here if it is started like this:",
            f"  VAS_ALLOWED_NETWORKS={LISTEN_ADDRESS} VAS_WEBHOOK_CA_FILE={trust} vas serve",
            "Then send a test event, or create jobs with this url as callbackUrl:",
            '  curl "$VAS_URL/webhooks/test" -H "X-API-Key: $VAS_KEY" \\',
            "       -H 'Content-Type: application/json' \\",
            f"       -d '{json.dumps({'url': f'https://{LISTEN_ADDRESS}:{port}/'})}'",
        ]
    if not verifies:
        lines.append("Nothing is verified without --secret: vas webhooks secret ACCOUNT prints it.")
    return "\n".join(lines)


def _write(line: str) -> None:
    output.console.print(line, highlight=False, markup=False, soft_wrap=True)


policy_app = output.group("Content policy.", {"hash": policy_hash})
models_app = output.group(
    "Model weights.", {"list": models_list, "pull": models_pull, "check": models_check}
)
webhooks_app = output.group(
    "Webhooks.", {"replay": replay, "secret": signing_secret, "listen": webhooks_listen}
)
