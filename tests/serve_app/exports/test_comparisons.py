"""Two cuts compared over the API: what changed, as JSON, as files and as a page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import opentimelineio as otio
import pytest
from threadpoolctl import threadpool_info

from pipelines.across.comparison import compare_shots
from pipelines.codec import decode, encode
from pipelines.types import StageStoppedError, TranscriptResult
from serve_app.client.api import ApiClient, RequestFailedError
from serve_app.exports.comparisons import compared
from serve_app.work.comparing import compare_cuts
from storage.comparisons import MOST_PENDING, WAITED, forget_old
from storage.results import TrackTranscript
from tests.pipelines.vision.test_comparison import A, Shots, prints
from tests.serve_app.beside_jobs import do, make_due
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import SCENES, TRANSCRIPT, complete, created, fail, track
from tests.serve_app.running_api import Customer, RunningApi

CONTRACT = Contract(DOCUMENT)
B = [A[0], A[3], (9, 0, 50), (5, 25, 75), A[5], A[6], A[1]]


def said(spoken: str) -> TrackTranscript:
    found = decode(TranscriptResult, TRANSCRIPT.encode())
    [segment] = found.segments
    words = tuple(replace(segment.words[0], text=word) for word in spoken.split())
    changed = replace(found, segments=(replace(segment, text=spoken, words=words),))
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


@pytest.fixture(autouse=True)
def nothing_waits(api: RunningApi) -> Iterator[None]:
    yield
    api.sql("DELETE FROM work")


@pytest.fixture
def cuts(api: RunningApi, customer: Customer) -> tuple[str, str]:
    first = cut(api, customer, A, "Good morning to all", "Chapter 1")
    return first, cut(api, customer, B, "Good evening to all", "Chapter 2")


def request(api: RunningApi, customer: Customer, before: str, after: str) -> httpx.Response:
    body = {"from": before, "to": after}
    return api.client.post("/comparisons", json=body, headers=customer.headers)


def read(
    api: RunningApi, customer: Customer, comparison_id: str, query: str = ""
) -> httpx.Response:
    answer = api.client.get(f"/comparisons/{comparison_id}{query}", headers=customer.headers)
    CONTRACT.check("getComparison", answer)
    return answer


def at_work(api: RunningApi, times: int = 1) -> None:
    """A runner's maker of comparisons."""
    for _ in range(times):
        do(api, compare_cuts)


def ask(
    api: RunningApi, customer: Customer, before: str, after: str, query: str = ""
) -> httpx.Response:
    """The answer once the comparison is made."""
    requested = request(api, customer, before, after)
    CONTRACT.check("compareJobs", requested)
    assert requested.status_code == 202, requested.text
    at_work(api)
    return read(api, customer, requested.json()["data"]["comparisonId"], query)


def test_what_changed_between_two_cuts_is_answered(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    answer = ask(api, customer, *cuts)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"]["state"] == "completed"
    found = answer.json()["data"]["result"]
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
    found = ask(api, customer, first, second).json()["data"]["result"]
    assert [each["change"] for each in found["shots"] if each["change"] != "kept"] == ["added"]
    assert found["titles"] == []


def test_a_job_compared_with_itself_has_no_changes(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    found = ask(api, customer, cuts[0], cuts[0]).json()["data"]["result"]
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

    found = ask(api, customer, uncut("Chapter 1"), uncut("Chapter 2")).json()["data"]["result"]
    assert not found["identical"]
    assert [(each["from"]["text"], each["to"]["text"]) for each in found["titles"]] == [
        ("Chapter 1", "Chapter 2")
    ]
    cut_once = cut(api, customer, A[:2], "Good", "Chapter 1", times=(0.0, 2.0))
    assert ask(api, customer, uncut("Chapter 1"), cut_once).json()["data"]["result"]["titles"] == []


@pytest.mark.parametrize("limit", ["SAMPLES", "SHOTS", "WORDS"])
def test_what_is_too_long_to_be_compared_is_named(
    api: RunningApi,
    customer: Customer,
    cuts: tuple[str, str],
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"serve_app.exports.comparisons.MOST_{limit}", 1)
    found = ask(api, customer, *cuts).json()["data"]
    assert found["state"] == "failed"
    assert (found["error"]["code"], found["error"]["param"]) == ("INVALID_REQUEST", "from")
    refused = read(api, customer, found["comparisonId"], "?format=edl")
    assert (refused.status_code, refused.json()["param"]) == (400, "from")


@pytest.mark.parametrize("side", ["from", "to"])
def test_what_cannot_be_compared_is_named(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], side: str
) -> None:
    def refused(other: str) -> httpx.Response:
        pair = (other, cuts[0]) if side == "from" else (cuts[0], other)
        return request(api, customer, *pair)

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
        path = f"/dashboard/compare?from={cuts[0]}&to={cuts[1]}"
        waiting = browser.get(path)
        assert "are being compared" in waiting.text
        assert int(waiting.headers["refresh"]) < WAITED.total_seconds()
        at_work(api)
        shown = browser.get(path)
        assert shown.status_code == 200
        assert "refresh" not in shown.headers
        for part in ("Moved", "Removed", "Added", "Retimed", "<del>morning</del>"):
            assert part in shown.text
        assert shown.text.count("/thumbnails/") == 6
        assert browser.get("/dashboard/compare").status_code == 200
        assert browser.get(f"/dashboard/compare?from={cuts[0]}&to=none").status_code == 404


def test_the_client_waits_for_a_comparison_and_has_its_error(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{api.root}/v1/api"
    with ApiClient(address, customer.key, sleep=lambda _: at_work(api)) as client:
        found = client.compare(*cuts)
        assert found["counts"]["moved"] == 1
        assert "COMMENT: moved" in client.compare(*cuts, "edl")
        monkeypatch.setattr("serve_app.exports.comparisons.MOST_SHOTS", 1)
        with pytest.raises(RequestFailedError, match="too long") as failed:
            client.compare(cuts[1], cuts[0])
    assert (failed.value.code, failed.value.param) == ("INVALID_REQUEST", "from")


def test_the_same_results_are_compared_once_and_changed_ones_again(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    first = request(api, customer, *cuts).json()["data"]
    assert read(api, customer, first["comparisonId"]).json()["data"]["state"] == "pending"
    not_ready = read(api, customer, first["comparisonId"], "?format=edl")
    assert (not_ready.status_code, not_ready.json()["code"]) == (409, "RESULTS_NOT_READY")
    at_work(api)
    again = request(api, customer, *cuts).json()["data"]
    assert (again["comparisonId"], again["state"]) == (first["comparisonId"], "completed")
    corrected = {"revision": 0, "segments": [{"index": 0, "text": "Good evening to all"}]}
    edited = api.client.patch(
        f"/jobs/{cuts[0]}/transcript", json=corrected, headers=customer.headers
    )
    assert edited.status_code == 200, edited.text
    found = ask(api, customer, *cuts).json()["data"]
    assert found["comparisonId"] != first["comparisonId"]
    assert found["result"]["words"] == []


def test_nobody_reads_a_comparison_of_another_account_or_of_an_erased_job(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    found = ask(api, customer, *cuts).json()["data"]
    assert read(api, api.customer(), found["comparisonId"]).status_code == 404
    assert read(api, customer, "none").status_code == 404
    api.client.post(f"/jobs/{cuts[0]}/erase", headers=customer.headers)
    assert read(api, customer, found["comparisonId"]).status_code == 404
    assert api.sql("SELECT id FROM comparisons WHERE id = :id", id=found["comparisonId"]) == []


def test_what_nobody_waits_for_any_more_is_not_compared(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    left = request(api, customer, *cuts).json()["data"]["comparisonId"]
    api.sql("UPDATE comparisons SET asked_at = asked_at - interval '3 minutes'")
    at_work(api)
    assert api.sql("SELECT state FROM comparisons WHERE id = :id", id=left) == [("pending",)]
    assert read(api, customer, left).status_code == 404
    at_work(api)
    api.sql("DELETE FROM comparisons")


def test_one_that_is_being_made_stops_once_nobody_waits_for_it(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one whose job is erased meanwhile, whose row is gone with it."""
    left = request(api, customer, *cuts).json()["data"]["comparisonId"]
    stopped = threading.Event()

    def endless(*_: Any) -> None:
        check = _[-1]
        api.sql("UPDATE comparisons SET asked_at = asked_at - interval '3 minutes'")
        try:
            while True:
                check()
                time.sleep(0.01)
        except StageStoppedError:
            stopped.set()
            raise

    monkeypatch.setattr("serve_app.work.comparing.compared", endless)
    at_work(api)
    assert stopped.wait(60)
    assert read(api, customer, left).status_code == 404


def test_a_comparison_that_breaks_is_tried_so_often_and_then_given_up(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = request(api, customer, *cuts).json()["data"]["comparisonId"]

    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("serve_app.work.comparing.compared", broken)
    for _ in range(compare_cuts.attempts or 0):
        assert read(api, customer, left).json()["data"]["state"] == "pending"
        with pytest.raises(MemoryError):
            at_work(api)
        make_due(api)
    found = read(api, customer, left).json()["data"]
    assert (found["state"], found["error"]["code"]) == ("failed", "INTERNAL_ERROR")
    again = request(api, customer, *cuts).json()["data"]
    assert again["comparisonId"] == left


def test_accounts_take_turns_and_wait_for_so_many(
    api: RunningApi, customer: Customer, cuts: tuple[str, str]
) -> None:
    api.sql("DELETE FROM comparisons")
    busy = [cut(api, customer, A[:1], "Good", str(number)) for number in range(3)]
    pairs = [(one, other) for one in busy for other in busy if one != other]
    mine = [request(api, customer, *pair) for pair in pairs[: MOST_PENDING + 1]]
    assert [each.status_code for each in mine] == [202] * MOST_PENDING + [429]
    CONTRACT.check("compareJobs", mine[-1])
    other = api.customer()
    its_job = cut(api, other, A[:1], "Good", "One")
    theirs = request(api, other, its_job, its_job).json()["data"]["comparisonId"]
    at_work(api, times=2)
    assert read(api, other, theirs).json()["data"]["state"] == "completed"
    states = [
        read(api, customer, each.json()["data"]["comparisonId"]).json()["data"]["state"]
        for each in mine[:-1]
    ]
    assert states == ["completed"] + ["pending"] * (MOST_PENDING - 1)
    api.sql("DELETE FROM comparisons")


def test_comparisons_are_kept_for_an_hour_and_so_many_of_an_account(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(api, customer, *cuts).json()["data"]["comparisonId"]
    monkeypatch.setattr("storage.comparisons.MOST_KEPT", 1)
    second = ask(api, customer, cuts[1], cuts[0]).json()["data"]["comparisonId"]
    assert read(api, customer, first).status_code == 404
    api.sql("UPDATE comparisons SET completed_at = completed_at - interval '61 minutes'")
    assert read(api, customer, second).status_code == 404
    api.transact(forget_old)
    assert api.sql("SELECT id FROM comparisons WHERE id = :id", id=second) == []


def test_what_was_made_of_results_that_changed_meanwhile_is_not_stored(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = request(api, customer, *cuts).json()["data"]["comparisonId"]

    def changing(*given: Any) -> Any:
        statement = "UPDATE transcripts SET track_name = track_name WHERE job_id = :id"
        api.sql(statement, id=cuts[0])
        return compared(*given)

    with monkeypatch.context() as patched:
        patched.setattr("serve_app.work.comparing.compared", changing)
        at_work(api)
    assert read(api, customer, left).json()["data"]["state"] == "pending"
    at_work(api)
    assert read(api, customer, left).json()["data"]["state"] == "completed"


def test_a_comparison_takes_one_processor(
    api: RunningApi, customer: Customer, cuts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[int]()

    def noted(*arguments: Any) -> Any:
        found.extend(
            each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"
        )
        return compare_shots(*arguments)

    monkeypatch.setattr("pipelines.across.comparison.compare_shots", noted)
    assert ask(api, customer, *cuts).status_code == 200
    assert found
    assert set(found) == {1}
