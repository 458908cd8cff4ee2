"""Damaged and hostile files through ingest and both readers of pictures, without a service.

Every file becomes a result or a failure with a code; no exception of another kind, no crash of
this process, nothing left behind. ``VAS_DAMAGED_ROUNDS`` (1) runs more seeds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.execution.chain import Workspace
from pipelines.ingest.probe import probe
from pipelines.types import StageCode, StageError
from pipelines.vision.features import FeaturesConfig, segment_features
from pipelines.vision.stills import StillsConfig, fetch_stills
from tests.pipelines.ingest.damaged_media import (
    BOMBS,
    DAMAGES,
    damaged_files,
    identity_tag_bomb,
    tags_of_many_megabytes,
)
from tests.pipelines.ingest.format_samples import AUDIO_ONLY, STANDARD, Sample, write_sample
from tests.pipelines.ingest.ingest_material import Ingested, ingested

ROUNDS = int(os.environ.get("VAS_DAMAGED_ROUNDS", "1"))
ORIGINALS = ("h264.mp4", "hevc.mkv", "vp9.webm", "mpeg4.avi", "h264.ts", "mpeg2.mxf", "h264.flv",
             "wmv2.wmv", "vp8.ogv", "plain.wav", "song.mp3", "aac.m4a", "plain.flac")  # fmt: skip
REFUSALS = {StageCode.VALIDATION_FAILED, StageCode.INGEST_FAILED}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("originals")
    samples = {sample.file_name: sample for sample in (*STANDARD, *AUDIO_ONLY)}
    return [write_sample(folder, samples[name]) for name in ORIGINALS]


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(600)
def test_every_damaged_file_becomes_a_result_or_a_failure_with_a_code(
    seed: int, originals: list[Path], tmp_path: Path
) -> None:
    for number, file in enumerate(
        damaged_files(originals, tmp_path, seed=seed, count=len(DAMAGES))
    ):
        assert outcome(file.path, tmp_path / str(number)) in {None, *REFUSALS}, file


def outcome(path: Path, root: Path) -> StageCode | None:
    """With which code the file fails; None if it is read, and looked at."""
    try:
        done = ingested(path, root, segment_seconds=1.0)
    except StageError as error:
        return error.code
    look_at(done)
    return None


def look_at(done: Ingested) -> None:
    """Decode every segment, and one still of each, as the vision stage does."""
    video = done.result.video
    if video is None:
        return
    for segment in video.segments:
        features = segment_features(video, segment, Workspace(done.store, "job"), FeaturesConfig())
        middle = len(features.times_ms) // 2
        looks = features.looks()
        wanted = {time: looks[time] for time in features.times_ms[middle : middle + 1].tolist()}
        path = done.path(segment.key)
        fetch_stills(path, segment, video.stream, video.origin_ms, wanted, StillsConfig())


MEDIA_BOMBS = {"chapters.mkv": 0.5, "too-long.mka": 2.0}
"""Bombs that are media all the same, and their length in seconds. One of the others takes long."""


@pytest.mark.parametrize("name", sorted(set(BOMBS) - {"packets.mka"}))
def test_small_files_that_ask_for_much_are_refused_or_read_for_what_they_are(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    if name in MEDIA_BOMBS:
        assert probe(path).duration_seconds == pytest.approx(MEDIA_BOMBS[name], abs=0.01)
        return
    with pytest.raises(StageError) as caught:
        probe(path)
    assert caught.value.code is StageCode.VALIDATION_FAILED


def test_huge_tags_change_nothing(originals: list[Path], tmp_path: Path) -> None:
    sound = next(path for path in originals if path.suffix == ".wav")
    path = tmp_path / "tags.wav"
    path.write_bytes(tags_of_many_megabytes(sound.read_bytes()))
    assert probe(path).duration_seconds == probe(sound).duration_seconds
    song = next(path for path in originals if path.suffix == ".mp3")
    path = tmp_path / "tags.mp3"
    path.write_bytes(identity_tag_bomb(song.read_bytes()))
    assert probe(path).duration_seconds == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    "sample", [s for s in STANDARD if s.file_name in ORIGINALS[:4]], ids=lambda s: s.file_name
)
def test_the_end_of_the_name_decides_nothing(sample: Sample, tmp_path: Path) -> None:
    path = write_sample(tmp_path, sample)
    other = tmp_path / "clip.gif"
    path.rename(other)
    assert probe(other).video is not None
