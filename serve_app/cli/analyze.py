"""One file through the public API, with progress and results on the screen and in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from serve_app.client.api import ApiClient, ProcessingMode
from serve_app.client.export import export_results
from serve_app.client.rendering import scenes_table, transcript_text

_SILENT = Console(quiet=True)


def analyse_file(
    source: str,
    *,
    base_url: str,
    api_key: str,
    mode: ProcessingMode,
    out: Path,
    console: Console | None = None,
) -> dict[str, Any]:
    """Analyse a file or URL and write its results to ``out``.

    Returns the job as it ended, with the files written under ``files``. Raises
    client.api.ApiError and OSError.
    """
    screen = console or _SILENT
    with ApiClient(base_url, api_key) as client:
        job = _run(client, source, mode, screen)
        if job["state"] != "completed":
            _print_failure(job, screen)
            return job | {"files": []}
        files = export_results(client, job["jobId"], out)
        _print_results(client, job, screen)
    screen.print(f"\nWritten to [bold]{out}[/]: " + ", ".join(path.name for path in files))
    return job | {"files": [str(path) for path in files]}


def _run(client: ApiClient, source: str, mode: ProcessingMode, screen: Console) -> dict[str, Any]:
    columns = (TextColumn("[bold]{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen) as bars:
        if source.startswith(("http://", "https://")):
            job = client.create_job_from_url(source, mode)
        else:
            job = _upload(client, Path(source), mode, bars)
        work = bars.add_task("Analysing", total=1.0)

        def on_progress(current: dict[str, Any]) -> None:
            bars.update(work, completed=current["progress"])

        return client.wait(job["jobId"], on_progress)


def _upload(client: ApiClient, path: Path, mode: ProcessingMode, bars: Progress) -> dict[str, Any]:
    size_bytes = path.stat().st_size
    job = client.create_job(path.name, size_bytes, mode)
    bar = bars.add_task("Uploading", total=max(1, size_bytes))
    client.upload(
        path,
        job["uploadUrl"],
        job["uploadHeaders"],
        lambda sent, _: bars.update(bar, completed=sent),
    )
    return job


def _print_failure(job: dict[str, Any], screen: Console) -> None:
    error = job.get("error") or {"code": job["state"], "message": ""}
    screen.print(f"[red]The job {job['state']}: {error['code']}[/] {error['message']}")
    for name, stage in job["stages"].items():
        screen.print(f"  {name}: {stage['status']}")


def _print_results(client: ApiClient, job: dict[str, Any], screen: Console) -> None:
    stages = {name: stage["status"] for name, stage in job["stages"].items()}
    screen.print(
        f"\n[bold]{job['fileName']}[/]  {job['durationSeconds']:.1f} s  "
        f"charged {job['chargedCents']} cents"
    )
    if stages["vision"] == "completed":
        screen.print(scenes_table(client.get_scenes(job["jobId"])))
    if stages["transcript"] == "completed":
        screen.print(transcript_text(client.get_transcript(job["jobId"])))
    for warning in job.get("warnings", []):
        screen.print(f"[yellow]{warning['code']}[/] {warning['message']}")
