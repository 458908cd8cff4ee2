"""Deepgram's and AssemblyAI's own SDKs, unchanged but for their address and their key."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import assemblyai as aai
import httpx
import pytest
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment

from pipelines.types import Speaker, TranscriptResult, TranscriptSegment, TranscriptWord
from serve_app.api.downloads import Downloads, Limit
from serve_app.protocols import answers, base
from serve_app.protocols.answers import Spoken, paragraphs
from storage import keys
from tests.contract import runner_side
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.tables import every

FOOTAGE = b"footage"
BAD_URL = "https://example.com/bad.mp3"
CALLBACK = "https://example.com/hook"


def deepgram(api: ContractApi, key: str) -> DeepgramClient:
    root = api.root
    places = DeepgramClientEnvironment(base=root, production=root, agent=root, agent_rest=root)
    return DeepgramClient(api_key=key, environment=places, max_retries=0, timeout=60)


def listen(client: DeepgramClient, **options: Any) -> Any:
    return client.listen.v1.media.transcribe_file(request=FOOTAGE, **options)


def assemblyai(api: ContractApi, key: str, **options: Any) -> aai.Transcriber:
    settings = aai.Settings(api_key=key, base_url=api.root, polling_interval=0.1)
    client = aai.Client(settings=settings)
    return aai.Transcriber(client=client, config=aai.TranscriptionConfig(**options))


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


def only_job(caller: Caller) -> Any:
    [job] = caller.get("/jobs").json()["data"]
    return job


def native(caller: Caller, job_id: str) -> Any:
    return caller.get(f"/jobs/{job_id}/transcript").json()["data"]


# Deepgram.


def test_deepgram_has_the_words_times_and_speakers_of_the_native_transcript(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    api.transact(
        lambda c: keys.set_retention(
            c, caller.customer.account_id, source_seconds=60, result_days=None
        )
    )
    with runner.completing():
        found = listen(
            deepgram(api, caller.customer.key),
            model="nova-3", smart_format=True, diarize=True, utterances=True, paragraphs=True,
            detect_language=True, keyterm=["Anna Weber", "Kubernetes"], sentiment=True, tag="talk",
        )  # fmt: skip
    said = native(caller, only_job(caller)["jobId"])
    [segment] = said["segments"]
    [channel] = found.results.channels
    [alternative] = channel.alternatives
    assert alternative.transcript == said["text"]
    assert channel.detected_language == said["language"]
    assert [
        (each.punctuated_word, each.start, each.end, each.speaker) for each in alternative.words
    ] == [(each["text"], each["startTime"], each["endTime"], 0) for each in segment["words"]]
    [utterance] = found.results.utterances
    assert (utterance.start, utterance.end) == (
        segment["words"][0]["startTime"],
        segment["words"][-1]["endTime"],
    )
    [paragraph] = alternative.paragraphs.paragraphs
    assert [each.text for each in paragraph.sentences] == [segment["text"]]
    assert found.metadata.duration == 65.5
    assert found.metadata.tags == ["talk"]
    assert [each["parameter"] for each in found.metadata.warnings] == ["sentiment"]
    assert "keyterms" not in only_job(caller)


def test_a_deepgram_job_is_erased_after_its_answer_and_cancelled_without_a_client(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    with runner.completing():
        listen(deepgram(api, caller.customer.key))
    wait_until(lambda: "erasedAt" in only_job(caller))
    other = api.caller()
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{api.root}/v1/listen",
            content=FOOTAGE,
            headers={"Authorization": f"Token {other.customer.key}"},
            timeout=httpx.Timeout(2.0),
            trust_env=False,
        )
    wait_until(lambda: only_job(other)["state"] == "cancelled")


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_deepgram_callback_gets_the_answer(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    with runner.completing():
        accepted = listen(deepgram(api, caller.customer.key), callback=CALLBACK, punctuate=True)
        wait_until(lambda: only_job(caller)["state"] == "completed")
    job = only_job(caller)
    assert accepted.request_id == job["jobId"]
    [(body,)] = api.sql("SELECT body FROM webhook_events WHERE job_id = :id", id=job["jobId"])
    told = json.loads(bytes(body))
    assert told["metadata"]["request_id"] == job["jobId"]
    [alternative] = told["results"]["channels"][0]["alternatives"]
    assert alternative["transcript"] == native(caller, job["jobId"])["text"]


def _wrong_deepgram(client: DeepgramClient, case: str) -> Any:
    media = client.listen.v1.media
    options: dict[str, dict[str, Any]] = {
        "redact": {"redact": "pci"},
        "language": {"language": "xx-nowhere"},
        "method": {"callback": CALLBACK, "callback_method": "put"},
        "pause": {"utterances": True, "utt_split": -1},
    }
    if case == "file":
        return media.transcribe_url(url=BAD_URL)
    if case == "url":
        return media.transcribe_url(url="nowhere")
    if case == "empty":
        return media.transcribe_file(request=b"")
    return media.transcribe_file(request=FOOTAGE, **options[case])


@every("case", ["redact", "language", "method", "pause", "file", "url", "empty"])
def test_what_is_wrong_raises_deepgram_s_own_exception(
    api: ContractApi, runner: RunnerSide, case: str
) -> None:
    caller = api.caller()
    with runner.completing(), pytest.raises(ApiError) as error:
        _wrong_deepgram(deepgram(api, caller.customer.key), case)
    assert error.value.status_code == 400
    assert error.value.body["err_code"] == "Bad Request"
    assert error.value.body["err_msg"]
    assert error.value.body["request_id"]


def test_deepgram_s_keys_credits_and_limits_are_the_native_ones(
    api: ContractApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(key: str) -> Any:
        with pytest.raises(ApiError) as error:
            listen(deepgram(api, key))
        return error.value.status_code, error.value.body["err_code"]

    assert refusal("vas_live_wrong") == (401, "INVALID_AUTH")
    poor = api.caller(credits_cents=0)
    assert refusal(poor.customer.key) == (402, "ASR_PAYMENT_REQUIRED")
    monkeypatch.setattr(base, "WAITING", Downloads(Limit(account=0, replica=0, workers=1)))
    assert refusal(api.caller().customer.key) == (429, "TOO_MANY_REQUESTS")


# AssemblyAI.


def test_assemblyai_has_the_words_times_and_speakers_of_the_native_transcript(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    transcriber = assemblyai(
        api, caller.customer.key, speaker_labels=True, keyterms_prompt=["Anna Weber"]
    )
    with runner.completing():
        found = transcriber.transcribe(FOOTAGE)
    assert found.status == aai.TranscriptStatus.completed, found.error
    job = only_job(caller)
    said = native(caller, job["jobId"])
    [segment] = said["segments"]
    assert (found.id, found.text) == (job["jobId"], said["text"])
    assert found.words
    assert found.utterances
    milliseconds: Any = lambda name: [round(each[name] * 1000) for each in segment["words"]]  # noqa: E731
    assert [each.text for each in found.words] == [each["text"] for each in segment["words"]]
    assert [each.start for each in found.words] == milliseconds("startTime")
    assert [each.end for each in found.words] == milliseconds("endTime")
    assert [(each.speaker, each.text) for each in found.utterances] == [("A", segment["text"])]
    assert [each.text for each in found.get_sentences()] == [segment["text"]]
    assert [each.text for each in found.get_paragraphs()] == [segment["text"]]
    for form, made in (
        ("srt", found.export_subtitles_srt()),
        ("vtt", found.export_subtitles_vtt()),
    ):
        assert made == caller.get(f"/jobs/{job['jobId']}/transcript", format=form).text
    assert {each.speaker for each in assemblyai_plain(api, caller, runner).words or ()} == {None}


def assemblyai_plain(api: ContractApi, caller: Caller, runner: RunnerSide) -> aai.Transcript:
    """Return a transcript of an address, for which no speakers were asked for."""
    with runner.completing():
        found = assemblyai(api, caller.customer.key).transcribe("https://example.com/talk.mp3")
    assert found.utterances is None
    return found


def test_an_assemblyai_upload_waits_for_its_options_and_is_used_once(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    transcriber = assemblyai(api, caller.customer.key)
    address = transcriber.upload_file(FOOTAGE)
    assert only_job(caller)["state"] == "awaiting_upload"
    stranger = assemblyai(api, api.caller().customer.key)
    with pytest.raises(aai.TranscriptError, match="no such job"):
        stranger.submit(address)
    submitted = transcriber.submit(address)
    assert submitted.id == only_job(caller)["jobId"]
    assert only_job(caller)["state"] == "queued"
    with pytest.raises(aai.TranscriptError, match="was used"):
        transcriber.submit(address)
    with pytest.raises(aai.TranscriptError, match="no address"):
        transcriber.submit(f"{address[:-1]}x")
    with runner.completing():
        assert submitted.wait_for_completion().text == "track 1"


def test_an_assemblyai_transcript_is_deleted_and_its_webhook_told(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    transcriber = assemblyai(api, caller.customer.key, webhook_url=CALLBACK)
    with runner.completing():
        found = transcriber.transcribe(FOOTAGE)
    [(body,)] = api.sql("SELECT body FROM webhook_events WHERE job_id = :id", id=found.id)
    assert json.loads(bytes(body)) == {"transcript_id": found.id, "status": "completed"}
    deleted = aai.Transcript.delete_by_id  # the SDK's own name for it
    settings = aai.Settings(api_key=caller.customer.key, base_url=api.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aai.Client, "_default", aai.Client(settings=settings))
        patch.setattr(aai, "settings", settings)
        assert deleted(str(found.id)).text == "Deleted by user."
    assert "erasedAt" in only_job(caller)


def test_an_assemblyai_client_cancels_by_deleting(api: ContractApi, caller: Caller) -> None:
    submitted = assemblyai(api, caller.customer.key).submit("https://example.com/talk.mp3")
    assert submitted.status == aai.TranscriptStatus.queued
    answer = httpx.delete(
        f"{api.root}/v2/transcript/{submitted.id}",
        headers={"Authorization": caller.customer.key},
        trust_env=False,
    )
    assert answer.status_code == 200
    assert only_job(caller)["state"] == "cancelled"


def test_a_stranger_finds_no_transcript_of_another_account(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    with runner.completing():
        found = assemblyai(api, caller.customer.key).transcribe(FOOTAGE)
    headers = {"Authorization": api.caller().customer.key}
    url = f"{api.root}/v2/transcript/{found.id}"
    for form in ("", "/sentences", "/paragraphs", "/srt"):
        answer = httpx.get(f"{url}{form}", headers=headers, trust_env=False)
        assert answer.status_code == 404, form
    assert httpx.delete(url, headers=headers, trust_env=False).status_code == 404
    assert "erasedAt" not in only_job(caller)


WRONG_ASSEMBLYAI: dict[str, tuple[dict[str, Any], str]] = {
    "a summary": ({"auto_chapters": True}, "auto_chapters"),
    "a policy": (
        {
            "redact_pii": True,
            "redact_pii_policies": [
                aai.PIIRedactionPolicy.person_name,
                aai.PIIRedactionPolicy.blood_type,
            ],
        },
        "blood_type",
    ),
    "a language": ({"language_code": "xx"}, "language"),
    "a webhook": ({"webhook_url": "http://127.0.0.1/"}, "callbackUrl|callback|HTTPS"),
}


@every("case", WRONG_ASSEMBLYAI)
def test_what_is_wrong_raises_assemblyai_s_own_exception(api: ContractApi, case: str) -> None:
    options, named = WRONG_ASSEMBLYAI[case]
    caller = api.caller()
    with pytest.raises(aai.TranscriptError, match=named):
        assemblyai(api, caller.customer.key, **options).submit("https://example.com/talk.mp3")
    assert caller.get("/jobs").json()["data"] == []


def test_assemblyai_s_keys_credits_and_failures_are_the_native_ones(
    api: ContractApi, runner: RunnerSide
) -> None:
    with pytest.raises(aai.TranscriptError, match="credential"):
        assemblyai(api, "vas_live_wrong").submit("https://example.com/talk.mp3")
    with pytest.raises(aai.TranscriptError, match="credits"):
        assemblyai(api, api.caller(credits_cents=0).customer.key).transcribe(FOOTAGE)
    with runner.completing():
        failed = assemblyai(api, api.caller().customer.key).transcribe(BAD_URL)
    assert failed.status == aai.TranscriptStatus.error
    assert failed.error


def test_assemblyai_s_clients_meet_the_native_limits(api: ContractApi) -> None:
    caller = api.caller()
    account = caller.customer.account_id
    api.sql("UPDATE accounts SET max_active_jobs = 1 WHERE id = :id", id=account)
    transcriber = assemblyai(api, caller.customer.key)
    transcriber.submit("https://example.com/talk.mp3")
    with pytest.raises(aai.TranscriptError, match="unfinished") as error:
        transcriber.submit("https://example.com/talk.mp3")
    assert error.value.status_code == 429


def test_a_redacted_transcript_is_completed_once_it_hides_what_was_asked(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    policies = [aai.PIIRedactionPolicy.email_address, aai.PIIRedactionPolicy.person_name]
    transcriber = assemblyai(
        api, caller.customer.key, redact_pii=True, redact_pii_policies=policies
    )
    submitted = transcriber.submit(transcriber.upload_file(FOOTAGE))
    [(source,)] = api.sql("SELECT source FROM jobs WHERE id = :id", id=submitted.id)
    assert source["redact"] == ["email", "name"]
    api.sql("UPDATE jobs SET redact_after = now() WHERE id = :id", id=submitted.id)
    with runner.completing():
        wait_until(lambda: only_job(caller)["state"] == "completed")
    url = f"{api.root}/v2/transcript/{submitted.id}"
    headers = {"Authorization": caller.customer.key}
    shown = httpx.get(url, headers=headers, trust_env=False).json()
    assert (shown["status"], shown["text"]) == ("processing", None)
    assert httpx.get(f"{url}/srt", headers=headers, trust_env=False).status_code == 400


def test_media_without_sound_is_an_error_of_each_protocol(
    api: ContractApi, caller: Caller, runner: RunnerSide
) -> None:
    key = caller.customer.key
    asked = listen(deepgram(api, key), callback=CALLBACK)
    submitted = assemblyai(api, key, webhook_url=CALLBACK).submit("https://example.com/mute.mp4")
    for job_id in (str(asked.request_id), str(submitted.id)):
        runner.ingest(runner.lease(job_id), runner_side.SILENT)
        assert caller.job(job_id)["state"] == "completed"
    bodies = "SELECT body FROM webhook_events WHERE job_id = :id"
    told = [
        json.loads(bytes(api.sql(bodies, id=each)[0][0]))
        for each in (asked.request_id, submitted.id)
    ]
    assert told[0]["err_code"] == "NO_AUDIO"
    assert told[1]["status"] == "error"
    assert submitted.wait_for_completion().status == aai.TranscriptStatus.error


# What both are made from.


def _segment(index: int, start: int, speaker: str, *words: str) -> TranscriptSegment:
    made = tuple(
        TranscriptWord(word, start + 300 * n, start + 300 * n + 200, 0.9, speaker)
        for n, word in enumerate(words)
    )
    return TranscriptSegment(index, start, made[-1].end_ms, " ".join(words), speaker, 0.9, made)


@pytest.fixture
def talk() -> TranscriptResult:
    said = (
        _segment(0, 0, "speaker_0", "Good", "morning."),
        _segment(1, 600, "speaker_0", "Well,", "yes."),
        _segment(2, 5000, "speaker_0", "Later."),
        _segment(3, 5300, "speaker_1", "Indeed!"),
    )
    speakers = (Speaker("speaker_0", "Ann", 1.4), Speaker("speaker_1", "Ben", 0.2))
    return TranscriptResult("en", speakers, said)


def test_paragraphs_end_at_pauses_and_where_the_speaker_changes(talk: TranscriptResult) -> None:
    assert [[each.index for each in made] for made in paragraphs(talk.segments)] == [
        [0, 1],
        [2],
        [3],
    ]


def _deepgram_of(talk: TranscriptResult, **asked: Any) -> Any:
    source = SimpleNamespace(protocol=asked)
    job: Any = SimpleNamespace(id="job", created_at=datetime(2026, 1, 1, tzinfo=UTC), source=source)
    return answers.deepgram(job, Spoken(6.0, "en", talk))


def test_assemblyai_names_channels_and_speakers_by_letters(talk: TranscriptResult) -> None:
    def letters(**asked: Any) -> dict[str, str]:
        job: Any = SimpleNamespace(source=SimpleNamespace(protocol=asked))
        return answers.letters_of(job, Spoken(6.0, "en", talk))

    for option in ("speaker_labels", "multichannel", "dual_channel"):
        assert letters(**{option: True}) == {"speaker_0": "A", "speaker_1": "B"}
    assert letters() == {}


def test_deepgram_s_options_shape_its_answer(talk: TranscriptResult) -> None:
    plain = _deepgram_of(talk)["results"]["channels"][0]["alternatives"][0]
    assert plain["transcript"] == "good morning well yes later indeed"
    assert plain["words"][2] == {"word": "well", "start": 0.6, "end": 0.8, "confidence": 0.9}
    apart = _deepgram_of(talk, multichannel=True, punctuate=True, utterances=True)
    channels = [each["alternatives"][0]["transcript"] for each in apart["results"]["channels"]]
    assert channels == ["Good morning. Well, yes. Later.", "Indeed!"]
    assert [each["channel"] for each in apart["results"]["utterances"]] == [0, 0, 1]
    turns = _deepgram_of(talk, diarize=True, utterances=True)["results"]["utterances"]
    assert [(each["speaker"], each["transcript"]) for each in turns] == [
        (0, "good morning well yes"),
        (0, "later"),
        (1, "indeed"),
    ]
    whole = _deepgram_of(talk, utterances=True, utt_split=10)["results"]["utterances"]
    assert len(whole) == 1


@pytest.fixture(autouse=True)
def _fresh_rates(api: ContractApi) -> None:
    api.sql("DELETE FROM rate_limits")
