"""What was freed among what is still in use goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

MIB = 2**20
FREED_MIB = 128

SCATTERED = f"""
import psutil
from pipelines.execution.chain import release_free_memory

own = psutil.Process()
pieces = [bytearray(64 * 1024) for _ in range({FREED_MIB} * 16)]
kept = pieces[::100]
del pieces
before = own.memory_info().rss
release_free_memory()
print(before - own.memory_info().rss)
"""
"""Pieces too small for pages of their own; those that are kept lie all over the heap."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to")
def test_free_pages_between_used_ones_are_given_back() -> None:
    given = subprocess.run(
        [sys.executable, "-c", SCATTERED], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(given.stdout) > FREED_MIB * MIB * 0.8
