"""What packets say of themselves in the headers of their units (ITU-T H.264, 7.3.1)."""

from __future__ import annotations

_IDR = 5
_SLICE = 1
_PICTURE_DATA = range(1, 6)


def is_clean_key(codec: str, data: bytes, extradata: bytes | None) -> bool:
    """Whether decoding may start at this key frame by its own word.

    H.264 also marks recovery points, which are not complete pictures yet; only an
    IDR picture (table 7-1) is. Key frames of other codecs are complete.
    """
    if codec != "h264":
        return True
    kinds = (header & 0x1F for header in _unit_headers(data, extradata))
    return next((kind for kind in kinds if kind in _PICTURE_DATA), None) == _IDR


def is_unreferenced(codec: str, data: bytes, extradata: bytes | None) -> bool:
    """Whether no other picture refers to this one (``nal_ref_idc`` 0, 7.4.1); if in doubt, not.

    Other codecs are always in doubt: in HEVC it depends on the temporal layers too.
    """
    if codec != "h264":
        return False
    pictures = [
        header for header in _unit_headers(data, extradata) if header & 0x1F in _PICTURE_DATA
    ]
    return bool(pictures) and all(header == _SLICE for header in pictures)


def _unit_headers(data: bytes, extradata: bytes | None) -> list[int]:
    """First byte of each unit, from length-prefixed (avcC) or Annex B data."""
    if extradata and len(extradata) > 4 and extradata[0] == 1:
        return _prefixed_unit_headers(data, (extradata[4] & 3) + 1)
    headers, position = [], data.find(b"\0\0\1")
    while 0 <= position < len(data) - 3:
        headers.append(data[position + 3])
        position = data.find(b"\0\0\1", position + 3)
    return headers


def _prefixed_unit_headers(data: bytes, length_bytes: int) -> list[int]:
    headers, position = [], 0
    while position + length_bytes < len(data):
        length = int.from_bytes(data[position : position + length_bytes], "big")
        headers.append(data[position + length_bytes])
        position += length_bytes + length
    return headers
