"""Frames of a segment in order, each with its time on the video's timeline.

Times come from presentation timestamps, rounded as ``pipelines.types``
says, so a frame has the same time in the source and in a segment cut from it.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import av
import av.error
from av.container import InputContainer
from av.video.stream import VideoStream as AvVideoStream

from pipelines.media.files import OPEN_OPTIONS
from pipelines.media.h264_units import is_clean_key, is_unreferenced
from pipelines.media.timestamps import rounded_ms
from pipelines.types import Segment

_SEEK_WORTHWHILE_MS = 10_000
"""With less than this before the segment, decoding it is about as quick as seeking."""

_SEEK_MARGINS_MS = (1_000, 30_000)
"""How far before the segment to aim. The first passes open-GOP leading frames, whose
references precede the key frame; the second is for containers that seek loosely."""

_REORDER_MS = 500
"""Decoding goes on this long past the segment's end, for streams with uneven timestamps."""


class NoVideoStreamError(ValueError):
    """The file holds no video stream to decode."""


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A decoded frame and its time from the start of the media."""

    time_ms: int
    frame: av.VideoFrame


@dataclass(slots=True)
class DecodeReport:
    """What went by while decoding; filled in as the frames are taken."""

    frames: int = 0
    damaged_packets: int = 0
    untimed_frames: int = 0
    first_time_ms: int | None = field(default=None)
    key_times_ms: list[int] = field(default_factory=list)
    """Of all packets that went by and say that they need no other."""
    left_out_ms: list[int] = field(default_factory=list)
    """Of all packets that went by undecoded because no other picture refers to theirs."""
    damaged_gops_ms: set[int] = field(default_factory=set)
    """Times of the key frames after which packets were found damaged."""


def chosen_stream(container: InputContainer, stream_index: int) -> AvVideoStream:
    """The video stream numbered as in the source, else the first one of a cut file.

    Raises NoVideoStreamError where the file has none.
    """
    streams = container.streams.video
    if not streams:
        raise NoVideoStreamError(container.name)
    return next((stream for stream in streams if stream.index == stream_index), streams[0])


def decode_segment(
    path: Path,
    segment: Segment,
    *,
    stream_index: int,
    origin_ms: int,
    threads: int = 1,
    loop_filter: bool = True,
    sparse: bool = False,
    report: DecodeReport | None = None,
) -> Iterator[TimedFrame]:
    """Frames with ``segment.start_ms <= time < segment.end_ms``, in decoder order.

    ``path`` is the segment's object on this machine. ``threads`` bounds the
    decoder's threads. Without ``loop_filter`` blocks' edges are not smoothed, which
    tiny pictures do not show and which takes a fifth of the time; ``sparse`` leaves
    out frames that no other refers to, where ``decode_moments`` can bring them later.
    Damaged packets are skipped and counted in ``report``, frames without any timestamp
    too. Raises NoVideoStreamError, and av's own errors where the file cannot be opened
    at all.
    """
    report = report if report is not None else DecodeReport()
    with _positioned(path, segment.start_ms, stream_index, origin_ms) as container:
        stream = chosen_stream(container, stream_index)
        _set_up(stream, threads, loop_filter)
        leave_out = _Sparing(stream, origin_ms) if sparse else None
        for timed in _timed_frames(container, stream, origin_ms, report, leave_out):
            if timed.time_ms >= segment.end_ms + _REORDER_MS:
                return
            if segment.start_ms <= timed.time_ms < segment.end_ms:
                report.frames += 1
                yield timed


def decode_moments(
    path: Path,
    times_ms: Collection[int],
    key_times_ms: Sequence[int],
    *,
    stream_index: int,
    origin_ms: int,
    loop_filter: bool = True,
) -> Iterator[TimedFrame]:
    """Frames at ``times_ms`` that ``sparse`` decoding left out, without others like them.

    ``key_times_ms``, rising, are those of the key frames. Frames that seeking does not
    lead to are missing. Raises as ``decode_segment`` does.
    """
    with _opened(path) as container:
        stream = chosen_stream(container, stream_index)
        _set_up(stream, 1, loop_filter)
        for _, moments in groupby(sorted(times_ms), lambda at: bisect_right(key_times_ms, at)):
            wanted = set(moments)
            seek(container, stream, min(wanted) + origin_ms)
            stream.codec_context.flush_buffers()
            leave_out = _Sparing(stream, origin_ms, frozenset(wanted))
            for timed in _timed_frames(container, stream, origin_ms, DecodeReport(), leave_out):
                if timed.time_ms in wanted:
                    wanted.remove(timed.time_ms)
                    yield timed
                if not wanted:
                    break


def _set_up(stream: AvVideoStream, threads: int, loop_filter: bool) -> None:
    stream.codec_context.thread_count = threads
    stream.thread_type = "AUTO"
    if not loop_filter:
        stream.codec_context.options = {"skip_loop_filter": "all"}


class _Sparing:
    """Says of each packet whether its picture may be left out: no other refers to it.

    Not where it is shown before a key frame that it follows in the file, nor where it is the
    last one before a key frame: to tell it from a cut would take what may lie in another
    segment. Nor after a key frame that is none by its own word: decoding cannot start there
    to bring it. Given ``wanted`` times of one GOP, these are decoded, and nothing after it.
    """

    def __init__(self, stream: AvVideoStream, origin_ms: int, wanted: Collection[int] = ()) -> None:
        self._codec, self._extradata = stream.codec_context.name, stream.codec_context.extradata
        self._origin_ms = origin_ms
        self._wanted = wanted
        self._key_ms: int | None = None
        self._clean = False

    def ends_at(self, packet: av.Packet) -> bool:
        """Whether what is wanted lies before ``packet``."""
        return bool(self._wanted) and packet.is_keyframe and self._key_ms is not None

    def leaves_out(self, packet: av.Packet, following: av.Packet | None) -> bool:
        """Whether ``packet`` need not be decoded; to be asked of each, in the file's order."""
        shown_ms = packet_time_ms(packet, self._origin_ms)
        if packet.is_keyframe:
            self._key_ms = shown_ms
            self._clean = is_clean_key(self._codec, bytes(packet), self._extradata)
        if self._wanted and self._key_ms is None:
            return True
        if self._wanted:
            needed = shown_ms in self._wanted
        else:
            leading = shown_ms is None or self._key_ms is None or shown_ms < self._key_ms
            last = following is None or following.is_keyframe
            needed = leading or last or not self._clean
        return not needed and is_unreferenced(self._codec, bytes(packet), self._extradata)


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
    container: InputContainer,
    stream: AvVideoStream,
    origin_ms: int,
    report: DecodeReport,
    leave_out: _Sparing | None = None,
) -> Iterator[TimedFrame]:
    for frame in _frames(container, stream, origin_ms, report, leave_out):
        ticks = frame.pts if frame.pts is not None else frame.dts
        time_base = frame.time_base or stream.time_base
        if ticks is None or time_base is None:
            report.untimed_frames += 1
            continue
        time_ms = rounded_ms(ticks, time_base) - origin_ms
        if report.first_time_ms is None:
            report.first_time_ms = time_ms
        yield TimedFrame(time_ms, frame)


def _frames(
    container: InputContainer,
    stream: AvVideoStream,
    origin_ms: int,
    report: DecodeReport,
    leave_out: _Sparing | None,
) -> Iterator[av.VideoFrame]:
    """Every frame that can be decoded. A broken-off file ends where it can no longer be read."""
    for packet, following in _with_following(_packets(container, stream, report)):
        if leave_out is not None and leave_out.ends_at(packet):
            break
        shown_ms = packet_time_ms(packet, origin_ms)
        if shown_ms is not None and packet.is_keyframe:
            report.key_times_ms.append(shown_ms)
        if leave_out is not None and leave_out.leaves_out(packet, following):
            if shown_ms is not None and not packet.is_discard:
                report.left_out_ms.append(shown_ms)
            continue
        try:
            frames = stream.codec_context.decode(packet)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            report.damaged_gops_ms.update(report.key_times_ms[-1:])
            continue
        yield from frames
    yield from _drained(stream, report)


def _packets(
    container: InputContainer, stream: AvVideoStream, report: DecodeReport
) -> Iterator[av.Packet]:
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            return
        if packet is None:
            return
        yield packet


def _with_following(
    packets: Iterator[av.Packet],
) -> Iterator[tuple[av.Packet, av.Packet | None]]:
    """Each packet and the one that follows it; an empty one, at the end, flushes the decoder."""
    previous = None
    for packet in packets:
        if previous is not None:
            yield previous, packet if packet.size else None
        previous = packet
    if previous is not None:
        yield previous, None


def packet_time_ms(packet: av.Packet, origin_ms: int) -> int | None:
    """The time of the packet's picture; None where it has none."""
    if packet.pts is None or packet.time_base is None:
        return None
    return rounded_ms(packet.pts, packet.time_base) - origin_ms


def _drained(stream: AvVideoStream, report: DecodeReport) -> list[av.VideoFrame]:
    """Frames that the decoder still held back; none where it was flushed already."""
    try:
        return stream.codec_context.decode(None)
    except av.error.EOFError:
        return []
    except av.error.FFmpegError:
        report.damaged_packets += 1
        return []
