"""From a registry entry to a loaded model: the only place that knows both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.checkpoints import Location, locate
from models.registry import RegistryEntry
from models.weights import TRANSNETV2, read_weights

if TYPE_CHECKING:
    from models.backends.transformers.alignment import CtcAligner, Span
    from models.backends.transformers.hardware import Hardware
    from models.contracts import BoundaryDetector, Samples

BoundaryWeights = Path | Literal["packaged"]
"""A file of TransNetV2's weights for PyTorch, or those that an installed package carries."""


def whisper(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Whisper with its aligners."""
    from models.backends.transformers.whisper import WhisperTranscriber

    hardware, where = _hardware(entry), locate(entry.checkpoints["model"], models_dir)
    return WhisperTranscriber(
        where.source,
        AlignerByLanguage(
            _aligner(entry, "align_en", models_dir), _other_aligner(entry, models_dir)
        ),
        hardware,
        revision=where.revision,
        max_batch=entry.max_batch,
    )


def ctranslate2_whisper(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Whisper on CTranslate2, whose word times come from the decoder's attention."""
    from models.backends.packaged.transcriber import CTranslate2Transcriber

    where = locate(entry.checkpoints["model"], models_dir)
    folder = Path(where.source)
    if where.revision is not None:
        from huggingface_hub import snapshot_download

        files = list(entry.checkpoints["model"].files)
        folder = Path(
            snapshot_download(where.source, revision=where.revision, allow_patterns=files)
        )
    return CTranslate2Transcriber(folder, max_batch=entry.max_batch)


def pyannote_detector(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Speech regions and turns."""
    from models.backends.pyannote.speech_turns import PyannoteSpeechDetector

    return _open(PyannoteSpeechDetector, entry, models_dir)


def pyannote_embedder(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Voices as vectors."""
    from models.backends.pyannote.speaker_vectors import PyannoteSpeakerEmbedder

    return _open(PyannoteSpeakerEmbedder, entry, models_dir)


def vision_language_describer(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Scenes to words."""
    from models.backends.transformers.describer import VisionLanguageDescriber

    return _open(VisionLanguageDescriber, entry, models_dir)


def picture_classifier(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Labels of the content policy."""
    from models.backends.transformers.classifier import PictureClassifier

    return _open(PictureClassifier, entry, models_dir)


def object_detector(entry: RegistryEntry, models_dir: Path | None) -> Any:
    """Things of known classes."""
    from models.backends.transformers.object_detector import TransformersObjectDetector

    return _open(TransformersObjectDetector, entry, models_dir)


def open_boundaries(weights: BoundaryWeights, models_dir: Path | None) -> BoundaryDetector:
    """TransNetV2. Raises WeightsError where the weights are missing, altered or of another net."""
    from models.backends.transnet.boundaries import TransNetBoundaries

    if weights == "packaged":
        [content] = read_weights(TRANSNETV2, models_dir).values()
        return TransNetBoundaries(content)
    return TransNetBoundaries(weights)


def boundaries_opener(
    weights: BoundaryWeights | None, models_dir: Path | None
) -> Callable[[], BoundaryDetector] | None:
    """What opens the detector when it is needed; picklable. None without weights."""
    return None if weights is None else partial(open_boundaries, weights, models_dir)


def _open(backend: Any, entry: RegistryEntry, models_dir: Path | None) -> Any:
    where = locate(entry.checkpoints["model"], models_dir)
    return backend(
        where.source, _hardware(entry), revision=where.revision, max_batch=entry.max_batch
    )


def _hardware(entry: RegistryEntry) -> Hardware:
    from models.backends.transformers.hardware import pick_hardware

    return pick_hardware(entry.device, entry.dtype)


def _aligner(entry: RegistryEntry, role: str, models_dir: Path | None) -> CtcAligner:
    where = locate(entry.checkpoints[role], models_dir)
    return _open_aligner(entry, where)


def _open_aligner(entry: RegistryEntry, where: Location) -> CtcAligner:
    from models.backends.transformers.alignment import CtcAligner
    from models.backends.transformers.hardware import pick_hardware

    # Alignment runs in float32: the multilingual checkpoint overflows in half precision.
    return CtcAligner(where.source, pick_hardware(entry.device, "float32"), revision=where.revision)


def _other_aligner(entry: RegistryEntry, models_dir: Path | None) -> CtcAligner | None:
    """The multilingual one, which an operator may leave out for its licence."""
    from models.checkpoints import is_present

    if models_dir is not None and not is_present(entry.checkpoints["align"], models_dir):
        return None
    return _aligner(entry, "align", models_dir)


@dataclass(frozen=True, slots=True)
class AlignerByLanguage:
    """English with one acoustic model, other languages with another, where there is one."""

    english: CtcAligner
    other: CtcAligner | None

    def align(
        self, samples: Samples, words: Sequence[str], language: str | None
    ) -> list[Span] | None:
        """One span a word, in order, inside the samples; None without an aligner for it."""
        if language == "en":
            return self.english.align(samples, words, language)
        if self.other is not None:
            return self.other.align(samples, words, language)
        return None
