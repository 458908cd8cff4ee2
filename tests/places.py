"""Where the project lies, and the media that tests use."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SHARED_MEDIA = PROJECT.parent / "shared" / "media"
"""The collection of real media, where it lies beside the project."""
DEMO = PROJECT / "tests" / "media" / "demo.mp4"
