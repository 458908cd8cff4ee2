"""Questions about a profile: what it does here, with which weights, and which one to serve."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import registry
from models.contracts import WRITTEN_LANGUAGES
from models.tasks import TRANSLATE_SPEECH, TRANSLATE_TEXT, Task
from models.weights import Checkpoint, PackagedWeights, Weights, WeightsError


def has_task(profile: str, task: Task[Any], models_dir: Path | None) -> bool:
    """Whether the profile does the task here: an optional one only where its weights are, or where
    without a models folder a hub has them, but for ``packaged``."""
    row = registry.REGISTRY[profile].get(task)
    if row is None or not task.optional:
        return row is not None
    from_hub = models_dir is None and (row.plugin or registry.own_profile(profile) != "packaged")
    if not row.is_packaged and not (row.remote or row.plugin) and not _has_transformers():
        return False
    return all(
        each.is_installed(models_dir) or (from_hub and isinstance(each, Checkpoint))
        for each in row.weights.values()
    )


def how_to_add(profile: str, task: Task[Any], models_dir: Path | None) -> str | None:
    """What an operator does so that the profile (``auto``: ``packaged``) does an optional task;
    None where it cannot."""
    row = registry.REGISTRY["packaged" if profile == "auto" else profile].get(task)
    if row is None or not task.optional:
        return None
    packages = "" if row.is_packaged or _has_transformers() else "install extra models, "
    folder = "" if models_dir else "set VAS_MODELS_DIR to a folder, "
    pull = f"vas models pull --task {(row.shares or task).name}"
    return f"{packages}{folder}run {pull} and restart the service"


def _has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def translation_targets(profile: str, models_dir: Path | None) -> frozenset[str]:
    """The languages (primary, BCP 47) that the profile (``auto``: ``packaged``) translates into."""
    profile = "packaged" if profile == "auto" else profile
    if has_task(profile, TRANSLATE_TEXT, models_dir):
        return WRITTEN_LANGUAGES
    return frozenset({"en"} if has_task(profile, TRANSLATE_SPEECH, models_dir) else ())


def replicas_of(profile: str, task: Task[Any]) -> Task[Any] | None:
    """The task whose replicas do it: itself, or the one whose loaded model it shares; None where it
    runs in the process that has the inputs. Raises KeyError where the profile lacks it."""
    row = registry.REGISTRY[profile][task]
    # What asks another server is there where its job is: with the process ends the request.
    in_task = row.remote is not None or (row.is_packaged and task.in_task and not row.gpus)
    return None if in_task else row.shares or task


def most_media_seconds(profile: str, task: Task[Any]) -> float:
    """The longest media of a job, in seconds, on which the task's model may be used."""
    row = registry.REGISTRY[profile].get(task)
    remote = row and row.remote
    return (remote and remote.most_media_seconds) or math.inf


def is_one_actor(profile: str, task: Task[Any]) -> bool:
    """Whether on one machine an actor of Ray's, without Serve, does it: one that has no batches to
    gather, loads what a package carries and shares it among the threads that call it."""
    row = registry.REGISTRY[profile][task]
    return row.max_batch == 1 and row.is_packaged and not row.gpus


def concurrent_inputs(profile: str, task: Task[Any]) -> int:
    """How many inputs a replica takes: two batches, one being worked on, one gathering; on a GPU
    another, made ready while one is computed.

    Serve's router waits 0.025 to 0.5 s between two looks at a replica that takes no more, so one
    that took a single input would often be idle.
    """
    row = registry.REGISTRY[profile][task]
    return (1 + row.concurrent_batches) * row.max_batch


@dataclass(frozen=True, slots=True)
class ListedWeights:
    """Weights of one role in a task of a profile."""

    task: str
    role: str
    weights: Weights
    optional: bool = False


def listed_weights(profile: str) -> Iterator[ListedWeights]:
    """All weights of a profile, in the order of its tasks."""
    for task, row in registry.REGISTRY[profile].items():
        for role, weights in row.weights.items():
            optional = task.optional or role in registry.OPTIONAL_ROLES
            yield ListedWeights(task.name, role, weights, optional)


def pulled_weights(profile: str, task: str | None, folder: Path) -> list[ListedWeights]:
    """What ``vas models pull`` fetches: what the profile needs, or all that one task does.

    Optional weights that nothing here carries are left out, and so are those of a hub for
    ``packaged``, which does without a hub unless a task is named.
    """
    listed = listed_weights(profile)
    if task is not None:
        return [each for each in listed if each.task == task]
    return [
        each
        for each in listed
        if not each.optional
        or each.weights.is_installed(folder)
        or (isinstance(each.weights, Checkpoint) and registry.own_profile(profile) != "packaged")
    ]


def checkpoints_of(profile: str) -> list[Checkpoint]:
    """All weights of a hub, each once, in the order of the tasks."""
    found = [each.weights for each in listed_weights(profile)]
    return list(dict.fromkeys(each for each in found if isinstance(each, Checkpoint)))


def missing_checkpoints(profile: str, models_dir: Path) -> list[Checkpoint]:
    """Weights of a hub that the profile cannot do without and the folder lacks."""
    needed = {each.weights for each in listed_weights(profile) if not each.optional}
    return [
        checkpoint
        for checkpoint in checkpoints_of(profile)
        if checkpoint in needed and not checkpoint.is_installed(models_dir)
    ]


def check_weights(profile: str, models_dir: Path | None) -> None:
    """Raise WeightsError where packaged weights that a task needs are missing or altered."""
    needed = dict.fromkeys(  # tasks share some
        weights
        for task, row in registry.REGISTRY[profile].items()
        if has_task(profile, task, models_dir)
        for weights in row.weights.values()
    )
    for weights in needed:
        if isinstance(weights, PackagedWeights):
            weights.read(models_dir)


def check_own_weights(profile: str, task: Task[Any], own: Path) -> None:
    """Raise WeightsError where a folder lacks a file that the profile's backend loads: one that is
    not there might be looked for on a hub."""
    needed = registry.REGISTRY[profile][task].own_files
    for pattern in needed:
        if not any(own.glob(pattern)):
            raise WeightsError(
                f"{own} lacks {pattern}: the profile {profile} loads {', '.join(needed)}."
            )


@functools.lru_cache(maxsize=16)
def own_digest(own: Path) -> str:
    """Names the files of a folder as they are when a process first reads them."""
    total = hashlib.sha256()
    for path in sorted(own.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()


def digest_of(profile: str, tasks: Iterable[Task[Any]], own: Path | None = None) -> str:
    """Names what ``tasks`` are done with: results of one digest are not reused for another."""
    parts = [registry.own_profile(profile), *([] if own is None else [own_digest(own)])]
    for task in tasks:
        row = registry.REGISTRY[profile].get(task)
        if row is not None:
            module, _, opener = row.opener.partition(":")
            parts.append(f"{registry.FORMER_OPENERS.get(row.opener, module)}:{opener}")
            parts += [row.plugin] if row.plugin else []
            parts += [each.identity for each in row.weights.values()]
            parts += [f"revision {row.revision}"] if row.revision else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Choice:
    """A profile, and why it was taken."""

    profile: str
    reason: str

    @property
    def name(self) -> str:
        """For people: the profile without models of other servers and plug-ins."""
        return registry.own_profile(self.profile)


def choose_profile(wanted: str, *, gpus: float, models_dir: Path | None) -> Choice:
    """The profile to serve: ``wanted``, or, for ``auto``, the best that can run here. Raises
    KeyError for an unknown profile."""
    if wanted != "auto":
        if wanted not in registry.REGISTRY:
            raise KeyError(wanted)
        return Choice(wanted, "as configured")
    if models_dir is None:
        return Choice("packaged", "no models folder (VAS_MODELS_DIR) is configured")
    candidates = ["gpu", "cpu"] if gpus > 0 else ["cpu"]
    lacking: list[str] = []
    for profile in candidates:
        missing = missing_checkpoints(profile, models_dir)
        if not missing:
            where = "a GPU and" if profile == "gpu" else "no GPU, but"
            return Choice(profile, f"there is {where} all weights of the profile")
        lacking.append(f"{profile} lacks {', '.join(item.origin for item in missing)}")
    return Choice("packaged", f"{models_dir}: {'; '.join(lacking)}")
