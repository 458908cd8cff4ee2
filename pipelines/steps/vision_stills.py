"""Stills of a segment at exact frame times: by decord in batches, else by PyAV.

Both ways give the same picture: full size RGB as stored, made upright with
square pixels by the same function afterwards.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import av
import av.error
import cv2
import numpy as np

from models.contracts import Picture
from pipelines.contracts import Segment, VideoStream
from pipelines.decoding import chosen_stream, decode_segment
from pipelines.merge.frame_features import LUMA_HEIGHT, LUMA_WIDTH, Bytes
from pipelines.sources.timestamps import rounded_ms
from pipelines.steps.vision_tone import is_high_dynamic_range, standard_range

if TYPE_CHECKING:
    import decord

_DECORD_LACKS = frozenset({"av1", "vvc"})
"""Codecs that the FFmpeg inside decord 0.6 has no decoder for."""
_DECORD_FILE_LIMIT_BYTES = 256 * 1024 * 1024
"""decord reads a whole file to index it, so longer ones are left to PyAV's seeking."""
_DECORD_THREADS = 1
"""decord decodes ahead without bound (decord#157); one thread keeps that small."""
_TIME_TOLERANCE_MS = 5.0
_DEEP_FORMAT = re.compile(r"p(9|10|12|14|16)(le|be)$")
_BATCH_BYTES = 128 * 1024 * 1024
_SAME_PICTURE_LEVELS = 6.0
_SAME_PICTURE_CORRELATION = 0.9


class DecordUnsuitableError(Exception):
    """decord cannot give the stills of this file; the message says why."""


@dataclass(frozen=True, slots=True)
class StillsConfig:
    """``long_side_px`` bounds the stills' width and height."""

    long_side_px: int = 960


def fetch_stills(
    path: Path,
    segment: Segment,
    stream: VideoStream,
    origin_ms: int,
    wanted: Mapping[int, Bytes],
    config: StillsConfig,
) -> dict[int, Picture]:
    """Stills at the times ``wanted`` (with the luma features of those frames), upright.

    Times at which nothing can be decoded are left out. ``path`` is the
    segment's object on this machine.
    """
    try:
        stored = by_decord(path, stream, origin_ms, wanted)
    except DecordUnsuitableError:
        stored = {}
    missing = [time_ms for time_ms in wanted if time_ms not in stored]
    stored |= by_pyav(path, segment, stream, origin_ms, missing)
    return {
        time_ms: upright(picture, stream, config.long_side_px)
        for time_ms, picture in sorted(stored.items())
    }


def by_decord(
    path: Path, stream: VideoStream, origin_ms: int, wanted: Mapping[int, Bytes]
) -> dict[int, Picture]:
    """Pictures as stored, for those of ``wanted`` that decord reproduces.

    Raises DecordUnsuitableError if it cannot read the file as PyAV does.
    """
    if stream.hdr or stream.codec in _DECORD_LACKS:
        raise DecordUnsuitableError(stream.codec)
    if path.stat().st_size > _DECORD_FILE_LIMIT_BYTES:
        raise DecordUnsuitableError("long file")
    frame_times_ms = _packet_times_ms(path, stream.index, origin_ms)
    known = sorted(set(wanted) & set(frame_times_ms))
    found: dict[int, Picture] = {}
    pictures = _decord_pictures(path, frame_times_ms, known) if known else []
    for time_ms, picture in zip(known, pictures, strict=True):
        stored = _as_stored(picture, stream.rotation_degrees, wanted[time_ms])
        if stored is not None:
            found[time_ms] = stored
    return found


def _decord_pictures(
    path: Path, frame_times_ms: Sequence[int], wanted_ms: Sequence[int]
) -> list[Picture]:
    """Frames at ``wanted_ms``, a bounded batch at a time."""
    import decord

    indices = [bisect_left(frame_times_ms, time_ms) for time_ms in wanted_ms]
    try:
        reader = decord.VideoReader(str(path), ctx=decord.cpu(0), num_threads=_DECORD_THREADS)
        _check_numbering(reader, frame_times_ms, indices)
        first = reader.get_batch([indices[0]]).asnumpy()
        size = max(1, _BATCH_BYTES // first.nbytes)
        pictures = list(first)
        for start in range(1, len(indices), size):
            pictures += list(reader.get_batch(list(indices[start : start + size])).asnumpy())
    except decord.DECORDError as error:
        raise DecordUnsuitableError(str(error)) from error
    return pictures


def _check_numbering(
    reader: decord.VideoReader, frame_times_ms: Sequence[int], indices: Sequence[int]
) -> None:
    """Raise unless decord numbers the frames as their packets' times do.

    Its times are seconds from its first frame, in single precision.
    """
    if len(reader) != len(frame_times_ms):
        message = f"{len(reader)} frames instead of {len(frame_times_ms)}"
        raise DecordUnsuitableError(message)
    own_ms = reader.get_frame_timestamp([0, *indices])[:, 0].astype(np.float64) * 1000
    expected_ms = np.array([frame_times_ms[index] for index in (0, *indices)])
    late_ms = (own_ms - own_ms[0]) - (expected_ms - expected_ms[0])
    if own_ms[0] < 0 or float(np.abs(late_ms).max()) > _TIME_TOLERANCE_MS:
        raise DecordUnsuitableError("frames are numbered differently")


def _packet_times_ms(path: Path, stream_index: int, origin_ms: int) -> list[int]:
    """Times of the file's pictures in order, read from packets without decoding.

    Raises DecordUnsuitableError for more than 8 bits a sample: decord's FFmpeg
    converts these to RGB otherwise than PyAV's.
    """
    with av.open(str(path)) as container:
        stream = chosen_stream(container, stream_index)
        if _DEEP_FORMAT.search(stream.codec_context.pix_fmt or ""):
            raise DecordUnsuitableError(stream.codec_context.pix_fmt)
        packets = container.demux(stream)
        try:
            return sorted(
                rounded_ms(packet.pts, packet.time_base) - origin_ms
                for packet in packets
                if packet.pts is not None and packet.time_base is not None
            )
        except av.error.FFmpegError as error:
            raise DecordUnsuitableError(str(error)) from error


def _as_stored(picture: Picture, rotation_degrees: int, luma: Bytes) -> Picture | None:
    """The picture as it lies in the file, or None if it is not the frame with this luma.

    decord turns pictures upright where the container says so in a way that its
    FFmpeg knows; the frame's features tell whether it did.
    """
    turned_back = np.rot90(picture, rotation_degrees // 90)
    candidates = [picture] if rotation_degrees % 360 == 0 else [picture, turned_back]
    fits = [_fit(candidate, luma) for candidate in candidates]
    best = int(np.argmax(fits))
    return np.ascontiguousarray(candidates[best]) if fits[best] > 0 else None


def _fit(picture: Picture, luma: Bytes) -> float:
    """How well the picture matches a frame's luma features; 0 if it is another picture."""
    small = cv2.resize(picture, (LUMA_WIDTH, LUMA_HEIGHT), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float64)
    reference = luma.astype(np.float64)
    if float(np.abs(grey - reference).mean()) <= _SAME_PICTURE_LEVELS:
        return 2.0 - float(np.abs(grey - reference).mean()) / _SAME_PICTURE_LEVELS
    spread = float(grey.std() * reference.std())
    if spread == 0:
        return 0.0
    product = float(((grey - grey.mean()) * (reference - reference.mean())).mean())
    return product / spread if product / spread >= _SAME_PICTURE_CORRELATION else 0.0


def by_pyav(
    path: Path, segment: Segment, stream: VideoStream, origin_ms: int, times_ms: Sequence[int]
) -> dict[int, Picture]:
    """Pictures as stored at ``times_ms``, each by seeking to it; HDR brought to SDR."""
    found: dict[int, Picture] = {}
    for time_ms in times_ms:
        moment = Segment(segment.index, segment.key, time_ms, time_ms + 1)
        frames = decode_segment(path, moment, stream_index=stream.index, origin_ms=origin_ms)
        timed = next(iter(frames), None)
        if timed is not None:
            found[time_ms] = rgb(timed.frame)
    return found


def rgb(frame: av.VideoFrame) -> Picture:
    """A frame in RGB as stored; an HDR one tone mapped, and shrunk if it is large."""
    if is_high_dynamic_range(frame):
        return standard_range(frame)
    return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


def upright(picture: Picture, stream: VideoStream, long_side_px: int) -> Picture:
    """The stored picture with square pixels, turned upright, no side over ``long_side_px``.

    Of an interlaced picture one field is kept: half the lines, but no comb.
    """
    if stream.interlaced and picture.shape[0] > 1:
        picture = picture[::2]
    factor = min(1.0, long_side_px / max(stream.width, stream.height))
    size = (max(1, round(stream.width * factor)), max(1, round(stream.height * factor)))
    if stream.rotation_degrees % 180:
        size = (size[1], size[0])
    if size != (picture.shape[1], picture.shape[0]):
        picture = cv2.resize(picture, size, interpolation=_interpolation(picture, size))
    return np.ascontiguousarray(np.rot90(picture, -(stream.rotation_degrees // 90)))


def _interpolation(picture: Picture, size: tuple[int, int]) -> int:
    grows = size[0] > picture.shape[1] or size[1] > picture.shape[0]
    return cv2.INTER_LINEAR if grows else cv2.INTER_AREA
