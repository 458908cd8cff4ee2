"""The table: profile x task -> backend, weights, licence, resources. Data, no code.

Here are the profiles with neural networks of a hub; ``packaged`` is what every installation can do,
and what a neural profile does too where it has no row of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models.backends import Backend
from models.checkpoints import Checkpoint
from models.registry.packaged import PACKAGED, SEGMENTATION_TORCH
from models.tasks import (
    ALIGN,
    CLASSIFY_CONTENT,
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_PHRASES,
    EMBED_PICTURES,
    EMBED_TEXT,
    SEGMENT_SPEAKERS,
    SUMMARIZE,
    TRANSCRIBE,
    TRANSLATE_SPEECH,
    TRANSLATE_TEXT,
    Task,
)

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
    files=("model.bin", "config.json", "tokenizer.json", "vocabulary.*"),
)
ENGLISH_ALIGNER = Checkpoint(
    "facebook/wav2vec2-base-960h", "22aad52d435eb6dbaf354bdad9b0da84ce7d6156", "Apache-2.0"
)
MULTILINGUAL_ALIGNER = Checkpoint(
    "MahmoudAshraf/mms-300m-1130-forced-aligner",
    "49402e9577b1158620820667c218cd494cc44486",
    "CC-BY-NC-4.0: not for commercial use; leave it out and attention times other languages' words",
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
    files=("config.json", "tokenizer*.json", "special_tokens_map*.json", "model.safetensors"),
)
TRANSLATOR = Checkpoint(
    "facebook/m2m100_418M",
    "55c2e61bbf05dfb8d7abccdc3fae6fc8512fd636",
    "MIT",
    files=("*.json", "sentencepiece.bpe.model", "pytorch_model.bin"),
)
PICTURES = Checkpoint(
    "google/siglip2-base-patch16-224",
    "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2",
    "Apache-2.0",
    files=(
        "config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config*.json",
        "special_tokens_map*.json",
        "model.safetensors",
    ),
)
"""1.5 GB with the tower of texts, whose words alone are half of it."""

OPTIONAL_ROLES = frozenset({"align"})
"""Weights that a task can do without, at a loss that it states."""

_ALIGNERS = {"align_en": ENGLISH_ALIGNER, "align": MULTILINGUAL_ALIGNER}

_ON_A_PROCESSOR: dict[Task[Any], Backend] = {
    TRANSCRIBE: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL, **_ALIGNERS},
        max_batch=2,
        own_files=("config.json", "tokenizer.json", "*.safetensors"),
        languages="99 languages",
    ),
    ALIGN: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL, **_ALIGNERS},
        shares=TRANSCRIBE,
        languages="99 languages",
    ),
    TRANSLATE_SPEECH: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL},
        shares=TRANSCRIBE,
        languages="from 99 languages into English",
    ),
    TRANSLATE_TEXT: Backend(
        "models.backends.transformers.translation:open_translator",
        {"model": TRANSLATOR},
        max_batch=8,
        languages="between 100 languages",
    ),
    DESCRIBE_SCENES: Backend(
        "models.backends.transformers.describer:open_describer",
        {"model": DESCRIBER_2B},
        languages="English",
    ),
    CLASSIFY_CONTENT: Backend(
        "models.backends.transformers.pictures:open_classifier", {"model": CLASSIFIER}, max_batch=8
    ),
    DETECT_OBJECTS: Backend(
        "models.backends.transformers.pictures:open_object_detector",
        {"model": OBJECT_DETECTOR},
        max_batch=4,
    ),
    SUMMARIZE: Backend(
        "models.backends.transformers.describer:open_describer",
        {"model": DESCRIBER_2B},
        shares=DESCRIBE_SCENES,
    ),
    EMBED_TEXT: Backend(
        "models.backends.transformers.sentences:open_text_embedder",
        {"model": SENTENCES},
        max_batch=8,
        languages="50 languages",
    ),
    EMBED_PICTURES: Backend(
        "models.backends.transformers.pictures:open_picture_embedder",
        {"model": PICTURES},
        max_batch=4,
    ),
    EMBED_PHRASES: Backend(
        "models.backends.transformers.pictures:open_picture_embedder",
        {"model": PICTURES},
        shares=EMBED_PICTURES,
        languages="English best; trained on 109",
    ),
}

_ON_A_GPU: dict[Task[Any], dict[str, Any]] = {
    TRANSCRIBE: {
        "weights": {"model": WHISPER_TURBO, **_ALIGNERS},
        "gpus": 0.4,
        # On one H100 226 hours an hour in batches of 8, 594 of 32, in 7.3 GiB; an H200 222 and 573.
        "max_batch": 32,
        "batch_wait_seconds": 0.1,
    },
    ALIGN: {"weights": {"model": WHISPER_TURBO, **_ALIGNERS}},
    DESCRIBE_SCENES: {
        "weights": {"model": DESCRIBER_4B},
        "gpus": 0.35,
        # On one H100 3 pictures a second in batches of 4, 11 of 16, in 11.7 GiB.
        "max_batch": 16,
        "batch_wait_seconds": 0.1,
    },
    TRANSLATE_TEXT: {"gpus": 0.025, "max_batch": 32},
    CLASSIFY_CONTENT: {"gpus": 0.05, "max_batch": 32, "batch_wait_seconds": 0.05},
    # On one H200 134 stills a second in batches of 8, 159 of 32 and of 64.
    DETECT_OBJECTS: {"gpus": 0.05, "max_batch": 32, "batch_wait_seconds": 0.05},
    SUMMARIZE: {"weights": {"model": DESCRIBER_4B}},
    EMBED_TEXT: {"gpus": 0.025, "max_batch": 32},
    EMBED_PICTURES: {"gpus": 0.025, "max_batch": 16},
    EMBED_PHRASES: {},
}
"""What of the rows above is other on a GPU. The shares of all models fit on one. Whisper turbo was
not trained to translate."""

_CTRANSLATE2_WHISPER = Backend(
    "models.backends.packaged.transcriber:open_hub_transcriber",
    {"model": CTRANSLATE2_WHISPER_SMALL},
    dtype="int8",
    max_batch=4,
    own_files=("config.json", "tokenizer.json", "model.bin"),
    # Four chunks of 30 s at once, above 71 MB of an empty process; random weights of its size.
    memory_bytes=1_800_000_000,
    languages="99 languages",
)

_TORCH_SEGMENTATION = Backend(
    "models.backends.pyannote:open_speaker_segmenter",
    {"model": SEGMENTATION_TORCH},
    device="cuda",
    gpus=0.05,
    max_batch=32,
)

REGISTRY: dict[str, dict[Task[Any], Backend]] = {
    "packaged": PACKAGED
    | {task: _ON_A_PROCESSOR[task] for task in (EMBED_PICTURES, EMBED_PHRASES, TRANSLATE_TEXT)},
    "cpu": PACKAGED
    | _ON_A_PROCESSOR
    | {
        TRANSCRIBE: _CTRANSLATE2_WHISPER,
        ALIGN: replace(_CTRANSLATE2_WHISPER, shares=TRANSCRIBE, memory_bytes=0, own_files=()),
        TRANSLATE_SPEECH: replace(
            _CTRANSLATE2_WHISPER,
            shares=TRANSCRIBE,
            memory_bytes=0,
            own_files=(),
            languages="from 99 languages into English",
        ),
    },
    "cpu-transformers": PACKAGED | _ON_A_PROCESSOR,
    "gpu": {task: row for task, row in PACKAGED.items() if task is not TRANSLATE_SPEECH}
    | {
        task: replace(row, device="cuda", **_ON_A_GPU[task])
        for task, row in _ON_A_PROCESSOR.items()
        if task is not TRANSLATE_SPEECH
    }
    | {SEGMENT_SPEAKERS: _TORCH_SEGMENTATION},
}
"""Profile -> task -> row. ``cpu-transformers`` is ``cpu`` with Whisper through transformers and
its aligners in place of CTranslate2, whose int8 kernels are faster on a processor. What no package
carries is added to ``packaged`` by pulling it alone: ``vas models pull --task``."""

FORMER_PROFILE_NAMES = {"embedded": "packaged"}
