"""``vas analyze``: one file through the public API, with progress, results on the screen and in a
folder.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from serve_app.cli.output import (
    DataOption,
    JsonOption,
    Mode,
    UsageError,
    base_address,
    console,
    dashboard_address,
    errors,
    settings_with,
    show,
    usable_key,
)
from serve_app.client.api import ApiClient, JsonObject, ProcessingMode
from serve_app.client.rendering import one_line, scenes_table, transcript_text, warning_text

_SILENT = Console(quiet=True)


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
    from serve_app.cli.service import started

    _require_source(source)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is no folder: name another for the results with --out.")
    running = url is not None
    if url is not None:
        url, key = base_address(url), usable_key(key)
    with contextlib.ExitStack() as stack:
        if url is None:
            folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vas-")))
            from serve_app.deployment.local import free_port

            url, key, _ = stack.enter_context(
                started(settings_with(folder, port=free_port()), quiet=as_json)
            )
        record = analyse_file(
            source,
            base_url=url,
            api_key=key or "",
            mode=mode.value,
            out=out,
            console=None if as_json else console,
            goes_on=running,
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
            f"{source} is a folder: python -m pipelines.backfill {shlex.quote(source)} RESULTS "
            "analyses all of its files."
        )
    if not Path(source).is_file():
        raise UsageError(f"There is no file {source}: name one, or an http(s) URL.")


def analyse_file(
    source: str,
    *,
    base_url: str,
    api_key: str,
    mode: ProcessingMode,
    out: Path,
    console: Console | None = None,
    goes_on: bool = False,
) -> dict[str, Any]:
    """Analyse a file or URL and write its results to ``out``.

    Where the service ``goes_on`` after an interrupt, so does the job, and what ends it is printed.
    Returns the job as it ended, with the files written under ``files``. Raises
    client.api.ApiError and OSError.
    """
    # Loads a library of pictures.
    from serve_app.client.export import export_results

    screen = console or _SILENT
    with ApiClient(base_url, api_key) as client:
        job = _run(client, base_url, source, mode, screen, goes_on=goes_on)
        if job["state"] != "completed":
            error = job.get("error") or {"code": job["state"], "message": ""}
            screen.print(
                f"[red]The job {job['state']}: {error['code']}[/] {_plain(error['message'])}"
            )
            for name, stage in job["stages"].items():
                screen.print(f"  {name}: {stage['status']}")
            _print_warnings(job, screen)
            return job | {"files": []}
        files = export_results(client, job["jobId"], out)
        _print_results(client, job, screen)
    screen.print(f"\nWritten to [bold]{out}[/]: " + ", ".join(path.name for path in files))
    return job | {"files": [str(path) for path in files]}


def _run(
    client: ApiClient,
    base_url: str,
    source: str,
    mode: ProcessingMode,
    screen: Console,
    *,
    goes_on: bool,
) -> dict[str, Any]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen) as bars:
        if source.startswith(("http://", "https://")):
            job = client.create_job_from_url(source, mode)
        else:
            size_bytes = Path(source).stat().st_size
            job = client.create_job(Path(source).name, size_bytes, mode)
        page = dashboard_address(base_url, job["jobId"])
        bars.console.print(f"Job {job['jobId']}: {page}", highlight=False, soft_wrap=True)
        if job["state"] == "awaiting_upload":
            path = Path(source)
            bar = bars.add_task("Uploading", total=max(1, path.stat().st_size))
            client.upload(
                path,
                job["uploadUrl"],
                job["uploadHeaders"],
                lambda sent, _: bars.update(bar, completed=sent),
            )
        work = bars.add_task("Analysing", total=1.0)

        def on_progress(current: dict[str, Any]) -> None:
            bars.update(work, completed=current["progress"])

        try:
            return client.wait(job["jobId"], on_progress)
        except KeyboardInterrupt:
            if goes_on:
                errors.print(
                    f"Job {job['jobId']} goes on in the service at {base_url}; "
                    f"vas jobs cancel {job['jobId']} ends it.",
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
            raise


def _print_results(client: ApiClient, job: dict[str, Any], screen: Console) -> None:
    stages = {name: stage["status"] for name, stage in job["stages"].items()}
    screen.print(
        f"\n[bold]{_plain(job['fileName'])}[/]  {job['durationSeconds']:.1f} s  "
        f"charged {job['chargedCents']} cents"
    )
    if stages["vision"] == "completed":
        seen = client.get_seen(job["jobId"])
        screen.print(scenes_table(seen["scenes"], seen.get("overview")))
    if stages["transcript"] == "completed":
        screen.print(transcript_text(client.get_transcript(job["jobId"])))
    _print_warnings(job, screen)


def _print_warnings(job: JsonObject, screen: Console) -> None:
    for warning in job.get("warnings", []):
        screen.print(warning_text(warning))


def _plain(text: str) -> str:
    return escape(one_line(text))
