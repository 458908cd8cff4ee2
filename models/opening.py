"""From a row of the registry to a loaded model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from models.registry import REGISTRY
from models.registry.packaged import TRANSNETV2
from models.tasks import Contract, Task

if TYPE_CHECKING:
    from models.contracts import BoundaryDetector

BoundaryWeights = Path | Literal["packaged"]
"""A file of TransNetV2's weights for PyTorch, or those that an installed package carries."""


def open_model(
    profile: str, task: Task[Contract], models_dir: Path | None = None, own: Path | None = None
) -> Contract:
    """The model of a task, loaded in this process; with weights of the user's ``own`` where a
    folder of them is given.

    Raises KeyError for an unknown profile or a task that it lacks, MissingCheckpointError where a
    models folder lacks the weights, WeightsError for packaged ones that are missing or altered.
    """
    from threadpoolctl import ThreadpoolController

    row = replace(REGISTRY[profile][task], own=own)
    module, _, name = row.opener.partition(":")
    opener = getattr(importlib.import_module(module), name)
    # A task has one processor. NumPy's OpenBLAS starts a thread for each processor of the machine
    # instead; waiting for each other they took 0.8 of the 1.0 processor seconds of an embedding.
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    return cast("Contract", opener(row, models_dir))


def open_boundaries(weights: BoundaryWeights, models_dir: Path | None) -> BoundaryDetector:
    """TransNetV2. Raises WeightsError where the weights are missing, altered or of another net."""
    from models.backends.transnet import TransNetBoundaries

    if weights == "packaged":
        [content] = TRANSNETV2.read(models_dir).values()
        return TransNetBoundaries(content)
    return TransNetBoundaries(weights)


def boundaries_opener(
    weights: BoundaryWeights | None, models_dir: Path | None
) -> Callable[[], BoundaryDetector] | None:
    """What opens the detector when it is needed; picklable. None without weights."""
    return None if weights is None else partial(open_boundaries, weights, models_dir)
