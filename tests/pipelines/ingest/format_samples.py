"""A sample of every accepted container, drawn and computed here: two shots, two clicks.

The picture changes once, at ``CUT_SECONDS``; a click begins at each of
``CLICK_SECONDS``. So whatever the format, what comes out is known.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.pipelines.ingest.ingest_material import Signal, clicks
from tests.pipelines.media_builders import Picture, texture

RATE = 25
SECONDS = 2.0
PART_SAMPLES = 1024
CUT_SECONDS = 1.0
CLICK_SECONDS = (0.5, 1.5)


@dataclass(frozen=True)
class Pictures:
    """The picture stream of a sample."""

    codec: str
    width: int = 160
    height: int = 120
    pixels: str = "yuv420p"
    rate: int = RATE
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sound:
    """The sound stream of a sample."""

    codec: str
    rate_hz: int = 48_000
    layout: str = "stereo"
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    bit_rate: int | None = None


@dataclass(frozen=True)
class Sample:
    """A file to write: its name's extension is the format under test."""

    file_name: str
    pictures: Pictures | None = None
    sound: Sound | None = None
    container: str | None = None
    muxing: Mapping[str, str] = field(default_factory=dict)
    reads_as: str | None = None
    """The codec that a reader sees, where it is called otherwise than its encoder."""

    @property
    def extension(self) -> str:
        return self.file_name.rpartition(".")[2]


H264 = Pictures("libx264", options={"preset": "ultrafast", "x264-params": "keyint=25:threads=1"})
HEVC = Pictures("libx265", options={"preset": "ultrafast", "x265-params": "log-level=none"})
MPEG2 = Pictures("mpeg2video")
VP9 = Pictures("libvpx-vp9", options={"cpu-used": "8", "deadline": "realtime"})
AV1 = Pictures("libsvtav1", options={"preset": "12", "svtav1-params": "lp=1"})
PRORES = Pictures("prores_ks", pixels="yuv422p10le")
DV = Pictures("dvvideo", 720, 576)
QCIF = Pictures("h263", 176, 144)
STRICT = {"strict": "experimental"}
AAC = Sound("aac")
PCM = Sound("pcm_s16le")
WMA = Sound("wmav2", 44_100, format="fltp", bit_rate=128_000)
AMR = Sound("libopencore_amrnb", 8_000, "mono", bit_rate=12_200)

STANDARD = (
    Sample("h264.mp4", H264, AAC),
    Sample("hevc.mp4", HEVC, Sound("alac", format="s16p")),
    Sample("av1.mp4", AV1, Sound("libopus", format="s16")),
    Sample("mpeg4.m4v", Pictures("mpeg4"), AAC, "mp4"),
    Sample("prores.mov", PRORES, Sound("pcm_s24le", format="s32")),
    Sample("mjpeg.mov", Pictures("mjpeg", pixels="yuvj420p"), Sound("pcm_s16be")),
    Sample("h264-422-10bit.mov", Pictures("libx264", pixels="yuv422p10le"), Sound("pcm_f32le")),
    Sample("dnxhr.mov", Pictures("dnxhd", 256, 144, "yuv422p", options={"profile": "dnxhr_sq"})),
    Sample("hevc.mkv", HEVC, Sound("flac", format="s16")),
    Sample("ffv1.mkv", Pictures("ffv1"), Sound("pcm_s32le", format="s32")),
    Sample("vp8.mkv", Pictures("libvpx"), Sound("libmp3lame", format="s16p")),
    Sample("vp9.webm", VP9, Sound("libopus", format="s16")),
    Sample("av1.webm", AV1, Sound("vorbis", options=STRICT, format="fltp")),
    Sample("mpeg4.avi", Pictures("mpeg4"), Sound("libmp3lame", format="s16p")),
    Sample("mjpeg.avi", Pictures("mjpeg", pixels="yuvj422p"), PCM),
    Sample("huffyuv.avi", Pictures("huffyuv", pixels="yuv422p"), PCM),
    Sample("mpeg2.mxf", MPEG2, PCM),
    Sample("dnxhr.mxf", Pictures("dnxhd", 256, 144, "yuv422p", options={"profile": "dnxhr_sq"})),
    Sample("h264.ts", H264, Sound("ac3", format="fltp")),
    Sample("h264.mts", H264, Sound("ac3", format="fltp"), "mpegts", {"mpegts_m2ts_mode": "1"}),
    Sample("hevc.m2ts", HEVC, AAC, "mpegts", {"mpegts_m2ts_mode": "1"}),
    Sample("mpeg1.mpg", Pictures("mpeg1video"), Sound("mp2", 44_100)),
    Sample("mpeg2.mpeg", MPEG2, Sound("mp2"), "dvd"),
    Sample("mpeg2.m2v", MPEG2, None, "mpeg2video"),
    Sample("mpeg2.vob", MPEG2, Sound("ac3", format="fltp"), "vob"),
    Sample("wmv2.wmv", Pictures("wmv2"), WMA, "asf"),
    Sample("msmpeg4.asf", Pictures("msmpeg4"), replace(WMA, codec="wmav1"), "asf"),
    Sample("flv1.flv", Pictures("flv"), Sound("libmp3lame", 44_100, format="s16p")),
    Sample("h264.flv", H264, Sound("aac", 44_100)),
    Sample("h264.f4v", H264, AAC, "f4v"),
    Sample("h263.3gp", QCIF, AMR),
    Sample("mpeg4.3g2", Pictures("mpeg4"), AAC),
    Sample("vp8.ogv", Pictures("libvpx"), Sound("vorbis", options=STRICT, format="fltp"), "ogg"),
    Sample("pal.dv", DV, PCM),
    Sample("moving.gif", Pictures("gif", pixels="rgb8")),
)

AUDIO_ONLY = (
    Sample("plain.wav", None, Sound("pcm_s16le", 44_100)),
    Sample("telephone.wav", None, Sound("pcm_mulaw", 8_000, "mono", "s16")),
    Sample("byte.wav", None, Sound("pcm_u8", 8_000, "mono", "u8")),
    Sample("float.wav", None, Sound("pcm_f32le", 192_000, "stereo", "flt")),
    Sample("double.wav", None, Sound("pcm_f64le", 96_000, "mono", "dbl")),
    Sample("adpcm.wav", None, Sound("adpcm_ima_wav", 22_050, "mono", "s16p")),
    Sample("recorder.bwf", None, Sound("pcm_s24le", 48_000, format="s32"), "wav",
           {"write_bext": "1"}),
    Sample("large.wav", None, Sound("pcm_s24le", 96_000, "5.1", "s32"), None, {"rf64": "always"}),
    Sample("song.mp3", None, Sound("libmp3lame", 44_100, format="s16p")),
    Sample("aac.m4a", None, Sound("aac", 44_100), "ipod"),
    Sample("alac.m4a", None, Sound("alac", 96_000, format="s32p"), "ipod"),
    Sample("adts.aac", None, Sound("aac", 44_100), "adts"),
    Sample("plain.flac", None, Sound("flac", 96_000, format="s32")),
    Sample("vorbis.ogg", None, Sound("vorbis", 44_100, options=STRICT, format="fltp")),
    Sample("flac.oga", None, Sound("flac", 44_100, format="s16"), "ogg"),
    Sample("speech.opus", None, Sound("libopus", 48_000, "mono", "s16")),
    Sample("music.wma", None, WMA, "asf"),
    Sample("plain.aif", None, Sound("pcm_s16be", 44_100), "aiff"),
    Sample("deep.aiff", None, Sound("pcm_s24be", 48_000, format="s32"), "aiff"),
    Sample("alac.caf", None, Sound("alac", 48_000, format="s16p"), "caf"),
    Sample("float.caf", None, Sound("pcm_f32be", 48_000, format="flt"), "caf"),
    Sample("surround.ac3", None, Sound("ac3", 48_000, "5.1", "fltp")),
    Sample("surround.eac3", None, Sound("eac3", 48_000, "5.1", "fltp")),
    Sample("call.amr", None, AMR),
    Sample("opus.mka", None, Sound("libopus", 48_000, format="s16")),
    Sample("float.mka", None, Sound("pcm_f32le", 48_000, format="flt")),
)  # fmt: skip

NOT_GENERATED = {
    "Theora in ogv": "the bundled FFmpeg has a decoder for it, but no encoder",
    "VC-1 in wmv, ts and mkv": "no encoder",
    "WMA Pro and WMA Lossless": "no encoder",
    "AMR wide band": "no encoder",
    "VVC": "no encoder",
    "DTS and TrueHD in m2ts": "their muxing into m2ts needs headers of real discs",
}
"""What is accepted too, but cannot be made here, and why."""


def write_sample(folder: Path, sample: Sample) -> Path:
    """Encode ``sample`` below ``folder``."""
    path = folder / sample.file_name
    with (
        _class_kept(),
        av.open(str(path), "w", format=sample.container, options=dict(sample.muxing)) as container,
    ):
        video = None if sample.pictures is None else _picture_stream(container, sample.pictures)
        audio = None if sample.sound is None else _sound_stream(container, sample.sound)
        packets: list[Any] = []
        if sample.pictures is not None:
            packets += _picture_packets(video, sample.pictures, path.suffix == ".gif")
        if sample.sound is not None:
            packets += _sound_packets(audio, sample.sound)
        container.start_encoding()
        for packet in sorted(packets, key=_decoding_seconds):
            container.mux(packet)
    return path


@contextlib.contextmanager
def _class_kept() -> Iterator[None]:
    """SVT-AV1 gives root's thread the class SCHED_FIFO for good, and what that starts inherits it.

    A worker of the suite, its database and Ray then left nothing of a processor to the others.
    """
    policy = os.sched_getscheduler(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(0))


def _decoding_seconds(packet: Any) -> float:
    ticks = packet.dts if packet.dts is not None else packet.pts
    return float((ticks or 0) * packet.time_base)


def _picture_stream(container: Any, pictures: Pictures) -> Any:
    stream = container.add_stream(
        pictures.codec, rate=pictures.rate, options=dict(pictures.options)
    )
    stream.width, stream.height, stream.pix_fmt = pictures.width, pictures.height, pictures.pixels
    stream.codec_context.gop_size = 25
    stream.codec_context.thread_count = 1
    stream.codec_context.bit_rate = 1_000_000
    return stream


def _picture_packets(stream: Any, pictures: Pictures, _: bool) -> list[Any]:
    packets: list[Any] = []
    for number, picture in enumerate(drawn(pictures.width, pictures.height, pictures.rate)):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, pictures.rate)
        packets += stream.encode(frame)
    return [*packets, *stream.encode(None)]


def drawn(width: int, height: int, rate: int) -> Sequence[Picture]:
    """The sample's pictures: one texture, and from CUT_SECONDS on another."""
    before, after = texture(3, width, height), texture(8, width, height)
    count = round(SECONDS * rate)
    return [before if number < CUT_SECONDS * rate else after for number in range(count)]


def _sound_stream(container: Any, sound: Sound) -> Any:
    stream = container.add_stream(sound.codec, rate=sound.rate_hz, options=dict(sound.options))
    stream.codec_context.layout = sound.layout
    if sound.format is not None:
        stream.codec_context.format = sound.format
    stream.codec_context.thread_count = 1
    if sound.bit_rate is not None:
        stream.codec_context.bit_rate = sound.bit_rate
    return stream


def _sound_packets(stream: Any, sound: Sound) -> list[Any]:
    signal = clicks(CLICK_SECONDS, SECONDS, sound.rate_hz)
    packets: list[Any] = []
    context = stream.codec_context
    resampler = av.AudioResampler(context.format, context.layout, sound.rate_hz)
    for start in range(0, signal.shape[1], PART_SAMPLES):
        frame = sound_frame(signal[:, start : start + PART_SAMPLES], sound, start)
        for part in resampler.resample(frame):
            packets += stream.encode(part)
    return [*packets, *stream.encode(None)]


def sound_frame(signal: Signal, sound: Sound, first_sample: int = 0) -> Any:
    """The one-channel ``signal`` in every channel of ``sound``'s layout."""
    channels = av.AudioLayout(sound.layout).nb_channels
    values = np.repeat(signal.astype(np.float32), channels, axis=0).T.reshape(1, -1)
    frame: Any = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), "flt", sound.layout)
    frame.sample_rate, frame.pts = sound.rate_hz, first_sample
    frame.time_base = Fraction(1, sound.rate_hz)
    return frame
