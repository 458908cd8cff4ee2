"""The requests of the published Python client, and the fields that it reads of their answers.

Its package is in no registry that the suite installs from, so its calls are written out here. It
knows the older fields and words only: ``status``, ``originalFilename``, ``processedData``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.acceptance.conftest import EXCERPT_SECONDS
from tests.acceptance.service import JOB_SECONDS, Service, serving_files
from tests.pipelines.ingest.ingest_material import write_wav

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

DONE = {"VISION_COMPLETED", "VIDEO_COMPLETED_NO_SCENES"}


class PublishedClient:
    """Calls and polls as that client does."""

    def __init__(self, service: Service) -> None:
        self._http = httpx.Client(
            base_url=service.base_url,
            headers={"Authorization": f"Bearer {service.api_key}"},
            trust_env=False,
            timeout=30,
        )

    def envelope(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self._http.request(method, path, **options)
        assert answer.is_success, answer.text
        envelope: dict[str, Any] = answer.json()
        return envelope

    def data(self, method: str, path: str, **options: Any) -> Any:
        return self.envelope(method, path, **options)["data"]

    def process(self, path: Path, **options: Any) -> dict[str, Any]:
        job = self.data("POST", "/jobs", json={"fileName": path.name, **options})
        stored = httpx.put(
            job["uploadUrl"],
            content=path.read_bytes(),
            headers={"Content-Type": "application/octet-stream"},
            trust_env=False,
        )
        assert stored.is_success, stored.text
        return self.ended(job["jobId"])

    def process_url(self, url: str, **options: Any) -> dict[str, Any]:
        return self.ended(
            self.data("POST", "/jobs/from-url", json={"url": url, **options})["jobId"]
        )

    def ended(self, job_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + JOB_SECONDS
        while time.monotonic() < deadline:
            job: dict[str, Any] = self.data("GET", f"/jobs/{job_id}")
            assert "FAILED" not in job["status"], job["errorMessage"]
            if job["status"] in DONE:
                return job
            assert job["estimatedCompletionTimeSeconds"] is None or (
                job["estimatedCompletionTimeSeconds"] >= 0
            )
            time.sleep(1)
        raise AssertionError(f"{job_id} did not end")

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[PublishedClient]:
    client = PublishedClient(service)
    yield client
    client.close()


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, excerpt: Path) -> Path:
    folder = tmp_path_factory.mktemp("published")
    shutil.copy(excerpt, folder / "excerpt.mp4")
    write_wav(folder / "silence.wav", [np.zeros(3 * 16_000, np.int16)])
    return folder


@pytest.fixture(scope="module")
def files_url(material: Path) -> Iterator[str]:
    with serving_files(material) as url:
        yield url


@pytest.fixture(scope="module")
def processed(client: PublishedClient, material: Path) -> dict[str, Any]:
    return client.process(material / "excerpt.mp4", processingMode="all")


def test_process_gives_scenes_and_transcript(processed: dict[str, Any]) -> None:
    assert processed["originalFilename"] == "excerpt.mp4"
    assert processed["createdAt"].endswith("Z")
    result = processed["processedData"]
    assert result["length"] == pytest.approx(EXCERPT_SECONDS, abs=0.5)
    assert result["scenes"][-1]["endTs"] == pytest.approx(result["length"], abs=0.1)
    assert all(scene["description"] and scene["objects"] is not None for scene in result["scenes"])
    assert all(s["StartTime"] < s["EndTime"] and s["Text"] for s in result["transcript"])
    assert result["transcript"]


def test_process_url_takes_tracks_by_url_and_lists_them(
    client: PublishedClient, files_url: str
) -> None:
    tracks = [
        {"url": f"{files_url}/silence.wav", "label": "Boom", "syncMode": "offset", "offsetMs": 0},
        {"url": f"{files_url}/excerpt.mp4", "syncMode": "offset", "offsetMs": 0, "channels": [0]},
    ]
    job = client.process_url(
        f"{files_url}/excerpt.mp4", processingMode="transcript", audioTracks=tracks
    )
    listed = client.data("GET", f"/jobs/{job['jobId']}/audioTracks")["tracks"]
    assert [track["trackIndex"] for track in listed] == list(range(len(listed)))
    assert [track["trackName"] for track in listed] == job["audioTrackNames"]
    assert job["audioTrackCount"] == job["audioTracksCompleted"] == len(listed)
    assert listed[0]["trackName"] == "Boom"
    assert listed[0]["transcript"] == []
    assert listed[1]["transcript"][0]["Text"]
    assert all(isinstance(name, str) for name in listed[1]["speakers"])
    one = client.data("GET", f"/jobs/{job['jobId']}/audioTracks/1")
    assert one == listed[1]


def test_create_batch_gives_a_job_a_clip(client: PublishedClient, files_url: str) -> None:
    clips = [
        {"sourceUrl": f"{files_url}/excerpt.mp4", "fileName": name} for name in ("a.mp4", "b.mp4")
    ]
    body = {"clips": clips, "mode": "independent", "processingMode": "transcript"}
    batch = client.data("POST", "/jobs/batch", json=body)
    assert batch["batchId"]
    assert batch["mode"] == "independent"
    ended = [client.ended(job["jobId"]) for job in batch["jobs"]]
    assert [job["originalFilename"] for job in ended] == ["a.mp4", "b.mp4"]


def test_list_jobs_pages_by_cursor_and_filters_by_older_words(
    client: PublishedClient, processed: dict[str, Any]
) -> None:
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        query = {"limit": 1, "status": processed["status"], **cursor}
        page = client.envelope("GET", "/jobs", params=query)
        found += page["data"]
        if page["nextCursor"] is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert processed["jobId"] in [job["jobId"] for job in found]
    assert {job["status"] for job in found} == {processed["status"]}


def test_quota_is_read_at_the_top(client: PublishedClient) -> None:
    quota = client.data("GET", "/quota")
    assert quota["currentPlan"] in {"free", "pro"}
    assert quota["includedHours"] == 0
    assert quota["creditsBalanceHours"] > 0
    assert quota["resetDate"] is None
