"""A film drawn and computed here, and its copies with the clocks that recorders write."""

from __future__ import annotations

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
