"""Published weights: which, at which revision, under which licence, and where they lie here.

Those of a package: a package of a registry is only the carrier of a file that was published
elsewhere. No code of a carrier is imported: its files are read, and used only if their SHA-256 is
the one written here. The same files may lie in a models folder instead, ``<models
folder>/<name>/<file>``, which comes before the carriers; ``vas models pull --profile packaged``
fills it, so that an installation outlives its carriers.

Those of a hub: a models folder holds one folder a checkpoint, ``<owner>--<name>@<revision>``; a
folder is there completely or not at all. With a models folder nothing is ever fetched while the
service runs.

Those of another server: nobody sees them here; the model that the operator named answers over HTTP.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx

_BLOCK_BYTES = 1 << 20


class WeightsError(RuntimeError):
    """Weights are missing or altered; the message has the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A file inside an installed distribution."""

    distribution: str
    path: str

    def locate(self) -> Path | None:
        """Where the file lies; None where its distribution is not installed."""
        try:
            distribution = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None
        return Path(str(distribution.locate_file(self.path)))

    def read(self) -> bytes | None:
        """The file's bytes; None where the distribution or the file is not installed."""
        path = self.locate()
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights: ``carriers`` hold it in parts, to be joined in order."""

    name: str
    sha256: str
    carriers: tuple[Carrier, ...]
    url: str | None = None
    """Where it was first published, for the day on which its carrier is gone."""


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """The files of one model."""

    name: str
    """Of its folder in a models folder."""
    origin: str
    """Who published it, and which version."""
    licence: str
    files: tuple[WeightFile, ...]

    @property
    def carriers(self) -> tuple[str, ...]:
        """Distributions that carry it, sorted."""
        return tuple(sorted({part.distribution for file in self.files for part in file.carriers}))

    @property
    def carrier(self) -> str:
        return ", ".join(self.carriers)

    @property
    def version(self) -> str:
        """Names the weights as a whole: 12 hexadecimal digits over the digests of all files."""
        together = "".join(file.sha256 for file in self.files)
        return hashlib.sha256(together.encode()).hexdigest()[:12]

    @property
    def identity(self) -> str:
        """What results that were made with the weights depend on."""
        return self.version

    def read(self, models_dir: Path | None) -> dict[str, bytes]:
        """File name -> bytes, each checked against its digest. Raises WeightsError where a file is
        neither in the models folder nor installed, or where it is not the one that was
        published."""
        return {file.name: self._read(file, models_dir) for file in self.files}

    def paths(self, models_dir: Path | None) -> dict[str, Path]:
        """File name -> path, for libraries that need less memory to load a file than bytes.

        For weights whose carriers hold each file whole; raises WeightsError as ``read`` does.
        """
        self.read(models_dir)
        found: dict[str, Path] = {}
        for file in self.files:
            own = None if models_dir is None else models_dir / self.name / file.name
            [carrier] = file.carriers
            path = own if own is not None and own.is_file() else carrier.locate()
            if path is None:
                raise WeightsError(f"{self.name}/{file.name} is missing.")
            found[file.name] = path
        return found

    def is_installed(self, models_dir: Path | None) -> bool:
        """Whether all files are there; what is in them is not looked at."""
        return all(
            (models_dir is not None and (models_dir / self.name / file.name).is_file())
            or all((path := part.locate()) is not None and path.is_file() for part in file.carriers)
            for file in self.files
        )

    def state(self, models_dir: Path | None) -> str:
        """Where the weights are and whether they are right, in a few words."""
        try:
            self.read(models_dir)
        except WeightsError as error:
            return str(error)
        if models_dir is not None and (models_dir / self.name).is_dir():
            return str(models_dir / self.name)
        return self.carrier

    def pull(self, models_dir: Path, token: str | None = None) -> Path:
        """Put the files into the models folder, from the carriers or else from where they were
        first published, without a token; return their folder.

        A file is there completely and with the right digest or not at all. Raises WeightsError.
        """
        folder = models_dir / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            try:
                data = self._read(file, models_dir)
            except WeightsError:
                data = self._downloaded(file)
            unfinished = folder / f".{file.name}.part"
            unfinished.write_bytes(data)
            unfinished.replace(folder / file.name)
        return folder

    def _read(self, file: WeightFile, models_dir: Path | None) -> bytes:
        name, own = f"{self.name}/{file.name}", models_dir and models_dir / self.name / file.name
        if own is not None and own.is_file():
            data, where = own.read_bytes(), str(own)
        else:
            parts = [part for carrier in file.carriers if (part := carrier.read()) is not None]
            if not parts or len(parts) < len(file.carriers):
                raise WeightsError(
                    f"{name} is missing: install {' and '.join(self.carriers)}, or name a folder "
                    "that holds it (VAS_MODELS_DIR, `vas models pull`)."
                )
            data, where = b"".join(parts), self.carrier
        digest = hashlib.sha256(data).hexdigest()
        if digest != file.sha256:
            found = f"its SHA-256 is {digest}, {file.sha256} is expected."
            raise WeightsError(f"{name} from {where} is not the published file: {found}")
        return data

    def _downloaded(self, file: WeightFile) -> bytes:
        name = f"{self.name}/{file.name}"
        if file.url is None:
            raise WeightsError(f"{name} is missing: install {' and '.join(self.carriers)}.")
        try:
            with httpx.stream("GET", file.url, follow_redirects=True, timeout=60.0) as response:
                response.raise_for_status()
                data = b"".join(response.iter_bytes(_BLOCK_BYTES))
        except httpx.HTTPError as error:
            raise WeightsError(f"{name} could not be fetched from {file.url}: {error}") from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise WeightsError(f"{name} as fetched from {file.url} is not the published file.")
        return data


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
        Raises GatedCheckpointError where the token does not open the repository, and HubError. What
        was fetched before an error is used by the next try."""
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
        """Mark a folder that was filled by other means as complete. Raises MissingCheckpointError
        if there are no weights in it."""
        folder = models_dir / self.identity
        if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
            raise MissingCheckpointError(f"{folder} holds no weights.")
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        (folder / _COMPLETE).touch()


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on an OpenAI-compatible server, as the operator configures it. Raises ValueError for
    numbers out of range."""

    url: str
    """To which ``/chat/completions`` and such are appended, e.g. http://gpu:8000/v1."""
    model: str
    """What the server calls it."""
    key_variable: str | None = None
    """Environment variable with the key for the server; the key itself is written nowhere."""
    concurrency: int = 4
    """Requests of a process that are under way at once."""
    timeout_seconds: float = 120.0
    """Of a request; it is ended after so long, and sent again at most three times."""
    most_media_seconds: float | None = None
    """A job of longer media has nothing sent: the budget of a job. None: there is none."""
    body: dict[str, Any] = field(default_factory=dict, hash=False)
    """Further fields of each request in JSON, e.g. ``{"dimensions": 512}``."""

    licence: ClassVar[str] = "its server's"
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    """Of the settings: a word that is mistyped is no row without a budget."""

    def __post_init__(self) -> None:
        if not (self.model and 1 <= self.concurrency <= 256 and 0 < self.timeout_seconds <= 3600):
            raise ValueError(
                "A remote model needs a model's name, a concurrency of 1 to 256 and a timeout of "
                "at most 3600 seconds"
            )

    @property
    def origin(self) -> str:
        return self.model

    name = origin

    @property
    def carrier(self) -> str:
        return self.url

    @property
    def version(self) -> str:
        """A digest of the server and the model's name; the weights behind it are not known."""
        asked = json.dumps([self.url, self.model, self.body], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:12]

    @property
    def identity(self) -> str:
        """What results that were made with it depend on."""
        return f"{self.model}@{self.version}"

    def is_installed(self, _: Path | None) -> bool:
        return True

    def state(self, _: Path | None) -> str:
        return "asked over HTTP"

    def pull(self, models_dir: Path, _: str | None = None) -> Path:
        """Fetch nothing."""
        return models_dir


Weights = PackagedWeights | Checkpoint | RemoteModel
