"""How a stored picture stands, by its display matrix or its tag. Confined child processes import
this."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from av.sidedata.sidedata import SideDataContainer
from av.video.frame import VideoFrame

from pipelines.media_types import Orientation

EXIF_ORIENTATIONS = {
    1: Orientation(0),
    2: Orientation(0, mirrored=True),
    3: Orientation(180),
    4: Orientation(180, mirrored=True),
    5: Orientation(270, mirrored=True),
    6: Orientation(90),
    7: Orientation(90, mirrored=True),
    8: Orientation(270),
}
"""By the value of the tag Orientation (Exif 2.32, 4.6.4)."""


@dataclass(slots=True)
class Turning:
    """How the pictures of a stream stand, frame after frame as they are decoded.

    Of H.264 and HEVC a picture may state it for those that follow, until a key frame that states
    nothing (ITU-T H.264, D.2.27; repetition period 1).
    """

    now: Orientation = field(default_factory=Orientation)

    def of(self, frame: VideoFrame) -> Orientation:
        """Take the next frame; as it is to be shown."""
        stated = _stated(frame)
        if stated is not None or frame.key_frame:
            self.now = stated or Orientation()
        return self.now


def orientation_of(frame: VideoFrame) -> Orientation:
    """What a decoded frame's display matrix states, to a quarter turn."""
    return _stated(frame) or Orientation()


def _stated(frame: VideoFrame) -> Orientation | None:
    """None where the frame has no matrix.

    The matrix (ISO 14496-12, 8.3.2) takes (x, y), downwards, to (a x + c y, b x + d y). PyAV 18
    lists no side data of frames that have some of a kind that it does not know, which those with
    EXIF do: of these only the turn is known.
    """
    try:
        # ``frame.side_data`` keeps what it lists, which keeps the frame: no frame would be freed
        # before Python looks for cycles, and by then there are hundreds.
        listed: Any = SideDataContainer(frame)  # type: ignore[call-arg]  # Its stub lacks it.
        found = [bytes(data) for data in listed if data.type.name == "DISPLAYMATRIX"]
    except ValueError:
        return Orientation(round(-frame.rotation / 90) * 90 % 360)
    if not found:
        return None
    a, b, _, c, d = struct.unpack("5i", found[0][:20])
    mirrored = a * d - b * c < 0
    sign = -1 if mirrored else 1
    degrees = math.degrees(math.atan2(sign * b, sign * a))
    return Orientation(round(degrees / 90) * 90 % 360, mirrored)
