"""Clips drawn for the tests, and the VideoSource that ingest would make of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt

from pipelines.execution.chain import Workspace
from pipelines.media.files import rounded_ms
from pipelines.media_types import Orientation
from pipelines.types import Segment, VideoSource, VideoStream
from storage.objects.folder import FolderStore

Picture = npt.NDArray[np.uint8]

WIDTH, HEIGHT, RATE = 320, 180, 25


def texture(seed: int, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """A picture of blobs and boxes in colours of its own, unlike that of any other seed."""
    random = np.random.default_rng(seed)
    base = random.integers(30, 220, 3)
    coarse = base + random.normal(0, 45, (6, 10, 3))
    picture = cv2.resize(
        np.clip(coarse, 0, 255).astype(np.uint8), (width, height), interpolation=cv2.INTER_CUBIC
    )
    for _ in range(14):
        left, top = random.integers(0, width), random.integers(0, height)
        wide, high = random.integers(width // 20, width // 4), random.integers(8, height // 3)
        colour = [int(value) for value in random.integers(0, 256, 3)]
        cv2.rectangle(picture, (left, top), (left + wide, top + high), colour, -1)
    return np.asarray(picture, np.uint8)


def still_shot(seed: int, frames: int) -> Iterator[Picture]:
    """One texture with a little camera noise in every frame."""
    picture = texture(seed).astype(np.int16)
    random = np.random.default_rng(seed + 1000)
    for _ in range(frames):
        noise = random.integers(-3, 4, picture.shape)
        yield np.clip(picture + noise, 0, 255).astype(np.uint8)


def moving_shot(
    seed: int,
    frames: int,
    *,
    across: float = 0.0,
    down: float = 0.0,
    growth: float = 0.0,
    shake: float = 0.0,
) -> Iterator[Picture]:
    """A camera over a large texture: ``across`` and ``down`` in pixels a frame (positive: the
    camera goes right, down), ``growth`` a frame, ``shake`` in pixels."""
    ground = cv2.GaussianBlur(texture(seed, WIDTH * 3, HEIGHT * 3), (0, 0), 1.5)
    random = np.random.default_rng(seed + 2000)
    swing = np.zeros(2)
    for index in range(frames):
        swing = 0.7 * swing + random.normal(0, shake, 2) if shake else swing
        scale = (1 + growth) ** -(index - frames / 2)
        x = 1.5 * WIDTH + across * (index - frames / 2) + swing[0]
        y = 1.5 * HEIGHT + down * (index - frames / 2) + swing[1]
        matrix = np.array(
            [[scale, 0, x - scale * WIDTH / 2], [0, scale, y - scale * HEIGHT / 2]], np.float64
        )
        view = cv2.warpAffine(
            ground,
            matrix,
            (WIDTH, HEIGHT),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        yield np.asarray(view, np.uint8)


def solid_shot(level: int, frames: int) -> Iterator[Picture]:
    for _ in range(frames):
        yield np.full((HEIGHT, WIDTH, 3), level, np.uint8)


def dissolve(first: Sequence[Picture], second: Sequence[Picture]) -> list[Picture]:
    """The frames of two shots of one length mixed, from all first to all second."""
    count = len(first)
    return [
        mixed(one, other, (index + 1) / (count + 1))
        for index, (one, other) in enumerate(zip(first, second, strict=True))
    ]


def mixed(one: Picture, other: Picture, share: float) -> Picture:
    return np.rint(one * (1 - share) + other * share).astype(np.uint8)


def write_video(
    path: Path,
    pictures: Iterable[Picture],
    *,
    times_ms: Iterable[int] | None = None,
    rate: int = RATE,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    keyframe_every: int = 25,
    options: Mapping[str, str] | None = None,
    pixel_aspect: Fraction | None = None,
) -> Path:
    """The pictures as a video; ``times_ms`` gives a variable frame rate."""
    quick = {"preset": "ultrafast", "crf": "20"} if codec == "libx264" else {}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=dict(options or quick))
        stream.pix_fmt = pixel_format
        stream.gop_size = keyframe_every
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.thread_count = 1
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        clock = iter(times_ms) if times_ms is not None else _even_times(rate)
        for index, picture in enumerate(pictures):
            if index == 0:
                stream.height, stream.width = picture.shape[:2]
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = next(clock), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _even_times(rate: int) -> Iterator[int]:
    index = 0
    while True:
        yield round(index * 1000 / rate)
        index += 1


def video_source(
    workspace: Workspace, path: Path, *, segment_ms: int | None = None, key: str = "source"
) -> VideoSource:
    """The file stored under ``key`` and described as ingest would, in ranges of ``segment_ms``."""
    if not workspace.store.exists(key):
        workspace.store.write_bytes(key, path.read_bytes())
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.pts is not None]
        times = sorted(rounded_ms(packet.pts, packet.time_base) for packet in packets)
        last_ms = max(1, times[-1] - times[-2]) if len(times) > 1 else 40
        described = VideoStream(
            index=stream.index,
            codec=stream.codec_context.name,
            width=stream.width,
            height=stream.height,
            orientation=Orientation(),
            sample_aspect=1.0,
            frame_rate=float(stream.average_rate or RATE),
            frame_count=len(times),
            keyframe_count=sum(packet.is_keyframe for packet in packets),
            end_ms=times[-1] - times[0] + last_ms,
        )
    duration_ms = times[-1] - times[0] + last_ms
    step_ms = segment_ms or duration_ms
    starts = range(0, duration_ms, step_ms)
    segments = tuple(
        Segment(index, key, start, min(start + step_ms, duration_ms))
        for index, start in enumerate(starts)
    )
    return VideoSource(described, duration_ms, times[0], segments)


def folder_workspace(folder: Path, prefix: str = "job") -> Workspace:
    return Workspace(FolderStore(folder), prefix)
