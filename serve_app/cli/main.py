"""``vas``: run the service, analyse a file, look after accounts."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import httpx
import typer

from pipelines.execution.ray_start import RayStartError
from serve_app.cli import accounts
from serve_app.cli.backfill import BACKFILL_ERRORS, backfill_app
from serve_app.cli.cluster import CLUSTER_ERRORS, add_cluster_commands
from serve_app.cli.models import MODEL_ERRORS, models_app
from serve_app.cli.money import MONEY_ERRORS, add_money_commands
from serve_app.cli.output import (
    DataOption,
    JsonOption,
    administer,
    console,
    errors,
    settings_with,
    show,
)
from serve_app.cli.policy import POLICY_ERRORS, policy_app
from serve_app.cli.webhooks import WEBHOOK_ERRORS, webhooks_app
from serve_app.client.api import ApiError
from serve_app.context import ContentPolicyError
from serve_app.deployment.local import PortInUseError, ServiceStartError
from serve_app.deployment.model_choice import chosen_models
from serve_app.settings import Settings
from storage.keys import AccountExistsError, AccountNotFoundError, LimitTooLowError
from storage.ledger import InsufficientCreditsError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
accounts_app = typer.Typer(no_args_is_help=True, help="Accounts.")
keys_app = typer.Typer(no_args_is_help=True, help="API keys.")
sessions_app = typer.Typer(no_args_is_help=True, help="Dashboard sessions.")
app.add_typer(accounts_app, name="accounts")
app.add_typer(keys_app, name="keys")
app.add_typer(sessions_app, name="sessions")
add_money_commands(app, accounts_app)
add_cluster_commands(app)
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(policy_app, name="policy")
app.add_typer(models_app, name="models")
app.add_typer(backfill_app, name="backfill")


class Mode(StrEnum):
    """Which analysis stages run."""

    ALL = "all"
    VISION = "vision"
    TRANSCRIPT = "transcript"


def main() -> None:
    """Entry point: what a user can mend is said in a sentence, with exit status 1."""
    try:
        app()
    except USER_ERRORS as error:
        errors.print(f"[red]{_sentence(error)}[/]", soft_wrap=True)
        sys.exit(1)


NAMED_ERRORS = (
    AccountExistsError,
    AccountNotFoundError,
    InsufficientCreditsError,
    LimitTooLowError,
)
"""Errors that carry what they are about; what they mean stands in their docstring."""

USER_ERRORS = (
    *NAMED_ERRORS,
    ApiError,
    PortInUseError,
    RayStartError,
    ServiceStartError,
    httpx.TransportError,
    *MONEY_ERRORS,
    *WEBHOOK_ERRORS,
    *POLICY_ERRORS,
    *MODEL_ERRORS,
    *BACKFILL_ERRORS,
    *CLUSTER_ERRORS,
    ContentPolicyError,
)


def _sentence(error: Exception) -> str:
    if isinstance(error, NAMED_ERRORS):
        return f"{error.__doc__} ({error})"
    if isinstance(error, httpx.TransportError):
        return f"The service cannot be reached: {error}"
    return str(error)


@accounts_app.command("create")
def accounts_create(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Create an account."""
    administer(data, lambda c: accounts.create_account(c, name), as_json)


def _restrict(
    name: str, data: Path | None, as_json: bool, *, suspended: bool | None, throttled: bool | None
) -> None:
    administer(
        data,
        lambda c: accounts.restrict(c, name, suspended=suspended, throttled=throttled),
        as_json,
    )


@accounts_app.command("suspend")
def accounts_suspend(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Refuse everything the account asks for (403 ACCOUNT_SUSPENDED)."""
    _restrict(name, data, as_json, suspended=True, throttled=None)


@accounts_app.command("throttle")
def accounts_throttle(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Refuse new jobs of the account (429 THROTTLED)."""
    _restrict(name, data, as_json, suspended=None, throttled=True)


@accounts_app.command("resume")
def accounts_resume(name: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Lift suspension and throttling."""
    _restrict(name, data, as_json, suspended=False, throttled=False)


@keys_app.command("create")
def keys_create(account: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Create an API key; its secret is printed this once."""
    administer(data, lambda c: accounts.create_key(c, account), as_json)


@sessions_app.command("create")
def sessions_create(account: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Make a one-time sign-in token for the dashboard."""
    administer(data, lambda c: accounts.create_session(c, account), as_json)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of Prometheus metrics.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the service until it is interrupted."""
    settings = settings_with(data, host=host, port=port, metrics_port=metrics_port)
    with _started(settings, quiet=as_json) as (base, key):
        if as_json:
            show({"baseUrl": base, "apiKey": key}, as_json=True)
            sys.stdout.flush()
        else:
            _print_welcome(base, key)
        _wait_for_signal()
    if not as_json:
        console.print("Stopped.")


@contextlib.contextmanager
def _started(settings: Settings, *, quiet: bool = False) -> Iterator[tuple[str, str]]:
    """A running service and a key of its demo account."""
    from serve_app.deployment.local import prepared, running_service

    if not quiet:
        choice = chosen_models(settings)
        console.print(f"Models: {choice.profile} ({choice.reason})", highlight=False)
    status = contextlib.nullcontext() if quiet else console.status("Starting the service …")
    with contextlib.ExitStack() as stack:
        with status:
            complete = stack.enter_context(prepared(settings))
            base = stack.enter_context(running_service(complete))
            issued = accounts.in_transaction(complete, accounts.ensure_demo_account)
        yield base, issued["key"]


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


def _wait_for_signal() -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


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

    if "://" not in source and not Path(source).is_file():
        errors.print(f"[red]There is no file {source}.[/]")
        raise typer.Exit(1)
    with contextlib.ExitStack() as stack:
        if url is None:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vas-")))
            url, key = stack.enter_context(_started(_own_service(folder), quiet=as_json))
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
