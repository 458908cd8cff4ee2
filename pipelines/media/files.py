"""Opening a file that nobody vouches for, in the confined child process.

The child has no network: where a file is fetched as it is read, the child names the bytes that it
needs in an event, and its parent puts them into the file before it answers
(``storage.objects.RangedCopy``). Times are ticks of a time base as whole milliseconds, by one map
from a file's clock to media time; the orientation of a picture comes from its display matrix or
tag.
"""

from __future__ import annotations

import heapq
import io
import math
import os
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import av
import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.sidedata.sidedata import SideDataContainer
from av.stream import Discard, Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from pipelines.media_types import Orientation
from pipelines.sandbox.child import MediaRefusedError


def rounded_ms(ticks: int, time_base: Fraction) -> int:
    """``ticks`` of ``time_base`` seconds in whole milliseconds, halves away from zero.

    Matroska muxers round the same way, so a time survives being cut into a segment.
    """
    halves, denominator = 2 * abs(ticks) * time_base.numerator * 1000, time_base.denominator
    magnitude = (halves + denominator) // (2 * denominator)
    return magnitude if ticks >= 0 else -magnitude


def seconds_ms(seconds: Fraction) -> int:
    """Return the same of seconds."""
    return rounded_ms(seconds.numerator, Fraction(1, seconds.denominator))


def packet_time_ms(packet: Packet[Any], origin_ms: int) -> int | None:
    """Return the time of the packet's picture; None where it has none."""
    if packet.pts is None or packet.time_base is None:
        return None
    return rounded_ms(packet.pts, packet.time_base) - origin_ms


class ClockPiece(NamedTuple):
    """From its ``packet`` on (counted from 0) the stream's times are ``offset_ms`` later.

    ``shown_only``: of that packet only, and only the time at which it is shown.
    """

    stream: int
    packet: int
    offset_ms: int
    shown_only: bool = False


class Clock:
    """Moves packets' times by the pieces; every packet of a stream must pass, in order."""

    def __init__(self, pieces: Iterable[tuple[int, int, int, bool]]) -> None:
        """``pieces`` are ClockPieces, or their plain values."""
        self._due: dict[int, deque[ClockPiece]] = {}
        for piece in sorted(ClockPiece(*values) for values in pieces):
            self._due.setdefault(piece.stream, deque()).append(piece)
        self._passed = dict.fromkeys(self._due, 0)
        self._offsets_ms = dict.fromkeys(self._due, 0)

    def apply(self, stream: int, packet: Packet[Any]) -> None:
        """Move the times of the stream's next packet."""
        if stream not in self._due or not packet.size:
            return
        due, number, extra_ms = self._due[stream], self._passed[stream], 0
        self._passed[stream] += 1
        while due and due[0].packet == number:
            piece = due.popleft()
            if piece.shown_only:
                extra_ms = piece.offset_ms
            else:
                self._offsets_ms[stream] = piece.offset_ms
        offset_ms, tick_ms = self._offsets_ms[stream], 1000 * packet.time_base
        if packet.pts is not None:
            packet.pts += round((offset_ms + extra_ms) / tick_ms)
        if packet.dts is not None:
            packet.dts += round(offset_ms / tick_ms)


_BLOCK_BYTES = 256 << 10
MOST_FETCHED_BYTES = 16 * _BLOCK_BYTES
"""At once, where a file is read from one place on; each fetch is a request to the bucket."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """The event: these bytes are needed, from ``first`` up to, not including, ``end``."""

    first: int
    end: int


class RangedFile(io.RawIOBase):
    """The file at ``path``; ``emit`` sends a Fetch and waits until the bytes are there."""

    def __init__(self, path: Path, emit: Callable[[object], None]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._descriptor).st_size
        self._emit = emit
        self._at = 0
        self._fetched: set[int] = set()
        self._run_blocks = 1

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        for block in range(self._at // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            if block not in self._fetched:
                self._fetch(block)
        data = os.pread(self._descriptor, max(0, end - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, block: int) -> None:
        longer = min(MOST_FETCHED_BYTES // _BLOCK_BYTES, self._run_blocks * 2)
        self._run_blocks = longer if block - 1 in self._fetched else 1
        run = range(block, block + self._run_blocks)
        end = min(run.stop * _BLOCK_BYTES, self._size)
        self._emit(Fetch(block * _BLOCK_BYTES, end))
        self._fetched |= {*run}

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


EXIF_ORIENTATIONS = {
    1: Orientation(0),
    2: Orientation(0, mirrored=True),
    3: Orientation(180),
    4: Orientation(180, mirrored=True),
    5: Orientation(270, mirrored=True),
    6: Orientation(90),
    7: Orientation(90, mirrored=True),
    8: Orientation(270),
}
"""By the value of the tag Orientation (Exif 2.32, 4.6.4)."""


@dataclass(slots=True)
class Turning:
    """How the pictures of a stream stand, frame after frame as they are decoded.

    Of H.264 and HEVC a picture may state it for those that follow, until a key frame that states
    nothing (ITU-T H.264, D.2.27; repetition period 1).
    """

    now: Orientation = field(default_factory=Orientation)

    def of(self, frame: VideoFrame) -> Orientation:
        """Take the next frame; as it is to be shown."""
        stated = _stated(frame)
        if stated is not None or frame.key_frame:
            self.now = stated or Orientation()
        return self.now


def orientation_of(frame: VideoFrame) -> Orientation:
    """Return what a decoded frame's display matrix states, to a quarter turn."""
    return _stated(frame) or Orientation()


def _stated(frame: VideoFrame) -> Orientation | None:
    """Return None where the frame has no matrix. The matrix (ISO 14496-12, 8.3.2) takes (x, y),
    downwards, to (a x + c y, b x + d y). PyAV 18 lists no side data of frames that have some of a
    kind that it does not know, which those with EXIF do: of these only the turn is known."""
    try:
        # ``frame.side_data`` keeps what it lists, which keeps the frame: no frame would be freed
        # before Python looks for cycles, and by then there are hundreds.
        listed: Any = SideDataContainer(frame)  # type: ignore[call-arg]  # Its stub lacks it.
        found = [bytes(data) for data in listed if data.type.name == "DISPLAYMATRIX"]
    except ValueError:
        return Orientation(round(-frame.rotation / 90) * 90 % 360)
    if not found:
        return None
    a, b, _, c, d = struct.unpack("5i", found[0][:20])
    mirrored = a * d - b * c < 0
    sign = -1 if mirrored else 1
    degrees = math.degrees(math.atan2(sign * b, sign * a))
    return Orientation(round(degrees / 90) * 90 % 360, mirrored)


CONTAINERS = (
    "mov", "matroska", "avi", "mxf", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "live_flv",
    "ogg", "dv", "gif", "apng", "rm", "nut", "ivf", "yuv4mpegpipe", "gxf", "wtv",
    "wav", "w64", "mp3", "aac", "loas", "flac", "aiff", "caf", "au", "ac3", "eac3", "dts",
    "dtshd", "truehd", "amr", "amrnb", "amrwb", "ape", "wv", "tta", "tak", "mpc", "mpc8",
    "voc", "xwma",
)  # fmt: skip
"""Demuxers that may run, by FFmpeg's names: those that read one file of pictures and
sound. Playlists (hls, dash, concat, imf), devices, image sequences, scripts and
synthetic sources (lavfi) are not among them: they read other files or none."""

OPEN_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
"""Options of FFmpeg with which every file is opened, also one that was found to be media."""

CARRIED_CODECS = frozenset(
    {
        "h264", "hevc", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4", "mjpeg",
        "ffv1", "prores", "theora",
    }
)  # fmt: skip
"""Codecs with a Matroska mapping of their own, which keeps presentation times. Others go in
by their AVI name, with decoding times only."""

_MOST_LOOKED_FOR = 1_000_000
"""How often FFmpeg is called again where it finds no packets; every time it reads on."""
PACKETS_PER_REPORT = 2_000
"""How many packets lie between two reports of progress."""

_H264_IDR, _H264_PICTURE_DATA = 5, range(1, 6)
"""Types of H.264 units (ITU-T H.264, 7.3.1)."""


class NotMediaError(MediaRefusedError):
    """Nothing in the file can be read as pictures or sound."""


class NoVideoStreamError(ValueError):
    """The file holds no video stream to decode."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or several of a kind joined with ``cat``, read on one timeline.

    ``pieces`` are ClockPieces; ``joined_at`` is where further files begin, in bytes, and
    ``begins_at`` where the first does.
    """

    path: Path
    pieces: Sequence[tuple[int, int, int, bool]] = ()
    joined_at: Sequence[int] = ()
    begins_at: int = 0

    @property
    def repairs(self) -> bool:
        """Whether the times in it are not those of its content."""
        return bool(self.pieces or self.joined_at or self.begins_at)

    @property
    def files(self) -> int:
        return 1 + len(self.joined_at)

    def open(self, file: int = 0) -> InputContainer:
        """Return the first of the files, or another. Raises MediaRefusedError as ``open_media``."""
        if not self.joined_at and not self.begins_at:
            return open_media(self.path)
        starts = [self.begins_at, *self.joined_at, 0]
        span = f"subfile,,start,{starts[file]},end,{starts[file + 1]},,:{self.path}"
        return _opened(span, OPEN_OPTIONS | {"protocol_whitelist": "file,subfile"})


@dataclass(slots=True)
class Reading:
    """How it went to read a file's packets; filled in on the way."""

    file: int = 0
    """Which of several joined files."""
    unreadable_files: int = 0
    reached_bytes: int = 0
    """Where in the file the farthest packet ends. Demuxers that lose their way in damaged
    data report that the file has ended."""


def open_media(source: Path | RangedFile) -> InputContainer:
    """Open a file by what it holds, whatever it is called. Raises MediaRefusedError if it is no
    media file, or of a kind that is not read."""
    return _opened(source if isinstance(source, RangedFile) else str(source), OPEN_OPTIONS)


def _opened(source: str | RangedFile, options: dict[str, str]) -> InputContainer:
    try:
        container: InputContainer = av.open(source, options=options, metadata_errors="replace")
    except av.error.ArgumentError:
        raise MediaRefusedError("Files of this format are not accepted.") from None
    except av.error.MemoryError:
        raise
    except av.error.FFmpegError:
        raise NotMediaError("The file is not a media file that can be read.") from None
    return container


def chosen_stream(container: InputContainer, stream_index: int) -> VideoStream:
    """Return the video stream numbered as in the source, else the first one of a cut file. Raises
    NoVideoStreamError where the file has none."""
    streams = container.streams.video
    if not streams:
        raise NoVideoStreamError(container.name)
    return next((stream for stream in streams if stream.index == stream_index), streams[0])


def is_picture_stream(stream: Stream) -> TypeGuard[VideoStream]:
    """Return whether ``stream`` is moving pictures: no cover art, no thumbnails."""
    still = Disposition.attached_pic | Disposition.timed_thumbnails
    return stream.type == "video" and not stream.disposition & still


def is_sound_stream(stream: Stream) -> TypeGuard[AudioStream]:
    """Return whether ``stream`` is sound."""
    return stream.type == "audio"


def codec_name(stream: VideoStream | AudioStream) -> str:
    """Return the codec's own name, not that of the decoder at hand (``av1``, not ``libdav1d``)."""
    return str(stream.codec_context.codec.canonical_name)


OPAQUE = 255
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Decoders of codecs whose alpha channel, a stream beside the other, FFmpeg's own leave out."""


class Decoders(dict[Stream, Any]):
    """The codec context that decodes each stream: its own, or one that reads its alpha channel."""

    def __missing__(self, stream: Stream) -> Any:
        context: Any = stream.codec_context
        # Of a segment's file it is a tag, whose name Matroska has in capitals.
        tags = {name.lower(): value for name, value in stream.metadata.items()}
        if tags.get("alpha_mode") == "1" and context.name in _WITH_ALPHA:
            context = av.CodecContext.create(_WITH_ALPHA[context.name], "r")
            context.thread_count = 1
        self[stream] = context
        return context


def has_alpha(frame: VideoFrame) -> bool:
    """Return whether the frame has an alpha channel, used or not."""
    return any(component.is_alpha for component in frame.format.components)


def is_transparent(frame: VideoFrame) -> bool:
    """Return whether any of the frame is."""
    return has_alpha(frame) and int(frame.to_ndarray(format="rgba")[..., 3].min()) < OPAQUE


def pixel_aspect(stream: VideoStream) -> float:
    """Width over height of a pixel of the last frame, as it states itself; 1 where it does not."""
    return float(stream.codec_context.sample_aspect_ratio or 1)


def packets_of(
    source: Source,
    container: InputContainer,
    streams: Sequence[Stream],
    reading: Reading | None = None,
) -> Iterator[tuple[int, Packet[Any]]]:
    """Yield packets of ``streams``, which are of ``container``, the first of ``source``'s files.

    Each with the number of its stream, in file order, on the one timeline; then an empty one for
    each to flush its decoder. A packet is decoded by its own ``stream``: joined files differ. A
    file that breaks off ends where it can no longer be read.
    """
    reading = reading if reading is not None else Reading()
    clock, first, start = Clock(source.pieces), container, 0
    opened: deque[InputContainer] = deque()
    try:
        for reading.file in range(source.files):
            if reading.file:
                # What is held of the file before may need its container still.
                if len(opened) > 1:
                    opened.popleft().close()
                try:
                    container = source.open(reading.file)
                except MediaRefusedError:
                    reading.unreadable_files += 1
                    continue
                opened.append(container)
                start = source.joined_at[reading.file - 1]
            numbers = _numbers(first, container, {stream.index for stream in streams})
            guessed = {stream.index for stream in container.streams if has_guessed_times(stream)}
            for packet in _readable(container, list(numbers), reading, start):
                index = packet.stream.index
                if index in guessed:
                    packet.pts = packet.dts
                number = numbers[index]
                clock.apply(number, packet)
                yield number, packet
    finally:
        for container in opened:
            container.close()


def demuxed(container: InputContainer, streams: Sequence[Stream]) -> Iterator[Packet[Any]]:
    """Yield packets of ``streams`` in file order, then an empty one for each; raises av's errors.

    A transport stream goes on behind what is none of it, such as zeros: FFmpeg looks for its
    packets in 64 kB, and then has to be called again.
    """
    for _ in range(_MOST_LOOKED_FOR):
        try:
            yield from container.demux(*streams)
        except av.error.BlockingIOError:
            continue
        return


def _numbers(
    first: InputContainer, container: InputContainer, chosen: Collection[int]
) -> dict[int, int]:
    """Return the chosen streams' numbers in the first file, by those in ``container``, made ready.
    The n-th picture, and the n-th sound, of one file goes on in the next."""
    numbers: dict[int, int] = {}
    for fits in (is_picture_stream, is_sound_stream):
        ours = filter(fits, container.streams)
        for stream, other in zip(ours, filter(fits, first.streams), strict=False):
            if other.index in chosen and stream.codec_context is not None:
                numbers[stream.index] = other.index
                stream.codec_context.thread_count = 1
    for stream in container.streams:
        if stream.index not in numbers:
            stream.discard = Discard.all
    return numbers


def _readable(
    container: InputContainer, indices: Sequence[int], reading: Reading, start: int
) -> Iterator[Packet[Any]]:
    """Yield all packets of the streams that can be read; ``start`` is where the file begins, in
    bytes."""
    if not indices:
        return
    packets = demuxed(container, [container.streams[index] for index in indices])
    adts_ticks = -1
    while True:
        try:
            packet = next(packets, None)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            packet = None
        if packet is None:
            return
        if packet.pos is not None and packet.pos >= 0:
            reading.reached_bytes = max(reading.reached_bytes, start + packet.pos + packet.size)
        if container.format.name == "aac" and packet.size >= _ADTS_BYTES:
            # FFmpeg takes all of a raw stream for as fast as its first packet.
            packet.pts = packet.dts = adts_ticks if adts_ticks >= 0 else packet.pts or 0
            packet.duration = _adts_ticks(bytes(packet), packet) or packet.duration or 0
            adts_ticks = packet.pts + packet.duration
        yield packet


_ADTS_BYTES = 7
_ADTS_RATES_HZ = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000,
                  11_025, 8_000, 7_350)  # fmt: skip


def _adts_ticks(data: bytes, packet: Packet[Any]) -> int:
    """Return how long a packet of raw AAC is, by its header (ISO/IEC 14496-3, 1.A.2); 0 without
    one."""
    rate = (data[2] >> 2) & 15
    if data[0] != 0xFF or data[1] & 0xF0 != 0xF0 or rate >= len(_ADTS_RATES_HZ):
        return 0
    samples = 1024 * ((data[6] & 3) + 1)
    return round(samples / _ADTS_RATES_HZ[rate] / packet.time_base)


def has_guessed_times(stream: Stream) -> bool:
    """Return whether the file lacks the times at which pictures are shown, and FFmpeg's guess is
    wrong.

    AVI has no times; pictures are shown one for each that is decoded. FFmpeg takes it that they
    are reordered by one.
    """
    return (
        stream.container.format.name == "avi"
        and is_picture_stream(stream)
        and stream.codec_context is not None
        and codec_name(stream) in ("h264", "hevc")
    )


class ShownOrder:
    """Times of a decoder's pictures where packets have only those of decoding.

    Decoders give pictures in the order in which they are shown, so that each has the earliest
    time of those that have gone in.
    """

    def __init__(self, stream: Stream) -> None:
        self._is_needed = has_guessed_times(stream)
        self._waiting: list[int] = []

    def put_in(self, packet: Packet[Any]) -> None:
        """Note that the packet goes into the decoder; it is shown when it is decoded."""
        if self._is_needed and packet.dts is not None:
            packet.pts = packet.dts
            heapq.heappush(self._waiting, packet.dts)

    def take_out(self, frame: VideoFrame) -> None:
        """Set the time of a picture that came out."""
        while frame.key_frame and self._waiting and self._waiting[0] < (frame.pts or 0):
            heapq.heappop(self._waiting)  # of packets that no picture came of
        if self._waiting:
            frame.pts = heapq.heappop(self._waiting)


def is_clean_key(codec: str, data: bytes, extradata: bytes | None) -> bool:
    """Return whether decoding may start at this packet, which is marked as a key frame.

    H.264 also marks recovery points, which are not complete pictures yet; only an
    IDR picture (ITU-T H.264, table 7-1) is. Key frames of other codecs are complete.
    """
    if codec != "h264":
        return True
    kinds = (header & 0x1F for header in _unit_headers(data, extradata))
    return next((kind for kind in kinds if kind in _H264_PICTURE_DATA), None) == _H264_IDR


def _unit_headers(data: bytes, extradata: bytes | None) -> list[int]:
    """First byte of each unit, from length-prefixed (avcC) or Annex B data."""
    headers = list[int]()
    if extradata and len(extradata) > 4 and extradata[0] == 1:
        length_bytes, position = (extradata[4] & 3) + 1, 0
        while position + length_bytes < len(data):
            length = int.from_bytes(data[position : position + length_bytes], "big")
            headers.append(data[position + length_bytes])
            position += length_bytes + length
        return headers
    position = data.find(b"\0\0\1")
    while 0 <= position < len(data) - 3:
        headers.append(data[position + 3])
        position = data.find(b"\0\0\1", position + 3)
    return headers
