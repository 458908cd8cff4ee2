"""Captions by the rules of a house, and what of them is left to a person."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.codec import encode
from pipelines.types import Speaker, TranscriptResult, TranscriptSegment
from serve_app.errors import ErrorCode
from storage.results import TrackTranscript
from tests.pipelines.speech.test_caption_rules import SPEAKERS, spoken
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi

HOUSES = ("netflix", "bbc", "ebu", "ted", "youtube")


def transcript_of(segments: list[TranscriptSegment], speakers: list[Speaker]) -> TrackTranscript:
    result = TranscriptResult("en", tuple(speakers), tuple(segments))
    return replace(track(0), document=encode(result).decode())


@pytest.fixture
def calm(api: RunningApi, customer: Customer) -> str:
    job = created(api, customer)
    complete(api, job, [transcript_of(spoken("en"), SPEAKERS)], [])
    return job


@pytest.fixture
def hurried(api: RunningApi, customer: Customer) -> str:
    job = created(api, customer)
    complete(api, job, [transcript_of(spoken("en", 110), SPEAKERS)], [])
    return job


@pytest.mark.parametrize("house", HOUSES)
def test_captions_by_a_houses_rules_leave_nothing_to_mend(
    api: RunningApi, customer: Customer, calm: str, house: str
) -> None:
    path = f"/jobs/{calm}/captions/lint?rules={house}"
    found = api.client.get(path, headers=customer.headers).json()["data"]
    assert (found["rules"], found["jobId"]) == (house, calm)
    assert found["cues"] > 20
    assert not [each for each in found["violations"] if each["severity"] == "violation"]
    assert found["total"] == len(found["violations"])


def test_fast_speech_is_named_with_cue_time_and_limit(
    api: RunningApi, customer: Customer, hurried: str
) -> None:
    path = f"/jobs/{hurried}/captions/lint?rules=netflix"
    found = api.client.get(path, headers=customer.headers).json()["data"]
    first = next(each for each in found["violations"] if each["rule"] == "reading_speed")
    srt = api.client.get(
        f"/jobs/{hurried}/transcript?format=srt&rules=netflix", headers=customer.headers
    ).text
    block = srt.split("\n\n")[first["cue"] - 1].split("\n")
    hours, minutes, seconds = block[1][:12].replace(",", ".").split(":")
    start = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    assert block[0] == str(first["cue"])
    assert start == pytest.approx(first["startTime"])
    assert "columns a second, at most 20" in first["message"]


def test_the_rules_shape_every_caption_file(api: RunningApi, customer: Customer, calm: str) -> None:
    def text(query: str) -> str:
        answer = api.client.get(f"/jobs/{calm}/transcript?{query}", headers=customer.headers)
        assert answer.status_code == 200, answer.text
        return answer.text

    for form in ("srt", "vtt", "ttml", "ebu-tt-d", "ass"):
        assert text(f"format={form}") != text(f"format={form}&rules=bbc")
    wide = max(map(len, text("format=srt&rules=netflix").splitlines()))
    narrow = max(map(len, text("format=srt&rules=bbc&maxLineLength=80").splitlines()))
    assert narrow <= 37 < wide <= 42
    assert "SPEAKER 2: " in text("format=srt&rules=bbc&speakerLabels=true")
    assert "Speaker 2: " in text("format=ass&speakerLabels=true")


def test_files_are_named_by_what_they_are(api: RunningApi, customer: Customer, calm: str) -> None:
    for form, name in (("ass", "clip.ass"), ("ebu-tt-d", "clip.ebu-tt-d.xml")):
        answer = api.client.get(f"/jobs/{calm}/transcript?format={form}", headers=customer.headers)
        assert answer.headers["Content-Disposition"].endswith(f'{name}"')


@pytest.mark.parametrize("path", ["transcript?format=srt&", "captions/lint?"])
def test_a_house_that_there_is_none_of_is_refused_with_those_that_there_are(
    api: RunningApi, customer: Customer, calm: str, path: str
) -> None:
    answer = api.client.get(f"/jobs/{calm}/{path}rules=nobody", headers=customer.headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, ErrorCode.INVALID_REQUEST)
    assert problem["param"] == "rules"
    assert "netflix, bbc, ebu, ted, youtube" in problem["error"]
