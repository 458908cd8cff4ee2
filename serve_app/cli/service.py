"""``vas serve | doctor | policy | node-environment``: the service on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from serve_app.cli.output import (
    DataOption,
    JsonOption,
    UsageError,
    console,
    errors,
    in_service,
    settings_with,
    show,
    stop_signal,
)

if TYPE_CHECKING:
    from models.profiles import Choice
    from serve_app.settings import Settings

policy_app = typer.Typer(no_args_is_help=True, help="Content policy.")

HaproxyFolderOption = Annotated[
    Path, typer.Option("--folder", help="Where HAProxy's script, configuration and sockets lie.")
]


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
    from serve_app.cli.accounts import create_session

    settings = settings_with(data, host=host, port=port, metrics_port=metrics_port)
    with started(settings, quiet=as_json) as (base, key, complete):
        # With the settings completed: a second user of the data folder in this process would stop
        # the database as it leaves.
        link = in_service(complete, lambda c, s: create_session(c, s, "demo"))["signInUrl"]
        # Before the line that the service is up, after which anyone may stop it.
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
def started(settings: Settings, *, quiet: bool = False) -> Iterator[tuple[str, str, Settings]]:
    """A running service's base address, a key of its demo account, its settings completed."""
    from serve_app.cli.accounts import demo_key
    from serve_app.deployment.data import prepared
    from serve_app.deployment.local import running_service

    def print_choice(choice: Choice) -> None:
        if not quiet:
            console.print(f"Models: {choice.profile} ({choice.reason})", highlight=False)

    status = contextlib.nullcontext() if quiet else console.status("Starting the service …")
    with contextlib.ExitStack() as stack:
        with status:
            complete = stack.enter_context(prepared(settings))
            base = stack.enter_context(running_service(complete, on_choice=print_choice))
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


def doctor(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check ports, disk, GPU, codecs, database, and each model with one real inference."""
    from serve_app.deployment.doctor import examine

    findings = examine(settings_with(data))
    if as_json:
        show({"checks": findings}, as_json=True)
    else:
        for finding in findings:
            mark = "[green]ok[/]  " if finding["ok"] else "[red]FAIL[/]"
            line = f"{mark} {finding['check']}: {escape(finding['detail'])}"
            console.print(line, highlight=False, soft_wrap=True)
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(1)


def print_node_environment(
    folder: HaproxyFolderOption = Path("~/.vas/haproxy"), as_json: JsonOption = False
) -> None:
    """Print what Ray must find in a node's environment, as lines for a shell.

    eval "$(vas node-environment)" && ray start …
    """
    from serve_app.deployment.proxy import export_lines, node_environment

    environment = node_environment(settings_with(), folder.expanduser().resolve())
    if as_json:
        show(dict(environment), as_json=True)
    else:
        sys.stdout.write(f"{export_lines(environment)}\n")


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
