"""Reruns in a running service: nothing for what did not change, the same folder for what did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.service import Service

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]


def rerun(service: Service, job_id: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(
        f"{service.base_url}/jobs/{job_id}/rerun",
        json=body,
        headers={"X-API-Key": service.api_key},
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def computed(service: Service, job_id: str) -> dict[str, tuple[float, float]]:
    """Shards that each analysis computed, and that it found in the store."""
    rows = service.query(
        "SELECT stage, timings -> 'shards_computed', timings -> 'shards_reused' FROM stages"
        " WHERE job_id = %s AND stage <> 'ingest'",
        job_id,
    )
    return {stage: (made, reused) for stage, made, reused in rows}


def test_an_unchanged_job_makes_no_inference_and_a_forced_one_finds_all_its_shards(
    service: Service, excerpt: Path
) -> None:
    job_id = service.submit(excerpt)
    service.completed(job_id)
    before, first = service.results(job_id), computed(service, job_id)
    assert all(made > 0 for made, _ in first.values())

    plan = rerun(service, job_id)
    assert plan["rerunJobId"] is None
    assert plan["stages"] == {
        name: {"changed": False, "rerun": False} for name in ("vision", "transcript")
    }

    forced = rerun(service, job_id, stages=["vision", "transcript"])
    service.completed(forced["rerunJobId"])
    again = computed(service, job_id)
    assert {name: made for name, (made, _) in again.items()} == {"vision": 0, "transcript": 0}
    assert {name: sum(each) for name, each in again.items()} == {
        name: sum(each) for name, each in first.items()
    }
    assert service.results(job_id) == before

    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE stages SET made_with = 'before' WHERE job_id = %s AND stage = 'vision'",
            (job_id,),
        )
    changed = rerun(service, job_id)
    assert [name for name, each in changed["stages"].items() if each["rerun"]] == ["vision"]
    ended = service.ended(changed["rerunJobId"])
    assert (ended["state"], ended["chargedCents"]) == ("completed", changed["estimatedCents"])
    assert rerun(service, job_id)["rerunJobId"] is None
