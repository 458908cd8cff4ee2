"""Speech of samples, as a task detects it: from segmentation of windows and Silero."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from models.contracts import (
    ACTIVITY_FRAMES,
    ACTIVITY_WINDOW_SAMPLES,
    LOCAL_SPEAKERS,
    Samples,
    SoundKind,
)
from models.provider import LocalModels
from models.tasks import SEGMENT_SPEAKERS
from pipelines.media.audio import Levels, write_flac
from pipelines.speech.regions import Region, scan_track
from pipelines.speech.speakers import STEP_SAMPLES, LocalVoices, speech_activity, windows_of


def scanned(samples: Samples) -> tuple[list[Region], Levels]:
    """Regions of speech in seconds, and the level of every frame."""
    models = LocalModels()
    starts = [STEP_SAMPLES * number for number in range(windows_of(len(samples)))]
    windows = [samples[at : at + ACTIVITY_WINDOW_SAMPLES] for at in starts]
    speech = np.stack([each.speech for each in models.get(SEGMENT_SPEAKERS).segment(windows)])
    count = len(windows)
    voices = LocalVoices(
        np.zeros((count, ACTIVITY_FRAMES, LOCAL_SPEAKERS), np.bool_),
        np.zeros((count, LOCAL_SPEAKERS, 0), np.float16),
        np.zeros((count, 0, len(SoundKind)), np.uint8),
        (255 * speech).round().astype(np.uint8),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "track.flac"
        with path.open("wb") as stream:
            write_flac(stream, [samples])
        return scan_track(path, speech_activity([voices]), models, lambda: None)
