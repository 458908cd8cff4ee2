"""Bytes read as values: every input means something, and small changes of it small changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Feed:
    """An input that is eaten from the front; once it is empty, zeros and empty texts come."""

    data: bytes

    def take(self, count: int) -> bytes:
        """Up to so many bytes."""
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, from as few bytes as tell them apart."""
        span = high - low + 1
        raw = self.take((span.bit_length() + 7) // 8)
        return low + int.from_bytes(raw, "big") % span

    def line(self) -> bytes:
        """What stands before the next line feed."""
        taken, _, self.data = self.data.partition(b"\n")
        return taken

    def lines(self, most: int) -> list[bytes]:
        """Up to so many lines."""
        found: list[bytes] = []
        while self.data and len(found) < most:
            found.append(self.line())
        return found

    def text(self) -> str:
        """A line as a header holds it."""
        return self.line().decode("latin-1")

    def rest(self) -> bytes:
        return self.take(len(self.data))


def as_text(data: bytes) -> str:
    """UTF-8, with U+FFFD for what is none."""
    return data.decode("utf-8", "replace")
