"""Two cuts compared over the API: what changed, as JSON, as files and as a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import opentimelineio as otio
import pytest

from pipelines.codec import decode, encode
from pipelines.types import TranscriptResult
from storage.results import TrackTranscript
from tests.pipelines.vision.test_comparison import A, Shots, prints
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, TRANSCRIPT, complete, created, fail, track
from tests.serve_app.running_api import Customer, RunningApi

CONTRACT = Contract(DOCUMENT)
B = [A[0], A[3], (9, 0, 50), (5, 25, 75), A[5], A[6], A[1]]


def said(text: str) -> TrackTranscript:
    found = decode(TranscriptResult, TRANSCRIPT.encode())
    [segment] = found.segments
    words = tuple(replace(segment.words[0], text=word) for word in text.split())
    changed = replace(found, segments=(replace(segment, text=text, words=words),))
    return replace(track(0), document=encode(changed).decode())


def cut(
    api: RunningApi,
    customer: Customer,
    shots: Shots,
    text: str,
    title: str,
    *,
    titled: int = 0,
    times: tuple[float, float] | None = None,
) -> str:
    """A completed job of a cut; its first shot, or that of ``titled``, has a title."""
    job_id, found = created(api, customer), prints(shots)
    line = SCENES[0]["onScreenText"][0] | {"text": title}
    if times is not None:
        line |= {"startTime": times[0], "endTime": times[1]}
    scenes: list[dict[str, Any]] = [
        SCENES[0]
        | {
            "index": at,
            "startTime": int(start) / 1000,
            "endTime": int(end) / 1000,
            "onScreenText": [line] if at == titled else [],
        }
        for at, (start, end) in enumerate(zip(found.starts_ms, found.ends_ms, strict=True))
    ]
    complete(api, job_id, [said(text)], [], scenes=scenes, fingerprints=found.to_bytes())
    return job_id


@pytest.fixture
def cuts(api: RunningApi, customer: Customer) -> tuple[str, str]:
    first = cut(api, customer, A, "Good morning to all", "Chapter 1")
    return first, cut(api, customer, B, "Good evening to all", "Chapter 2")


def ask(
    api: RunningApi, customer: Customer, before: str, after: str, query: str = ""
) -> httpx.Response:
    body = {"from": before, "to": after}
    return api.client.post(f"/comparisons{query}", json=body, headers=customer.headers)


def test_what_changed_between_two_cuts_is_answered(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    answer = ask(api, customer, *cuts)
    assert answer.status_code == 200, answer.text
    CONTRACT.check("compareJobs", answer)
    found = answer.json()["data"]
    assert found["counts"] == {"kept": 4, "retimed": 1, "moved": 1, "removed": 1, "added": 1}
    assert not found["identical"]
    [moved] = [each for each in found["shots"] if each["change"] == "moved"]
    assert (moved["from"]["sceneIndex"], moved["to"]["sceneIndex"]) == (1, 6)
    assert "/thumbnails/" in moved["to"]["stillUrl"]
    [retimed] = [each for each in found["shots"] if each["change"] == "retimed"]
    assert (retimed["headSeconds"], retimed["tailSeconds"]) == (1.0, 0.0)
    [words] = found["words"]
    assert (words["from"]["text"], words["to"]["text"]) == ("morning", "evening")
    [title] = found["titles"]
    assert (title["from"]["text"], title["to"]["text"]) == ("Chapter 1", "Chapter 2")


def test_a_title_of_a_shot_that_was_cut_into_is_compared_in_its_part(
    api: RunningApi, customer: Customer
) -> None:
    parted = [*A[:4], (5, 0, 40), (9, 0, 50), (5, 40, 60), *A[5:]]
    start = sum(count for _, _, count in A[:4]) / 25
    first = cut(api, customer, A, "Good", "One", titled=4, times=(start + 2, start + 4))
    second = cut(api, customer, parted, "Good", "One", titled=6, times=(start + 4, start + 6))
    found = ask(api, customer, first, second).json()["data"]
    assert [each["change"] for each in found["shots"] if each["change"] != "kept"] == ["added"]
    assert found["titles"] == []


def test_a_job_compared_with_itself_has_no_changes(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    found = ask(api, customer, cuts[0], cuts[0]).json()["data"]
    assert found["identical"]
    assert found["counts"]["kept"] == len(found["shots"]) == len(A)


def test_the_second_cut_is_written_for_editing_programs(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    edl = ask(api, customer, *cuts, "?format=edl")
    assert edl.headers["content-type"].startswith("text/plain")
    assert "COMMENT: moved: from 00:00:02.000 to 00:00:05.000" in edl.text
    assert "COMMENT: added" in edl.text
    assert "removed: 00:00:05.000 to 00:00:06.600" in edl.text
    timeline = otio.adapters.read_from_string(
        ask(api, customer, *cuts, "?format=otio").text, "otio_json"
    )
    assert [clip.name for clip in timeline.find_clips()] == [
        "kept", "kept", "added", "retimed", "kept", "kept", "moved",
    ]  # fmt: skip


def test_titles_of_a_cut_without_scenes_are_those_of_the_whole_video(
    api: RunningApi, customer: Customer
) -> None:
    def uncut(title: str) -> str:
        job_id, shown = created(api, customer), prints(A[:1])
        line = SCENES[0]["onScreenText"][0] | {"text": title, "startTime": 0.0, "endTime": 2.0}
        whole = SCENES[0] | {"startTime": 0.0, "endTime": 2.0, "onScreenText": [line]}
        complete(
            api, job_id, [track(0)], [], scenes=[], overview=whole, fingerprints=shown.to_bytes()
        )
        return job_id

    found = ask(api, customer, uncut("Chapter 1"), uncut("Chapter 2")).json()["data"]
    assert not found["identical"]
    assert [(each["from"]["text"], each["to"]["text"]) for each in found["titles"]] == [
        ("Chapter 1", "Chapter 2")
    ]
    cut_once = cut(api, customer, A[:2], "Good", "Chapter 1", times=(0.0, 2.0))
    assert ask(api, customer, uncut("Chapter 1"), cut_once).json()["data"]["titles"] == []


@pytest.mark.parametrize("limit", ["SAMPLES", "SHOTS", "WORDS"])
def test_what_is_too_long_to_be_compared_is_named(
    api: RunningApi,
    customer: Customer,
    cuts: tuple[str, str],
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"serve_app.exports.comparisons.MOST_{limit}", 1)
    answer = ask(api, customer, *cuts)
    CONTRACT.check("compareJobs", answer)
    assert (answer.status_code, answer.json()["param"]) == (400, "from")


@pytest.mark.parametrize("side", ["from", "to"])
def test_what_cannot_be_compared_is_named(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], side: str
) -> None:
    def refused(other: str) -> httpx.Response:
        pair = (other, cuts[0]) if side == "from" else (cuts[0], other)
        return ask(api, customer, *pair)

    foreign = cut(api, api.customer(), A[:1], "Good", "One")
    older = created(api, customer)
    complete(api, older, [track(0)], [])
    failed = created(api, customer)
    fail(api, failed)
    erased = cut(api, customer, A[:1], "Good", "One")
    api.client.post(f"/jobs/{erased}/erase", headers=customer.headers)
    waiting = created(api, customer)
    for job_id, status, code in (
        (foreign, 404, "NOT_FOUND"),
        ("none", 404, "NOT_FOUND"),
        (erased, 404, "NOT_FOUND"),
        (older, 404, "RESULTS_UNAVAILABLE"),
        (failed, 404, "RESULTS_UNAVAILABLE"),
        (waiting, 409, "RESULTS_NOT_READY"),
    ):
        answer = refused(job_id)
        CONTRACT.check("compareJobs", answer)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["param"] == side
    api.client.post(f"/jobs/{waiting}/cancel", headers=customer.headers)


def test_a_page_shows_both_cuts_side_by_side(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    with signed_in(api, customer) as browser:
        shown = browser.get(f"/dashboard/compare?from={cuts[0]}&to={cuts[1]}")
        assert shown.status_code == 200
        for part in ("Moved", "Removed", "Added", "Retimed", "<del>morning</del>"):
            assert part in shown.text
        assert shown.text.count("/thumbnails/") == 6
        assert browser.get("/dashboard/compare").status_code == 200
        assert browser.get(f"/dashboard/compare?from={cuts[0]}&to=none").status_code == 404
