"""Things that lie in time, asked which of them touch a stretch of it.

What is decided about a transition depends on what is near it. Asked of all others instead,
a day of footage would take the square of its transitions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Neighbours(Generic[Item]):
    """``items`` by time; ``span`` gives each one's first and last moment, in ms.

    Asking takes logarithmic time and what lies within the longest item's length, so it is
    for items that are short beside the whole.
    """

    def __init__(self, items: Sequence[Item], span: Callable[[Item], tuple[int, int]]) -> None:
        spans = [(*span(item), index) for index, item in enumerate(items)]
        self._spans = sorted(spans)
        self._starts = [start for start, _, _ in self._spans]
        self._longest = max((end - start for start, end, _ in spans), default=0)
        self._items = items

    def touching(self, start_ms: int, end_ms: int) -> Iterator[Item]:
        """Each that has a moment of ``start_ms`` to ``end_ms``, both of which belong to it, in
        order of their starts."""
        low = bisect_left(self._starts, start_ms - self._longest)
        high = bisect_right(self._starts, end_ms)
        for _, ends_ms, index in self._spans[low:high]:
            if ends_ms >= start_ms:
                yield self._items[index]
