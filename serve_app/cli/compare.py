"""``vas compare``: what became of a cut in another; ``vas review``: what to check of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from serve_app.cli.library import KeyOption, UrlOption
from serve_app.cli.output import (
    JsonOption,
    UsageError,
    base_address,
    console,
    show,
    show_rows,
    usable_key,
)
from serve_app.client.api import ApiClient, JsonObject
from serve_app.client.rendering import time_range


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="The job of the first cut.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The job of the second cut.")],
    url: UrlOption,
    key: KeyOption,
    format: Annotated[  # noqa: A002
        Literal["otio", "edl"] | None, typer.Option(help="Write the second cut as such a file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write with --format.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two cuts: shots removed, added, moved, retimed; words and titles changed."""
    if out is not None and format is None:
        raise UsageError("--out is the file of a --format: name one.")
    with ApiClient(base_address(url), usable_key(key)) as client:
        if format is not None:
            text = client.compare(before, after, format)
            if out is None:
                typer.echo(text, nl=False)
                return
            try:
                out.write_bytes(text.encode())
            except OSError as error:
                message = f"{out} cannot be written ({error.strerror}): name another file."
                raise UsageError(message) from error
            console.print(f"Written to [bold]{out}[/].")
            return
        found = client.compare(before, after)
    if as_json:
        show(found, as_json=True)
        return
    rows = [*map(_shot, found["shots"]), *_others("words", found), *_others("title", found)]
    show_rows([row for row in rows if row["change"] != "kept"])


def _shot(pair: JsonObject) -> JsonObject:
    return {
        "change": pair["change"],
        "from": _when(pair.get("from")),
        "to": _when(pair.get("to")),
        "what": _how(pair),
    }


def _how(pair: JsonObject) -> str:
    parts = []
    if pair["retimed"]:
        parts.append(
            f"runs {pair['speed']:g} times as fast"
            if pair["speed"] != 1
            else f"head {pair['headSeconds']:+.2f} s, tail {0 - pair['tailSeconds']:+.2f} s"
        )
    parts += ["reframed"] if pair["reframed"] else []
    return "; ".join(parts)


def _others(kind: str, found: JsonObject) -> list[JsonObject]:
    listed = found["words" if kind == "words" else "titles"]
    return [
        {
            "change": kind,
            "from": _when(each.get("from")),
            "to": _when(each.get("to")),
            "what": " → ".join(
                each[side]["text"] if side in each else "–" for side in ("from", "to")
            ),
        }
        for each in listed
    ]


def _when(span: JsonObject | None) -> str:
    if span is None or "startTime" not in span:
        return ""
    return time_range({"endTime": span["startTime"], **span})


def review(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    url: UrlOption,
    key: KeyOption,
    budget: Annotated[
        int, typer.Option(min=1, max=86_400, help="Seconds that somebody may listen.")
    ] = 300,
    track: Annotated[int | None, typer.Option(min=0, help="Of multi-track jobs.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List what of a job is most worth checking, and the errors expected before and after."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        found = client.get_review(job_id, budget, track)
    if as_json:
        show(found, as_json=True)
        return
    show_rows(
        [
            {
                "time": time_range(each),
                "check": ", ".join(each["reasons"]),
                "errors": f"{each['expectedErrors']:.1f}",
                "text": each["text"],
            }
            for each in found["stretches"]
        ]
    )
    before, after = found["before"], found["after"]
    console.print(
        f"{found['reviewSeconds']:.0f} s to check. Errors expected now {before['errors']:.1f}"
        f" ({before['wordErrorRate']:.1%} of words), then {after['errors']:.1f}"
        f" ({after['wordErrorRate']:.1%})."
    )
    if not found["calibrated"]:
        console.print("Confidences of this transcript are not calibrated: take these as an order.")
