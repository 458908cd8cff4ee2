"""The same again: what was done to a film or its sound, and what merely looks or sounds alike."""

from __future__ import annotations

import functools

import cv2
import numpy as np
import pytest

from models.contracts import Samples
from pipelines.across.duplicates import Duplicate, DuplicateKind, MediaPrint, duplicates, shot_keys
from pipelines.media.audio import SoundPrint, print_of
from pipelines.media_types import WarningCode
from pipelines.vision.fingerprints import (
    Fingerprints,
    Pictures,
    joined_shots,
    picture_of,
    sample_times,
)
from serve_app.work.comparing import repeated_tracks
from tests.pipelines.vision.test_comparison import A, Shots, prints
from tests.tables import every

HZ = 16_000


@functools.cache
def melody(seed: int) -> Samples:
    """Eighteen seconds of notes."""
    random, sound = np.random.default_rng(seed), np.zeros(18 * HZ, np.float32)
    for at in range(0, len(sound) - HZ, HZ // 4):
        times = np.arange(HZ) / HZ
        note = 110 * 2 ** (int(random.integers(0, 36)) / 12)
        tones = sum(np.sin(2 * np.pi * note * each * times) / each for each in range(1, 9))
        sound[at : at + HZ] += (0.05 * tones * np.exp(-3 * times)).astype(np.float32)
    return sound + random.normal(0, 0.002, len(sound)).astype(np.float32)


def played(sound: Samples, speed: float) -> Samples:
    places = np.arange(round(len(sound) / speed)) * speed
    found: Samples = np.interp(places, np.arange(len(sound)), sound).astype(np.float32)
    return found


def heard(sound: Samples) -> MediaPrint:
    return MediaPrint(len(sound) * 1000 // HZ, None, {0: print_of([sound])})


def seen(shots: Shots, look: str = "") -> MediaPrint:
    return MediaPrint(sum(frames for _, _, frames in shots) * 40, prints(shots, look), {})


def only(kind: DuplicateKind, found: list[Duplicate]) -> Duplicate:
    [one] = [each for each in found if each.kind is kind]
    return one


@every("speed", [0.96, 1.0, 1.04, 25 / 24])
def test_trimmed_sound_is_found_whatever_its_speed(speed: float) -> None:
    other = heard(played(melody(1)[3 * HZ + 700 :], speed) * 0.3)
    found = duplicates(heard(melody(1)), other)
    assert [each.kind for each in found] == [DuplicateKind.FILE, DuplicateKind.SOUND]
    sound = only(DuplicateKind.SOUND, found)
    assert sound.speed == pytest.approx(speed, abs=0.012)
    assert abs(sound.start_ms - 3044) < 1_500
    assert sound.other_start_ms == pytest.approx((sound.start_ms - 3044) / speed, abs=300)
    assert sound.end_ms > 16_000


def test_other_sound_is_not_the_same() -> None:
    assert duplicates(heard(melody(1)), heard(melody(2))) == []


def test_muted_sound_identifies_nothing() -> None:
    whole = print_of([melody(1)])
    muted = whole.muted([(5_000, 9_000)])
    first, last = 5_000 // 125, 9_000 // 125
    assert muted.silent[first:last].all()
    assert not muted.bits[first - 4 : last].any(), "bits that were made of it"
    assert not ((muted.marks >= first) & (muted.marks < last)).any()
    nothing = MediaPrint(18_000, None, {0: whole.muted([(0, 18_000)])})
    assert duplicates(nothing, heard(melody(1))) == []


def test_a_track_that_repeats_another_is_named() -> None:
    noise = np.random.default_rng(5).normal(scale=0.002, size=melody(1).shape).astype(np.float32)
    sounds = [melody(2), melody(1), melody(1) + noise, np.zeros_like(noise), np.zeros_like(noise)]
    prints = {at: print_of([each]).to_bytes() for at, each in enumerate(sounds)}
    [warning] = repeated_tracks(prints)
    assert (warning.code, warning.track_index) == (WarningCode.AUDIO_REPEATED, 2)
    assert warning.message == "Track 3 sounds the same as track 2."


def test_a_print_does_not_depend_on_how_its_samples_come() -> None:
    sound = melody(3)
    parts = np.split(sound, [1, 999, 50_000, 50_001, 200_000])
    one, other = print_of([sound], 40), print_of(parts, 40)
    assert one.to_bytes() == other.to_bytes()
    assert SoundPrint.from_bytes(one.to_bytes()).to_bytes() == one.to_bytes()
    assert len(print_of([sound[:100]]).bits) == len(print_of([]).bits) == 0


@every("look", ["", "graded"])
def test_a_film_without_its_beginning_is_found(look: str) -> None:
    found = duplicates(seen(A), seen(A[1:], look))
    assert [each.kind for each in found] == [DuplicateKind.FILE, DuplicateKind.SHOT]
    shot = only(DuplicateKind.SHOT, found)
    assert shot.start_ms == pytest.approx(2_000, abs=600)
    assert shot.other_start_ms <= 600
    assert shot.speed == pytest.approx(1.0, abs=0.005)


def test_a_shot_in_another_film_is_no_file() -> None:
    other = [(31, 0, 75), A[4], (32, 0, 100), (33, 0, 75)]
    found = duplicates(seen(A), seen(other))
    assert [each.kind for each in found] == [DuplicateKind.SHOT]
    assert found[0].start_ms == pytest.approx(9_000, abs=600)
    assert found[0].other_start_ms == pytest.approx(3_000, abs=600)


def test_one_picture_before_two_recordings_makes_no_file() -> None:
    still = prints([(1, 0, 1)] * 40)
    sides = [MediaPrint(18_000, still, {0: print_of([melody(seed)])}) for seed in (1, 2)]
    assert DuplicateKind.FILE not in {each.kind for each in duplicates(*sides)}
    again = duplicates(sides[0], sides[0])
    assert again[0].kind is DuplicateKind.FILE


def lecture(seed: int) -> Fingerprints:
    """Five pages of one design, each with writing of its own."""
    random, samples = np.random.default_rng(seed), dict[int, tuple[Pictures, bool]]()
    spans = [(at, at + 4_000) for at in range(0, 20_000, 4_000)]
    for span in spans:
        page = np.full((144, 256), 240, np.uint8)
        page[:20] = 90
        for line in range(5):
            text = "".join(map(chr, random.integers(97, 123, int(random.integers(14, 20)))))
            cv2.putText(page, text, (20, 45 + 20 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.45, 20, 1)
        shown = picture_of(cv2.resize(page, (64, 36), interpolation=cv2.INTER_AREA))
        samples |= dict.fromkeys(sample_times(*span).tolist(), shown)
    return joined_shots(spans, samples)


def test_lectures_of_one_design_are_no_file_and_a_dubbed_film_is() -> None:
    sounds = [{0: print_of([melody(seed)])} for seed in (1, 2)]
    one, other = (MediaPrint(20_000, lecture(2 + at), sounds[at]) for at in (0, 1))
    assert DuplicateKind.FILE not in {each.kind for each in duplicates(one, other)}
    film, dubbed = (MediaPrint(18_200, prints(A, look), sounds[at])
                    for at, look in enumerate(("", "graded")))  # fmt: skip
    assert duplicates(film, dubbed)[0].kind is DuplicateKind.FILE


def test_a_video_of_plain_pictures_alone_has_no_keys_and_is_in_no_other() -> None:
    shown = picture_of(np.full((36, 64), 250, np.uint8))
    plain = joined_shots([(0, 4_000)], dict.fromkeys(sample_times(0, 4_000).tolist(), shown))
    assert plain.plain.all()
    for probes in (False, True):
        keys, samples = shot_keys(plain, probes=probes)
        assert (len(keys), len(samples)) == (0, 0)
    assert duplicates(MediaPrint(4_000, plain, {}), seen(A)) == []
