"""What does the tasks: a module a family of models. A row of the registry names the function that
opens a backend, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoints import Checkpoint, Location
from models.tasks import Task
from models.weights import PackagedWeights


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to do a task."""

    opener: str
    """``package.module:function``, called with this row and the models folder; what it returns
    keeps the task's contract."""
    weights: dict[str, PackagedWeights | Checkpoint]
    """Role -> weights; the role of those that do the task themselves is ``model``."""
    shares: Task[Any] | None = None
    """The task whose loaded model, and whose replicas, do this task too."""
    device: str = "cpu"
    dtype: str = "auto"
    """Number format: one of torch, or ``int8`` for CTranslate2."""
    gpus: float = 0.0
    """Share of a GPU that a replica takes."""
    max_batch: int = 1
    """Most inputs of one call of the model; halved where memory runs out."""
    batch_wait_seconds: float = 0.0
    """How long a replica waits for a batch to fill."""
    languages: str = ""
    memory_bytes: int = 0
    """What a replica was measured to take at its busiest, on a processor; 0: not measured."""
    own_files: tuple[str, ...] = ()
    """Patterns of files that a folder of the user's own weights must hold to be loaded."""
    own: Path | None = None
    """That folder, in place of the role ``model``; set where the backend is opened."""

    @property
    def is_packaged(self) -> bool:
        """Whether installed packages carry all of its weights."""
        return all(isinstance(each, PackagedWeights) for each in self.weights.values())

    def packaged(self, role: str = "model") -> PackagedWeights:
        """Weights that a package carries. Raises TypeError for those of a hub."""
        weights = self.weights[role]
        if isinstance(weights, PackagedWeights):
            return weights
        raise TypeError(f"No package carries {weights.origin}.")

    def location(self, models_dir: Path | None, role: str = "model") -> Location:
        """Where weights of a hub are loaded from. Raises MissingCheckpointError, and TypeError for
        those of a package."""
        if self.own is not None and role == "model":
            return Location(str(self.own))
        weights = self.weights[role]
        if isinstance(weights, Checkpoint):
            return weights.locate(models_dir)
        raise TypeError(f"{weights.origin} is carried by a package.")
