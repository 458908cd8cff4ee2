"""Camera files with sound, and WAV files as field recorders write them, made for the tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.external_audio import ExternalFile
from pipelines.ingest.pipeline import IngestConfig, IngestContext
from pipelines.ingest.source import ClipFile, ProbedMedia, SourceMedia, ingest_media, probe_media
from pipelines.types import IngestResult
from storage.objects.folder import FolderStore
from tests.pipelines.media_builders import still_shot

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
