"""The neural models behind Serve: tiny random weights of the registry's classes, a whole job.

What such weights say is noise, so what is looked at is what noise must not touch:
the cuts, the order and bounds of words, the schema of descriptions, the policy.
A small example, without a service, is ``tests/pipelines/test_sharding.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from models.contracts import ShotAngle, ShotType
from models.profiles import replicas_of
from models.registry import REGISTRY
from models.tasks import TRANSCRIBE
from tests.acceptance.service import Service, running
from tests.models.tiny_models import fill_models_folder
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.long, pytest.mark.timeout(900)]

TRUTH = json.loads((PROJECT / "tests" / "media" / "demo.truth.json").read_text())
TWO_FRAMES_SECONDS = 0.081


@pytest.fixture(scope="module")
def neural(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("neural")
    weights = fill_models_folder(folder / "models", "cpu")
    with running(
        folder / "data",
        folder / "service.log",
        # No model profile is named: the folder has what the profile needs, so it is chosen.
        VAS_MODELS_DIR=str(weights),
        # No score is above 1, so nothing is blocked, but every still is judged.
        VAS_BLOCKED_LABELS='{"nsfw": 1.0}',
        VAS_MODEL_REPLICAS='{"transcribe": 1}',
    ) as started:
        yield started


def test_a_job_goes_through_the_neural_models(neural: Service) -> None:
    titles = [" ".join(process.cmdline()) for process in neural.processes()]
    served = [task for task in REGISTRY["cpu"] if replicas_of("cpu", task) is task]
    assert TRANSCRIBE in served
    for task in served:
        name = f"ServeReplica:vas:{task.contract_name}"
        assert any(name in title for title in titles), name
    job_id = neural.submit(DEMO)
    neural.completed(job_id, 400)
    results = neural.results(job_id)
    cuts = [scene["startTime"] for scene in results["scenes"][1:]]
    truth = [cut["time_ms"] / 1000 for cut in TRUTH["cuts"]]
    assert cuts == pytest.approx(truth, abs=TWO_FRAMES_SECONDS)
    with neural.client() as client:
        summary = client.get_summary(job_id)
        alike = client.search(like=f"{job_id}:0", limit="100")
    assert alike["mode"] == "like"
    others = {scene["index"] for scene in results["scenes"]} - {0}
    assert {hit["sceneIndex"] for hit in alike["data"]} <= others
    assert alike["data"] or not others
    said = {(each["startTime"], each["endTime"]) for each in results["transcript"]["segments"]}
    assert {(each["startTime"], each["endTime"]) for each in summary} <= said
    assert bool(summary) == bool(said)
    for scene in results["scenes"]:
        assert scene["description"].strip()
        assert scene["shotType"] in set(ShotType)
        assert scene["shotAngle"] in set(ShotAngle)
    words = [word for segment in results["transcript"]["segments"] for word in segment["words"]]
    edges = [edge for word in words for edge in (word["startTime"], word["endTime"])]
    assert all(before <= after for before, after in pairwise(edges))
