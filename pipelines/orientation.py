"""How a stored picture is made upright and undistorted.

Display matrices are read, and applied, only here. Confined child processes import this, so it
imports no more than they have.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from av.video.frame import VideoFrame

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Sample = TypeVar("Sample", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Orientation:
    """What makes a stored picture upright: mirrored left to right or not, and then turned."""

    degrees: int = 0
    """Clockwise: 0, 90, 180 or 270."""
    mirrored: bool = False

    @property
    def swaps_sides(self) -> bool:
        """Whether the height of the stored picture is the width of the upright one."""
        return self.degrees % 180 != 0

    @property
    def filters(self) -> list[tuple[str, str | None]]:
        """FFmpeg's filters that make a picture upright, with their arguments."""
        turns = {0: (), 90: ("clock",), 180: ("clock", "clock"), 270: ("cclock",)}[self.degrees]
        mirror: list[tuple[str, str | None]] = [("hflip", None)] if self.mirrored else []
        return mirror + [("transpose", turn) for turn in turns]

    def upright(self, picture: npt.NDArray[Sample]) -> npt.NDArray[Sample]:
        """A stored picture (rows, columns, ...) as it is to be shown; a view of it."""
        if self.mirrored:
            picture = picture[:, ::-1]
        if self.swaps_sides:
            picture = picture.swapaxes(0, 1)
        rows, columns = _REVERSED[self.degrees]
        return picture[::rows, ::columns]

    def turned(self, across: float, down: float) -> tuple[float, float]:
        """A movement in the stored picture as it is in the upright one."""
        across = -across if self.mirrored else across
        for _ in range(self.degrees // 90):
            across, down = -down, across
        return across, down


@dataclass(frozen=True, slots=True)
class PixelShape:
    """Width over height of the stored pixels of a stream, as players take them."""

    sample_aspect: float = 1.0
    decoder_aspect: float = 1.0
    """What the first frame itself states, 1 where it states nothing."""

    def picture_aspect(self, width: int, height: int, decoder_aspect: float) -> float:
        """Width over height with square pixels, before it is turned, of a stored frame.

        What the container states of pixels holds for frames that state the same as the first.
        """
        is_as_first = abs(decoder_aspect - self.decoder_aspect) < _SAME_ASPECT
        return width * (self.sample_aspect if is_as_first else decoder_aspect) / height


_SAME_ASPECT = 1e-3
_REVERSED = {0: (1, 1), 90: (1, -1), 180: (-1, -1), 270: (-1, 1)}
"""Steps through rows and columns, sides swapped before where they are, by the clockwise turn."""

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


def orientation_of(frame: VideoFrame) -> Orientation:
    """What a decoded frame's display matrix states, to a quarter turn.

    The matrix (ISO 14496-12, 8.3.2) takes (x, y), downwards, to (a x + c y, b x + d y). PyAV 18
    lists no side data of frames that have some of a kind that it does not know, which those with
    EXIF do: of these only the turn is known.
    """
    try:
        listed: Any = frame.side_data
        found = [bytes(data) for data in listed if data.type.name == "DISPLAYMATRIX"]
    except ValueError:
        return Orientation(round(-frame.rotation / 90) * 90 % 360)
    if not found:
        return Orientation()
    a, b, _, c, d = struct.unpack("5i", found[0][:20])
    mirrored = a * d - b * c < 0
    sign = -1 if mirrored else 1
    degrees = math.degrees(math.atan2(sign * b, sign * a))
    return Orientation(round(degrees / 90) * 90 % 360, mirrored)
