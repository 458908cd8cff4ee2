"""Headers of media files, read without a demuxer: kind, size in bytes, camera RAW family, WAV
labels, and where further files begin in files joined with ``cat``.

Runs in the confined child process too; standard library only.

Kind: still pictures are refused whatever theirs, for they have no length; those that move are
videos. Web pages come from links that show a file instead of sending it. Recorders that were cut
off, and downloads that were mended, put anything before the first frame of an MP3.

Declared size: a file whose end is missing reads like one that simply ends, as demuxers stop without
an error. But most containers store how many bytes follow. A duration in a header proves nothing:
recorders and tools that join files leave wrong ones behind.

WAV labels: FFmpeg reads neither the channels' names nor the timecode rate. Chunks as in EBU Tech
3285 (BWF, ``bext``), EBU Tech 3306 (RF64, ``ds64``) and the iXML specification 2.10.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.markup import MarkupError, elements, is_web_page, page_refusal

_MOST_BOXES = 1_000_000
_UNKNOWN_32 = 0xFFFFFFFF
_UNKNOWN_RIFF = {0, _UNKNOWN_32, 0x7FFFFFFF, 0x80000023, 0x7FFFF024, 2_000_000_036}
"""Sizes that are written ahead of a stream whose length is not known yet (FFmpeg, SoX, services
that synthesise speech)."""
_EBML_SEGMENT = bytes.fromhex("18538067")
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_MXF_HEADER_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
_HEAD_BYTES = 64 << 10


def declared_bytes(path: Path) -> int | None:
    """Return the file's length in bytes by its container; None where the container has none."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        rule = next((rule for fits, rule in _RULES if fits(head)), None)
        return None if rule is None else rule(head, file)


def is_cut_in_a_box(path: Path) -> bool:
    """Return whether a box with media at the end of an ISO file reaches past the file's end.

    Such a file breaks off, however little is missing: of a fragmented recording that was cut off
    only the last fragment is short.
    """
    with path.open("rb") as file:
        if not _is_iso(file.read(_HEAD_BYTES)):
            return False
        kind, end = _last_box(file) or (b"", 0)
        return kind in (b"mdat", b"moof", b"moov") and end > path.stat().st_size


def timecode_rate(path: Path) -> str | None:
    """Return the frames a second that a QuickTime file's timecode track counts; None without one.

    They need not be the picture's: 30 drop frame beside 59.94p, 29.97 drop frame beside 30p. Of the
    sample description (QuickTime File Format Specification, "Timecode Sample Description").
    """
    with path.open("rb") as file:
        if not _is_iso(file.read(_HEAD_BYTES)):
            return None
        end = file.seek(0, io.SEEK_END)
        for track in _children(file, 0, end, b"moov", b"trak"):
            for first, last in _children(file, *track, b"mdia", b"minf", b"stbl", b"stsd"):
                file.seek(first)
                entry = file.read(min(last - first, 44))
                # Version and count, the entry's size and type, six reserved bytes, an index; then
                # reserved bytes, flags, time scale and the duration of a frame.
                if len(entry) >= 40 and entry[12:16] == b"tmcd":
                    scale, frame = struct.unpack_from(">II", entry, 32)
                    return f"{scale}/{frame}" if scale and frame else None
    return None


def _children(file: BinaryIO, first: int, end: int, *path: bytes) -> list[tuple[int, int]]:
    """Return where the contents of the boxes at a path of types are."""
    kind, *others = path
    found, at = list[tuple[int, int]](), first
    for _count in range(10_000):
        box = _box_at(file, at, end)
        if box is None:
            break
        if box[0] == kind:
            found.append((box[1], min(box[2], end)))
        at = box[2]
    if not others:
        return found
    return [each for place in found for each in _children(file, *place, *others)]


def _box_at(file: BinaryIO, at: int, end: int) -> tuple[bytes, int, int] | None:
    """Return the type of the box at ``at``, and where its contents begin and end; None where there
    is no box (ISO 14496-12, 4.2). One without a size of its own goes on to ``end``."""
    if at + 8 > end:
        return None
    file.seek(at)
    header = file.read(16)
    size, head = int.from_bytes(header[:4], "big"), 8
    if size == 1 and len(header) == 16:
        size, head = int.from_bytes(header[8:], "big"), 16
    size = size or end - at
    return None if size < head else (header[4:8], at + head, at + size)


def _riff(head: bytes, _: BinaryIO) -> int | None:
    (size,) = struct.unpack_from("<I", head, 4)
    if head[:4] == b"RIFF":
        return None if size in _UNKNOWN_RIFF else size + 8
    at = head.find(b"ds64")
    if at < 0 or at + 16 > len(head):
        return None
    return int(struct.unpack_from("<Q", head, at + 8)[0]) + 8


def _form(head: bytes, _: BinaryIO) -> int | None:
    (size,) = struct.unpack_from(">I", head, 4)
    return None if size in (0, _UNKNOWN_32) else int(size) + 8


def _matroska(head: bytes, _: BinaryIO) -> int | None:
    at = head.find(_EBML_SEGMENT)
    if at < 0 or at + 12 > len(head):
        return None
    first = head[at + 4]
    length = 9 - first.bit_length()
    if length > 8:
        return None
    field = int.from_bytes(head[at + 4 : at + 4 + length], "big")
    size = field & ((1 << 7 * length) - 1)
    unknown = size == (1 << 7 * length) - 1
    return None if unknown else at + 4 + length + size


def _is_iso(head: bytes) -> bool:
    return head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


def _last_box(file: BinaryIO) -> tuple[bytes, int] | None:
    """Return the type and the end of the last top-level box; None where one of them is none."""
    length = file.seek(0, io.SEEK_END)
    at, kind = 0, b""
    for _count in range(_MOST_BOXES):
        if at + 8 > length:
            return kind, at
        box = _box_at(file, at, length)
        if box is None:
            return None
        kind, _, at = box
    return None


def _asf(head: bytes, _: BinaryIO) -> int | None:
    at = head.find(_ASF_FILE_PROPERTIES)
    if at < 0 or at + 48 > len(head):
        return None
    return int(struct.unpack_from("<Q", head, at + 40)[0]) or None


def _mxf(head: bytes, _: BinaryIO) -> int | None:
    """Return where the footer begins (SMPTE ST 377-1, 7.1): a whole file is longer than that."""
    at = 17 + (head[16] & 0x7F if head[16] & 0x80 else 0)
    if at + 32 > len(head):
        return None
    (footer,) = struct.unpack_from(">Q", head, at + 24)
    return int(footer) + 1 if footer else None


_Rule = tuple[Callable[[bytes], bool], Callable[[bytes, BinaryIO], int | None]]
_RULES_BY_HEAD: tuple[_Rule, ...] = (
    (lambda head: head[:4] in (b"RIFF", b"RF64") and len(head) >= 12, _riff),
    (lambda head: head[:4] == b"FORM" and len(head) >= 12, _form),
    (lambda head: head[:4] == b"\x1aE\xdf\xa3", _matroska),
)
_RULES: tuple[_Rule, ...] = (
    *_RULES_BY_HEAD,
    (_is_iso, lambda _, file: (_last_box(file) or (b"", None))[1]),
    (lambda head: head[:16] == _ASF_HEADER, _asf),
    (lambda head: head[:13] == _MXF_HEADER_PARTITION and len(head) > 64, _mxf),
)

MOST_JOINED_FILES = 4_000
_LONGEST_TAG_BYTES = 4 << 20
_OGG_BEGINNING = re.compile(rb"OggS\0\x02")
"""A page that begins a stream (RFC 3533, section 6)."""
_BEGINNINGS = {
    b"fLaC": re.compile(rb"fLaC[\x00\x80]\0\0\x22"),
    b"FLV\x01": re.compile(rb"FLV\x01[\0\x01\x04\x05]\0\0\0\x09\0\0\0\0"),
    b"\x1aE\xdf\xa3": re.compile(rb"\x1aE\xdf\xa3.{1,48}\x42\x82.(?:matroska|webm)", re.DOTALL),
    _ASF_HEADER[:4]: re.compile(re.escape(_ASF_HEADER)),
    _MXF_HEADER_PARTITION[:4]: re.compile(re.escape(_MXF_HEADER_PARTITION) + rb"\x02[\1-\4]\0"),
}
"""How files begin whose length is not known: no other data does by chance."""

_MP3_INFO = re.compile(
    rb"\xff[\xe2-\xff][\x10-\xef].(?:\0{9}|\0{17}|\0{32})(?:Xing|Info)", re.DOTALL
)
"""The frame with which encoders begin an MP3 file: without sound, but for a tag."""


def joined_at(path: Path) -> list[int]:
    """Return where further files of the same kind begin in this one, in bytes: demuxers stop there,
    or read on by the headers of the first."""
    found: list[int] = []
    with path.open("rb") as file:
        at: int | None = 0
        while len(found) < MOST_JOINED_FILES and (at := _next_file(file, at or 0)) is not None:
            found.append(at)
    return found


def _next_file(file: BinaryIO, at: int) -> int | None:
    file.seek(at)
    head = file.read(_HEAD_BYTES)
    if head[:4] == b"OggS":
        return _found(_OGG_BEGINNING, file, _past_ogg_beginnings(file, at))
    if head[4:8] == b"ftyp":
        return _next_movie(file, at)
    sized = next((rule for fits, rule in _RULES_BY_HEAD if fits(head)), None)
    size = None if sized is None else sized(head, file)
    if size is not None:
        return _same_form_at(file, at + size, head)
    if head[:3] == b"ID3" or re.match(rb"\xff[\xe2-\xff]", head):
        own_at = _found(_MP3_INFO, file, at)
        info_at = None if own_at is None else _found(_MP3_INFO, file, own_at + 4)
        return None if info_at is None else _before_tag(file, info_at)
    pattern = _BEGINNINGS.get(head[:4])
    return None if pattern is None else _found(pattern, file, at + 4)


def _before_tag(file: BinaryIO, at: int) -> int:
    """Return where the ID3v2 tag begins that ends there; ``at`` if none does."""
    start = max(0, at - _LONGEST_TAG_BYTES)
    file.seek(start)
    data = file.read(at - start)
    tag_at = data.rfind(b"ID3")
    while tag_at >= 0:
        length = 0
        for byte in data[tag_at + 6 : tag_at + 10]:
            length = length << 7 | byte
        if tag_at + 10 + length == len(data):
            return start + tag_at
        tag_at = data.rfind(b"ID3", 0, tag_at)
    return at


def _same_form_at(file: BinaryIO, at: int, head: bytes) -> int | None:
    """Return where the next file begins; parts of one AVI (OpenDML, ``AVIX``) are no files."""
    for _ in range(_MOST_BOXES):
        file.seek(at)
        other = file.read(_HEAD_BYTES)
        if len(other) < 12 or other[:4] != head[:4]:
            return None
        if head[:4] not in (b"RIFF", b"FORM") or other[8:12] == head[8:12]:
            return at
        at += (_riff(other, file) if head[:4] == b"RIFF" else None) or len(other)
    return None


def _next_movie(file: BinaryIO, at: int) -> int | None:
    """Return the next file type box after a movie; fragments whose clock goes on after it are read
    on."""
    kinds = set()
    began: int | None = None
    next_at: int | None = None
    for kind, box_at in _top_boxes(file, at):
        if kind == b"ftyp" and box_at > at and b"moov" in kinds:
            if began is None:
                return box_at
            next_at = box_at
        if kind == b"moof":
            time = _fragment_time(file, box_at)
            if next_at is not None and began is not None and time <= began:
                return next_at
            began, next_at = time if began is None else began, None
        kinds.add(kind)
    return None


def _fragment_time(file: BinaryIO, at: int) -> int:
    """When a fragment begins on its track's clock (``tfdt``, ISO 14496-12); 0 without one."""
    file.seek(at)
    data = file.read(_HEAD_BYTES)
    times_at = data.find(b"tfdt")
    if times_at < 0:
        return 0
    length = 8 if data[times_at + 4] else 4
    return int.from_bytes(data[times_at + 8 : times_at + 8 + length], "big")


def _past_ogg_beginnings(file: BinaryIO, at: int) -> int:
    """Behind the pages with which the streams of an Ogg file begin, all before any other."""
    while True:
        file.seek(at)
        header = file.read(27)
        if not _OGG_BEGINNING.match(header) or len(header) < 27:
            return at
        at += 27 + header[26] + sum(file.read(header[26]))


def _found(pattern: re.Pattern[bytes], file: BinaryIO, at: int) -> int | None:
    overlap = b""
    file.seek(at)
    while data := file.read(1 << 20):
        match = pattern.search(overlap + data)
        if match is not None:
            return at - len(overlap) + match.start()
        at, overlap = at + len(data), data[-64:]
    return None


Values = dict[str, Any]

_FORMS = (b"RIFF", b"RF64", b"BW64")
_MOST_CHUNKS = 1_000
_LARGEST_BYTES = 1 << 20
_TEXT_LENGTH = 100
_DESCRIPTION_BYTES = 256
_TIME_REFERENCE_AT = 338
_TRACK_LINE = re.compile(r"^[a-zA-Z]?TRK(\d{1,2})=(.+)$", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def wav_labels(path: Path) -> Values:
    """Return the fields of ``WavLabels``; empty for a file without them."""
    labels: Values = {}
    with path.open("rb") as file:
        for name, data in _chunks(file):
            if name == b"fmt " and len(data) >= 8:
                labels["sample_rate_hz"] = struct.unpack_from("<I", data, 4)[0]
            elif name == b"bext":
                # iXML is exact; the description is only a convention of some recorders.
                labels = _from_bext(data) | labels
            elif name == b"iXML":
                labels |= _from_ixml(data)
    return labels


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each chunk that is looked at, in the file's order."""
    if file.read(4) not in _FORMS or len(file.read(4)) < 4 or file.read(4) != b"WAVE":
        return
    file_bytes = os.fstat(file.fileno()).st_size
    data_bytes: int | None = None
    for _ in range(_MOST_CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            return
        name, size = struct.unpack("<4sI", header)
        if name == b"data" and size == _UNKNOWN_32 and data_bytes is not None:
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
    fields: dict[str, str] = {}
    names: list[list[Any]] = []
    track: dict[str, str] = {}
    position = 0
    try:
        for (_, *path), text in elements(data.strip(b"\0 \r\n\t")):
            if path == ["TRACK_LIST", "TRACK"]:
                position += 1
                number = _number(track.get("INTERLEAVE_INDEX"))
                number = number or _number(track.get("CHANNEL_INDEX")) or position
                if name := _text(track.get("NAME")):
                    names.append([number - 1, name])
                track.clear()
            elif path[:-1] == ["TRACK_LIST", "TRACK"]:
                track.setdefault(path[-1], text)
            elif path[:-1] == ["SPEED"]:
                fields.setdefault(path[-1], text)
    except MarkupError:
        return {}
    labels: Values = {}
    rate = _text(fields.get("TIMECODE_RATE"))
    if rate:
        labels["timecode_rate"] = rate
        labels["drop_frame"] = _text(fields.get("TIMECODE_FLAG")).upper() == "DF"
    high = _number(fields.get("TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI"))
    low = _number(fields.get("TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO"))
    if low is not None:
        labels["time_reference"] = ((high or 0) << 32) + low
    clock_hz = _number(fields.get("TIMESTAMP_SAMPLE_RATE"))
    if clock_hz:
        labels["sample_rate_hz"] = clock_hz
    return labels | ({"channel_names": names} if names else {})


def _text(value: str | None) -> str:
    return _CONTROL.sub(" ", value or "").strip()[:_TEXT_LENGTH]


def _number(value: str | None) -> int | None:
    text = (value or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def labels(arguments: dict[str, Any], _: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """``wav_labels`` as a task of the confined child: ``{path}``."""
    return wav_labels(Path(arguments["path"]))


RAW_FAMILIES = {"r3d": ("r3d",), "braw": ("braw",), "arri": ("ari", "arx")}
"""Of camera RAW, with the extensions of their files."""

_BRAW_CODECS = re.compile(rb"stsd.{12}(brxq|brhq|brst|brlt|brvn|brvl|brs2)", re.DOTALL)
"""Sample entries of Blackmagic RAW: constant bit rates and constant qualities."""


def extension(file_name: str) -> str:
    """Return the lower-case extension without its dot; empty if there is none."""
    stem, dot, suffix = file_name.rpartition(".")
    return suffix.lower() if dot and stem else ""


def raw_family(file_name: str) -> str | None:
    """Return the camera RAW family of a file name, or None."""
    suffix = extension(file_name)
    return next((name for name, known in RAW_FAMILIES.items() if suffix in known), None)


def command_words(command: str) -> list[str]:
    """Return the command's words; raises ValueError where it cannot be run or names no files."""
    words = shlex.split(command)
    for place in ("{input}", "{output}"):
        if not any(place in word for word in words):
            raise ValueError(f"the command {command!r} does not contain {place}")
    return words


def family_of(path: Path) -> str | None:
    """``r3d``, ``braw`` or ``arri`` where the file begins like one of them; else None."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[4:8] in (b"RED1", b"RED2"):
            return "r3d"
        if head[:4] in (b"ARRI", b"IRRA"):
            return "arri"
        for kind, at in _top_boxes(file, 0) if _is_iso(head) else ():
            if kind == b"moov":
                file.seek(at)
                return "braw" if _BRAW_CODECS.search(file.read(1 << 20)) else None
    return None


def _top_boxes(file: BinaryIO, at: int) -> Iterator[tuple[bytes, int]]:
    """Kind and place of the top-level boxes from ``at`` on, the first of them."""
    for _ in range(64):
        file.seek(at)
        header = file.read(16)
        size = int.from_bytes(header[:4], "big")
        if size == 1 and len(header) == 16:
            size = int.from_bytes(header[8:], "big")
        if len(header) < 8 or size < 8:
            return
        yield header[4:8], at
        at += size


STILL = "It is a still picture, neither a video nor a sound."
_WEBP_MOVES = (
    "It is an animated WebP, which cannot be decoded here: convert it to GIF, PNG or a video."
)
_STILL_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"avif")
"""Of ISO 23008-12 (HEIF) and AVIF; files of sequences name one of these too."""
_SEQUENCE_BRANDS = (b"hevc", b"hevx", b"msf1", b"avis")
_STILL_HEADS = (b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"\0\0\0\x0cJXL ", b"\xff\x0a",
                b"\0\0\0\x0cjP  ", b"8BPS")  # fmt: skip
"""JPEG, TIFF, JPEG XL (two), JPEG 2000, Photoshop."""


def refusal_of(path: Path) -> str | None:
    """Why the file is refused before anything is decoded; None where it may be media."""
    with path.open("rb") as file:
        head = file.read(4 << 10)
    if is_web_page(head):
        return page_refusal()
    return STILL if _is_still(head) else _WEBP_MOVES if _is_moving_webp(head) else None


def _is_still(head: bytes) -> bool:
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return b"acTL" not in head.partition(b"IDAT")[0]
    if head[4:8] == b"ftyp":
        brands = head[8 : int.from_bytes(head[:4], "big")]
        is_heif = brands[:4] in _STILL_BRANDS
        return is_heif and not any(each in brands for each in _SEQUENCE_BRANDS)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return not _is_moving_webp(head)
    is_bitmap = head[:2] == b"BM" and head[6:10] == bytes(4)
    return is_bitmap or head.startswith(_STILL_HEADS)


def _is_moving_webp(head: bytes) -> bool:
    """By the flag of its extended header (RFC 9649, 2.7.1)."""
    return head[8:16] == b"WEBPVP8X" and bool(head[20] & 2)


_FRAMES_IN_A_ROW = 8
"""So many headers that agree are not there by chance."""
_FEWEST_ZEROS = 64
_HEADER = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")
"""Of a frame of layer III (ISO/IEC 11172-3, 2.4.1.3), MPEG 2.5 too."""
_KBITS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
"""Of MPEG 2 and 2.5, and of MPEG 1."""
_RATES_HZ = {0: (11_025, 12_000, 8_000), 2: (22_050, 24_000, 16_000), 3: (44_100, 48_000, 32_000)}


def find_beginning(path: Path) -> int | None:
    """Return where a file begins behind zeros, or an MP3 behind anything, in bytes; None if
    nowhere."""
    with path.open("rb") as file:
        data = file.read(16 << 20)
    zeros = len(data) - len(data.lstrip(b"\0"))
    if _FEWEST_ZEROS <= zeros < len(data):
        return zeros - zeros % 4  # the sizes with which some files begin have zeros too
    for match in _HEADER.finditer(data):
        at, agreed = match.start(), data[match.start() + 1 : match.start() + 2]
        for _ in range(_FRAMES_IN_A_ROW):
            length = _frame_bytes(data[at : at + 4])
            if not length or data[at + 1 : at + 2] != agreed:
                break
            at += length
        else:
            return match.start()
    return None


def _frame_bytes(header: bytes) -> int:
    """Return the length of the frame with this header; 0 where it is none."""
    if len(header) < 4 or not _HEADER.match(header):
        return 0
    version, bits, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if not 0 < bits < 15 or rate == 3 or version not in _RATES_HZ:
        return 0
    is_first = version == 3
    samples, kbits = 144 if is_first else 72, _KBITS[is_first][bits]
    return samples * kbits * 1000 // _RATES_HZ[version][rate] + (header[2] >> 1 & 1)
