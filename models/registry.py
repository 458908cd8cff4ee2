"""Which backend serves a task, and what it needs: data, no code."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.checkpoints import Checkpoint, is_present
from models.tasks import (
    CLASSIFY_CONTENT,
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    DETECT_SPEECH,
    EMBED_PICTURES,
    EMBED_TEXT,
    EMBED_VOICE,
    READ_TEXT,
    SUMMARIZE,
    TRANSCRIBE,
    Task,
)
from models.weights import (
    MINILM,
    MINILM_TOKENIZER,
    MTCNN,
    OPEN_NSFW,
    PP_OCR,
    RESEMBLYZER,
    SILERO_VAD,
    TRANSNETV2,
    WHISPER_BASE,
    PackagedWeights,
    WeightsError,
    is_installed,
    read_weights,
)


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One way to do a task."""

    factory: str
    """``package.module:callable``, called with this entry and the models folder."""
    shares: Task[Any] | None = None
    """The task whose loaded model, and whose replicas, do this task too."""
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    """Role -> weights from a hub."""
    weights: dict[str, PackagedWeights] = field(default_factory=dict)
    """Role -> weights that an installed package carries."""
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
    own: Path | None = None
    """A folder of the user's own weights, in place of the role ``model``."""
    memory_bytes: int = 0
    """What a replica was measured to take at its busiest, on a processor; 0: not measured."""


WHISPER_TURBO = Checkpoint(
    "openai/whisper-large-v3-turbo", "41f01f3fe87f28c78e2fbf8b568835947dd65ed9", "MIT"
)
WHISPER_SMALL = Checkpoint(
    "openai/whisper-small", "973afd24965f72e36ca33b3055d56a652f456b4d", "Apache-2.0"
)
CTRANSLATE2_WHISPER_SMALL = Checkpoint(
    "Systran/faster-whisper-small",
    "536b0662742c02347bc0e980a01041f333bce120",
    "MIT",
    files=("model.bin", "config.json", "tokenizer.json", "vocabulary.txt"),
)
ENGLISH_ALIGNER = Checkpoint(
    "facebook/wav2vec2-base-960h", "22aad52d435eb6dbaf354bdad9b0da84ce7d6156", "Apache-2.0"
)
MULTILINGUAL_ALIGNER = Checkpoint(
    "MahmoudAshraf/mms-300m-1130-forced-aligner",
    "49402e9577b1158620820667c218cd494cc44486",
    "CC-BY-NC-4.0: not for commercial use; leave it out and attention times other languages' words",
)
SEGMENTATION = Checkpoint(
    "pyannote/segmentation-3.0",
    "e66f3d3b9eb0873085418a7b813d3b369bf160bb",
    "MIT, its terms to be accepted",
    gated=True,
    files=("pytorch_model.bin", "*.yaml"),
)
SPEAKER_VECTORS = Checkpoint(
    "pyannote/wespeaker-voxceleb-resnet34-LM",
    "837717ddb9ff5507820346191109dc79c958d614",
    "CC-BY-4.0",
    files=("pytorch_model.bin", "*.yaml"),
)
DESCRIBER_2B = Checkpoint(
    "Qwen/Qwen3-VL-2B-Instruct", "89644892e4d85e24eaac8bacfd4f463576704203", "Apache-2.0"
)
DESCRIBER_4B = Checkpoint(
    "Qwen/Qwen3-VL-4B-Instruct", "ebb281ec70b05090aa6165b016eac8ec08e71b17", "Apache-2.0"
)
CLASSIFIER = Checkpoint(
    "Falconsai/nsfw_image_detection", "96cb0d0342c7afb80cab76ecc58b265fa44da256", "Apache-2.0"
)
OBJECT_DETECTOR = Checkpoint(
    "PekingU/rtdetr_v2_r18vd", "5650961749fa93567c0d46fc7f43ea4f9e914107", "Apache-2.0"
)
SENTENCES = Checkpoint(
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
    "86741b4e3f5cb7765a600d3a3d55a0f6a6cb443d",
    "Apache-2.0",
    files=("config.json", "tokenizer*.json", "special_tokens_map.json", "model.safetensors"),
)
PICTURES = Checkpoint(
    "google/siglip2-base-patch16-224",
    "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2",
    "Apache-2.0",
    files=("config.json", "preprocessor_config.json", "model.safetensors"),
)
"""1.5 GB with the tower of texts, which is not loaded."""

_FACTORIES = "models.factories:"


def _neural(device: str) -> dict[Task[Any], RegistryEntry]:
    """The same models' tasks on a processor or on a GPU: sizes and batches differ."""
    on_gpu = device == "cuda"
    describer = DESCRIBER_4B if on_gpu else DESCRIBER_2B
    return {
        TRANSCRIBE: RegistryEntry(
            f"{_FACTORIES}whisper",
            checkpoints={
                "model": WHISPER_TURBO if on_gpu else WHISPER_SMALL,
                "align_en": ENGLISH_ALIGNER,
                "align": MULTILINGUAL_ALIGNER,
            },
            device=device,
            gpus=0.4 if on_gpu else 0.0,
            max_batch=16 if on_gpu else 2,
            batch_wait_seconds=0.1 if on_gpu else 0.0,
            languages="99 languages",
        ),
        DETECT_SPEECH: RegistryEntry(
            f"{_FACTORIES}pyannote_detector",
            checkpoints={"model": SEGMENTATION},
            device=device,
            gpus=0.05 if on_gpu else 0.0,
            max_batch=32 if on_gpu else 8,
        ),
        EMBED_VOICE: RegistryEntry(
            f"{_FACTORIES}pyannote_embedder",
            checkpoints={"model": SPEAKER_VECTORS},
            device=device,
            gpus=0.05 if on_gpu else 0.0,
            max_batch=32 if on_gpu else 8,
        ),
        DESCRIBE_SCENES: RegistryEntry(
            f"{_FACTORIES}vision_language_describer",
            checkpoints={"model": describer},
            device=device,
            gpus=0.35 if on_gpu else 0.0,
            max_batch=8 if on_gpu else 1,
            batch_wait_seconds=0.1 if on_gpu else 0.0,
            languages="English",
        ),
        CLASSIFY_CONTENT: RegistryEntry(
            f"{_FACTORIES}picture_classifier",
            checkpoints={"model": CLASSIFIER},
            device=device,
            gpus=0.05 if on_gpu else 0.0,
            max_batch=32 if on_gpu else 8,
            batch_wait_seconds=0.05 if on_gpu else 0.0,
        ),
        READ_TEXT: _TEXT_READER,
        DETECT_OBJECTS: RegistryEntry(
            f"{_FACTORIES}object_detector",
            checkpoints={"model": OBJECT_DETECTOR},
            device=device,
            gpus=0.05 if on_gpu else 0.0,
            max_batch=32 if on_gpu else 4,
            batch_wait_seconds=0.05 if on_gpu else 0.0,
        ),
        SUMMARIZE: RegistryEntry(
            f"{_FACTORIES}vision_language_describer",
            shares=DESCRIBE_SCENES,
            checkpoints={"model": describer},
            device=device,
        ),
        EMBED_TEXT: RegistryEntry(
            f"{_FACTORIES}sentence_embedder",
            checkpoints={"model": SENTENCES},
            device=device,
            gpus=0.025 if on_gpu else 0.0,
            max_batch=32 if on_gpu else 8,
            languages="50 languages",
        ),
        EMBED_PICTURES: RegistryEntry(
            f"{_FACTORIES}picture_embedder",
            checkpoints={"model": PICTURES},
            device=device,
            gpus=0.025 if on_gpu else 0.0,
            max_batch=16 if on_gpu else 4,
        ),
    }


_PACKAGED = "models.backends.packaged."

_TEXT_READER = RegistryEntry(
    f"{_PACKAGED}text_reader:open_text_reader",
    weights={"model": PP_OCR},
    languages="Chinese, Japanese, English and 46 more in Latin script",
)

PACKAGED: dict[Task[Any], RegistryEntry] = {
    TRANSCRIBE: RegistryEntry(
        f"{_PACKAGED}transcriber:open_transcriber",
        weights={"model": WHISPER_BASE},
        dtype="int8",
        # Four chunks of 30 s at once, above 71 MB of an empty process.
        memory_bytes=1_300_000_000,
        languages="99 languages",
    ),
    DETECT_SPEECH: RegistryEntry(
        f"{_PACKAGED}speech:open_speech_detector",
        weights={"model": SILERO_VAD},
    ),
    EMBED_VOICE: RegistryEntry(
        f"{_PACKAGED}speech:open_speaker_embedder",
        weights={"model": RESEMBLYZER},
    ),
    DESCRIBE_SCENES: RegistryEntry(
        f"{_PACKAGED}describer:open_describer",
        weights={"faces": MTCNN},
        languages="English",
    ),
    CLASSIFY_CONTENT: RegistryEntry(
        f"{_PACKAGED}networks:open_classifier", weights={"model": OPEN_NSFW}
    ),
    READ_TEXT: _TEXT_READER,
    EMBED_TEXT: RegistryEntry(
        f"{_PACKAGED}sentences:open_text_embedder",
        weights={"model": MINILM, "tokenizer": MINILM_TOKENIZER},
        languages="English",
    ),
}
"""What every installation can do: weights that installed packages carry, on any processor."""

_CTRANSLATE2_WHISPER = RegistryEntry(
    f"{_FACTORIES}ctranslate2_whisper",
    checkpoints={"model": CTRANSLATE2_WHISPER_SMALL},
    dtype="int8",
    max_batch=4,
    # Four chunks of 30 s at once, above 71 MB of an empty process; random weights of its size.
    memory_bytes=1_800_000_000,
    languages="99 languages",
)

REGISTRY: dict[str, dict[Task[Any], RegistryEntry]] = {
    "packaged": PACKAGED,
    "cpu": _neural("cpu") | {TRANSCRIBE: _CTRANSLATE2_WHISPER},
    "cpu-transformers": _neural("cpu"),
    "gpu": _neural("cuda"),
}
"""Profile -> task -> entry. ``cpu-transformers`` is ``cpu`` with Whisper through transformers and
its aligners in place of CTranslate2, whose int8 kernels are faster on a processor."""

FORMER_PROFILE_NAMES = {"embedded": "packaged"}


def profile_named(name: str) -> str:
    """The present name of a profile that may be given by a former one."""
    return FORMER_PROFILE_NAMES.get(name, name)


OPTIONAL_ROLES = frozenset({"align"})
"""Weights that a task can do without, at a loss that it states."""


def open_model(
    profile: str, task: Task[Any], models_dir: Path | None = None, own: Path | None = None
) -> Any:
    """The model of a task, loaded in this process; a transcriber with weights of the user's ``own``
    where a folder of them is given.

    Raises KeyError for an unknown profile or a task that it lacks, and
    MissingCheckpointError where a models folder lacks the weights.
    """
    from threadpoolctl import ThreadpoolController

    entry = replace(REGISTRY[profile][task], own=own)
    module_name, _, name = entry.factory.partition(":")
    factory = getattr(importlib.import_module(module_name), name)
    # A task has one processor. NumPy's OpenBLAS starts a thread for each processor of the machine
    # instead; waiting for each other they took 0.8 of the 1.0 processor seconds of an embedding.
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    return factory(entry, models_dir)


def checkpoints_of(profile: str) -> list[Checkpoint]:
    """All weights of a profile, each once, in the order of the tasks."""
    found = [
        checkpoint
        for entry in REGISTRY[profile].values()
        for checkpoint in entry.checkpoints.values()
    ]
    return list(dict.fromkeys(found))


def weights_of(profile: str) -> list[PackagedWeights]:
    """All packaged weights of a profile, each once, in the order of the tasks.

    With the neural profiles, whose extra `models` carries them, those of the optional detector of
    shot boundaries.
    """
    found = [weights for entry in REGISTRY[profile].values() for weights in entry.weights.values()]
    return list(dict.fromkeys([*found, *([] if profile == "packaged" else [TRANSNETV2])]))


def check_weights(profile: str, models_dir: Path | None) -> None:
    """Raise WeightsError where packaged weights that a task needs are missing or altered."""
    for task, entry in REGISTRY[profile].items():
        if has_task(profile, task, models_dir):
            for weights in entry.weights.values():
                read_weights(weights, models_dir)


def has_task(profile: str, task: Task[Any], models_dir: Path | None) -> bool:
    """Whether the profile does the task here: an optional one only where its weights are."""
    entry = REGISTRY[profile].get(task)
    if entry is None or not task.optional:
        return entry is not None
    return all(is_installed(each, models_dir) for each in entry.weights.values()) and (
        models_dir is None
        or all(is_present(each, models_dir) for each in entry.checkpoints.values())
    )


def replicas_of(profile: str, task: Task[Any]) -> Task[Any] | None:
    """The task whose replicas do it: itself, or the one whose loaded model it shares; None where it
    runs in the process that has the inputs. Raises KeyError where the profile lacks it."""
    entry = REGISTRY[profile][task]
    is_packaged = not entry.checkpoints
    return None if is_packaged and task.in_task else entry.shares or task


def check_own_whisper(profile: str, own: Path) -> None:
    """Raise WeightsError where a folder lacks what the profile's transcriber loads.

    On CTranslate2 (int8) a file that is not there would be looked for on a hub.
    """
    on_ctranslate2 = REGISTRY[profile][TRANSCRIBE].dtype == "int8"
    needed = ("config.json", "tokenizer.json", "model.bin" if on_ctranslate2 else "*.safetensors")
    for pattern in needed:
        if not any(own.glob(pattern)):
            form = "CTranslate2" if on_ctranslate2 else "transformers"
            raise WeightsError(f"{own} is no Whisper in {form}'s format: it lacks {pattern}.")


@functools.lru_cache(maxsize=16)
def own_digest(own: Path) -> str:
    """Names the files of a folder as they are when a process first asks."""
    total = hashlib.sha256()
    for path in sorted(own.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                total.update(
                    f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
                )
    return total.hexdigest()


def digest_of(profile: str, tasks: Iterable[Task[Any]], own: Path | None = None) -> str:
    """Names what ``tasks`` are done with: results of one digest are not reused for another."""
    parts = [profile, *([] if own is None else [own_digest(own)])]
    for task in tasks:
        entry = REGISTRY[profile].get(task)
        if entry is not None:
            parts += [entry.factory, *(item.digest for item in entry.weights.values())]
            parts += [item.folder_name for item in entry.checkpoints.values()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def missing_checkpoints(profile: str, models_dir: Path) -> list[Checkpoint]:
    """Weights that the profile cannot do without and the folder lacks."""
    needed = {
        checkpoint
        for task, entry in REGISTRY[profile].items()
        for role, checkpoint in entry.checkpoints.items()
        if role not in OPTIONAL_ROLES and not task.optional
    }
    return [
        checkpoint
        for checkpoint in checkpoints_of(profile)
        if checkpoint in needed and not is_present(checkpoint, models_dir)
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """A profile, and why it was taken."""

    profile: str
    reason: str


def choose_profile(wanted: str, *, gpus: float, models_dir: Path | None) -> Choice:
    """The profile to serve: ``wanted``, or, for ``auto``, the best that can run here.

    Raises KeyError for an unknown profile.
    """
    wanted = profile_named(wanted)
    if wanted != "auto":
        if wanted not in REGISTRY:
            raise KeyError(wanted)
        return Choice(wanted, "as configured")
    if models_dir is None:
        return Choice("packaged", "no models folder (VAS_MODELS_DIR) is configured")
    candidates = ["gpu", "cpu"] if gpus > 0 else ["cpu"]
    lacking: list[str] = []
    for profile in candidates:
        missing = missing_checkpoints(profile, models_dir)
        if not missing:
            where = "a GPU and" if profile == "gpu" else "no GPU, but"
            return Choice(profile, f"there is {where} all weights of the profile")
        lacking.append(f"{profile} lacks {', '.join(item.repository for item in missing)}")
    return Choice("packaged", f"{models_dir}: {'; '.join(lacking)}")
