"""The neural models in both stages, without a service: tiny random weights, a few seconds of film.

What such weights say is noise, so what is looked at is what noise must not touch. A whole job
through a service is ``tests/acceptance/test_neural_profile.py``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.service_jobs import first_seconds
from models.contracts import ShotAngle, ShotType
from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.pipeline import IngestContext, ingest
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.policy import ContentPolicy
from storage.objects.folder import FolderStore
from tests.models.tiny_folder import fill_models_folder
from tests.places import DEMO

SECONDS = 6.0
CUT_MS = 2880
TWO_FRAMES_MS = 81


@pytest.mark.usefixtures("ray_session")
def test_a_clip_goes_through_the_neural_models(tmp_path: Path) -> None:
    models = LocalModels("cpu", fill_models_folder(tmp_path / "models", "cpu"))
    store = FolderStore(tmp_path / "store")
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", SECONDS)
    store.write_bytes("source/media", clip.read_bytes())
    workspace, control = Workspace(store, "work"), FreeRun()
    ingested = ingest("source/media", IngestContext(workspace, control))
    assert ingested.video is not None
    # No score is above 1, so nothing is blocked, but every still is judged.
    policy = ContentPolicy(label_limits=(("nsfw", 1.0),))
    vision = analyse_vision(
        ingested.video,
        workspace=workspace,
        models=models,
        control=control,
        config=VisionConfig(policy=policy),
    )
    [track] = ingested.tracks
    transcript = transcribe_track(
        track,
        workspace=workspace,
        models=models,
        control=control,
        config=TranscriptConfig(),
        media_duration_ms=round(SECONDS * 1000),
    )
    [_, second] = vision.scenes
    assert second.start_ms == pytest.approx(CUT_MS, abs=TWO_FRAMES_MS)
    for scene in vision.scenes:
        assert scene.description.strip()
        assert scene.shot_type in set(ShotType)
        assert scene.shot_angle in set(ShotAngle)
    words = [word for segment in transcript.segments for word in segment.words]
    edges = [edge for word in words for edge in (word.start_ms, word.end_ms)]
    assert all(before <= after for before, after in pairwise(edges))
