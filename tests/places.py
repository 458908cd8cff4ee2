"""Where the project lies, the media that tests use, and what a run has in memory."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SHARED_MEDIA = PROJECT.parent / "shared" / "media"
"""The collection of real media, where it lies beside the project."""
DEMO = PROJECT / "tests" / "media" / "demo.mp4"
MEMORY = Path("/dev/shm")  # noqa: S108


def in_memory(run: Path) -> list[Path]:
    """What the run whose temporary folder is ``run`` has in memory: folders of databases."""
    return sorted(MEMORY.glob(f"vas-{run.name}-*"))
