"""Opening a file that nobody vouches for. Runs in the confined child process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import av
import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard, Disposition, Stream
from av.video.stream import VideoStream

from pipelines.media.ranged import RangedFile
from pipelines.media.timestamps import ContinuousTimes
from pipelines.sandbox.child import MediaRefusedError

CONTAINERS = (
    "mov", "matroska", "avi", "mxf", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "live_flv",
    "ogg", "dv", "gif", "rm", "nut", "ivf", "yuv4mpegpipe", "gxf", "wtv",
    "wav", "w64", "mp3", "aac", "loas", "flac", "aiff", "caf", "au", "ac3", "eac3", "dts",
    "dtshd", "truehd", "amr", "amrnb", "amrwb", "ape", "wv", "tta", "tak", "mpc", "mpc8",
    "voc", "xwma",
)  # fmt: skip
"""Demuxers that may run, by FFmpeg's names: those that read one file of pictures and
sound. Playlists (hls, dash, concat, imf), devices, image sequences, scripts and
synthetic sources (lavfi) are not among them: they read other files or none."""

OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(CONTAINERS),
}
"""Options of FFmpeg with which every file is opened, also one that was found to be media."""


CARRIED_CODECS = frozenset(
    {
        "h264", "hevc", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4", "mjpeg",
        "ffv1", "prores", "theora",
    }
)  # fmt: skip
"""Codecs with a Matroska mapping of their own, which keeps presentation times. Others go in
by their AVI name, with decoding times only."""

PACKETS_PER_REPORT = 2_000
"""How many packets lie between two reports of progress."""

_H264_IDR, _H264_PICTURE_DATA = 5, range(1, 6)
"""Types of H.264 units (ITU-T H.264, 7.3.1)."""

_LEAPING = frozenset({"mpegts", "mpeg"})
"""Demuxers whose clocks may be set anew in the middle of a file."""


class NoVideoStreamError(ValueError):
    """The file holds no video stream to decode."""


@dataclass(slots=True)
class Reading:
    """How it went to read a file's packets; filled in on the way."""

    times: ContinuousTimes = field(default_factory=ContinuousTimes)
    reached_bytes: int = 0
    """Where in the file the farthest packet ends. Demuxers that lose their way in damaged
    data report that the file has ended."""


def open_media(source: Path | RangedFile) -> InputContainer:
    """Open a file by what it holds, whatever it is called.

    Raises MediaRefusedError if it is no media file, or of a kind that is not read.
    """
    try:
        container: InputContainer = av.open(
            source if isinstance(source, RangedFile) else str(source),
            options=OPEN_OPTIONS,
            metadata_errors="replace",
        )
    except av.error.ArgumentError:
        raise MediaRefusedError("Files of this format are not accepted.") from None
    except av.error.MemoryError:
        raise
    except av.error.FFmpegError:
        raise MediaRefusedError("The file is not a media file that can be read.") from None
    return container


def chosen_stream(container: InputContainer, stream_index: int) -> VideoStream:
    """The video stream numbered as in the source, else the first one of a cut file.

    Raises NoVideoStreamError where the file has none.
    """
    streams = container.streams.video
    if not streams:
        raise NoVideoStreamError(container.name)
    return next((stream for stream in streams if stream.index == stream_index), streams[0])


def is_picture_stream(stream: Stream) -> TypeGuard[VideoStream]:
    """Whether ``stream`` is moving pictures: no cover art, no thumbnails."""
    still = Disposition.attached_pic | Disposition.timed_thumbnails
    return stream.type == "video" and not stream.disposition & still


def is_sound_stream(stream: Stream) -> TypeGuard[AudioStream]:
    """Whether ``stream`` is sound."""
    return stream.type == "audio"


def codec_name(stream: VideoStream | AudioStream) -> str:
    """The codec's own name, not that of the decoder at hand (``av1``, not ``libdav1d``)."""
    return str(stream.codec_context.codec.canonical_name)


def packets_of(
    container: InputContainer, streams: list[Stream], reading: Reading | None = None
) -> Iterator[Packet[Any]]:
    """Packets of ``streams`` in file order, then an empty one for each to flush its decoder.

    The demuxer passes over the other streams. A file that breaks off ends where
    it can no longer be read. Times that leap are made continuous.
    """
    reading = reading if reading is not None else Reading()
    chosen = {stream.index for stream in streams}
    for stream in container.streams:
        if stream.index not in chosen:
            stream.discard = Discard.all
    repairs = may_leap(container)
    for packet in _readable(container, streams, reading):
        if repairs:
            reading.times.apply(packet)
        yield packet


def _readable(
    container: InputContainer, streams: list[Stream], reading: Reading
) -> Iterator[Packet[Any]]:
    packets = container.demux(streams)
    while True:
        try:
            packet = next(packets, None)
        except av.error.MemoryError:
            raise
        except av.error.FFmpegError:
            packet = None
        if packet is None:
            return
        if packet.pos is not None and packet.pos >= 0:
            reading.reached_bytes = max(reading.reached_bytes, packet.pos + packet.size)
        yield packet


def may_leap(container: InputContainer) -> bool:
    """Whether leaping times are made continuous: where all pictures can be carried along.

    Only segment files hold the times as they were made; pictures that have to be
    read from the source itself keep its own.
    """
    pictures = [stream for stream in container.streams if is_picture_stream(stream)]
    known = [stream for stream in pictures if stream.codec_context is not None]
    return container.format.name in _LEAPING and all(
        codec_name(stream) in CARRIED_CODECS for stream in known
    )


def is_clean_key(codec: str, data: bytes, extradata: bytes | None) -> bool:
    """Whether decoding may start at this packet, which is marked as a key frame.

    H.264 also marks recovery points, which are not complete pictures yet; only an
    IDR picture (ITU-T H.264, table 7-1) is. Key frames of other codecs are complete.
    """
    if codec != "h264":
        return True
    kinds = (header & 0x1F for header in _unit_headers(data, extradata))
    return next((kind for kind in kinds if kind in _H264_PICTURE_DATA), None) == _H264_IDR


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
