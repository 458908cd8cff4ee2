"""Inputs changed at random: where no coverage guides, and for the short runs of the suite."""

from __future__ import annotations

import random
from collections.abc import Sequence

INTERESTING = (
    b"\0", b"\n", b"\r\n", b"\xff", b"%", b"%00", b"..", b"/", b"\\", b"@", b"'", b'"', b";", b",",
    b"-", b"-->", b"0", b"9" * 20, b"1e999", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xed\xa0\x80",
    b"\\ud800", b"&#0;", b"[" * 40, b"=",
)  # fmt: skip


class Mutator:
    """An endless row of inputs: known ones, and those with a few places changed."""

    def __init__(self, seed: int, known: Sequence[bytes], longest_bytes: int) -> None:
        self._chance = random.Random(seed)
        self._known = [*known, b""]
        self._longest_bytes = longest_bytes

    def next(self) -> bytes:
        """Another input."""
        data = bytearray(self._chance.choice(self._known))
        for _ in range(self._chance.choice((0, 1, 1, 2, 2, 4, 8))):
            self._change(data)
        return bytes(data[: self._longest_bytes])

    def _change(self, data: bytearray) -> None:
        chance = self._chance
        at = chance.randrange(len(data) + 1)
        length = min(chance.choice((1, 1, 2, 4, 16)), len(data) - at)
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + length] = chance.randbytes(length)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = chance.choice(INTERESTING)
        elif kind == 3:
            data[at : at + length] = chance.choice(INTERESTING)
        elif kind == 4:
            data[at:at] = data[at : at + 16] * chance.randrange(1, 4)
        else:
            other = chance.choice(self._known)
            data[at:at] = other[chance.randrange(len(other) + 1) :][:64]
