"""Task ``detect`` without weights: the WebRTC detector, and evidence that it is a voice.

WebRTC's detector (Gaussian mixtures on six bands, bundled with pocketsphinx) hears
speech in most sounds. Measurable properties of voices are asked for besides: they rise
above the background, they change in level about four times a second (Houtgast and
Steeneken 1985), a part of them is periodic (vowels) also above the lowest frequencies, their
pitch glides where notes stand still, and their spectrum is never the same for long. Steady
tones and hum have no changes, rain, hiss and surf no periods, tunes a steady pitch, sung
vowels a steady spectrum. Singing with words passes, and music that does all of this.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pocketsphinx
from scipy.ndimage import (
    binary_closing,
    binary_opening,
    maximum_filter1d,
    percentile_filter,
    uniform_filter1d,
)

from models.backends.packaged.cepstra import WINDOW_SAMPLES, cepstra_of, windows_of
from models.backends.packaged.periodicity import PITCH_WINDOW_SAMPLES, pitch_of
from models.contracts import SAMPLE_RATE_HZ, Samples

_FRAME_SECONDS = 0.03
_FRAME = round(SAMPLE_RATE_HZ * _FRAME_SECONDS)
_WEBRTC_MODE = 2
"""0 lets most through, 3 least; 2 keeps quiet word ends, 3 loses them."""

_WEBRTC_LEVEL_DB = -26.0
_MAX_GAIN_DB = 30.0
"""WebRTC's models were made for speech of telephone level: quiet recordings are raised to it."""

_QUIETEST_DB = -70.0
"""Anything below is silence: dither and rounding noise of 16 bits lie near -96 dB."""
_ABOVE_BACKGROUND_DB = 5.0
_BACKGROUND_SECONDS = 10.0
_BACKGROUND_PERCENTILE = 5
_EVIDENCE_SECONDS = 1.5
_DYNAMIC_RANGE_DB = 35.0
_MIN_MODULATION_DB = 3.0
"""Standard deviation of the level. Measured over 1.5 s: speech 4 to 15, tones 0, music 1 to 3."""
_STEP_DB = 1.5
_MIN_STEP_SHARE = 0.15
"""Share of frames that differ by _STEP_DB from the next; a single start or stop of a tone
has the deviation of speech, but not its steps. Measured: speech 0.2 to 0.8, music 0.1 to 0.5."""
_MIN_VOICED_SHARE = 0.12
"""Measured: speech 0.25 to 0.9 periodic, rain 0.01."""
_PERIODIC = 0.6
"""Normalised autocorrelation of a vowel exceeds it (Boersma 1993 takes 0.45 for noisy speech)."""
_MUSIC_SECONDS = 5.0
"""Over which evidence for music and noise is gathered, from what seems to be speech in it."""
_SAME_PITCH_OCTAVES = 0.004
_MAX_STEADY_SHARE = 0.5
"""Share of neighbouring periodic frames of the same pitch, which is a note's. Measured over
regions: speech 0.02 to 0.38, tunes 0.7 to 0.97, film music 0.34 to 0.78, surf and motors 1."""
_MIN_CHANGE = 3.5
"""Mean distance of neighbouring frames' cepstra. Speech 4 to 8, sung vowels 1 to 2.5."""
_PERIODIC_ABOVE = 0.45
_MIN_VOICED_ABOVE_SHARE = 0.08
"""The same of the sound's derivative, in which low rumble is weak: speech 0.2 to 0.8, surf 0."""
_CLOSE_SECONDS = 0.3
_OPEN_SECONDS = 0.18
_BATCH = 1000

Mask = npt.NDArray[np.bool_]
Curve = npt.NDArray[np.float64]


class PackagedSpeechDetector:
    """Speech regions on a grid of 30 ms. Keeps no state between calls."""

    def detect(self, samples: Samples) -> list[tuple[float, float]]:
        """Regions (start, end) in seconds, sorted, disjoint, inside the samples."""
        if len(samples) < _FRAME:
            return []
        frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
        levels = _levels(frames)
        active = _webrtc(frames, levels) & (levels > _threshold(levels))
        pitch, periodicity = _periodicity(samples, len(frames))
        voiced = periodicity > _PERIODIC
        likely = _closed(active) & _voice_like(levels, voiced)
        likely &= _not_music(samples, likely, pitch, voiced)
        return _spans(binary_opening(_closed(likely), np.ones(_count(_OPEN_SECONDS))))


def _count(seconds: float) -> int:
    return max(1, round(seconds / _FRAME_SECONDS))


def _closed(mask: Mask) -> Mask:
    """The mask with its short gaps filled."""
    size = _count(_CLOSE_SECONDS)
    closed: Mask = binary_closing(np.pad(mask, size), np.ones(size))[size:-size]
    return closed


def _webrtc(frames: Samples, levels: Curve) -> Mask:
    # Its noise model adapts, so that one is made for each call: same samples, same answer.
    detector = pocketsphinx.Vad(_WEBRTC_MODE, SAMPLE_RATE_HZ, _FRAME_SECONDS)
    gain = 10 ** (np.clip(_WEBRTC_LEVEL_DB - np.percentile(levels, 95), 0, _MAX_GAIN_DB) / 20)
    pcm = (np.clip(gain * frames, -1.0, 1.0) * 32767).astype("<i2")
    return np.array([detector.is_speech(frame.tobytes()) for frame in pcm], dtype=bool)


def _levels(frames: Samples) -> Curve:
    power = np.mean(frames.astype(np.float64) ** 2, axis=1)
    levels: Curve = 10 * np.log10(np.maximum(power, 1e-12))
    return levels


def _threshold(levels: Curve) -> Curve:
    """What a frame must exceed: the background around it, and silence."""
    size = min(len(levels), _count(_BACKGROUND_SECONDS))
    background = percentile_filter(levels, _BACKGROUND_PERCENTILE, size=size, mode="nearest")
    threshold: Curve = np.maximum(background + _ABOVE_BACKGROUND_DB, _QUIETEST_DB)
    return threshold


def _voice_like(levels: Curve, voiced: Mask) -> Mask:
    """Where the second and a half around a frame varies in level and holds vowels."""
    size = min(len(levels), _count(_EVIDENCE_SECONDS))
    # Digital silence beside a steady tone is not modulation: bound the range.
    loudest = maximum_filter1d(levels, 2 * size, mode="nearest")
    bounded = np.maximum(levels, loudest - _DYNAMIC_RANGE_DB)
    mean = uniform_filter1d(bounded, size, mode="nearest")
    variance = uniform_filter1d(bounded**2, size, mode="nearest") - mean**2
    steps = np.abs(np.diff(bounded, append=bounded[-1])) > _STEP_DB
    modulated = (variance >= _MIN_MODULATION_DB**2) & (_share(steps, size) >= _MIN_STEP_SHARE)
    mask: Mask = modulated & (_share(voiced, size) >= _MIN_VOICED_SHARE)
    return mask


def _not_music(samples: Samples, likely: Mask, pitch: Curve, voiced: Mask) -> Mask:
    """Where the ``likely`` speech around a frame glides in pitch and changes in sound."""
    size = min(len(likely), _count(_MUSIC_SECONDS))
    pairs = np.append(voiced[1:] & voiced[:-1], False) & likely
    same = np.abs(np.diff(np.log2(pitch), append=0.0)) < _SAME_PITCH_OCTAVES
    _, above = _periodicity(np.diff(samples, prepend=samples[:1]), len(likely))
    around = np.maximum(_share(likely, size), 1e-9)
    change = uniform_filter1d(_change(samples, len(likely)) * likely, size, mode="nearest")
    mask: Mask = (
        (_share(same & pairs, size) < _MAX_STEADY_SHARE * np.maximum(_share(pairs, size), 1e-9))
        & (change >= _MIN_CHANGE * around)
        & (_share((above > _PERIODIC_ABOVE) & likely, size) >= _MIN_VOICED_ABOVE_SHARE * around)
    )
    return mask


def _change(samples: Samples, count: int) -> Curve:
    """Distance of each frame's cepstra from the next frame's."""
    cepstra, _ = cepstra_of(windows_of(samples, WINDOW_SAMPLES, _FRAME))
    distances = np.linalg.norm(np.diff(cepstra, axis=0), axis=1)
    return np.pad(distances, (0, count))[:count]


def _share(mask: Mask, size: int) -> Curve:
    share: Curve = uniform_filter1d(mask.astype(np.float64), size, mode="nearest")
    return share


def _periodicity(samples: Samples, count: int) -> tuple[Curve, Curve]:
    """Pitch (60 to 400 Hz) of each frame and how periodic it is at that pitch."""
    padded = np.pad(samples.astype(np.float64), (0, PITCH_WINDOW_SAMPLES))
    every = np.lib.stride_tricks.sliding_window_view(padded, PITCH_WINDOW_SAMPLES)
    windows = every[::_FRAME][:count]
    parts = [pitch_of(windows[i : i + _BATCH]) for i in range(0, count, _BATCH)]
    return np.concatenate([hz for hz, _ in parts]), np.concatenate([how for _, how in parts])


def _spans(mask: Mask) -> list[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [
        (float(start * _FRAME_SECONDS), float(end * _FRAME_SECONDS))
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]
