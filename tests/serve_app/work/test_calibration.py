"""What a runner expects of a job, and how it learns from the ones before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.types import AudioTrack, IngestResult
from serve_app.work.stage_work import Calibration, Machine
from storage.types import StageName
from tests.pipelines.vision.test_vision import SMALL

VISION, TRANSCRIPT = StageName.VISION, StageName.TRANSCRIPT
TWO = Machine(cpus=2.0, transcribers=2.0)
WORK = {VISION: 20.0, TRANSCRIPT: 100.0}
ONLY_VISION = {VISION: 20.0}


def test_the_work_is_shared_among_processors_and_transcribers(ingested: IngestResult) -> None:
    one, two = Machine(1.0, 1.0).work_seconds(ingested), TWO.work_seconds(ingested)
    many = Machine(16.0, 2.0).work_seconds(ingested)
    assert one[VISION] == pytest.approx(2 * two[VISION]) == pytest.approx(16 * many[VISION])
    assert one[TRANSCRIPT] == pytest.approx(2 * two[TRANSCRIPT])
    assert many[TRANSCRIPT] == pytest.approx(two[TRANSCRIPT])


def test_only_what_there_is_is_expected(ingested: IngestResult) -> None:
    assert set(TWO.work_seconds(replace(ingested, video=None))) == {TRANSCRIPT}
    assert set(TWO.work_seconds(replace(ingested, tracks=()))) == {VISION}


def test_embedded_models_are_known_from_the_start_neural_ones_from_their_first_job() -> None:
    assert Calibration("packaged").expected_seconds(WORK) == {VISION: 21.0, TRANSCRIPT: 101.0}
    neural = Calibration("gpu")
    assert neural.expected_seconds(WORK) == {}
    neural.learn(ONLY_VISION, {VISION: 61.0}, TWO)
    assert neural.expected_seconds(ONLY_VISION) == {VISION: pytest.approx(61.0)}
    assert neural.expected_seconds(WORK) == {}, "how they share the processors is not known yet"


def test_what_analyses_take_side_by_side_is_told_from_what_each_takes_alone() -> None:
    known = Calibration("packaged")
    # Both at once go half as fast: of 80 s that they share each would have needed 40 by itself.
    known.learn(WORK, {VISION: 80.0, TRANSCRIPT: 140.0}, TWO)
    assert known.expected_seconds(WORK) == {
        VISION: pytest.approx(40.0),
        TRANSCRIPT: pytest.approx(100.0),
    }


def test_jobs_that_go_on_differently_are_followed() -> None:
    known = Calibration("packaged")
    for _ in range(6):
        known.learn(ONLY_VISION, {VISION: 21.0}, TWO)
    for took, least, most in ((41.0, 30.0, 32.0), (41.0, 35.0, 37.0), (41.0, 38.0, 40.0)):
        known.learn(ONLY_VISION, {VISION: took}, TWO)
        assert least < known.expected_seconds(ONLY_VISION)[VISION] < most
    assert known.expected_seconds(WORK)[VISION] == 21.0, "of it beside another nothing was seen"


def test_a_job_of_which_a_part_failed_says_nothing_of_the_pace() -> None:
    known = Calibration("packaged")
    known.learn(WORK, {TRANSCRIPT: 300.0}, TWO)
    assert known.expected_seconds(WORK) == Calibration("packaged").expected_seconds(WORK)


def test_a_short_job_says_nothing_of_the_pace() -> None:
    known = Calibration("packaged")
    known.learn({VISION: 0.4}, {VISION: 3.0}, TWO)
    assert known.expected_seconds(ONLY_VISION) == {VISION: 21.0}


@pytest.fixture
def ingested() -> IngestResult:
    track = AudioTrack(0, "sound", "sound.flac", 60.0)
    # What the media holds besides is nobody's business here.
    return IngestResult(media=None, video=SMALL, tracks=(track,))  # type: ignore[arg-type]
