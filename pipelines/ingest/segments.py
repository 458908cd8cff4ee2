"""Video cut into segments at key frames, by stream copy, so that no frame changes or gets lost.

Runs in the confined child process. Segment *i* owns the frames from its key frame's time up to the
next segment's. Decoding only what lies between two key frames in the file is not always enough:

* In an open GOP, packets after a key frame are shown before it and refer to both sides. The earlier
  segment owns those frames, so it gets the packets up to the last of them (post-roll). What comes
  after them refers to neither.
* A key frame may be only a recovery point (H.264 without IDR, intra refresh): the picture is whole
  some frames later, as long as the decoder saw the ones before. Such a segment starts one GOP early
  (pre-roll).

Both are checked bit by bit in the tests, for open GOPs of H.264, HEVC, MPEG-2 and MPEG-4. The
cutter decides over times alone, and holds at most two GOPs in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import av
import av.error
from av.packet import Packet
from av.video.stream import VideoStream

from pipelines.media import files

_Payload = TypeVar("_Payload")

_LONGEST_REORDERING = 64
"""Packets after a key frame among which frames shown before it are looked for where the
decoding times do not end the search (H.264 and HEVC reorder at most 16)."""

_PREROLL_BYTES = 96 << 20
"""A GOP larger than this is not kept; the cut then waits for a key frame that needs none."""


class TimesNotInOrderError(Exception):
    """The video jumps back in time: cut in order of time, frames would get lost."""


@dataclass(frozen=True, slots=True)
class Timed(Generic[_Payload]):
    """A packet as the cutter sees it; times in ms from the media's start."""

    shown_ms: int
    decoded_ms: int | None
    is_key: bool
    is_clean: bool
    """For a key frame: by its type, nothing after it refers to what came before."""
    is_hidden: bool
    """Decoded for others to refer to, never shown (before an edit's start)."""
    size_bytes: int
    payload: _Payload
    is_new: bool = False
    """A key frame with other decoder settings than what came before; a segment begins with it."""


class SegmentWriter(Protocol[_Payload]):
    """Takes one segment's packets in decoding order."""

    def write(self, packet: Timed[_Payload]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """A finished segment."""

    index: int
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _Seam(Generic[_Payload]):
    """A key frame chosen for a cut, while it is open whether frames before it follow."""

    key: Timed[_Payload]
    preroll: list[Timed[_Payload]]
    packets: list[Timed[_Payload]]
    leading: int = 0
    """How many of ``packets`` the earlier segment needs: up to its last frame."""

    def add(self, packet: Timed[_Payload]) -> None:
        self.packets.append(packet)
        if packet.shown_ms < self.key.shown_ms:
            self.leading = len(self.packets)

    def is_passed_by(self, packet: Timed[_Payload]) -> bool:
        if packet.is_key or len(self.packets) > _LONGEST_REORDERING:
            return True
        return packet.decoded_ms is not None and packet.decoded_ms >= self.key.shown_ms


@dataclass(slots=True)
class SegmentCutter(Generic[_Payload]):
    """Deals a video's packets out to segments of at least ``segment_ms``.

    ``end_ms`` is where the video ends as far as is known; no cut leaves less than
    half a segment before it. ``open_writer(index, start_ms)`` starts a segment,
    ``on_cut`` receives each that is complete.
    """

    segment_ms: int
    end_ms: int
    open_writer: Callable[[int, int], SegmentWriter[_Payload]]
    on_cut: Callable[[SegmentCut], None]
    _index: int = 0
    _start_ms: int = 0
    _latest_ms: int = 0
    _writer: SegmentWriter[_Payload] | None = None
    _gop: list[Timed[_Payload]] | None = field(default_factory=list)
    _gop_bytes: int = 0
    _seam: _Seam[_Payload] | None = None

    def add(self, packet: Timed[_Payload]) -> None:
        """Take the next packet in decoding order. Raises TimesNotInOrderError."""
        if self._seam is not None:
            if not self._seam.is_passed_by(packet):
                self._seam.add(packet)
                return
            self._settle(self._seam)
        if self._may_cut_at(packet):
            preroll = [] if packet.is_clean or packet.is_new else self._gop
            self._seam = _Seam(packet, preroll or [], [packet])
        else:
            self._write(packet)

    def finish(self) -> None:
        """Take it that the last packet has come; completes the last segment."""
        if self._seam is not None:
            self._settle(self._seam)
        if self._writer is not None:
            self._complete(max(self.end_ms, self._latest_ms + 1))

    def _may_cut_at(self, packet: Timed[_Payload]) -> bool:
        if packet.is_new and packet.shown_ms > self._latest_ms:
            return True
        return (
            packet.is_key
            and not packet.is_hidden
            and packet.shown_ms - self._start_ms >= self.segment_ms
            and self.end_ms - packet.shown_ms >= self.segment_ms / 2
            and packet.shown_ms > self._latest_ms
            and (packet.is_clean or self._gop is not None)
        )

    def _settle(self, seam: _Seam[_Payload]) -> None:
        """Cut at the seam now that all frames before its key frame are known."""
        self._seam = None
        for packet in seam.packets[: seam.leading]:
            self._write(packet)
        self._complete(seam.key.shown_ms)
        self._index, self._start_ms = self._index + 1, seam.key.shown_ms
        writer = self._opened()
        for packet in seam.preroll:
            writer.write(packet)
        for packet in seam.packets:
            self._write(packet, late=packet.shown_ms < seam.key.shown_ms)

    def _complete(self, end_ms: int) -> None:
        self._opened().close()
        self._writer = None
        self.on_cut(SegmentCut(self._index, self._start_ms, end_ms))

    def _opened(self) -> SegmentWriter[_Payload]:
        if self._writer is None:
            self._writer = self.open_writer(self._index, self._start_ms)
        return self._writer

    def _write(self, packet: Timed[_Payload], *, late: bool = False) -> None:
        """Write to the current segment; ``late``: its frame is the segment's before."""
        if packet.shown_ms < self._start_ms and self._index > 0 and not late:
            raise TimesNotInOrderError(packet.shown_ms)
        if packet.is_hidden and packet.shown_ms >= self._start_ms:
            raise TimesNotInOrderError(packet.shown_ms)
        self._opened().write(packet)
        self._latest_ms = max(self._latest_ms, packet.shown_ms)
        # Keep the GOP so far, for a pre-roll, unless it is too large.
        if packet.is_key:
            self._gop, self._gop_bytes = [], 0
        self._gop_bytes += packet.size_bytes
        if self._gop_bytes > _PREROLL_BYTES:
            self._gop = None
        if self._gop is not None:
            self._gop.append(packet)


@dataclass(frozen=True, slots=True)
class VideoOrder:
    """A video stream to cut, and how."""

    index: int
    segment_ms: int
    end_ms: int
    origin_ms: int
    known: frozenset[str]
    """Names of segments that exist already."""


@dataclass(frozen=True, slots=True)
class VideoPiece:
    """An interval of the video: a file of this name, or of the source itself."""

    index: int
    name: str
    start_ms: int
    end_ms: int


VideoPacket: TypeAlias = "Timed[Packet[Any]]"

_MILLISECOND = Fraction(1, 1000)
_DECODING_LEAD_MS = 1_000
"""Decoding times are moved ahead by this much: rounding to milliseconds makes some equal,
which muxers refuse, and the room lets them be spread. Matroska does not store them."""

_PEEKED_PACKETS = 128


class CannotCarryError(Exception):
    """A file cannot hold this video so that the same frames come out at the same times."""


@dataclass(slots=True)
class FileWriter:
    """One segment file, with times of ``shift_ms`` after those of the packets.

    ``extradata`` are decoder settings, where they are not those of ``template``.
    """

    path: Path
    template: VideoStream
    extradata: bytes | None
    shift_ms: int
    _container: Any = field(init=False)
    _stream: Any = field(init=False)
    _last_ms: int | None = None

    def __post_init__(self) -> None:
        # Bit-exact: the same input gives the same bytes, without a random id.
        options = {"avoid_negative_ts": "disabled", "fflags": "+bitexact"}
        name = "nut" if self.path.suffix == ".nut" else "matroska"
        self._container = av.open(str(self.path), "w", format=name, options=options)
        try:
            self._stream = self._container.add_stream_from_template(self.template, opaque=True)
            if self.extradata is not None:
                self._stream.codec_context.extradata = self.extradata
            if "alpha_mode" in self.template.metadata:
                self._stream.metadata["alpha_mode"] = self.template.metadata["alpha_mode"]
        except (ValueError, av.error.FFmpegError) as error:
            raise CannotCarryError(str(error)) from error

    def write(self, packet: VideoPacket) -> None:
        """Append a packet in decoding order; raises CannotCarryError."""
        shown_ms = packet.shown_ms + self.shift_ms
        known = packet.decoded_ms
        decoded_ms = (shown_ms if known is None else known + self.shift_ms) - _DECODING_LEAD_MS
        if self._last_ms is not None:
            decoded_ms = max(decoded_ms, self._last_ms + 1)
        self._last_ms = decoded_ms
        if shown_ms < 0 or decoded_ms > shown_ms:
            raise CannotCarryError(f"a frame at {shown_ms} ms")
        copy = packet.payload
        copy.stream, copy.time_base = self._stream, _MILLISECOND
        copy.pts, copy.dts, copy.duration = shown_ms, decoded_ms, 0
        try:
            self._container.mux_one(copy)
        except (ValueError, av.error.ArgumentError, av.error.InvalidDataError) as error:
            raise CannotCarryError(str(error)) from error

    def close(self) -> None:
        try:
            self._container.close()
        except (av.error.ArgumentError, av.error.InvalidDataError) as error:
            raise CannotCarryError(str(error)) from error


class NoWriter:
    """Writes nothing: the segment is there already, or is only a range of the source."""

    def write(self, packet: VideoPacket) -> None:
        return

    def close(self) -> None:
        return


@dataclass(slots=True)
class VideoCut:
    """The cutting of one video stream, packet by packet.

    ``emit`` receives each complete segment, a file of ``kind`` (mkv or nut) in ``folder``, or where
    that is None a range of the source. An error ends the cutting and is kept in ``obstacle``; the
    rest of the file can still be read for its audio.
    """

    stream: VideoStream
    order: VideoOrder
    folder: Path | None
    emit: Callable[[object], None]
    shift_ms: int
    kind: str = "mkv"
    obstacle: str | None = None
    segments: list[VideoPiece] = field(default_factory=list)
    _cutter: SegmentCutter[Packet[Any]] = field(init=False)
    _template: VideoStream = field(init=False)
    _extradata: bytes | None = None
    """Where they are not the template's."""
    _is_renewed: bool = False

    def __post_init__(self) -> None:
        self._template = self.stream
        lengths_ms = self.order.segment_ms, self.order.end_ms
        self._cutter = SegmentCutter(*lengths_ms, self._open_writer, self._on_cut)
        is_carried = self.kind == "nut" or files.codec_name(self.stream) in files.CARRIED_CODECS
        if self.folder is not None and (not is_carried or files.has_guessed_times(self.stream)):
            self.obstacle = "container"

    def add(self, packet: Packet[Any]) -> None:
        """Take the next packet of the stream."""
        if packet.size and self.obstacle is None:
            # Note other decoder settings: of a joined file, or within one.
            stream: Any = packet.stream
            if stream is not self._template:
                self._template, self._extradata, self._is_renewed = stream, None, True
            if packet.has_sidedata("new_extradata"):
                changed = bytes(packet.get_sidedata("new_extradata"))
                if changed != (self._extradata or stream.codec_context.extradata):
                    self._extradata, self._is_renewed = changed, True
            # What comes before a key frame cannot be decoded with other settings.
            if packet.is_keyframe or not self._is_renewed:
                self._guarded(lambda: self._cutter.add(self._timed(packet)))
                self._is_renewed = False

    def finish(self) -> None:
        """Complete the last segment."""
        if self.obstacle is None:
            self._guarded(self._cutter.finish)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CannotCarryError:
            self.obstacle = "container"
        except TimesNotInOrderError:
            self.obstacle = "times"

    def _timed(self, packet: Packet[Any]) -> VideoPacket:
        if packet.pts is None:
            raise CannotCarryError("no presentation time")
        origin_ms, base, is_key = self.order.origin_ms, packet.time_base, packet.is_keyframe
        settings = self._extradata or self._template.codec_context.extradata
        dts, codec = packet.dts, files.codec_name(self._template)
        return Timed(
            shown_ms=files.rounded_ms(packet.pts, base) - origin_ms,
            decoded_ms=None if dts is None else files.rounded_ms(dts, base) - origin_ms,
            is_key=is_key,
            is_clean=is_key and files.is_clean_key(codec, bytes(packet), settings),
            is_hidden=packet.is_discard,
            size_bytes=packet.size,
            payload=packet,
            is_new=self._is_renewed,
        )

    def _open_writer(self, index: int, start_ms: int) -> SegmentWriter[Packet[Any]]:
        name = self._name(index, start_ms)
        if self.folder is None or name in self.order.known:
            return NoWriter()
        shift_ms = self.order.origin_ms + self.shift_ms
        return FileWriter(self.folder / name, self._template, self._extradata, shift_ms)

    def _name(self, index: int, start_ms: int) -> str:
        """Return the same input gives the same name."""
        return f"{index:05d}-{start_ms}.{self.kind}"

    def _on_cut(self, cut: SegmentCut) -> None:
        name = self._name(cut.index, cut.start_ms)
        segment = VideoPiece(cut.index, name, cut.start_ms, cut.end_ms)
        self.segments.append(segment)
        if self.folder is not None:
            self.emit({"segment": segment})


def shift_needed_ms(source: files.Source, index: int) -> int:
    """Return how much later times must be in segment files, which have none below zero.

    Found from the first packets: what lies before zero comes at the beginning.
    """
    with source.open() as container:
        stream = container.streams[index]
        packets = itertools.islice(files.packets_of(source, container, [stream]), _PEEKED_PACKETS)
        timed = (packet for _, packet in packets if packet.size and packet.pts is not None)
        times = [files.rounded_ms(packet.pts or 0, packet.time_base) for packet in timed]
    return max(0, -min(times, default=0))
