"""Time that a test may bound: what passes while this process gets its turns of the machine."""

from __future__ import annotations

import threading
from typing import Self

BEAT_SECONDS = 0.02


class Stopwatch:
    """Counts beats of a thread that does nothing else: on a busy machine they come later, as does
    what is timed, so that a bound holds for the code and not for what runs beside it.

    It runs during its block and can be read after it.
    """

    def __init__(self) -> None:
        self._beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """Never more than have passed."""
        return self._beats * BEAT_SECONDS

    def _count(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            self._beats += 1
