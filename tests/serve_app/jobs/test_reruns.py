"""Results made again where what they were made with has changed; only there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from pipelines.codec import encode
from pipelines.types import Speaker, StageCode, StageError, TranscriptResult
from pipelines.types import WarningCode as Code
from serve_app.work import publishing
from serve_app.work.publishing import Lease
from storage import history, jobs
from storage.cleaning import find_round, list_due_rounds, set_legal_hold
from storage.database import Connection
from storage.results import TrackTranscript
from storage.tables import jobs as job_table
from storage.types import Retention, StageName
from tests.pipelines.speech.test_edits import segment
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, complete, created, stored, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_voices import ANNA, job_of, name, speaker, voices_of

CONTRACT = Contract(DOCUMENT)
LEASE = timedelta(minutes=5)
NOW = {StageName.VISION: "vision-1", StageName.TRANSCRIPT: "transcript-1"}
NEW_SCENES = [{**SCENES[0], "description": "A baker in her bakery."}, *SCENES[1:]]


def said(text: str) -> TrackTranscript:
    found = TranscriptResult(
        "en", (Speaker("speaker_0", "Speaker 1", 5.0),), (segment(0, text, 1000, "speaker_0"),)
    )
    return replace(track(0), language="en", document=encode(found).decode())


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> Iterator[str]:
    """A completed job, made with what is in use now."""
    job_id = created(api, customer)
    complete(api, job_id, [said("Good morning")], [])
    uses(api, NOW)
    api.sql(
        "UPDATE stages SET made_with = v.made_with FROM stage_versions v"
        " WHERE v.stage = stages.stage AND job_id = :job",
        job=job_id,
    )
    yield job_id
    while api.transact(lambda c: jobs.lease_next(c, lease=LEASE)):
        pass


def uses(api: RunningApi, made_with: dict[StageName, str]) -> None:
    """A runner starts with these versions."""
    api.transact(lambda c: history.publish_versions(c, made_with))


def ask(api: RunningApi, customer: Customer, job_id: str, **body: Any) -> httpx.Response:
    return api.client.post(f"/jobs/{job_id}/rerun", json=body, headers=customer.headers)


def planned(api: RunningApi, customer: Customer, job_id: str, **body: Any) -> dict[str, Any]:
    answer = ask(api, customer, job_id, **body)
    assert answer.status_code == 202, answer.text
    CONTRACT.check("rerunJob", answer)
    data: dict[str, Any] = answer.json()["data"]
    return data


def read(api: RunningApi, customer: Customer, path: str) -> Any:
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def text_of(api: RunningApi, customer: Customer, job_id: str) -> str:
    text: str = read(api, customer, f"/jobs/{job_id}/transcript")["text"]
    return text


def first_scene(api: RunningApi, customer: Customer, job_id: str) -> str:
    scene: str = read(api, customer, f"/jobs/{job_id}/scenes")["scenes"][0]["description"]
    return scene


def run(
    api: RunningApi,
    rerun_id: str,
    *,
    text: str | None = None,
    vision: bool = True,
    voices: publishing.KeptVoices | None = None,
) -> None:
    """As a runner does it: lease, publish the stages that are not ended."""

    async def publish(connection: Connection) -> None:
        taken = await jobs.lease_next(connection, lease=LEASE)
        assert taken is not None
        assert str(taken[0]) == rerun_id
        lease = Lease(*taken)
        if vision:
            warnings = [{"code": Code.PICTURE_DAMAGED, "message": "One.", "stage": "vision"}]
            await publishing.publish_scenes(
                connection, lease, stored(NEW_SCENES), {}, made_with="vision-2", warnings=warnings
            )
        if text is not None:
            await publishing.publish_transcripts(
                connection, lease, [said(text)], {}, made_with="transcript-2", voices=voices
            )

    api.transact(publish)


def test_an_unchanged_job_is_not_run_again_and_costs_nothing(
    api: RunningApi, customer: Customer, job: str
) -> None:
    before = read(api, customer, "/quota")
    plan = planned(api, customer, job)
    assert plan["stages"] == {
        "vision": {"changed": False, "rerun": False},
        "transcript": {"changed": False, "rerun": False},
    }
    assert (plan["rerunJobId"], plan["estimatedCents"]) == (None, 0)
    assert api.transact(lambda c: jobs.lease_next(c, lease=LEASE)) is None
    assert read(api, customer, "/quota") == before
    assert len(api.client.get("/jobs", headers=customer.headers).json()["data"]) == 1


def test_a_changed_stage_is_estimated_made_again_and_exchanged_at_once(
    api: RunningApi, customer: Customer, job: str
) -> None:
    uses(api, NOW | {StageName.VISION: "vision-2"})
    estimate = planned(api, customer, job, dryRun=True)
    assert estimate["stages"]["vision"] == {"changed": True, "rerun": True}
    assert estimate["stages"]["transcript"] == {"changed": False, "rerun": False}
    assert estimate["rerunJobId"] is None
    assert estimate["estimatedCents"] > 0

    rerun = planned(api, customer, job)
    rerun_id = rerun["rerunJobId"]
    again = planned(api, customer, job)
    assert again["rerunJobId"] == rerun_id, "one at a time"
    shown = read(api, customer, f"/jobs/{rerun_id}")
    assert (shown["rerunOf"], shown["processingMode"], shown["state"]) == (job, "vision", "queued")
    assert shown["stages"]["ingest"]["status"] == "completed"
    assert shown["priority"] == "low"
    assert first_scene(api, customer, job) == SCENES[0]["description"], "until it is completed"

    run(api, rerun_id)
    assert first_scene(api, customer, job) == "A baker in her bakery."
    assert first_scene(api, customer, rerun_id) == SCENES[0]["description"], "the old version"
    assert text_of(api, customer, job) == "Good morning"
    ended = read(api, customer, f"/jobs/{rerun_id}")
    assert (ended["state"], ended["chargedCents"]) == ("completed", estimate["estimatedCents"])
    assert [each["code"] for each in read(api, customer, f"/jobs/{job}")["warnings"]] == [
        "PICTURE_DAMAGED"
    ]
    assert planned(api, customer, job)["rerunJobId"] is None
    found = api.client.get("/search?q=bakery&kinds=scene", headers=customer.headers).json()["data"]
    assert [each["jobId"] for each in found] == [job]
    found = api.client.get("/search?q=kitchen&kinds=scene", headers=customer.headers).json()["data"]
    assert found == []


def test_both_stages_are_exchanged_together(api: RunningApi, customer: Customer, job: str) -> None:
    rerun_id = planned(api, customer, job, stages=["vision", "transcript"])["rerunJobId"]
    run(api, rerun_id, text="Good evening")
    assert text_of(api, customer, job) == "Good evening"
    assert text_of(api, customer, rerun_id) == "Good morning"
    assert first_scene(api, customer, job) == "A baker in her bakery."


def test_a_rerun_that_fails_leaves_the_results_as_they_were(
    api: RunningApi, customer: Customer, job: str
) -> None:
    rerun_id = planned(api, customer, job, stages=["vision", "transcript"])["rerunJobId"]

    async def fail(connection: Connection) -> None:
        taken = await jobs.lease_next(connection, lease=LEASE)
        assert taken is not None
        error = StageError(StageCode.TRANSCRIPT_FAILED, "No.")
        await publishing.publish_scenes(connection, Lease(*taken), stored(NEW_SCENES), {})
        await publishing.fail_stage(connection, Lease(*taken), StageName.TRANSCRIPT, error)

    api.transact(fail)
    assert read(api, customer, f"/jobs/{rerun_id}")["state"] == "failed"
    assert first_scene(api, customer, job) == SCENES[0]["description"]
    assert text_of(api, customer, job) == "Good morning"


def test_a_rerun_recognises_voices_anew_and_keeps_those_that_were_learnt(
    api: RunningApi, customer: Customer, job: str
) -> None:
    learnt = job_of(api, customer)
    voice = name(api, customer, learnt).json()["data"]["id"]
    uses(api, {StageName.VISION: "vision-1", StageName.TRANSCRIPT: "transcript-2"})
    rerun_id = planned(api, customer, job)["rerunJobId"]
    run(api, rerun_id, text="Good evening", vision=False, voices=voices_of(ANNA))
    assert speaker(api, customer, job) == ("Anna", voice)
    assert speaker(api, customer, rerun_id) == ("Speaker 1", None)
    uses(api, {StageName.VISION: "vision-1", StageName.TRANSCRIPT: "transcript-3"})
    run(api, planned(api, customer, job)["rerunJobId"], text="Bye", vision=False)
    assert speaker(api, customer, job) == ("Speaker 1", None)
    plan = planned(api, customer, learnt, dryRun=True)
    assert plan["stages"]["transcript"]["reason"] == "corrected"


def test_what_people_corrected_is_kept(api: RunningApi, customer: Customer, job: str) -> None:
    edit = {"revision": 0, "segments": [{"index": 0, "text": "Good night"}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=edit, headers=customer.headers).status_code == 200
    uses(api, {StageName.VISION: "vision-2", StageName.TRANSCRIPT: "transcript-2"})
    plan = planned(api, customer, job)
    assert plan["stages"]["transcript"] == {"changed": True, "rerun": False, "reason": "corrected"}
    run(api, plan["rerunJobId"])
    assert text_of(api, customer, job) == "Good night"


@pytest.mark.parametrize("stages", [["transcript"], ["transcript", "vision"]])
def test_a_correction_during_the_rerun_is_kept(
    api: RunningApi, customer: Customer, job: str, stages: list[str]
) -> None:
    rerun_id = planned(api, customer, job, stages=stages)["rerunJobId"]
    edit = {"revision": 0, "segments": [{"index": 0, "text": "Good night"}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=edit, headers=customer.headers).status_code == 200
    run(api, rerun_id, text="Good evening", vision="vision" in stages)
    assert text_of(api, customer, job) == "Good night"
    found = api.client.get("/search", params={"q": "evening"}, headers=customer.headers)
    assert found.json()["data"] == [], "what was not exchanged is not found"


def test_a_rerun_is_refused_by_name(api: RunningApi, customer: Customer, job: str) -> None:
    def refused(job_id: str, **body: Any) -> tuple[int, str]:
        answer = ask(api, customer, job_id, **body)
        return answer.status_code, answer.json()["code"]

    unfinished = created(api, customer)
    assert refused(unfinished) == (409, "RESULTS_NOT_READY")
    api.client.post(f"/jobs/{unfinished}/cancel", headers=customer.headers)
    assert refused(unfinished) == (404, "RESULTS_UNAVAILABLE")
    assert refused(str(uuid.uuid4())) == (404, "NOT_FOUND")
    assert refused(job, stages=[]) == (400, "INVALID_REQUEST")
    assert refused(job, dryRun="yes") == (400, "INVALID_REQUEST")
    held = uuid.UUID(job)
    api.transact(lambda c: set_legal_hold(c, job_table, held, holds=True))
    assert refused(job, stages=["vision"]) == (409, "LEGAL_HOLD")
    api.transact(lambda c: set_legal_hold(c, job_table, held, holds=False))
    api.sql("UPDATE jobs SET cleaned_at = now() WHERE id = :job", job=job)
    assert refused(job, stages=["vision"]) == (410, "SOURCE_GONE")
    assert planned(api, customer, job)["rerunJobId"] is None, "nothing changed, nothing to read"


def test_erasing_a_job_erases_its_reruns(api: RunningApi, customer: Customer, job: str) -> None:
    old = planned(api, customer, job, stages=["transcript"])["rerunJobId"]
    run(api, old, text="Good evening", vision=False)
    running = planned(api, customer, job, stages=["vision"])["rerunJobId"]
    answer = api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
    assert answer.status_code == 202
    for each in (old, running):
        assert "erasedAt" in read(api, customer, f"/jobs/{each}")
    assert api.client.get(f"/jobs/{old}/transcript", headers=customer.headers).status_code == 404


def test_the_media_is_kept_while_it_is_read_again(
    api: RunningApi, customer: Customer, job: str
) -> None:
    rerun_id = planned(api, customer, job, stages=["vision"])["rerunJobId"]
    at_once = Retention(source_seconds=0, most_source_seconds=0)

    def due() -> set[str]:
        rounds = api.transact(lambda c: list_due_rounds(c, at_once, limit=1000))
        return {str(each) for each in rounds}

    assert job not in due()
    run(api, rerun_id)
    assert job in due()


def test_what_a_rerun_wrote_late_is_removed_with_the_media(
    api: RunningApi, customer: Customer, job: str
) -> None:
    api.sql("UPDATE jobs SET completed_at = now() - interval '1 day' WHERE id = :job", job=job)
    rerun_id = planned(api, customer, job, stages=["vision"])["rerunJobId"]
    api.client.post(f"/jobs/{rerun_id}/cancel", headers=customer.headers)
    api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
    own = api.transact(lambda c: find_round(c, uuid.UUID(job)))
    assert own is not None
    assert own.tasks_may_run
    assert own.next_at is not None


def test_a_rerun_of_less_credits_than_it_costs_is_not_made(
    api: RunningApi, customer: Customer, job: str
) -> None:
    api.sql("UPDATE jobs SET billable_seconds = 360000 WHERE id = :job", job=job)
    answer = ask(api, customer, job, stages=["vision"])
    assert (answer.status_code, answer.json()["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert len(api.client.get("/jobs", headers=customer.headers).json()["data"]) == 1
