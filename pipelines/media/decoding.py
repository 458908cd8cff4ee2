"""Frames of a segment in order, each with its time on the video's timeline.

Times come from presentation timestamps, rounded as ``pipelines.types``
states, so a frame has the same time in the source and in a segment cut from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import av.error
from av.container import InputContainer
from av.video.stream import VideoStream as AvVideoStream

from pipelines.media.files import (
    OPEN_OPTIONS,
    ShownOrder,
    chosen_stream,
    demuxed,
    pixel_aspect,
)
from pipelines.media.timestamps import packet_time_ms, rounded_ms
from pipelines.media_types import Orientation
from pipelines.orientation import Turning
from pipelines.types import Segment

_SEEK_WORTHWHILE_MS = 10_000
"""With less than this before the segment, decoding it is about as quick as seeking."""

_SEEK_MARGINS_MS = (1_000, 30_000)
"""How far before the segment to aim. The first passes open-GOP leading frames, whose
references precede the key frame; the second is for containers that seek loosely."""

_PICTURE_A_PACKET = ("h264", "hevc")
_REORDER_MS = 500
"""Decoding goes on this long past the segment's end, for streams with uneven timestamps."""


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A decoded frame and its time from the start of the media."""

    time_ms: int
    frame: av.VideoFrame
    pixel_aspect: float
    """Width over height of a pixel, as the frame itself states it; 1 where it does not."""
    orientation: Orientation
    """As the file, or the frames up to this one, state it."""


@dataclass(slots=True)
class DecodeReport:
    """What went by while decoding; filled in as the frames are taken."""

    damaged_packets: int = 0
    damaged_ms: list[int] = field(default_factory=list)
    """Times of frames with errors that the decoder concealed, and of packets that it refused."""
    pictured_ms: set[int] = field(default_factory=set)
    """Times of packets of a codec that has a picture in each: FFmpeg's decoder passes over what it
    cannot decode."""
    key_times_ms: list[int] = field(default_factory=list)
    """Of all packets that went by and are marked as key frames."""


def decode_segment(
    path: Path,
    segment: Segment,
    *,
    stream_index: int,
    origin_ms: int,
    threads: int = 1,
    loop_filter: bool = True,
    report: DecodeReport | None = None,
) -> Iterator[TimedFrame]:
    """Frames with ``segment.start_ms <= time < segment.end_ms``, in decoder order.

    ``path`` is the segment's object on this machine. ``threads`` bounds the
    decoder's threads. Without ``loop_filter`` blocks' edges are not smoothed, which
    tiny pictures do not show and which takes a fifth of the time. Damaged packets are
    skipped and counted in ``report``; frames without any timestamp are skipped. Raises
    NoVideoStreamError, and av's own errors where the file cannot be opened at all.
    """
    report = report if report is not None else DecodeReport()
    with _positioned(path, segment.start_ms, stream_index, origin_ms) as container:
        stream = chosen_stream(container, stream_index)
        stream.codec_context.thread_count = threads
        stream.thread_type = "AUTO"
        if not loop_filter:
            stream.codec_context.options = {"skip_loop_filter": "all"}
        for timed in _timed_frames(container, stream, origin_ms, report):
            if timed.time_ms >= segment.end_ms + _REORDER_MS:
                return
            if segment.start_ms <= timed.time_ms < segment.end_ms:
                yield timed


def _positioned(path: Path, start_ms: int, stream_index: int, origin_ms: int) -> InputContainer:
    """The file opened and standing at or before ``start_ms``.

    Where to seek to is tried out by decoding a picture.
    """
    for margin_ms in _SEEK_MARGINS_MS:
        target_ms = start_ms - margin_ms
        with contextlib.ExitStack() as opened:
            container = opened.enter_context(_opened(path))
            stream = chosen_stream(container, stream_index)
            if not _seek_pays(stream, start_ms, origin_ms):
                opened.pop_all()
                return container
            if _seek_reaches(container, stream, target_ms, start_ms, origin_ms):
                break
    else:
        return _opened(path)
    container = _opened(path)
    seek(container, chosen_stream(container, stream_index), target_ms + origin_ms)
    return container


def _opened(path: Path) -> InputContainer:
    container: InputContainer = av.open(str(path), options=OPEN_OPTIONS)
    return container


def _seek_pays(stream: AvVideoStream, start_ms: int, origin_ms: int) -> bool:
    if stream.time_base is None:
        return False
    first_ms = rounded_ms(stream.start_time or 0, stream.time_base) - origin_ms
    return start_ms - first_ms > _SEEK_WORTHWHILE_MS


def _seek_reaches(
    container: InputContainer,
    stream: AvVideoStream,
    target_ms: int,
    start_ms: int,
    origin_ms: int,
) -> bool:
    """Whether seeking to ``target_ms`` gives a first picture no later than ``start_ms``."""
    try:
        seek(container, stream, target_ms + origin_ms)
        first = next(_timed_frames(container, stream, origin_ms, DecodeReport()), None)
    except av.error.FFmpegError:
        return False
    return first is not None and first.time_ms <= start_ms


def seek(container: InputContainer, stream: AvVideoStream, file_ms: int) -> None:
    """Go to the key frame at ``file_ms``, a time as in the file, or to the one before."""
    ticks = int(Fraction(file_ms, 1000) / (stream.time_base or Fraction(1, av.time_base)))
    container.seek(ticks, backward=True, any_frame=False, stream=stream)


def _timed_frames(
    container: InputContainer, stream: AvVideoStream, origin_ms: int, report: DecodeReport
) -> Iterator[TimedFrame]:
    turning = Turning()
    for frame in _frames(container, stream, origin_ms, report):
        orientation = turning.of(frame)
        ticks = frame.pts if frame.pts is not None else frame.dts
        time_base = frame.time_base or stream.time_base
        if ticks is not None and time_base is not None:
            time_ms = rounded_ms(ticks, time_base) - origin_ms
            if frame.is_corrupt:
                report.damaged_ms.append(time_ms)
            yield TimedFrame(time_ms, frame, pixel_aspect(stream), orientation)


def _frames(
    container: InputContainer, stream: AvVideoStream, origin_ms: int, report: DecodeReport
) -> Iterator[av.VideoFrame]:
    """Every frame that can be decoded. A broken-off file ends where it can no longer be read."""
    packets, shown = demuxed(container, [stream]), ShownOrder(stream)
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            break
        if packet is None:
            break
        shown.put_in(packet)
        shown_ms = packet_time_ms(packet, origin_ms)
        if shown_ms is not None and packet.is_keyframe:
            report.key_times_ms.append(shown_ms)
        if (
            shown_ms is not None
            and stream.codec_context.name in _PICTURE_A_PACKET
            and packet.size
            and not packet.is_discard
        ):
            report.pictured_ms.add(shown_ms)
        try:
            frames = stream.codec_context.decode(packet)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            report.damaged_ms += [] if shown_ms is None else [shown_ms]
            continue
        for frame in frames:
            shown.take_out(frame)
            yield frame
    for frame in _drained(stream, report):
        shown.take_out(frame)
        yield frame


def _drained(stream: AvVideoStream, report: DecodeReport) -> list[av.VideoFrame]:
    """Frames that the decoder still held back; none where it was flushed already."""
    try:
        return stream.codec_context.decode(None)
    except av.error.EOFError:
        return []
    except av.error.FFmpegError:
        report.damaged_packets += 1
        return []
