"""Clips drawn and sounds computed for the ingest tests, and what is needed to look at results."""

from __future__ import annotations

import itertools
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt

from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.media.files import rounded_ms
from pipelines.types import IngestResult
from storage.objects.folder import FolderStore

WIDTH, HEIGHT, RATE = 128, 96, 25
Signal = npt.NDArray[np.float64]
TimedDigest = tuple[int, int]
"""Time in ms of a frame, and a checksum of its luma plane."""


@dataclass(frozen=True)
class Clip:
    """How to encode a drawn clip."""

    file_name: str
    codec: str
    options: Mapping[str, str] = field(default_factory=dict)
    muxing: Mapping[str, str] = field(default_factory=dict)
    pixels: str = "yuv420p"
    frames: int = 120
    key_interval: int = 15
    b_frames: int | None = None
    times_ms: Sequence[int] | None = None
    first_frame: int = 0
    container: str | None = None


def picture(number: int) -> npt.NDArray[np.uint8]:
    """Frame ``number`` of the drawn clip as yuv420p planes: waves and a box, all moving."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = np.zeros((HEIGHT * 3 // 2, WIDTH), np.uint8)
    waves = np.sin((rows + number * 3) / 7) * 60 + 64
    planes[:HEIGHT] = ((columns * 2 + number * 5) % 256 * 0.5 + waves).astype(np.uint8)
    left = number * 7 % (WIDTH - 20)
    planes[20:50, left : left + 20] = 240 if number // 20 % 2 else 20
    planes[HEIGHT:] = 128 + number % 40
    return planes


def write_clip(folder: Path, clip: Clip) -> Path:
    """Encode ``clip`` below ``folder``."""
    path = folder / clip.file_name
    muxing = dict(clip.muxing)
    with av.open(str(path), "w", format=clip.container, options=muxing) as container:
        stream: Any = container.add_stream(clip.codec, rate=RATE, options=dict(clip.options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, clip.pixels
        context = stream.codec_context
        context.gop_size, context.thread_count = clip.key_interval, 1
        if clip.b_frames is not None:
            context.max_b_frames = clip.b_frames
        if clip.times_ms is not None:
            context.time_base = Fraction(1, 1000)
        for number in range(clip.frames):
            container.mux(stream.encode(_frame(clip, number)))
        container.mux(stream.encode(None))
    return path


def _frame(clip: Clip, number: int) -> Any:
    frame: Any = av.VideoFrame.from_ndarray(picture(number), "yuv420p")
    if clip.times_ms is None:
        frame.pts, frame.time_base = number + clip.first_frame, Fraction(1, RATE)
    else:
        frame.pts, frame.time_base = clip.times_ms[number], Fraction(1, 1000)
    return frame


@dataclass(frozen=True)
class Sound:
    """How to encode a signal: shape (channels, samples), values -1 to 1."""

    file_name: str
    codec: str
    rate_hz: int
    layout: str = "mono"
    sample_format: str = "s16"
    options: Mapping[str, str] = field(default_factory=dict)


def write_sound(folder: Path, sound: Sound, signal: Signal) -> Path:
    """Encode ``signal`` below ``folder``."""
    path = folder / sound.file_name
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(
            sound.codec, rate=sound.rate_hz, options=dict(sound.options)
        )
        stream.codec_context.layout = sound.layout
        stream.codec_context.format = sound.sample_format
        packed = "s16" if sound.sample_format.startswith("s16") else "flt"
        frame: Any = av.AudioFrame.from_ndarray(_packed(signal, packed), packed, sound.layout)
        frame.sample_rate, frame.pts = sound.rate_hz, 0
        resampler = av.AudioResampler(sound.sample_format, sound.layout, sound.rate_hz)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return path


def _packed(signal: Signal, sample_format: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = signal.astype(np.float32)
    if sample_format == "s16":
        values = np.round(signal * 32767).clip(-32768, 32767).astype(np.int16)
    return np.ascontiguousarray(values.T).reshape(1, -1)


def clicks(times_seconds: Sequence[float], duration_seconds: float, rate_hz: int) -> Signal:
    """One channel of silence with a short burst that begins at each of the times."""
    samples = np.zeros(round(duration_seconds * rate_hz))
    length = round(0.004 * rate_hz)
    burst = 0.8 * np.sin(2 * np.pi * 1000 * np.arange(length) / rate_hz + np.pi / 2)
    for seconds in times_seconds:
        start = round(seconds * rate_hz)
        samples[start : start + length] = burst[: len(samples) - start]
    return samples.reshape(1, -1)


def onsets(samples: npt.NDArray[np.float32], threshold: float = 0.25) -> list[float]:
    """Times in seconds at which bursts begin, in 16 kHz samples."""
    loud = np.flatnonzero(np.abs(samples) > threshold).tolist()
    quiet_before = [now - before > 800 for before, now in itertools.pairwise([-1_000, *loud])]
    starts = itertools.compress(loud, quiet_before)
    return [float(start) / 16_000 for start in starts]


def samples_of(path: Path) -> npt.NDArray[np.float32]:
    """All samples of a mono FLAC file; asserts its format."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        assert (stream.rate, stream.layout.name, stream.codec.name) == (16_000, "mono", "flac")
        frames = [frame.to_ndarray()[0] for frame in container.decode(stream)]
    return (np.concatenate(frames) / 32768).astype(np.float32)


@dataclass(frozen=True)
class Ingested:
    """A source that went through ingest, with its store."""

    store: FolderStore
    result: IngestResult

    def path(self, key: str) -> Path:
        return self.store.path(key)

    def samples(self, track: int = 0) -> npt.NDArray[np.float32]:
        return samples_of(self.path(self.result.tracks[track].key))


def ingested(path: Path, root: Path, *, segment_seconds: float = 1.0) -> Ingested:
    """Put ``path`` into a store below ``root`` under the key ``source`` and ingest it."""
    store = FolderStore(root / "store")
    store.root.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, store.path("source"))
    temporary = root / "temporary"
    config = IngestConfig(segment_seconds=segment_seconds, temporary_folder=temporary)
    workspace = Workspace(store, "job")
    result = ingest("source", IngestContext(workspace, FreeRun(), config))
    assert not temporary.exists() or not any(temporary.iterdir())
    return Ingested(store, result)


def source_frames(done: Ingested) -> list[TimedDigest]:
    """Every frame of the source itself, on the media's timeline."""
    media = done.result.media
    assert media.video is not None
    return _decoded(done.path("source"), media.video.index, media.origin_ms)


def segment_frames(done: Ingested) -> list[TimedDigest]:
    """Every frame of every segment that lies in the segment's range, as its readers take it."""
    video = done.result.video
    assert video is not None
    found: list[TimedDigest] = []
    for segment in video.segments:
        index = video.stream.index if segment.key == "source" else 0
        frames = _decoded(done.path(segment.key), index, video.origin_ms)
        found += [frame for frame in frames if segment.start_ms <= frame[0] < segment.end_ms]
    return found


def _decoded(path: Path, index: int, origin_ms: int) -> list[TimedDigest]:
    with av.open(str(path)) as container:
        stream: Any = container.streams[index]
        stream.codec_context.thread_count = 1
        return [
            (rounded_ms(frame.pts, stream.time_base) - origin_ms, luma_checksum(frame))
            for packet in container.demux(stream)
            for frame in stream.decode(packet)
        ]


def luma_checksum(frame: Any) -> int:
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return zlib.crc32(rows[:, : frame.width].tobytes())
