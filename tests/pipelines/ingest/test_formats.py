"""Every accepted format: written here, probed, cut, looked at and listened to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.types import VideoSource
from pipelines.vision.cuts.selection import detect_cuts
from pipelines.vision.features import FeaturesConfig, FrameFeatures, segment_features
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.stills import fetch_stills
from serve_app.media.formats import AUDIO_ONLY as AUDIO_EXTENSIONS
from serve_app.media.formats import STANDARD as STANDARD_EXTENSIONS
from tests.pipelines.ingest.format_samples import (
    AUDIO_ONLY,
    AV1,
    CLICK_SECONDS,
    CUT_SECONDS,
    NOT_GENERATED,
    SECONDS,
    STANDARD,
    Sample,
    drawn,
    write_sample,
)
from tests.pipelines.ingest.ingest_material import Ingested, ingested, onsets
from tests.tables import every

SAMPLES = (*STANDARD, *AUDIO_ONLY)
WITH_PICTURES = [sample for sample in SAMPLES if sample.pictures]
WITH_SOUND = [sample for sample in SAMPLES if sample.sound]

TOLERANCE_SECONDS = 0.05
"""A frame, and the delay of an encoder whose container has no word for it."""

LOUD = {"amr_nb": 0.03}
"""What counts as a click: telephone codecs leave little of one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Ingested]:
    """Every sample after ingest, by its name."""
    return {
        sample.file_name: ingested(
            write_sample(folder, sample), folder / f"{sample.file_name}.d", segment_seconds=1.0
        )
        for sample in SAMPLES
    }


@pytest.fixture(scope="module")
def features(done: dict[str, Ingested]) -> dict[str, list[FrameFeatures]]:
    """What the pictures of every sample that has some look like, segment by segment."""
    found = {}
    for sample in WITH_PICTURES:
        video = video_of(done[sample.file_name])
        workspace = Workspace(done[sample.file_name].store, "job")
        found[sample.file_name] = [
            segment_features(video, segment, workspace, FeaturesConfig())
            for segment in video.segments
        ]
    return found


def video_of(done: Ingested) -> VideoSource:
    assert done.result.video is not None
    return done.result.video


def cut_seconds(done: Ingested, features: Sequence[FrameFeatures]) -> list[float]:
    cuts = detect_cuts(features, video_of(done).duration_ms)
    return [cut.start_ms / 1000 for cut in cuts]


def click_seconds(done: Ingested) -> list[float]:
    (track,) = done.result.tracks
    threshold = LOUD.get(done.result.media.audio[0].codec, 0.2)
    return [track.offset_seconds + seconds for seconds in onsets(done.samples(), threshold)]


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="not a system with classes")
def test_writing_samples_keeps_the_suite_in_its_scheduling_class(tmp_path: Path) -> None:
    before = os.sched_getscheduler(0)
    write_sample(tmp_path, Sample("av1.mp4", AV1))
    assert os.sched_getscheduler(0) == before


def test_every_accepted_extension_has_a_sample_and_what_is_missing_a_reason() -> None:
    assert {sample.extension for sample in STANDARD} == set(STANDARD_EXTENSIONS)
    assert {sample.extension for sample in AUDIO_ONLY} == set(AUDIO_EXTENSIONS)
    assert all(NOT_GENERATED.values())


@every("sample", SAMPLES, ids=lambda sample: sample.file_name)
def test_each_format_is_read_whole_and_without_a_warning(
    sample: Sample, done: dict[str, Ingested], features: dict[str, list[FrameFeatures]]
) -> None:
    result = done[sample.file_name].result
    media = result.media
    assert media.duration_seconds == pytest.approx(SECONDS, abs=0.06)
    assert result.warnings == ()
    assert (media.video is not None) == (sample.pictures is not None)
    if sample.pictures is not None and media.video is not None:
        frames = round(SECONDS * sample.pictures.rate)
        assert media.video.frame_count == frames
        assert sum(len(part.times_ms) for part in features[sample.file_name]) == frames
    if sample.sound is not None:
        assert [stream.sample_rate_hz for stream in media.audio] == [sample.sound.rate_hz]


@every("sample", WITH_PICTURES, ids=lambda sample: sample.file_name)
def test_the_cut_is_where_the_picture_changes(
    sample: Sample, done: dict[str, Ingested], features: dict[str, list[FrameFeatures]]
) -> None:
    found = done[sample.file_name]
    delay = click_seconds(found)[0] - CLICK_SECONDS[0] if sample.sound in CLICKING else 0.0
    cuts = cut_seconds(found, features[sample.file_name])
    assert cuts == pytest.approx([CUT_SECONDS + delay], abs=TOLERANCE_SECONDS)


CLICKING = [sample.sound for sample in WITH_SOUND]


@every("sample", WITH_SOUND, ids=lambda sample: sample.file_name)
def test_the_clicks_are_where_they_were_and_as_far_apart(
    sample: Sample, done: dict[str, Ingested]
) -> None:
    clicks = click_seconds(done[sample.file_name])
    assert clicks == pytest.approx(CLICK_SECONDS, abs=TOLERANCE_SECONDS)
    assert np.diff(clicks) == pytest.approx(np.diff(CLICK_SECONDS), abs=0.003)


@every("sample", WITH_PICTURES, ids=lambda sample: sample.file_name)
def test_stills_look_like_what_was_drawn(
    sample: Sample, done: dict[str, Ingested], features: dict[str, list[FrameFeatures]]
) -> None:
    assert sample.pictures is not None
    found = done[sample.file_name]
    video = video_of(found)
    parts = features[sample.file_name]
    times = list(chain(*(part.times_ms.tolist() for part in parts)))
    looks = {time_ms: look for part in parts for time_ms, look in part.looks().items()}
    pictures = drawn(sample.pictures.width, sample.pictures.height, sample.pictures.rate)
    for number in (5, 40):
        segment = next(s for s in video.segments if s.start_ms <= times[number] < s.end_ms)
        stills = fetch_stills(
            found.path(segment.key),
            segment,
            video.stream,
            video.origin_ms,
            {times[number]: looks[times[number]]},
            960,
        )
        assert _likeness(stills[times[number]], pictures[number]) > 0.9


def _likeness(still: np.ndarray, picture: np.ndarray) -> float:
    """Correlation of the two, both brought to a small size, colours included."""
    import cv2

    size = (32, 24)
    one, other = (
        cv2.resize(item, size, interpolation=cv2.INTER_AREA).astype(np.float64).ravel()
        for item in (still, picture)
    )
    return float(np.corrcoef(one, other)[0, 1])


CHAINED: Sequence[str] = ("prores.mov", "av1.webm", "mpeg2.vob", "h263.3gp")


@pytest.mark.parametrize("name", CHAINED)
def test_the_whole_chain_finds_two_scenes_and_no_words(
    name: str, done: dict[str, Ingested], ray_session: None
) -> None:
    found = done[name]
    workspace = Workspace(found.store, "job")
    vision = analyse_vision(
        video_of(found),
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
    )
    transcript = transcribe_track(
        found.result.tracks[0],
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=TranscriptConfig(),
        media_duration_ms=round(found.result.media.duration_seconds * 1000),
    )
    assert len(vision.scenes) == 2
    assert transcript.segments == ()
