"""Segments as Matroska files. Runs in the confined child process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import av.error
from av.packet import Packet
from av.video.stream import VideoStream

from pipelines.ingest.cut_segments import (
    Cut,
    SegmentCutter,
    SegmentWriter,
    Timed,
    TimesNotInOrderError,
)
from pipelines.media.files import codec_name, open_media, packets_of
from pipelines.media.h264_units import is_clean_key
from pipelines.media.timestamps import rounded_ms

Values = dict[str, Any]
VideoPacket: TypeAlias = "Timed[Packet[Any]]"

_MILLISECOND = Fraction(1, 1000)
_DECODING_LEAD_MS = 1_000
"""Decoding times are moved ahead by this much: rounding to milliseconds makes some equal,
which muxers refuse, and the room lets them be spread. Matroska does not store them."""

_PEEKED_PACKETS = 128


class CannotCarryError(Exception):
    """Matroska cannot hold this video so that the same frames come out at the same times."""


@dataclass(slots=True)
class MatroskaWriter:
    """One segment file, with times of ``shift_ms`` after those of the packets."""

    path: Path
    template: VideoStream
    shift_ms: int
    _container: Any = field(init=False)
    _stream: Any = field(init=False)
    _last_ms: int | None = None

    def __post_init__(self) -> None:
        # Bit-exact: the same input gives the same bytes, without a random id.
        options = {"avoid_negative_ts": "disabled", "fflags": "+bitexact"}
        self._container = av.open(str(self.path), "w", format="matroska", options=options)
        try:
            self._stream = self._container.add_stream_from_template(self.template, opaque=True)
        except (ValueError, av.error.FFmpegError) as error:
            raise CannotCarryError(str(error)) from error

    def write(self, packet: VideoPacket) -> None:
        """Append a packet in decoding order; raises CannotCarryError."""
        shown_ms = packet.shown_ms + self.shift_ms
        decoded_ms = self._decoding_time(packet, shown_ms)
        if shown_ms < 0 or decoded_ms > shown_ms:
            raise CannotCarryError(f"a frame at {shown_ms} ms")
        copy = packet.payload
        copy.stream, copy.time_base = self._stream, _MILLISECOND
        copy.pts, copy.dts, copy.duration = shown_ms, decoded_ms, 0
        try:
            self._container.mux_one(copy)
        except (ValueError, av.error.ArgumentError, av.error.InvalidDataError) as error:
            raise CannotCarryError(str(error)) from error

    def _decoding_time(self, packet: VideoPacket, shown_ms: int) -> int:
        known = packet.decoded_ms
        wanted = (shown_ms if known is None else known + self.shift_ms) - _DECODING_LEAD_MS
        if self._last_ms is not None:
            wanted = max(wanted, self._last_ms + 1)
        self._last_ms = wanted
        return wanted

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

    ``order`` says what is wanted (see ``media_pass``), ``emit`` hears of each
    segment that is ready. Whatever goes wrong ends the cutting and is kept in
    ``obstacle``; the rest of the file can still be read for its sound.
    """

    stream: VideoStream
    order: Values
    folder: Path | None
    emit: Callable[[Values], None]
    shift_ms: int
    obstacle: str | None = None
    segments: list[Values] = field(default_factory=list)
    _cutter: SegmentCutter[Packet[Any]] = field(init=False)
    _codec: str = field(init=False)
    _time_base: Fraction = field(init=False)

    def __post_init__(self) -> None:
        self._time_base = self.stream.time_base or _MILLISECOND
        self._codec = codec_name(self.stream)
        self._cutter = SegmentCutter(
            segment_ms=self.order["segment_ms"],
            end_ms=self.order["end_ms"],
            open_writer=self._open_writer,
            on_cut=self._on_cut,
        )

    def add(self, packet: Packet[Any]) -> None:
        """Take the next packet of the stream."""
        if packet.size and self.obstacle is None:
            self._guarded(lambda: self._cutter.add(self._timed(packet)))

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
        if packet.pts is None or self._changes_extradata(packet):
            raise CannotCarryError("no presentation time, or new decoder settings")
        origin_ms, base = self.order["origin_ms"], self._time_base
        is_key = packet.is_keyframe
        return Timed(
            shown_ms=rounded_ms(packet.pts, base) - origin_ms,
            decoded_ms=None if packet.dts is None else rounded_ms(packet.dts, base) - origin_ms,
            is_key=is_key,
            is_clean=is_key and self._is_clean(packet),
            is_hidden=packet.is_discard,
            size_bytes=packet.size,
            payload=packet,
        )

    def _is_clean(self, packet: Packet[Any]) -> bool:
        return is_clean_key(self._codec, bytes(packet), self.stream.codec_context.extradata)

    def _changes_extradata(self, packet: Packet[Any]) -> bool:
        if self.folder is None or not packet.has_sidedata("new_extradata"):
            return False
        changed = bytes(packet.get_sidedata("new_extradata"))
        return changed != self.stream.codec_context.extradata

    def _open_writer(self, index: int, start_ms: int) -> SegmentWriter[Packet[Any]]:
        name = segment_name(index, start_ms)
        if self.folder is None or name in self.order["known"]:
            return NoWriter()
        file_shift_ms = self.order["origin_ms"] + self.shift_ms
        return MatroskaWriter(self.folder / name, self.stream, file_shift_ms)

    def _on_cut(self, cut: Cut) -> None:
        segment = {
            "index": cut.index,
            "start_ms": cut.start_ms,
            "end_ms": cut.end_ms,
            "name": segment_name(cut.index, cut.start_ms),
        }
        self.segments.append(segment)
        if self.folder is not None:
            self.emit({"segment": segment})


def segment_name(index: int, start_ms: int) -> str:
    """File name of a segment; the same input gives the same name."""
    return f"{index:05d}-{start_ms}.mkv"


def shift_needed_ms(path: Path, stream_index: int) -> int:
    """How much later times must be in segment files, as Matroska has none below zero.

    Found from the first packets: what lies before zero comes at the beginning.
    """
    with open_media(path) as container:
        stream = container.streams[stream_index]
        packets = itertools.islice(packets_of(container, [stream]), _PEEKED_PACKETS)
        timed = (packet for packet in packets if packet.size and packet.pts is not None)
        times = [rounded_ms(packet.pts or 0, packet.time_base) for packet in timed]
    return max(0, -min(times, default=0))
