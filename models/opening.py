"""From a row of the registry to a loaded model."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import cast

from models.registry import REGISTRY
from models.tasks import Contract, Task


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
