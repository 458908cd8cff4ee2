"""Previews: what browsers cannot play becomes a small H.264/AAC MP4 with the same times."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import psutil
import pytest

from pipelines.ingest.pipeline import probe
from pipelines.ingest.preview import PreviewOrder, is_playable, make_preview, preview_size
from pipelines.media_types import Orientation
from pipelines.types import MediaInfo, StageError, StageStoppedError
from storage.objects.folder import FolderStore
from tests.pipelines.ingest.clock_material import joined_as_turned, turned_by_pictures
from tests.pipelines.ingest.format_samples import (
    AMR,
    AUDIO_ONLY,
    CLICK_SECONDS,
    CUT_SECONDS,
    H264,
    STANDARD,
    Pictures,
    Sample,
    Sound,
    write_sample,
)
from tests.pipelines.ingest.ingest_material import onsets
from tests.pipelines.media_builders import write_video
from tests.places import DEMO, SHARED_MEDIA
from tests.stopwatch import Stopwatch
from tests.tables import every

pytestmark = pytest.mark.usefixtures("previews_at_once")

SAMPLES = {sample.file_name: sample for sample in (*STANDARD, *AUDIO_ONLY)}
PLAYABLE = {
    "h264.mp4", "av1.mp4", "vp9.webm", "av1.webm", "h264.f4v", "plain.wav", "byte.wav",
    "float.wav", "recorder.bwf", "large.wav", "song.mp3", "aac.m4a", "adts.aac", "plain.flac",
    "vorbis.ogg", "flac.oga", "speech.opus", "opus.mka",
}  # fmt: skip
FEW = ["mpeg2.mpeg", "prores.mov", "mpeg4.avi", "hevc.mkv", "h264-422-10bit.mov", "plain.aif"]
"""Made previews of in every run; of all the others in the long one."""
GIB = 1 << 30


def order(path: Path, media: MediaInfo, most_bytes: int = GIB) -> PreviewOrder:
    return PreviewOrder(path.name, "preview.mp4", media, most_bytes, 600)


def preview_of(path: Path, media: MediaInfo | None = None, most_bytes: int = GIB) -> Path:
    """The preview of a file in a folder, which is the store."""
    store = FolderStore(path.parent)
    wanted = order(path, media or probe(path), most_bytes)
    make_preview(wanted, store, check=lambda: None)
    return path.parent / wanted.target_key


def cut_seconds(path: Path) -> float:
    """When the picture changes most."""
    with av.open(str(path)) as container:
        frames = [
            (frame.time, frame.to_ndarray(format="gray")) for frame in container.decode(video=0)
        ]
    steps = [
        (float(np.abs(now[1].astype(int) - before[1]).mean()), now[0])
        for before, now in itertools.pairwise(frames)
    ]
    return float(max(steps)[1])


def click_seconds(path: Path) -> list[float]:
    resampler = av.AudioResampler("flt", "mono", 16_000)
    with av.open(str(path)) as container:
        parts = [
            part.to_ndarray()[0]
            for frame in container.decode(audio=0)
            for part in resampler.resample(frame)
        ]
    return onsets(np.concatenate(parts), 0.2)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in SAMPLES],
)
def test_what_browsers_cannot_play_gets_a_preview_with_the_same_times(
    name: str, tmp_path: Path
) -> None:
    sample = SAMPLES[name]
    path = write_sample(tmp_path, sample)
    media = probe(path)
    assert is_playable(media) == (name in PLAYABLE)
    made = preview_of(path, media)
    found = probe(made)
    assert is_playable(found)
    assert found.origin_ms == 0
    assert found.duration_seconds == pytest.approx(media.duration_seconds, abs=0.1)
    if sample.pictures is not None:
        assert found.video is not None
        assert (found.video.codec, found.video.pixel_format) == ("h264", "yuv420p")
        assert cut_seconds(made) == pytest.approx(CUT_SECONDS, abs=0.09)
    if sample.sound is not None:
        assert [stream.codec for stream in found.audio] == ["aac"]
    if sample.sound not in (None, AMR):  # which leaves nothing of a click
        assert click_seconds(made) == pytest.approx(CLICK_SECONDS, abs=0.06)
    # Begins to play before all of it has come.
    assert made.read_bytes().find(b"moov") < made.read_bytes().find(b"mdat")


def test_a_preview_is_small_whatever_the_source(tmp_path: Path) -> None:
    """Large, 60 frames a second, and noise all over."""
    sample = Sample("large.mkv", Pictures("ffv1", 1280, 720, rate=60), Sound("pcm_s16le"))
    path = write_sample(tmp_path, sample)
    found = probe(preview_of(path))
    assert found.video is not None
    assert (found.video.width, found.video.height) == (640, 360)
    assert found.video.frame_rate == pytest.approx(30, abs=0.1)
    assert found.size_bytes < found.duration_seconds * 150_000


@every(
    ("stored", "shown"),
    [((1920, 1080), (640, 360)), ((1080, 1920), (360, 640)), ((768, 576), (480, 360)),
     ((320, 180), (320, 180)), ((4096, 2), (640, 2)), ((161, 121), (160, 120))],
)  # fmt: skip
def test_the_size_of_a_preview(stored: tuple[int, int], shown: tuple[int, int]) -> None:
    assert preview_size(*stored) == shown


@pytest.mark.parametrize(
    ("orientation", "corner"),
    [
        (Orientation(90), (0, 1)),
        (Orientation(180), (1, 1)),
        (Orientation(270), (1, 0)),
        (Orientation(0, mirrored=True), (0, 1)),
        (Orientation(180, mirrored=True), (1, 0)),
        (Orientation(90, mirrored=True), (1, 1)),
        (Orientation(270, mirrored=True), (0, 0)),
    ],
    ids=str,
)
def test_a_picture_taken_sideways_or_mirrored_is_upright(
    orientation: Orientation, corner: tuple[int, int], tmp_path: Path
) -> None:
    """What is light in the stored picture's upper left comes to where the turn takes it."""
    path = tmp_path / "turned.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 80, "yuv420p"
        picture = np.zeros((80, 160, 3), np.uint8)
        picture[:40, :80] = 255
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    media = probe(path)
    assert media.video is not None
    size = (80, 160) if orientation.swaps_sides else (160, 80)
    turned = replace(media.video, orientation=orientation, width=size[0], height=size[1])
    with av.open(str(preview_of(path, replace(media, video=turned)))) as container:
        shown = next(container.decode(video=0)).to_ndarray(format="gray")
    assert shown.shape == size[::-1]
    quarters = [[shown[:10, :10], shown[:10, -10:]], [shown[-10:, :10], shown[-10:, -10:]]]
    means = np.array([[part.mean() for part in row] for row in quarters])
    assert divmod(int(means.argmax()), 2) == corner


@pytest.mark.parametrize(
    ("write", "seconds"),
    [
        pytest.param(turned_by_pictures, 2, id="by pictures"),
        pytest.param(joined_as_turned, 6, id="by joined files", marks=pytest.mark.long),
    ],
)
def test_a_picture_that_turns_in_mid_stream_is_upright_in_a_preview(
    write: Callable[[Path], Path], seconds: int, tmp_path: Path
) -> None:
    """The first part stands on its side, the others lie inside its shape with bars."""
    preview = preview_of(write(tmp_path))
    with av.open(str(preview)) as made, av.open(str(tmp_path / "film.mp4")) as film:
        frames = list(made.decode(video=0))
        stored = [frame.to_ndarray(format="gray") for frame in film.decode(video=0)]
    for part, turn in enumerate((Orientation(270), Orientation(180), Orientation())):
        number = (part * seconds + 1) * 25
        expected = turn.upright(stored[number % len(stored)])
        picture = frames[number].to_ndarray(format="gray")
        if part:
            width = picture.shape[1]
            height = round(width * expected.shape[0] / expected.shape[1] / 2) * 2
            top = (picture.shape[0] - height) // 2
            assert picture[: top - 2].mean() < 20
            picture = picture[top : top + height]
            expected = cv2.resize(expected, (width, height), interpolation=cv2.INTER_AREA)
        assert picture.shape == expected.shape
        assert np.abs(picture.astype(int) - expected).mean() < 8


def test_sound_that_begins_late_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "late.mkv"
    write_sample(tmp_path, SAMPLES["mpeg4.avi"])
    with av.open(str(tmp_path / "mpeg4.avi")) as source, av.open(str(path), "w") as target:
        streams = [target.add_stream_from_template(each) for each in source.streams]
        for packet in source.demux():
            if packet.dts is None:
                continue
            if packet.stream.type == "audio":
                packet.pts += round(0.4 / packet.time_base)
                packet.dts = packet.pts
            packet.stream = streams[packet.stream.index]
            target.mux(packet)
    later = [seconds + 0.4 for seconds in CLICK_SECONDS]
    assert click_seconds(preview_of(path)) == pytest.approx(later, abs=0.06)


def test_media_that_is_too_long_gets_none(tmp_path: Path) -> None:
    path = write_sample(tmp_path, SAMPLES["mpeg4.avi"])
    media = replace(probe(path), duration_seconds=24 * 3600.0)
    with pytest.raises(StageError, match="too long for a preview"):
        preview_of(path, media)
    assert not (tmp_path / "preview.mp4").exists()


def test_a_preview_takes_no_more_room_than_it_may(tmp_path: Path) -> None:
    """What the file says of its length is not believed."""
    path = write_sample(tmp_path, SAMPLES["mpeg4.avi"])
    with pytest.raises(StageError):
        preview_of(path, replace(probe(path), duration_seconds=0.01), most_bytes=4_000)
    assert not (tmp_path / "preview.mp4").exists()


def test_what_is_no_media_gets_none(tmp_path: Path) -> None:
    path = write_sample(tmp_path, SAMPLES["mpeg4.avi"])
    media = probe(path)
    path.write_bytes(b"<html>" * 1000)
    with pytest.raises(StageError):
        preview_of(path, media)


def test_making_ends_soon_after_it_was_told_to(tmp_path: Path) -> None:
    path = tmp_path / "long.mkv"
    sample = Sample("long.mkv", replace(H264, width=1920, height=1080), Sound("flac", format="s16"))
    write_sample(tmp_path, sample)
    media = probe(path)
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.1:
            raise StageStoppedError("no")

    with Stopwatch() as watch, pytest.raises(StageStoppedError):
        make_preview(order(path, media), FolderStore(tmp_path), check=check)
    assert watch.seconds < 1.5
    assert not (tmp_path / "preview.mp4").exists()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
def test_making_takes_only_idle_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    sample = Sample("large.mkv", Pictures("mpeg2video", 1920, 1080), Sound("flac", format="s16"))
    path = write_sample(tmp_path, sample)
    policies: set[int] = set()
    sessions: set[str] = set()

    def check() -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(OSError):
                policies.add(os.sched_getscheduler(child.pid))
                # Empty where the child ends while it is read.
                sessions.update(Path(f"/proc/{child.pid}/autogroup").read_text().split()[-1:])
        if os.SCHED_IDLE in policies and (not sessions or "19" in sessions):
            raise StageStoppedError("seen")  # of idle time there may be none

    with contextlib.suppress(StageStoppedError):
        make_preview(order(path, probe(path)), FolderStore(tmp_path), check=check)
    assert os.SCHED_IDLE in policies
    assert not sessions or "19" in sessions  # of kernels that share between sessions first
    assert os.sched_getscheduler(0) != os.SCHED_IDLE


@pytest.mark.long
@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["hdr10-video-with-sdr-container.mp4", "hlg10-color-test.mp4"])
def test_high_dynamic_range_is_tone_mapped(name: str, tmp_path: Path) -> None:
    """Neither grey nor burnt out: it uses the range from dark to light."""
    [found] = SHARED_MEDIA.rglob(name)
    path = tmp_path / name
    path.write_bytes(found.read_bytes())
    with av.open(str(preview_of(path))) as container:
        shown = next(container.decode(video=0)).to_ndarray(format="gray")
    assert np.percentile(shown, 99) - np.percentile(shown, 1) > 90


def test_the_demo_is_played_as_it_is() -> None:
    assert is_playable(probe(DEMO))


def test_a_preview_keeps_the_shape_of_pictures_that_change(tmp_path: Path) -> None:
    """A grey square stays one although the stream goes on in 4:3, and then in wide pixels."""
    parts = []
    for number, (width, pixel) in enumerate(
        [(320, Fraction(1)), (240, Fraction(1)), (240, Fraction(4, 3))]
    ):
        square = round(60 / pixel)
        picture = np.zeros((180, width, 3), np.uint8)
        picture[60:120, (width - square) // 2 : (width + square) // 2] = 128
        path = write_video(tmp_path / f"{number}.ts", [picture] * 25, pixel_aspect=pixel)
        parts.append(path.read_bytes())
    (tmp_path / "joined.ts").write_bytes(b"".join(parts))
    with av.open(str(preview_of(tmp_path / "joined.ts"))) as container:
        shown = [frame.to_ndarray(format="gray") > 64 for frame in container.decode(video=0)]
    assert len(shown) == 75
    for each in shown:
        assert each.any(axis=0).sum() == pytest.approx(each.any(axis=1).sum(), abs=4)
