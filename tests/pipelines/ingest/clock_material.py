"""A film drawn and computed here, and its copies with the clocks that recorders write."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from pipelines.media.decoding import decode_segment
from tests.pipelines.ingest.ingest_material import (
    HEIGHT,
    RATE,
    WIDTH,
    Ingested,
    clicks,
    luma_checksum,
    onsets,
    picture,
)

SECONDS = 6
GROUP_SECONDS = 2
CLICKS = tuple(second + 0.5 for second in range(SECONDS))
HOURS_MS = 2 * 3_600_000
_SOUND_HZ = 48_000

Edit = Callable[[str, int, Any], None]
"""What is done to a packet: the kind of its stream, its number in it, and the packet."""


def write_film(
    path: Path,
    *,
    options: str = "bframes=3:b-adapt=0",
    codec: str = "libx264",
    audio: str = "aac",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    rate: int = RATE,
    group: int | None = None,
) -> Path:
    """Six seconds of moving pictures in groups of two, with B-frames; a click every second."""
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream(codec, rate=rate)
        (video.width, video.height), video.pix_fmt = size, "yuv420p"
        video.codec_context.gop_size, video.codec_context.thread_count = GROUP_SECONDS * RATE, 1
        if codec == "libx264":
            groups = f"keyint={group or GROUP_SECONDS * RATE}:scenecut=0"
            video.options = {"x264-params": f"{groups}:{options}"}
        sound: Any = container.add_stream(audio, rate=_SOUND_HZ)
        sound.codec_context.layout = "mono"
        packets: list[Any] = []
        for number in range(SECONDS * rate):
            frame = av.VideoFrame.from_ndarray(picture(number), "yuv420p").reformat(*size)
            frame.pts, frame.time_base = number, Fraction(1, rate)
            packets += video.encode(frame)
        packets += video.encode(None)
        signal = clicks(CLICKS, SECONDS, _SOUND_HZ).astype(np.float32)
        resampler = av.AudioResampler(sound.codec_context.format, "mono", _SOUND_HZ, 1024)
        whole: Any = av.AudioFrame.from_ndarray(signal, "flt", "mono")
        whole.sample_rate, whole.pts, whole.time_base = _SOUND_HZ, 0, Fraction(1, _SOUND_HZ)
        for part in [*resampler.resample(whole), *resampler.resample(None)]:
            packets += sound.encode(part)
        packets += sound.encode(None)
        container.start_encoding()
        for packet in sorted(packets, key=lambda each: each.dts * each.time_base):
            container.mux(packet)
    return path


def remuxed(
    source: Path,
    target: Path,
    edit: Edit = lambda kind, number, packet: None,
    *,
    muxing: dict[str, str] | None = None,
    kinds: Sequence[str] = ("video", "audio"),
    drop: Callable[[str, int], bool] = lambda kind, number: False,
) -> Path:
    """The packets of ``source`` in another file, without those to ``drop``, each after ``edit``."""
    with (
        av.open(str(source)) as read,
        av.open(str(target), "w", options=muxing or {}) as written,
    ):
        streams = [stream for stream in read.streams if stream.type in kinds]
        copies = {stream.index: written.add_stream_from_template(stream) for stream in streams}
        numbers = dict.fromkeys(copies, 0)
        for packet in read.demux(streams):
            if not packet.size:
                continue
            index = packet.stream.index
            kind, number = packet.stream.type, numbers[index]
            numbers[index] += 1
            if not drop(kind, number):
                edit(kind, number, packet)
                packet.stream = copies[index]
                written.mux(packet)
    return target


def _stating(quarters: int) -> bytes:
    """A unit of H.264 that states how pictures are turned, anticlockwise (ITU-T H.264, D.1.27)."""
    bits = f"000{quarters << 14:016b}010010"
    body = int(bits.ljust(32, "0"), 2).to_bytes(4, "big")
    unit = b"\x06\x2f" + bytes([len(body)]) + body + b"\x80"
    return len(unit).to_bytes(4, "big") + unit


def turned_by_pictures(folder: Path) -> Path:
    """The key frames at 0, 2 and 4 s state 90 degrees, 180 and nothing; others nothing ever."""
    film = write_film(folder / "film.mp4", options="bframes=0")
    statements, path = iter([_stating(1), _stating(2), b""]), folder / "turned.mp4"
    with av.open(str(film)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.size:
                is_key = packet.is_keyframe
                copy = av.Packet((next(statements) if is_key else b"") + bytes(packet))
                copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
                copy.is_keyframe, copy.stream = is_key, stream
                written.mux(copy)
    return path


def joined_as_turned(folder: Path) -> Path:
    """Three MP4 files joined with ``cat``: their tracks' matrices state 270 degrees, 180, 0."""
    film = write_film(folder / "film.mp4", options="bframes=0").read_bytes()
    path, data = folder / "joined.mp4", b""
    for a, b, c, d in ((0, -1, 1, 0), (-1, 0, 0, -1), (1, 0, 0, 1)):
        at = film.index(b"tkhd") + 44
        matrix = struct.pack(">6i", a << 16, b << 16, 0, c << 16, d << 16, 0)
        data += film[:at] + matrix + film[at + 24 :]
    path.write_bytes(data)
    return path


def later(ms: int, *, since_ms: int = 0, kinds: Sequence[str] = ("video", "audio")) -> Edit:
    """Packets of these kinds that are decoded from ``since_ms`` on are that much later."""

    def edit(kind: str, _: int, packet: Any) -> None:
        if kind in kinds and packet.dts * packet.time_base * 1000 >= since_ms - 80:
            ticks = round(ms / (1000 * packet.time_base))
            packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks

    return edit


def with_tag_times(source: Path, target: Path, time_of: Callable[[str, int, int], int]) -> Path:
    """An FLV file's tags with other times: ``time_of(kind, number, ms)`` (Adobe FLV 10.1, E.4)."""
    data, at = bytearray(source.read_bytes()), 9 + 4
    numbers = {"audio": 0, "video": 0}
    while at + 11 <= len(data):
        kind = {8: "audio", 9: "video"}.get(data[at])
        size = int.from_bytes(data[at + 1 : at + 4], "big")
        # The second byte of tags of AVC (codec 7) and AAC is 0 for the decoder's settings.
        is_media = data[at + 12] != 0 or (kind == "video" and data[at + 11] & 15 != 7)
        if kind is not None and is_media:
            ms = int.from_bytes(data[at + 4 : at + 7], "big") | data[at + 7] << 24
            ms = time_of(kind, numbers[kind], ms)
            data[at + 4 : at + 8] = (ms & 0xFFFFFF).to_bytes(3, "big") + bytes([ms >> 24 & 0xFF])
            numbers[kind] += 1
        at += 11 + size + 4
    target.write_bytes(data)
    return target


def seen(done: Ingested) -> list[tuple[int, int]]:
    """Times and checksums of all pictures, as the analysis reads them, from the first on."""
    video = done.result.video
    assert video is not None
    frames = [
        (timed.time_ms, luma_checksum(timed.frame))
        for segment in video.segments
        for timed in decode_segment(
            done.path(segment.key),
            segment,
            stream_index=video.stream.index,
            origin_ms=video.origin_ms,
        )
    ]
    return [(time_ms - frames[0][0], checksum) for time_ms, checksum in frames]


def heard(done: Ingested, track: int = 0) -> list[float]:
    """When clicks begin on a track, in seconds of the timeline."""
    offset = done.result.tracks[track].offset_seconds
    return [offset + seconds for seconds in onsets(done.samples(track), 0.2)]
