"""What becomes of analyses: files for other programs, and tools for agents."""

from __future__ import annotations

import contextlib
import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from serve_app.cli.output import (
    JsonOption,
    UsageError,
    base_address,
    console,
    show,
    usable_key,
)
from serve_app.client.api import ApiClient, CaptionFormat, ExportFormat

UrlOption = Annotated[str, typer.Option("--url", envvar="VAS_URL", help="Base URL of a service.")]
KeyOption = Annotated[str, typer.Option("--key", envvar="VAS_KEY", help="API key.")]

FileFormat = StrEnum(  # type: ignore[misc]
    "FileFormat", {name: name for name in (*get_args(ExportFormat), *get_args(CaptionFormat))}
)
"""Of scenes, chapters and transcripts; ``csv`` is a table of scenes."""


class Content(StrEnum):
    """What an export's parts are."""

    SCENES = "scenes"
    CHAPTERS = "chapters"
    TRANSCRIPT = "transcript"


def export_job(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    format: Annotated[FileFormat, typer.Option(help="The file type.")],  # noqa: A002
    url: UrlOption,
    key: KeyOption,
    content: Annotated[
        Content | None, typer.Option(help="What is written, where a type leaves it open.")
    ] = None,
    track: Annotated[int | None, typer.Option(help="Audio track of a transcript.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; printed if not given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a job's scenes, chapters or transcript for an editing program or a player."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        if content is Content.TRANSCRIPT or format.value not in get_args(ExportFormat):
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
        message = f"{error.name} is missing: pip install video-analysis-service[agents]"
        raise UsageError(message) from error
    base = base_address(url)
    if http is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # At once: the thread that reads standard input waits for its next line.
            signal.signal(number, lambda *_: os._exit(0))
        build_server(base, usable_key(key)).run("stdio")
        return
    import uvicorn

    app = build_server(base, None).streamable_http_app(
        stateless_http=True, json_response=True, host=host
    )
    config = uvicorn.Config(KeyRequired(app), host=host, port=http, log_level="warning")
    listener = config.bind_socket()
    listener.listen(config.backlog)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/mcp"
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
