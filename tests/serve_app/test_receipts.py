"""Receipts: signed, of what the machine made, and every altered byte is found."""

from __future__ import annotations

import json
import stat
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.codec import decode
from pipelines.execution.chain import FreeRun
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, SourceMedia
from pipelines.types import ShardDigest, ShardKind, TrackOutcome, TranscriptResult
from serve_app.cli.main import app
from serve_app.cli.receipts import is_signed, read_receipt
from serve_app.crypto import ReceiptSigner, canonical
from serve_app.deployment.data import SECRET_KEY_FILE, own_secret_key
from serve_app.results.receipts import KEYS_PATH
from serve_app.results.scenes import scenes_of
from serve_app.worker.receipts import Recorder, ingest_receipt
from storage import jobs
from storage.types import StageName
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, TRANSCRIPT, complete, created, stored, track
from tests.serve_app.running_api import Customer, RunningApi

CONTRACT = Contract(DOCUMENT)
MEDIA = b"the media, as it came"
SHARD = ShardDigest(ShardKind.PICTURES, 0, 0, 12_480, "9f" * 32)


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    """A completed job, with what a runner records of it."""
    job_id = created(api, customer)
    store, key = api.context.objects, f"jobs/{job_id}/source/media"
    store.write_bytes(key, MEDIA)
    media = SourceMedia((ClipFile(key, "clip.mp4"),))
    found = api.transact(lambda connection: jobs.find_job(connection, uuid.UUID(job_id)))
    assert found is not None
    recorder = Recorder(api.settings.model_copy(update={"model_profile": "packaged"}), found)
    said = decode(TranscriptResult, TRANSCRIPT.encode())
    outcome = TrackOutcome(0, "Mic 0", replace(said, shards=(replace(SHARD, track=0),)))
    receipts = {
        StageName.INGEST: ingest_receipt(media, media, IngestConfig(), store, FreeRun()),
        StageName.VISION: recorder.vision(
            scenes_of(json.dumps(stored([*SCENES, SCENES[0]]))), [SHARD]
        ),
        StageName.TRANSCRIPT: recorder.transcript([outcome], [track(0)]),
    }
    complete(api, job_id, [track(0)], [], overview=SCENES[0], receipts=receipts)
    return job_id


def read(api: RunningApi, customer: Customer, path: str) -> bytes:
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    return answer.content


def verified(api: RunningApi, *arguments: object) -> dict[str, str]:
    """Each check and its outcome; exit status and ``verified`` agree with them."""
    command = ["verify", *map(str, arguments), "--keys", f"{api.root}{KEYS_PATH}", "--json"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code in {0, 1}, ended.output
    found = json.loads(ended.stdout)
    assert found["verified"] == (ended.exit_code == 0)
    outcomes = {each["what"]: each["outcome"] for each in found["checks"]}
    assert found["verified"] == ("differs" not in outcomes.values())
    return outcomes


def written(folder: Path, **contents: bytes) -> dict[str, Path]:
    paths = {name: folder / name for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    return paths


def test_a_receipt_agrees_with_the_media_and_with_what_the_api_answers(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    answer = api.client.get(f"/jobs/{job}/receipt", headers=customer.headers)
    CONTRACT.check("getReceipt", answer)
    files = written(
        tmp_path,
        receipt=answer.content,
        media=MEDIA,
        scenes=read(api, customer, f"/jobs/{job}/scenes"),
        transcript=read(api, customer, f"/jobs/{job}/transcript"),
    )
    given = ("--media", files["media"], "--sample", 0)
    results = ("--result", files["scenes"], "--result", files["transcript"])
    assert verified(api, files["receipt"], *given, *results) == {
        "signature": "same",
        "media media": "same",
        "result scenes": "same",
        "result transcript": "same",
    }
    assert read(api, customer, f"/jobs/{job}/receipt")[:-50] == answer.content[:-50]


def test_every_altered_byte_of_a_receipt_is_found(
    api: RunningApi, customer: Customer, job: str
) -> None:
    signed = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    text = canonical(signed)
    key = api.context.receipts.public_key()
    keys = {key["kid"]: key["x"]}
    missed = []
    for place in range(len(text)):
        altered = bytearray(text)
        altered[place] ^= 1
        found = read_receipt(bytes(altered))
        missed += [place] if found is not None and is_signed(found, keys) else []
    assert missed == []
    found = read_receipt(text)
    assert found is not None
    assert is_signed(found, keys)


@pytest.mark.parametrize("what", ["media", "scenes", "transcript"])
def test_an_altered_byte_of_media_or_result_is_found(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path, what: str
) -> None:
    receipt = tmp_path / "receipt"
    receipt.write_bytes(read(api, customer, f"/jobs/{job}/receipt"))
    content = MEDIA if what == "media" else read(api, customer, f"/jobs/{job}/{what}")
    places = {"media": 3, "scenes": content.find(b"woman"), "transcript": content.find(b"orning")}
    altered = bytearray(content)
    altered[places[what]] ^= 1
    [path] = written(tmp_path, **{what: bytes(altered)}).values()
    option = "--media" if what == "media" else "--result"
    kind = "media" if what == "media" else "result"
    assert verified(api, receipt, option, path) == {
        "signature": "same",
        f"{kind} {what}": "differs",
    }


UNREADABLE = {
    "a lone surrogate": b'{"receipt": {"a": "\\ud800"}, "signature": %s}',
    "deep nesting": b'{"receipt": ' + b"[" * 100_000 + b"]" * 100_000 + b', "signature": %s}',
    "nesting that can be read": b'{"receipt": ' + b"[" * 900 + b"]" * 900 + b', "signature": %s}',
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_receipt_without_a_canonical_text_is_not_signed(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path, what: str
) -> None:
    signed = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    signature = json.dumps(signed["signature"]).encode()
    [path] = written(tmp_path, receipt=UNREADABLE[what].replace(b"%s", signature)).values()
    assert verified(api, path) == {"signature": "differs"}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_result_without_a_canonical_text_differs(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path, what: str
) -> None:
    receipt = read(api, customer, f"/jobs/{job}/receipt")
    result = UNREADABLE[what].replace(b"%s", b"0").replace(b"receipt", b"segments")
    files = written(tmp_path, receipt=receipt, result=result)
    outcomes = verified(api, files["receipt"], "--result", files["result"])
    assert outcomes["result result"] == "differs"


def test_fields_of_a_result_that_are_not_signed_are_named(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    answer = json.loads(read(api, customer, f"/jobs/{job}/transcript"))
    answer["data"]["speakers"][0]["label"] = "The President"
    answer["data"]["approvedBy"] = "somebody"
    receipt = read(api, customer, f"/jobs/{job}/receipt")
    files = written(tmp_path, receipt=receipt, transcript=json.dumps(answer).encode())
    command = ["verify", files["receipt"], "--result", files["transcript"]]
    keys = ["--keys", f"{api.root}{KEYS_PATH}"]
    ended = CliRunner().invoke(app, [*map(str, command), *keys, "--json"])
    check = json.loads(ended.stdout)["checks"][1]
    assert check["outcome"] == "same"
    assert {"approvedBy", "label"} <= set(check["unsigned"].split(", "))
    assert "text" not in check["unsigned"]
    shown = CliRunner().invoke(app, [*map(str, command), *keys]).stdout
    assert "unsigned" in shown
    assert "approvedBy" in shown


def test_a_receipt_of_another_service_is_refused(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    signed = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    other = ReceiptSigner(b"the secret of another service")
    signature = {
        "keyId": other.public_key()["kid"],
        "value": other.sign(canonical(signed["receipt"])),
    }
    signed["signature"] |= signature
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(signed))
    assert verified(api, path) == {"signature": "differs"}


def test_a_correction_leaves_the_machines_transcript_as_the_receipt_has_it(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    body = {"revision": 0, "segments": [{"index": 0, "text": "Good evening."}]}
    path = f"/jobs/{job}/transcript"
    assert api.client.patch(path, json=body, headers=customer.headers).is_success
    files = written(
        tmp_path,
        receipt=read(api, customer, f"/jobs/{job}/receipt"),
        now=read(api, customer, path),
        first=read(api, customer, f"{path}?revision=0"),
    )
    results = ("--result", files["now"], "--result", files["first"])
    outcomes = verified(api, files["receipt"], *results)
    assert (outcomes["result now"], outcomes["result first"]) == ("differs", "same")


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [("waiting", 409, "RESULTS_NOT_READY"), ("older", 404, "RESULTS_UNAVAILABLE")],
)
def test_there_is_no_receipt_before_the_end_or_of_earlier_versions(
    api: RunningApi, customer: Customer, state: str, status: int, code: str
) -> None:
    job_id = created(api, customer)
    if state == "older":
        complete(api, job_id, [track(0)], [])
    answer = api.client.get(f"/jobs/{job_id}/receipt", headers=customer.headers)
    if state == "waiting":
        api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    CONTRACT.check("getReceipt", answer)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_an_erased_job_has_no_receipt(api: RunningApi, customer: Customer, job: str) -> None:
    assert api.client.post(f"/jobs/{job}/erase", headers=customer.headers).status_code == 202
    answer = api.client.get(f"/jobs/{job}/receipt", headers=customer.headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_the_key_is_that_of_the_data_folder_which_is_ours_alone(tmp_path: Path) -> None:
    secret = own_secret_key(tmp_path)
    assert stat.S_IMODE((tmp_path / SECRET_KEY_FILE).stat().st_mode) == 0o600
    signed: Any = {"receipt": {"a": 1.0}, "signature": {"algorithm": "Ed25519"}}
    signer = ReceiptSigner(secret.encode())
    signed["signature"] |= {"keyId": signer.public_key()["kid"], "value": signer.sign(b'{"a":1}')}
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(signed))
    ended = CliRunner().invoke(app, ["verify", str(path), "--data", str(tmp_path), "--json"])
    assert json.loads(ended.stdout)["verified"]
