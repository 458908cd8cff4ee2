"""Separate sound finds its place by ear: right within 40 ms, or honest about not knowing."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from models.contracts import SAMPLE_RATE_HZ
from pipelines.ingest.sync import CERTAIN, Alignment, align
from tests.media import two_recorders
from tests.media.two_recorders import Recorder, Take, babbled, camera, close_microphone, take
from tests.tables import every

CASES = int(os.environ.get("VAS_SYNC_CASES", "12"))
SOME = 6
"""Cases of ``make test``, a third of them very noisy; the others are drawn in the same way."""
SEED = 4_000
CLEAN = Recorder(60, 0.1, 30, (60, 7_900))


def drawn(case: int, *, seconds: float = 40, clock_ppm: float = 0.0) -> Take:
    """A scene of 40 s on both recorders, up to 30 s apart; every third very noisy."""
    random = np.random.default_rng(SEED + case)
    offset = random.uniform(-30, 30)
    far = camera(random)
    noise_db = random.uniform(-10, 0) if case % 3 == 0 else far.signal_to_noise_db
    far = Recorder(
        noise_db,
        far.reverberation_seconds,
        far.direct_to_reverberant_db,
        far.band_hz,
        far.delay_seconds,
        far.levelled,
        far.clips,
    )
    return take(
        babbled(2 * seconds, random),
        random,
        offset_seconds=offset,
        reference_seconds=seconds,
        target_seconds=seconds,
        recorders=(far, close_microphone(random, clock_ppm)),
    )


def found(made: Take) -> Alignment:
    alignment = align(made.reference, made.target)
    assert alignment is not None
    return alignment


def cases(count: int, some: int) -> list[Any]:
    """``count`` cases, all but the first ``some`` of them marked long."""
    later = [pytest.param(case, marks=pytest.mark.long) for case in range(some, count)]
    return [*range(min(some, count)), *later]


@every("case", cases(CASES, SOME))
def test_noise_room_and_another_microphone_do_not_hide_the_offset(case: int) -> None:
    made = drawn(case)
    alignment = found(made)
    assert abs(alignment.offset_seconds - made.offset_seconds) < 0.040
    assert alignment.confidence >= CERTAIN


@every("case", cases(CASES // 2, SOME // 2))
def test_recordings_of_different_scenes_are_not_matched(case: int) -> None:
    one, other = drawn(1_000 + case), drawn(2_000 + case)
    alignment = align(one.reference, other.target)
    assert alignment is None or alignment.confidence < CERTAIN


def test_clean_recordings_are_placed_to_the_sample() -> None:
    random = np.random.default_rng(SEED)
    made = take(
        babbled(30, random),
        random,
        offset_seconds=4.321,
        reference_seconds=20,
        target_seconds=20,
        recorders=(CLEAN, CLEAN),
    )
    assert abs(found(made).offset_seconds - 4.321) * SAMPLE_RATE_HZ < 2


@every("lengths", [(8, 40), (40, 8), (5, 5)], ids=["camera", "recorder", "both"])
def test_short_recordings_find_their_place(lengths: tuple[int, int]) -> None:
    random = np.random.default_rng(SEED + 1)
    offset = -6.5 if lengths == (8, 40) else 1.25
    made = take(
        babbled(60, random),
        random,
        offset_seconds=offset,
        reference_seconds=lengths[0],
        target_seconds=lengths[1],
        recorders=(camera(random), close_microphone(random)),
    )
    alignment = found(made)
    assert abs(alignment.offset_seconds - offset) < 0.040
    assert alignment.confidence >= CERTAIN


@pytest.mark.parametrize("ppm", [-60.0, pytest.param(35.0, marks=pytest.mark.long)])
def test_clocks_that_run_apart_are_measured_and_met_in_the_middle(ppm: float) -> None:
    random = np.random.default_rng(SEED + 2)
    seconds, offset = 240.0, 12.0
    made = take(
        babbled(seconds + 20, random),
        random,
        offset_seconds=offset,
        reference_seconds=seconds,
        target_seconds=seconds,
        recorders=(camera(random), close_microphone(random, clock_ppm=ppm)),
    )
    alignment = found(made)
    middle = (len(made.reference) / SAMPLE_RATE_HZ - offset) / 2
    there = offset - middle * ppm * 1e-6
    assert alignment.drift_ppm == pytest.approx(-ppm, abs=3)
    assert alignment.drift_uncertainty_ppm < 3
    assert alignment.offset_seconds == pytest.approx(there, abs=0.020)


def test_the_same_bar_of_music_over_and_over_is_not_claimed_to_be_certain() -> None:
    random = np.random.default_rng(SEED + 3)
    bar = babbled(2.0, random)
    loop = np.round(np.tile(bar, 20) * 9_000).astype(np.int16)
    short = loop[: 10 * SAMPLE_RATE_HZ]
    alignment = align(loop, short)
    assert alignment is None or alignment.confidence < CERTAIN


@every("samples", [0, 100, SAMPLE_RATE_HZ, 10 * SAMPLE_RATE_HZ])
def test_silence_is_matched_with_nothing(samples: int) -> None:
    made = drawn(1)
    silence = np.zeros(samples, np.int16)
    for pair in ((made.reference, silence), (silence, made.target), (silence, silence)):
        alignment = align(*pair)
        assert alignment is None or alignment.confidence < CERTAIN


def test_turned_polarity_does_not_matter() -> None:
    made = drawn(4)
    alignment = align(made.reference, -np.maximum(made.target, -32_767))
    assert alignment is not None
    assert abs(alignment.offset_seconds - made.offset_seconds) < 0.040
    assert alignment.confidence >= CERTAIN


def test_the_simulated_recorders_do_differ() -> None:
    """Else the tests above would show nothing: the raw samples are hardly alike."""
    made = drawn(0)
    start = round(made.offset_seconds * two_recorders.RATE_HZ)
    one = made.reference[max(0, start) :].astype(float)
    other = made.target[max(0, -start) :].astype(float)
    length = min(len(one), len(other))
    assert abs(np.corrcoef(one[:length], other[:length])[0, 1]) < 0.5
