"""Cutting a video at key frames, by stream copy, so that no frame changes or gets lost.

Segment *i* owns the frames from its key frame's time up to the next segment's.
Decoding only what lies between two key frames in the file is not always enough:

* In an open GOP, packets after a key frame are shown before it and refer to both
  sides. The earlier segment owns those frames, so it is given the packets up to
  the last of them (post-roll). What comes after them refers to neither.
* A key frame may be only a recovery point (H.264 without IDR, intra refresh): the
  picture is whole some frames later, as long as the decoder saw the ones before.
  Such a segment starts one GOP early (pre-roll).

Both are checked bit by bit in the tests, for open GOPs of H.264, HEVC, MPEG-2 and
MPEG-4. The core decides over times alone, and holds at most two GOPs in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

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
    """For a key frame: nothing after it refers to what came before, so far as its type says."""
    is_hidden: bool
    """Decoded for others to refer to, never shown (before an edit's start)."""
    size_bytes: int
    payload: _Payload


class SegmentWriter(Protocol[_Payload]):
    """Takes one segment's packets in decoding order."""

    def write(self, packet: Timed[_Payload]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Cut:
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
    ``on_cut`` hears of each that is complete.
    """

    segment_ms: int
    end_ms: int
    open_writer: Callable[[int, int], SegmentWriter[_Payload]]
    on_cut: Callable[[Cut], None]
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
            preroll = [] if packet.is_clean else self._gop
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
        self.on_cut(Cut(self._index, self._start_ms, end_ms))

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
        self._remember(packet)

    def _remember(self, packet: Timed[_Payload]) -> None:
        """Keep the GOP so far, for a pre-roll, unless it is too large."""
        if packet.is_key:
            self._gop, self._gop_bytes = [], 0
        self._gop_bytes += packet.size_bytes
        if self._gop_bytes > _PREROLL_BYTES:
            self._gop = None
        if self._gop is not None:
            self._gop.append(packet)
