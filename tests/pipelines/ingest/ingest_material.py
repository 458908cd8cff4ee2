"""Clips drawn and sounds computed for the ingest tests, and what is needed to look at results."""

from __future__ import annotations

import itertools
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt

from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.external_audio import ExternalFile
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.ingest.source import ClipFile, ProbedMedia, SourceMedia, ingest_media, probe_media
from pipelines.media.decoding import decode_segment
from pipelines.media.files import rounded_ms
from pipelines.types import ChannelUse, IngestResult
from storage.objects.folder import FolderStore
from tests.pipelines.media_builders import still_shot

WIDTH, HEIGHT, RATE = 128, 96, 25
Signal = npt.NDArray[np.float64]
TimedDigest = tuple[int, int]
"""Time in ms of a frame, and a checksum of its luma plane."""


@dataclass(frozen=True)
class Clip:
    """How to encode a drawn clip."""

    file_name: str
    codec: str
    options: Mapping[str, str] = field(default_factory=dict)
    muxing: Mapping[str, str] = field(default_factory=dict)
    pixels: str = "yuv420p"
    frames: int = 120
    key_interval: int = 15
    b_frames: int | None = None
    times_ms: Sequence[int] | None = None
    first_frame: int = 0
    container: str | None = None


def picture(number: int) -> npt.NDArray[np.uint8]:
    """Frame ``number`` of the drawn clip as yuv420p planes: waves and a box, all moving."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = np.zeros((HEIGHT * 3 // 2, WIDTH), np.uint8)
    waves = np.sin((rows + number * 3) / 7) * 60 + 64
    planes[:HEIGHT] = ((columns * 2 + number * 5) % 256 * 0.5 + waves).astype(np.uint8)
    left = number * 7 % (WIDTH - 20)
    planes[20:50, left : left + 20] = 240 if number // 20 % 2 else 20
    planes[HEIGHT:] = 128 + number % 40
    return planes


def write_clip(folder: Path, clip: Clip) -> Path:
    """Encode ``clip`` below ``folder``."""
    path = folder / clip.file_name
    muxing = dict(clip.muxing)
    with av.open(str(path), "w", format=clip.container, options=muxing) as container:
        stream: Any = container.add_stream(clip.codec, rate=RATE, options=dict(clip.options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, clip.pixels
        context = stream.codec_context
        context.gop_size, context.thread_count = clip.key_interval, 1
        if clip.b_frames is not None:
            context.max_b_frames = clip.b_frames
        if clip.times_ms is not None:
            context.time_base = Fraction(1, 1000)
        for number in range(clip.frames):
            container.mux(stream.encode(_frame(clip, number)))
        container.mux(stream.encode(None))
    return path


def _frame(clip: Clip, number: int) -> Any:
    frame: Any = av.VideoFrame.from_ndarray(picture(number), "yuv420p")
    if clip.times_ms is None:
        frame.pts, frame.time_base = number + clip.first_frame, Fraction(1, RATE)
    else:
        frame.pts, frame.time_base = clip.times_ms[number], Fraction(1, 1000)
    return frame


@dataclass(frozen=True)
class Sound:
    """How to encode a signal: shape (channels, samples), values -1 to 1."""

    file_name: str
    codec: str
    rate_hz: int
    layout: str = "mono"
    sample_format: str = "s16"
    options: Mapping[str, str] = field(default_factory=dict)


def write_sound(folder: Path, sound: Sound, signal: Signal) -> Path:
    """Encode ``signal`` below ``folder``."""
    path = folder / sound.file_name
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(
            sound.codec, rate=sound.rate_hz, options=dict(sound.options)
        )
        stream.codec_context.layout = sound.layout
        stream.codec_context.format = sound.sample_format
        packed = "s16" if sound.sample_format.startswith("s16") else "flt"
        frame: Any = av.AudioFrame.from_ndarray(_packed(signal, packed), packed, sound.layout)
        frame.sample_rate, frame.pts = sound.rate_hz, 0
        resampler = av.AudioResampler(sound.sample_format, sound.layout, sound.rate_hz)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return path


def _packed(signal: Signal, sample_format: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = signal.astype(np.float32)
    if sample_format == "s16":
        values = np.round(signal * 32767).clip(-32768, 32767).astype(np.int16)
    return np.ascontiguousarray(values.T).reshape(1, -1)


def clicks(times_seconds: Sequence[float], duration_seconds: float, rate_hz: int) -> Signal:
    """One channel of silence with a short burst that begins at each of the times."""
    samples = np.zeros(round(duration_seconds * rate_hz))
    length = round(0.004 * rate_hz)
    burst = 0.8 * np.sin(2 * np.pi * 1000 * np.arange(length) / rate_hz + np.pi / 2)
    for seconds in times_seconds:
        start = round(seconds * rate_hz)
        samples[start : start + length] = burst[: len(samples) - start]
    return samples.reshape(1, -1)


def onsets(samples: npt.NDArray[np.float32], threshold: float = 0.25) -> list[float]:
    """Times in seconds at which bursts begin, in 16 kHz samples."""
    loud = np.flatnonzero(np.abs(samples) > threshold).tolist()
    quiet_before = [now - before > 800 for before, now in itertools.pairwise([-1_000, *loud])]
    starts = itertools.compress(loud, quiet_before)
    return [float(start) / 16_000 for start in starts]


def samples_of(path: Path) -> npt.NDArray[np.float32]:
    """All samples of a mono FLAC file; asserts its format."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        assert (stream.rate, stream.layout.name, stream.codec.name) == (16_000, "mono", "flac")
        frames = [frame.to_ndarray()[0] for frame in container.decode(stream)]
    return (np.concatenate(frames) / 32768).astype(np.float32)


@dataclass(frozen=True)
class Ingested:
    """A source that went through ingest, with its store."""

    store: FolderStore
    result: IngestResult

    def path(self, key: str) -> Path:
        return self.store.path(key)

    def samples(self, track: int = 0) -> npt.NDArray[np.float32]:
        return samples_of(self.path(self.result.tracks[track].key))


def ingested(
    path: Path,
    root: Path,
    *,
    segment_seconds: float = 1.0,
    channels: ChannelUse = ChannelUse.AUTO,
) -> Ingested:
    """Put ``path`` into a store below ``root`` under the key ``source`` and ingest it."""
    store = FolderStore(root / "store")
    store.root.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, store.path("source"))
    temporary = root / "temporary"
    config = IngestConfig(
        segment_seconds=segment_seconds, channels=channels, temporary_folder=temporary
    )
    workspace = Workspace(store, "job")
    result = ingest("source", IngestContext(workspace, FreeRun(), config))
    assert not temporary.exists() or not any(temporary.iterdir())
    return Ingested(store, result)


def source_frames(done: Ingested) -> list[TimedDigest]:
    """Every frame of the source itself, on the media's timeline."""
    media = done.result.media
    assert media.video is not None
    return _decoded(done.path("source"), media.video.index, media.origin_ms)


def segment_frames(done: Ingested) -> list[TimedDigest]:
    """Every frame of every segment that lies in the segment's range, as its readers take it."""
    video = done.result.video
    assert video is not None
    found: list[TimedDigest] = []
    for segment in video.segments:
        index = video.stream.index if segment.key == "source" else 0
        frames = _decoded(done.path(segment.key), index, video.origin_ms)
        found += [frame for frame in frames if segment.start_ms <= frame[0] < segment.end_ms]
    return found


def _decoded(path: Path, index: int, origin_ms: int) -> list[TimedDigest]:
    with av.open(str(path)) as container:
        stream: Any = container.streams[index]
        stream.codec_context.thread_count = 1
        return [
            (rounded_ms(frame.pts, stream.time_base) - origin_ms, luma_checksum(frame))
            for packet in container.demux(stream)
            for frame in stream.decode(packet)
        ]


def luma_checksum(frame: Any) -> int:
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return zlib.crc32(rows[:, : frame.width].tobytes())


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


Pcm = npt.NDArray[np.int16]
SOUND_RATE_HZ = 16_000


def write_footage(
    path: Path,
    *,
    pictures: Sequence[npt.NDArray[np.uint8]] = (),
    rate: int = 25,
    codec: str = "libx264",
    sounds: Sequence[Pcm] = (),
    sound_codec: str = "pcm_s16le",
    timecode: str | None = None,
) -> Path:
    """A file of pictures and of one audio stream for each of ``sounds``."""
    with av.open(str(path), "w") as container:
        if timecode is not None:
            container.metadata["timecode"] = timecode
        video: Any = container.add_stream(codec, rate=rate) if pictures else None
        streams: list[Any] = [
            container.add_stream(sound_codec, rate=SOUND_RATE_HZ, layout="mono") for _ in sounds
        ]
        if video is not None:
            video.height, video.width = pictures[0].shape[:2]
            video.pix_fmt, video.gop_size = "yuv420p", rate
            video.codec_context.thread_count = 1
        for stream, sound in zip(streams, sounds, strict=True):
            _encode_sound(container, stream, sound)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(video.encode(frame))
        for stream in [video, *streams]:
            if stream is not None:
                container.mux(stream.encode(None))
    return path


def _encode_sound(container: Any, stream: Any, sound: Pcm) -> None:
    resampler = av.AudioResampler(stream.format, stream.layout, SOUND_RATE_HZ)
    for start in range(0, len(sound), 1024):
        part = np.ascontiguousarray(sound[start : start + 1024]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(part, "s16", "mono")
        frame.sample_rate, frame.pts = SOUND_RATE_HZ, start
        for ready in resampler.resample(frame):
            container.mux(stream.encode(ready))


def shot(seed: int, seconds: float, *, rate: int = 25) -> list[npt.NDArray[np.uint8]]:
    """A picture that stands still but for noise."""
    return list(still_shot(seed, round(seconds * rate)))


def write_wav(
    path: Path,
    channels: Sequence[Pcm],
    *,
    rate_hz: int = SOUND_RATE_HZ,
    chunks: Sequence[tuple[bytes, bytes]] = (),
) -> Path:
    """Channels as a WAV file; ``chunks`` come before the samples."""
    samples = np.stack(channels, axis=1).astype("<i2").tobytes()
    block = 2 * len(channels)
    form = struct.pack("<HHIIHH", 1, len(channels), rate_hz, rate_hz * block, block, 16)
    parts = [(b"fmt ", form), *chunks, (b"data", samples)]
    body = b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in parts
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body)
    return path


def bext(time_reference: int = 0, description: str = "") -> tuple[bytes, bytes]:
    """A ``bext`` chunk (EBU Tech 3285)."""
    head = description.encode().ljust(256, b"\0") + bytes(32 + 32 + 10 + 8)
    return b"bext", head + struct.pack("<Q", time_reference) + bytes(2 + 64 + 190)


def ixml(
    *, names: Sequence[str] = (), rate: str | None = None, flag: str = "NDF"
) -> tuple[bytes, bytes]:
    """An ``iXML`` chunk that names channels and the timecode's rate."""
    tracks = "".join(
        f"<TRACK><CHANNEL_INDEX>{number}</CHANNEL_INDEX>"
        f"<INTERLEAVE_INDEX>{number}</INTERLEAVE_INDEX><NAME>{name}</NAME></TRACK>"
        for number, name in enumerate(names, start=1)
    )
    speed = "" if rate is None else (
        f"<SPEED><TIMECODE_RATE>{rate}</TIMECODE_RATE><TIMECODE_FLAG>{flag}</TIMECODE_FLAG></SPEED>"
    )  # fmt: skip
    text = f"<BWFXML>{speed}<TRACK_LIST>{tracks}</TRACK_LIST></BWFXML>"
    return b"iXML", b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()


class Place:
    """A store with a job's workspace, and media that goes through it as in the service."""

    def __init__(self, root: Path) -> None:
        self.store = FolderStore(root / "store")
        self.store.root.mkdir(parents=True, exist_ok=True)
        self.workspace = Workspace(self.store, "job")
        self.config = IngestConfig(segment_seconds=5.0, temporary_folder=root / "temporary")

    def put(self, path: Path) -> str:
        """Store a file under its name."""
        key = f"source/{path.name}"
        self.store.write_bytes(key, path.read_bytes())
        return key

    def clip(self, path: Path) -> ClipFile:
        return ClipFile(self.put(path), path.name)

    def sound(self, path: Path, **options: Any) -> ExternalFile:
        return ExternalFile(self.put(path), path.name, **options)

    @property
    def context(self) -> IngestContext:
        return IngestContext(self.workspace, FreeRun(), self.config)

    def probe(self, media: SourceMedia) -> ProbedMedia:
        return probe_media(media, self.context)

    def ingest(self, media: SourceMedia, *, video: bool = False) -> IngestResult:
        """The media ingested; nothing temporary is left."""
        (self.config.temporary_folder or self.store.root).mkdir(exist_ok=True)
        result = ingest_media(self.probe(media), self.context, video=video, audio=True)
        temporary = self.config.temporary_folder
        assert temporary is None or not any(temporary.iterdir())
        return result
