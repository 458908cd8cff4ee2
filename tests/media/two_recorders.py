"""One scene's sound as a camera and a separate recorder would have taken it: simulated.

The camera hears it through a small microphone from a distance, in a room, with
noise, and levels it automatically; the recorder's microphone is close, with a
colour, noise and a clock of its own. Nothing is random but by the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal

RATE_HZ = 16_000
Sound = npt.NDArray[np.float64]
Pcm = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Recorder:
    """How a recorder hears a scene."""

    signal_to_noise_db: float
    reverberation_seconds: float
    direct_to_reverberant_db: float
    band_hz: tuple[float, float]
    delay_seconds: float = 0.0
    levelled: bool = False
    clips: bool = False
    clock_ppm: float = 0.0
    """How much faster its clock runs: more samples for the same scene."""


@dataclass(frozen=True, slots=True)
class Take:
    """Two recordings of a scene; the target begins ``offset_seconds`` after the reference."""

    reference: Pcm
    target: Pcm
    offset_seconds: float


def camera(random: np.random.Generator) -> Recorder:
    """A camera's own microphone, some metres away."""
    return Recorder(
        signal_to_noise_db=random.uniform(0, 20),
        reverberation_seconds=random.uniform(0.2, 0.8),
        direct_to_reverberant_db=random.uniform(-4, 6),
        band_hz=(random.uniform(80, 300), random.uniform(3_000, 7_500)),
        delay_seconds=random.uniform(0, 0.012),
        levelled=bool(random.random() < 0.7),
        clips=bool(random.random() < 0.2),
    )


def close_microphone(random: np.random.Generator, clock_ppm: float = 0.0) -> Recorder:
    """A recorder near the speaker."""
    return Recorder(
        signal_to_noise_db=random.uniform(10, 35),
        reverberation_seconds=random.uniform(0.1, 0.4),
        direct_to_reverberant_db=random.uniform(6, 15),
        band_hz=(random.uniform(60, 150), random.uniform(6_000, 7_900)),
        clock_ppm=clock_ppm,
    )


def take(
    scene: Sound,
    random: np.random.Generator,
    *,
    offset_seconds: float,
    reference_seconds: float,
    target_seconds: float,
    recorders: tuple[Recorder, Recorder],
) -> Take:
    """``scene`` as both record it; it must be long enough for both, from its start."""
    reference_start = max(0.0, -offset_seconds)
    target_start = reference_start + offset_seconds
    parts = [
        scene[round(start * RATE_HZ) : round((start + length) * RATE_HZ)]
        for start, length in (
            (reference_start, reference_seconds),
            (target_start, target_seconds),
        )
    ]
    heard = [recorded(part, how, random) for part, how in zip(parts, recorders, strict=True)]
    return Take(heard[0], heard[1], offset_seconds)


def recorded(scene: Sound, how: Recorder, random: np.random.Generator) -> Pcm:
    """The scene as ``how`` has it on its card."""
    sound = _paced(scene, how.clock_ppm)
    sound = signal.fftconvolve(sound, _room(how, random))[: len(sound)]
    sound = signal.fftconvolve(sound, _colour(random), mode="same")
    sound = signal.sosfiltfilt(
        signal.butter(2, how.band_hz, "bandpass", fs=RATE_HZ, output="sos"), sound
    )
    sound = sound / (np.std(sound) + 1e-9)
    sound = sound + _noise(len(sound), random) * 10 ** (-how.signal_to_noise_db / 20)
    if how.levelled:
        sound = sound / _loudness(sound)
    peak = float(np.quantile(np.abs(sound), 0.98 if how.clips else 1.0)) + 1e-9
    level = random.uniform(0.05, 0.9) if not how.clips else 1.0
    pcm: Pcm = np.round(np.clip(sound / peak * level, -1, 1) * 32_767).astype(np.int16)
    return pcm


def _paced(scene: Sound, clock_ppm: float) -> Sound:
    if clock_ppm == 0:
        return scene
    times = np.arange(round(len(scene) * (1 + clock_ppm * 1e-6))) / (1 + clock_ppm * 1e-6)
    return np.asarray(np.interp(times, np.arange(len(scene)), scene))


def _room(how: Recorder, random: np.random.Generator) -> Sound:
    """Impulse response: the direct sound, then noise that dies away (Polack's model)."""
    length = round(how.reverberation_seconds * RATE_HZ)
    times = np.arange(length) / RATE_HZ
    tail = random.normal(size=length) * 10 ** (-3 * times / how.reverberation_seconds)
    tail[: round(0.003 * RATE_HZ)] = 0
    tail /= np.sqrt(np.sum(tail**2)) + 1e-9
    tail *= 10 ** (-how.direct_to_reverberant_db / 20)
    tail[0] = 1.0
    return np.concatenate([np.zeros(round(how.delay_seconds * RATE_HZ)), tail])


def _colour(random: np.random.Generator) -> Sound:
    """A linear-phase filter with a random response, up to 10 dB up and down."""
    frequencies = np.array([0, 150, 400, 900, 1_800, 3_500, 6_000, RATE_HZ / 2])
    gains = 10 ** (random.uniform(-10, 10, len(frequencies)) / 20)
    return np.asarray(signal.firwin2(257, frequencies, gains, fs=RATE_HZ))


def _noise(samples: int, random: np.random.Generator) -> Sound:
    """Noise that falls with frequency like a room's, with hum; spread 1."""
    spectrum = np.fft.rfft(random.normal(size=samples))
    frequencies = np.fft.rfftfreq(samples, 1 / RATE_HZ)
    spectrum /= np.maximum(frequencies, 50) ** random.uniform(0.0, 0.8)
    noise = np.fft.irfft(spectrum, samples)
    hum = np.sin(2 * np.pi * 50 * np.arange(samples) / RATE_HZ + random.uniform(0, 6))
    noise = noise / np.std(noise) + random.uniform(0, 0.5) * hum
    return np.asarray(noise / np.std(noise))


def _loudness(sound: Sound) -> Sound:
    """What automatic levelling divides by: the mean level of the last second or so."""
    decay = np.exp(-1 / (0.7 * RATE_HZ))
    mean = signal.lfilter([1 - decay], [1, -decay], np.abs(sound))
    return np.asarray(np.maximum(mean, 0.2 * float(np.mean(mean)) + 1e-9))


def babbled(seconds: float, random: np.random.Generator) -> Sound:
    """Something like speech: voiced syllables with moving formants, hisses and pauses."""
    scene = np.zeros(round(seconds * RATE_HZ))
    position = 0
    while position < len(scene):
        length = round(random.uniform(0.08, 0.28) * RATE_HZ)
        piece = _syllable(length, random)[: len(scene) - position]
        scene[position : position + len(piece)] += piece * random.uniform(0.3, 1.0)
        pause = random.uniform(0.3, 1.2) if random.random() < 0.15 else random.uniform(0, 0.08)
        position += length + round(pause * RATE_HZ)
    return scene


def _syllable(length: int, random: np.random.Generator) -> Sound:
    """A vowel, mostly, else a hiss, with soft ends; peak 1."""
    if random.random() < 0.25:
        source = random.normal(size=length)
        formants = [(random.uniform(2_500, 6_000), 1_500.0)]
    else:
        pitch = random.uniform(90, 220) * np.linspace(1, random.uniform(0.8, 1.2), length)
        phase = np.cumsum(pitch) / RATE_HZ
        source = np.diff(np.floor(phase), prepend=0.0) + 0.01 * random.normal(size=length)
        formants = [
            (random.uniform(300, 800), 90.0),
            (random.uniform(900, 2_300), 140.0),
            (random.uniform(2_400, 3_200), 220.0),
        ]
    for centre_hz, width_hz in formants:
        b, a = signal.iirpeak(centre_hz, centre_hz / width_hz, fs=RATE_HZ)
        source = 0.15 * source + signal.lfilter(b, a, source)
    shaped = source * signal.windows.tukey(length, 0.4)
    return np.asarray(shaped / (np.max(np.abs(shaped)) + 1e-9))
