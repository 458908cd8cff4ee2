"""Detections in sampled frames as tracks of a scene, and which frames are sampled."""

from __future__ import annotations

import numpy as np
import pytest

from models.contracts import Box, DetectedObject, Movement, SeenThing
from pipelines.types import ObjectTrack
from pipelines.vision.detections import (
    SEEN_ONCE,
    ObjectsConfig,
    object_times,
    object_tracks,
    scene_things,
)
from pipelines.vision.scenes import SceneBorders
from tests.tables import every

Things = tuple[DetectedObject, ...]
MIDDLE = Box(0.4, 0.4, 0.2, 0.2)
NO_KEYS = np.empty(0, np.int64)


def thing(label: str, confidence: float) -> DetectedObject:
    return DetectedObject(label, confidence, MIDDLE)


def scene(start_ms: int, end_ms: int) -> SceneBorders:
    return SceneBorders(start_ms, end_ms, 1.0, start_ms, end_ms)


DOG: Things = (thing("dog", 0.8),)
CAT: Things = (thing("cat", 0.6),)


def test_a_thing_in_every_sample_is_there_for_the_whole_scene() -> None:
    confidences = {1_000: 0.6, 2_000: 0.9, 3_000: 0.9}
    found = {time_ms: (thing("dog", each),) for time_ms, each in confidences.items()}
    [track] = object_tracks(found, 400, 3_900)
    assert (track.start_ms, track.end_ms) == (400, 3_900)
    assert track.confidence == pytest.approx(0.8)


def test_a_track_ends_between_the_samples_with_and_without_the_thing() -> None:
    found = {0: DOG, 1_000: DOG, 2_000: (), 3_000: (), 4_000: ()}
    assert object_tracks(found, 0, 5_000) == (ObjectTrack("dog", 0, 1_500, 0.8),)


@pytest.mark.parametrize(("missed", "tracks"), [(1, 1), (2, 2)])
def test_one_missed_sample_does_not_part_a_track(missed: int, tracks: int) -> None:
    samples: list[Things] = [DOG, *[()] * missed, DOG, DOG]
    found = {1_000 * index: sample for index, sample in enumerate(samples)}
    assert len(object_tracks(found, 0, 10_000)) == tracks


def test_samples_of_other_scenes_do_not_count() -> None:
    found = {1_000: DOG, 2_000: CAT, 3_000: DOG}
    assert object_tracks(found, 1_500, 2_500) == (ObjectTrack("cat", 1_500, 2_500, 0.6),)


def test_tracks_are_in_order_of_start_and_label() -> None:
    ant = thing("ant", 0.9)
    found = {0: (), 1_000: (), 2_000: (*DOG, *CAT), 3_000: (*DOG, *CAT, ant), 4_000: (ant,)}
    starts = [(track.start_ms, track.label) for track in object_tracks(found, 0, 5_000)]
    assert starts == [(1_500, "cat"), (1_500, "dog"), (2_500, "ant")]


@every(
    ("samples", "labels"),
    [
        pytest.param([CAT, ()], [], id="one doubtful look of two"),
        pytest.param([CAT, (), CAT], ["cat"], id="another look confirms it"),
        pytest.param([(), (thing("cat", SEEN_ONCE),)], ["cat"], id="one look without a doubt"),
        pytest.param([(), (thing("cat", 0.98),), ()], [], id="one of many"),
        pytest.param([CAT, (), (), CAT], [], id="looks far apart"),
        pytest.param([CAT], ["cat"], id="the only look"),
    ],
)
def test_a_thing_is_there_if_neighbouring_samples_show_it_or_one_of_two_for_certain(
    samples: list[Things], labels: list[str]
) -> None:
    found = {1_000 * index: things for index, things in enumerate(samples)}
    assert [track.label for track in object_tracks(found, 0, 10_000)] == labels


def test_a_scene_without_samples_has_no_tracks() -> None:
    assert object_tracks({5_000: DOG}, 0, 300) == ()


def test_every_scene_is_sampled_evenly_at_its_own_frames() -> None:
    times_ms = np.arange(7, 9_000, 40)
    scenes = [scene(0, 6_000), scene(6_000, 6_400), scene(6_400, 9_000)]
    assert object_times(times_ms, NO_KEYS, scenes, ObjectsConfig(every_ms=2_000)) == [
        1_007, 3_007, 5_007, 6_087, 6_287, 7_047, 8_367,
    ]  # fmt: skip


def test_key_frames_are_sampled_where_a_part_of_a_scene_has_any() -> None:
    times_ms = np.arange(0, 9_000, 40)
    scenes = [scene(0, 6_000), scene(6_000, 9_000)]
    keys = np.array([0, 1_600, 4_000, 6_000])
    found = object_times(times_ms, keys, scenes, ObjectsConfig(every_ms=2_000))
    assert found == [1_600, 3_000, 4_000, 6_000, 8_240]


def test_a_scene_of_a_single_frame_or_of_none_is_no_trouble() -> None:
    times_ms = np.array([0, 1_000, 5_000])
    scenes = [scene(0, 900), scene(900, 1_100), scene(1_100, 4_000), scene(4_000, 6_000)]
    assert object_times(times_ms, NO_KEYS, scenes, ObjectsConfig()) == [0, 1_000, 5_000]


@pytest.mark.parametrize("seconds", [100, 101, 100_000])
def test_a_long_video_is_sampled_evenly_and_no_more_than_the_limit(seconds: int) -> None:
    times_ms = np.arange(0, seconds * 1_000, 500)
    config = ObjectsConfig(every_ms=500, max_frames=100)
    found = object_times(times_ms, NO_KEYS, [scene(0, seconds * 1_000)], config)
    assert 50 <= len(found) <= 100
    assert np.ptp(np.diff(found)) <= 500
    assert found[-1] > (seconds - 2 * seconds / 50) * 1_000


def at(left: float, height: float = 0.4, label: str = "dog") -> DetectedObject:
    return DetectedObject(label, 0.9, Box(left, 0.3, 0.2, height))


def test_things_are_counted_in_the_samples_that_show_them() -> None:
    found: dict[int, Things] = {
        0: (at(0.1), at(0.5)),
        1_000: (at(0.1),),
        2_000: (at(0.7, 0.5, "person"),),
        3_000: (at(0.7, 0.5, "person"),),
    }
    assert scene_things(found, 0, 4_000) == (
        SeenThing("person", 1, 1, Box(0.7, 0.3, 0.2, 0.5)),
        SeenThing("dog", 1, 2, Box(0.1, 0.3, 0.2, 0.4)),
    )


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        pytest.param([2, 1, 3, 2], 2, id="in one look"),
        pytest.param([2, 3, 1, 4], 3, id="in two looks"),
        pytest.param([3, 1, 1], 2, id="in one look, others with one"),
        pytest.param([2, 3], 3, id="of two looks"),
    ],
)
def test_more_than_two_things_are_counted_in_two_looks(counts: list[int], most: int) -> None:
    found = {1_000 * at_s: (at(0.1),) * count for at_s, count in enumerate(counts)}
    [thing] = scene_things(found, 0, 10_000)
    assert (thing.fewest, thing.most) == (min(counts), most)


@every(
    ("looks", "movement"),
    [
        pytest.param([at(0.6), at(0.4), at(0.2)], Movement.LEFT, id="left"),
        pytest.param([at(0.2), at(0.3), at(0.29), at(0.5)], Movement.RIGHT, id="right, trembling"),
        pytest.param([at(0.2), at(0.6), at(0.4)], None, id="to and fro"),
        pytest.param([at(0.2), at(0.25), at(0.3)], None, id="too little"),
        pytest.param([at(0.2), at(0.5)], None, id="two looks"),
        pytest.param([at(0.4, 0.3), at(0.4, 0.4), at(0.4, 0.5)], Movement.NEARER, id="nearer"),
        pytest.param([at(0.4, 0.5), at(0.4, 0.4), at(0.4, 0.3)], Movement.AWAY, id="away"),
    ],
)
def test_a_thing_moves_if_every_look_confirms_the_way(
    looks: list[DetectedObject], movement: Movement | None
) -> None:
    found = {1_000 * index: (look,) for index, look in enumerate(looks)}
    [thing] = scene_things(found, 0, 10_000)
    assert thing.movement is movement


def test_one_of_several_is_not_followed() -> None:
    found = {1_000 * index: (at(0.2 * index), at(0.1)) for index in range(4)}
    assert scene_things(found, 0, 10_000)[0].movement is None
