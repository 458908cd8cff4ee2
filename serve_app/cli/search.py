"""``vas search``: what was said, seen or read, in the results of a running service."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from serve_app.cli.output import JsonOption, base_address, console, show, usable_key
from serve_app.client.api import ApiClient
from serve_app.client.rendering import time_range


def search(
    url: Annotated[str, typer.Option(envvar="VAS_URL", help="Base URL of the service.")],
    key: Annotated[str, typer.Option(envvar="VAS_KEY", help="API key.")],
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
    limit: Annotated[int, typer.Option(help="Most hits, up to 100.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="nextCursor of the page before.")] = None,
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
        "limit": str(limit),
        "cursor": cursor,
    }
    if (q is None) == (like is None):
        raise typer.BadParameter("Give either QUERY or --like.")
    with ApiClient(base_address(url), usable_key(key)) as client:
        page = client.search(q, **{name: value for name, value in given.items() if value})
    if as_json:
        show(page, as_json=True)
        return
    for hit in page["data"]:
        console.print(_line(hit), soft_wrap=True)
    if not page["data"]:
        console.print("Nothing.")
    if page["mode"] == "hybrid":
        console.print("By words and by meaning.", style="dim")
    if page["hasMore"]:
        console.print(f"More: --cursor {page['nextCursor']}", highlight=False, soft_wrap=True)


def _line(hit: dict[str, Any]) -> Text:
    """Where it is and what it says, with what matches in bold; text cannot steer the terminal."""
    snippet = hit["snippet"]
    said = Text("".join(c if c.isprintable() else " " for c in snippet["text"]))
    for matched in snippet["ranges"]:
        said.stylize("bold", matched["start"], matched["end"])
    name = "".join(c if c.isprintable() else " " for c in hit["fileName"])
    kind = f"{hit['kind']} {hit['sceneIndex']}" if "sceneIndex" in hit else hit["kind"]
    return Text(f"{name}  {time_range(hit)}  {kind}  {hit['jobId']}\n  ") + said
