"""The same video in pieces of 5 s, of 20 s and in one piece: the same scenes, the same words.

The whole demo video where there is time, its beginning in the suite of a pull request.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service_jobs import first_seconds
from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.speech.regions import Sharding
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from storage.objects.folder import FolderStore
from tests.places import DEMO

UNSHARDED_SECONDS = 86_400.0
SEGMENT_SECONDS = {"5 s": 5.0, "20 s": 20.0, "unsharded": UNSHARDED_SECONDS}
BEGINNING_SECONDS = 20.0


def analyse(folder: Path, video: Path, segment_seconds: float) -> dict[str, Any]:
    """The whole pipeline on a video; results without the names of stored objects."""
    store = FolderStore(folder)
    with store.writer("source/media") as stream:
        stream.write(video.read_bytes())
    workspace = Workspace(store, "work")
    control, models = FreeRun(), LocalModels()
    ingested = ingest(
        "source/media",
        IngestContext(workspace, control, IngestConfig(segment_seconds=segment_seconds)),
    )
    assert ingested.video is not None
    vision = analyse_vision(
        ingested.video,
        workspace=workspace,
        models=models,
        control=control,
        config=VisionConfig(),
    )
    [track] = ingested.tracks
    transcript = transcribe_track(
        track,
        workspace=workspace,
        models=models,
        control=control,
        config=TranscriptConfig(sharding=Sharding(shard_seconds=segment_seconds)),
        media_duration_ms=round(ingested.media.duration_seconds * 1000),
    )
    thumbnails = [store.read_bytes(scene.thumbnail_key) for scene in vision.scenes]
    return {
        "segments": len(ingested.video.segments),
        "scenes": [asdict(replace(scene, thumbnail_key="")) for scene in vision.scenes],
        "thumbnails": thumbnails,
        "transcript": [asdict(segment) for segment in transcript.segments],
        "speakers": [asdict(speaker) for speaker in transcript.speakers],
        "rows": transcript.shards_computed,
    }


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("length", "pieces", "segments", "scenes"),
    [
        pytest.param(BEGINNING_SECONDS, ("5 s",), 2, 5, id="beginning"),
        pytest.param(60.0, ("5 s", "20 s"), 4, 7, id="whole", marks=pytest.mark.long),
    ],
)
def test_sharding_changes_neither_scenes_nor_thumbnails_nor_words(
    tmp_path: Path, length: float, pieces: tuple[str, ...], segments: int, scenes: int
) -> None:
    video = first_seconds(DEMO, tmp_path / "video.mp4", length)
    results = {
        name: analyse(tmp_path / name.replace(" ", ""), video, SEGMENT_SECONDS[name])
        for name in (*pieces, "unsharded")
    }
    whole = results["unsharded"]
    assert whole["segments"] == 1
    assert results["5 s"]["segments"] >= segments
    assert len(whole["scenes"]) == scenes
    assert whole["transcript"]
    assert results["5 s"]["rows"] > whole["rows"]
    for name in pieces:
        for part in ("scenes", "thumbnails", "transcript", "speakers"):
            assert results[name][part] == whole[part], f"{part} of {name} differ"
