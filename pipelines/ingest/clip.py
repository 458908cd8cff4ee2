"""A stretch of a file by stream copy, from the key frame before it. Runs in the confined child.

Nothing is encoded: the clip is as good as the source and takes a second. It begins at the last key
frame at or before the start that was asked for, and ends with the last frame before the end;
a frame after that is there too where frames before the end refer to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
from av.container import InputContainer
from av.packet import Packet

from pipelines.media.files import is_picture_stream, is_sound_stream, open_media
from pipelines.media.ranged import RangedFile
from pipelines.media.timestamps import packet_time_ms, rounded_ms
from pipelines.sandbox.child import Emit, MediaRefusedError

_STEPS_BACK_MS = (0, 1_500, 5_000, 30_000, None)
"""How long before the start to look for its key frame; None: from the beginning. Demuxers find
places by decoding times, which differ from those of the pictures."""
_HELD_BYTES = 512 << 20
"""Between a key frame and the start; more is not held in memory."""


@dataclass(frozen=True, slots=True)
class ClipOrder:
    """``[start_ms, end_ms)`` of the file at ``path``, to be written to ``folder / NAME``."""

    path: Path
    is_ranged: bool
    """Bytes are fetched as they are read (``RangedFile``)."""
    folder: Path
    start_ms: int
    """Times count from the media's start."""
    end_ms: int
    origin_ms: int
    """The media's start in the file's own times."""


@dataclass(frozen=True, slots=True)
class CutClip:
    """FFmpeg's name of what was written, and where it truly begins and ends."""

    container: str
    start_ms: int
    end_ms: int


NAME = "clip"


def copy(order: ClipOrder, emit: Emit) -> CutClip:
    """Copy the stretch.

    Raises MediaRefusedError where the codecs cannot be carried, or nothing lies between the times.
    """
    target = order.folder / NAME
    file = RangedFile(order.path, emit) if order.is_ranged else order.path
    with open_media(file) as source:
        is_mp4 = "mp4" in source.format.name
    for container in ("mp4", "matroska") if is_mp4 else ("matroska",):
        try:
            return _copied(order, file, target, container)
        except av.error.MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            target.unlink(missing_ok=True)
    raise MediaRefusedError("No clip can be cut out of a file of this kind without encoding it.")


def _copied(order: ClipOrder, file: Path | RangedFile, target: Path, container: str) -> CutClip:
    if isinstance(file, RangedFile):
        file.seek(0)
    with open_media(file) as source:
        found = _Found.in_file(source, order)
        options = {"movflags": "+faststart"} if container == "mp4" else {}
        with av.open(str(target), "w", format=container, options=options) as output:
            copies = {
                stream.index: output.add_stream_from_template(stream) for stream in found.streams
            }
            bounds: list[int] = []
            for packet in found.packets(source):
                time_ms = packet_time_ms(packet, order.origin_ms)
                bounds += [] if time_ms is None else [time_ms]
                # Shifted by milliseconds, a picture whose time is rounded up would lie before 0.
                ticks = round(found.key_seconds / packet.time_base)
                packet.pts = None if packet.pts is None else packet.pts - ticks
                packet.dts = None if packet.dts is None else packet.dts - ticks
                packet.stream = copies[packet.stream.index]
                output.mux(packet)
    if not bounds:
        raise MediaRefusedError("The file has nothing between these times.")
    return CutClip(container, max(0, found.start_ms), min(order.end_ms, max(bounds) + 1))


@dataclass(slots=True)
class _Found:
    """The streams to copy, and the packets from the key frame on."""

    streams: list[Any]
    order: ClipOrder
    start_ms: int = 0
    key_seconds: Fraction = Fraction(0)
    """The exact time of the first key frame, in the file's own times."""
    _held: list[Packet[Any]] = field(default_factory=list)

    @classmethod
    def in_file(cls, source: InputContainer, order: ClipOrder) -> _Found:
        pictures = [stream for stream in source.streams if is_picture_stream(stream)]
        pictures.sort(key=lambda stream: -stream.codec_context.width * stream.codec_context.height)
        sounds = [stream for stream in source.streams if is_sound_stream(stream)]
        streams = [*pictures[:1], *sounds]
        if not streams or any(stream.codec_context is None for stream in streams):
            raise MediaRefusedError("The file has nothing that could be cut out.")
        return cls(streams, order)

    @property
    def leader(self) -> Any:
        """The stream whose key frames count: the picture, else the first sound."""
        return self.streams[0]

    def packets(self, source: InputContainer) -> Iterator[Packet[Any]]:
        """Packets to write, in the file's order; sets the times of the first before it."""
        for step_ms in _STEPS_BACK_MS:
            rest = self._begin(source, step_ms)
            if rest is not None:
                break
        else:
            return
        held, self._held = self._held, []
        done: set[int] = set()
        later: list[Packet[Any]] = []
        for packet in itertools.chain(held, rest):
            index, time_ms = packet.stream.index, self._time_ms(packet)
            if self._is_past(packet):
                done.add(index)
                if len(done) == len(self.streams):
                    return
            elif time_ms >= self.order.end_ms and index == self.leader.index:
                later.append(packet)
            elif self.start_ms <= time_ms < self.order.end_ms:
                if index == self.leader.index:
                    yield from later
                    later.clear()
                yield packet

    def _begin(self, source: InputContainer, step_ms: int | None) -> Iterator[Packet[Any]] | None:
        """Read up to the first packet after the start; None where no key frame came before it.

        What lies between the key frame and that packet is held.
        """
        self._held = []
        start_ms, origin_ms = self.order.start_ms, self.order.origin_ms
        if step_ms is None:
            source.seek(self.leader.start_time or 0, backward=True, stream=self.leader)
        else:
            at_ms = max(0, start_ms - step_ms) + origin_ms
            ticks = round(at_ms / (1000 * self.leader.time_base))
            source.seek(ticks, backward=True, stream=self.leader)
        packets = (p for p in source.demux(self.streams) if p.size and p.pts is not None)
        key: Packet[Any] | None = None
        size = 0
        for packet in packets:
            leads = packet.stream.index == self.leader.index
            time_ms = self._time_ms(packet)
            if leads and packet.is_keyframe and (key is None or time_ms <= start_ms):
                if time_ms > start_ms and step_ms is not None:
                    return None
                key, size = packet, 0
                # Sound of before the new key frame goes; that beside it may lie before it.
                self._held = [p for p in self._held if p.stream.index != self.leader.index]
            self._held.append(packet)
            size += packet.size
            if size > _HELD_BYTES:
                raise MediaRefusedError("Its key frames lie too far apart to cut a clip out.")
            if leads and key is not None and time_ms > start_ms:
                break
        if key is None:
            return None
        self.start_ms, self.key_seconds = self._time_ms(key), (key.pts or 0) * key.time_base
        return packets

    def _time_ms(self, packet: Packet[Any]) -> int:
        """When the packet is shown, from the media's start; ``_begin`` yields none without."""
        return rounded_ms(packet.pts or 0, packet.time_base) - self.order.origin_ms

    def _is_past(self, packet: Packet[Any]) -> bool:
        """Whether nothing of the packet's stream that follows is shown before the end."""
        if packet.dts is None:
            return self._time_ms(packet) >= self.order.end_ms
        time_ms = rounded_ms(packet.dts, packet.time_base) - self.order.origin_ms
        return time_ms >= self.order.end_ms
