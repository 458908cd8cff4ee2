"""``vas``: run the service, analyse a file, look after accounts."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx
import typer

from pipelines.execution.ray_start import RayStartError
from serve_app.cli.accounts import (
    accounts_app,
    create_session,
    demo_key,
    keys_app,
    sessions_app,
)
from serve_app.cli.backfill import BACKFILL_ERRORS, backfill_app
from serve_app.cli.backup import back_up, restore
from serve_app.cli.library import export_job, serve_agents
from serve_app.cli.models import MODEL_ERRORS, models_app
from serve_app.cli.money import MONEY_ERRORS, add_money_commands
from serve_app.cli.output import (
    DataOption,
    JsonOption,
    Mode,
    UsageError,
    base_address,
    console,
    errors,
    in_service,
    settings_with,
    show,
    stop_signal,
    usable_key,
)
from serve_app.cli.search import search
from serve_app.cli.watch import watch
from serve_app.cli.webhooks import WEBHOOK_ERRORS, webhooks_app
from serve_app.client.api import ApiError
from serve_app.context import ContentPolicyError
from serve_app.deployment.local import LOCAL_ERRORS
from serve_app.deployment.model_choice import chosen_models
from serve_app.deployment.proxy import HaproxyFolderError, export_lines, node_environment
from serve_app.observability.tracing import TracingNotInstalledError
from serve_app.settings import InvalidSettingsError, Settings
from storage.backup import BackupError
from storage.keys import AccountExistsError, AccountNotFoundError, LimitTooLowError
from storage.ledger import InsufficientCreditsError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
policy_app = typer.Typer(no_args_is_help=True, help="Content policy.")
app.add_typer(accounts_app, name="accounts")
app.add_typer(keys_app, name="keys")
app.add_typer(sessions_app, name="sessions")
add_money_commands(app, accounts_app)
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(policy_app, name="policy")
app.add_typer(models_app, name="models")
app.add_typer(backfill_app, name="backfill")
app.command()(search)
app.command()(watch)
app.command("export")(export_job)
app.command("mcp")(serve_agents)
app.command("backup")(back_up)
app.command()(restore)


NAMED_ERRORS = (
    AccountExistsError,
    AccountNotFoundError,
    InsufficientCreditsError,
    LimitTooLowError,
)
"""Errors that carry a name only; their docstring is the message."""

HaproxyFolderOption = Annotated[
    Path, typer.Option("--folder", help="Where HAProxy's script, configuration and sockets lie.")
]


def main() -> None:
    """Entry point: errors that a user can fix are printed as a sentence, with exit status 2.

    So are those of typer. 1 is for what was looked at and found wanting: a failed job, a finding.
    """
    try:
        app()
    except USER_ERRORS as error:
        errors.print(_sentence(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


USER_ERRORS = (
    *NAMED_ERRORS,
    *LOCAL_ERRORS,
    UsageError,
    InvalidSettingsError,
    ApiError,
    RayStartError,
    httpx.TransportError,
    *MONEY_ERRORS,
    *WEBHOOK_ERRORS,
    *MODEL_ERRORS,
    *BACKFILL_ERRORS,
    BackupError,
    HaproxyFolderError,
    ContentPolicyError,
    TracingNotInstalledError,
)


def _sentence(error: Exception) -> str:
    if isinstance(error, NAMED_ERRORS):
        return f"{error.__doc__} ({error})"
    if isinstance(error, httpx.TransportError):
        return f"The service cannot be reached ({error}): does it run, and is --url its address?"
    return str(error)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Port to listen on.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of Prometheus metrics.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the service until it is interrupted."""
    settings = settings_with(data, host=host, port=port, metrics_port=metrics_port)
    with _started(settings, quiet=as_json) as (base, key, complete):
        # With the settings completed: a second user of the data folder in this process would stop
        # the database as it leaves.
        link = in_service(complete, lambda c, s: create_session(c, s, "demo"))["signInUrl"]
        # Before anyone is told that the service is up, and may stop it.
        stop = stop_signal()
        if as_json:
            show({"baseUrl": base, "apiKey": key, "dashboardUrl": link}, as_json=True)
            sys.stdout.flush()
        else:
            console.print(f"Dashboard: {link}", style="bold", highlight=False, soft_wrap=True)
            _print_welcome(base, key)
        stop.wait()
    if not as_json:
        console.print("Stopped.")


@contextlib.contextmanager
def _started(settings: Settings, *, quiet: bool = False) -> Iterator[tuple[str, str, Settings]]:
    """A running service's base address, a key of its demo account, its settings completed."""
    from serve_app.deployment.local import prepared, running_service

    if not quiet:
        choice = chosen_models(settings)
        console.print(f"Models: {choice.profile} ({choice.reason})", highlight=False)
    status = contextlib.nullcontext() if quiet else console.status("Starting the service …")
    with contextlib.ExitStack() as stack:
        with status:
            complete = stack.enter_context(prepared(settings))
            base = stack.enter_context(running_service(complete))
            key = demo_key(complete)
        yield base, key, complete


def _print_welcome(base: str, key: str) -> None:
    console.print(f"[bold green]The service is up.[/]  Base URL: [bold]{base}[/]")
    console.print(f"API key (account demo, with credits): [bold]{key}[/]\n")
    console.print("Try it:\n", highlight=False)
    lines = (
        f"  export VAS_URL={base} VAS_KEY={key}",
        '  curl -s -X POST "$VAS_URL/jobs" -H "X-API-Key: $VAS_KEY" \\',
        "       -H 'Content-Type: application/json' -d '{\"fileName\": \"demo.mp4\"}'",
        '  curl -s -X PUT "<uploadUrl of the answer>" --data-binary @tests/media/demo.mp4',
        '  curl -s "$VAS_URL/jobs/<jobId of the answer>" -H "X-API-Key: $VAS_KEY"\n',
        '  vas analyze FILE --url "$VAS_URL" --key "$VAS_KEY"\n',
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print("Ctrl-C stops it.")


@app.command()
def analyze(
    source: Annotated[str, typer.Argument(metavar="FILE|URL", help="The video to analyse.")],
    mode: Annotated[Mode, typer.Option(help="Which stages to run.")] = Mode.ALL,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
    url: Annotated[
        str | None, typer.Option(envvar="VAS_URL", help="Base URL of a running service.")
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="VAS_KEY", help="API key.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Analyse a file: with a running service (--url, --key), else with one started for it."""
    from serve_app.cli.analyze import analyse_file

    _require_source(source)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is no folder: name another for the results with --out.")
    if url is not None:
        url, key = base_address(url), usable_key(key)
    with contextlib.ExitStack() as stack:
        if url is None:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vas-")))
            url, key, _ = stack.enter_context(_started(_own_service(folder), quiet=as_json))
        record = analyse_file(
            source,
            base_url=url,
            api_key=key or "",
            mode=mode.value,
            out=out,
            console=None if as_json else console,
        )
    if as_json:
        show(record, as_json=True)
    if record["state"] != "completed":
        raise typer.Exit(1)


def _require_source(source: str) -> None:
    """Raises UsageError where there is nothing to analyse."""
    if source.startswith(("http://", "https://")):
        return
    if Path(source).is_dir():
        raise UsageError(
            f"{source} is a folder: `python -m pipelines.backfill {shlex.quote(source)} RESULTS` "
            "analyses all of its files."
        )
    if not Path(source).is_file():
        raise UsageError(f"There is no file {source}: name one, or an http(s) URL.")


def _own_service(folder: Path) -> Settings:
    from serve_app.deployment.local import free_port

    return settings_with(folder, port=free_port())


@app.command()
def doctor(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check ports, disk, GPU, codecs, database, and each model with one real inference."""
    from serve_app.deployment.doctor import examine

    findings = examine(settings_with(data))
    if as_json:
        show({"checks": findings}, as_json=True)
    else:
        for finding in findings:
            mark = "[green]ok[/]  " if finding["ok"] else "[red]FAIL[/]"
            console.print(f"{mark} {finding['check']}: {finding['detail']}", highlight=False)
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)


@app.command("node-environment")
def print_node_environment(
    folder: HaproxyFolderOption = Path("~/.vas/haproxy"), as_json: JsonOption = False
) -> None:
    """Print what Ray must find in a node's environment, as lines for a shell to eval.

    eval "$(vas node-environment)" && ray start …
    """
    environment = node_environment(settings_with(), folder.expanduser().resolve())
    if as_json:
        show(dict(environment), as_json=True)
    else:
        sys.stdout.write(f"{export_lines(environment)}\n")


@policy_app.callback()
def _group() -> None:
    """Content policy."""


@policy_app.command("hash")
def policy_hash(
    files: Annotated[list[Path], typer.Argument(help="Pictures or videos.", exists=True)],
    every: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between stills of a video.")
    ] = 1.0,
    as_json: JsonOption = False,
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
                    _write(value, path, still.time_ms, as_json=as_json)
    except UnreadableMediaError as error:
        raise UsageError(str(error)) from error
    if not seen:
        errors.print("No picture was distinct enough to be recognised again; nothing to list.")
        raise typer.Exit(1)


def _write(value: int, path: Path, time_ms: int, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"hash": f"{value:016x}", "file": path.name, "timeMs": time_ms})
    else:
        line = f"{value:016x}  {path.name} at {time_ms / 1000:.3f} s"
    sys.stdout.write(line + "\n")
