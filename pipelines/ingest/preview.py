"""Previews: a small MP4 of media that browsers cannot play, made beside the analysis or after it.

H.264 and AAC, at most 640 x 360 (turned: 360 x 640), 30 frames and PICTURE_BITS a second.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.ingest import preview_file
from pipelines.ingest.pipeline import run_media_task
from pipelines.ingest.preview_file import EncodeOrder, SmallPicture
from pipelines.ingest.streams import ProbeLimits
from pipelines.media.files import Source
from pipelines.sandbox.confinement import Allowance
from pipelines.sandbox.parent import ConfinedTask
from pipelines.types import MediaInfo, StageCode, StageError
from storage.objects import ObjectStore
from storage.objects.local_files import temporary_folder

LONG_SIDE_PX, SHORT_SIDE_PX = 640, 360
MOST_FRAMES_A_SECOND = 30.5
PICTURE_BITS, FEWEST_PICTURE_BITS = 700_000, 100_000
"""A second at most, and the least with which anything can be seen."""
SOUND_BITS, FEWEST_SOUND_BITS = 96_000, 48_000
_SHARE_OF_BYTES = 0.92
"""The rest is for the container, and for what the encoder takes beyond its rate for a while."""
_SECONDS_A_MEDIA_SECOND = 3.0
"""Processor time: decoding 4K takes more than a second for one, tone mapping as much."""
_LEAST_SECONDS = 60.0

_PICTURES = {
    "mov,mp4,m4a,3gp,3g2,mj2": {"h264", "vp9", "av1"},
    "matroska,webm": {"vp8", "vp9", "av1"},
}
_SOUNDS = {
    "mov,mp4,m4a,3gp,3g2,mj2": {"aac", "mp3", "opus", "flac"},
    "matroska,webm": {"opus", "vorbis"},
    "ogg": {"opus", "vorbis", "flac"},
    "wav": {"pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_f32le"},
    "mp3": {"mp3"},
    "aac": {"aac"},
    "flac": {"flac"},
}
"""What Chromium, Firefox and Safari all play, by FFmpeg's names of container and codec."""
_EIGHT_BITS = {"yuv420p", "yuvj420p"}
"""Pixels of the H.264 that is played everywhere."""


def is_playable(media: MediaInfo) -> bool:
    """Return whether browsers play the file as it is: its picture, and the first of its sounds."""
    video = media.video
    if media.timeline.repairs:
        return False
    if video is not None:
        if video.codec not in _PICTURES.get(media.container, ()):
            return False
        if video.transparent:  # What a page shows behind it may be as dark as it is.
            return False
        if video.codec == "h264" and video.pixel_format not in _EIGHT_BITS:
            return False
    return all(stream.codec in _SOUNDS.get(media.container, set()) for stream in media.audio[:1])


@dataclass(frozen=True, slots=True)
class PreviewOrder:
    """What a preview is made of; ``media`` is what probing found in the file itself."""

    source_key: str
    target_key: str
    media: MediaInfo
    most_bytes: int
    wall_seconds: float
    """It waits while others need the processors, so this is long."""
    muted: tuple[tuple[int, int], ...] = ()
    """Milliseconds of the media, in order: intervals without sound."""


def make_preview(
    order: PreviewOrder,
    store: ObjectStore,
    *,
    check: Callable[[], None],
    limits: ProbeLimits | None = None,
) -> None:
    """Make the preview and put it into the store. Raises StageError with the reason,
    ObjectNotFoundError where the source is gone, and whatever ``check`` raises, soon; nothing is
    stored then."""
    limits = limits or ProbeLimits()
    seconds = _LEAST_SECONDS + order.media.duration_seconds * _SECONDS_A_MEDIA_SECOND
    seconds += limits.seconds_for(order.media.size_bytes)
    with (
        store.local_copy(order.source_key, check=check) as source,
        temporary_folder("preview-") as folder,
    ):
        path = source.resolve()
        task = ConfinedTask(
            program=preview_file.make,
            order=_encode_order(order, path, folder.resolve()),
            allowance=Allowance(limits.memory_bytes, math.ceil(seconds), order.most_bytes),
            wall_seconds=order.wall_seconds,
            readable=(path,),
            writable=(folder.resolve(),),
            gives_way=True,
        )
        run_media_task(task, dict[str, int], check=check)
        check()
        made = folder / preview_file.NAME
        with made.open("rb") as data, store.writer(order.target_key) as target:
            shutil.copyfileobj(data, target, 1 << 20)


def _encode_order(order: PreviewOrder, path: Path, folder: Path) -> EncodeOrder:
    """Rates that keep the preview below its bytes; raises StageError for media too long."""
    media = order.media
    bits = int(order.most_bytes * 8 * _SHARE_OF_BYTES / max(1.0, media.duration_seconds))
    roomy = bits >= PICTURE_BITS + SOUND_BITS
    sound_bits = SOUND_BITS if roomy else FEWEST_SOUND_BITS
    picture_bits = min(PICTURE_BITS, bits - sound_bits)
    least = FEWEST_SOUND_BITS + (FEWEST_PICTURE_BITS if media.video else 0)
    if bits < least:
        raise StageError(StageCode.INGEST_FAILED, "It is too long for a preview.")
    picture, video = None, media.video
    if video is not None:
        size = preview_size(video.width, video.height)
        step = max(1, math.ceil(video.frame_rate / MOST_FRAMES_A_SECOND))
        shape = video.orientation, video.pixels
        picture = SmallPicture(video.index, *size, step, picture_bits, *shape)
    return EncodeOrder(
        source=Source(path, *media.timeline.layout),
        folder=folder,
        video=picture,
        audio_bits=sound_bits,
        origin_ms=media.origin_ms,
        duration_seconds=media.duration_seconds,
        muted=order.muted,
    )


def preview_size(width: int, height: int) -> tuple[int, int]:
    """In pixels, both even; what is small already stays so."""
    long, short = max(width, height), min(width, height)
    factor = min(1.0, LONG_SIDE_PX / long, SHORT_SIDE_PX / short)
    return max(2, round(width * factor / 2) * 2), max(2, round(height * factor / 2) * 2)
