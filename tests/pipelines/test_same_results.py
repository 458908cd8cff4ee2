"""Results are the same on one processor and on two, which lets stored shards be used again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.service_jobs import first_seconds
from models.profiles import digest_of
from models.provider import LocalModels
from models.tasks import Purpose, tasks_for
from pipelines.codec import encode
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, SourceMedia
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.stages import MediaStages
from pipelines.vision.pipeline import VisionConfig
from storage.objects.folder import FolderStore
from storage.types import ProcessingMode
from tests.places import DEMO, PROJECT

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
from tests.pipelines.test_same_results import analysed
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
