"""Results of a backfill as jobs: read as any others, brought in once, charged nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from pipelines.backfill.output import begin_output
from pipelines.collection import BucketAccess, place_at
from serve_app.cli.backfill import import_backfill
from serve_app.cli.main import app as vas
from storage import keys
from tests.pipelines.backfill.backfill_outcomes import completed, failed, sound_only
from tests.serve_app.running_api import Customer, RunningApi

STILL = bytes(cv2.imencode(".jpg", np.full((9, 16, 3), 90, np.uint8))[1])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of two parts: three items completed, one failed, one with impossible metadata."""
    folder = tmp_path_factory.mktemp("out")
    place = place_at(str(folder), BucketAccess())
    parts = [
        [completed("full", metadata=json.dumps({"asset": 5})), failed("half")],
        [sound_only("sound"), completed("odd", metadata=json.dumps({"a key": 1}))],
    ]
    output = begin_output(place, {"profile": "packaged"})
    for part in parts:
        for outcome in part:
            for seen in (*outcome.scenes, outcome.overview):
                if seen is not None:
                    for key in seen.still_names(""):
                        place.files.write_bytes(key, STILL)
        output.commit(part)
    return folder


def account_name(api: RunningApi, customer: Customer) -> str:
    account = api.transact(lambda it: keys.get_account(it, str(customer.account_id)))
    return account.name


def shown(api: RunningApi, customer: Customer, path: str) -> Any:
    return api.client.get(path, headers=customer.headers).raise_for_status().json()


def listed(api: RunningApi, customer: Customer) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = shown(api, customer, "/jobs")["data"]
    return jobs


def test_items_become_completed_jobs_and_a_second_import_adds_nothing(
    api: RunningApi, customer: Customer, out: Path
) -> None:
    name = account_name(api, customer)
    counts = {"account": name, "failedItems": 1, "refusedItems": 1}
    first = import_backfill(api.settings, str(out), name)
    assert first == counts | {"imported": 2, "thereBefore": 0}
    before = listed(api, customer)
    assert import_backfill(api.settings, str(out), name) == counts | {
        "imported": 0,
        "thereBefore": 2,
    }
    assert listed(api, customer) == before
    assert {job["metadata"]["backfillItem"] for job in before} == {"full", "sound"}


@pytest.fixture
def imported(api: RunningApi, customer: Customer, out: Path) -> dict[str, dict[str, Any]]:
    """The account's jobs by item."""
    import_backfill(api.settings, str(out), account_name(api, customer))
    return {job["metadata"]["backfillItem"]: job for job in listed(api, customer)}


def test_a_job_shows_what_the_item_was(
    api: RunningApi, customer: Customer, imported: dict[str, dict[str, Any]]
) -> None:
    job = shown(api, customer, f"/jobs/{imported['full']['jobId']}")["data"]
    assert (job["state"], job["status"], job["progress"]) == ("completed", "VISION_COMPLETED", 1)
    assert (job["fileName"], job["durationSeconds"]) == ("full.mp4", 4.0)
    assert (job["chargedCents"], job["audioTrackNames"]) == (0, ["camera", "boom"])
    assert job["metadata"] == {"backfillItem": "full", "asset": 5}
    codes = [warning["code"] for warning in job["warnings"]]
    assert codes == ["AUDIO_DAMAGED", "TIMELINE_REPAIRED"]
    assert {stage["status"] for stage in job["stages"].values()} == {"completed"}
    assert len(job["processedData"]["scenes"]) == 2
    sound = shown(api, customer, f"/jobs/{imported['sound']['jobId']}")["data"]
    assert sound["stages"]["vision"]["reason"] == "audio_only_input"


def test_scenes_stills_and_transcripts_are_served(
    api: RunningApi, customer: Customer, imported: dict[str, dict[str, Any]]
) -> None:
    path = f"/jobs/{imported['full']['jobId']}"
    seen = shown(api, customer, f"{path}/scenes")["data"]
    scenes, overview = seen["scenes"], seen["overview"]
    assert (overview["endTime"], overview["description"]) == (2, "A street.")
    assert api.client.get(overview["thumbnailUrl"]).content == STILL
    assert [(scene["startTime"], scene["endTime"]) for scene in scenes] == [(0, 2), (2, 4)]
    assert api.client.get(scenes[1]["thumbnailUrl"]).content == STILL
    transcript = shown(api, customer, f"{path}/transcript?track=0")["data"]
    assert transcript["text"] == "good morning\nhello"
    assert transcript["segments"][0]["words"][1] == {
        "text": "morning",
        "startTime": 0.32,
        "endTime": 0.7,
        "confidence": 0.8,
        "speaker": "speaker_0",
    }
    vtt = api.client.get(f"{path}/transcript?track=0&format=vtt", headers=customer.headers)
    assert vtt.text.startswith("WEBVTT")
    tracks = shown(api, customer, f"{path}/audioTracks")["data"]["tracks"]
    assert [track.get("errorCode") for track in tracks] == [None, "TRANSCRIPT_FAILED"]


def test_nothing_is_charged_or_counted(
    api: RunningApi, customer: Customer, imported: dict[str, dict[str, Any]]
) -> None:
    assert len(imported) == 2
    quota = shown(api, customer, "/quota")["data"]["api"]
    read = (quota["balanceCents"], quota["heldCents"], quota["monthUsageSeconds"])
    assert read == (1000, 0, 0)


def test_accounts_have_jobs_of_their_own(api: RunningApi, customer: Customer, out: Path) -> None:
    other = api.customer()
    for each in (customer, other):
        import_backfill(api.settings, str(out), account_name(api, each))
    ids = [{job["jobId"] for job in listed(api, each)} for each in (customer, other)]
    assert len(ids[0]) == len(ids[1]) == 2
    assert not ids[0] & ids[1]


def test_the_command_prints_what_it_did(
    api: RunningApi, customer: Customer, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    monkeypatch.setenv("VAS_DATABASE_URL", api.settings.database_url or "")
    monkeypatch.setenv("VAS_SECRET_KEY", api.settings.secret_key.get_secret_value())
    name = account_name(api, customer)
    arguments = ["backfill", "import", str(out), "--account", name, "--json"]
    said = CliRunner().invoke(vas, [*arguments, "--data", str(api.settings.data_dir)])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["imported"] == 2
    missing = [*arguments[:2], str(out / "nowhere"), *arguments[3:]]
    assert "There is no backfill at" in str(CliRunner().invoke(vas, missing).exception)
    unknown = [*arguments[:4], uuid.uuid4().hex]
    assert isinstance(CliRunner().invoke(vas, unknown).exception, keys.AccountNotFoundError)
