"""Speech in sound: read in blocks, found where it is and nowhere else, cut into chunks."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from benchmarks.speech.material import turns_of
from benchmarks.speech.noises import made
from models.contracts import (
    ACTIVITY_FRAMES,
    ACTIVITY_WINDOW_SAMPLES,
    LOCAL_SPEAKERS,
    SAMPLE_RATE_HZ,
    Samples,
    SoundKind,
)
from models.provider import LocalModels
from models.tasks import SEGMENT_SPEAKERS
from pipelines.media.audio import (
    LEVEL_FRAME_SECONDS,
    Levels,
    SampleReader,
    frame_levels,
    overlapping_windows,
    read_blocks,
    write_flac,
)
from pipelines.speech.regions import (
    Chunk,
    ChunkLimits,
    Region,
    Sharding,
    group_chunks,
    is_supported,
    merge_regions,
    plan_chunks,
    regions_of,
    scan_track,
)
from pipelines.speech.speakers import STEP_SAMPLES, LocalVoices, speech_activity, windows_of
from tests.examples import examples
from tests.tables import every

TESTS = Path(__file__).resolve().parents[2]
SPEECH = TESTS / "media" / "speech"
SHARED = TESTS.parent / ".." / "shared" / "media"
NOTHING: list[tuple[float, float]] = []


def detected(samples: Samples) -> list[Region]:
    return scanned(samples)[0]


def load(path: Path) -> Samples:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def seconds(count: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.arange(round(count * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ


def noise(level: float) -> Samples:
    return (level * np.random.default_rng(3).normal(size=10 * SAMPLE_RATE_HZ)).astype(np.float32)


def hum() -> Samples:
    tones = [np.sin(2 * np.pi * 50 * k * seconds(10)) / k for k in range(1, 8)]
    samples: Samples = (0.1 * np.sum(tones, axis=0)).astype(np.float32)
    return samples


def chord() -> Samples:
    """Held chords that change every two seconds, as a synthesiser pad."""
    time = seconds(10)
    root = np.array([220.0, 175.0, 262.0, 196.0, 220.0])[(time // 2).astype(int)]
    tones = [np.sin(2 * np.pi * np.cumsum(root * r) / SAMPLE_RATE_HZ) for r in (1, 1.25, 1.5)]
    samples: Samples = (0.1 * np.sum(tones, axis=0)).astype(np.float32)
    return samples


@every(
    "samples",
    [
        pytest.param(np.zeros(0, np.float32), id="no samples"),
        pytest.param(np.zeros(100, np.float32), id="less than a frame"),
        pytest.param(np.zeros(10 * SAMPLE_RATE_HZ, np.float32), id="digital silence"),
        pytest.param(noise(1e-5), id="dither"),
        pytest.param(noise(0.1), id="white noise"),
        pytest.param(lfilter([0.05], [1, -0.98], noise(0.1)), id="brown noise"),
        pytest.param(hum(), id="mains hum"),
        pytest.param(chord(), id="chords"),
        pytest.param(np.append(hum(), np.zeros_like(hum())), id="hum that stops"),
    ],
)
def test_what_is_not_speech_has_no_regions(samples: Samples) -> None:
    assert detected(samples.astype(np.float32)) == NOTHING


@every(
    "kind",
    ["surf", "crowd without words", "machine", "hum", "pink noise", "choir on vowels"],
)
def test_noises_and_sung_vowels_have_no_regions(kind: str) -> None:
    assert detected(made(kind, 30.0, seed=3)) == NOTHING


def test_hardly_any_of_a_tune_is_taken_for_speech() -> None:
    regions = detected(made("band", 60.0, seed=3))
    assert sum(end - start for start, end in regions) < 3.0


@pytest.mark.parametrize("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_spoken_sentences_are_found_and_the_pauses_between_them(gain: float) -> None:
    regions = detected(gain * load(SPEECH / "one_voice.flac"))
    spoken = [(0.5, 3.233), (3.933, 5.887), (6.587, 8.55)]
    assert len(regions) == len(spoken)
    for (start, end), (from_second, to_second) in zip(regions, spoken, strict=True):
        assert start == pytest.approx(from_second, abs=0.25)
        assert end == pytest.approx(to_second, abs=0.25)


def test_quiet_speech_is_found_beside_a_loud_bang() -> None:
    speech = 0.01 * load(SPEECH / "one_voice.flac")
    bang = np.zeros(8 * SAMPLE_RATE_HZ, np.float32)
    bang[3 * SAMPLE_RATE_HZ : 3 * SAMPLE_RATE_HZ + 800] = 0.9
    regions = detected(np.append(bang, speech))
    assert sum(end - start for start, end in regions if start > 8) > 5


def test_the_answer_does_not_depend_on_earlier_calls() -> None:
    speech = load(SPEECH / "two_voices.flac")
    first = detected(speech)
    detected(noise(0.2))
    assert detected(speech) == first
    assert first == sorted(first)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    "name",
    [
        "speech/leopard-empty-nospeech.wav",
        "formats/smpte-2997.mp4",
        "cuts/car-detection.mp4",
    ],
)
def test_recordings_without_speech_have_no_regions(name: str) -> None:
    assert detected(load(SHARED / name)) == NOTHING


@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["jfk.wav", "azure-en.wav", "spk1_snt1.wav", "cards-001.wav"])
def test_recordings_of_speech_are_mostly_speech(name: str) -> None:
    samples = load(SHARED / "speech" / name)
    found = sum(end - start for start, end in detected(samples))
    assert found > 0.6 * len(samples) / SAMPLE_RATE_HZ


@pytest.mark.parametrize(
    ("probabilities", "frames"),
    [
        pytest.param([0.4] * 20, [], id="never probable"),
        pytest.param([0.1] * 5 + [0.6] + [0.4] * 9 + [0.2] * 5, [(5, 15)], id="lasts at 0.4"),
        pytest.param([0.9] * 3 + [0.1] * 9, [], id="96 ms are too short"),
        pytest.param([0.9] * 8 + [0.1] * 3 + [0.9] * 9, [(0, 20)], id="a gap of 96 ms is speech"),
        pytest.param([0.9] * 8 + [0.1] * 4 + [0.9] * 8, [(0, 8), (12, 20)], id="a gap of 128 ms"),
    ],
)
def test_regions_begin_and_end_at_different_probabilities(
    probabilities: list[float], frames: list[tuple[int, int]]
) -> None:
    found = regions_of(np.array(probabilities, np.float32), 0.64)
    assert found == [pytest.approx((start * 0.032, end * 0.032)) for start, end in frames]


@pytest.mark.shared_media
@pytest.mark.parametrize(("name", "share"), [("ami-dev00", 0.9), ("ami-trn05", 0.9)])
def test_most_of_what_is_spoken_in_a_meeting_is_found(name: str, share: float) -> None:
    """Silero alone, at its default threshold, finds 0.60 and 0.75."""
    turns = turns_of(f"speakers/{name}.wav")
    spoken, found = np.zeros(3000, np.bool_), np.zeros(3000, np.bool_)
    for start, end, _ in turns:
        spoken[round(start * 100) : round(end * 100)] = True
    for start, end in detected(load(SHARED / "speakers" / f"{name}.wav")):
        found[round(start * 100) : round(end * 100)] = True
    assert (spoken & found).sum() >= share * spoken.sum()
    assert (found & ~spoken).sum() <= 0.1 * len(found)


@pytest.mark.parametrize(
    ("region", "supported"),
    [
        pytest.param((0.0, 1.0), False, id="Silero has no doubt"),
        pytest.param((2.0, 4.0), False, id="of a quarter"),
        pytest.param((3.0, 4.0), True, id="of a half"),
    ],
)
def test_a_region_of_segmentation_counts_where_silero_doubts_too(
    region: tuple[float, float], supported: bool
) -> None:
    assert is_supported(region, [(3.5, 5.0)]) is supported


def scanned(samples: Samples) -> tuple[list[Region], Levels]:
    """Regions of speech in seconds, and the level of every frame."""
    models = LocalModels()
    starts = [STEP_SAMPLES * number for number in range(windows_of(len(samples)))]
    windows = [samples[at : at + ACTIVITY_WINDOW_SAMPLES] for at in starts]
    speech = np.stack([each.speech for each in models.get(SEGMENT_SPEAKERS).segment(windows)])
    count = len(windows)
    voices = LocalVoices(
        np.zeros((count, ACTIVITY_FRAMES, LOCAL_SPEAKERS), np.bool_),
        np.zeros((count, LOCAL_SPEAKERS, 0), np.float16),
        np.zeros((count, 0, len(SoundKind)), np.uint8),
        (255 * speech).round().astype(np.uint8),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "track.flac"
        with path.open("wb") as stream:
            write_flac(stream, [samples])
        return scan_track(path, speech_activity([voices]), models, lambda: None)


LIMITS = ChunkLimits(max_seconds=20.0, min_seconds=4.0, pause_seconds=0.8, padding_seconds=0.2)
FRAMES_A_SECOND = 50


def flat(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(round(seconds * FRAMES_A_SECOND), -20.0, np.float32)


def times(chunks: list[Chunk]) -> list[tuple[float, float]]:
    return [(round(c.start_seconds, 2), round(c.end_seconds, 2)) for c in chunks]


regions_strategy = st.lists(
    st.tuples(st.floats(0, 300), st.floats(0.1, 60)).map(lambda r: (r[0], min(300.0, r[0] + r[1]))),
    max_size=20,
).map(merge_regions)


@settings(max_examples=examples(60), deadline=None)
@given(regions_strategy, st.integers(0, 1000))
def test_chunks_are_bounded_disjoint_and_cover_all_speech(
    regions: list[tuple[float, float]], seed: int
) -> None:
    levels = np.random.default_rng(seed).uniform(-60, -10, 300 * FRAMES_A_SECOND).astype(np.float32)
    chunks = plan_chunks(regions, levels, LIMITS)
    covered = np.zeros(len(levels), bool)
    previous_end = 0
    for chunk in chunks:
        assert previous_end <= chunk.start_frame < chunk.end_frame <= len(levels)
        assert chunk.seconds <= LIMITS.max_seconds + 1e-9
        covered[chunk.start_frame : chunk.end_frame] = True
        previous_end = chunk.end_frame
        first, last = chunk.sample_span
        assert 0 <= first < last <= 300 * SAMPLE_RATE_HZ
    for start, end in regions:
        inside = covered[int(np.ceil(start * FRAMES_A_SECOND)) : int(end * FRAMES_A_SECOND)]
        assert inside.all()


@settings(max_examples=examples(60), deadline=None)
@given(
    regions_strategy,
    st.one_of(st.none(), st.floats(0.1, 500)),
    st.integers(1, 30),
)
def test_sharding_only_groups_chunks(
    regions: list[tuple[float, float]], shard_seconds: float | None, max_shards: int
) -> None:
    chunks = plan_chunks(regions, flat(300), LIMITS)
    groups = group_chunks(chunks, Sharding(shard_seconds, max_shards))
    assert [chunk for group in groups for chunk in group] == chunks
    assert all(groups)
    assert len(groups) <= max_shards


def test_a_pause_of_the_limit_ends_a_chunk_and_a_shorter_one_does_not() -> None:
    regions = [(1.0, 2.0), (2.9, 4.0), (5.5, 6.0)]
    assert times(plan_chunks(regions, flat(10), LIMITS)) == [(0.8, 4.2), (5.3, 6.2)]


def test_long_speech_is_cut_at_its_longest_pause() -> None:
    regions = [(0.0, 9.0), (9.5, 14.0), (14.9, 19.0), (19.6, 30.0)]
    chunks = plan_chunks(regions, flat(30), LIMITS)
    assert times(chunks) == [(0.0, 14.2), (14.7, 30.0)]


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    levels = flat(30)
    levels[12 * FRAMES_A_SECOND - 5 : 12 * FRAMES_A_SECOND + 5] = -40
    levels[15 * FRAMES_A_SECOND] = -60  # one frame only: the closure of a stop, not a pause
    first, second = plan_chunks([(0.0, 30.0)], levels, LIMITS)
    assert first.end_frame == second.start_frame
    assert first.end_seconds == pytest.approx(12.0, abs=0.11)
    assert (first.before_frames, first.after_frames) == (0, FRAMES_A_SECOND)
    assert (second.before_frames, second.after_frames) == (FRAMES_A_SECOND, 0)
    assert first.speech[-1][1] - second.speech[0][0] == 2 * FRAMES_A_SECOND
    assert first.detected[-1][1] == second.detected[0][0]


def test_a_chunk_names_its_regions_of_speech() -> None:
    regions = [(0.0, 9.0), (9.5, 14.0), (14.9, 19.0), (19.6, 30.0)]
    chunks = plan_chunks(regions, flat(30), LIMITS)
    spans = [(0, 460), (465, 710), (735, 960), (970, 1500)]
    assert [span for chunk in chunks for span in chunk.speech] == spans


def test_no_speech_gives_no_chunks() -> None:
    assert plan_chunks([], flat(10), LIMITS) == []
    assert plan_chunks([], np.empty(0, np.float32), LIMITS) == []


@pytest.mark.parametrize(
    ("shard_seconds", "sizes"),
    [(5.0, [1, 1, 1, 1]), (20.0, [2, 2]), (None, [4])],
    ids=["5 s", "20 s", "unsharded"],
)
def test_shards_span_at_most_their_length(shard_seconds: float | None, sizes: list[int]) -> None:
    chunks = [Chunk(i * 500, i * 500 + 400) for i in range(4)]
    groups = group_chunks(chunks, Sharding(shard_seconds, max_shards=100))
    assert [len(group) for group in groups] == sizes


def test_regions_that_touch_become_one() -> None:
    assert merge_regions([(2.0, 3.0), (0.0, 1.0), (1.0, 2.0), (4.0, 5.0)]) == [(0, 3), (4, 5)]


RECORDINGS = Path(__file__).resolve().parents[2] / "media" / "speech"


def counting(total: int) -> Samples:
    return np.arange(total, dtype=np.float32)


def blocks_of(samples: Samples, sizes: list[int]) -> list[Samples]:
    """The samples in blocks of the given sizes, then the rest."""
    edges = [0, *np.cumsum(sizes).tolist()]
    blocks = [samples[start:end] for start, end in pairwise(edges)]
    return [*blocks, samples[edges[-1] :]]


def whole(path: Path) -> Samples:
    return np.concatenate(list(read_blocks(path)))


@given(
    st.integers(0, 400),
    st.lists(st.integers(0, 60), max_size=10),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80)), max_size=10),
)
def test_ranges_come_out_whole_whatever_the_blocks(
    total: int, sizes: list[int], steps: list[tuple[int, int]]
) -> None:
    samples = counting(total)
    reader = SampleReader(blocks_of(samples, sizes))
    start = 0
    for step, length in steps:
        start += step
        assert (
            reader.read(start, start + length).tolist() == samples[start : start + length].tolist()
        )


@given(st.integers(0, 400), st.lists(st.integers(0, 60), max_size=10), st.integers(1, 90))
def test_windows_cover_the_stream_end_to_end_with_context(
    total: int, sizes: list[int], core: int
) -> None:
    samples = counting(total)
    cores = []
    for start, before, window in overlapping_windows(
        blocks_of(samples, sizes), core=core, context=20
    ):
        assert window.tolist() == samples[start - before : start + core + 20].tolist()
        assert before == min(start, 20)
        cores.extend(window[before : before + core].tolist())
    assert cores == samples.tolist()


def test_flac_keeps_16_bit_samples_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(2).integers(-32768, 32768, 50_000)
    samples = (random / 32768).astype(np.float32)
    stream = io.BytesIO()
    write_flac(stream, [samples[:7], samples[7:7], samples[7:30_000], samples[30_000:]])
    path = tmp_path / "track.flac"
    path.write_bytes(stream.getvalue())
    assert np.array_equal(whole(path), samples)


def test_the_same_samples_give_the_same_flac() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    samples = np.sin(counting(10_000) / 20).astype(np.float32)
    for stream in (first, second):
        write_flac(stream, [samples])
    assert first.getvalue() == second.getvalue()


@pytest.mark.parametrize(
    ("samples", "levels"),
    [
        pytest.param(np.ones(640, np.float32), [0.0, 0.0], id="full scale"),
        pytest.param(np.full(320, 0.1, np.float32), [-20.0], id="a tenth"),
        pytest.param(np.zeros(400, np.float32), [-120.0, -120.0], id="silence, part of a frame"),
        pytest.param(np.empty(0, np.float32), [], id="nothing"),
    ],
)
def test_levels_are_in_decibels_of_full_scale(samples: Samples, levels: list[float]) -> None:
    assert frame_levels(samples).tolist() == pytest.approx(levels, abs=1e-4)


def test_speech_is_found_at_the_same_places_in_every_window_of_a_long_track() -> None:
    """Windows of detection have their seams at multiples of two minutes, some amid a word."""
    sentence = whole(RECORDINGS / "one_voice.flac")[: 8 * SAMPLE_RATE_HZ]
    regions, levels = scanned(np.concatenate([sentence] * 40))
    assert len(levels) * LEVEL_FRAME_SECONDS == pytest.approx(320.0)
    spoken = np.zeros(320 * 100, bool)
    for start, end in regions:
        spoken[round(start * 100) : round(end * 100)] = True
    rounds = spoken.reshape(40, 800)
    differing = np.abs(rounds[1:-1].astype(int) - rounds[1]).sum(axis=1)
    assert differing.max() <= 15  # hundredths of a second in eight


@pytest.mark.parametrize("start", [0, 1, 4_095, 4_096, 79_920, 159_840, 479_999, 480_000, 900_000])
def test_blocks_begin_at_any_sample_without_what_lies_before(tmp_path: Path, start: int) -> None:
    steps = np.random.default_rng(2).integers(-9_000, 9_000, 480_000)
    samples = (steps / 32_768).astype(np.float32)
    path = tmp_path / "track.flac"
    with path.open("wb") as stream:
        write_flac(stream, [samples])
    found = [np.empty(0, np.float32), *read_blocks(path, start)]
    assert np.array_equal(np.concatenate(found), samples[start:])
