"""What does the tasks: a module a family of models. A row of the registry names the function that
opens a backend, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.tasks import Task
from models.weights import Checkpoint, Location, PackagedWeights, RemoteModel, Weights

CARD_BYTES = 44 << 30
"""Of the GPUs of ``cluster.yaml``, after what their driver takes; a model takes the same share of a
larger one."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to do a task."""

    opener: str
    """``package.module:function``, called with this row and the models folder; what it returns
    keeps the task's contract."""
    weights: dict[str, Weights]
    """Role -> weights; the role of those that do the task themselves is ``model``."""
    shares: Task[Any] | None = None
    """The task whose loaded model, and whose replicas, do this task too."""
    device: str = "cpu"
    dtype: str = "auto"
    """Number format: one of torch, or ``int8`` for CTranslate2."""
    max_batch: int = 1
    """Most inputs of one call of the model; halved where memory runs out."""
    most_stills: int = 5
    """Of a scene, that a describer is shown."""
    batch_wait_seconds: float = 0.0
    """How long a replica waits for a batch to fill."""
    languages: str = ""
    memory_bytes: int = 0
    """What a replica was measured to take at its busiest, on a processor; 0: not measured."""
    gpu_memory_bytes: int = 0
    """Of a GPU, what a replica may take at most; 0: it takes none."""
    session_bytes: int = 0
    """Of a GPU, what all of its sessions of onnxruntime may take. It gets no replicas: they are in
    processes that have the inputs, and a share of a GPU for other models."""
    revision: int = 0
    """Of the answers: another number where the same weights came to answer otherwise."""
    own_files: tuple[str, ...] = ()
    """Patterns of files that a folder of the user's own weights must hold to be loaded."""
    workers: int = 1
    """Calls that one loaded model works on at once, on a processor; set where it is opened."""
    own: Path | None = None
    """That folder, in place of the role ``model``; set where the backend is opened."""
    plugin: str = ""
    """``name==version`` of the plug-in that the row is of; set where it is loaded."""
    call_seconds: float = 300.0
    """Of a plug-in, after which a call, with the opening before the first, is ended."""

    @property
    def gpus(self) -> float:
        """Share of a GPU that a replica takes, which is what Ray places it by."""
        return round(self.gpu_memory_bytes / CARD_BYTES, 3)

    @property
    def concurrent_batches(self) -> int:
        """How many a replica works on: on a GPU one is made ready while another is computed."""
        return 2 if self.gpu_memory_bytes else 1

    @property
    def is_packaged(self) -> bool:
        """Whether installed packages carry all of its weights."""
        return all(isinstance(each, PackagedWeights) for each in self.weights.values())

    @property
    def remote(self) -> RemoteModel | None:
        """The model of another server that does the task, where one does."""
        model = self.weights.get("model")
        return model if isinstance(model, RemoteModel) else None

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
        raise TypeError(f"{weights.origin} is no checkpoint of a hub.")
