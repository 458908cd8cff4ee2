"""Time that a test may bound: what passes while this process gets its turns of the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

BEAT_SECONDS = 0.02


class Stopwatch:
    """Counts beats of a thread that does nothing else: on a busy machine they come later, as does
    what is timed, so that a bound holds for the code and not for what runs beside it."""

    def __init__(self) -> None:
        self._beats = 0
        self._over = threading.Event()

    @property
    def seconds(self) -> float:
        """Never more than have passed."""
        return self._beats * BEAT_SECONDS

    def _count(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            self._beats += 1


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """One that runs during the block and can be read after it."""
    made = Stopwatch()
    thread = threading.Thread(target=made._count, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made._over.set()
        thread.join()
