"""Sounds in which nobody says a word, endless and repeatable: made from a seed, block by block.

Every generator takes a numpy Generator and a length in samples at SAMPLE_RATE_HZ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.signal import butter, lfilter, sosfilt

from models.contracts import SAMPLE_RATE_HZ, Samples

Random = np.random.Generator
Curve = npt.NDArray[np.float64]

_SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 3, 5, 7, 10))
_VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (570, 840, 2410))
"""First three formants of a, i, u, o (Peterson and Barney 1952)."""


def silence(random: Random, count: int) -> Curve:
    """Digital silence."""
    return np.zeros(count)


def quiet_room(random: Random, count: int) -> Curve:
    """What a good microphone gives in an empty room: noise near -65 dB."""
    return 10 ** (-65 / 20) * _coloured(random, count, 1.0)


def white(random: Random, count: int) -> Curve:
    """Hiss of all frequencies alike."""
    noise: Curve = 0.1 * random.normal(size=count)
    return noise


def pink(random: Random, count: int) -> Curve:
    """Noise that falls by 3 dB an octave, like wind and traffic far away."""
    return 0.1 * _coloured(random, count, 1.0)


def surf(random: Random, count: int) -> Curve:
    """Brown noise that swells and ebbs every few seconds."""
    swell = 0.55 + 0.45 * np.sin(2 * np.pi * _wander(random, count, 0.15))
    noise: Curve = 0.15 * swell * _coloured(random, count, 2.0)
    return noise


def crowd(random: Random, count: int) -> Curve:
    """Babble without words: noise of the spectrum of speech, gated like many syllables at once."""
    total = np.zeros(count)
    band = butter(2, [250, 3000], "bandpass", fs=SAMPLE_RATE_HZ, output="sos")
    for _ in range(6):
        gate = _smooth(random.random(count // 3200 + 2), count, 3200)
        total += gate * sosfilt(band, random.normal(size=count))
    return 0.08 * total


def hum(random: Random, count: int) -> Curve:
    """Mains hum with its harmonics, and a little noise."""
    base = random.choice([50.0, 60.0])
    time = np.arange(count) / SAMPLE_RATE_HZ
    waves = [random.uniform(0.1, 1) / n * np.sin(2 * np.pi * base * n * time) for n in range(1, 12)]
    sound: Curve = 0.06 * np.sum(waves, axis=0) + 0.002 * random.normal(size=count)
    return sound


def machine(random: Random, count: int) -> Curve:
    """A motor with a varying load, and knocks a few times a second."""
    phase = _wander(random, count, random.uniform(25, 40))
    motor = np.sum([np.sin(2 * np.pi * n * phase) / n for n in range(1, 10)], axis=0)
    knocks = np.zeros(count)
    step = SAMPLE_RATE_HZ / random.uniform(2, 6)
    knocks[np.arange(0, count, step).astype(int)] = 1.0
    ring = np.exp(-np.arange(1600) / 240) * random.normal(size=1600)
    sound: Curve = 0.05 * motor + 0.3 * np.convolve(knocks, ring)[:count]
    return sound


def signals(random: Random, count: int) -> Curve:
    """Dial tones, beeps and sirens with pauses."""
    out = np.zeros(count)
    at = 0
    while at < count:
        length = int(random.uniform(0.08, 1.5) * SAMPLE_RATE_HZ)
        time = np.arange(length) / SAMPLE_RATE_HZ
        low, high = random.uniform(350, 950), random.uniform(1100, 1700)
        sweep = random.choice([0.0, 300.0]) * np.sin(2 * np.pi * 0.8 * time)
        tone = np.sin(2 * np.pi * (low * time + np.cumsum(sweep) / SAMPLE_RATE_HZ))
        tone += np.sin(2 * np.pi * high * time)
        end = min(count, at + length)
        out[at:end] = 0.2 * tone[: end - at]
        at = end + int(random.uniform(0.05, 0.8) * SAMPLE_RATE_HZ)
    return out


def band(random: Random, count: int) -> Curve:
    """A tune with chords, bass and drums."""
    beat = int(60 / random.uniform(80, 150) * SAMPLE_RATE_HZ)
    root, scale = random.uniform(110, 220), _SCALES[random.integers(len(_SCALES))]
    out = np.zeros(count + 4 * beat)
    for at in range(0, count, beat):
        drum = random.normal(size=beat // 2) * np.exp(-np.arange(beat // 2) / 900)
        out[at : at + len(drum)] += 0.12 * random.choice([0.3, 1.0]) * drum
        out[at : at + beat] += 0.12 * _note(random, root / 2, beat, 0.9)
        if random.random() < 0.8:
            degree = scale[random.integers(len(scale))] + 12 * random.integers(0, 2)
            length = int(beat * random.choice([0.5, 1, 1, 2]))
            note = _note(random, root * 2 ** (degree / 12), length, random.uniform(0.3, 0.9))
            out[at : at + length] += 0.2 * note
    return out[:count]


def strings(random: Random, count: int) -> Curve:
    """Slow chords with vibrato, one melting into the next."""
    out = np.zeros(count + 8 * SAMPLE_RATE_HZ)
    at = 0
    while at < count:
        length = int(random.uniform(1.5, 4) * SAMPLE_RATE_HZ)
        for degree in random.choice([0, 3, 4, 7, 9, 12], size=3, replace=False):
            hz = random.choice([130.8, 146.8, 174.6]) * 2 ** (degree / 12)
            out[at : at + length] += 0.08 * _note(random, hz, length, 1.0, vibrato=0.006)
        at += int(length * 0.8)
    return out[:count]


def choir(random: Random, count: int) -> Curve:
    """Sung vowels without words: the hardest kind, since all that a voice has is there."""
    out = np.zeros(count + 8 * SAMPLE_RATE_HZ)
    at = 0
    while at < count:
        length = int(random.uniform(0.6, 2.5) * SAMPLE_RATE_HZ)
        hz = 196 * 2 ** (random.choice([0, 2, 4, 5, 7, 9]) / 12)
        formants = _VOWELS_HZ[random.integers(len(_VOWELS_HZ))]
        out[at : at + length] += 0.3 * _sung(random, hz, length, formants)
        at += int(length * random.uniform(0.9, 1.2))
    return out[:count]


KINDS: dict[str, Callable[[Random, int], Curve]] = {
    "silence": silence,
    "quiet room": quiet_room,
    "white noise": white,
    "pink noise": pink,
    "surf": surf,
    "crowd without words": crowd,
    "hum": hum,
    "machine": machine,
    "signals": signals,
    "band": band,
    "strings": strings,
    "choir on vowels": choir,
}


def made(kind: str, seconds: float, seed: int) -> Samples:
    """``seconds`` of a kind; another seed gives another piece of it."""
    random = np.random.default_rng([seed, list(KINDS).index(kind)])
    block = 30 * SAMPLE_RATE_HZ
    count = round(seconds * SAMPLE_RATE_HZ)
    # A new tune, motor or room every half minute.
    parts = [KINDS[kind](random, min(block, count - at)) for at in range(0, count, block)]
    samples: Samples = np.concatenate(parts).clip(-1, 1).astype(np.float32)
    return samples


def _coloured(random: Random, count: int, slope: float) -> Curve:
    """Noise of deviation 1 whose power falls by ``slope`` times 3 dB an octave."""
    spectrum = np.fft.rfft(random.normal(size=count))
    hertz = np.maximum(np.fft.rfftfreq(count, 1 / SAMPLE_RATE_HZ), 20.0)
    noise: Curve = np.fft.irfft(spectrum / hertz ** (slope / 2), count)
    return noise / max(1e-9, float(noise.std()))


def _smooth(points: Curve, count: int, step: int) -> Curve:
    curve: Curve = np.interp(np.arange(count) / step, np.arange(len(points)), points)
    return curve


def _wander(random: Random, count: int, hertz: float) -> Curve:
    """A phase in turns whose rate wanders by a tenth around ``hertz``."""
    rate = hertz * (1 + 0.1 * _smooth(random.uniform(-1, 1, count // 16000 + 2), count, 16000))
    phase: Curve = np.cumsum(rate) / SAMPLE_RATE_HZ
    return phase


def _note(
    random: Random, hertz: float, count: int, sustain: float, *, vibrato: float = 0.0
) -> Curve:
    time = np.arange(count) / SAMPLE_RATE_HZ
    phase = hertz * time + vibrato * hertz / (2 * np.pi * 5.5) * np.sin(2 * np.pi * 5.5 * time)
    loudness = random.uniform(0.2, 1.0, size=8) / np.arange(1, 9)
    wave = np.sum(
        [a * np.sin(2 * np.pi * n * phase) for n, a in enumerate(loudness, start=1)], axis=0
    )
    fade = np.minimum(1, np.minimum(time / 0.02, (count / SAMPLE_RATE_HZ - time) / 0.05))
    decay = np.exp(-time / max(0.05, sustain))
    note: Curve = wave * np.maximum(0, fade) * decay
    return note


def _sung(random: Random, hertz: float, count: int, formants: tuple[int, ...]) -> Curve:
    time = np.arange(count) / SAMPLE_RATE_HZ
    phase = hertz * time + 0.01 * hertz / (2 * np.pi * 5.5) * np.sin(2 * np.pi * 5.5 * time)
    sound = np.diff(np.floor(phase), prepend=0.0) + random.normal(0, 0.003, count)
    for formant in formants:
        radius = np.exp(-np.pi * 90 / SAMPLE_RATE_HZ)
        turn = 2 * np.cos(2 * np.pi * formant / SAMPLE_RATE_HZ)
        sound = lfilter([1.0], [1.0, -radius * turn, radius**2], sound)
    fade = np.minimum(1, np.minimum(time / 0.08, (count / SAMPLE_RATE_HZ - time) / 0.1))
    sung: Curve = sound / np.abs(sound).max() * np.maximum(0, fade)
    return sung
