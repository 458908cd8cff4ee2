"""What the measures propose, judged by a network: when it is called, and what that changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contracts import BoundaryPictures, Probabilities
from pipelines.types import CutsBy
from pipelines.vision.cuts.gradual import Gradual
from pipelines.vision.cuts.hard import HardCandidate, HardEvidence
from pipelines.vision.cuts.judge import JudgeConfig, boundary_pictures, judged, probabilities
from pipelines.vision.cuts.selection import (
    Candidates,
    Cut,
    CutConfig,
    CutKind,
    Found,
    as_judged,
    detect_cuts,
    search,
    settled,
    together,
)
from pipelines.vision.features import FrameFeatures
from tests.pipelines.vision.test_cuts import (
    FRAME_MS,
    LINES,
    PROGRAMME,
    TITLE,
    deck,
    features,
    picture,
    shot,
)
from tests.tables import every


@dataclass
class Scripted:
    """A detector with one answer for all frames."""

    answer: float = 0.0
    seen: list[int] = field(default_factory=list)

    def detect_boundaries(self, frames: BoundaryPictures) -> Probabilities:
        self.seen.append(len(frames))
        return np.full(len(frames), self.answer, np.float32)


FRAMES = replace(features(shot(1, 300)), aspects=np.ones(300, np.float32))


EVIDENCE = HardEvidence(
    step=0.5, around=0.01, lasting=0.5, beside=0.0, within=0.0, alike=0.3, residue=0.2, gone=0.7
)


def candidate(index: int, confidence: float, **measured: float) -> HardCandidate:
    return HardCandidate(index * FRAME_MS, confidence, replace(EVIDENCE, **measured))


def judgement(
    detector: Scripted, hard: Sequence[HardCandidate], graduals: Sequence[Gradual] = ()
) -> tuple[list[float], set[Gradual]]:
    found = judged(FRAMES, (0, 300), hard, graduals, detector, JudgeConfig(), thorough=False)
    return [confidence for _, confidence in found.hard], found.refused


@pytest.mark.parametrize(
    ("measured", "answer", "is_cut"),
    [(0.0001, 0.5, True), (0.0001, 0.1, False), (0.9, 0.2, True), (0.9, 0.01, False)],
)
def test_a_step_in_doubt_is_a_cut_by_the_evidence_of_both(
    measured: float, answer: float, is_cut: bool
) -> None:
    [confidence], _ = judgement(Scripted(answer), [candidate(150, measured)])
    assert (confidence >= 0.5) is is_cut


@pytest.mark.parametrize(("around", "is_cut"), [(0.004, True), (0.02, False)])
def test_a_small_step_is_asked_about_between_stills_alone(around: float, is_cut: bool) -> None:
    hard = candidate(150, 0.0001, step=0.22, lasting=0.21, around=around)
    [confidence], _ = judgement(Scripted(0.5), [hard])
    assert (confidence >= 0.5) is is_cut


@pytest.mark.parametrize(
    ("beside", "answer", "is_cut"),
    [
        (0.3, 0.7, False),
        (0.3, 0.95, True),
        (0.2, 0.7, True),
    ],
)
def test_where_a_camera_may_sweep_the_network_must_be_sure(
    beside: float, answer: float, is_cut: bool
) -> None:
    [confidence], _ = judgement(Scripted(answer), [candidate(150, 0.6, beside=beside)])
    assert (confidence >= 0.5) is is_cut


@every(
    "hard",
    [
        candidate(150, 0.995),
        candidate(150, 0.001, step=0.15, lasting=0.15),
        candidate(150, 0.001, lasting=0.1),
        candidate(150, 0.0001, around=0.3),
        candidate(150, 0.001, alike=0.95),
        candidate(150, 0.001, gone=0.05),
    ],
    ids=["sure", "tiny", "a flash", "shaking", "a lamp", "passing"],
)
def test_what_is_sure_or_tiny_or_does_not_last_is_not_asked_about(hard: HardCandidate) -> None:
    detector = Scripted(0.5)
    assert judgement(detector, [hard]) == ([hard.confidence], set())
    assert detector.seen == []


def test_a_gradual_transition_that_the_network_does_not_see_is_refused() -> None:
    wipe = Gradual(5_600, 6_000, 6_400, 0.9, 40.0, None)
    assert judgement(Scripted(0.01), [], [wipe])[1] == {wipe}
    assert judgement(Scripted(0.2), [], [wipe])[1] == set()


def test_the_network_gets_a_frame_and_sixteen_on_both_sides() -> None:
    detector = Scripted()
    judgement(detector, [candidate(150, 0.5)])
    assert detector.seen == [33]


def test_however_much_is_in_doubt_no_frame_is_seen_twice() -> None:
    detector = Scripted()
    judgement(detector, [candidate(index, 0.5) for index in range(1, 300, 7)])
    assert sum(detector.seen) <= len(FRAMES) + 32


def test_answers_stand_at_the_frames_that_were_asked_about() -> None:
    class Brightness:
        def detect_boundaries(self, frames: BoundaryPictures) -> Probabilities:
            return np.asarray(frames[:, 0, 0, 0] / 255, np.float32)

    frames = features([np.full((36, 64), float(index)) for index in range(200)])
    frames = replace(frames, aspects=np.ones(200, np.float32))
    found = probabilities(frames, [(-3, 2), (90, 91), (150, 153), (198, 205)], Brightness())
    levels = boundary_pictures(frames)[:, 0, 0, 0] / 255
    expected = [*range(2), 90, *range(150, 153), 198, 199]
    np.testing.assert_allclose(found[expected], levels[expected], atol=1e-6)


def cuts_by(frames: FrameFeatures, by: CutsBy, detector: Scripted) -> list[tuple[int, CutKind]]:
    frames = replace(frames, aspects=np.ones(len(frames), np.float32))
    end_ms, config = int(frames.times_ms[-1]) + 40, CutConfig(by=by)
    found = search(frames, 0, len(frames), config, end_ms, detector)
    return [(cut.time_ms, cut.kind) for cut in Candidates.among(found, end_ms).select(config)]


@pytest.mark.parametrize("by", [CutsBy.JUDGED, CutsBy.THOROUGH])
@pytest.mark.parametrize(
    "film",
    [
        lambda: features(deck([TITLE, LINES])),
        lambda: features([picture(seed) for seed in range(1, 7)], 2_000),
    ],
    ids=["slides", "a picture a frame"],
)
def test_slides_are_found_where_the_network_finds_nothing(
    film: Callable[[], FrameFeatures], by: CutsBy
) -> None:
    """It has learned from films."""
    frames = film()
    found = [at for at, _ in cuts_by(frames, by, Scripted())]
    end_ms = int(frames.times_ms[-1]) + 40
    assert found == [cut.time_ms for cut in detect_cuts([frames], end_ms)] != []


class Darker(Scripted):
    """Finds a cut where the next picture is darker by a level or more."""

    def detect_boundaries(self, frames: BoundaryPictures) -> Probabilities:
        steps = np.diff(frames.mean(axis=(1, 2, 3)), append=255)
        return np.where(steps < -1, 0.9, 0).astype(np.float32)


def test_a_thorough_search_finds_what_the_measures_do_not_propose() -> None:
    level = picture(3) * 0.2
    level -= level.mean()
    frames = features([level + 101.5] * 100 + [level + 98.5] * 100)
    assert cuts_by(frames, CutsBy.JUDGED, Darker()) == []
    assert cuts_by(frames, CutsBy.THOROUGH, Darker()) == [(4_000, CutKind.HARD)]


@pytest.mark.parametrize("by", [CutsBy.JUDGED, CutsBy.THOROUGH])
def test_a_block_is_judged_the_same_whatever_lies_beyond_its_surroundings(by: CutsBy) -> None:
    """So that it matters to no cut in how many tasks a video is searched."""
    frames = replace(features(PROGRAMME), aspects=np.ones(len(PROGRAMME), np.float32))
    end_ms, config = len(frames) * FRAME_MS, CutConfig(by=by)
    whole = search(frames, 0, len(frames), config, end_ms, Darker())
    hard: list[tuple[int, float]] = []
    for first in range(0, len(frames), 256):
        low, high = max(0, first - 480), min(len(frames), first + 256 + 480)
        ends_ms = int(frames.times_ms[high]) if high < len(frames) else end_ms
        end = min(first + 256, len(frames)) - low
        part = search(frames.part(low, high), first - low, end, config, ends_ms, Darker())
        hard += part.hard
    assert tuple(hard) == whole.hard


SPANS = st.lists(
    st.builds(
        lambda start, length, confidence, strength: Gradual(
            start, start + length // 2, start + length, confidence / 20, float(strength), None
        ),
        st.integers(0, 60),
        st.integers(2, 20),
        st.integers(0, 20),
        st.integers(1, 9),
    ),
    max_size=12,
    unique=True,
)


@given(SPANS, SPANS, st.data())
def test_only_what_decides_is_judged_and_the_cuts_are_those_of_judging_all(
    graduals: list[Gradual], wipes: list[Gradual], data: st.DataObject
) -> None:
    """Candidates of two blocks, which are judged apart, and what the network would refuse."""
    config = CutConfig()
    doubtful = {it for it in graduals if 0.5 <= it.confidence < 0.9}
    doubtful |= {it for it in wipes if 0.8 <= it.confidence < 0.9}
    gone = data.draw(st.sets(st.sampled_from(sorted(doubtful, key=repr)))) if doubtful else set()
    seen: set[Gradual] = set()

    def refused(asked: set[Gradual]) -> set[Gradual]:
        assert asked.isdisjoint(seen)
        seen.update(asked)
        return asked & gone

    def block(at: int, judges_all: bool) -> Found:
        own = [it for it in graduals if it.middle_ms // 40 == at]
        others = [it for it in wipes if it.middle_ms // 40 == at]
        asked = refused if not judges_all else lambda asked: asked & gone
        found = as_judged(own, others, doubtful & {*own, *others}, config, asked, judges_all)
        return Found((), tuple(found[0]), tuple(found[1]))

    def chosen(found: list[Found]) -> tuple[Cut, ...]:
        return Candidates.among(together(found), 100).select(config)

    lazily = settled(
        [block(at, False) for at in range(2)], config, lambda at: [block(it, True) for it in at]
    )
    assert chosen(lazily) == chosen([block(at, True) for at in range(2)])
