"""Which models serve here: as set, or as the machine allows."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from models import profiles
from models.backends.plugins import PluginError
from models.provider import LocalModels, ServedModels
from models.registry import REGISTRY, own_profile, with_others
from models.tasks import ANSWER, EMBED_FACES, EMBED_PHRASES, EMBED_PICTURES, EMBED_TEXT, Task
from models.weights import WeightsError
from serve_app.context import Answerer, PictureEncoder, TextEncoder
from serve_app.settings import GIB, Settings

_DRIVER_SECONDS = 20.0
_NEURAL_PACKAGES = ("torch", "transformers", "pyannote")


class ModelProfileError(ValueError):
    """The model profile of the settings cannot serve here; the message has the reason."""


def chosen_models(settings: Settings) -> profiles.Choice:
    """Return the profile to serve, and why. Raises ModelProfileError where it lacks something."""
    lacking, wanted = missing_packages(), own_profile(settings.model_profile)
    if wanted == "auto" and lacking:
        choice = profiles.Choice("packaged", f"{', '.join(lacking)} not installed (extra models)")
    else:
        choice = profiles.choose_profile(
            wanted, gpus=visible_gpus(), models_dir=settings.models_dir
        )
    profile = with_others_of(settings, choice.profile)
    _require(profile, settings, lacking)
    return replace(choice, profile=profile)


def with_others_of(settings: Settings, profile: str) -> str:
    """Return the profile with the settings' models of other servers and plug-ins. Raises
    ModelProfileError."""
    try:
        return with_others(own_profile(profile), settings.remote_models, settings.model_plugins)
    except PluginError as error:
        raise ModelProfileError(f"VAS_MODEL_PLUGINS: {error}.") from error


def with_models_chosen(settings: Settings) -> Settings:
    """Return the settings with a profile in place of ``auto``. Raises ModelProfileError."""
    return settings.model_copy(update={"model_profile": chosen_models(settings).profile})


def _require(profile: str, settings: Settings, lacking: list[str]) -> None:
    try:
        profiles.check_weights(profile, settings.models_dir)
    except WeightsError as error:
        raise ModelProfileError(str(error)) from error
    for task in REGISTRY[profile]:
        own = own_weights(settings, task)
        try:
            if own is not None:
                profiles.check_own_weights(profile, task, own)
        except WeightsError as error:
            raise ModelProfileError(f"VAS_{str(task.own_weights).upper()}: {error}") from error
    if settings.people and not profiles.has_task(profile, EMBED_FACES, settings.models_dir):
        how = profiles.how_to_add(profile, EMBED_FACES, settings.models_dir)
        raise ModelProfileError(f"VAS_PEOPLE needs the task embed_faces: {how}.")
    named = own_profile(profile)
    if named != "packaged" and lacking:
        message = f"VAS_MODEL_PROFILE={named} needs {', '.join(lacking)}: install extra models."
        raise ModelProfileError(message)
    if settings.models_dir is None:
        return
    missing = profiles.missing_checkpoints(profile, settings.models_dir)
    if missing:
        names = ", ".join(checkpoint.origin for checkpoint in missing)
        raise ModelProfileError(
            f"{settings.models_dir} lacks {names}: run vas models pull --profile {named}."
        )


def own_weights(settings: Settings, task: Task[Any]) -> Path | None:
    """Return the folder of the user's own weights for a task, in place of its profile's."""
    return getattr(settings, task.own_weights) if task.own_weights else None


def encoder_of(models: LocalModels | ServedModels) -> TextEncoder | None:
    """Return the profile's model of texts, for searches by meaning; None where it has none here."""
    if not profiles.has_task(models.profile, EMBED_TEXT, models.models_dir):
        return None
    return TextEncoder(
        lambda: models.find(EMBED_TEXT), profiles.digest_of(models.profile, [EMBED_TEXT])
    )


def picture_encoder_of(models: LocalModels | ServedModels) -> PictureEncoder | None:
    """Return the profile's model of stills, for scenes that look alike or as is described; None
    where it has none here."""
    if not profiles.has_task(models.profile, EMBED_PICTURES, models.models_dir):
        return None
    return PictureEncoder(
        lambda: models.find(EMBED_PICTURES),
        profiles.digest_of(models.profile, [EMBED_PICTURES]),
        lambda: models.find(EMBED_PHRASES),
    )


def answerer_of(models: LocalModels | ServedModels) -> Answerer | None:
    """Return the profile's model that answers questions; None where it has none here."""
    if not profiles.has_task(models.profile, ANSWER, models.models_dir):
        return None
    return Answerer(
        lambda: models.find(ANSWER), REGISTRY[models.profile][ANSWER].weights["model"].origin
    )


def require_machine(profile: str) -> None:
    """Raise ModelProfileError where this machine's processor or memory cannot run the profile.

    For a service on one machine: on a cluster the replicas run elsewhere.
    """
    import ctranslate2

    named = own_profile(profile)
    entries = [entry for entry in REGISTRY[profile].values() if entry.device == "cpu"]
    supported = ctranslate2.get_supported_compute_types("cpu")
    if any(entry.dtype == "int8" for entry in entries) and "int8" not in supported:
        raise ModelProfileError(
            f"This processor cannot run profile {named}: CTranslate2 has no int8 for it, only "
            f"{', '.join(sorted(supported)) or 'nothing'}."
        )
    needed, free = sum(entry.memory_bytes for entry in entries), psutil.virtual_memory().available
    if free < needed:
        raise ModelProfileError(
            f"Profile {named} needs {needed / GIB:.1f} GiB of memory for its models, "
            f"{free / GIB:.1f} GiB are free."
        )


def missing_packages() -> list[str]:
    """Packages of the neural profiles that are not installed here."""
    return [name for name in _NEURAL_PACKAGES if importlib.util.find_spec(name) is None]


def visible_gpus() -> int:
    """NVIDIA GPUs of this machine; 0 without a driver that answers.

    On a cluster the GPUs are on other machines: name the profile there.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    answer = subprocess.run(  # noqa: S603  (the driver's own program)
        [program, "-L"], capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False
    )
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
