"""Memory that was freed and is still the process's."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def release_free_memory() -> None:
    """Give what the C library keeps of freed memory back to the system, where it can (glibc).

    It keeps pages that are free among others that are not, more of them the longer
    a process works on pieces of changing size. Other Python threads go on meanwhile.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """See malloc_trim(3)."""
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
