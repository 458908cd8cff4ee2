"""``vas watch``: a folder whose new files are analysed by a running service."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.library import KeyOption, UrlOption
from serve_app.cli.output import (
    JsonOption,
    Mode,
    UsageError,
    base_address,
    errors,
    stop_signal,
    usable_key,
)
from serve_app.client.api import ApiClient, JsonObject, RequestFailedError
from serve_app.client.rendering import one_line

_LINES = {
    "created": "{file}: job {jobId}",
    "sent": "{file}: sent",
    "completed": "{file}: completed, results in {file}.vas",
    "failed": "{file}: failed: {error[code]} {error[message]}",
    "waiting": "{file}: waits: {reason}",
    "skipped": "{file}: skipped: {reason}",
    "ended": "{completed} completed, {failed} failed, {waiting} left for later, "
    "{before} done before, {skipped} skipped.",
}


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
    # Loads a library of pictures, which no other command needs.
    from serve_app.client.watch import (
        OF_THE_ACCOUNT,
        OUTCOMES,
        FolderBusyError,
        Watcher,
        pausing,
    )

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder.")
    stop, report = stop_signal(), _report(as_json=as_json)
    refused: RequestFailedError | None = None
    with ApiClient(base_address(url), usable_key(key), sleep=pausing(stop)) as client:
        formats = client.list_formats()
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
            client.list_jobs(limit=1)  # Formats need no key: a refused one is known before a file.
            watcher.run(once=once)
        except FolderBusyError as error:
            raise UsageError(f"Another vas watch is at work in {folder}.") from error
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
