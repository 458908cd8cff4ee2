"""Step: decode a segment once and store the features of its frames.

Of each frame a tiny grey picture, a tinier colour one and where writing may be are kept. Nothing
here compares frames; whatever is pairwise is worked out later over the whole video, so that it
cannot depend on where the video was cut into segments.
"""

from __future__ import annotations

import functools
import io
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.frame import PictureType
from av.video.reformatter import ColorRange

from models.pictures import TEXT_COLUMNS, TEXT_ROWS, text_strokes
from pipelines.codec import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.media.decoding import (
    ON_CARD,
    DecodeReport,
    Smoothed,
    TimedFrame,
    decode_segment,
    in_memory,
    on_white,
    rgb,
    upright,
)
from pipelines.media_types import Orientation
from pipelines.types import Segment, StageCode, VideoSource
from pipelines.vision.kept import KEPT_LONG_SIDE_PX, KeptFrames, has_frequent_keys, keeps_pictures

LUMA_WIDTH, LUMA_HEIGHT = 64, 36
CHROMA_WIDTH, CHROMA_HEIGHT = 16, 9

Bytes = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

_LINES_A_CELL = 4
"""Lines read for each line of a picture of twice the features' height."""

_EIGHT_BIT = frozenset(
    {"yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "yuv440p", "yuv411p"}
)
_TEN_BIT = frozenset({"yuv420p10le", "yuv422p10le", "yuv444p10le"})
_INTERLEAVED = "nv12"
"""Both colours in one plane, sample by sample: what is downloaded from a GPU."""
_LIMITED_TO_FULL = np.clip((np.arange(256) - 16) * (255 / 219), 0, 255).round().astype(np.uint8)
_LIMITED_TO_FULL_CHROMA = (
    np.clip((np.arange(256) - 128) * (255 / 224) + 128, 0, 255).round().astype(np.uint8)
)

STROKES_EVERY_MS = 1_000
_STROKES_PX = 640, 480
"""Columns of the picture in which strokes are looked for: of a wide one, of an upright one."""


def frame_strokes(frame: av.VideoFrame, aspect: float, orientation: Orientation) -> Bytes:
    """Return where in the upright picture writing may be, (90, 20) packed bits.

    ``aspect`` is the width over the height of the stored picture with square pixels.
    """
    ten_bit = frame.format.name in _TEN_BIT
    if frame.format.name not in {*_EIGHT_BIT, *_TEN_BIT, _INTERLEAVED}:
        frame = on_white(frame).reformat(format="gray")
    wide, upright = _STROKES_PX
    turned = 1 / aspect if orientation.swaps_sides else aspect
    plane = _plane(frame, 0, ten_bit)
    stored = plane.shape[0 if orientation.swaps_sides else 1]
    columns = min(wide if turned >= 1 else upright, stored)
    size = (columns, max(1, round(columns / turned)))
    size = size[::-1] if orientation.swaps_sides else size
    luma = orientation.upright(_shrunk(plane, *size, ten_bit))
    return np.packbits(text_strokes(np.ascontiguousarray(luma)), axis=1)


def frame_features(frame: av.VideoFrame) -> tuple[Bytes, Bytes]:
    """Luma (36, 64) and chroma (2, 9, 16) of one frame, both in full range."""
    # Planes that cannot be read as they are.
    if frame.format.name not in {*_EIGHT_BIT, *_TEN_BIT, _INTERLEAVED}:
        frame = on_white(frame).reformat(format="yuv444p")
    ten_bit = frame.format.name in _TEN_BIT
    sizes = (LUMA_WIDTH, LUMA_HEIGHT), *[(CHROMA_WIDTH, CHROMA_HEIGHT)] * 2
    luma, *chroma = (
        _shrunk(_field(_plane(frame, index, ten_bit), size[1], frame), *size, ten_bit)
        for index, size in enumerate(sizes)
    )
    colour = np.stack(chroma)
    if frame.format.name.startswith("yuvj") or frame.color_range == ColorRange.JPEG:
        return luma, colour  # full range already
    return _LIMITED_TO_FULL[luma], _LIMITED_TO_FULL_CHROMA[colour]


def _field(plane: Plane, height: int, frame: av.VideoFrame) -> Plane:
    """Return the lines of one field, some of many, or all lines of a small progressive picture. Of
    two fields one: at a cut they may be of two scenes, and in motion they are of two times. Frames
    of telecined film are woven of two without being marked as interlaced."""
    return plane[:: _field_step(plane.shape[0], height, frame)]


def _field_step(rows: int, height: int, frame: av.VideoFrame) -> int:
    least = (4 if height == CHROMA_HEIGHT else 1) * _LINES_A_CELL * height
    enough = rows >= least  # Half the lines of little colour are too few for its cells.
    if not enough and not (frame.interlaced_frame and rows > 1):
        return 1
    return max(2, (rows // (2 * height * _LINES_A_CELL) + 1) // 2 * 2)


def _plane(frame: av.VideoFrame, index: int, ten_bit: bool) -> Plane:
    """A view of the plane's samples, without the padding at the ends of its lines."""
    if index and frame.format.name == _INTERLEAVED:
        both = frame.planes[1]
        pairs = np.frombuffer(both, np.uint8).reshape(-1, both.line_size // 2, 2)
        return pairs[: both.height, : both.width, index - 1]
    plane = frame.planes[index]
    if ten_bit:
        wide = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
        return wide[: plane.height, : plane.width]
    samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return samples[: plane.height, : plane.width]


def _shrunk(plane: Plane, width: int, height: int, ten_bit: bool) -> Bytes:
    """Return the plane averaged down to (height, width).

    First to half, then by whole factors, to the size itself or to about twice that: OpenCV does
    both many times faster than broken factors. That leaves out less than 1 % at the far edges. Of
    large pictures every few lines are enough: memory is what takes the time.
    """
    plane = plane[:: _row_step(plane.shape[0], height)]
    if plane.shape[0] >= 4 * height and plane.shape[1] >= 4 * width:
        plane = _divided(plane, 2, 2)
    rows, columns = plane.shape
    if rows % height or columns % width:
        plane = _divided(plane, max(1, rows // (2 * height)), max(1, columns // (2 * width)))
    small = cv2.resize(plane, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(small >> 2 if ten_bit else small, np.uint8)


def _row_step(rows: int, height: int) -> int:
    return max(1, rows // (2 * height * _LINES_A_CELL))


def _divided(plane: Plane, down: int, across: int) -> Plane:
    """Means of ``down`` by ``across`` samples each, without what is left over at the far edges."""
    if down == across == 1:
        return plane
    rows, columns = plane.shape[0] // down, plane.shape[1] // across
    whole = plane[: rows * down, : columns * across]
    return cast("Plane", cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA))


_TWO_PLANES = ("nv12", "p010le", "p016le")
"""What NVDEC makes of 4:2:0; other frames are downloaded."""
_CARD_FRAMES = 32
"""Frames of a GPU that are measured at once: 18 MB of 1080p."""


class MeasuredFrames:
    """Luma and chroma of frames in the order in which they were added (``frame_features``).

    Frames in a GPU's memory are averaged there, many at once, and 3 KB of each are downloaded
    instead of 3 MB: ``benchmarks.gpu_models --measures decode``.
    """

    def __init__(self) -> None:
        self.luma: list[Bytes] = []
        self.chroma: list[Bytes] = []
        self._on_card: list[tuple[list[Any], bool]] = []
        """Every few rows of each plane, as tensors, and whether the range is full."""

    def add(self, frame: av.VideoFrame) -> None:
        """Measure a frame; one in a GPU's memory may be released afterwards."""
        if frame.format.name != ON_CARD or frame.sw_format.name not in _TWO_PLANES:
            self.finish()
            luma, chroma = frame_features(in_memory(frame))
            self.luma.append(luma)
            self.chroma.append(chroma)
            return
        from torch.utils.dlpack import from_dlpack

        planes = []
        for plane, height in zip(frame.planes, (LUMA_HEIGHT, CHROMA_HEIGHT), strict=True):
            samples = from_dlpack(plane.__dlpack__())
            step = _field_step(len(samples), height, frame)
            planes.append(samples[:: step * _row_step(-(-len(samples) // step), height)].clone())
        if self._on_card and self._on_card[0][0][0].shape != planes[0].shape:
            self.finish()
        self._on_card.append((planes, frame.color_range == ColorRange.JPEG))
        if len(self._on_card) == _CARD_FRAMES:
            self.finish()

    def finish(self) -> None:
        """Measure what waits on the GPU."""
        if not self._on_card:
            return
        import torch

        luma, pairs = (torch.stack([it[at] for it, _ in self._on_card]) for at in (0, 1))
        for samples, size, found in (
            (luma, (LUMA_HEIGHT, LUMA_WIDTH), self.luma),
            (pairs.movedim(3, 1), (CHROMA_HEIGHT, CHROMA_WIDTH), self.chroma),
        ):
            down, across = (
                torch.from_numpy(_area_weights(*each)).to(samples.device)
                for each in zip(samples.shape[-2:], size, strict=True)
            )
            # Of ten bits NVDEC fills sixteen from above.
            levels = 1 if samples.dtype == torch.uint8 else 256
            means = (down @ (samples.float() / levels) @ across.T).round().to(torch.uint8).cpu()
            table = _LIMITED_TO_FULL if found is self.luma else _LIMITED_TO_FULL_CHROMA
            found += [
                mean if is_full else table[mean]
                for mean, (_, is_full) in zip(means.numpy(), self._on_card, strict=True)
            ]
        self._on_card.clear()


@functools.cache
def _area_weights(count: int, size: int) -> npt.NDArray[np.float32]:
    """Shape (size, count): means of ``count`` samples over ``size`` equal intervals."""
    edges = np.linspace(0, count, size + 1)
    ends = np.minimum(np.arange(1, count + 1), edges[1:, None])
    shared = np.clip(ends - np.maximum(np.arange(count), edges[:-1, None]), 0, 1)
    return np.asarray(shared * size / count, np.float32)


Times = npt.NDArray[np.int64]
Shapes = npt.NDArray[np.float32]

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_LEVEL = 1
"""Fastest: the higher levels save a tenth of the size for several times the time."""

_CHECK_EVERY_SECONDS = 1.0

_NO_STROKES = 0, TEXT_ROWS, TEXT_COLUMNS // 8


@dataclass(frozen=True, slots=True)
class FrameFeatures:
    """Features of frames in order of time.

    ``times_ms`` (n,) strictly rising; ``luma`` (n, 36, 64), full range, whole
    picture stretched to that shape; ``chroma`` (n, 2, 9, 16), Cb and Cr around 128.
    ``key_times_ms`` (k,) are the times of those frames that decode without any other.
    ``aspects`` (n,) are widths over heights with square pixels, before pictures are turned;
    ``turns`` (n,), quarters clockwise and 4 if mirrored, are how they are turned.
    ``damaged_ms`` (d,), rising, are times of frames that were decoded with errors, or not at all.
    ``strokes`` (s, 90, 20), packed bits, show where in upright frames writing may be
    (``models.pictures.text_strokes``), in a frame of each second; ``stroke_times_ms`` (s,) rise.
    ``spare_times_ms`` are those of them that another segment's of the same second comes before.
    ``kept_times_ms`` are times of the frames whose pictures are kept, where a stream's are at all.
    """

    times_ms: Times
    luma: Bytes
    chroma: Bytes
    key_times_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))
    aspects: Shapes = field(default_factory=lambda: np.empty(0, np.float32))
    turns: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    damaged_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))
    stroke_times_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))
    strokes: Bytes = field(default_factory=lambda: np.empty(_NO_STROKES, np.uint8))
    spare_times_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))
    kept_times_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.times_ms)

    def looks(self) -> dict[int, FrameLook]:
        """Return what is known of each frame, by its time in ms."""
        return dict(zip(self.times_ms.tolist(), self.looks_in_order(), strict=True))

    def looks_in_order(self) -> Iterator[FrameLook]:
        """Return what is known of each frame."""
        turns = (Orientation(turn % 4 * 90, turn > 3) for turn in self.turns.tolist())
        keys = np.isin(self.times_ms, self.key_times_ms).tolist()
        return map(FrameLook, self.luma, self.aspects.tolist(), turns, keys)

    def part(self, start: int, end: int) -> FrameFeatures:
        """``rows`` from ``start`` to ``end``, as views."""
        return self.rows(slice(start, end))

    def rows(self, chosen: slice | list[int]) -> FrameFeatures:
        """Return the chosen frames; which are damaged, and strokes are not kept."""
        times_ms = self.times_ms[chosen]
        return FrameFeatures(
            times_ms,
            self.luma[chosen],
            self.chroma[chosen],
            np.intersect1d(self.key_times_ms, times_ms),
            aspects=self.aspects[chosen],
            turns=self.turns[chosen],
        )


@dataclass(frozen=True, slots=True)
class FrameLook:
    """What is known of a frame whose picture is to be read: a row of FrameFeatures."""

    luma: Bytes
    aspect: float
    orientation: Orientation = field(default_factory=Orientation)
    is_key: bool = False
    """Whether it decodes without any other."""


def no_frames() -> FrameFeatures:
    return FrameFeatures(
        np.empty(0, np.int64),
        np.empty((0, LUMA_HEIGHT, LUMA_WIDTH), np.uint8),
        np.empty((0, 2, CHROMA_HEIGHT, CHROMA_WIDTH), np.uint8),
    )


def in_time_order(
    times_ms: Sequence[int],
    luma: Sequence[Bytes],
    chroma: Sequence[Bytes],
    key_times_ms: Sequence[int] = (),
    aspects: Sequence[float] = (),
    damaged_ms: Sequence[int] = (),
    turns: Sequence[int] = (),
) -> FrameFeatures:
    """Features of decoded frames sorted by time; of frames at one time the first is kept.

    Of ``key_times_ms`` those are kept at which there is a frame.
    """
    if not times_ms:
        return no_frames()
    unique, first = np.unique(np.asarray(times_ms, np.int64), return_index=True)
    keys = np.intersect1d(unique, np.asarray(key_times_ms, np.int64))
    shapes = np.asarray(aspects or [1.0] * len(times_ms), np.float32)[first]
    turned = np.asarray(turns or [0] * len(times_ms), np.uint8)[first]
    damaged = np.unique(np.asarray(damaged_ms, np.int64))
    own = np.stack(luma)[first], np.stack(chroma)[first]
    return FrameFeatures(unique, *own, keys, shapes, turned, damaged)


def joined(parts: Sequence[FrameFeatures]) -> FrameFeatures:
    """Return parts of one video laid end to end."""
    if not parts:
        return no_frames()
    kept = "times_ms", "luma", "chroma", "key_times_ms", "aspects", "turns"
    return FrameFeatures(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in kept}
    )


def first_of_seconds(times_ms: Times) -> Times:
    """Return the first time in each second, of times that rise, wherever segments begin."""
    return times_ms[np.unique(times_ms // STROKES_EVERY_MS, return_index=True)[1]]


def nearest_frame(times_ms: Times, time_ms: int) -> int:
    """Index of the frame nearest to ``time_ms``, the earlier one of two; needs one at least."""
    after = int(np.searchsorted(times_ms, time_ms))
    if after == 0:
        return 0
    if after == len(times_ms):
        return after - 1
    return after - 1 if time_ms - times_ms[after - 1] <= times_ms[after] - time_ms else after


def even_times(times_ms: Times, every_ms: int) -> list[int]:
    """Of all frame times (one at least) those nearest to every ``every_ms`` from the first on."""
    grid_ms = np.arange(int(times_ms[0]), int(times_ms[-1]) + 1, every_ms)
    return sorted({int(times_ms[nearest_frame(times_ms, int(each))]) for each in grid_ms})


def to_bytes(features: FrameFeatures) -> bytes:
    """``features`` as an .npz, with FrameFacts; equal ones give equal bytes."""
    # Those of FrameFacts that luma gives.
    contrasts = [cv2.meanStdDev(picture)[1].item() for picture in features.luma]
    edges = (cv2.Laplacian(picture, cv2.CV_16S) for picture in features.luma)
    details = [cv2.meanStdDev(each)[1].item() for each in edges]
    arrays = {each.name: getattr(features, each.name) for each in fields(features)} | {
        "contrasts": np.array(contrasts, np.float32),
        "details": np.array(details, np.float32),
        "lit": np.count_nonzero(features.luma > _LIT_LEVEL, axis=0).astype(np.int64),
        "sums": features.luma.sum(axis=0, dtype=np.int64),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", _ZIP_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            archive.writestr(entry, content.getvalue(), compresslevel=_ZIP_LEVEL)
    return buffer.getvalue()


def from_bytes(data: bytes) -> FrameFeatures:
    """Return what ``to_bytes`` stored. Raises ValueError or KeyError on other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return FrameFeatures(**{each.name: arrays[each.name] for each in fields(FrameFeatures)})


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """What is known of FrameFeatures without their luma and chroma, which take more room.

    ``contrasts`` (n,): standard deviation of the luma, in levels; ``details`` (n,): of its
    Laplacian, which blur takes away. ``lit`` (36, 64): how many
    frames light a place; ``sums`` (36, 64): their luma.
    """

    times_ms: Times
    key_times_ms: Times
    kept_times_ms: Times
    damaged_ms: Times
    contrasts: Shapes
    details: Shapes
    lit: Times
    sums: Times


_LIT_LEVEL = 20
"""Above black, and what noise and encoders make of it."""


def strokes_from_bytes(data: bytes) -> tuple[Times, Bytes, Times]:
    """``stroke_times_ms``, ``strokes`` and ``spare_times_ms`` in what ``to_bytes`` stored. Raises
    ValueError or KeyError on other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return arrays["stroke_times_ms"], arrays["strokes"], arrays["spare_times_ms"]


def facts_from_bytes(data: bytes) -> FrameFacts:
    """Return what ``to_bytes`` stored, without unpacking the rest. Raises ValueError or KeyError on
    other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return FrameFacts(**{each.name: arrays[each.name] for each in fields(FrameFacts)})


@dataclass(frozen=True, slots=True)
class FeaturesConfig:
    """How segments are decoded.

    More than one of ``decode_threads`` gives the same features of intact streams only: of damaged
    ones FFmpeg's concealment then depends on timing. 0 shares the CPUs out among the segments.
    """

    decode_threads: int = 1
    gpus: float = 0.0
    """Share of a GPU that a task takes, on which NVDEC decodes what it can, and the processor the
    rest; 0: processors decode everything. A task that finds cuts takes the same."""


@dataclass(frozen=True)
class ReadFrames(Step[Segment, Made]):
    """A segment to its stored features (FEATURES), and pictures of some frames beside them."""

    name = "Reading the pictures"
    code = StageCode.VISION_FAILED
    version = 20
    video: VideoSource
    workspace: Workspace
    config: FeaturesConfig

    def process(self, segment: Segment) -> Made:
        store = self.workspace.store
        key = features_key(self.video, segment, self.workspace)
        if store.exists(key):
            return Made(key, computed=False)
        cv2.setNumThreads(1)
        kept = KeptFrames() if keeps_pictures(self.video.part_of(segment).stream) else None
        features = segment_features(self.video, segment, self.workspace, self.config, kept)
        if kept is not None:
            store.write_bytes(kept_key(key), kept.to_bytes())
        FEATURES.save(store, key, features)
        return Made(key, computed=True)


FEATURES = Artifact(
    "vision/features", ReadFrames.version, to_bytes, from_bytes, ending=".npz", is_large=True
)


def features_key(video: VideoSource, segment: Segment, workspace: Workspace) -> str:
    """Return where the features of ``segment`` are stored."""
    part = video.part_of(segment)
    source = part.origin_ms, part.stream.index
    return FEATURES.key(workspace.prefix, segment, source, position=segment.index)


def kept_key(features_key: str) -> str:
    """Return where the pictures are that were kept of the segment with these features."""
    return features_key.removesuffix(FEATURES.ending) + ".zip"


def segment_features(
    video: VideoSource,
    segment: Segment,
    workspace: Workspace,
    config: FeaturesConfig,
    kept: KeptFrames | None = None,
) -> FrameFeatures:
    """Decode ``segment`` and measure its frames; ``workspace.check`` is called once a second.

    Pictures of sampled frames go to ``kept``.
    """
    part = video.part_of(segment)
    report = DecodeReport()
    times_ms: list[int] = []
    measured = MeasuredFrames()
    aspects: list[float] = []
    turns: list[int] = []
    samples = _Samples(kept, has_frequent_keys(part.stream))
    check_due = time.monotonic()
    with workspace.store.local_copy(segment.key) as path:
        for timed in decode_segment(
            path,
            segment,
            stream_index=part.stream.index,
            origin_ms=part.origin_ms,
            threads=max(1, config.decode_threads),
            smoothed=Smoothed.KEY_FRAMES if samples.keys_only else Smoothed.REFERENCES,
            device="cuda" if config.gpus else "cpu",
            report=report,
        ):
            if time.monotonic() >= check_due:
                check_due = time.monotonic() + _CHECK_EVERY_SECONDS
                workspace.check()
            measured.add(timed.frame)
            times_ms.append(timed.time_ms)
            size = timed.frame.width, timed.frame.height
            aspects.append(part.stream.pixels.picture_aspect(*size, timed.pixel_aspect))
            # NUT, which only holds what Matroska cannot, knows of no orientation.
            is_nut = segment.key.endswith(".nut")
            orientation = part.stream.orientation if is_nut else timed.orientation
            turns.append(orientation.degrees // 90 + 4 * orientation.mirrored)
            samples.add(timed, aspects[-1], orientation)
    measured.finish()
    samples.finish()
    # What comes before the first picture of a stream joined between key frames has its own warning.
    first_ms = max(segment.start_ms, part.start_ms + part.stream.start_ms)
    noticed = {*report.damaged_ms, *(report.pictured_ms - {*times_ms})}
    damaged = [time_ms for time_ms in noticed if first_ms <= time_ms < segment.end_ms]
    found = in_time_order(
        times_ms, measured.luma, measured.chroma, report.key_times_ms, aspects, damaged, turns
    )
    if not samples.strokes:
        return found
    stroke_times = sorted(samples.strokes)
    return replace(
        found,
        stroke_times_ms=np.asarray(stroke_times, np.int64),
        strokes=np.stack([samples.strokes[time_ms] for time_ms in stroke_times]),
        spare_times_ms=np.array(samples.spare_ms, np.int64),
        kept_times_ms=np.array(samples.kept_ms, np.int64),
    )


@dataclass(slots=True)
class _Samples:
    """A frame of each second in which strokes are looked for, and one whose picture is kept.

    The latter is smoothed: it is the first that is no B-frame, and strokes are looked for in it, or
    else in the second's first. Where ``keys_only`` are smoothed, it is the first key frame, and
    strokes, which must be seen at even distances, are looked for in the first frame.
    """

    kept: KeptFrames | None
    keys_only: bool
    strokes: dict[int, Bytes] = field(default_factory=dict)
    spare_ms: list[int] = field(default_factory=list)
    kept_ms: list[int] = field(default_factory=list)
    _second: int = -1
    _spare: tuple[TimedFrame, float, Orientation] | None = None
    """Of this second the first frame, until strokes are looked for in another."""
    _needs_kept: bool = False

    def add(self, timed: TimedFrame, aspect: float, orientation: Orientation) -> None:
        """Look at the next frame; ``aspect`` is as ``frame_strokes`` has it."""
        second, frame = timed.time_ms // STROKES_EVERY_MS, timed.frame
        is_kept = frame.key_frame if self.keys_only else frame.pict_type != PictureType.B
        is_first = second != self._second
        if not (is_first or (is_kept and self._needs_kept)):
            return
        timed = replace(timed, frame=in_memory(frame))
        sample = timed, aspect, orientation
        if is_first:
            self.finish()
            self._second, self._needs_kept = second, True
            if self.keys_only:
                self._look(*sample)
            else:
                self._spare = sample
        if is_kept:
            if not self.keys_only:
                self._spare = None
                self._look(*sample)
            self._needs_kept = False
            self.kept_ms.append(timed.time_ms)
            if self.kept is not None:
                shape = aspect, orientation, KEPT_LONG_SIDE_PX
                self.kept.add(timed.time_ms, upright(rgb(timed.frame), *shape))

    def finish(self) -> None:
        """Take the first frame of a second that has no better one."""
        if self._spare is not None:
            self._look(*self._spare)
            self.spare_ms.append(self._spare[0].time_ms)
            self._spare = None

    def _look(self, timed: TimedFrame, aspect: float, orientation: Orientation) -> None:
        self.strokes[timed.time_ms] = frame_strokes(timed.frame, aspect, orientation)
