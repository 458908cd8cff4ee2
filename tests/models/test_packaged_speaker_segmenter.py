"""The packaged segmentation of speakers: who speaks when within ten seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.speech.noises import made
from models.contracts import (
    ACTIVITY_FRAME_SAMPLES,
    ACTIVITY_FRAMES,
    ACTIVITY_START_SAMPLES,
    ACTIVITY_WINDOW_SAMPLES,
    SAMPLE_RATE_HZ,
    Samples,
)
from models.provider import LocalModels
from models.tasks import SEGMENT_SPEAKERS
from pipelines.media.audio import SampleReader, read_blocks

SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"
SEGMENTER = LocalModels().get(SEGMENT_SPEAKERS)
FRAMES_MS = (
    (ACTIVITY_START_SAMPLES + ACTIVITY_FRAME_SAMPLES * (np.arange(ACTIVITY_FRAMES) + 0.5))
    / SAMPLE_RATE_HZ
    * 1000
)
"""The middle of each frame."""


def window_of(name: str, start_second: int = 0) -> Samples:
    first = start_second * SAMPLE_RATE_HZ
    return SampleReader(read_blocks(SPEECH / name)).read(first, first + ACTIVITY_WINDOW_SAMPLES)


def frames_of(name: str, voice: str) -> npt.NDArray[np.bool_]:
    """Where the voice speaks in the first ten seconds."""
    sentences = json.loads((SPEECH / "truth.json").read_text())[name]["sentences"]
    spans = [(each["start_ms"], each["end_ms"]) for each in sentences if each["voice"] == voice]
    frames = np.zeros(ACTIVITY_FRAMES, np.bool_)
    for start, end in spans:
        frames |= (start <= FRAMES_MS) & (end > FRAMES_MS)
    return frames


@pytest.mark.parametrize("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_a_reader_is_one_speaker_where_sentences_are(gain: float) -> None:
    [activity] = SEGMENTER.segment([gain * window_of("one_voice.flac")])
    truth = frames_of("one_voice.flac", "rms")
    assert np.mean((activity.speech > 0.5) == truth) > 0.95
    assert np.mean(activity.speaking.any(axis=1) == truth) > 0.95
    assert np.count_nonzero(activity.speaking.any(axis=0)) == 1


def test_two_voices_in_turn_are_two_speakers() -> None:
    [activity] = SEGMENTER.segment([window_of("two_voices.flac")])
    truths = [frames_of("two_voices.flac", voice) for voice in ("rms", "slt")]
    for truth in truths:
        assert max(np.mean(each == truth) for each in activity.speaking.T) > 0.95


def test_two_voices_at_a_time_overlap() -> None:
    one, other = window_of("two_voices.flac"), window_of("two_voices.flac", 3)
    length = 2 * SAMPLE_RATE_HZ
    both = one[SAMPLE_RATE_HZ // 2 :][:length] + other[SAMPLE_RATE_HZ // 2 :][:length]
    window = np.concatenate([one[: 3 * SAMPLE_RATE_HZ], both, other[: 3 * SAMPLE_RATE_HZ]])
    [activity] = SEGMENTER.segment([window])
    together = FRAMES_MS[activity.speaking.sum(axis=1) == 2]
    assert len(together) * ACTIVITY_FRAME_SAMPLES > SAMPLE_RATE_HZ
    assert 2500 < np.median(together) < 5500


def test_what_follows_a_short_window_is_silent() -> None:
    window = window_of("one_voice.flac")[: 3 * SAMPLE_RATE_HZ]
    [activity] = SEGMENTER.segment([window])
    assert activity.speaking[FRAMES_MS < 3000].any()
    assert not activity.speaking[FRAMES_MS > 3300].any()


@pytest.mark.parametrize("kind", ["surf", "machine", "hum", "pink noise"])
def test_noises_have_no_speakers(kind: str) -> None:
    [activity] = SEGMENTER.segment([made(kind, 10.0, seed=3)])
    assert not activity.speaking.any()


def test_silence_has_no_speakers() -> None:
    silence = np.zeros(ACTIVITY_WINDOW_SAMPLES, np.float32)
    assert not any(each.speaking.any() for each in SEGMENTER.segment([silence, silence[:0]]))
