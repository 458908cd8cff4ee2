"""Detections in sampled frames as tracks of a scene, and which frames are sampled."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.types import ObjectTrack
from pipelines.vision.objects import ObjectsConfig, object_times, object_tracks

DOG, CAT = {"dog": 0.8}, {"cat": 0.6}


def test_a_thing_in_every_sample_is_there_for_the_whole_scene() -> None:
    found = {1_000: {"dog": 0.6}, 2_000: {"dog": 0.9}, 3_000: {"dog": 0.9}}
    [track] = object_tracks(found, 400, 3_900)
    assert (track.start_ms, track.end_ms) == (400, 3_900)
    assert track.confidence == pytest.approx(0.8)


def test_a_track_ends_between_the_samples_with_and_without_the_thing() -> None:
    found = {0: DOG, 1_000: DOG, 2_000: {}, 3_000: {}, 4_000: {}}
    assert object_tracks(found, 0, 5_000) == (ObjectTrack("dog", 0, 1_500, 0.8),)


@pytest.mark.parametrize(("missed", "tracks"), [(1, 1), (2, 2)])
def test_one_missed_sample_does_not_part_a_track(missed: int, tracks: int) -> None:
    samples = [DOG, *[{}] * missed, DOG]
    found = {1_000 * index: sample for index, sample in enumerate(samples)}
    assert len(object_tracks(found, 0, 10_000)) == tracks


def test_samples_of_other_scenes_do_not_count() -> None:
    found = {1_000: DOG, 2_000: CAT, 3_000: DOG}
    assert object_tracks(found, 1_500, 2_500) == (ObjectTrack("cat", 1_500, 2_500, 0.6),)


def test_tracks_are_in_order_of_start_and_label() -> None:
    found = {0: {}, 1_000: {}, 2_000: DOG | CAT, 3_000: {"ant": 0.5}}
    starts = [(track.start_ms, track.label) for track in object_tracks(found, 0, 4_000)]
    assert starts == [(1_500, "cat"), (1_500, "dog"), (2_500, "ant")]


def test_a_scene_without_samples_has_no_tracks() -> None:
    assert object_tracks({5_000: DOG}, 0, 300) == ()


def test_frames_are_sampled_once_a_second_at_their_own_times() -> None:
    times_ms = np.arange(7, 4_000, 40)
    assert object_times(times_ms, ObjectsConfig()) == [7, 1_007, 2_007, 3_007]


@pytest.mark.parametrize("seconds", [100, 101, 100_000])
def test_a_long_video_is_sampled_evenly_and_no_more_than_the_limit(seconds: int) -> None:
    times_ms = np.arange(0, seconds * 1_000, 500)
    found = object_times(times_ms, ObjectsConfig(max_frames=100))
    assert 50 <= len(found) <= 100
    assert np.ptp(np.diff(found)) <= 500
    assert found[-1] > (seconds - 2 * seconds / 50) * 1_000
