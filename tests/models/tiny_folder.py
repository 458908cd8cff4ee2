"""A models folder as `vas models pull` leaves it, filled with tiny random-weight models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.registry import REGISTRY
from models.tasks import (
    CLASSIFY_CONTENT,
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_PICTURES,
    EMBED_TEXT,
    TRANSCRIBE,
    TRANSLATE_TEXT,
    Task,
)
from models.weights import Checkpoint
from tests.models.tiny_models import (
    save_tiny_classifier,
    save_tiny_ctc,
    save_tiny_ctranslate2_whisper,
    save_tiny_object_detector,
    save_tiny_pictures,
    save_tiny_sentences,
    save_tiny_translator,
    save_tiny_vision_language,
    save_tiny_whisper,
)

SAVERS: dict[tuple[Task[Any], str], Callable[[Path], Path]] = {
    (TRANSCRIBE, "model"): save_tiny_whisper,
    (TRANSCRIBE, "align_en"): save_tiny_ctc,
    (TRANSCRIBE, "align"): save_tiny_ctc,
    (TRANSLATE_TEXT, "model"): save_tiny_translator,
    (DESCRIBE_SCENES, "model"): save_tiny_vision_language,
    (CLASSIFY_CONTENT, "model"): save_tiny_classifier,
    (DETECT_OBJECTS, "model"): save_tiny_object_detector,
    (EMBED_TEXT, "model"): save_tiny_sentences,
    (EMBED_PICTURES, "model"): save_tiny_pictures,
}
"""(task, role) -> what saves a model of the class that the registry's checkpoint has."""


def fill_models_folder(folder: Path, profile: str, *, without: tuple[str, ...] = ()) -> Path:
    """Every checkpoint of the profile, except for the roles in ``without``."""
    for task, row in REGISTRY[profile].items():
        for role, checkpoint in row.weights.items():
            if role in without or row.shares or not isinstance(checkpoint, Checkpoint):
                continue
            place = folder / checkpoint.identity
            place.mkdir(parents=True, exist_ok=True)
            on_ctranslate2 = "model.bin" in checkpoint.files
            save = save_tiny_ctranslate2_whisper if on_ctranslate2 else SAVERS[task, role]
            save(place)
            checkpoint.adopt(folder)
    return folder
