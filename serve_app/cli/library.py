"""``vas jobs | search | export | mcp``: a running service's jobs, for people, programs, agents."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.text import Text

from serve_app import API_PREFIX
from serve_app.cli.output import (
    JsonOption,
    UsageError,
    base_address,
    console,
    dashboard_address,
    show,
    show_rows,
    usable_key,
)
from serve_app.client.api import ApiClient, CaptionFormat, ExportFormat, JobState, JsonObject
from serve_app.client.rendering import clock, one_line, time_range

jobs_app = typer.Typer(no_args_is_help=True, help="The jobs of an account.")

DEFAULT_LIMIT = 20
MAX_PAGE = 100
"""Of the API."""

UrlOption = Annotated[str, typer.Option("--url", envvar="VAS_URL", help="Base URL of a service.")]
KeyOption = Annotated[str, typer.Option("--key", envvar="VAS_KEY", help="API key.")]

LimitOption = Annotated[int, typer.Option(min=1, max=100_000, help="Most to show.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show all, however many.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]

State = StrEnum("State", {name: name for name in get_args(JobState)})  # type: ignore[misc]

FileFormat = StrEnum(  # type: ignore[misc]
    "FileFormat", {name: name for name in (*get_args(ExportFormat), *get_args(CaptionFormat))}
)
"""Of scenes, chapters and transcripts; ``csv`` is a table of scenes."""


class ExportContent(StrEnum):
    """What an export's parts are."""

    SCENES = "scenes"
    CHAPTERS = "chapters"
    TRANSCRIPT = "transcript"


@jobs_app.command("list")
def jobs_list(
    url: UrlOption,
    key: KeyOption,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        page = _gathered(
            lambda start, size: client.list_jobs(limit=size, state=state, cursor=start),
            None if everything else limit,
        )
    if as_json:
        show(page, as_json=True)
        return
    rows = [
        {
            "job": job["jobId"],
            "file": job["fileName"],
            "state": job["state"],
            "done": f"{job['progress']:.0%}",
            "length": _length(job),
            "created": job["createdAt"],
        }
        for job in page["data"]
    ]
    show_rows(rows)
    _print_more(page, limit)


@jobs_app.command("show")
def jobs_show(
    job_id: JobArgument, url: UrlOption, key: KeyOption, as_json: JsonOption = False
) -> None:
    """Show a job: its state, its stages, what it cost, what it warns of."""
    _show_job(url, key, lambda client: client.get_job(job_id), as_json)


@jobs_app.command("cancel")
def jobs_cancel(
    job_id: JobArgument, url: UrlOption, key: KeyOption, as_json: JsonOption = False
) -> None:
    """Cancel a job that has not ended; stages that are completed stay, and are charged."""
    _show_job(url, key, lambda client: client.cancel(job_id), as_json)


@jobs_app.command("erase")
def jobs_erase(
    job_id: JobArgument,
    url: UrlOption,
    key: KeyOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Erase a job's media and results for good; its state, times and charges stay."""
    if not yes:
        question = f"Erase the media and results of job {job_id}? It cannot be undone."
        typer.confirm(question, abort=True, err=True)
    _show_job(url, key, lambda client: client.erase(job_id), as_json)


@jobs_app.command("duplicates")
def jobs_duplicates(
    job_id: JobArgument,
    url: UrlOption,
    key: KeyOption,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List in which other jobs its file, or parts of it, are again."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        page = _gathered(
            lambda start, size: client.list_duplicates(job_id, size, start),
            None if everything else limit,
        )
    if as_json:
        show(page, as_json=True)
        return
    rows = [
        {name: found[name] for name in ("kind", "jobId", "fileName")}
        | {side: time_range(found[side]) for side in ("here", "there")}
        | {"score": f"{found['score']:.2f}", "speed": f"{found['speed']:g}"}
        for found in page["data"]
    ]
    show_rows(rows)
    _print_more(page, limit)


def _show_job(url: str, key: str, get: Callable[[ApiClient], JsonObject], as_json: bool) -> None:
    base = base_address(url)
    with ApiClient(base, usable_key(key)) as client:
        job = get(client)
    if as_json:
        show(job, as_json=True)
        return
    stages = {
        name: stage["status"] + (f" ({stage['reason']})" if "reason" in stage else "")
        for name, stage in job["stages"].items()
    }
    rows = {
        "job": job["jobId"],
        "file": job["fileName"],
        "state": job["state"],
        "done": f"{job['progress']:.0%}",
        **stages,
        "length": _length(job),
        "created": job["createdAt"],
        "completed": job["completedAt"],
        "charged": f"{job['chargedCents']} cents",
        "error": _words_of(job.get("error")),
        "warnings": [_words_of(each) for each in job["warnings"]],
        "dashboard": dashboard_address(base, job["jobId"]),
    }
    show({name: value for name, value in rows.items() if value}, as_json=False)


def _words_of(coded: JsonObject | None) -> str:
    """An error or a warning."""
    return "" if coded is None else f"{coded['code']} {coded['message']}"


def _length(job: JsonObject) -> str:
    return "" if job["durationSeconds"] is None else clock(job["durationSeconds"])


def _gathered(
    page_from: Callable[[str | None, int], JsonObject], limit: int | None, start: str | None = None
) -> JsonObject:
    """Pages as one, of ``limit`` entries at most, or all; ``page_from`` takes a cursor and a size.

    ``nextCursor`` and ``hasMore`` are those of the last page.
    """
    gathered: list[Any] = []
    while True:
        left = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(gathered))
        page = page_from(start, left)
        gathered += page["data"]
        start = page["nextCursor"]
        if not page["hasMore"] or len(gathered) == limit:
            return page | {"data": gathered}


def _print_more(page: JsonObject, limit: int) -> None:
    if page["hasMore"]:
        console.print(f"More: --limit {2 * limit}, or --all.", style="dim", highlight=False)


def search(
    url: UrlOption,
    key: KeyOption,
    q: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY", help='Words, "a phrase", -without, beginning*, or OR between them.'
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="JOB:SCENE", help="Scenes that look like this one.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="A list of transcript, scene, text, object, file.")
    ] = None,
    language: Annotated[str | None, typer.Option(help="Of what is said, e.g. de.")] = None,
    created_from: Annotated[
        str | None, typer.Option("--from", help="Jobs created then or later, e.g. 2026-03-01.")
    ] = None,
    created_to: Annotated[str | None, typer.Option("--to", help="Jobs created before.")] = None,
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    cursor: Annotated[
        str | None, typer.Option(help="For programs: nextCursor of --json, to go on there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search everything that the account has analysed."""
    given = {
        "like": like,
        "kinds": kinds,
        "language": language,
        "from": created_from,
        "to": created_to,
        "jobId": job,
    }
    if (q is None) == (like is None):
        raise typer.BadParameter("Give either QUERY or --like.")
    with ApiClient(base_address(url), usable_key(key)) as client:

        def page_from(start: str | None, size: int) -> JsonObject:
            place = given | {"cursor": start, "limit": str(size)}
            return client.search(q, **{name: value for name, value in place.items() if value})

        page = _gathered(page_from, None if everything else limit, cursor)
    if as_json:
        show(page, as_json=True)
        return
    for hit in page["data"]:
        console.print(_line(hit), soft_wrap=True)
    if not page["data"]:
        console.print("Nothing.")
    if page["mode"] == "hybrid":
        console.print("By words and by meaning.", style="dim")
    _print_more(page, limit)


def _line(hit: dict[str, Any]) -> Text:
    """Its place and its text, with what matches in bold; text cannot steer the terminal."""
    snippet = hit["snippet"]
    said = Text("".join(c if c.isprintable() else " " for c in snippet["text"]))
    for matched in snippet["ranges"]:
        said.stylize("bold", matched["start"], matched["end"])
    name = one_line(hit["fileName"])
    kind = f"{hit['kind']} {hit['sceneIndex']}" if "sceneIndex" in hit else hit["kind"]
    return Text(f"{name}  {time_range(hit)}  {kind}  {hit['jobId']}\n  ") + said


def export_job(
    job_id: JobArgument,
    format: Annotated[FileFormat, typer.Option(help="The file type.")],  # noqa: A002
    url: UrlOption,
    key: KeyOption,
    content: Annotated[
        ExportContent | None, typer.Option(help="What is written, where a type leaves it open.")
    ] = None,
    track: Annotated[int | None, typer.Option(help="Audio track of a transcript.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; printed if not given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a job's scenes, chapters or transcript for an editing program or a player."""
    of_transcript = content is ExportContent.TRANSCRIPT or format.value not in get_args(
        ExportFormat
    )
    if of_transcript and (
        content not in {None, ExportContent.TRANSCRIPT}
        or format.value not in get_args(CaptionFormat)
    ):
        raise UsageError(f"--content {content} cannot be written as {format.value}.")
    if track is not None and not of_transcript:
        raise UsageError("--track is for transcripts only.")
    with ApiClient(base_address(url), usable_key(key)) as client:
        if of_transcript:
            text = client.get_transcript(job_id, cast("CaptionFormat", format.value), track)
        else:
            text = client.export(job_id, format.value, content)
    if out is not None:
        try:
            out.write_bytes(text.encode())
        except OSError as error:
            message = f"{out} cannot be written ({error.strerror}): name another file with --out."
            raise UsageError(message) from error
    if as_json:
        written = {"file": str(out)} if out is not None else {"content": text}
        show({"jobId": job_id, "format": format.value, **written}, as_json=True)
    elif out is None:
        typer.echo(text, nl=False)
    else:
        console.print(f"Written to [bold]{out}[/].")


def serve_agents(
    url: UrlOption,
    key: Annotated[
        str | None, typer.Option("--key", envvar="VAS_KEY", help="API key, over stdio.")
    ] = None,
    http: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of streamable HTTP, at /mcp.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Offer the service to agents over the Model Context Protocol (stdio, or --http PORT).

    Over HTTP each request is made with its own API key, and --key is not used.
    """
    try:
        from serve_app.client.mcp_server import KeyRequired, build_server
    except ModuleNotFoundError as error:
        message = f"{error.name} is missing: `make setup-dev` installs the extra 'agents'"
        raise UsageError(message) from error
    base = base_address(url)
    if http is None:
        with ApiClient(base, usable_key(key)) as client:
            client.list_jobs(limit=1)  # a wrong address or key ends it here, in a sentence
        for number in (signal.SIGINT, signal.SIGTERM):
            # At once: the thread that reads standard input waits for its next line.
            signal.signal(number, lambda *_: os._exit(0))
        build_server(base, usable_key(key)).run("stdio")
        return
    import httpx
    import uvicorn

    from serve_app.deployment.local import PortInUseError, require_free_port

    httpx.get(f"{base.removesuffix(API_PREFIX)}/health", trust_env=False, timeout=30)
    try:
        require_free_port(host, http)
    except PortInUseError as error:
        raise UsageError(str(error).replace("--port", "--http")) from None
    app = build_server(base, None).streamable_http_app(
        stateless_http=True, json_response=True, host=host
    )
    api = KeyRequired(app, base)
    config = uvicorn.Config(api, host, http, log_level="warning", timeout_keep_alive=90)
    listener = config.bind_socket()
    listener.listen(config.backlog)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/mcp"
    with contextlib.suppress(KeyboardInterrupt):
        console.print(
            f"Agents connect to {address} (streamable HTTP). Each request\n"
            "has its own API key in a header, Authorization: Bearer vas_live_….\n"
            f"The tools work for the service at {base}.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        uvicorn.Server(config).run(sockets=[listener])
