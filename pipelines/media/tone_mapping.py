"""HDR pictures tone mapped to the standard range: BT.2020 in PQ or HLG to sRGB."""

from __future__ import annotations

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorTrc

from models.contracts import Picture

_REFERENCE_WHITE_NITS = 203.0
"""Of diffuse white in HDR video (ITU-R BT.2408); it becomes nearly the brightest tone."""
_HLG_PEAK_NITS = 1000.0
_HLG_GAMMA = 1.2
_ENOUGH_PX = 960
"""The curves are slow; pixels beyond the size of a still are not worth their time."""
_KNEE = 0.5
"""Tones up to half of reference white keep their place; the rest is rolled off."""

_BT2020_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
)
_LUMA_2020 = np.array([0.2627, 0.6780, 0.0593])

Floats = npt.NDArray[np.float64]


def is_high_dynamic_range(frame: av.VideoFrame) -> bool:
    """Whether the frame's own transfer curve is PQ or HLG."""
    return frame.color_trc in {ColorTrc.SMPTE2084, ColorTrc.ARIB_STD_B67}


def standard_range(frame: av.VideoFrame) -> Picture:
    """The frame in sRGB, large ones halved (or more) until no side is twice what stills need."""
    wide = frame.to_ndarray(format="rgb48le")
    factor = max(1, max(wide.shape) // _ENOUGH_PX)
    size = (wide.shape[1] // factor, wide.shape[0] // factor)
    encoded = cv2.resize(wide, size, interpolation=cv2.INTER_AREA).astype(np.float64) / 65535
    pq = frame.color_trc == ColorTrc.SMPTE2084
    nits = pq_to_nits(encoded) if pq else hlg_to_nits(encoded)
    linear = np.clip((nits / _REFERENCE_WHITE_NITS) @ _BT2020_TO_BT709.T, 0, None)
    return np.asarray(np.rint(_gamma(rolled_off(linear)) * 255), np.uint8)


def pq_to_nits(encoded: Floats) -> Floats:
    """SMPTE ST 2084: encoded 0 to 1 to cd/m2."""
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    power = np.clip(encoded, 0, 1) ** (1 / m2)
    return np.asarray(10_000 * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1))


def hlg_to_nits(encoded: Floats) -> Floats:
    """ITU-R BT.2100 HLG: encoded (..., 3) to cd/m2 on a display of 1000 cd/m2."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    low = encoded**2 / 3
    scene = np.where(encoded <= 0.5, low, (np.exp((encoded - c) / a) + b) / 12)
    luma = np.maximum(scene @ _LUMA_2020, 1e-6)[..., None]
    return np.asarray(_HLG_PEAK_NITS * luma ** (_HLG_GAMMA - 1) * scene)


def rolled_off(linear: Floats) -> Floats:
    """Tones above the knee pressed below 1 by the largest channel, so that hues stay."""
    peak = linear.max(axis=-1, keepdims=True)
    room = 1 - _KNEE
    pressed = _KNEE + room * (1 - np.exp(-(np.maximum(peak, _KNEE) - _KNEE) / room))
    return np.asarray(np.where(peak > _KNEE, linear * pressed / np.maximum(peak, 1e-9), linear))


def _gamma(linear: Floats) -> Floats:
    curve = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    return np.asarray(np.clip(np.where(linear <= 0.0031308, linear * 12.92, curve), 0, 1))
