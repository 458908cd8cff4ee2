"""Pictures of a segment read by decord. Runs in a confined child process.

decord carries an FFmpeg of 2018 that is no longer maintained, and bitstreams are
untrusted: where it crashes, hangs or grows, only the child ends, and PyAV reads instead.
Pictures go to the parent one at a time through shared memory.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

from pipelines.media import files
from pipelines.sandbox.child import Emit

if TYPE_CHECKING:
    import decord

_DECORD_THREADS = 1
"""decord decodes ahead without bound (decord#157); one thread keeps that small."""
_COPIED = frozenset({"h264", "hevc", "mpeg4", "vp9"})
"""Codecs of which MP4 carries any packet; interlaced pictures may have two packets each."""
_TIME_TOLERANCE_MS = 5.0
_DEEP_FORMAT = re.compile(r"p(9|10|12|14|16)(le|be)$")
_BATCH_BYTES = 48 * 1024 * 1024


class _UnsuitableError(Exception):
    """decord cannot give the stills of this file; the message is the reason."""


@dataclass(frozen=True, slots=True)
class PicturesOrder:
    """Pictures of a stream, as they lie in the file, into the file descriptor ``memory``."""

    path: Path
    stream_index: int
    interlaced: bool
    origin_ms: int
    times_ms: tuple[int, ...]
    memory: int


@dataclass(frozen=True, slots=True)
class SharedPicture:
    """The event that a picture lies in the shared memory: RGB, a byte a sample."""

    time_ms: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class PicturesRead:
    """The end; ``unsuitable`` is why decord is not the one to read the file."""

    unsuitable: str | None = None


def read_pictures(order: PicturesOrder, emit: Emit) -> PicturesRead:
    """Read the pictures; each is announced as a SharedPicture."""
    try:
        _read(order, emit)
    except _UnsuitableError as error:
        return PicturesRead(str(error))
    return PicturesRead()


def _read(order: PicturesOrder, emit: Emit) -> None:
    import decord

    wanted = frozenset(order.times_ms)
    source: BytesIO | str = str(order.path)
    with av.open(source, options=files.OPEN_OPTIONS) as container:
        stream = files.chosen_stream(container, order.stream_index)
        packets = _timed_packets(container, stream, order.origin_ms)
        if stream.codec_context.name in _COPIED and not order.interlaced:
            packets = _needed(packets, wanted)
            source = _copied(stream, packets)
    times_ms = sorted(time_ms for time_ms, _ in packets)
    known = sorted(wanted.intersection(times_ms))
    if not known:
        return
    indices = [bisect_left(times_ms, time_ms) for time_ms in known]
    try:
        reader = decord.VideoReader(source, ctx=decord.cpu(0), num_threads=_DECORD_THREADS)
        _check_numbering(reader, times_ms, indices)
        size = 1
        while indices:
            pictures = reader.get_batch(indices[:size]).asnumpy()
            for time_ms, picture in zip(known, pictures, strict=False):
                data = memoryview(np.ascontiguousarray(picture).data).cast("B")
                written = 0
                while written < len(data):
                    written += os.pwrite(order.memory, data[written:], written)
                emit(SharedPicture(time_ms, *picture.shape[:2]))
            known, indices = known[size:], indices[size:]
            size = max(1, _BATCH_BYTES // pictures[0].nbytes)
    except decord.DECORDError as error:
        raise _UnsuitableError(str(error)[:200]) from error


def _timed_packets(
    container: InputContainer, stream: VideoStream, origin_ms: int
) -> list[tuple[int, av.Packet]]:
    """Return the stream's packets that have a time, in file order. Raises _UnsuitableError for more
    than 8 bits a sample: decord's FFmpeg converts these to RGB otherwise than PyAV's. Also where
    the times of packets are not those of pictures."""
    if files.has_guessed_times(stream):
        raise _UnsuitableError("times are guessed")
    if _DEEP_FORMAT.search(stream.codec_context.pix_fmt or ""):
        raise _UnsuitableError(stream.codec_context.pix_fmt)
    try:
        packets = files.demuxed(container, [stream])
        timed = [(files.packet_time_ms(packet, origin_ms), packet) for packet in packets]
    except av.error.FFmpegError as error:
        raise _UnsuitableError(str(error)) from error
    return [(time_ms, packet) for time_ms, packet in timed if time_ms is not None]


def _needed(
    packets: Sequence[tuple[int, av.Packet]], wanted: Collection[int]
) -> list[tuple[int, av.Packet]]:
    """Return the packets that decoding the frames at ``wanted`` takes. For each frame those from
    the key frame before it on; from the one before that where the frame is shown before its key
    frame."""
    kept: set[int] = set()
    keys = [0, 0]
    for index, (time_ms, packet) in enumerate(packets):
        if packet.is_keyframe:
            keys.append(index)
        if time_ms in wanted:
            is_leading = time_ms < packets[keys[-1]][0]
            kept.update(range(keys[-2] if is_leading else keys[-1], index + 1))
    return [packets[index] for index in sorted(kept)]


def _copied(stream: VideoStream, packets: Sequence[tuple[int, av.Packet]]) -> BytesIO:
    """Return an MP4 file of these packets, so that decord decodes nothing but them. Of a whole file
    it decodes ahead until its first picture is requested (decord#157). Matroska would not do:
    without a frame rate or a count of frames in the header decord refuses it."""
    copy = BytesIO()
    with av.open(copy, "w", format="mp4") as out:
        track = out.add_stream_from_template(stream)
        for _, packet in packets:
            packet.stream = track
            out.mux(packet)
    copy.seek(0)
    return copy


def _check_numbering(
    reader: decord.VideoReader, frame_times_ms: Sequence[int], indices: Sequence[int]
) -> None:
    """Raise unless decord numbers the frames as their packets' times do. Its times are seconds from
    its first frame, in single precision."""
    if len(reader) != len(frame_times_ms):
        raise _UnsuitableError(f"{len(reader)} frames instead of {len(frame_times_ms)}")
    own_ms = reader.get_frame_timestamp([0, *indices])[:, 0].astype(np.float64) * 1000
    expected_ms = np.array([frame_times_ms[index] for index in (0, *indices)])
    late_ms = (own_ms - own_ms[0]) - (expected_ms - expected_ms[0])
    if own_ms[0] < 0 or float(np.abs(late_ms).max()) > _TIME_TOLERANCE_MS:
        raise _UnsuitableError("frames are numbered differently")
