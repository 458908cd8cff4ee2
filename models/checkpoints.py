"""Published weights: which, at which revision, under which licence, and where they lie here.

A models folder holds one folder a checkpoint, ``<owner>--<name>@<revision>``; a
folder is there completely or not at all. With a models folder nothing is ever
fetched while the service runs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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
class Location:
    """What ``from_pretrained`` takes: a folder, or a repository with its revision."""

    source: str
    revision: str | None = None
    files: tuple[str, ...] = ()
    """Patterns of the repository's files that loading needs."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One pinned revision of a repository of weights."""

    origin: str
    """The repository, ``owner/name`` on the Hugging Face hub."""
    version: str
    """Commit, 40 hexadecimal digits: what was tested is what is loaded."""
    licence: str
    files: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")
    """Patterns of the files that loading needs."""

    carrier: ClassVar[str] = "Hugging Face hub"

    @property
    def name(self) -> str:
        return self.origin

    @property
    def identity(self) -> str:
        """Of its folder in a models folder: what results made with the weights depend on."""
        return f"{self.origin.replace('/', '--')}@{self.version}"

    def is_installed(self, models_dir: Path | None) -> bool:
        """Whether the models folder holds the checkpoint, completely: files too that an earlier
        version of the table did not name."""
        if models_dir is None:
            return False
        named = (pattern for pattern in self.files if "*" not in pattern)
        folder = models_dir / self.identity
        return all((folder / name).is_file() for name in (_COMPLETE, *named))

    def state(self, models_dir: Path | None) -> str:
        return "yes" if self.is_installed(models_dir) else "no"

    def locate(self, models_dir: Path | None) -> Location:
        """Where to load from. Raises MissingCheckpointError if a models folder lacks it."""
        if models_dir is None:
            return Location(self.origin, self.version, self.files)
        if not self.is_installed(models_dir):
            raise MissingCheckpointError(
                f"{self.origin} is not in {models_dir}: fetch it with `vas models pull`."
            )
        return Location(str(models_dir / self.identity))

    def pull(self, models_dir: Path, token: str | None = None) -> Path:
        """Fetch the checkpoint into the models folder, unless it is there; return its folder.

        Raises GatedCheckpointError where the token does not open the repository, and
        HubError. What was fetched before an error is used by the next try.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

        folder = models_dir / self.identity
        if self.is_installed(models_dir):
            return folder
        try:
            snapshot_download(
                self.origin,
                revision=self.version,
                local_dir=folder,
                allow_patterns=list(self.files),
                token=token,
            )
        except GatedRepoError:
            raise GatedCheckpointError(
                f"{self.origin} asks for its terms to be accepted: do so at "
                f"https://huggingface.co/{self.origin}, then set HF_TOKEN to a token of "
                "the same account and try again."
            ) from None
        except (HfHubHTTPError, LocalEntryNotFoundError, httpx.TransportError) as error:
            raise HubError(f"{self.origin} could not be fetched: {error}") from error
        self.adopt(models_dir)
        return folder

    def adopt(self, models_dir: Path) -> None:
        """Mark a folder that was filled by other means as complete.

        Raises MissingCheckpointError if there are no weights in it.
        """
        folder = models_dir / self.identity
        if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
            raise MissingCheckpointError(f"{folder} holds no weights.")
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        (folder / _COMPLETE).touch()
