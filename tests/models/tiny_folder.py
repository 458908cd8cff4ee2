"""A models folder as `vas models pull` leaves it, filled with tiny random-weight models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.checkpoints import adopt
from models.registry import REGISTRY, Task
from tests.models.tiny_models import (
    save_tiny_classifier,
    save_tiny_ctc,
    save_tiny_ctranslate2_whisper,
    save_tiny_embedding,
    save_tiny_object_detector,
    save_tiny_pictures,
    save_tiny_segmentation,
    save_tiny_sentences,
    save_tiny_vision_language,
    save_tiny_whisper,
)

SAVERS: dict[tuple[Task, str], Callable[[Path], Path]] = {
    (Task.TRANSCRIBE, "model"): save_tiny_whisper,
    (Task.TRANSCRIBE, "align_en"): save_tiny_ctc,
    (Task.TRANSCRIBE, "align"): save_tiny_ctc,
    (Task.DETECT, "model"): save_tiny_segmentation,
    (Task.EMBED, "model"): save_tiny_embedding,
    (Task.DESCRIBE, "model"): save_tiny_vision_language,
    (Task.CLASSIFY, "model"): save_tiny_classifier,
    (Task.FIND, "model"): save_tiny_object_detector,
    (Task.EMBED_TEXT, "model"): save_tiny_sentences,
    (Task.EMBED_PICTURE, "model"): save_tiny_pictures,
}
"""(task, role) -> what saves a model of the class that the registry's checkpoint has."""


def fill_models_folder(folder: Path, profile: str, *, without: tuple[str, ...] = ()) -> Path:
    """Every checkpoint of the profile, except for the roles in ``without``."""
    for task, entry in REGISTRY[profile].items():
        for role, checkpoint in entry.checkpoints.items():
            if role in without or entry.shares:
                continue
            place = folder / checkpoint.folder_name
            place.mkdir(parents=True, exist_ok=True)
            on_ctranslate2 = "model.bin" in checkpoint.files
            save = save_tiny_ctranslate2_whisper if on_ctranslate2 else SAVERS[task, role]
            save(place)
            adopt(checkpoint, folder)
    return folder
