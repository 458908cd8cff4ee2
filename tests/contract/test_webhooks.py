"""What is sent to receivers: body, headers, signatures; and what the test endpoint answers.

What becomes of the deliveries of job events stands in ``test_deliveries``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serve_app.webhooks.signing import signature
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.contract.spec_rows import covers, rows_of
from tests.contract.webhook_receiver import URL, receiving
from tests.webhooks.receivers import Delivered, Receiver, status

CALLBACK = "https://customer.example.com/hook"


@pytest.fixture(scope="module")
def endpoint(api: ContractApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with receiving(tmp_path_factory.mktemp("receiver")) as receiver:
        yield receiver


@pytest.fixture
def receiver(endpoint: Receiver) -> Receiver:
    endpoint.script = status(204)
    endpoint.received.clear()
    return endpoint


def send_test(caller: Caller) -> dict[str, Any]:
    result: dict[str, Any] = shown(caller.post("/webhooks/test", {"url": URL}))
    return result


def secret_of(caller: Caller) -> str:
    path = "/webhooks/secret"
    return str(shown(caller.api.client.get(path, headers=caller.sign_in()))["secret"])


def rotate(caller: Caller) -> str:
    path = "/webhooks/secret/rotate"
    return str(shown(caller.api.client.post(path, headers=caller.sign_in()))["secret"])


def signed(secret: str, event: Delivered, body: bytes | None = None) -> str:
    """The signature entry by the specification's words, with nothing of the service's code."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    head = f"{event.headers['webhook-id']}.{event.headers['webhook-timestamp']}."
    content = head.encode() + (event.body if body is None else body)
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


@covers("event-kinds/webhook.test")
def test_the_test_endpoint_sends_a_test_event(caller: Caller, receiver: Receiver) -> None:
    send_test(caller)
    [event] = receiver.received
    body = json.loads(event.body)
    assert event.path == "/hook"
    assert body["type"] == "webhook.test"
    assert set(body) == {"type", "timestamp", "data"}


@covers("objects/webhook-test-result", "delivery/1")
@pytest.mark.parametrize("code", [200, 201, 204, 299])
def test_a_2xx_acknowledges(caller: Caller, receiver: Receiver, code: int) -> None:
    receiver.script = status(code)
    result = send_test(caller)
    assert set(result) == {"delivered", "statusCode", "latencyMs"}
    assert (result["delivered"], result["statusCode"]) == (True, code)
    assert 0 <= result["latencyMs"] < 10_000


@covers("notes/test-webhook-failure")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (500, "http_5xx: 500"),
        (503, "http_5xx: 503"),
        (404, "http_4xx: 404"),
        (410, "http_4xx: 410"),
        (302, "redirect"),
    ],
)
def test_another_status_is_a_failure_of_its_class(
    caller: Caller, receiver: Receiver, code: int, error: str
) -> None:
    receiver.script = status(code, location=URL) if code == 302 else status(code)
    result = send_test(caller)
    assert set(result) == {"delivered", "statusCode", "latencyMs", "error"}
    assert (result["delivered"], result["statusCode"], result["error"]) == (False, code, error)
    assert len(receiver.received) == 1  # a redirect is not followed


@covers("notes/test-webhook-failure")
def test_without_an_answer_the_status_is_0(caller: Caller) -> None:
    answer = caller.post("/webhooks/test", {"url": "https://127.0.0.2/hook"})
    result = shown(answer)
    assert (result["delivered"], result["statusCode"]) == (False, 0)
    assert result["error"] in {"connection", "tls"}


@covers("delivery/1", "limits/webhook-acknowledgement-deadline")
def test_after_10_seconds_it_is_a_timeout(caller: Caller, receiver: Receiver) -> None:
    receiver.script = lambda _delivered, _connection: receiver.leaving.wait(15)
    result = send_test(caller)
    assert (result["delivered"], result["statusCode"], result["error"]) == (False, 0, "timeout")
    assert 9_900 <= result["latencyMs"] <= 11_500


@covers("webhook-request/Content-Type")
def test_events_are_json(caller: Caller, receiver: Receiver) -> None:
    send_test(caller)
    assert receiver.last.headers["content-type"] == "application/json"
    json.loads(receiver.last.body)


@covers("webhook-request/User-Agent")
def test_the_user_agent_names_the_service_and_its_version(
    caller: Caller, receiver: Receiver
) -> None:
    send_test(caller)
    agent = receiver.last.headers["user-agent"]
    assert re.fullmatch(r"[A-Za-z]+-Webhooks/\d+(\.\d+)*", agent)


@covers("webhook-headers/webhook-timestamp", "limits/webhook-signature-timestamp-tolerance")
def test_the_timestamp_is_when_it_was_signed(caller: Caller, receiver: Receiver) -> None:
    """Far within the five minutes that receivers allow; part of what is signed."""
    send_test(caller)
    event = receiver.last
    assert abs(int(event.headers["webhook-timestamp"]) - time.time()) <= 5
    secret = secret_of(caller)
    later = str(int(event.headers["webhook-timestamp"]) + 1)
    changed = Delivered(event.path, event.headers | {"webhook-timestamp": later}, event.body)
    assert event.signatures == [signed(secret, event)] != [signed(secret, changed)]


@covers("webhook-headers/webhook-signature", "versioning/5")
def test_the_signature_is_a_list_of_v1_entries(caller: Caller, receiver: Receiver) -> None:
    secret_of(caller)
    for count in (1, 2):
        send_test(caller)
        assert len(receiver.last.signatures) == count
        assert all(
            re.fullmatch(r"v1,[A-Za-z0-9+/]{43}=", entry) for entry in receiver.last.signatures
        )
        assert re.search(r"/\d", receiver.last.headers["user-agent"])
        rotate(caller)


@covers("signature/1")
def test_a_signature_is_hmac_sha256_over_id_timestamp_and_raw_body(
    caller: Caller, receiver: Receiver
) -> None:
    send_test(caller)
    assert receiver.last.signatures == [signed(secret_of(caller), receiver.last)]
    vector = signature(  # of the Standard Webhooks specification
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert vector == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@covers("signature/2")
def test_the_key_is_the_decoded_part_after_the_prefix(caller: Caller, receiver: Receiver) -> None:
    secret = secret_of(caller)
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) >= 24
    send_test(caller)
    assert receiver.last.signatures == [signed(secret, receiver.last)]
    undecoded = base64.b64encode(secret.removeprefix("whsec_").encode()).decode()
    assert receiver.last.signatures != [signed(undecoded, receiver.last)]


@covers("signature/3")
def test_a_receiver_can_verify_the_raw_body_and_tells_a_changed_one(
    caller: Caller, receiver: Receiver
) -> None:
    secret = secret_of(caller)
    send_test(caller)
    event = receiver.last
    assert hmac.compare_digest(event.signatures[0], signed(secret, event))
    rewritten = json.dumps(json.loads(event.body), indent=1).encode()
    assert signed(secret, event, rewritten) not in event.signatures


@covers("signature/4", "limits/previous-webhook-secret-validity-after-rotation")
@covers("dashboard/POST-webhooks-secret-rotate")
def test_after_a_rotation_both_secrets_sign_for_24_hours(
    caller: Caller, receiver: Receiver
) -> None:
    old = secret_of(caller)
    new = rotate(caller)
    assert secret_of(caller) == new != old

    def signers(age: str) -> list[str]:
        """The secrets that sign a delivery so long after the rotation."""
        caller.api.sql(
            "UPDATE signing_secrets SET rotated_at = now() - CAST(:age AS interval)"
            " WHERE account_id = :id",
            age=age,
            id=caller.customer.account_id,
        )
        send_test(caller)
        names = {signed(secret, receiver.last): secret for secret in (old, new)}
        return [names[entry] for entry in receiver.last.signatures]

    assert signers("0 seconds") == [new, old]
    assert signers("23 hours 59 minutes") == [new, old]
    assert signers("24 hours 1 second") == [new]


@covers("signature/4")
def test_each_account_has_one_secret_of_its_own(caller: Caller, receiver: Receiver) -> None:
    stranger = caller.api.caller()
    assert secret_of(caller) == secret_of(caller) != secret_of(stranger)
    send_test(stranger)
    assert receiver.last.signatures == [signed(secret_of(stranger), receiver.last)]


@pytest.fixture(scope="module")
def written(api: ContractApi, runner: RunnerSide) -> tuple[Caller, dict[str, Any]]:
    """The event of a completed job, to the byte as it will be sent."""
    caller = api.caller()
    job_id = runner.complete(caller, callbackUrl=CALLBACK, metadata={"assetId": "a-1"})
    statement = "SELECT body, url FROM webhook_events WHERE id = :id"
    [(body, url)] = api.sql(statement, id=f"{job_id}:job.completed")
    assert url == CALLBACK
    return caller, json.loads(bytes(body))


@covers("webhook-body/type")
def test_type_is_the_event_kind(written: tuple[Caller, dict[str, Any]]) -> None:
    assert written[1]["type"] == "job.completed"
    assert written[1]["type"] in rows_of("event-kinds")


@covers("webhook-body/timestamp")
def test_timestamp_is_iso_8601_in_utc(written: tuple[Caller, dict[str, Any]]) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written[1]["timestamp"])


@covers("webhook-body/data")
def test_data_is_the_job_object_without_its_results(
    written: tuple[Caller, dict[str, Any]],
) -> None:
    caller, event = written
    assert event["data"] == caller.job(event["data"]["jobId"])
    assert "processedData" not in event["data"]
    named = {"jobId", "state", "processingMode", "stages", "metadata", "links"}
    assert named <= set(event["data"])
    assert event["data"]["state"] == "completed"


@covers("webhook-body/links.self")
def test_links_self_is_the_jobs_absolute_url(written: tuple[Caller, dict[str, Any]]) -> None:
    caller, event = written
    headers = {"X-API-Key": caller.customer.key}
    link = event["data"]["links"]["self"]
    job = httpx.get(link, headers=headers, trust_env=False).json()["data"]
    assert job["jobId"] == event["data"]["jobId"]


@covers("notes/event-links")
def test_results_are_fetched_by_the_events_links_and_metadata_is_there(
    written: tuple[Caller, dict[str, Any]],
) -> None:
    caller, event = written
    headers = {"X-API-Key": caller.customer.key}
    for name in ("transcript", "scenes"):
        link = event["data"]["links"][name]
        assert httpx.get(link, headers=headers, trust_env=False).status_code == 200
        assert httpx.get(link, trust_env=False).status_code == 401
    assert event["data"]["metadata"] == {"assetId": "a-1"}
