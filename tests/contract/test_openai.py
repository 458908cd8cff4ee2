"""OpenAI's own SDK, unchanged but for its address and its key."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from models.backends.remote import AnsweringServer
from models.contracts import AudioChunk
from models.weights import RemoteModel
from serve_app.api.downloads import Downloads, Limit
from serve_app.protocols import base
from serve_app.protocols import openai as protocol
from serve_app.protocols.openai import key_terms
from storage import keys
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.tables import every

FILE = ("talk.mp3", b"footage", "audio/mpeg")


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


@pytest.fixture
def client(api: ContractApi, caller: Caller) -> Iterator[OpenAI]:
    with sdk(api, caller.customer.key) as made:
        yield made


def sdk(api: ContractApi, key: str, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{api.root}/v1", api_key=key, max_retries=0, **options)


def spoken(client: OpenAI, response_format: Any = "json", **options: Any) -> Any:
    return client.audio.transcriptions.create(
        file=FILE, model="whisper-1", response_format=response_format, **options
    )


def until(caller: Caller, holds: Callable[[Any], bool]) -> Any:
    """Return the caller's only job as soon as something holds of it."""
    deadline = time.monotonic() + 30
    while not holds(job := caller.get("/jobs").json()["data"][0]):
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
    return job


def test_each_format_has_the_words_times_and_speakers_of_the_native_transcript(
    api: ContractApi, caller: Caller, client: OpenAI, runner: RunnerSide
) -> None:
    keep = lambda c: keys.set_retention(  # noqa: E731
        c, caller.customer.account_id, source_seconds=60, result_days=None
    )
    api.transact(keep)
    with runner.completing():
        plain = spoken(client, prompt="Kubernetes, Anna Weber", language="en")
        [job] = caller.get("/jobs").json()["data"]
        native = caller.get(f"/jobs/{job['jobId']}/transcript").json()["data"]
        [segment] = native["segments"]
        assert plain.text == native["text"] == segment["text"]
        assert spoken(client, "text") == f"{native['text']}\n"
        for form in ("srt", "vtt"):
            captions = caller.get(f"/jobs/{job['jobId']}/transcript", format=form).text
            assert spoken(client, form) == captions
        verbose = spoken(client, "verbose_json", timestamp_granularities=["word", "segment"])
        diarized = spoken(client, "diarized_json")
    [found] = verbose.segments
    assert (found.start, found.end, found.text) == (
        segment["startTime"], segment["endTime"], segment["text"],
    )  # fmt: skip
    assert [(each.word, each.start, each.end) for each in verbose.words] == [
        (each["text"], each["startTime"], each["endTime"]) for each in segment["words"]
    ]
    assert verbose.duration == 65.5
    [turn] = diarized.segments
    assert (turn.speaker, turn.text) == (native["speakers"][0]["label"], segment["text"])


SOUND = "data:audio/wav;base64,Zm9vdGFnZQ=="


@pytest.fixture(scope="module")
def voiced(api: ContractApi) -> Iterator[ContractApi]:
    """A replica whose operator lets voices be recognised, of the same database."""
    with ContractApi(api.settings.model_copy(update={"voices": True})) as running:
        yield running


@pytest.mark.parametrize("streamed", [False, True], ids=["waiting", "streaming"])
def test_known_speakers_are_named_in_their_request_alone(
    voiced: ContractApi, runner: RunnerSide, streamed: bool
) -> None:
    caller = voiced.caller()
    known = {"known_speaker_names": ["Anna"], "known_speaker_references": [SOUND]}
    with sdk(voiced, caller.customer.key) as client, runner.completing():
        found = spoken(client, "diarized_json", extra_body=known, stream=streamed)
        if streamed:
            found = [each for each in found if each.type == "transcript.text.segment"]
        segments = found if streamed else found.segments
        assert [each.speaker for each in segments] == ["Anna"]
    listed: list[Any] = []
    deadline = time.monotonic() + 30
    while not listed or not all("erasedAt" in each for each in listed):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        listed = caller.get("/jobs").json()["data"]
    assert len(listed) == 2
    assert caller.get("/voices").json()["data"] == []


def test_a_reference_without_speech_is_refused(voiced: ContractApi, runner: RunnerSide) -> None:
    known = {"known_speaker_names": ["Anna"], "known_speaker_references": ["nothing"]}
    with (
        sdk(voiced, voiced.caller().customer.key) as client,
        pytest.raises(openai.BadRequestError) as error,
    ):
        spoken(client, extra_body=known)
    assert error.value.param == "known_speaker_references"


def test_a_job_is_an_ordinary_one_and_is_erased_after_its_answer(
    caller: Caller, client: OpenAI, runner: RunnerSide
) -> None:
    with runner.completing():
        spoken(client)
    job = until(caller, lambda job: "erasedAt" in job)  # once the answer is sent
    assert (job["state"], job["processingMode"]) == ("completed", "transcript")
    assert job["chargedCents"] > 0


def test_streams_and_the_async_client_are_read_to_their_end(
    api: ContractApi, caller: Caller, client: OpenAI, runner: RunnerSide
) -> None:
    with runner.completing():
        events = [*spoken(client, stream=True)]
        assert [each.type for each in events] == ["transcript.text.delta", "transcript.text.done"]
        assert events[0].delta == events[1].text == "track 1"
        diarized = [*spoken(client, "diarized_json", stream=True)]
        assert [each.type for each in diarized][1] == "transcript.text.segment"

        async def heard() -> str:
            root = f"{api.root}/v1"
            async with AsyncOpenAI(base_url=root, api_key=caller.customer.key) as made:
                found = await made.audio.transcriptions.create(file=FILE, model="whisper-1")
                return found.text

        assert asyncio.run(heard()) == "track 1"
        assert client.audio.translations.create(file=FILE, model="whisper-1").text == "track 1"


def test_the_service_is_another_one_s_remote_transcriber(
    api: ContractApi, caller: Caller, runner: RunnerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", caller.customer.key)
    model = RemoteModel(f"{api.root}/v1", "whisper-1", "OTHER_KEY")
    chunk = AudioChunk(np.zeros(160_000, np.float32), ("Anna Weber",), language="en")
    with runner.completing():
        [heard] = AnsweringServer(model).transcribe([chunk])
    assert " ".join(each.text for each in heard.words) == "track 1"
    assert heard.language == "en"
    assert all(0 <= each.start_seconds <= each.end_seconds <= 10 for each in heard.words)


def test_models_are_listed_and_read(client: OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [*protocol.MODELS]
    assert client.models.retrieve("whisper-1").id == "whisper-1"


WRONG: dict[str, tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = {
    "an unknown model": ({"model": "gpt-9"}, openai.NotFoundError, "model"),
    "an empty file": ({"file": ("a.mp3", b"")}, openai.BadRequestError, "file"),
    "a program": ({"file": ("a.exe", b"MZ")}, openai.APIStatusError, "fileName"),
    "a language": ({"language": "xx-nowhere"}, openai.BadRequestError, "language"),
    "a temperature": ({"temperature": 2}, openai.BadRequestError, "temperature"),
    "known speakers": (
        {
            "extra_body": {
                "known_speaker_names": ["Anna"],
                "known_speaker_references": ["data:audio/wav;base64,Zm9v"],
            }
        },
        openai.BadRequestError,
        "known_speaker_names",
    ),
    "a name without its sound": (
        {"extra_body": {"known_speaker_names": ["Anna"]}},
        openai.BadRequestError,
        "known_speaker_references",
    ),
    "a broken file": ({"file": ("bad.mp3", b"x")}, openai.BadRequestError, "file"),
}


@every("case", WRONG)
def test_what_is_wrong_raises_the_sdk_s_own_exception(
    api: ContractApi, runner: RunnerSide, case: str
) -> None:
    options, raised, param = WRONG[case]
    caller = api.caller()
    given = {"file": FILE, "model": "whisper-1"} | options
    with (
        runner.completing(),
        sdk(api, caller.customer.key) as client,
        pytest.raises(openai.APIStatusError) as error,
    ):
        client.audio.transcriptions.create(**given)
    assert isinstance(error.value, raised), error.value
    assert error.value.param == param, error.value.body
    assert error.value.code


def test_keys_credits_and_limits_are_those_of_the_native_interface(
    api: ContractApi, runner: RunnerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sdk(api, "vas_live_wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    poor = api.caller(credits_cents=0)
    with sdk(api, poor.customer.key) as client, pytest.raises(openai.APIStatusError) as error:
        spoken(client)
    assert (error.value.status_code, error.value.code) == (402, "INSUFFICIENT_CREDITS")
    limits = Downloads(Limit(account=0, replica=0, workers=1))
    monkeypatch.setattr(base, "WAITING", limits)
    with (
        sdk(api, api.caller().customer.key) as client,
        pytest.raises(openai.RateLimitError) as refused,
    ):
        spoken(client)
    assert int(refused.value.response.headers["retry-after"]) > 0


def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    api: ContractApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_FORM_BYTES", 100 - api.settings.standard_max_bytes)
    caller = api.caller()
    with sdk(api, caller.customer.key) as client, pytest.raises(openai.APIStatusError) as error:
        spoken(client)
    assert (error.value.status_code, error.value.code) == (413, "FILE_TOO_LARGE")
    assert caller.get("/jobs").json()["data"] == []


@pytest.mark.parametrize("streamed", [False, True], ids=["waiting", "streaming"])
def test_a_client_that_goes_away_cancels_its_job(caller: Caller, streamed: bool) -> None:
    data = {"model": "whisper-1"} | ({"stream": "true"} if streamed else {})
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{caller.api.root}/v1/audio/transcriptions",
            data=data,
            files={"file": FILE},
            headers={"Authorization": f"Bearer {caller.customer.key}"},
            timeout=httpx.Timeout(2.0),
            trust_env=False,
        )
    until(caller, lambda job: job["state"] == "cancelled")


def test_one_that_waits_too_long_names_its_job_which_goes_on(
    api: ContractApi, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(base, "HEARTBEAT_SECONDS", 0.1)
    with sdk(api, caller.customer.key) as client, pytest.raises(openai.APIStatusError) as error:
        spoken(client)
    assert error.value.status_code == 503
    [job] = caller.get("/jobs").json()["data"]
    body: Any = error.value.body
    assert (body["jobId"], job["state"]) == (job["jobId"], "queued")


def test_many_waiting_requests_leave_reads_alone(api: ContractApi, runner: RunnerSide) -> None:
    callers = [api.caller() for _ in range(4)]
    answers: list[str] = []

    def wait(caller: Caller) -> None:
        with sdk(api, caller.customer.key) as client:
            answers.append(spoken(client).text)

    threads = [threading.Thread(target=wait, args=(callers[n % 4],)) for n in range(40)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while sum(len(each.get("/jobs").json()["data"]) for each in callers) < len(threads):
        assert time.monotonic() < deadline
        api.sql("DELETE FROM rate_limits")
        time.sleep(0.2)
    job = callers[0].get("/jobs").json()["data"][0]
    assert callers[0].job(job["jobId"])["state"] in {"awaiting_upload", "queued"}
    with runner.completing():
        for thread in threads:
            thread.join(60)
    assert answers == ["track 1"] * len(threads)


def test_a_prompt_becomes_key_terms() -> None:
    assert key_terms("Kubernetes, Anna Weber\nDALL·E 3") == ["Kubernetes", "Anna Weber", "DALL·E 3"]
    sentence = "The talk is about the new H100 cards that Jensen Huang showed in Taipei."
    assert key_terms(sentence) == ["H100", "Jensen", "Huang", "Taipei"]
    assert key_terms("") == []
