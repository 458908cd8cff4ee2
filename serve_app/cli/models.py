"""``vas models``: which weights a profile needs, and fetching them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_app.cli.output import (
    JsonOption,
    UsageError,
    console,
    errors,
    settings_with,
    show,
    show_rows,
)

if TYPE_CHECKING:
    from models.profiles import ListedWeights

models_app = typer.Typer(no_args_is_help=True, help="Model weights.")

PROFILES = ("packaged", "cpu", "cpu-transformers", "gpu")
"""Of the registry, whose import the help need not wait for."""
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help=f"{', '.join(PROFILES)}; else what serves here.")
]
FolderOption = Annotated[
    Path | None, typer.Option("--to", help="Models folder (default: VAS_MODELS_DIR).")
]


@models_app.command("list")
def models_list(
    profile: ProfileOption = None, to: FolderOption = None, as_json: JsonOption = False
) -> None:
    """Show a profile's models: repository, revision, licence, whether they are here."""
    folder = to or settings_with().models_dir
    chosen = _profile(profile)
    rows = _rows(chosen, folder)
    if as_json:
        show({"profile": chosen, "models": rows}, as_json=True)
        return
    console.print(f"Profile {chosen}", highlight=False)
    show_rows(rows)


def _rows(profile: str, folder: Path | None) -> list[dict[str, Any]]:
    from models.profiles import listed_weights

    return [
        {
            "task": each.task,
            "repository": each.weights.origin,
            "revision": each.weights.version[:12],
            "licence": each.weights.licence,
            "carrier": each.weights.carrier,
            "optional": "yes" if each.optional else "no",
            "here": each.weights.state(folder),
        }
        for each in listed_weights(profile)
    ]


@models_app.command("pull")
def models_pull(
    profile: ProfileOption = None,
    to: FolderOption = None,
    task: Annotated[
        str | None, typer.Option(help="This one alone, e.g. embed_pictures beside packaged.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch everything a profile needs into the models folder; what is there is kept.

    HF_TOKEN opens repositories whose terms its account has accepted.
    """
    from models.profiles import pulled_weights
    from models.weights import Checkpoint
    from serve_app.deployment.model_choice import ModelProfileError, missing_packages

    folder = to or settings_with().models_dir
    if folder is None:
        raise UsageError("Name a folder: --to FOLDER, or VAS_MODELS_DIR.")
    folder = folder.expanduser().resolve()
    chosen = _profile(profile)
    wanted = pulled_weights(chosen, task, folder)
    if not wanted:
        names = ", ".join(dict.fromkeys(row["task"] for row in _rows(chosen, folder)))
        raise UsageError(f"--task: {task!r} is none of {names}.")
    from_hub = any(isinstance(each.weights, Checkpoint) for each in wanted)
    if from_hub and "transformers" in missing_packages():
        raise ModelProfileError(f"Profile {chosen} needs more packages: install extra models.")
    fetched = _pull_all(wanted, folder, quiet=as_json)
    if as_json:
        show({"folder": str(folder), "models": fetched}, as_json=True)


def _pull_all(wanted: list[ListedWeights], folder: Path, *, quiet: bool) -> list[str]:
    """Each in turn; a gated one does not keep the others from being fetched."""
    from models.weights import GatedCheckpointError

    closed: list[GatedCheckpointError] = []
    fetched: dict[str, None] = {}
    for weights in dict.fromkeys(each.weights for each in wanted):
        if not quiet:
            console.print(f"{weights.origin} @ {weights.version[:12]}", highlight=False)
        try:
            weights.pull(folder, os.environ.get("HF_TOKEN"))
        except GatedCheckpointError as error:
            closed.append(error)
        else:
            fetched[weights.name] = None
    for refusal in closed:
        errors.print(f"[red]{refusal}[/]", soft_wrap=True)
    if closed:
        sys.exit(2)
    return list(fetched)


def _profile(name: str | None) -> str:
    from models.profiles import profile_named
    from serve_app.deployment.model_choice import ModelProfileError, chosen_models

    if name is None:
        return chosen_models(settings_with()).profile
    name = profile_named(name)
    if name not in PROFILES:
        raise ModelProfileError(f"--profile: {name!r} is none of {', '.join(PROFILES)}.")
    return name
