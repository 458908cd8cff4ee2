"""Throughput of the neural models at their real sizes, beside the library's bare loops.

    python -m benchmarks.gpu_models [--batches 4 8 16 32] [--measures describe]  # on a GPU
    python -m benchmarks.gpu_models --tiny --batches 2                   # a dry run anywhere

Sizes are those of whisper-large-v3-turbo with wav2vec2-base-960h for the times of words, of
Qwen3-VL-4B, RT-DETRv2-R18 and SigLIP 2 base; the weights are random, so every chunk decodes the
same fixed number of tokens, and what is said is noise. The packaged Whisper base (converted for
transformers) has its real weights, over a recording of the tests.
Ours: ``WhisperTranscriber.transcribe`` with language, decoding, guards and alignment;
``VisionLanguageDescriber`` with its answers held to the schema; detector and embedder from pictures
to boxes and vectors. The ceiling: the library's own ``generate``, or the network alone, on prepared
inputs, nothing before or after it. Chunks are 30 s, scenes three stills of 448x252, the stills of
the others are 960x540. Ray is not needed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
import torch
from transformers import AutoImageProcessor, WhisperFeatureExtractor

from models.backends.questions import scene_question
from models.backends.transformers import Hardware, pick_hardware
from models.backends.transformers.alignment import CtcAligner
from models.backends.transformers.describer import VisionLanguageDescriber
from models.backends.transformers.pictures import SiglipEmbedder, TransformersObjectDetector
from models.backends.transformers.whisper import WhisperTranscriber
from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    Samples,
    SceneStills,
)
from models.provider import open_model
from models.registry import WHISPER_BASE
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_BOUNDARIES,
    DETECT_OBJECTS,
    EMBED_PICTURES,
    EMBED_VOICE,
    READ_TEXT,
    SEGMENT_SPEAKERS,
    TRANSCRIBE,
    Task,
)
from pipelines.media.decoding import Smoothed, decode_segment, in_memory
from pipelines.media_types import Orientation
from pipelines.types import Segment
from pipelines.vision.features import MeasuredFrames, frame_strokes
from tests.models.tiny_models import (
    SAVERS,
    save_ctc,
    save_object_detector,
    save_pictures,
    save_vision_language,
    save_whisper,
)
from tests.models.whisper_conversion import convert_whisper
from tests.places import PROJECT

Measure = Callable[[Path, Hardware, int, argparse.Namespace], dict[str, Any]]

RECORDING = PROJECT / "tests/media/speech/two_voices.flac"
CHUNK_SECONDS = 30
STILLS_A_SCENE = 3
TURBO: dict[str, Any] = {
    "vocab_size": 51_866,
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "decoder_layers": 4,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "max_target_positions": 448,
}
WAV2VEC2_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "conv_dim": (512,) * 7,
    "num_conv_pos_embeddings": 128,
    "num_conv_pos_embedding_groups": 16,
}
TEXT_4B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
SIGHT_4B: dict[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "patch_size": 16,
    "out_hidden_size": 2560,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}

R18: dict[str, Any] = {
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
DETECTOR: dict[str, Any] = {
    "encoder_in_channels": [128, 256, 512],
    "decoder_layers": 3,
    "hidden_expansion": 0.5,
}
SIGLIP_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}


def _save_turbo(folder: Path) -> Path:
    # Without repeats, so that the guard against loops lets the noise pass, as it would speech.
    return save_whisper(folder, TURBO, end_may_be_said=False, no_repeat_ngram_size=2)


REAL_SIZES: dict[tuple[Task[Any], str], Callable[[Path], Path]] = SAVERS | {
    (TRANSCRIBE, "model"): _save_turbo,
    (TRANSCRIBE, "align_en"): lambda folder: save_ctc(folder, WAV2VEC2_BASE),
    (DESCRIBE_SCENES, "model"): lambda folder: save_vision_language(
        folder, TEXT_4B, SIGHT_4B, longest_edge=448, words=150_000
    ),
    (DETECT_OBJECTS, "model"): lambda folder: save_object_detector(
        folder, R18, DETECTOR, side=640, finds_things=False
    ),
    (EMBED_PICTURES, "model"): lambda folder: save_pictures(
        folder, SIGLIP_BASE | {"vocab_size": 256_000}, SIGLIP_BASE, side=224
    ),
}


@contextmanager
def made_on(hardware: Hardware) -> Iterator[None]:
    """Models are made there and in its number format: 4 billion numbers take long elsewhere."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(hardware.dtype)
    try:
        with hardware.device:
            yield
    finally:
        torch.set_default_dtype(before)
        torch.cuda.empty_cache()


def saved(folder: Path, task: Task[Any], options: argparse.Namespace, role: str = "model") -> str:
    """The checkpoint of a role, made once."""
    place = folder / f"{task.name}-{role}"
    if not place.exists():
        with made_on(pick_hardware()):
            (SAVERS if options.tiny else REAL_SIZES)[task, role](place)
    return str(place)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--tokens", type=int, default=128, help="of a description")
    parser.add_argument("--stills", type=int, default=STILLS_A_SCENE, help="of a scene")
    parser.add_argument("--folder", type=Path, help="where the models made are kept")
    parser.add_argument("--models-dir", type=Path, help="real weights, where no package has them")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to see that it runs")
    options = parser.parse_args()
    hardware = pick_hardware()
    found: dict[str, Any] = {
        "device": device_name(),
        "dtype": str(hardware.dtype).removeprefix("torch."),
        "tiny": options.tiny,
    }
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        for name in options.measures:
            found[name] = []
            for batch in options.batches:
                found[name].append(MEASURES[name](folder, hardware, batch, options))
                print(name, found[name][-1], flush=True)
                reset_memory()
    print(json.dumps(found))


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def seconds_of(work: Callable[[], object], rounds: int) -> float:
    """Median of ``rounds`` after one that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def transcription(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Audio hours per hour at one batch size."""
    letters = saved(folder, TRANSCRIBE, options, "align_en")
    aligner = CtcAligner(letters, pick_hardware(hardware.device.type, "float32"))
    speech = saved(folder, TRANSCRIBE, options)
    transcriber = WhisperTranscriber(speech, aligner, hardware, max_batch=batch)
    noise = np.random.default_rng(0).standard_normal((batch, CHUNK_SECONDS * SAMPLE_RATE_HZ))
    return _rates(transcriber, list((0.1 * noise).astype(np.float32)), hardware, options)


def decoding(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Frames of 1080p H.264 read and measured a second, by processes side by side on one card."""
    path, size = folder / "film.mp4", (320, 180) if options.tiny else (1920, 1080)
    if not path.exists():
        write_film(path, size)
    found: dict[str, Any] = {"processes": batch}
    for device in dict.fromkeys(("cpu", hardware.device.type)):
        with ProcessPoolExecutor(batch, get_context("spawn")) as pool:
            read = [*pool.map(read_frames, [path] * batch, [device] * batch)]
        frames = sum(count for count, *_ in read)
        found[f"{device}_frames_a_second"] = round(frames / max(wall for _, wall, _ in read))
        used = sum(seconds for *_, seconds in read)
        found[f"{device}_processor_ms_a_frame"] = round(1000 * used / frames, 2)
    return found


def write_film(path: Path, size: tuple[int, int]) -> None:
    """Half a minute of noise that moves over six pictures."""
    numbers = np.random.default_rng(1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.width, stream.height = size
        for _ in range(6):
            small = numbers.integers(0, 255, (270, 480, 3), np.uint8)
            ground = cv2.resize(small, (size[0] + 400, size[1] + 300))
            for step in range(125):
                part = ground[2 * step :, 3 * step :][: size[1], : size[0]]
                noise = numbers.integers(0, 12, (size[1], size[0], 1), np.uint8)
                picture = cv2.addWeighted(part, 1.0, noise.repeat(3, 2), 1.0, 0)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def read_frames(path: Path, device: str) -> tuple[int, float, float]:
    """How many frames, in how many seconds, of which of a processor."""
    cv2.setNumThreads(1)
    if device != "cpu":
        torch.zeros(1, device=device)
    segment, measured, seen = Segment(0, "film", 0, 10**9), MeasuredFrames(), -1
    began, used = time.perf_counter(), time.process_time()
    for each in decode_segment(
        path, segment, stream_index=0, origin_ms=0, smoothed=Smoothed.KEY_FRAMES, device=device
    ):
        measured.add(each.frame)
        if each.time_ms // 1000 != seen:
            seen = each.time_ms // 1000
            frame_strokes(in_memory(each.frame), 16 / 9, Orientation())
    measured.finish()
    return len(measured.luma), time.perf_counter() - began, time.process_time() - used


def windows(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Windows of three seconds per second, of which only languages are detected."""
    transcriber = WhisperTranscriber(
        saved(folder, TRANSCRIBE, options), None, hardware, max_batch=batch
    )
    noise = np.random.default_rng(0).standard_normal((3 * batch, 3 * SAMPLE_RATE_HZ))
    chunks = [AudioChunk(each, has_words=False) for each in (0.1 * noise).astype(np.float32)]
    taken = seconds_of(lambda: transcriber.transcribe(chunks), options.rounds)
    return {"batch": batch, "windows_per_second": round(len(chunks) / taken, 1)} | _memory()


def small(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """What packaged models take of a second of media, on one processor and on the device: frames
    at 25 a second, two voices of three seconds in five, a still each three seconds with lines."""
    lines = np.full((540, 960, 3), 255, np.uint8)
    for row in range(6):
        place = (40, 70 + 80 * row)
        cv2.putText(lines, f"BREAKING NEWS {row} of 6", place, 0, 1.5, (0, 0, 0), 3)
    kind = np.random.default_rng(0)
    frames = kind.integers(0, 255, (30 * 25, 27, 48, 3), dtype=np.uint8)
    voices = list((0.1 * kind.standard_normal((12 * batch, 48_000))).astype(np.float32))
    windows = list((0.1 * kind.standard_normal((6 * batch, 160_000))).astype(np.float32))
    found: dict[str, Any] = {"batch": batch}
    for task, inputs, media_seconds in (
        (DETECT_BOUNDARIES, [frames], 30),
        (EMBED_VOICE, voices, 30 * batch),
        (SEGMENT_SPEAKERS, windows, 30 * batch),
        (READ_TEXT, [lines] * (2 * batch), 6 * batch),
    ):
        for profile in ("packaged", "gpu"):
            if profile == "packaged" and batch != options.batches[0]:
                continue
            model = open_model(profile, cast("Task[Any]", task), options.models_dir)
            taken = seconds_of(functools.partial(task.answers, model, inputs), 1)
            found[f"{task.name} {profile}"] = round(taken / media_seconds, 5)
    return found


def packaged_whisper(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Audio hours per hour of the packaged weights; word times are from Whisper's attention."""
    place = folder / "base"
    if not place.exists():
        convert_whisper(WHISPER_BASE.read(options.models_dir), place)
    transcriber = WhisperTranscriber(str(place), None, hardware, max_batch=batch)
    said = samples_of(RECORDING)
    whole = np.tile(said, 1 + CHUNK_SECONDS * SAMPLE_RATE_HZ // len(said))
    chunks = [whole[: CHUNK_SECONDS * SAMPLE_RATE_HZ]] * batch
    return _rates(transcriber, chunks, hardware, options)


def samples_of(path: Path) -> Samples:
    """The sound of a file, at SAMPLE_RATE_HZ."""
    import av

    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(np.float32)


def _rates(
    transcriber: WhisperTranscriber,
    samples: list[Samples],
    hardware: Hardware,
    options: argparse.Namespace,
) -> dict[str, Any]:
    chunks = [AudioChunk(each, language="en") for each in samples]
    ours = seconds_of(lambda: transcriber.transcribe(chunks), options.rounds)
    bare = seconds_of(bare_whisper(transcriber, samples, hardware), options.rounds)
    audio = len(samples) * CHUNK_SECONDS
    return {
        "batch": len(samples),
        "audio_hours_per_hour": round(audio / ours, 1),
        "bare_generate": round(audio / bare, 1),
        "ratio": round(bare / ours, 3),
    } | _memory()


def bare_whisper(
    transcriber: WhisperTranscriber, samples: list[Samples], hardware: Hardware
) -> Callable[[], object]:
    """The library's loop over the features of the chunks."""
    model = transcriber._model
    features = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)(
        samples, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt"
    ).input_features.to(hardware.device, hardware.dtype)
    tokens = model.config.max_target_positions // 2

    def generate() -> object:
        with torch.inference_mode():
            return model.generate(
                features,
                language="en",
                task="transcribe",
                return_timestamps=False,
                max_length=None,
                max_new_tokens=tokens,
                do_sample=False,
            )

    return generate


def description(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Pictures and output tokens per second at one batch size."""
    place = saved(folder, DESCRIBE_SCENES, options)
    describer = VisionLanguageDescriber(
        place, hardware, max_batch=batch, most_stills=options.stills
    )
    pictures = np.random.default_rng(0).integers(
        0, 255, (STILLS_A_SCENE, 252, 448, 3), dtype=np.uint8
    )
    scenes = [SceneStills(tuple(pictures[: options.stills]), 3.0)] * batch
    # One try: with random weights the schema's text goes on to its bounds.
    ours = seconds_of(lambda: describer._answers(scenes, options.tokens), options.rounds)
    bare = seconds_of(bare_describer(describer, scenes, hardware, options.tokens), options.rounds)
    return {
        "batch": batch,
        "scenes_per_second": round(batch / ours, 2),
        "pictures_per_second": round(batch * len(scenes[0].stills) / ours, 2),
        "tokens_per_second": round(batch * options.tokens / ours, 1),
        "bare_tokens_per_second": round(batch * options.tokens / bare, 1),
        "ratio": round(bare / ours, 3),
    } | _memory()


def bare_describer(
    describer: VisionLanguageDescriber, scenes: list[SceneStills], hardware: Hardware, tokens: int
) -> Callable[[], object]:
    """The library's loop over prepared questions."""
    inputs = describer._processor(
        text=[describer._prompt(scene_question(scene), len(scene.stills)) for scene in scenes],
        images=[list(scene.stills) for scene in scenes],
        padding=True,
        return_tensors="pt",
    ).to(hardware.device, hardware.dtype)

    def generate() -> object:
        with torch.inference_mode():
            return describer._model.generate(
                **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
            )

    return generate


def pictures(
    folder: Path, hardware: Hardware, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Stills per second of the detector and of the embedder at one batch size."""
    kind = np.random.default_rng(0).integers
    stills = [kind(0, 255, (540, 960, 3), dtype=np.uint8) for _ in range(batch)]
    found: dict[str, Any] = {"batch": batch}
    places = [saved(folder, task, options) for task in (DETECT_OBJECTS, EMBED_PICTURES)]
    detector = TransformersObjectDetector(places[0], hardware, max_batch=batch)
    embedder = SiglipEmbedder(places[1], hardware, max_batch=batch)
    for name, place, model, work in (
        ("objects", places[0], detector, detector.find),
        ("vectors", places[1], embedder, embedder.embed_pictures),
    ):
        processor = AutoImageProcessor.from_pretrained(place)
        inputs = processor(images=stills, input_data_format="channels_last", return_tensors="pt")
        prepared = inputs.to(hardware.device, hardware.dtype)
        ours = seconds_of(functools.partial(work, stills * 4), options.rounds) / 4
        bare = seconds_of(bare_network(model, prepared), options.rounds)
        found[name] = {"a_second": round(batch / ours, 1), "bare": round(batch / bare, 1)}
    return found | _memory()


def bare_network(
    model: TransformersObjectDetector | SiglipEmbedder, inputs: Mapping[str, torch.Tensor]
) -> Callable[[], object]:
    """The network over prepared stills."""
    network = model._model
    work = network.get_image_features if isinstance(model, SiglipEmbedder) else network

    def forward() -> object:
        with torch.inference_mode():
            return work(**inputs)

    return forward


def reset_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory() -> dict[str, float]:
    if not torch.cuda.is_available():
        return {}
    return {"peak_gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}


MEASURES: dict[str, Measure] = {
    "transcribe": transcription,
    "windows": windows,
    "decode": decoding,
    "small": small,
    "describe": description,
    "pictures": pictures,
    "whisper_base": packaged_whisper,
}

if __name__ == "__main__":
    main()
