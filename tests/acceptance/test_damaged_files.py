"""Camera RAW and a hostile file through the service that the acceptance tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.client.api import RequestFailedError
from tests.acceptance.camera_raw import DECODED_SECONDS, RAW
from tests.acceptance.service import Service
from tests.pipelines.ingest.damaged_media import BOMBS, damaged_files
from tests.pipelines.ingest.format_samples import STANDARD, write_sample

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

BOMB = "billion.mp4"


def ended(service: Service, path: Path) -> dict[str, Any]:
    return service.ended(service.submit(path))


def test_camera_raw_is_decoded_by_its_command_and_charged_by_its_tier(
    service: Service, tmp_path: Path
) -> None:
    sent = {}
    for name, (content, _) in RAW.items():
        (tmp_path / name).write_bytes(content)
        sent[name] = service.submit(tmp_path / name)
    jobs = {name: service.ended(job_id) for name, job_id in sent.items()}
    for name, (_, code) in RAW.items():
        assert jobs[name]["tier"] == "raw"
        assert (jobs[name].get("error") or {"code": None})["code"] == code
    address = f"{service.base_url}/pricing/estimate?durationSeconds={DECODED_SECONDS:.0f}&tier=raw"
    estimate = httpx.get(address, trust_env=False).json()["data"]
    whole = jobs["clip.r3d"]
    assert whole["chargedCents"] == estimate["cents"]
    assert whole["durationSeconds"] == pytest.approx(DECODED_SECONDS, abs=0.1)


def test_camera_raw_without_a_command_is_refused_at_once(service: Service) -> None:
    with service.client() as client, pytest.raises(RequestFailedError) as caught:
        client.create_job("clip.braw", 1_000)
    assert (caught.value.code, caught.value.status) == ("UNSUPPORTED_FORMAT", 415)


def test_a_bomb_is_refused_and_a_damaged_file_ends_in_a_stage_with_a_code(
    service: Service, tmp_path: Path
) -> None:
    (tmp_path / BOMB).write_bytes(BOMBS[BOMB]())
    original = write_sample(tmp_path, STANDARD[0])
    [damaged] = damaged_files([original], tmp_path, seed=1, count=1)
    bomb, other = ended(service, tmp_path / BOMB), ended(service, damaged.path)
    assert bomb["error"]["code"] == "VALIDATION_FAILED"
    assert other["state"] in ("completed", "failed")
    failed = [name for name, stage in other["stages"].items() if stage["status"] == "failed"]
    assert bool(failed) == (other["state"] == "failed")
    leases = "SELECT lease_count FROM jobs WHERE id = ANY(%s::uuid[])"
    assert {row[0] for row in service.query(leases, [bomb["jobId"], other["jobId"]])} == {1}
