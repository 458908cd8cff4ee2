"""Published weights: which, at which revision, under which licence, and where they lie here.

A models folder holds one folder a checkpoint, ``<owner>--<name>@<revision>``; a
folder is there completely or not at all. With a models folder nothing is ever
fetched while the service runs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx

_WEIGHTS = ("*.safetensors", "pytorch_model.bin", "model.bin")
_COMPLETE = ".complete"


class MissingCheckpointError(RuntimeError):
    """The models folder lacks a checkpoint that the profile needs."""


class GatedCheckpointError(RuntimeError):
    """A repository requires its terms to be accepted."""


class HubError(RuntimeError):
    """The hub could not be reached, or lacks the file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One pinned revision of a repository of weights."""

    repository: str
    """``owner/name`` on the Hugging Face hub."""
    revision: str
    """Commit, 40 hexadecimal digits: what was tested is what is loaded."""
    licence: str
    gated: bool = False
    """Whether the repository's terms must be accepted, and a token given, to fetch it."""
    files: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")
    """Patterns of the files that loading needs."""

    @property
    def folder_name(self) -> str:
        return f"{self.repository.replace('/', '--')}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Location:
    """What ``from_pretrained`` takes: a folder, or a repository with its revision."""

    source: str
    revision: str | None


def is_present(checkpoint: Checkpoint, models_dir: Path) -> bool:
    """Whether the models folder holds the checkpoint, completely."""
    return (models_dir / checkpoint.folder_name / _COMPLETE).is_file()


def locate(checkpoint: Checkpoint, models_dir: Path | None) -> Location:
    """Where to load from. Raises MissingCheckpointError if a models folder lacks it."""
    if models_dir is None:
        return Location(checkpoint.repository, checkpoint.revision)
    if not is_present(checkpoint, models_dir):
        raise MissingCheckpointError(
            f"{checkpoint.repository} is not in {models_dir}: fetch it with vas models pull."
        )
    return Location(str(models_dir / checkpoint.folder_name), None)


def pull(checkpoint: Checkpoint, models_dir: Path, *, token: str | None = None) -> Path:
    """Fetch a checkpoint into the models folder, unless it is there; return its folder.

    Raises GatedCheckpointError where the token does not open the repository, and
    HubError. What was fetched before an error is used by the next try.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    folder = models_dir / checkpoint.folder_name
    if is_present(checkpoint, models_dir):
        return folder
    try:
        snapshot_download(
            checkpoint.repository,
            revision=checkpoint.revision,
            local_dir=folder,
            allow_patterns=list(checkpoint.files),
            token=token,
        )
    except GatedRepoError:
        raise GatedCheckpointError(
            f"{checkpoint.repository} asks for its terms to be accepted: do so at "
            f"https://huggingface.co/{checkpoint.repository}, then set HF_TOKEN to a token of "
            "the same account and try again."
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.TransportError) as error:
        raise HubError(f"{checkpoint.repository} could not be fetched: {error}") from error
    adopt(checkpoint, models_dir)
    return folder


def adopt(checkpoint: Checkpoint, models_dir: Path) -> None:
    """Mark a folder that was filled by other means as complete.

    Raises MissingCheckpointError if there are no weights in it.
    """
    folder = models_dir / checkpoint.folder_name
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise MissingCheckpointError(f"{folder} holds no weights.")
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    (folder / _COMPLETE).touch()
