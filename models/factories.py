"""From a registry entry to a loaded model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.checkpoints import Location, is_present, locate
from models.registry import RegistryEntry
from models.weights import TRANSNETV2, read_weights

if TYPE_CHECKING:
    from models.backends.transformers.hardware import Hardware
    from models.contracts import BoundaryDetector

BoundaryWeights = Path | Literal["packaged"]
"""A file of TransNetV2's weights for PyTorch, or those that an installed package carries."""

Factory = Callable[[RegistryEntry, Path | None], Any]


def _checkpoint_backend(module: str, name: str) -> Factory:
    """A factory of a backend whose constructor takes its checkpoint and the hardware."""

    def opened(entry: RegistryEntry, models_dir: Path | None) -> Any:
        backend = getattr(importlib.import_module(module), name)
        where = locate(entry.checkpoints["model"], models_dir)
        hardware = _hardware(entry.device, entry.dtype)
        return backend(where.source, hardware, revision=where.revision, max_batch=entry.max_batch)

    return opened


pyannote_detector = _checkpoint_backend("models.backends.pyannote", "PyannoteSpeechDetector")
pyannote_embedder = _checkpoint_backend("models.backends.pyannote", "PyannoteSpeakerEmbedder")
vision_language_describer = _checkpoint_backend(
    "models.backends.transformers.describer", "VisionLanguageDescriber"
)
picture_classifier = _checkpoint_backend(
    "models.backends.transformers.pictures", "PictureClassifier"
)
object_detector = _checkpoint_backend(
    "models.backends.transformers.pictures", "TransformersObjectDetector"
)
picture_embedder = _checkpoint_backend("models.backends.transformers.pictures", "PictureEmbedder")
sentence_embedder = _checkpoint_backend(
    "models.backends.transformers.sentences", "SentenceEmbedder"
)


def whisper(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Whisper with its aligners; the multilingual one is left out where a models folder lacks it.

    Alignment runs in float32: the multilingual checkpoint overflows in half precision.
    """
    from models.backends.transformers.alignment import AlignerByLanguage, CtcAligner
    from models.backends.transformers.whisper import WhisperTranscriber

    def aligner(role: str) -> CtcAligner:
        where = locate(entry.checkpoints[role], models_dir)
        return CtcAligner(where.source, _hardware(entry.device, "float32"), revision=where.revision)

    is_lacking = models_dir is not None and not is_present(entry.checkpoints["align"], models_dir)
    where = _whisper_location(entry, models_dir)
    return WhisperTranscriber(
        where.source,
        AlignerByLanguage(aligner("align_en"), None if is_lacking else aligner("align")),
        _hardware(entry.device, entry.dtype),
        revision=where.revision,
        max_batch=entry.max_batch,
    )


def ctranslate2_whisper(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Whisper on CTranslate2, whose word times come from the decoder's attention."""
    from models.backends.packaged.transcriber import CTranslate2Transcriber

    where = _whisper_location(entry, models_dir)
    folder = Path(where.source)
    if where.revision is not None:
        from huggingface_hub import snapshot_download

        files = list(entry.checkpoints["model"].files)
        folder = Path(
            snapshot_download(where.source, revision=where.revision, allow_patterns=files)
        )
    return CTranslate2Transcriber(folder, max_batch=entry.max_batch)


def _whisper_location(entry: RegistryEntry, models_dir: Path | None) -> Location:
    if entry.own is not None:
        return Location(str(entry.own), None)
    return locate(entry.checkpoints["model"], models_dir)


def _hardware(device: str, dtype: str) -> Hardware:
    from models.backends.transformers.hardware import pick_hardware

    return pick_hardware(device, dtype)


def open_boundaries(weights: BoundaryWeights, models_dir: Path | None) -> BoundaryDetector:
    """TransNetV2. Raises WeightsError where the weights are missing, altered or of another net."""
    from models.backends.transnet import TransNetBoundaries

    if weights == "packaged":
        [content] = read_weights(TRANSNETV2, models_dir).values()
        return TransNetBoundaries(content)
    return TransNetBoundaries(weights)


def boundaries_opener(
    weights: BoundaryWeights | None, models_dir: Path | None
) -> Callable[[], BoundaryDetector] | None:
    """What opens the detector when it is needed; picklable. None without weights."""
    return None if weights is None else partial(open_boundaries, weights, models_dir)
