"""Start times by timecode and by sample count: exact rates, drop-frame, midnight."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipelines.ingest.timecode import (
    CannotPlaceError,
    Clocks,
    DayTime,
    SyncMode,
    WavLabels,
    from_labels,
    parse_rate,
    parse_timecode,
    rate_near,
    seconds_after,
    start_by_rule,
)
from tests.tables import every


@every(
    ("text", "measured_rate", "seconds"),
    [
        ("00:00:00:00", 25.0, Fraction(0)),
        ("01:00:00:12", 25.0, 3600 + Fraction(12, 25)),
        ("00:00:00:30", 59.94, Fraction(30 * 1001, 60000)),
        ("01:00:00:00", 23.976, Fraction(3600 * 24 * 1001, 24000)),
        ("01:00:00:00", 29.97, Fraction(3600 * 30 * 1001, 30000)),
        ("00:01:00;02", 29.97, Fraction(1800 * 1001, 30000)),
        ("00:10:00;00", 29.97, Fraction(17982 * 1001, 30000)),
        ("01:00:00;00", 29.97, Fraction(107892 * 1001, 30000)),
        ("01:00:00;00", 59.94, Fraction(215784 * 1001, 60000)),
        ("00:01:00.02", 30.0, Fraction(1800 * 1001, 30000)),
    ],
)
def test_a_timecode_counts_frames_of_the_true_rate(
    text: str, measured_rate: float, seconds: Fraction
) -> None:
    moment = parse_timecode(text, measured_rate)
    assert moment is not None
    assert moment.seconds == seconds


@every(
    ("text", "measured_rate"),
    [
        (None, 25.0),
        ("", 25.0),
        ("1:00:00:00", 25.0),
        ("25:00:00:00", 25.0),
        ("00:60:00:00", 25.0),
        ("00:00:00:25", 25.0),
        ("00:00:00;00", 25.0),
        ("00:00:00:00", 13.7),
        ("00:00:00:00", 0.0),
    ],
)
def test_what_is_no_timecode_of_this_rate_names_no_moment(
    text: str | None, measured_rate: float
) -> None:
    assert parse_timecode(text, measured_rate) is None


def test_drop_frame_numbers_follow_each_other_over_a_minute() -> None:
    before, after = parse_timecode("00:00:59;29", 29.97), parse_timecode("00:01:00;02", 29.97)
    assert before is not None
    assert after is not None
    assert after.seconds - before.seconds == Fraction(1001, 30000)


@every(
    ("sound", "picture", "after"),
    [
        ("10:00:01:00", "10:00:00:00", 1.0),
        ("10:00:00:00", "10:00:01:00", -1.0),
        ("00:00:02:00", "23:59:58:00", 4.0),
        ("23:59:58:00", "00:00:02:00", -4.0),
    ],
)
def test_the_shorter_way_around_midnight_counts(sound: str, picture: str, after: float) -> None:
    moments = [parse_timecode(text, 25.0) for text in (sound, picture)]
    assert moments[0] is not None
    assert moments[1] is not None
    assert seconds_after(moments[0], moments[1]) == pytest.approx(after)


def test_a_day_of_timecode_ends_when_its_numbers_do() -> None:
    last, first = parse_timecode("23:59:59:23", 23.976), parse_timecode("00:00:00:00", 23.976)
    assert last is not None
    assert first is not None
    assert seconds_after(first, last) == pytest.approx(1001 / 24000)


def test_samples_since_midnight_are_a_moment() -> None:
    found = from_labels(WavLabels(time_reference=48_000 * 3_600, sample_rate_hz=48_000))
    assert found == DayTime(Fraction(3_600))


@every(
    "labels",
    [
        WavLabels(),
        WavLabels(time_reference=5),
        WavLabels(time_reference=0, sample_rate_hz=48_000),
        WavLabels(time_reference=48_000 * 200_000, sample_rate_hz=48_000),
    ],
    ids=["nothing", "no rate", "a count that nobody set", "days after midnight"],
)
def test_labels_that_say_no_moment(labels: WavLabels) -> None:
    assert from_labels(labels) is None


def test_midnight_with_a_timecode_rate_beside_it_is_a_moment() -> None:
    labels = WavLabels(time_reference=0, sample_rate_hz=48_000, timecode_rate="25/1")
    assert from_labels(labels) == DayTime(Fraction(0))


@every(
    ("text", "rate"),
    [("30000/1001", Fraction(30000, 1001)), ("25", Fraction(25)), ("29.97", Fraction(30000, 1001)),
     ("x", None), ("1/0", None), ("-25", None), (None, None),
     # Nothing that would keep a processor busy, or be larger than a double.
     ("1e999999999", None), ("1e400", None), ("25e0", None), ("9" * 100, None), ("2_5", None)],
)  # fmt: skip
def test_rates_as_recorders_write_them(text: str | None, rate: Fraction | None) -> None:
    assert parse_rate(text) == rate


@every(("measured", "rate"), [(24.0, 24), (29.8, None), (100.1, 100)])
def test_a_measured_rate_stands_for_the_nearest_standard_one(
    measured: float, rate: int | None
) -> None:
    found = rate_near(measured)
    if rate is not None:
        assert found == rate
    else:
        assert found == Fraction(30000, 1001)


ONE_OCLOCK = DayTime(Fraction(3_600))


def clocks(sound: DayTime | None, picture: DayTime | None) -> Clocks:
    return Clocks(sound, 60.0, picture, 120.0)


def test_an_offset_is_taken_as_it_is_given() -> None:
    both = clocks(ONE_OCLOCK, ONE_OCLOCK)
    assert start_by_rule(SyncMode.OFFSET, -1500, both) == -1.5


@every("mode", [SyncMode.AUTO, SyncMode.TIMECODE])
def test_two_timecodes_place_the_sound(mode: SyncMode) -> None:
    found = start_by_rule(mode, None, clocks(DayTime(Fraction(3_612)), ONE_OCLOCK))
    assert found == pytest.approx(12.0)


@every(
    ("sound", "picture", "sentence"),
    [
        (None, ONE_OCLOCK, "It has no start timecode."),
        (ONE_OCLOCK, None, "The video has no start timecode."),
        (None, None, "Neither it nor the video has a start timecode."),
    ],
)
def test_without_a_timecode_auto_listens_and_timecode_fails(
    sound: DayTime | None, picture: DayTime | None, sentence: str
) -> None:
    assert start_by_rule(SyncMode.AUTO, None, clocks(sound, picture)) is None
    with pytest.raises(CannotPlaceError, match=sentence):
        start_by_rule(SyncMode.TIMECODE, None, clocks(sound, picture))


@every("seconds", [3_600 + 121, 3_600 - 61])
def test_timecodes_that_do_not_let_them_overlap_are_not_believed(seconds: int) -> None:
    apart = clocks(DayTime(Fraction(seconds)), ONE_OCLOCK)
    assert start_by_rule(SyncMode.AUTO, None, apart) is None
    with pytest.raises(CannotPlaceError, match="does not overlap"):
        start_by_rule(SyncMode.TIMECODE, None, apart)
