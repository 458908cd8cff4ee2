"""Spoken sentences by Flite (through the ``ffmpeg`` program), laid on a sound track.

Flite's CMU Arctic voices are free to use and redistribute (CMU's BSD-like licence).
They were chosen over espeak-ng by measuring: speech recognition gets them nearly word for word,
espeak-ng's hardly at all.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 16_000
MALE_VOICE = "rms"
FEMALE_VOICE = "slt"

Sound = NDArray[np.float32]
"""Mono samples, -1 to 1."""


class SentenceTruth(TypedDict):
    """When a sentence is heard, from its first to its last audible sample."""

    text: str
    start_ms: int
    end_ms: int
    voice: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence to speak; ``text`` is lower case and has no punctuation."""

    voice: str
    text: str


def speak(sentence: Sentence) -> Sound:
    """The sentence at 16 kHz, without silence around it, peak at 0.6.

    Raises subprocess.CalledProcessError where ffmpeg has no ``flite`` filter.
    """
    source = f"flite=text='{sentence.text}':voice={sentence.voice}"
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source]
    command += ["-ar", str(SAMPLE_RATE_HZ), "-ac", "1", "-f", "f32le", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    samples = trim_silence(np.frombuffer(raw, np.float32))
    loud: Sound = (samples * (0.6 / np.abs(samples).max())).astype(np.float32)
    return loud


def trim_silence(samples: Sound, threshold: float = 0.01) -> Sound:
    """Cut what is quieter than ``threshold`` (1 = full scale) off both ends."""
    audible = np.flatnonzero(np.abs(samples) > threshold)
    return samples[audible[0] : audible[-1] + 1]


def room_tone(sample_count: int, level: float, seed: int) -> Sound:
    """Quiet low-passed noise, so that silence is not digital silence."""
    noise = np.random.default_rng(seed).normal(size=sample_count + 8)
    smooth = np.convolve(noise, np.ones(8) / 8, mode="valid")[:sample_count]
    return (smooth * level).astype(np.float32)


def place(track: Sound, sentence: Sentence, start_ms: int) -> SentenceTruth:
    """Add the spoken sentence to ``track`` in place; say where it is.

    Raises ValueError where it does not fit before the track's end.
    """
    spoken = speak(sentence)
    start = start_ms * SAMPLE_RATE_HZ // 1000
    if start + len(spoken) > len(track):
        raise ValueError(f"{sentence.text!r} at {start_ms} ms runs over the end of the track")
    track[start : start + len(spoken)] += spoken
    end_ms = start_ms + round(1000 * len(spoken) / SAMPLE_RATE_HZ)
    return SentenceTruth(text=sentence.text, start_ms=start_ms, end_ms=end_ms, voice=sentence.voice)


def conversation(
    sentences: tuple[Sentence, ...], pause_ms: int, lead_ms: int, seed: int
) -> tuple[Sound, list[SentenceTruth]]:
    """The sentences one after another with pauses, over room tone."""
    spoken_ms = [1000 * len(speak(sentence)) // SAMPLE_RATE_HZ + 1 for sentence in sentences]
    total_ms = 2 * lead_ms + sum(spoken_ms) + pause_ms * (len(sentences) - 1)
    track = room_tone(total_ms * SAMPLE_RATE_HZ // 1000, level=0.002, seed=seed)
    truths: list[SentenceTruth] = []
    start_ms = lead_ms
    for sentence, length_ms in zip(sentences, spoken_ms, strict=True):
        truths.append(place(track, sentence, start_ms))
        start_ms += length_ms + pause_ms
    return track, truths
