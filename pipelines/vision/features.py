"""Step: decode a segment once and store the features of its frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange

from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH
from pipelines.execution.chain import Row, Step, Workspace, derived_name
from pipelines.media.decoding import DecodeReport, TimedFrame, decode_moments, decode_segment
from pipelines.types import Segment, VideoSource
from pipelines.vision.frame_features import (
    CHROMA_HEIGHT,
    CHROMA_WIDTH,
    LUMA_HEIGHT,
    LUMA_WIDTH,
    Bytes,
    FrameFeatures,
    Times,
    in_time_order,
    joined,
    pictures_to_bytes,
    to_bytes,
)
from pipelines.vision.frame_skipping import (
    LONGEST_GAP_MS,
    mixed,
    ordered,
    told_apart,
)

FEATURES_VERSION = 7
"""Raise it whenever the same frames would give other features."""

_CHECK_EVERY_SECONDS = 1.0

_SPARING = frozenset({"h264"})
"""Codecs whose packets say whether other pictures refer to theirs (``is_unreferenced``)."""

_LINES_A_CELL = 4
"""Lines read for each line of a picture of twice the features' height."""

_EIGHT_BIT = frozenset(
    {"yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "yuv440p", "yuv411p"}
)
_TEN_BIT = frozenset({"yuv420p10le", "yuv422p10le", "yuv444p10le"})
_LIMITED_TO_FULL = np.clip((np.arange(256) - 16) * (255 / 219), 0, 255).round().astype(np.uint8)
_LIMITED_TO_FULL_CHROMA = (
    np.clip((np.arange(256) - 128) * (255 / 224) + 128, 0, 255).round().astype(np.uint8)
)

Plane = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class FeaturesConfig:
    """How segments are decoded.

    More than one of ``decode_threads`` gives the same features of sound streams
    only: of damaged ones FFmpeg's concealment then depends on timing. 0 shares
    the CPUs out among the segments.
    """

    decode_threads: int = 1
    with_pictures: bool = False
    """Keeps tiny colour pictures too, which only a learned detector looks at."""


def make_features_step(video: VideoSource, workspace: Workspace, config: FeaturesConfig) -> Step:
    """1:1, a segment row to a row naming its features object."""

    def run(row: Row) -> Row:
        place = (row["start_ms"], row["end_ms"], row.get("part", 0))
        segment = Segment(row["index"], row["key"], *place)
        key = features_key(video, segment, workspace)
        wanted = [key, pictures_key(key)] if config.with_pictures else [key]
        if all(workspace.store.exists(name) for name in wanted):
            return {"index": segment.index, "features_key": key, "reused": True}
        cv2.setNumThreads(1)
        features = segment_features(video, segment, workspace, config)
        if features.pictures is not None:
            pictures = pictures_to_bytes(features.pictures)
            workspace.store.write_bytes(pictures_key(key), pictures)
        workspace.store.write_bytes(key, to_bytes(features))
        return {"index": segment.index, "features_key": key, "reused": False}

    return run


def features_key(video: VideoSource, segment: Segment, workspace: Workspace) -> str:
    """Where the features of ``segment`` are stored: a name derived from all they depend on."""
    part = video.part_of(segment)
    inputs = {
        "segment": asdict(segment),
        "origin_ms": part.origin_ms,
        "stream_index": part.stream.index,
        "version": FEATURES_VERSION,
    }
    return workspace.key(f"vision/features/{derived_name(segment.index, inputs)}.npz")


def pictures_key(key: str) -> str:
    """Where the tiny pictures lie of the frames whose features lie under ``key``."""
    return f"{key}.pictures"


def segment_features(
    video: VideoSource, segment: Segment, workspace: Workspace, config: FeaturesConfig
) -> FrameFeatures:
    """Decode ``segment`` and measure its frames; hears a requested stop within about a second."""
    part = video.part_of(segment)
    stream = part.stream
    check = _once_a_second(workspace.check)
    sparing = not (config.with_pictures or stream.interlaced) and stream.codec in _SPARING
    with workspace.store.local_copy(segment.key) as path:
        looked = _Looking(path, segment, stream.index, part.origin_ms, config, check)
        return looked.sparing() if sparing else looked.at_all_frames()


@dataclass(frozen=True, slots=True)
class _Looking:
    """A segment's file, to be decoded."""

    path: Path
    segment: Segment
    stream_index: int
    origin_ms: int
    config: FeaturesConfig
    check: Callable[[], None]

    def at_all_frames(self) -> FrameFeatures:
        """Every frame decoded."""
        report = DecodeReport()
        frames = self._measured(self._decoded(report, sparse=False), self.config.with_pictures)
        return in_time_order(*frames, report.key_times_ms)

    def sparing(self) -> FrameFeatures:
        """Frames that nothing refers to decoded only where they may tell something."""
        report = DecodeReport()
        frames = self._measured(self._decoded(report, sparse=True), False)
        decoded = in_time_order(*frames, report.key_times_ms)
        span = (self.segment.start_ms, self.segment.end_ms)
        left_out = np.unique(np.asarray(report.left_out_ms, np.int64))
        inside = left_out[(left_out >= span[0]) & (left_out < span[1])]
        keys = np.unique(np.asarray(report.key_times_ms, np.int64))
        to_mix, to_decode = told_apart(decoded, inside, keys, report.damaged_gops_ms)
        brought = self._brought(to_decode, keys)
        return ordered(joined([decoded, mixed(decoded, to_mix), brought]), decoded, *span)

    def _brought(self, times_ms: Times, key_times_ms: Times) -> FrameFeatures:
        """Frames at ``times_ms``; where seeking does not lead to one, from decoding all of them.

        Without those that cannot be decoded.
        """
        sought = decode_moments(
            self.path,
            times_ms.tolist(),
            key_times_ms.tolist(),
            stream_index=self.stream_index,
            origin_ms=self.origin_ms,
            loop_filter=False,
        )
        found = in_time_order(*self._measured(sought, False))
        missing = set(times_ms.tolist()) - set(found.times_ms.tolist())
        if not missing:
            return found
        every = self._decoded(DecodeReport(), sparse=False)
        rest = (timed for timed in every if timed.time_ms in missing)
        return joined([found, in_time_order(*self._measured(rest, False))])

    def _decoded(self, report: DecodeReport, *, sparse: bool) -> Iterator[TimedFrame]:
        margin_ms = LONGEST_GAP_MS if sparse else 0
        start_ms, end_ms = self.segment.start_ms - margin_ms, self.segment.end_ms + margin_ms
        return decode_segment(
            self.path,
            replace(self.segment, start_ms=start_ms, end_ms=end_ms),
            stream_index=self.stream_index,
            origin_ms=self.origin_ms,
            threads=max(1, self.config.decode_threads),
            loop_filter=False,
            sparse=sparse,
            report=report,
        )

    def _measured(
        self, frames: Iterator[TimedFrame], with_pictures: bool
    ) -> tuple[list[int], list[Bytes], list[Bytes], list[Bytes]]:
        """Times, luma, chroma and pictures of frames."""
        times_ms: list[int] = []
        luma: list[Bytes] = []
        chroma: list[Bytes] = []
        pictures: list[Bytes] = []
        for timed in frames:
            self.check()
            grey, colour = frame_features(timed.frame)
            times_ms.append(timed.time_ms)
            luma.append(grey)
            chroma.append(colour)
            if with_pictures:
                pictures.append(boundary_picture(timed.frame))
        return times_ms, luma, chroma, pictures


def boundary_picture(frame: av.VideoFrame) -> Bytes:
    """The frame in RGB, stretched to (27, 48, 3)."""
    small = frame.reformat(BOUNDARY_WIDTH, BOUNDARY_HEIGHT, "rgb24", interpolation="AREA")
    return np.asarray(small.to_ndarray(), np.uint8)


def frame_features(frame: av.VideoFrame) -> tuple[Bytes, Bytes]:
    """Luma (36, 64) and chroma (2, 9, 16) of one frame, both in full range."""
    frame = _planar(frame)
    ten_bit = frame.format.name in _TEN_BIT
    planes = [_plane(frame, index, ten_bit) for index in range(3)]
    luma = _shrunk(planes[0], LUMA_WIDTH, LUMA_HEIGHT, ten_bit)
    chroma = [_shrunk(plane, CHROMA_WIDTH, CHROMA_HEIGHT, ten_bit) for plane in planes[1:]]
    colour = np.stack(chroma)
    if _is_full_range(frame):
        return luma, colour
    return _LIMITED_TO_FULL[luma], _LIMITED_TO_FULL_CHROMA[colour]


def _planar(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame as decoded where its planes can be read as they are, else converted."""
    if frame.format.name in _EIGHT_BIT or frame.format.name in _TEN_BIT:
        return frame
    return frame.reformat(format="yuv444p")


def _is_full_range(frame: av.VideoFrame) -> bool:
    return bool(frame.format.name.startswith("yuvj") or frame.color_range == ColorRange.JPEG)


def _plane(frame: av.VideoFrame, index: int, ten_bit: bool) -> Plane:
    """A view of the plane's samples, without the padding at the ends of its lines."""
    plane = frame.planes[index]
    if ten_bit:
        wide = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
        return wide[: plane.height, : plane.width]
    samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return samples[: plane.height, : plane.width]


def _shrunk(plane: Plane, width: int, height: int, ten_bit: bool) -> Bytes:
    """The plane averaged down to (height, width).

    First to half, then by whole factors, to the size itself or to about twice that:
    OpenCV does both many times faster than broken factors. That leaves out less than
    1 % at the far edges. Of large pictures every few lines are enough: memory is what
    takes the time.
    """
    plane = plane[:: max(1, plane.shape[0] // (2 * height * _LINES_A_CELL))]
    if plane.shape[0] >= 4 * height and plane.shape[1] >= 4 * width:
        plane = _divided(plane, 2, 2)
    rows, columns = plane.shape
    if rows % height or columns % width:
        plane = _divided(plane, max(1, rows // (2 * height)), max(1, columns // (2 * width)))
    small = cv2.resize(plane, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(small >> 2 if ten_bit else small, np.uint8)


def _divided(plane: Plane, down: int, across: int) -> Plane:
    """Means of ``down`` by ``across`` samples each, without what is left over at the far edges."""
    if down == across == 1:
        return plane
    rows, columns = plane.shape[0] // down, plane.shape[1] // across
    whole = plane[: rows * down, : columns * across]
    return cast("Plane", cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA))


def _once_a_second(check: Callable[[], None]) -> Callable[[], None]:
    """``check``, called no more than once a second however often this is."""
    due = time.monotonic()

    def run() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _CHECK_EVERY_SECONDS
            check()

    return run
