"""The cut detector on features made of arrays, whole and in parts: no files, no decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.types import CutsBy
from pipelines.vision.bars import WHOLE as NO_BARS
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.pipeline import calibrated, timeline_cuts
from pipelines.vision.cuts.selection import (
    BlankRun,
    Candidates,
    Cut,
    CutConfig,
    CutKind,
    FeaturesPart,
    Found,
    SearchCuts,
    block_runs,
    detect_cuts,
    together,
)
from pipelines.vision.features import (
    CHROMA_HEIGHT,
    CHROMA_WIDTH,
    LUMA_HEIGHT,
    LUMA_WIDTH,
    FrameFeatures,
    from_bytes,
    in_time_order,
    to_bytes,
)
from pipelines.vision.scenes import SceneBorders, scenes_between, still_times
from storage.objects.folder import FolderStore
from tests.examples import examples
from tests.tables import every

FRAME_MS = 40
Levels = npt.NDArray[np.float64]


def enlarged(coarse: Levels) -> Levels:
    """Each level as a block of 4 x 4 pixels."""
    return np.asarray(np.kron(coarse, np.ones((4, 4))), np.float64)


def picture(seed: int) -> Levels:
    """A blocky random picture, unlike that of any other seed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(20, 235, (9, 16)).astype(np.float64)
    return enlarged(coarse)


def shot(seed: int, frames: int) -> list[Levels]:
    """A picture with a little noise in each frame."""
    random = np.random.default_rng(seed + 1000)
    return [picture(seed) + random.normal(0, 1.5, (36, 64)) for _ in range(frames)]


def pan(seed: int, frames: int, pixels: int) -> list[Levels]:
    """A view that moves over a wide picture by ``pixels`` of 64 a frame."""
    random = np.random.default_rng(seed)
    coarse = random.integers(20, 235, (9, 16 + frames * pixels // 4 + 1)).astype(np.float64)
    wide = enlarged(coarse)
    return [wide[:, index * pixels : index * pixels + 64] for index in range(frames)]


def shaken(seed: int, frames: int) -> list[Levels]:
    """A shot from a hand that moves up to two pixels of 64 each frame."""
    random = np.random.default_rng(seed + 1000)
    wide = enlarged(random.integers(20, 235, (11, 18)).astype(np.float64))
    places = np.clip(np.cumsum(random.integers(-1, 2, (frames, 2)), axis=0), -4, 4) + 4
    return [wide[y : y + 36, x : x + 64] for y, x in places]


def flash(seed: int, frames: int, lit: int) -> list[Levels]:
    """A shot whose middle frames are overexposed."""
    taken = shot(seed, frames)
    for index in range(frames // 2, frames // 2 + lit):
        taken[index] = taken[index] * 0.2 + 250 * 0.8
    return taken


def passing(seed: int, frames: int) -> list[Levels]:
    """A shot before which a dark object a third of the picture wide goes by."""
    taken = shot(seed, frames)
    for index, level in enumerate(taken):
        left = index * 4 - 24
        level[:, max(0, left) : max(0, left + 22)] = 15
    return taken


def solid(level: float, frames: int) -> list[Levels]:
    return [np.full((36, 64), level) for _ in range(frames)]


def mixed(first: Sequence[Levels], second: Sequence[Levels]) -> list[Levels]:
    steps = len(first) + 1
    return [
        one * (1 - (index + 1) / steps) + other * (index + 1) / steps
        for index, (one, other) in enumerate(zip(first, second, strict=True))
    ]


def features(frames: Sequence[Levels], frame_ms: int = FRAME_MS) -> FrameFeatures:
    luma = [np.clip(np.rint(frame), 0, 255).astype(np.uint8) for frame in frames]
    grey = np.full((2, 9, 16), 128, np.uint8)
    times = [index * frame_ms for index in range(len(frames))]
    return in_time_order(times, luma, [grey] * len(frames))


def cuts_of(frames: Sequence[Levels], frame_ms: int = FRAME_MS) -> list[tuple[int, CutKind]]:
    found = detect_cuts([features(frames, frame_ms)], len(frames) * frame_ms)
    return [(cut.time_ms, cut.kind) for cut in found]


@pytest.mark.parametrize("frame_ms", [100, 40, 17, 8], ids=["10fps", "25fps", "60fps", "120fps"])
def test_a_hard_cut_is_found_at_the_first_frame_of_the_new_scene(frame_ms: int) -> None:
    seconds = 1000 // frame_ms
    frames = shot(1, 2 * seconds) + shot(2, seconds) + shot(3, 2 * seconds)
    expected = [(2 * seconds * frame_ms, CutKind.HARD), (3 * seconds * frame_ms, CutKind.HARD)]
    assert cuts_of(frames, frame_ms) == expected


@every(
    "frames",
    [
        pytest.param(shot(1, 120), id="nothing happens"),
        pytest.param(pan(2, 120, 3), id="fast pan"),
        pytest.param(pan(2, 60, 8), id="whip pan"),
        pytest.param(shaken(3, 120), id="handheld shake"),
        pytest.param(flash(4, 120, 1), id="flash of one frame"),
        pytest.param(flash(4, 120, 3), id="flash of three frames"),
        pytest.param(passing(5, 120), id="something goes by close to the camera"),
        pytest.param(solid(16, 100), id="black throughout"),
        pytest.param([], id="no frames"),
        pytest.param(shot(1, 1), id="one frame"),
        pytest.param(shot(1, 2) + shot(2, 100), id="a scrap of another shot at the start"),
    ],
)
def test_what_is_no_cut_gives_none(frames: list[Levels]) -> None:
    assert cuts_of(frames) == []


@pytest.mark.parametrize("length", [8, 16, 30, 50])
def test_a_dissolve_is_one_cut_at_its_middle(length: int) -> None:
    frames = shot(1, 60) + mixed(shot(1, length), shot(2, length)) + shot(2, 60)
    (found,) = detect_cuts([features(frames)], len(frames) * FRAME_MS)
    assert found.kind is CutKind.DISSOLVE
    assert abs(found.time_ms - (60 + length / 2) * FRAME_MS) <= 2 * FRAME_MS
    assert abs(found.start_ms - 60 * FRAME_MS) <= 4 * FRAME_MS
    assert abs(found.end_ms - (60 + length) * FRAME_MS) <= 4 * FRAME_MS


@every(
    ("level", "kind"),
    [
        pytest.param(2, CutKind.FADE_BLACK, id="black"),
        pytest.param(253, CutKind.FADE_WHITE, id="white"),
    ],
)
@every("hold", [1, 10, 25], ids=lambda frames: f"held {frames} frames")
def test_a_fade_out_and_in_is_one_cut_in_its_middle(level: int, kind: CutKind, hold: int) -> None:
    blank = solid(level, 20)
    frames = (
        shot(1, 60)
        + mixed(shot(1, 20), blank)
        + solid(level, hold)
        + mixed(blank, shot(2, 20))
        + shot(2, 60)
    )
    (found,) = detect_cuts([features(frames)], len(frames) * FRAME_MS)
    assert found.kind is kind
    assert abs(found.time_ms - (80 + hold / 2) * FRAME_MS) <= 3 * FRAME_MS


def test_a_straight_cut_from_or_to_black_is_a_cut_at_the_picture() -> None:
    black = solid(2, 20)
    from_black = [*shot(1, 60), *mixed(shot(1, 20), black), *solid(2, 12), *shot(2, 60)]
    to_black = [*shot(1, 60), *solid(2, 12), *mixed(black, shot(2, 20)), *shot(2, 60)]
    between = [*shot(1, 60), *solid(2, 12), *shot(2, 60)]
    assert [time_ms for time_ms, _ in cuts_of(from_black)] == [92 * FRAME_MS]
    assert [time_ms for time_ms, _ in cuts_of(to_black)] == [60 * FRAME_MS]
    assert [time_ms for time_ms, _ in cuts_of(between)] == [72 * FRAME_MS]
    assert cuts_of([*shot(1, 60), *solid(2, 5), *shot(1, 60)]) == []


def test_motion_over_a_gap_of_time_is_no_cut_and_a_cut_there_is_one() -> None:
    views = pan(2, 120, 1)
    kept = [index for index in range(120) if index % 40 < 33]
    whole, other = features(views), shot(3, 60)
    assert detect_cuts([whole.rows(kept)], 120 * FRAME_MS) == ()
    cut = features([*views[:33], *other]).rows([*range(25), *range(33, 93)])
    found = detect_cuts([cut], 93 * FRAME_MS)
    assert [each.time_ms for each in found] == [33 * FRAME_MS]


def test_a_fade_in_at_the_start_and_a_fade_out_at_the_end_open_no_scene() -> None:
    black = solid(2, 20)
    frames = mixed(black, shot(1, 20)) + shot(1, 80) + mixed(shot(1, 20), black) + black
    assert cuts_of(frames) == []


def test_a_fade_to_black_that_is_held_for_long_makes_the_black_a_scene() -> None:
    black = solid(2, 20)
    frames = shot(1, 60) + mixed(shot(1, 20), black) + solid(2, 100)
    frames += mixed(black, shot(2, 20)) + shot(2, 60)
    assert [kind for _, kind in cuts_of(frames)] == [CutKind.FADE_BLACK, CutKind.FADE_BLACK]


def test_a_slow_change_of_light_is_no_dissolve() -> None:
    frames = [
        40 + frame * 0.4 * gain
        for frame, gain in zip(shot(1, 150), np.linspace(0.5, 2.0, 150), strict=True)
    ]
    assert cuts_of(frames) == []


@pytest.mark.parametrize(("frames", "cuts"), [(5, 2), (2, 1)])
def test_a_shot_of_a_few_frames_between_sure_cuts_is_a_scene(frames: int, cuts: int) -> None:
    assert len(cuts_of(shot(1, 50) + shot(2, frames) + shot(3, 50))) == cuts


PROGRAMME = (
    shot(1, 55)
    + shot(2, 70)
    + mixed(shot(2, 20), shot(3, 20))
    + flash(3, 150, 2)
    + pan(6, 90, 3)
    + mixed(shot(4, 15), solid(2, 15))
    + solid(2, 8)
    + mixed(solid(2, 15), shot(5, 15))
    + shot(5, 300)
    + shaken(7, 280)
    + shot(8, 60)
)
"""More than four of the detector's blocks, with one of everything."""


@settings(max_examples=examples(12), deadline=None)
@given(borders=st.lists(st.integers(0, len(PROGRAMME)), max_size=12))
def test_however_the_features_are_split_the_cuts_are_identical(borders: list[int]) -> None:
    whole = features(PROGRAMME)
    edges = [0, *sorted(borders), len(PROGRAMME)]
    parts = [whole.part(start, end) for start, end in pairwise(edges)]
    assert detect_cuts(parts, len(PROGRAMME) * FRAME_MS) == WHOLE_CUTS


WHOLE_CUTS = detect_cuts([features(PROGRAMME)], len(PROGRAMME) * FRAME_MS)


def test_the_composed_media_have_the_cuts_that_were_put_into_them() -> None:
    starts = [55, 125 + 10, 295, 385 + 19, 385 + 38 + 300, 385 + 38 + 300 + 280]
    found = [cut.time_ms / FRAME_MS for cut in WHOLE_CUTS]
    assert found == pytest.approx(starts, abs=2)
    assert all(0.5 <= cut.confidence <= 1 for cut in WHOLE_CUTS)


def test_features_come_back_from_their_bytes_and_equal_ones_give_equal_bytes() -> None:
    stored = to_bytes(features(shot(1, 5)))
    again = from_bytes(stored)
    assert again.times_ms.tolist() == [0, 40, 80, 120, 160]
    assert to_bytes(again) == stored


def test_frames_are_put_in_order_and_of_two_at_one_time_the_first_is_kept() -> None:
    grey = np.full((2, 9, 16), 128, np.uint8)
    levels = [np.full((36, 64), level, np.uint8) for level in (1, 2, 3, 4)]
    ordered = in_time_order([80, 0, 80, 40], levels, [grey] * 4)
    assert ordered.times_ms.tolist() == [0, 40, 80]
    assert ordered.luma[:, 0, 0].tolist() == [2, 4, 1]


def test_scenes_are_contiguous_and_cover_the_whole_video() -> None:
    duration_ms = len(PROGRAMME) * FRAME_MS
    scenes = scenes_between(WHOLE_CUTS, duration_ms)
    assert scenes[0].start_ms == 0
    assert scenes[-1].end_ms == duration_ms
    assert all(one.end_ms == two.start_ms for one, two in pairwise(scenes))


@every(
    ("length_ms", "keys_ms", "stills_ms"),
    [
        pytest.param(1_000, [], (480,), id="one of a short scene"),
        pytest.param(3_000, [], (880, 2_080), id="two of a longer one, the frames nearest"),
        pytest.param(10_000, [], (2_000, 5_000, 8_000), id="three of a long one"),
        pytest.param(40_000, [], (5_600, 15_200, 24_800, 34_400), id="four of half a minute"),
        pytest.param(3_000, [0, 2_000], (0, 2_000), id="key frames close by are taken instead"),
        pytest.param(10_000, [1_000], (1_000, 8_000), id="one serves for several, far ones do not"),
        pytest.param(1_000, [400, 1_000], (400,), id="the next scene's are not"),
    ],
)
def test_stills_are_spread_and_rather_key_frames(
    length_ms: int, keys_ms: list[int], stills_ms: tuple[int, ...]
) -> None:
    times = np.arange(0, 60_000, FRAME_MS)
    scene = SceneBorders(0, length_ms, 1.0, 0, length_ms)
    even = np.full(len(times), 50, np.float32)
    assert still_times(times, np.array(keys_ms, np.int64), even, even, scene) == stills_ms


@pytest.mark.parametrize("keys_ms", [[], [0, 2_000, 9_960]], ids=["no key frames", "key frames"])
def test_stills_are_away_from_fades_and_black(keys_ms: list[int]) -> None:
    """A scene of 10 s that comes from black in 3 s and goes there in 3 s."""
    times = np.arange(0, 10_000, FRAME_MS)
    light = np.clip(np.minimum(times, 10_000 - times) / 3_000, 0, 1)
    scene = SceneBorders(0, 10_000, 1.0, 0, 10_000)
    seen = (60 * light).astype(np.float32)
    found = still_times(times, np.array(keys_ms, np.int64), seen, seen, scene)
    assert len(found) >= 2
    assert all(1_750 <= time_ms <= 8_250 for time_ms in found)


@pytest.mark.parametrize("keys_ms", [[], [0, 5_000]], ids=["no key frames", "a blurred key frame"])
def test_stills_are_not_of_frames_blurred_by_a_whip_pan(keys_ms: list[int]) -> None:
    """A scene of 10 s with as much contrast throughout and no detail from 4 to 6 s."""
    times = np.arange(0, 10_000, FRAME_MS)
    even = np.full(len(times), 50, np.float32)
    details = np.where((times >= 4_000) & (times < 6_000), 10, 30).astype(np.float32)
    scene = SceneBorders(0, 10_000, 1.0, 0, 10_000)
    found = still_times(times, np.array(keys_ms, np.int64), even, details, scene)
    assert len(found) >= 2
    assert not any(4_000 <= time_ms < 6_000 for time_ms in found)


def test_without_cuts_there_are_no_scenes() -> None:
    assert scenes_between((), 5000) == []


@pytest.mark.parametrize("key_every", [1, 7, 50, 10_000])
def test_stills_are_frames_of_the_scene_away_from_transitions(key_every: int) -> None:
    times = np.arange(0, len(PROGRAMME) * FRAME_MS, FRAME_MS)
    for scene in scenes_between(WHOLE_CUTS, len(PROGRAMME) * FRAME_MS):
        even = np.full(len(times), 50, np.float32)
        stills = still_times(times, times[::key_every], even, even, scene)
        assert 1 <= len(stills) <= 4
        assert all(scene.clear_start_ms <= time < scene.clear_end_ms for time in stills)
        assert set(stills) <= set(times.tolist())


def test_gradual_cuts_are_surer_than_measured_in_the_same_order_and_hard_ones_are_not() -> None:
    dissolves = [Cut(500, CutKind.DISSOLVE, each, 400, 600) for each in (0.0, 0.5, 0.75, 1.0)]
    sure = [calibrated(cut) for cut in dissolves]
    found = [cut.confidence for cut in sure]
    assert (found[0], found[-1]) == (0, 1)
    assert 0.9 < found[1] < found[2] < 1
    assert [replace(cut, confidence=0.0) for cut in sure] == [dissolves[0]] * 4
    hard = Cut(500, CutKind.HARD, 0.5, 500, 500)
    assert calibrated(hard) == hard


WHOLE = features(PROGRAMME)
DURATION_MS = len(PROGRAMME) * FRAME_MS


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(FolderStore(tmp_path), "job")


def stored(workspace: Workspace, borders: list[int], shift_ms: int = 0) -> list[FeaturesPart]:
    edges = [0, *borders, len(WHOLE)]
    parts = []
    for index, (first, after) in enumerate(pairwise(edges)):
        part = WHOLE.part(first, after)
        moved = FrameFeatures(part.times_ms + shift_ms, part.luma, part.chroma)
        workspace.store.write_bytes(f"job/{index}", to_bytes(moved))
        parts.append(FeaturesPart(f"job/{index}", 0, len(part)))
    return parts


@every("blocks", [1, 2, 3, 100])
@every("borders", [[], [1, 500, 500, 1001]])
def test_tasks_find_what_one_look_finds(
    workspace: Workspace, blocks: int, borders: list[int]
) -> None:
    parts = stored(workspace, borders, shift_ms=7_000)
    runs = block_runs(parts, NO_BARS, 7_000, DURATION_MS, blocks)
    assert len(runs) == -(-len(WHOLE) // (256 * blocks))
    config = CutConfig(by=CutsBy.MEASURED)
    found = together(map_here(runs, SearchCuts(workspace, LocalModels(), config), FreeRun()))
    assert Candidates.among(found, DURATION_MS).select(CutConfig()) == WHOLE_CUTS


def test_a_task_reads_no_more_than_its_surroundings(workspace: Workspace) -> None:
    parts = stored(workspace, [500])
    first, *_, last = block_runs(parts, NO_BARS, 0, DURATION_MS, 1)
    assert [part.key for part in first.features] == ["job/0", "job/1"]
    assert [part.key for part in last.features] == ["job/1"]


def test_no_frames_make_no_work() -> None:
    assert block_runs([], NO_BARS, 0, 1_000, 4) == []
    assert detect_cuts([], 1_000) == ()


def test_blank_runs_that_touch_are_one() -> None:
    black, white = Blank.BLACK, Blank.WHITE
    one = Found(blanks=(BlankRun(0, 40, black), BlankRun(80, 120, white)))
    two = Found(blanks=(BlankRun(120, 200, white), BlankRun(200, 240, black)))
    assert together([one, two]).blanks == (
        BlankRun(0, 40, black),
        BlankRun(80, 200, white),
        BlankRun(200, 240, black),
    )


TITLE, LINES, CAPTION, CORNER = (4, 8), (14, 20), (29, 33), (0, 2)
"""Rows in which there is writing."""


def written(
    ground: Levels, seed: int, rows: Sequence[tuple[int, int]], columns: int = 40
) -> Levels:
    """The picture with writing of its own in ``rows``."""
    random = np.random.default_rng(seed)
    slide = ground.copy()
    for top, bottom in rows:
        slide[top:bottom, 6 : 6 + columns] -= random.choice([0, 60], (bottom - top, columns))
    return slide


def template() -> Levels:
    slide = np.full((36, 64), 235.0)
    slide[:3] = 90
    return slide


def deck(rows: Sequence[tuple[int, int]], frames: int = 75) -> list[Levels]:
    """Three slides that differ by what is written in ``rows``."""
    slides = [written(template(), seed, rows) for seed in (1, 2, 3)]
    return [slide for slide in slides for _ in range(frames)]


def beside_a_speaker() -> list[Levels]:
    """Slides, and in a corner of the picture somebody who moves all the time."""
    random = np.random.default_rng(4)
    frames = [slide.copy() for slide in deck([TITLE, LINES])]
    for frame in frames:
        frame[22:, 46:] = random.integers(20, 235, (14, 18))
    return frames


def typed() -> list[Levels]:
    """A line to which a letter comes every eighth of a second."""
    line = written(template(), 1, [TITLE])
    frames = []
    for index in range(150):
        frame = template()
        frame[:, : 6 + index // 3] = line[:, : 6 + index // 3]
        frames.append(frame)
    return frames


def shown_for(frames: int) -> list[Levels]:
    """A note that comes and goes."""
    return [template()] * 60 + [written(template(), 1, [TITLE])] * frames + [template()] * 60


def faded() -> list[Levels]:
    """Writing that comes in a third of a second."""
    slide = written(template(), 1, [TITLE, LINES])
    between = [template() * (1 - share) + slide * share for share in np.linspace(0, 1, 10)]
    return [template()] * 60 + between + [slide] * 60


def words_that_join() -> list[Levels]:
    """A title to which two lines come, one after the other."""
    whole = written(template(), 1, [TITLE, LINES, (22, 24)])
    pictures = [template() for _ in range(3)]
    for picture, rows in zip(pictures, (9, 21, 36), strict=True):
        picture[:rows] = whole[:rows]
    return [picture for picture in pictures for _ in range(60)]


def in_another_light() -> list[Levels]:
    return [picture(1) * 0.7] * 60 + [picture(1)] * 60


@pytest.mark.parametrize("seconds", [1, 2, 4])
def test_of_a_picture_a_frame_each_step_is_a_cut(seconds: int) -> None:
    found = cuts_of([picture(seed) for seed in range(1, 7)], seconds * 1_000)
    expected = [(step * seconds * 1_000, CutKind.HARD) for step in range(1, 6)]
    assert found == expected


def test_of_a_place_seen_once_a_second_no_step_is_a_cut() -> None:
    frames = []
    for index in range(20):
        frame = picture(1)
        frame[10 + index % 7 : 18 + index % 7, 2 * index : 2 * index + 6] = 30
        frames.append(frame)
    assert cuts_of(frames, 1_000) == []


@pytest.mark.parametrize(
    "frames",
    [deck([TITLE, LINES]), deck([TITLE]), beside_a_speaker()],
    ids=["title and lines", "title alone", "beside a speaker"],
)
def test_a_change_of_writing_that_is_sharp_and_lasts_is_a_cut(frames: list[Levels]) -> None:
    assert cuts_of(frames) == [(3_000, CutKind.HARD), (6_000, CutKind.HARD)]


@every(
    "frames",
    [
        deck([CAPTION]),
        [written(template(), seed // 25, [CORNER], columns=4) for seed in range(150)],
        typed(),
        shown_for(10),
        faded(),
        words_that_join(),
        in_another_light(),
    ],
    ids=["captions", "a clock", "typing", "a short note", "a fade", "words that join", "light"],
)
def test_other_small_changes_are_no_cuts(frames: list[Levels]) -> None:
    assert cuts_of(frames) == []


def frames(*seeds: int, each_ms: int = 3_000, step_ms: int = 40) -> FrameFeatures:
    """Shots that stand still but for noise, one after another."""
    count = each_ms // step_ms
    luma, chroma = [], []
    for seed in seeds:
        random = np.random.default_rng(seed)
        picture = random.integers(20, 235, (LUMA_HEIGHT, LUMA_WIDTH))
        colour = random.integers(60, 200, (2, CHROMA_HEIGHT, CHROMA_WIDTH))
        noise = random.integers(-2, 3, (count, LUMA_HEIGHT, LUMA_WIDTH))
        luma.append((picture + noise).astype(np.uint8))
        chroma.append(np.repeat(colour[np.newaxis].astype(np.uint8), count, axis=0))
    times = np.arange(count * len(seeds), dtype=np.int64) * step_ms
    return FrameFeatures(times, np.concatenate(luma), np.concatenate(chroma))


def own_cuts(*seeds: int) -> tuple[Cut, ...]:
    return detect_cuts([frames(*seeds)], 3_000 * len(seeds))


def test_a_single_part_has_the_cuts_it_always_had() -> None:
    cuts = own_cuts(1, 2, 3)
    assert [cut.time_ms for cut in cuts] == [3_000, 6_000]
    assert timeline_cuts([0], [cuts]) == cuts


def test_parts_keep_their_cuts_and_meet_at_one() -> None:
    cuts = timeline_cuts([0, 6_000], [own_cuts(1, 2), own_cuts(3, 4, 5)])
    assert [cut.time_ms for cut in cuts] == [3_000, 6_000, 9_000, 12_000]
    assert cuts[1].kind is CutKind.HARD
    assert cuts[1].confidence == 1.0


def test_parts_that_look_the_same_still_meet_at_a_cut() -> None:
    cuts = timeline_cuts([0, 3_000], [own_cuts(1), own_cuts(1)])
    assert [cut.time_ms for cut in cuts] == [3_000]


def test_a_part_without_any_frame_begins_at_its_cut_all_the_same() -> None:
    cuts = timeline_cuts([0, 3_000, 4_000], [own_cuts(1), (), own_cuts(2, 3)])
    assert [cut.time_ms for cut in cuts] == [3_000, 4_000, 7_000]


def test_a_part_may_begin_after_a_stretch_without_picture() -> None:
    cuts = timeline_cuts([0, 5_000], [own_cuts(1), own_cuts(2)])
    assert [cut.time_ms for cut in cuts] == [5_000]
