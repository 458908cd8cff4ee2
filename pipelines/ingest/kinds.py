"""What a file is by its bytes, beyond demuxers. Runs in the confined child process.

Still pictures are refused whatever their kind, for they have no length; those that move are
videos. Web pages come from links that show a file instead of sending it. Recorders that were cut
off, and downloads that were mended, put anything before the first frame of an MP3.
"""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.net.web_pages import is_web_page, page_refusal

_HEAD_BYTES = 4 << 10
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
        head = file.read(_HEAD_BYTES)
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
_MOST_JUNK_BYTES = 16 << 20
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
    """Where a file begins behind zeros, or an MP3 behind anything, in bytes; None if nowhere."""
    with path.open("rb") as file:
        data = file.read(_MOST_JUNK_BYTES)
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
    """The length of the frame with this header; 0 where it is none."""
    if len(header) < 4 or not _HEADER.match(header):
        return 0
    version, bits, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if not 0 < bits < 15 or rate == 3 or version not in _RATES_HZ:
        return 0
    is_first = version == 3
    samples = 144 if is_first else 72
    kbits = _KBITS[is_first][bits]
    return samples * kbits * 1000 // _RATES_HZ[version][rate] + (header[2] >> 1 & 1)
