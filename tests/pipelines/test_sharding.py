"""The same video in pieces of 5 s, of 20 s and in one piece: the same scenes, the same words.

The whole demo video where there is time, its beginning in the suite of a pull request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service_jobs import first_seconds
from models.contracts import ShotAngle, ShotType
from models.profiles import digest_of
from models.provider import LocalModels
from models.tasks import Purpose, tasks_for
from pipelines.codec import encode
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.ingest.source import ClipFile, SourceMedia
from pipelines.speech.pipeline import TranscriptConfig, transcribe_track
from pipelines.speech.regions import Sharding
from pipelines.stages import MediaStages
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.policy import ContentPolicy
from storage.objects.folder import FolderStore
from storage.types import ProcessingMode
from tests.models.tiny_models import fill_models_folder
from tests.places import DEMO, PROJECT

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


INGEST = IngestConfig(segment_seconds=5.0)
TRANSCRIPT = TranscriptConfig(models=digest_of("packaged", tasks_for(Purpose.TRANSCRIPT)))


def analysed(folder: Path, video: Path) -> dict[str, str]:
    """The scenes and words, without the names of stored objects."""
    store = FolderStore(folder)
    store.write_bytes("job/source", video.read_bytes())
    stages = MediaStages(
        workspace=Workspace(store, "job"),
        models=LocalModels(),
        mode=ProcessingMode.ALL,
        ingest_config=INGEST,
        vision_config=VisionConfig(),
        transcript_config=TRANSCRIPT,
        mapper=map_here,
    )
    probed = stages.probe(SourceMedia((ClipFile("job/source", video.name),)), FreeRun())
    ingested = stages.ingest(probed, FreeRun())
    seen = stages.vision(ingested, FreeRun())
    said = [stages.transcribe(track, ingested, FreeRun()) for track in ingested.tracks]
    return {
        "scenes": encode(seen.scenes).decode(),
        "words": encode([each.segments for each in said]).decode(),
    }


ON_ONE_PROCESSOR = """
import sys
from pathlib import Path
from pipelines.codec import encode
from tests.pipelines.test_sharding import analysed
folder, video = map(Path, sys.argv[1:])
sys.stdout.buffer.write(encode(analysed(folder, video)))
"""


def on_one_processor(*arguments: object) -> object:
    """What a process makes that has one processor and one thread for OpenMP, ours two or more."""
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c"]
    ended = subprocess.run(
        [*command, ON_ONE_PROCESSOR, *map(str, arguments)],
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=PROJECT,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_results_are_the_same_on_one_processor(tmp_path: Path) -> None:
    video = first_seconds(DEMO, tmp_path / "video.mp4", 20.0)
    found = analysed(tmp_path / "first", video)
    assert on_one_processor(tmp_path / "second", video) == found
