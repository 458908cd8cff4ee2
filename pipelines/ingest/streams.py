"""The streams of a file, and which of them are analysed. Runs in the confined child process.

The picture is the one that moves, of those the largest; posters and previews that editors store as
streams of their own are left out. FFmpeg lists the streams of all programs of a multiplex side by
side; of one, picture and sound are those of one program. Programs are read from the tables of the
transport stream (ISO/IEC 13818-1, 2.4.4: PAT, PMT; ETSI EN 300 468, 5.2.3: SDT, which has the
names).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream

from pipelines.media import files
from pipelines.media.timeline import Lane, Run
from pipelines.media_types import PipelineWarning, WarningCode
from pipelines.sandbox.child import MediaRefusedError

_Stream = TypeVar("_Stream", bound=Stream)

_HEAD_BYTES = 4 << 10
_READ_BYTES = 8 << 20
"""Tables are repeated several times a second."""
_PACKET_BYTES = (188, 192, 204)
_SYNC = 0x47
_PAT_PID, _SDT_PID = 0x00, 0x11
_PAT, _PMT, _SDT = 0x00, 0x02, 0x42
_SERVICE_DESCRIPTOR = 0x48
_NAME_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the packet ids of its streams, and its name if it has one."""

    number: int
    name: str
    pids: frozenset[int]

    def __str__(self) -> str:
        return f"{self.number} ({self.name})" if self.name else str(self.number)


def programs_of(source: Path | files.RangedFile) -> list[Program]:
    """By number; empty where the file is no transport stream, or has no tables."""
    with nullcontext(source) if isinstance(source, files.RangedFile) else source.open("rb") as file:
        file.seek(0)
        data = file.read(_HEAD_BYTES) or b""
        size, at = _framing(data)
        tables, data, done = _Tables(), data[at:] if size else b"", 0
        while data:
            whole = len(data) // size * size
            done += whole
            if any(tables.read(*packet) for packet in _packets(data[:whole], size)):
                break
            more = file.read(128 << 10) if done < _READ_BYTES else b""
            data = data[whole:] + more if more else b""
    return [
        Program(number, tables.names.get(number, ""), frozenset(pids))
        for number, pids in sorted(tables.streams.items())
    ]


def beside(
    programs: Sequence[Program], leader: Stream, streams: Sequence[_Stream]
) -> list[_Stream]:
    """Return those of ``streams`` that are of the program of ``leader``; all where there is but
    one."""
    own = next((program for program in programs if leader.id in program.pids), None)
    if own is None or len(programs) < 2:
        return list(streams)
    return [stream for stream in streams if stream.id in own.pids]


def _packets(data: bytes, size: int) -> Iterator[tuple[int, bool, bytes]]:
    """Packet id, whether a section begins in it, and payload of each packet of ``size`` bytes."""
    at = 0
    while at + 188 <= len(data):
        if data[at] == _SYNC:
            flags, control = data[at + 1], data[at + 3] >> 4 & 3
            start = at + 4 + (1 + data[at + 4] if control & 2 else 0)
            if control & 1:
                pid = (flags & 0x1F) << 8 | data[at + 2]
                yield pid, bool(flags & 0x40), data[start : at + 188]
        at += size


def _framing(data: bytes) -> tuple[int, int]:
    """Length of packets with what lies between them, and where the first begins; 0 if none."""
    for at in range(min(len(data), 4 * max(_PACKET_BYTES))):
        for size in _PACKET_BYTES:
            if len(data) > at + 4 * size and set(data[at : at + 4 * size + 1 : size]) == {_SYNC}:
                return size, at
    return 0, 0


@dataclass(slots=True)
class _Tables:
    """What was read of the tables so far."""

    streams: dict[int, set[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _map_pids: dict[int, int] = field(default_factory=dict)
    _sections: dict[int, bytes] = field(default_factory=dict)

    def read(self, pid: int, begins: bool, payload: bytes) -> bool:
        """Take a packet; whether all is known, names too."""
        if pid not in (_PAT_PID, _SDT_PID) and pid not in self._map_pids:
            return False
        if begins and payload:
            self._sections[pid] = payload[1 + payload[0] :]
        elif pid in self._sections:
            self._sections[pid] += payload
        section = self._sections.get(pid, b"")
        while len(section) > 3 and section[0] != 0xFF:
            end = 3 + ((section[1] & 0x0F) << 8 | section[2])
            if len(section) < end:
                break
            self._parse(section[: end - 4])
            section = section[end:]
        self._sections[pid] = section
        maps = set(self._map_pids.values())
        return bool(maps) and maps <= self.streams.keys() and maps <= self.names.keys()

    def _parse(self, section: bytes) -> None:
        """A section without its checksum."""
        if section[0] == _PAT:
            for at in range(8, len(section) - 3, 4):
                number = int.from_bytes(section[at : at + 2], "big")
                if number:
                    self._map_pids[_number(section, at + 2, 0x1FFF)] = number
        elif section[0] == _PMT and len(section) > 12:
            number = int.from_bytes(section[3:5], "big")
            found = self.streams.setdefault(number, set())
            at = 12 + _number(section, 10, 0x0FFF)
            while at + 5 <= len(section):
                found.add(_number(section, at + 1, 0x1FFF))
                at += 5 + _number(section, at + 3, 0x0FFF)
        elif section[0] == _SDT:
            at = 11
            while at + 5 <= len(section):
                end = at + 5 + _number(section, at + 3, 0x0FFF)
                name = _service_name(section[at + 5 : end])
                self.names[int.from_bytes(section[at : at + 2], "big")] = name
                at = end


def _number(section: bytes, at: int, mask: int) -> int:
    return int.from_bytes(section[at : at + 2], "big") & mask


def _service_name(descriptors: bytes) -> str:
    at = 0
    while at + 4 <= len(descriptors):
        tag, length = descriptors[at], descriptors[at + 1]
        if tag == _SERVICE_DESCRIPTOR:
            provider = descriptors[at + 3]
            name = descriptors[at + 5 + provider : at + 2 + length]
            is_utf8, latin = name[:1] == b"\x15", name.decode("latin-1")
            text = name[1:].decode("utf-8", "replace") if is_utf8 else latin
            return "".join(filter(str.isprintable, text)).strip()[:_NAME_LENGTH]
        at += 2 + length
    return ""


_DECODE_ATTEMPTS = 400
"""Packets tried, since the last key frame, before a stream counts as undecodable."""
_STILL_PACKETS = 2
_STILL_SHARE = 0.1
"""A picture with so few packets, or so few beside another's, stands still."""
_SHORTEST_PICTURE = Fraction(1, 120)
_LONGEST_SOUND = 10
"""Seconds of a packet of sound; some encoders end with one of years."""
_KEY_FRAMES_TRIED = 20
"""A stream of which none of so many key frames can be decoded is tried no more."""

_SLOWEST_READ_BYTES_PER_SECOND = 10 << 20
"""A file is given the time to be read at this speed, beside a fixed allowance."""


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """The most that a file may have, and that reading it may take."""

    max_duration_seconds: int = 86_400
    max_width: int = 8_192
    max_height: int = 8_192
    max_streams: int = 32
    memory_bytes: int = 4 << 30
    """Address space of the process that reads the file."""
    seconds: float = 120.0
    """Processor and wall time for a small file; large ones get more by their size. A day of
    tiny packets takes most of it."""

    def seconds_for(self, size_bytes: int) -> float:
        """Time to read a file of this size."""
        return self.seconds + size_bytes / _SLOWEST_READ_BYTES_PER_SECOND


@dataclass(slots=True)
class Tally:
    """What the packets of one stream hold. Times in seconds of the timeline, once it is known."""

    stream: VideoStream | AudioStream
    lane: Lane
    packets: int = 0
    keyframes: int = 0
    frame: Any = None
    """The first that could be decoded."""
    frame_aspect: float = 1.0
    """Of its pixels, by the decoder."""
    _attempts: int = 0
    _decoders: files.Decoders = field(default_factory=files.Decoders)

    @property
    def is_picture(self) -> bool:
        return self.stream.type == "video"

    def add(self, packet: Packet[Any], file: int, order: int) -> None:
        """Count a packet, and decode it while no frame has come yet."""
        if packet.size:
            self.lane.add(packet, packet.stream.time_base, file, order)
            if not packet.is_discard:
                self.packets += 1
                self.keyframes += packet.is_keyframe
        if self.frame is None:
            self._try_decoding(packet)

    def _try_decoding(self, packet: Packet[Any]) -> None:
        # Recorders join streams between key frames, which may be seconds apart.
        is_next_key = self.is_picture and packet.is_keyframe
        may_begin = is_next_key and self.keyframes <= _KEY_FRAMES_TRIED
        self._attempts = 0 if may_begin else self._attempts + 1
        if self._attempts >= _DECODE_ATTEMPTS:
            return
        try:
            frames = self._decoders[packet.stream].decode(packet)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            return
        self.frame = next(iter(frames), None)
        if self.frame is not None and self.is_picture:
            self.frame_aspect = files.pixel_aspect(packet.stream)

    @property
    def start(self) -> Fraction:
        """When the first frame is shown; references before it that are not shown do not count."""
        shown = None if self.frame is None else self.frame.pts
        if shown is None:
            return self.first
        within = (run for run in self.lane.runs if run.first <= shown <= run.last)
        run = next(within, self.lane.runs[0] if self.lane.runs else None)
        return shown * self.stream.time_base if run is None else run.seconds(shown)

    @property
    def first(self) -> Fraction:
        return min((run.seconds(run.first) for run in self.lane.runs), default=Fraction(0))

    @property
    def last(self) -> Fraction:
        return max((run.seconds(run.last) for run in self.lane.runs), default=Fraction(0))

    @property
    def losses(self) -> list[tuple[Fraction, Fraction]]:
        """From when to when packets are missing; where the clock leaps nobody knows how many."""
        return [
            (before.seconds(end), run.seconds(first))
            for before, end, run, first in self.lane.losses
            if before.offset_us == run.offset_us and not before.is_stray and not run.is_stray
        ]

    @property
    def interval(self) -> Fraction:
        """Mean time between packets."""
        return (self.last - self.first) / (self.packets - 1) if self.packets > 1 else Fraction(0)

    @property
    def stop(self) -> Fraction:
        """When the last frame ends; by the mean interval where its length is not given.

        Muxers take the length of video frames from decoding times, which can be next to nothing.
        Recorders of screens write frames only where something changes: there the mean is no guide.
        """
        if not self.lane.runs:
            return self.start
        run = max(self.lane.runs, key=lambda run: run.seconds(run.last))
        duration = (run.end - run.last) * run.time_base
        least = min(self.interval / 2, _SHORTEST_PICTURE) if self.is_picture else 0
        if duration <= least or (duration > _LONGEST_SOUND and not self.is_picture):
            duration = round(self.interval / run.time_base) * run.time_base
        return run.seconds(run.last) + duration


def candidates(
    container: InputContainer, limits: ProbeLimits
) -> tuple[list[Tally], list[PipelineWarning]]:
    """Return the streams of picture and sound; attachments, subtitles and data do not count."""
    streams: list[Any] = [
        stream
        for stream in container.streams
        if files.is_picture_stream(stream) or files.is_sound_stream(stream)
    ]
    most = limits.max_streams
    if len(streams) > most:
        message = f"The file has {len(streams)} streams; the limit is {most} of picture and sound."
        raise MediaRefusedError(message)
    tallies: list[Tally] = []
    warnings: list[PipelineWarning] = []
    places: dict[int, tuple[Run, int]] = {}
    for stream in streams:
        context = stream.codec_context
        if context is None or stream.time_base is None:
            warnings.append(_ignored(stream.index, "its codec is not known"))
            continue
        is_picture = stream.type == "video"
        widest, highest = limits.max_width, limits.max_height
        if is_picture and (context.width > widest or context.height > highest):
            size = f"{context.width} x {context.height}"
            message = f"The pictures are {size}; the limit is {widest} x {highest}."
            raise MediaRefusedError(message)
        is_transport = container.format.name == "mpegts"
        lane = Lane(stream.index, is_picture, len(streams) == 1, places, is_transport=is_transport)
        tallies.append(Tally(stream, lane))
    return tallies, warnings


def _ignored(index: int, why: str) -> PipelineWarning:
    return PipelineWarning(WarningCode.STREAM_IGNORED, f"Stream {index} was ignored: {why}.")


def chosen(
    tallies: list[Tally], warnings: list[PipelineWarning], path: Path
) -> tuple[Tally | None, list[Tally]]:
    """Return the picture that moves, and the sounds that go with it; of the others there are
    warnings.

    Of a multiplex of several programs: those of the one with that picture, or the first sound.
    """
    pictures = [tally for tally in tallies if tally.is_picture and tally.frame is not None]
    # Posters and previews are stored as streams too: the largest of those that move.
    moving = [tally for tally in pictures if not _stands_still(tally, pictures)]
    video = max(moving, key=lambda tally: tally.frame.width * tally.frame.height, default=None)
    leader = video or next((tally for tally in tallies if tally.frame is not None), None)
    ids = {tally.stream.id for tally in tallies}
    programs = [each for each in programs_of(path) if each.pids & ids] if len(ids) > 1 else []
    own = next((each for each in programs if leader and leader.stream.id in each.pids), None)
    if own is not None and len(programs) > 1:
        names = ", ".join(map(str, programs))
        message = f"The file holds {len(programs)} programs: {names}. {own} was analysed."
        warnings.append(PipelineWarning(WarningCode.PROGRAM_CHOSEN, message))
        tallies = [tally for tally in tallies if tally.stream.id in own.pids]
    for tally in tallies:
        if tally.frame is None:
            warnings.append(_ignored(tally.stream.index, "nothing of it can be decoded"))
        elif tally.is_picture and tally is not video:
            stands = "it stands still beside the one that moves"
            why = stands if _stands_still(tally, pictures) else "another picture was analysed"
            warnings.append(_ignored(tally.stream.index, why))
    return video, [tally for tally in tallies if not tally.is_picture and tally.frame is not None]


def _stands_still(tally: Tally, pictures: list[Tally]) -> bool:
    most = max(each.packets for each in pictures)
    return tally.packets < most * _STILL_SHARE or tally.packets <= _STILL_PACKETS < most
