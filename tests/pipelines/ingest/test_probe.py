"""Probing: what a file holds by its own packets, and which files are refused."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from pipelines.ingest.pipeline import probe
from pipelines.ingest.streams import ProbeLimits
from pipelines.media.files import rounded_ms
from pipelines.media_types import Orientation
from pipelines.types import StageCode, StageError
from tests.pipelines.ingest.ingest_material import (
    HEIGHT,
    RATE,
    WIDTH,
    Clip,
    Sound,
    clicks,
    picture,
    write_clip,
    write_sound,
)
from tests.tables import every

X264 = {"x264-params": "keyint=15:scenecut=0:threads=1"}
CLIP = Clip("clip.mp4", "libx264", X264, frames=50)


def test_numbers_of_a_plain_clip_come_from_its_packets(tmp_path: Path) -> None:
    path = write_clip(tmp_path, CLIP)

    media = probe(path)

    assert media.size_bytes == path.stat().st_size
    assert media.duration_seconds == pytest.approx(2.0, abs=0.001)
    assert (media.audio, media.timecode, media.origin_ms, media.warnings) == ((), None, 0, ())
    video = media.video
    assert video is not None
    assert (video.codec, video.width, video.height) == ("h264", WIDTH, HEIGHT)
    assert (video.frame_count, video.keyframe_count, video.end_ms) == (50, 4, 2000)
    assert video.frame_rate == pytest.approx(25.0)
    assert (video.orientation, video.sample_aspect) == (Orientation(), 1.0)
    assert not video.interlaced
    assert not video.hdr


@every(
    "missing", [*(range(first, first + 8) for first in range(82, 92)), range(40, 60), ()], ids=str
)
def test_the_last_picture_lasts_for_its_own_length_where_phones_leave_some_out(
    tmp_path: Path, missing: Sequence[int]
) -> None:
    """With B-frames the length of a sample is a step between times of decoding."""
    path = tmp_path / f"phone{len(missing)}-{min(missing, default=0)}.mp4"
    params = {"x264-params": "keyint=250:bframes=3:b-adapt=0:scenecut=0:threads=1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options=params)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(100):
            if number not in missing:
                frame = av.VideoFrame.from_ndarray(picture(number), format="yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    video = probe(path).video
    assert video is not None
    assert video.end_ms - video.start_ms == pytest.approx(4_000, abs=41)


def test_reading_a_long_file_tells_how_far_it_is(tmp_path: Path) -> None:
    path = write_long(tmp_path / "long.mov", 6_500)
    told: list[float] = []

    assert probe(path, on_progress=told.append) == probe(path)

    assert len(told) == 3
    assert told == sorted(told)
    assert told == pytest.approx([2 / 6.5, 4 / 6.5, 6 / 6.5], abs=0.1)


def write_long(path: Path, frames: int) -> Path:
    """A video of one picture, encoded once and written again and again."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mjpeg", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        shown: Any = av.VideoFrame.from_ndarray(picture(0), "yuv420p").reformat(format="yuvj420p")
        encoded: list[Any] = stream.encode(shown) + stream.encode(None)
        assert len(encoded) == 1
        for number in range(frames):
            packet = av.Packet(bytes(encoded[0]))
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, RATE), True
            packet.pts = packet.dts = number
            container.mux(packet)
    return path


def test_the_name_says_nothing_about_the_content(tmp_path: Path) -> None:
    path = write_clip(tmp_path, CLIP)
    odd = tmp_path / "-i concat:%04d.txt"
    shutil.copy(path, odd)

    assert probe(odd) == probe(path)


def test_sound_is_listed_with_language_and_title(tmp_path: Path) -> None:
    path = tmp_path / "a.mka"
    with av.open(str(path), "w") as container:
        for title, language in (("Narrator", "eng"), ("", "und")):
            stream: Any = container.add_stream("pcm_s16le", rate=22_050)
            stream.codec_context.layout = "stereo"
            stream.metadata.update({"title": title, "language": language})
        for stream in container.streams:
            silence = np.zeros((1, 2 * 22_050), np.int16)
            frame: Any = av.AudioFrame.from_ndarray(silence, "s16", "stereo")
            frame.sample_rate = 22_050
            container.mux(stream.encode(frame))

    media = probe(path)

    assert media.video is None
    assert [(a.title, a.language) for a in media.audio] == [("Narrator", "eng"), (None, None)]
    assert {(a.codec, a.sample_rate_hz, a.channels) for a in media.audio} == {
        ("pcm_s16le", 22_050, 2)
    }
    assert media.duration_seconds == pytest.approx(1.0, abs=0.01)


def _header_duration(path: Path, factor: int) -> None:
    """Multiply the durations that an MP4's mvhd and tkhd claim."""
    data = bytearray(path.read_bytes())
    for name, offset in ((b"mvhd", 20), (b"tkhd", 24)):
        at = data.find(name) + offset
        (value,) = struct.unpack(">I", data[at : at + 4])
        data[at : at + 4] = struct.pack(">I", value * factor)
    path.write_bytes(data)


def test_the_duration_is_that_of_the_packets_not_the_one_the_header_claims(
    tmp_path: Path,
) -> None:
    path = write_clip(tmp_path, CLIP)
    _header_duration(path, 100_000)

    assert probe(path).duration_seconds == pytest.approx(2.0, abs=0.001)


def test_a_clip_that_starts_late_has_its_start_as_origin(tmp_path: Path) -> None:
    media = probe(write_clip(tmp_path, replace(CLIP, first_frame=40)))

    assert media.origin_ms == 1600
    assert media.duration_seconds == pytest.approx(2.0, abs=0.001)
    assert media.video is not None
    assert media.video.end_ms == 2000


def test_the_mean_frame_rate_of_uneven_times(tmp_path: Path) -> None:
    times = [0, 10, 500, 520, 1000, 2000]
    media = probe(write_clip(tmp_path, replace(CLIP, frames=6, times_ms=times)))

    assert media.video is not None
    assert media.video.frame_rate == pytest.approx(5 / 2.0)


def test_a_single_frame_has_no_frame_rate(tmp_path: Path) -> None:
    media = probe(write_clip(tmp_path, replace(CLIP, frames=1)))

    assert media.video is not None
    assert (media.video.frame_count, media.video.frame_rate) == (1, 0.0)


def _encode(path: Path, adjust: Callable[[Any], None], metadata: dict[str, str]) -> None:
    with av.open(str(path), "w") as container:
        container.metadata.update(metadata)
        stream: Any = container.add_stream("libx264", rate=25, options=X264)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        adjust(stream)
        for _ in range(10):
            frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def test_width_is_given_in_square_pixels(tmp_path: Path) -> None:
    path = tmp_path / "wide.mp4"

    def two_to_three(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 3)

    _encode(path, two_to_three, {})

    video = probe(path).video
    assert video is not None
    assert (video.width, video.height) == (round(WIDTH * 2 / 3), HEIGHT)
    assert video.sample_aspect == pytest.approx(2 / 3)


@pytest.mark.parametrize("transfer", [16, 18], ids=["PQ", "HLG"])
def test_high_dynamic_range_is_seen(transfer: int, tmp_path: Path) -> None:
    path = tmp_path / "hdr.mp4"

    def mark(stream: Any) -> None:
        stream.codec_context.color_trc = transfer

    _encode(path, mark, {})

    video = probe(path).video
    assert video is not None
    assert video.hdr


def test_a_start_timecode_is_found(tmp_path: Path) -> None:
    path = tmp_path / "timecode.mov"
    _encode(path, lambda stream: stream.metadata.update(timecode="10:00:00:05"), {})

    assert probe(path).timecode == "10:00:00:05"


MATRIX = {
    Orientation(90): (0, 1, 0, -1, 0, 0),
    Orientation(180): (-1, 0, 0, 0, -1, 0),
    Orientation(270): (0, -1, 0, 1, 0, 0),
    Orientation(0, mirrored=True): (-1, 0, 0, 0, 1, 0),
    Orientation(90, mirrored=True): (0, -1, 0, -1, 0, 0),
    Orientation(180, mirrored=True): (1, 0, 0, 0, -1, 0),
    Orientation(270, mirrored=True): (0, 1, 0, 1, 0, 0),
}


@every("orientation", MATRIX, ids=str)
def test_a_picture_taken_sideways_or_mirrored_is_displayed_upright(
    orientation: Orientation, tmp_path: Path
) -> None:
    """The track header's matrix, ISO 14496-12: clockwise by 90 is [0 1 0, -1 0 0]."""
    path = write_clip(tmp_path, CLIP)
    data = bytearray(path.read_bytes())
    a, b, u, c, d, v = (value * 65536 for value in MATRIX[orientation])
    at = data.find(b"tkhd") + 4 + 40
    data[at : at + 24] = struct.pack(">6i", a, b, u, c, d, v)
    path.write_bytes(data)

    video = probe(path).video

    assert video is not None
    assert video.orientation == orientation
    upright = (HEIGHT, WIDTH) if orientation.swaps_sides else (WIDTH, HEIGHT)
    assert (video.width, video.height) == upright


def test_cover_art_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "song.mp3"
    with av.open(str(path), "w") as container:
        sound: Any = container.add_stream("libmp3lame", rate=44_100)
        cover: Any = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame(64, 64, "yuvj420p")))
        container.mux(cover.encode(None))
        frame: Any = av.AudioFrame.from_ndarray(np.zeros((2, 44_100), np.int16), "s16p", "stereo")
        frame.sample_rate = 44_100
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))

    media = probe(path)

    assert media.video is None
    assert len(media.audio) == 1


def test_the_largest_of_several_videos_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams: list[Any] = []
        for width, height in ((64, 48), (128, 96), (128, 96)):
            stream: Any = container.add_stream("libx264", rate=25, options=X264)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            streams.append(stream)
        for stream in streams:
            for _ in range(5):
                container.mux(stream.encode(av.VideoFrame(stream.width, stream.height, "yuv420p")))
            container.mux(stream.encode(None))

    video = probe(path).video

    assert video is not None
    assert (video.index, video.width) == (1, 128)


def test_a_stream_that_cannot_be_decoded_is_ignored_with_a_warning(tmp_path: Path) -> None:
    path = write_clip(tmp_path, replace(CLIP, file_name="two.mkv"))
    with av.open(str(path)) as source, av.open(str(tmp_path / "bad.mkv"), "w") as target:
        good: Any = target.add_stream_from_template(source.streams.video[0])
        broken: Any = target.add_stream("libvpx", rate=25)
        broken.width, broken.height = 64, 64
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                junk: Any = av.Packet(bytes(range(200)))
                junk.stream, junk.pts, junk.dts = broken, number, number
                junk.time_base = Fraction(1, 25)
                packet.stream = good
                target.mux(packet)
                target.mux(junk)

    media = probe(tmp_path / "bad.mkv")

    assert media.video is not None
    assert media.video.index == 0
    assert [warning.code for warning in media.warnings] == ["STREAM_IGNORED"]
    assert media.warnings[0].message == "Stream 1 was ignored: nothing of it can be decoded."


def test_media_without_a_length_is_refused(tmp_path: Path) -> None:
    path = write_sound(tmp_path, Sound("tiny.wav", "pcm_s16le", 48_000), np.zeros((1, 4)))

    with pytest.raises(StageError, match="The media has no length") as caught:
        probe(path)

    assert caught.value.code is StageCode.VALIDATION_FAILED


LIMITS = [
    pytest.param(ProbeLimits(max_duration_seconds=1), "longer than 1 seconds", id="duration"),
    pytest.param(ProbeLimits(max_width=100), "128 x 96; the limit is 100 x", id="width"),
    pytest.param(ProbeLimits(max_height=95), "the limit is 8192 x 95", id="height"),
    pytest.param(ProbeLimits(max_streams=0), "1 streams; the limit is 0", id="streams"),
    pytest.param(ProbeLimits(memory_bytes=1 << 20), "more memory", id="memory"),
]


@every(("limits", "sentence"), LIMITS)
def test_a_file_over_a_limit_is_refused_and_the_limit_named(
    limits: ProbeLimits, sentence: str, tmp_path: Path
) -> None:
    path = write_clip(tmp_path, CLIP)

    with pytest.raises(StageError) as caught:
        probe(path, limits)

    assert caught.value.code is StageCode.VALIDATION_FAILED
    assert sentence in caught.value.message


def test_a_file_at_a_limit_is_accepted(tmp_path: Path) -> None:
    limits = ProbeLimits(max_duration_seconds=2, max_width=WIDTH, max_height=HEIGHT, max_streams=1)

    assert probe(write_clip(tmp_path, CLIP), limits).video is not None


@every(
    ("ticks", "time_base", "milliseconds"),
    [
        (0, "1/1000", 0),
        (1, "1/30", 33),
        (1, "1/2000", 1),
        (-1, "1/2000", -1),
        (3, "1/2000", 2),
        (1001, "1/30000", 33),
        (-1001, "1/30000", -33),
        (2**53 + 1, "1/1000", 2**53 + 1),
        (90_000 * 86_400, "1/90000", 86_400_000),
    ],
)
def test_ticks_become_milliseconds_rounded_half_away_from_zero(
    ticks: int, time_base: str, milliseconds: int
) -> None:
    assert rounded_ms(ticks, Fraction(time_base)) == milliseconds


def test_probing_starts_fast_enough_to_stand_in_a_request_path(tmp_path: Path) -> None:
    sound = Sound("a.wav", "pcm_s16le", 16_000)
    path = write_sound(tmp_path, sound, clicks([0.5], 1.0, 16_000))

    def processor_seconds() -> float:
        before = os.times()
        probe(path)
        return sum(now - then for now, then in zip(os.times()[:4], before[:4], strict=True))

    assert min(processor_seconds() for _ in range(5)) < 1.0  # 0.1 s by itself
