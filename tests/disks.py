"""File systems of a few kilobytes, which are soon full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at ``folder``; skips the test where none can be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems can be mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(folder: Path, size_bytes: int) -> None:
    """Give a mounted file system another size."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(folder)], check=True)
