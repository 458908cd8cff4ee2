"""Near duplicates across an account: found when a job ends, listed, grouped, and forgotten."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from pipelines.media.audio import print_of
from serve_app.context import AppContext
from serve_app.work import comparing, publishing
from serve_app.work.comparing import KeptSounds, mute_sounds, parts_of_shots, seek_duplicates
from serve_app.work.publishing import Lease
from storage import jobs
from storage.database import Connection, Database
from storage.types import StageName
from storage.work import Held
from tests.pipelines.test_duplicates import melody
from tests.pipelines.vision.test_comparison import A, Shots, prints
from tests.serve_app.beside_jobs import do, step
from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.jobs.test_reruns import LEASE, planned, uses
from tests.serve_app.published_jobs import complete, created, stored, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_redaction import at_work_on

CONTRACT = Contract(DOCUMENT)
OTHERS: Shots = [(seed, 0, 60) for seed in range(20, 26)]


def sounds_of(seed: int, first_second: float = 0.0) -> Mapping[int, bytes]:
    sound = melody(seed)[round(first_second * 16_000) :]
    return {0: print_of([sound]).to_bytes()}


def job_of(
    api: RunningApi,
    customer: Customer,
    shots: Shots,
    sounds: Mapping[int, bytes],
    *,
    look: str = "",
    muted: list[tuple[int, int]] | None = None,
    **body: Any,
) -> str:
    """A job of a video and its sound, as a runner leaves it."""
    job_id, found = created(api, customer, **body), prints(shots, look)
    kept = KeptSounds.of(sounds, muted or ())
    complete(api, job_id, [track(0)], [], fingerprints=found.to_bytes(), sounds=kept)
    return job_id


def compare_all(api: RunningApi) -> None:
    """A runner's comparer, in a loop of its own."""

    async def compare(context: AppContext) -> None:
        while await step(context, seek_duplicates):
            pass

    at_work_on(api, compare)


def ask(api: RunningApi, customer: Customer, job_id: str, query: str = "") -> httpx.Response:
    answer = api.client.get(f"/jobs/{job_id}/duplicates{query}", headers=customer.headers)
    CONTRACT.check("listDuplicates", answer)
    return answer


def listed(api: RunningApi, customer: Customer, job_id: str, query: str = "") -> list[Any]:
    answer = ask(api, customer, job_id, query)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]
    return found


@pytest.fixture
def pair(api: RunningApi, customer: Customer) -> tuple[str, str]:
    """A film, and it without its beginning; and one that has nothing to do with them."""
    first = job_of(api, customer, A, sounds_of(1))
    second = job_of(api, customer, A[1:], sounds_of(1, 2.0))
    job_of(api, customer, OTHERS, sounds_of(2))
    compare_all(api)
    return first, second


def test_what_is_the_same_is_listed_from_both_sides(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    first, second = pair
    found = listed(api, customer, first)
    assert [each["kind"] for each in found] == ["file", "shot", "sound"]
    assert {each["jobId"] for each in found} == {second}
    [shown] = [each for each in found if each["kind"] == "shot"]
    assert abs(shown["here"]["startTime"] - 2.0) <= 0.6
    assert shown["there"]["startTime"] <= 0.6
    assert (shown["here"]["track"], shown["speed"]) == (None, 1.0)
    [other] = [each for each in listed(api, customer, second) if each["kind"] == "shot"]
    assert (other["here"], other["there"]) == (shown["there"], shown["here"])
    assert [each["kind"] for each in listed(api, customer, first, "?kind=sound")] == ["sound"]


def test_the_page_of_a_job_sums_up_where_it_is_again(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    first, second = pair
    cut = job_of(api, customer, [(seed, 0, 60) for seed in range(40, 44)], sounds_of(1))
    alone = job_of(api, customer, [(seed, 0, 60) for seed in range(50, 54)], sounds_of(3))
    compare_all(api)
    with signed_in(api, customer) as browser:
        answer = browser.get(f"/dashboard/jobs/{first}")
        page, shown = answer.text, " ".join(plain(answer).split())
        again = r"Duplicates 2 \S+: the file Compare \S+: 1 passage of sound, from 0:\d\d"
        assert re.search(again, shown), shown
        assert page.index(f"/dashboard/jobs/{second}") < page.index(f"/dashboard/jobs/{cut}")
        assert "Duplicates" not in browser.get(f"/dashboard/jobs/{alone}").text


def test_pages_go_on_where_the_one_before_ended(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    whole = listed(api, customer, pair[0])
    pages, cursor = list[Any](), ""
    while True:
        answer = ask(api, customer, pair[0], f"?limit=1{cursor}").json()
        pages += answer["data"]
        if not answer["hasMore"]:
            break
        cursor = f"&cursor={answer['nextCursor']}"
    assert pages == whole
    foreign = ask(api, api.customer(), pair[0], f"?limit=1{cursor}")
    assert foreign.status_code == 404


def test_a_job_is_not_ready_until_it_was_compared(api: RunningApi, customer: Customer) -> None:
    job_id = job_of(api, customer, A, sounds_of(1))
    assert ask(api, customer, job_id).json()["code"] == "RESULTS_NOT_READY"
    compare_all(api)
    assert listed(api, customer, job_id) == []


def test_no_account_finds_what_is_anothers(api: RunningApi, customer: Customer) -> None:
    mine = job_of(api, customer, A, sounds_of(1))
    foreign = api.customer()
    theirs = job_of(api, foreign, A, sounds_of(1))
    compare_all(api)
    assert listed(api, customer, mine) == listed(api, foreign, theirs) == []


def test_what_is_erased_is_found_no_more(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    first, second = pair
    answer = api.client.post(f"/jobs/{second}/erase", headers=customer.headers)
    assert answer.is_success
    assert listed(api, customer, first) == []
    assert ask(api, customer, second).status_code == 404
    third = job_of(api, customer, A, sounds_of(1))
    compare_all(api)
    assert {each["jobId"] for each in listed(api, customer, third)} == {first}


@pytest.mark.parametrize("when", ["before it is stored", "afterwards"])
def test_muted_sound_is_not_found_by_what_it_was(
    api: RunningApi, customer: Customer, when: str
) -> None:
    every = [(0, 60_000)]
    first = job_of(api, customer, OTHERS, sounds_of(1), muted=every if "before" in when else None)
    if when == "afterwards":
        second = job_of(api, customer, A, sounds_of(1))
        compare_all(api)
        assert [each["kind"] for each in listed(api, customer, second)] == ["sound"]

        async def mute(connection: Connection) -> None:
            job = await jobs.find_job(connection, uuid.UUID(first))
            assert job is not None
            await mute_sounds(connection, job, every)

        api.transact(mute)
    else:
        second = job_of(api, customer, A, sounds_of(1))
    compare_all(api)
    assert listed(api, customer, first) == listed(api, customer, second) == []


def test_what_is_alike_in_pictures_stays_where_there_is_no_sound_to_mute(
    api: RunningApi, customer: Customer
) -> None:
    first, second = job_of(api, customer, A, {}), job_of(api, customer, A, {})
    compare_all(api)
    found = listed(api, customer, first)
    assert {each["jobId"] for each in found} == {second}

    async def mute(connection: Connection) -> None:
        job = await jobs.find_job(connection, uuid.UUID(first))
        assert job is not None
        await mute_sounds(connection, job, [(0, 1000)])

    api.transact(mute)
    assert listed(api, customer, first) == found


def test_a_rerun_exchanges_what_is_found(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    first, second = pair
    uses(api, {StageName.VISION: "vision-2", StageName.TRANSCRIPT: "transcript-2"})
    rerun_id = planned(api, customer, first, stages=["vision", "transcript"])["rerunJobId"]

    async def publish(connection: Connection) -> None:
        taken = await jobs.lease_next(connection, lease=LEASE)
        assert taken is not None
        shown = prints(OTHERS).to_bytes()
        await publishing.publish_scenes(
            connection, Lease(*taken), stored([]), {}, made_with="vision-2",
            fingerprints=shown, shot_keys=parts_of_shots(shown),
        )  # fmt: skip
        await publishing.publish_transcripts(
            connection, Lease(*taken), [track(0)], {}, made_with="transcript-2",
            sounds=KeptSounds.of(sounds_of(2), ()),
        )  # fmt: skip

    api.transact(publish)
    assert ask(api, customer, first).json()["code"] == "RESULTS_NOT_READY"
    compare_all(api)
    found = {each["jobId"] for each in listed(api, customer, first)}
    assert found
    assert not found & {second, rerun_id}, "that of OTHERS"
    assert listed(api, customer, second) == []


def test_objects_of_an_archive_that_are_the_same_are_groups(
    api: RunningApi, customer: Customer, pair: tuple[str, str]
) -> None:
    answer = api.client.post(
        "/archives", json={"url": "s3://bucket/films/"}, headers=customer.headers
    )
    archive = answer.json()["data"]["archiveId"]

    async def listed_objects(connection: Connection) -> None:
        for number, job_id in enumerate(pair):
            await connection.exec_driver_sql(
                "INSERT INTO archive_objects (archive_id, key_sha256, key, size_bytes, state,"
                " job_id) VALUES (%s, %s, %s, 9, 'completed', %s)",
                (archive, bytes([number]), f"films/{number}.mp4", job_id),
            )

    api.transact(listed_objects)
    path = f"/archives/{archive}/duplicates"
    answer = api.client.get(path, headers=customer.headers)
    CONTRACT.check("listArchiveDuplicates", answer)
    [group] = answer.json()["data"]
    assert {(each["key"], each["jobId"]) for each in group["objects"]} == {
        ("films/0.mp4", pair[0]),
        ("films/1.mp4", pair[1]),
    }
    assert api.client.get(path, headers=api.customer().headers).status_code == 404


def test_what_changed_while_it_was_compared_is_compared_again(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job_of(api, customer, OTHERS, sounds_of(1))
    compare_all(api)
    second = job_of(api, customer, A, sounds_of(1))

    seek = comparing.seek

    async def changed(database: Database, held: Held) -> Any:
        async for each in seek(database, held):
            yield each
        async with database.transaction() as connection:
            job = await jobs.find_job(connection, uuid.UUID(first))
            assert job is not None
            await mute_sounds(connection, job, [(0, 60_000)])

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "seek", changed)
        do(api, seek_duplicates)
    assert ask(api, customer, second).json()["code"] == "RESULTS_NOT_READY"
    compare_all(api)
    assert listed(api, customer, second) == []
