"""The programs of a transport stream, read without a demuxer. Runs in the confined child too.

Tables as in ISO/IEC 13818-1 (2.4.4: PAT, PMT) and ETSI EN 300 468 (5.2.3: SDT, which has the
names). FFmpeg lists the streams of all programs of a multiplex side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from av.stream import Stream

from pipelines.media.ranged import RangedFile

_Stream = TypeVar("_Stream", bound=Stream)

_HEAD_BYTES = 4 << 10
_STEP_BYTES = 128 << 10
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


def programs_of(source: Path | RangedFile) -> list[Program]:
    """By number; empty where the file is no transport stream, or has no tables."""
    with nullcontext(source) if isinstance(source, RangedFile) else source.open("rb") as file:
        file.seek(0)
        data = file.read(_HEAD_BYTES) or b""
        size, at = _framing(data)
        tables, data, done = _Tables(), data[at:] if size else b"", 0
        while data:
            whole = len(data) // size * size
            done += whole
            if any(tables.read(*packet) for packet in _packets(data[:whole], size)):
                break
            more = file.read(_STEP_BYTES) if done < _READ_BYTES else b""
            data = data[whole:] + more if more else b""
    return [
        Program(number, tables.names.get(number, ""), frozenset(pids))
        for number, pids in sorted(tables.streams.items())
    ]


def beside(
    programs: Sequence[Program], leader: Stream, streams: Sequence[_Stream]
) -> list[_Stream]:
    """Those of ``streams`` that are of the program of ``leader``; all where there is but one."""
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
            text = (
                name[1:].decode("utf-8", "replace")
                if name[:1] == b"\x15"
                else name.decode("latin-1")
            )
            return "".join(filter(str.isprintable, text)).strip()[:_NAME_LENGTH]
        at += 2 + length
    return ""
