"""``vas policy hash``: lines for the list of blocked pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.vision.blocked_pictures import UnreadableMediaError, listed_stills
from serve_app.cli.output import JsonOption, errors

POLICY_ERRORS = (UnreadableMediaError,)
"""What a user can mend; each says in a sentence what it is."""

policy_app = typer.Typer(no_args_is_help=True, help="Content policy.")


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
    seen: set[int] = set()
    for path in files:
        for still in listed_stills(path, every):
            fresh = [value for value in still.hashes if value not in seen]
            seen.update(fresh)
            for value in fresh:
                _write(value, path, still.time_ms, as_json=as_json)
    if not seen:
        errors.print("No picture was distinct enough to be recognised again; nothing to list.")
        raise typer.Exit(1)


def _write(value: int, path: Path, time_ms: int, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"hash": f"{value:016x}", "file": path.name, "timeMs": time_ms})
    else:
        line = f"{value:016x}  {path.name} at {time_ms / 1000:.3f} s"
    sys.stdout.write(line + "\n")
