"""Receipts: signed, of what the machine made, and every altered byte is found."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import uuid
from pathlib import Path

import httpx
import pytest
from securesystemslib.dsse import Envelope as DsseEnvelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._key import SSlibKey
from typer.testing import CliRunner

from models.registry import with_others
from models.weights import RemoteModel
from pipelines.execution.chain import FreeRun
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import ClipFile, SourceMedia
from serve_app.cli.main import app
from serve_app.cli.receipts import read_statement
from serve_app.crypto import ReceiptSigner, canonical
from serve_app.deployment.data import SECRET_KEY_FILE, own_secret_key
from serve_app.results.receipts import KEYS_PATH
from serve_app.results.scenes import scenes_of
from serve_app.work.stage_work import Recorder, ingest_receipt
from storage import jobs
from storage.types import StageName
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, complete, created, stored, track
from tests.serve_app.running_api import Customer, RunningApi

CONTRACT = Contract(DOCUMENT)
MEDIA = b"the media, as it came"


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
    receipts = {
        StageName.INGEST: ingest_receipt(media, media, IngestConfig(), store, FreeRun()),
        StageName.VISION: recorder.vision(scenes_of(json.dumps(stored([*SCENES, SCENES[0]])))),
        StageName.TRANSCRIPT: recorder.transcript([track(0)]),
    }
    complete(api, job_id, [track(0)], [], overview=SCENES[0], receipts=receipts)
    return job_id


def test_a_receipt_names_the_models_of_other_servers(api: RunningApi, customer: Customer) -> None:
    job_id = uuid.UUID(created(api, customer))
    found = api.transact(lambda connection: jobs.find_job(connection, job_id))
    assert found is not None
    model = RemoteModel("http://gpu:8000/v1", "qwen3-vl")
    made = []
    for profile in ("packaged", with_others("packaged", {"describe_scenes": model})):
        settings = api.settings.model_copy(update={"model_profile": profile})
        scenes = scenes_of(json.dumps(stored([*SCENES, SCENES[0]])))
        made.append(Recorder(settings, found).vision(scenes))
    packaged, elsewhere = made
    assert elsewhere["settings"] == packaged["settings"] | {"remote.describe_scenes": "qwen3-vl"}
    unlike = {name for name in packaged["models"]
              if packaged["models"][name] != elsewhere["models"][name]}  # fmt: skip
    assert unlike == {"describe_scenes"}
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)  # no other waits here


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
    given = ("--media", files["media"])
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
    envelope = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    text = canonical(envelope)
    key = api.context.receipts.public_key()
    keys = {key["kid"]: key["x"]}
    missed = []
    for place in range(len(text)):
        altered = bytearray(text)
        altered[place] ^= 1
        missed += [place] if read_statement(bytes(altered), keys) is not None else []
    assert missed == []
    statement = read_statement(text, keys)
    assert statement is not None
    assert statement["predicate"]["jobId"] == job


def test_a_public_tool_verifies_a_receipt_and_reads_its_statement(
    api: RunningApi, customer: Customer, job: str
) -> None:
    """securesystemslib, which the tools of in-toto and TUF are built on."""
    found = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    published = httpx.get(f"{api.root}{KEYS_PATH}", trust_env=False).json()["keys"][0]
    public = base64.urlsafe_b64decode(published["x"] + "=").hex()
    key = SSlibKey(published["kid"], "ed25519", "ed25519", {"public": public})
    envelope = DsseEnvelope.from_dict(found)
    assert [*envelope.verify([key], 1)] == [published["kid"]]
    statement = json.loads(envelope.payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    names = [each["name"] for each in statement["subject"]]
    assert names == ["clip.mp4", "scenes", "transcript 0"]
    assert statement["subject"][0]["digest"] == {"sha256": hashlib.sha256(MEDIA).hexdigest()}
    envelope.payload = envelope.payload.replace(b"clip.mp4", b"clap.mp4")
    with pytest.raises(VerificationError):
        envelope.verify([key], 1)


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
    "a lone surrogate": b'{"segments": {"a": "\\ud800"}, "payload": "\\ud800"}',
    "deep nesting": b'{"segments": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nesting that can be read": b'{"segments": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a list": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_receipt_is_not_signed(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path, what: str
) -> None:
    [path] = written(tmp_path, receipt=UNREADABLE[what]).values()
    assert verified(api, path) == {"signature": "differs"}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_result_without_a_canonical_text_differs(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path, what: str
) -> None:
    receipt = read(api, customer, f"/jobs/{job}/receipt")
    files = written(tmp_path, receipt=receipt, result=UNREADABLE[what])
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
    envelope = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    other = ReceiptSigner(b"the secret of another service")
    payload = base64.b64decode(envelope["payload"])
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(other.seal(envelope["payloadType"], payload)))
    assert verified(api, path) == {"signature": "differs"}


def test_a_receipt_of_a_former_key_is_verified_by_a_copy_of_that_key(
    api: RunningApi, customer: Customer, job: str, tmp_path: Path
) -> None:
    """Another secret key makes another key of receipts: who keeps the former one verifies on."""
    envelope = json.loads(read(api, customer, f"/jobs/{job}/receipt"))["data"]
    former = ReceiptSigner(b"the secret that the service had before")
    sealed = former.seal(envelope["payloadType"], base64.b64decode(envelope["payload"]))
    files = written(tmp_path, receipt=json.dumps(sealed).encode(), media=MEDIA)
    both = {"keys": [former.public_key(), api.context.receipts.public_key()]}
    files |= written(tmp_path, keys=json.dumps(both).encode())
    command = ["verify", files["receipt"], "--media", files["media"], "--json", "--keys"]
    kept = CliRunner().invoke(app, [*map(str, command), str(files["keys"])])
    assert json.loads(kept.stdout)["verified"]
    assert verified(api, files["receipt"]) == {"signature": "differs"}


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
    signer = ReceiptSigner(secret.encode())
    statement = {"subject": [], "predicateType": "urn:a", "predicate": {"a": 1}}
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(signer.seal("application/json", canonical(statement))))
    ended = CliRunner().invoke(app, ["verify", str(path), "--data", str(tmp_path), "--json"])
    assert json.loads(ended.stdout)["verified"]
