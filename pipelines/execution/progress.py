"""Progress that moves while tasks run: what is done, and how far the running tasks must be by now.

A task reports only its end, which can be minutes away. In between the fraction follows from the
pace so far, bounded so that it never overtakes what the running tasks can do and never goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FIRST_ROW_SECONDS = 10.0
"""What a row is taken to need before any has ended."""


@dataclass(slots=True)
class Pace:
    """How far ``total`` rows are, 0 to 1, by what ended and by the time since. Never falls.

    ``concurrency`` rows are under way: when one ends, the others are taken to be halfway, and all
    of them may be counted before they end.
    """

    total: int
    started_seconds: float
    concurrency: int = 1
    done: int = 0
    _last_seconds: float = 0.0
    _highest: float = 0.0

    def row_ended(self, now_seconds: float) -> None:
        """Another row is done."""
        self.done += 1
        self._last_seconds = now_seconds - self.started_seconds

    def fraction(self, now_seconds: float) -> float:
        """0 to 1; 1 only once every row has ended."""
        if self.done >= self.total:
            return 1.0
        elapsed = now_seconds - self.started_seconds
        halfway = min(self.concurrency - 1, self.total - self.done) / 2 if self.done else 0.0
        worked = self.done + halfway
        row_seconds = self._last_seconds / worked if self.done else _FIRST_ROW_SECONDS
        waited = halfway + (elapsed - self._last_seconds) / max(row_seconds, 1e-3)
        # Straight at first, then ever slower towards the bound: it moves however long a row takes.
        bound = 0.98 * min(self.concurrency + 1, self.total - self.done)
        ahead = bound * (1 - math.exp(-max(0.0, waited) / bound))
        self._highest = max(self._highest, (self.done + ahead) / self.total)
        return self._highest
