"""Programmes: clips of different size, rate and codec on one timeline."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun
from pipelines.ingest.source import SourceMedia
from pipelines.ingest.streams import ProbeLimits
from pipelines.types import IngestResult, Scene, StageCode, StageError, VideoSource
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from tests.pipelines.ingest.ingest_material import (
    Pcm,
    Place,
    onsets,
    samples_of,
    shot,
    write_footage,
)
from tests.pipelines.media_builders import still_shot, texture
from tests.places import SHARED_MEDIA


def ticks(*seconds: float, length: float) -> Pcm:
    """Silence with a short loud burst at each of the times."""
    samples = np.zeros(round(length * 16_000), np.int16)
    burst = np.round(26_000 * np.sin(2 * np.pi * 1_000 * np.arange(64) / 16_000 + np.pi / 2))
    for moment in seconds:
        start = round(moment * 16_000)
        samples[start : start + 64] = burst
    return samples


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Clips with known cuts and ticks: 6 s with a cut at 3.2 s and a tick at 1 s; 4 s without
    sound, half the size, at 30 frames a second; sound alone of 2.5 s with a tick at 0.5 s;
    6 s tall with cuts at 2 s and 4 s, a tick at 5 s and a second sound with one at 2 s."""
    folder = tmp_path_factory.mktemp("clips")
    tall = [
        frame for seed in (5, 6, 7) for frame in [texture(seed, 120, 200).copy()] for _ in range(48)
    ]
    return {
        "first": write_footage(
            folder / "first.mp4",
            pictures=[*shot(1, 3.2), *shot(2, 2.8)],
            sounds=[ticks(1.0, length=6)],
            sound_codec="aac",
        ),
        "mute": write_footage(
            folder / "mute.webm",
            pictures=[frame[:90, :160] for frame in still_shot(3, 120)],
            rate=30,
            codec="libvpx-vp9",
        ),
        "sound": write_footage(
            folder / "sound.mka", sounds=[ticks(0.5, length=2.5)], sound_codec="flac"
        ),
        "tall": write_footage(
            folder / "tall.mkv",
            pictures=tall,
            rate=24,
            codec="mpeg4",
            sounds=[ticks(5.0, length=6), ticks(2.0, length=6)],
        ),
    }


def programme(place: Place, *paths: Path) -> SourceMedia:
    return SourceMedia(tuple(place.clip(path) for path in paths), is_timeline=True)


def scenes_of(place: Place, video: VideoSource | None) -> tuple[Scene, ...]:
    assert video is not None
    return analyse_vision(
        video,
        workspace=place.workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
    ).scenes


ALL = ("first", "mute", "sound", "tall")


@pytest.fixture(scope="module")
def joined(
    clips: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Place, IngestResult]:
    place = Place(tmp_path_factory.mktemp("joined"))
    footage = programme(place, *(clips[name] for name in ALL))
    return place, place.ingest(footage, video=True)


Joined = tuple[Place, IngestResult]


def test_clips_lie_end_to_end(joined: Joined) -> None:
    spans = joined[1].clips
    assert [span.name for span in spans] == ["first.mp4", "mute.webm", "sound.mka", "tall.mkv"]
    lengths = [span.duration_ms for span in spans]
    assert lengths == pytest.approx([6_000, 4_000, 2_500, 6_000], abs=70)
    assert [span.start_ms for span in spans] == [0, *np.cumsum(lengths)[:-1]]
    assert joined[1].media.duration_seconds == sum(lengths) / 1000


def test_scenes_are_on_the_common_timeline_and_break_where_clips_meet(
    ray_session: None, joined: Joined
) -> None:
    place, result = joined
    scenes = scenes_of(place, result.video)
    first, mute, _, tall = (span.start_ms for span in result.clips)
    cuts = [first, first + 3_200, mute, tall, tall + 2_000, tall + 4_000]
    assert [scene.start_ms for scene in scenes] == pytest.approx(cuts, abs=42)
    assert [scene.start_ms for scene in scenes if scene.start_ms in (first, mute, tall)] == [
        first,
        mute,
        tall,
    ]
    assert all(one.end_ms == two.start_ms for one, two in pairwise(scenes))
    assert scenes[-1].end_ms == round(result.media.duration_seconds * 1000)
    assert [scene.confidence for scene in scenes if scene.start_ms in (mute, tall)] == [1.0, 1.0]


def test_every_scene_shows_a_picture_of_its_own_clip(ray_session: None, joined: Joined) -> None:
    from io import BytesIO

    from PIL import Image

    place, result = joined
    shapes = []
    for scene in scenes_of(place, result.video):
        picture = Image.open(BytesIO(place.store.read_bytes(scene.thumbnail_key)))
        shapes.append(picture.size)
    assert shapes == [(320, 180)] * 2 + [(160, 90)] + [(120, 200)] * 3


def test_sound_lies_where_its_clip_does_with_silence_between(joined: Joined) -> None:
    place, result = joined
    starts = [span.start_ms / 1000 for span in result.clips]
    ticked = [onsets(samples_of(place.store.path(track.key))) for track in result.tracks]
    assert ticked[0] == pytest.approx([starts[0] + 1, starts[2] + 0.5, starts[3] + 5], abs=0.003)
    assert ticked[1] == pytest.approx([starts[3] + 2], abs=0.003)
    assert [track.name for track in result.tracks] == ["Track 1", "Track 2"]
    for track in result.tracks:
        assert track.offset_seconds == 0
        assert track.duration_seconds == pytest.approx(result.media.duration_seconds, abs=0.001)
    assert len(result.media.audio) == 2


def test_a_clip_has_the_same_scenes_on_a_timeline_as_alone(
    ray_session: None, joined: Joined, clips: dict[str, Path], tmp_path: Path
) -> None:
    place, result = joined
    start_ms = result.clips[3].start_ms
    alone_place = Place(tmp_path)
    alone = alone_place.ingest(programme(alone_place, clips["tall"]), video=True)
    mine = [scene for scene in scenes_of(place, result.video) if scene.start_ms >= start_ms]
    own = scenes_of(alone_place, alone.video)
    assert [scene.start_ms - start_ms for scene in mine] == [scene.start_ms for scene in own]
    assert [scene.description for scene in mine] == [scene.description for scene in own]


@pytest.mark.parametrize("order", [("sound", "mute"), ("mute", "sound")])
def test_sound_alone_at_either_end_belongs_to_the_only_scene(
    ray_session: None, clips: dict[str, Path], tmp_path: Path, order: tuple[str, ...]
) -> None:
    place = Place(tmp_path)
    result = place.ingest(programme(place, *(clips[name] for name in order)), video=True)
    assert scenes_of(place, result.video) == ()
    assert result.video is not None
    assert result.video.duration_ms == sum(span.duration_ms for span in result.clips)


def test_a_timeline_of_audio_alone_has_no_picture(clips: dict[str, Path], tmp_path: Path) -> None:
    place = Place(tmp_path)
    result = place.ingest(programme(place, clips["sound"], clips["sound"]), video=True)
    assert result.video is None
    assert result.media.video is None
    ticked = onsets(samples_of(place.store.path(result.tracks[0].key)))
    assert ticked == pytest.approx([0.5, 3.0], abs=0.003)


def test_a_clip_that_cannot_be_read_fails_the_timeline_by_its_name(
    clips: dict[str, Path], tmp_path: Path
) -> None:
    place = Place(tmp_path)
    (tmp_path / "bad.mp4").write_bytes(b"no film")
    with pytest.raises(StageError, match=r"Clip 2 \(bad.mp4\): The file is not a media") as failed:
        place.probe(programme(place, clips["first"], tmp_path / "bad.mp4", clips["mute"]))
    assert failed.value.code is StageCode.VALIDATION_FAILED


def test_clips_together_must_not_be_longer_than_one_file_may_be(
    clips: dict[str, Path], tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.config = replace(place.config, limits=ProbeLimits(max_duration_seconds=9))
    with pytest.raises(StageError, match="together are longer than 9 seconds") as failed:
        place.probe(programme(place, clips["first"], clips["mute"]))
    assert failed.value.code is StageCode.VALIDATION_FAILED


def test_a_new_runner_cuts_and_joins_nothing_again(clips: dict[str, Path], tmp_path: Path) -> None:
    place = Place(tmp_path)
    footage = programme(place, clips["first"], clips["tall"])
    first = place.ingest(footage, video=True)
    written = {
        key: place.store.path(key).stat().st_mtime_ns for key in place.store.list_keys("job")
    }
    assert place.ingest(footage, video=True) == first
    again = {key: place.store.path(key).stat().st_mtime_ns for key in place.store.list_keys("job")}
    assert again == written


@pytest.mark.long
@pytest.mark.shared_media
def test_three_real_clips_keep_their_checked_cuts(ray_session: None, tmp_path: Path) -> None:
    """Of 640 x 272 at 25, 1280 x 720 at 24 and 640 x 360 at 25 frames a second; H.264 and VP8."""
    names = ["bikes.mp4", "big_buck_bunny_0_30.webm", "narrated-cuts-a.mp4"]
    place = Place(tmp_path)
    result = place.ingest(
        programme(place, *(SHARED_MEDIA / "cuts" / name for name in names)), video=True
    )
    scenes = scenes_of(place, result.video)
    starts_ms = [scene.start_ms for scene in scenes]
    assert {span.start_ms for span in result.clips} <= set(starts_ms)
    known_ms = [
        span.start_ms + cut_ms
        for span, name in zip(result.clips, names, strict=True)
        for cut_ms in true_cuts_ms(SHARED_MEDIA / "cuts" / name)
    ]
    assert len(known_ms) >= 10
    found = [any(abs(start - cut) <= 45 for start in starts_ms) for cut in known_ms]
    assert all(found)


def true_cuts_ms(path: Path) -> list[int]:
    """Times of the hard cuts, checked by hand or exact by construction."""
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    return [round(seconds * 1000) for seconds in truth["hard_cuts_s"]]
