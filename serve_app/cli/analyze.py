"""``vas analyze``: one file through the public API, with progress, results on the screen and in a
folder; ``vas watch``: every file that comes into a folder.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
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
    stop_signal,
    usable_key,
)
from serve_app.cli.remote import KeyOption, UrlOption
from serve_app.client.api import ApiClient, JsonObject, ProcessingMode, RequestFailedError
from serve_app.client.rendering import one_line, scenes_table, transcript_text, warning_text

_SILENT = Console(quiet=True)
_LINES = {
    "created": "{file}: job {jobId}",
    "sent": "{file}: sent",
    "completed": "{file}: completed, results in {file}.vas",
    "failed": "{file}: failed: {error[code]} {error[message]}",
    "waiting": "{file}: waits: {reason}",
    "skipped": "{file}: skipped: {reason}",
    "ended": "{completed} completed, {failed} failed, {waiting} waiting, {before} completed or "
    "failed before, {skipped} skipped.",
}


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
                    markup=False, highlight=False, soft_wrap=True)  # fmt: skip
            raise


def _print_results(client: ApiClient, job: dict[str, Any], screen: Console) -> None:
    stages = {name: stage["status"] for name, stage in job["stages"].items()}
    screen.print(
        f"\n[bold]{_plain(job['fileName'])}[/]  {job['durationSeconds']:.1f} s  "
        f"charged {job['chargedCents']} cent{'' if job['chargedCents'] == 1 else 's'}"
    )
    if stages["vision"] == "completed":
        seen = client.call("getScenes", jobId=job["jobId"])
        screen.print(scenes_table(seen["scenes"], seen.get("overview")))
    if stages["transcript"] == "completed":
        screen.print(transcript_text(client.get_transcript(job["jobId"])))
    _print_warnings(job, screen)


def _print_warnings(job: JsonObject, screen: Console) -> None:
    for warning in job.get("warnings", []):
        screen.print(warning_text(warning))


def _plain(text: str) -> str:
    return escape(one_line(text))


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder.")],
    url: UrlOption,
    key: KeyOption,
    mode: Annotated[Mode, typer.Option(help="Which stages to run.")] = Mode.ALL,
    jobs: Annotated[int, typer.Option(min=1, max=16, help="Files under way at once.")] = 4,
    settle: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds that a file must lie unchanged.")
    ] = 5.0,
    poll: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between looks into the folder.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="End when all that lies there is done, for cron.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Analyse every file that comes into a folder, once; results in FILE.vas beside it.

    Killed and started again, it goes on where it was. Failed files have an error.json there and
    are not tried again until FILE.vas is removed. Symbolic links are skipped, and a FILE.vas that
    this command did not make is left alone. Exit status 1: with --once, a file failed or was left
    for later; the account's key is refused, or it lacks credits.
    """
    # Loads a library of pictures, which few commands need.
    from pipelines.collection import PlaceError
    from serve_app.client.watch import OF_THE_ACCOUNT, OUTCOMES, Watcher, pausing

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder.")
    stop, report = stop_signal(), _report(as_json=as_json)
    refused: RequestFailedError | None = None
    with ApiClient(base_address(url), usable_key(key), sleep=pausing(stop)) as client:
        formats = client.call("listFormats")
        names = ("standard", "audioOnly", "rawExtensions")
        watcher = Watcher(
            folder,
            client,
            report,
            stop,
            endings=[f".{ending}" for name in names for ending in formats[name]],
            mode=mode.value,
            concurrency=jobs,
            settle_seconds=settle,
            poll_seconds=poll,
        )
        try:
            client.call(
                "listJobs", limit=1
            )  # Formats need no key: a refused one is known before a file.
            watcher.run(once=once)
        except PlaceError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"{error.filename or folder}: {error.strerror}.") from error
        except RequestFailedError as error:
            if error.code not in OF_THE_ACCOUNT:
                raise
            refused = error
        counts = Counter(watcher.outcomes.values())
        report({"event": "ended"} | {name: counts[name] for name in OUTCOMES})
    if refused is not None:
        errors.print(str(refused), style="red", markup=False, highlight=False, soft_wrap=True)
    if refused is not None or (once and watcher.undone):
        raise typer.Exit(1)


def _report(*, as_json: bool) -> Callable[[JsonObject], None]:
    """Prints an event as a line, also where several threads have one."""
    turn = threading.Lock()

    def report(event: JsonObject) -> None:
        if as_json:
            line = json.dumps(event, ensure_ascii=False)
        else:
            line = one_line(_LINES[event["event"]].format(**event))
        with turn:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    return report
