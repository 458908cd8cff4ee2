"""What a recorder wrote into a WAV file besides sound: bext and iXML. Runs in the confined child.

FFmpeg reads neither the channels' names nor the timecode rate. Chunks as in EBU
Tech 3285 (BWF, ``bext``), EBU Tech 3306 (RF64, ``ds64``) and the iXML
specification 2.10.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree as ET

Values = dict[str, Any]

_FORMS = (b"RIFF", b"RF64", b"BW64")
_MOST_CHUNKS = 1_000
_LARGEST_BYTES = 1 << 20
_SIZE_ELSEWHERE = 0xFFFFFFFF
_TEXT_LENGTH = 100
_DESCRIPTION_BYTES = 256
_TIME_REFERENCE_AT = 338
_TRACK_LINE = re.compile(r"^[a-zA-Z]?TRK(\d{1,2})=(.+)$", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def wav_labels(path: Path) -> Values:
    """The fields of ``SoundLabels``; empty for a file without them."""
    labels: Values = {}
    with path.open("rb") as file:
        for name, data in _chunks(file):
            if name == b"fmt " and len(data) >= 8:
                labels["sample_rate_hz"] = struct.unpack_from("<I", data, 4)[0]
            elif name == b"bext":
                # What iXML says is exact; the description is only a habit of some recorders.
                labels = _from_bext(data) | labels
            elif name == b"iXML":
                labels |= _from_ixml(data)
    return labels


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of each chunk that is looked at, in the file's order."""
    if file.read(4) not in _FORMS or len(file.read(4)) < 4 or file.read(4) != b"WAVE":
        return
    file_bytes = os.fstat(file.fileno()).st_size
    data_bytes: int | None = None
    for _ in range(_MOST_CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            return
        name, size = struct.unpack("<4sI", header)
        if name == b"data" and size == _SIZE_ELSEWHERE and data_bytes is not None:
            size = data_bytes
        start = file.tell()
        if name in (b"fmt ", b"bext", b"iXML", b"ds64") and size <= _LARGEST_BYTES:
            content = file.read(size)
            if name == b"ds64" and len(content) >= 16:
                data_bytes = struct.unpack_from("<Q", content, 8)[0]
            yield name, content
        after = start + size + size % 2
        if after >= file_bytes:  # the size may be any of 64 bits: more than files can have
            return
        file.seek(after)


def _from_bext(data: bytes) -> Values:
    labels: Values = {}
    if len(data) >= _TIME_REFERENCE_AT + 8:
        labels["time_reference"] = struct.unpack_from("<Q", data, _TIME_REFERENCE_AT)[0]
    description = data[:_DESCRIPTION_BYTES].split(b"\0")[0].decode("utf-8", "replace")
    lines = _TRACK_LINE.findall(description.replace("\r", "\n"))
    names = [[int(number) - 1, _text(name)] for number, name in lines if int(number) > 0]
    if names:
        labels["channel_names"] = names
    return labels


def _from_ixml(data: bytes) -> Values:
    try:
        root = ET.fromstring(data.strip(b"\0 \r\n\t"))  # noqa: S314 - confined, bounded
    except (ET.ParseError, LookupError, ValueError):
        # The latter two: it names an encoding that Python, or its XML parser, does not know.
        return {}
    labels: Values = {}
    rate = _text(root.findtext("SPEED/TIMECODE_RATE"))
    if rate:
        labels["timecode_rate"] = rate
        labels["drop_frame"] = _text(root.findtext("SPEED/TIMECODE_FLAG")).upper() == "DF"
    samples = _since_midnight(root)
    if samples is not None:
        labels["time_reference"] = samples
    clock_hz = _number(root.findtext("SPEED/TIMESTAMP_SAMPLE_RATE"))
    if clock_hz:
        labels["sample_rate_hz"] = clock_hz
    names = list(_channel_names(root))
    return labels | ({"channel_names": names} if names else {})


def _since_midnight(root: ET.Element) -> int | None:
    high = _number(root.findtext("SPEED/TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI"))
    low = _number(root.findtext("SPEED/TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO"))
    return None if low is None else ((high or 0) << 32) + low


def _channel_names(root: ET.Element) -> Iterator[list[Any]]:
    for position, track in enumerate(root.iterfind("TRACK_LIST/TRACK"), start=1):
        number = _number(track.findtext("INTERLEAVE_INDEX"))
        number = number or _number(track.findtext("CHANNEL_INDEX")) or position
        name = _text(track.findtext("NAME"))
        if name:
            yield [number - 1, name]


def _text(value: str | None) -> str:
    return _CONTROL.sub(" ", value or "").strip()[:_TEXT_LENGTH]


def _number(value: str | None) -> int | None:
    text = (value or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def labels(arguments: dict[str, Any], _: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """``wav_labels`` as a task of the confined child: ``{path}``."""
    return wav_labels(Path(arguments["path"]))
