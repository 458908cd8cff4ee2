"""Frames of a segment in order, each with its time on the video's timeline.

Times come from presentation timestamps, rounded as ``pipelines.types`` defines, so that a frame has
the same time in the source and in a segment cut from it. HDR pictures (BT.2020 in PQ or HLG) are
tone mapped to sRGB.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import cv2
import numpy as np
import numpy.typing as npt
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.video.reformatter import ColorTrc
from av.video.stream import VideoStream as AvVideoStream

from models.contracts import Picture
from pipelines.media.files import (
    OPAQUE,
    OPEN_OPTIONS,
    Decoders,
    ShownOrder,
    Turning,
    chosen_stream,
    demuxed,
    has_alpha,
    is_transparent,
    packet_time_ms,
    pixel_aspect,
    rounded_ms,
)
from pipelines.media_types import Orientation
from pipelines.types import Segment

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

log = logging.getLogger("vas.media")


def is_high_dynamic_range(frame: av.VideoFrame) -> bool:
    """Return whether the frame's own transfer curve is PQ or HLG."""
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
    linear = rolled_off(linear)
    curve = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    gamma = np.clip(np.where(linear <= 0.0031308, linear * 12.92, curve), 0, 1)
    return np.asarray(np.rint(gamma * 255), np.uint8)


def rgb(frame: av.VideoFrame) -> Picture:
    """Return a frame in RGB as stored, on white where it is transparent.

    An HDR one is tone mapped, and shrunk if it is large.
    """
    if is_high_dynamic_range(frame):
        picture = standard_range(frame)
    else:
        picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    if not is_transparent(frame):
        return picture
    alpha = frame.to_ndarray(format="rgba")[..., 3]
    alpha = cv2.resize(alpha, picture.shape[1::-1], interpolation=cv2.INTER_AREA)
    opacity = alpha[..., None].astype(np.float32) / OPAQUE
    return np.asarray(np.rint(OPAQUE + (picture - np.float32(OPAQUE)) * opacity), np.uint8)


def on_white(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a frame with an alpha channel without it, in RGB; others as they are."""
    return av.VideoFrame.from_ndarray(rgb(frame), format="rgb24") if has_alpha(frame) else frame


def upright(
    picture: Picture,
    aspect: float,
    orientation: Orientation,
    long_side_px: int,
    *,
    interlaced: bool = False,
) -> Picture:
    """Return the stored picture with square pixels, made upright, no side over ``long_side_px``.

    ``aspect`` is the width over the height of the stored picture with square pixels. Of an
    ``interlaced`` one a field is kept: half the lines, but no comb.
    """
    height = picture.shape[0]
    if interlaced and height > 1:
        picture = picture[::2]
    factor = min(1.0, long_side_px / max(height, height * aspect))
    size = (max(1, round(height * aspect * factor)), max(1, round(height * factor)))
    if size != (picture.shape[1], picture.shape[0]):
        grows = size[0] > picture.shape[1] or size[1] > picture.shape[0]
        how = cv2.INTER_LINEAR if grows else cv2.INTER_AREA
        picture = np.asarray(cv2.resize(picture, size, interpolation=how), np.uint8)
    return np.ascontiguousarray(orientation.upright(picture))


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


_SEEK_WORTHWHILE_MS = 10_000
"""With less than this before the segment, decoding it is about as quick as seeking."""

_SEEK_MARGINS_MS = (1_000, 30_000)
"""How far before the segment to aim. The first passes open-GOP leading frames, whose
references precede the key frame; the second is for containers that seek loosely."""

_PICTURE_A_PACKET = ("h264", "hevc")
_REORDER_MS = 500
"""Decoding goes on this long past the segment's end, for streams with uneven timestamps."""

ON_CARD = "cuda"
"""Format of a frame in a GPU's memory."""


def in_memory(frame: av.VideoFrame) -> av.VideoFrame:
    """Return the frame, downloaded where it is in a GPU's memory."""
    return frame if frame.sw_format is None else frame.reformat(format=frame.sw_format.name)


class Smoothed(Enum):
    """Which frames have the edges of their blocks smoothed, by the codec's loop filter."""

    ALL = auto()
    REFERENCES = auto()
    """Those that others refer to."""
    KEY_FRAMES = auto()


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A decoded frame and its time from the start of the media."""

    time_ms: int
    frame: av.VideoFrame
    pixel_aspect: float
    """Width over height of a pixel, as the frame itself states it; 1 where it does not."""
    orientation: Orientation
    """As the file, or the frames up to this one, state it."""


@dataclass(slots=True)
class DecodeReport:
    """What went by while decoding; filled in as the frames are taken."""

    damaged_packets: int = 0
    damaged_ms: list[int] = field(default_factory=list)
    """Times of frames with errors that the decoder concealed, and of packets that it refused."""
    pictured_ms: set[int] = field(default_factory=set)
    """Times of packets of a codec that has a picture in each: FFmpeg's decoder passes over what it
    cannot decode."""
    key_times_ms: list[int] = field(default_factory=list)
    """Of all packets that went by and are marked as key frames."""


def decode_segment(
    path: Path,
    segment: Segment,
    *,
    stream_index: int,
    origin_ms: int,
    threads: int = 1,
    smoothed: Smoothed = Smoothed.ALL,
    device: str = "cpu",
    report: DecodeReport | None = None,
) -> Iterator[TimedFrame]:
    """Yield frames with ``segment.start_ms <= time < segment.end_ms``, in decoder order.

    ``path`` is the segment's object on this machine. ``threads`` bounds the
    decoder's threads. Of frames that are not ``smoothed`` the blocks' edges stay as they are, which
    tiny pictures do not show, and which saves a fifth of the time. On ``device`` ``cuda``
    NVDEC decodes what it can, with the loop filter, and the processor the rest: frames of the
    former stay in the GPU's memory (``in_memory``). Damaged packets are
    skipped and counted in ``report``; frames without any timestamp are skipped. Raises
    NoVideoStreamError, and av's own errors where the file cannot be opened at all.
    """
    report = report if report is not None else DecodeReport()
    with _positioned(path, segment.start_ms, stream_index, origin_ms, device) as container:
        stream = chosen_stream(container, stream_index)
        # Threads would only wait for the GPU, each with pictures of its own in its memory.
        stream.codec_context.thread_count = 1 if stream.codec_context.is_hwaccel else threads
        stream.thread_type = "AUTO"
        if smoothed is not Smoothed.ALL:
            is_h264 = stream.codec_context.name == "h264"
            # Of H.264 a key frame need not be one that all else begins anew from (IDR).
            keys = "nointra" if is_h264 else "nokey"
            but = keys if smoothed is Smoothed.KEY_FRAMES else "noref"
            stream.codec_context.options = {"skip_loop_filter": but}
        for timed in _timed_frames(container, stream, origin_ms, report):
            if timed.time_ms >= segment.end_ms + _REORDER_MS:
                return
            if segment.start_ms <= timed.time_ms < segment.end_ms:
                yield timed


def _positioned(
    path: Path, start_ms: int, stream_index: int, origin_ms: int, device: str
) -> InputContainer:
    """Return the file opened, positioned at or before ``start_ms``. Where to seek to is tried out
    by decoding a picture."""
    for margin_ms in _SEEK_MARGINS_MS:
        target_ms = start_ms - margin_ms
        with contextlib.ExitStack() as opened:
            container = opened.enter_context(_opened(path, device))
            stream = chosen_stream(container, stream_index)
            base = stream.time_base
            first_ms = start_ms if base is None else rounded_ms(stream.start_time or 0, base)
            if base is None or start_ms - (first_ms - origin_ms) <= _SEEK_WORTHWHILE_MS:
                opened.pop_all()
                return container
            with contextlib.suppress(av.error.FFmpegError):
                seek(container, stream, target_ms + origin_ms)
                first = next(_timed_frames(container, stream, origin_ms, DecodeReport()), None)
                if first is not None and first.time_ms <= start_ms:
                    break
    else:
        return _opened(path, device)
    container = _opened(path, device)
    seek(container, chosen_stream(container, stream_index), target_ms + origin_ms)
    return container


def _opened(path: Path, device: str) -> InputContainer:
    if device.startswith(ON_CARD):
        try:
            return _opened_on_card(path, device)
        except (ImportError, AssertionError, RuntimeError, NotImplementedError, OSError) as error:
            log.warning("no picture can be decoded on the GPU (%s): the processor does it", error)
    container: InputContainer = av.open(str(path), options=OPEN_OPTIONS)
    return container


def _opened_on_card(path: Path, device: str) -> InputContainer:
    import torch

    torch.zeros(1, device=device)
    # The decoder shares torch's context, which is current now: FFmpeg's own flags do not fit it.
    context: dict[str, object] = {"primary_ctx": "0", "current_ctx": "1"}
    on_card = HWAccel("cuda", is_hw_owned=True, allow_software_fallback=True, options=context)
    container: InputContainer = av.open(str(path), options=OPEN_OPTIONS, hwaccel=on_card)
    return container


def seek(container: InputContainer, stream: AvVideoStream, file_ms: int) -> None:
    """Go to the key frame at ``file_ms``, a time as in the file, or to the one before."""
    ticks = int(Fraction(file_ms, 1000) / (stream.time_base or Fraction(1, av.time_base)))
    container.seek(ticks, backward=True, any_frame=False, stream=stream)


def _timed_frames(
    container: InputContainer, stream: AvVideoStream, origin_ms: int, report: DecodeReport
) -> Iterator[TimedFrame]:
    turning = Turning()
    for frame in _frames(container, stream, origin_ms, report):
        orientation = turning.of(frame)
        ticks = frame.pts if frame.pts is not None else frame.dts
        time_base = frame.time_base or stream.time_base
        if ticks is not None and time_base is not None:
            time_ms = rounded_ms(ticks, time_base) - origin_ms
            if frame.is_corrupt:
                report.damaged_ms.append(time_ms)
            yield TimedFrame(time_ms, frame, pixel_aspect(stream), orientation)


def _frames(
    container: InputContainer, stream: AvVideoStream, origin_ms: int, report: DecodeReport
) -> Iterator[av.VideoFrame]:
    """Yield every frame that can be decoded. A broken-off file ends where it can no longer be
    read."""
    packets, shown = demuxed(container, [stream]), ShownOrder(stream)
    decoder = Decoders()[stream]
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            break
        if packet is None:
            break
        shown.put_in(packet)
        shown_ms = packet_time_ms(packet, origin_ms)
        if shown_ms is not None and packet.is_keyframe:
            report.key_times_ms.append(shown_ms)
        has_picture = stream.codec_context.name in _PICTURE_A_PACKET and packet.size
        if shown_ms is not None and has_picture and not packet.is_discard:
            report.pictured_ms.add(shown_ms)
        try:
            frames = decoder.decode(packet)
        except av.error.FFmpegError:
            report.damaged_packets += 1
            report.damaged_ms += [] if shown_ms is None else [shown_ms]
            continue
        for frame in frames:
            shown.take_out(frame)
            yield frame
    for frame in _drained(decoder, report):
        shown.take_out(frame)
        yield frame


def _drained(decoder: Any, report: DecodeReport) -> list[av.VideoFrame]:
    """Return frames that the decoder still held back; none where it was flushed already."""
    try:
        return list(decoder.decode(None))
    except av.error.EOFError:
        return []
    except av.error.FFmpegError:
        report.damaged_packets += 1
        return []
