"""Archives: each object has one job whatever dies, changed ones another, and what is refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import socket
import threading
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from models.provider import LocalModels
from pipelines.collection import MOST_FAILURES
from serve_app.context import AppContext, build_context
from serve_app.periodic import Periodic, repeated
from serve_app.settings import Settings
from serve_app.work.archives import read_archive
from serve_app.work.queue import WorkQueue
from storage import archives, cleaning, keys
from storage.objects.s3 import S3Place, client_of
from storage.types import JobState
from storage.work import Held, lease_next
from tests.databases import fresh_database
from tests.pipelines.net.fetch_servers import Asked, ScriptedServer, answer
from tests.serve_app import archive_process
from tests.serve_app.beside_jobs import step
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.storage.s3_server import place_at

Result = TypeVar("Result")


@pytest.fixture
def settings(postgres_url: str, tmp_path: Path) -> Iterator[Settings]:
    with fresh_database(postgres_url) as url:
        yield Settings(
            data_dir=tmp_path,
            database_url=url,
            secret_key=SECRET,
            max_active_jobs=1000,
            standard_max_bytes=1000,
            allowed_networks=(ip_network("127.0.0.0/8"),),
        )


@pytest.fixture
def api(settings: Settings) -> Iterator[RunningApi]:
    with RunningApi(settings) as running:
        yield running


@pytest.fixture
def customer(api: RunningApi) -> Customer:
    return api.customer(1_000_000)


@pytest.fixture
def bucket(endpoint: str) -> S3Place:
    place = place_at(endpoint)
    client_of(place).create_bucket(Bucket=place.bucket)
    return place


def put(bucket: S3Place, *keys: str, body: bytes = b"media") -> None:
    for key in keys:
        client_of(bucket).put_object(Bucket=bucket.bucket, Key=key, Body=body)


def access_of(bucket: S3Place) -> dict[str, Any]:
    return {
        "endpoint": bucket.endpoint_url,
        "accessKeyId": bucket.access_key_id,
        "secretAccessKey": bucket.secret_access_key,
    }


class Archive:
    """An archive as its owner has it."""

    def __init__(self, api: RunningApi, customer: Customer, url: str, **body: Any) -> None:
        self.api, self.customer = api, customer
        self.id = self.call("POST", "", {"url": url, **body})["archiveId"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.api.client.request(
            method, f"/archives{path}", json=body, headers=self.customer.headers
        )
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()["data"]

    @property
    def shown(self) -> Any:
        return self.call("GET", f"/{self.id}")

    @property
    def objects(self) -> dict[str, tuple[str, str | None]]:
        """Key to state and error code."""
        listed = self.call("GET", f"/{self.id}/objects?limit=1000")
        return {each["key"]: (each["state"], each["errorCode"]) for each in listed}

    def counts(self, **expected: int) -> bool:
        return bool(self.shown["objects"] == dict.fromkeys(self.shown["objects"], 0) | expected)


def of_bucket(api: RunningApi, customer: Customer, bucket: S3Place, **body: Any) -> Archive:
    url = f"s3://{bucket.bucket}/{body.pop('prefix', '')}"
    return Archive(api, customer, url, **{"bucketAccess": access_of(bucket), **body})


def behind(settings: Settings, call: Callable[[AppContext], Awaitable[Result]]) -> Result:
    """``call`` with a context of its own, as in a runner."""

    async def within() -> Result:
        context = build_context(settings)
        try:
            return await call(context)
        finally:
            await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(within())).result()


def worked(settings: Settings, *, ends: bool = True) -> int:
    return behind(settings, lambda context: archive_process.work(context, ends=ends))


def ended(settings: Settings, state: JobState, **error: Any) -> int:
    return behind(settings, lambda context: archive_process.end_jobs(context, state, **error))


def urls(api: RunningApi, customer: Customer) -> list[str]:
    return sorted(archive_process.job_urls(api.settings, customer.account_id))


# --- each object once ---


def test_each_object_has_one_ordinary_job_of_low_priority(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "in/a.mp4", "in/sub/b.MOV", "in/c.txt", "out/d.mp4")
    archive = of_bucket(
        api, customer, bucket, prefix="in/", patterns=["*.mp4", "*.mov"], processingMode="vision"
    )
    assert worked(api.settings) == 2
    assert urls(api, customer) == [
        f"s3://{bucket.bucket}/in/a.mp4",
        f"s3://{bucket.bucket}/in/sub/b.MOV",
    ]
    assert archive.shown["state"] == "completed"
    assert archive.counts(completed=2)
    [first, _] = api.client.get("/jobs", headers=customer.headers).json()["data"]
    assert (first["priority"], first["processingMode"]) == ("low", "vision")
    assert first["fileName"] in {"a.mp4", "b.MOV"}


def test_an_archive_s_vocabulary_counts_before_the_account_s(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    own = {"keyterms": ["archive"], "replacements": [{"from": "webber", "to": "Webern"}]}
    others = [{"from": "Webber", "to": "Weber"}, {"from": "a", "to": "b"}]
    account = {"keyterms": ["account", "job"], "replacements": others}
    api.client.put("/vocabulary", json=account, headers=customer.headers)
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket, keyterms=["job"])
    for body, kept in (({"vocabulary": own}, own), ({}, own)):
        assert archive.call("PATCH", f"/{archive.id}", body)["vocabulary"] == kept
    worked(api.settings)
    [[source]] = rows(api.settings, "SELECT source FROM jobs")
    assert (source["keyterms"], source["vocabulary"]) == (["job"], ["archive", "account"])
    assert dict(source["replacements"]) == {"webber": "Webern", "a": "b"}
    assert archive.call("PATCH", f"/{archive.id}", {"vocabulary": None})["vocabulary"] is None


def kill_at_random(settings: Settings, objects: int, statements: int, seed: int) -> int:
    """Work in processes that are killed, until all is done; how many were."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.serve_app.archive_process"])
    chance, killed = random.Random(seed), 0
    for _ in range(20 + objects):
        victim = processes.Process(
            target=archive_process.run, args=(settings, chance.randint(1, statements))
        )
        victim.start()
        victim.join(600)
        assert victim.exitcode in {0, -signal.SIGKILL}
        killed += victim.exitcode != 0
        # Leases of who was killed end by themselves after LEASE.
        behind(settings, forget_leases)
        if behind(settings, archive_process.states) == {"completed"}:
            return killed
        statements *= 1 if killed < 8 else 2
    raise AssertionError("it never ended")


async def forget_leases(context: AppContext) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(text("UPDATE work SET due_at = now() WHERE token IS NOT NULL"))


@pytest.mark.parametrize(
    ("objects", "statements"),
    [
        (40, 120),
        pytest.param(10_000, 20_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["40", "10000"],
)
def test_whatever_is_killed_no_object_is_missed_and_none_has_two_jobs(
    api: RunningApi, customer: Customer, bucket: S3Place, objects: int, statements: int
) -> None:
    names = [f"{number:05d}.mp4" for number in range(objects)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put(bucket, name), names))
    archive = of_bucket(api, customer, bucket, maxActiveJobs=min(50, objects // 8))
    killed = kill_at_random(api.settings, objects, statements, seed=objects)
    assert killed >= 3
    found = Counter(urls(api, customer))
    assert found == Counter(f"s3://{bucket.bucket}/{name}" for name in names)
    assert archive.counts(completed=objects)
    # Unchanged: the whole list again, and nothing is analysed.
    archive.call("POST", f"/{archive.id}/resume")
    assert worked(api.settings) == 0
    assert archive.shown["state"] == "completed"
    assert len(urls(api, customer)) == objects


def test_a_changed_object_and_a_new_one_have_jobs_and_no_other(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4", "b.mp4", "c.mp4")
    archive = of_bucket(api, customer, bucket)
    worked(api.settings)
    put(bucket, "b.mp4", body=b"other media")
    put(bucket, "a.mp4")  # the same again: only its time is another
    put(bucket, "d.mp4")
    archive.call("POST", f"/{archive.id}/resume")
    assert worked(api.settings) == 2
    found = Counter(url.rpartition("/")[2] for url in urls(api, customer))
    assert found == Counter({"a.mp4": 1, "b.mp4": 2, "c.mp4": 1, "d.mp4": 1})
    assert archive.counts(completed=4)


def test_a_watched_archive_is_listed_again_by_itself(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket, watchSeconds=60)
    assert worked(api.settings) == 1
    assert archive.shown["state"] == "active"
    put(bucket, "b.mp4")
    assert worked(api.settings) == 0

    async def hour_passes(context: AppContext) -> None:
        async with context.database.transaction() as connection:
            await connection.execute(text("UPDATE archives SET next_list_at = now()"))
            await connection.execute(text("UPDATE work SET due_at = now()"))

    behind(api.settings, hour_passes)
    assert worked(api.settings) == 1
    assert archive.counts(completed=2)


def test_no_more_jobs_are_under_way_than_the_archive_s_bound(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, *(f"{number}.mp4" for number in range(7)))
    archive = of_bucket(api, customer, bucket, maxActiveJobs=3)
    worked(api.settings, ends=False)
    assert archive.counts(running=3, waiting=4)
    ended(api.settings, JobState.COMPLETED)
    worked(api.settings, ends=False)
    assert archive.counts(completed=3, running=3, waiting=1)


# --- many archives ---


def test_servers_that_do_not_answer_keep_nobody_else_s_archive_waiting(
    api: RunningApi,
    customer: Customer,
    bucket: S3Place,
    serve: Callable[[Any], ScriptedServer],
) -> None:
    answered = threading.Event()
    silent = serve(lambda *_: answered.wait(60))
    other = api.customer()
    for _ in range(6):
        Archive(api, other, "s3://bucket/", bucketAccess={"endpoint": silent.url("")})
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket)

    async def until_listed(context: AppContext) -> None:
        beside = WorkQueue(context, LocalModels(), [read_archive])
        async with repeated([Periodic("work", 0.0, beside.run)]), asyncio.timeout(60):
            listed = None
            while listed is None:
                await asyncio.to_thread(time.sleep, 0.2)
                listed = (await asyncio.to_thread(lambda: archive.shown))["listedAt"]

    behind(api.settings, until_listed)
    answered.set()


async def leased(context: AppContext) -> list[Held]:
    return (await lease_next(context.database, [read_archive.terms]))[0]


def test_accounts_take_turns_with_one_step_each_at_a_time(
    api: RunningApi, customer: Customer
) -> None:
    other = api.customer()
    for each in (customer, customer, customer, other):
        Archive(api, each, "s3://bucket/")

    async def at_once(context: AppContext) -> list[uuid.UUID]:
        found = await asyncio.gather(*(leased(context) for _ in range(4)))
        return [each.account_id for held in found for each in held]

    async def in_turn(context: AppContext) -> list[uuid.UUID]:
        turns = []
        for _ in range(4):
            [held] = await leased(context)
            turns.append(held.account_id)
            async with context.database.transaction() as connection:
                await archives.release_archive(connection, held, 0)
        return turns

    both = {customer.account_id, other.account_id}
    assert sorted(behind(api.settings, at_once)) == sorted(both)
    behind(api.settings, forget_leases)
    turns = behind(api.settings, in_turn)
    assert set(turns[:2]) == set(turns[2:]) == both


def test_archives_leave_room_for_jobs_that_are_created_otherwise(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, *(f"{number}.mp4" for number in range(12)))
    for _ in range(3):
        of_bucket(api, customer, bucket, maxActiveJobs=10)
    settings = api.settings.model_copy(update={"max_active_jobs": 10})
    for _ in range(6):
        behind(settings, one_step)
    assert rows(settings, "SELECT count(*) FROM jobs") == [(8,)]
    with RunningApi(settings) as limited:
        body = {"url": "https://example.com/a.mp4"}
        statuses = [
            limited.client.post("/jobs/from-url", json=body, headers=customer.headers).status_code
            for _ in range(3)
        ]
    assert statuses == [201, 201, 429]


def test_a_limit_of_one_unfinished_job_is_enough_for_an_archive(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4", "b.mp4")
    archive = of_bucket(api, customer, bucket)
    assert worked(api.settings.model_copy(update={"max_active_jobs": 1})) == 2
    assert archive.counts(completed=2)


# --- bad input ---


def test_what_is_nothing_to_analyse_is_refused_by_name_and_the_rest_goes_on(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "empty.mp4", "folder/", "old_$folder$", body=b"")
    put(bucket, "folder/tool.exe", "good one+%41 ü.mp4", "../up.mp4", "/slash.mp4")
    put(bucket, "large.mp4", body=b"x" * 1001)
    archive = of_bucket(api, customer, bucket)
    assert worked(api.settings) == 3
    assert archive.objects == {
        "empty.mp4": ("refused", "OBJECT_EMPTY"),
        "folder/": ("refused", "OBJECT_IS_FOLDER"),
        "old_$folder$": ("refused", "OBJECT_IS_FOLDER"),
        "folder/tool.exe": ("refused", "UNSUPPORTED_FORMAT"),
        "large.mp4": ("refused", "FILE_TOO_LARGE"),
        "good one+%41 ü.mp4": ("completed", None),
        "../up.mp4": ("completed", None),
        "/slash.mp4": ("completed", None),
    }
    assert f"s3://{bucket.bucket}/good one+%41 ü.mp4" in urls(api, customer)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], ScriptedServer]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ScriptedServer(script).running())


def page(keys: list[str], *, more: bool = False) -> bytes:
    rows = "".join(f"<Contents><Key>{key}</Key><Size>9</Size></Contents>" for key in keys)
    rows += f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
    return f"<ListBucketResult>{rows}</ListBucketResult>".encode()


def test_keys_with_line_breaks_and_without_text_have_names(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    body = page(["a%0Ab.mp4", "n%00ul.mp4", "x%FF.mp4"])
    server = serve(lambda _, connection: answer(connection, 200, body))
    archive = Archive(api, customer, "s3://bucket", bucketAccess={"endpoint": server.url("")})
    assert worked(api.settings) == 1
    assert archive.objects == {
        "a\nb.mp4": ("completed", None),
        "n\ufffdul.mp4": ("refused", "OBJECT_KEY_UNUSABLE"),
        "x\ufffd.mp4": ("refused", "OBJECT_KEY_UNUSABLE"),
    }


def error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "named"),
    [
        (403, "AccessDenied", "BUCKET_ACCESS_DENIED"),
        (404, "NoSuchBucket", "BUCKET_NOT_FOUND"),
        (403, "InvalidAccessKeyId", "BUCKET_CREDENTIALS_REFUSED"),
        (200, "", "BUCKET_LISTING_INVALID"),
    ],
    ids=["foreign", "none", "unknown key", "no list"],
)
def test_a_bucket_that_cannot_be_read_pauses_its_archive_with_the_reason(
    api: RunningApi,
    customer: Customer,
    serve: Callable[[Any], ScriptedServer],
    status: int,
    code: str,
    named: str,
) -> None:
    server = serve(lambda _, connection: answer(connection, status, error_body(code)))
    archive = Archive(api, customer, "s3://bucket/", bucketAccess={"endpoint": server.url("")})
    worked(api.settings)
    assert archive.shown["state"] == "paused"
    assert archive.shown["error"]["code"] == named
    assert archive.counts()


def test_an_endpoint_that_leads_to_a_private_address_is_refused_where_it_is_connected_to(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    server = serve(lambda _, connection: answer(connection, 200, page([])))
    archive = Archive(api, customer, "s3://bucket/", bucketAccess={"endpoint": server.url("")})
    worked(api.settings.model_copy(update={"allowed_networks": ()}))
    assert archive.shown["error"]["code"] == "BUCKET_NOT_ALLOWED"
    assert server.asked == []


def test_a_bucket_that_is_away_is_tried_again_and_pauses_in_the_end(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    server = serve(lambda _, connection: answer(connection, 503))
    archive = Archive(api, customer, "s3://bucket/", bucketAccess={"endpoint": server.url("")})

    async def steps(context: AppContext) -> int:
        count = 0
        while "active" in await archive_process.states(context):
            async with context.database.transaction() as connection:
                await connection.execute(text("UPDATE work SET due_at = now()"))
            await step(context, read_archive)
            count += 1
        return count

    assert behind(api.settings, steps) == MOST_FAILURES
    assert archive.shown["error"]["code"] == "BUCKET_UNREACHABLE"


def test_a_lease_is_renewed_while_a_page_is_read_until_the_archive_is_paused(
    api: RunningApi,
    customer: Customer,
    serve: Callable[[Any], ScriptedServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = replace(read_archive, looked_after=timedelta(seconds=0.05))
    answered = threading.Event()

    def script(_: Asked, connection: socket.socket) -> None:
        answered.wait(60)
        answer(connection, 200, page([]))

    server = serve(script)
    archive = Archive(api, customer, "s3://bucket/", bucketAccess={"endpoint": server.url("")})

    async def reading(context: AppContext) -> set[Any]:
        under_way = asyncio.create_task(step(context, often))
        ends = set[Any]()
        while len(ends) < 4:
            assert not under_way.done()
            async with context.database.statement() as connection:
                query = text("SELECT due_at FROM work WHERE token IS NOT NULL")
                ends |= set((await connection.execute(query)).scalars())
        await asyncio.to_thread(archive.call, "POST", f"/{archive.id}/pause", {})
        await under_way
        answered.set()
        return ends

    assert max(ends := behind(api.settings, reading)) > min(ends)
    assert archive.shown["state"] == "paused"
    assert archive.shown["listedAt"] is None


def test_credentials_that_expire_in_the_middle_pause_and_new_ones_go_on_without_a_gap(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    """Jobs that could not fetch their objects are created again, nothing else is."""

    def script(asked: Asked, connection: socket.socket) -> None:
        query = parse_qs(urlsplit(asked.target).query)
        [after] = query.get("start-after", [""])
        expired = query["X-Amz-Credential"][0].startswith("old/") and after
        if expired:
            answer(connection, 400, error_body("ExpiredToken"))
        elif not after:
            answer(connection, 200, page(["a.mp4", "b.mp4"], more=True))
        else:
            answer(connection, 200, page(["c.mp4"]))

    server = serve(script)
    access = {"endpoint": server.url(""), "secretAccessKey": "s", "sessionToken": "t"}
    archive = Archive(api, customer, "s3://bucket/", bucketAccess=access | {"accessKeyId": "old"})
    behind(api.settings, lambda context: step(context, read_archive))
    assert archive.counts(running=2)
    ended(api.settings, JobState.FAILED, error_code="FETCH_FAILED", error_message="expired")
    worked(api.settings)
    assert archive.shown["state"] == "paused"
    assert archive.shown["error"]["code"] == "BUCKET_CREDENTIALS_EXPIRED"
    assert archive.counts(waiting=2)
    archive.call("PATCH", f"/{archive.id}", {"bucketAccess": access | {"accessKeyId": "new"}})
    assert archive.shown["bucketAccess"]["accessKeyId"] == "new"
    assert worked(api.settings) == 3
    assert archive.shown["state"] == "completed"
    assert archive.counts(completed=3)


def test_an_object_that_alone_cannot_be_fetched_fails_and_a_resume_tries_it_again(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket)
    worked(api.settings, ends=False)
    ended(api.settings, JobState.FAILED, error_code="FETCH_FAILED", error_message="gone")
    worked(api.settings)
    assert archive.objects == {"a.mp4": ("failed", "FETCH_FAILED")}
    assert archive.shown["state"] == "completed"
    archive.call("POST", f"/{archive.id}/resume")
    assert worked(api.settings) == 1
    assert archive.counts(completed=1)


def test_what_could_not_be_fetched_while_it_was_paused_is_tried_again(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4", "b.mp4")
    archive = of_bucket(api, customer, bucket)
    worked(api.settings, ends=False)
    archive.call("POST", f"/{archive.id}/pause")
    ended(api.settings, JobState.FAILED, error_code="FETCH_FAILED", error_message="expired")
    resumed = archive.call("POST", f"/{archive.id}/resume")
    assert (resumed["objects"]["waiting"], resumed["objects"]["failed"]) == (2, 0)
    assert worked(api.settings) == 2
    assert archive.counts(completed=2)


def expiring(
    serve: Callable[[Any], ScriptedServer], at_expired: Callable[[], object] = lambda: None
) -> tuple[list[str], dict[str, str]]:
    """A bucket of one object whose credentials expire once they are in the list, and its access."""
    expired = list[str]()

    def script(asked: Asked, connection: socket.socket) -> None:
        query = parse_qs(urlsplit(asked.target).query)
        if query["X-Amz-Credential"][0].partition("/")[0] in expired:
            at_expired()
            answer(connection, 400, error_body("ExpiredToken"))
        else:
            answer(connection, 200, page(["a.mp4"]))

    access = {"endpoint": serve(script).url(""), "accessKeyId": "old", "secretAccessKey": "s"}
    return expired, access


def test_a_step_that_is_lost_forgets_nothing_that_could_not_be_fetched(
    api: RunningApi,
    customer: Customer,
    serve: Callable[[Any], ScriptedServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expired, access = expiring(serve)
    archive = Archive(api, customer, "s3://bucket/", bucketAccess=access)
    worked(api.settings, ends=False)
    expired.append("old")
    ended(api.settings, JobState.FAILED, error_code="FETCH_FAILED", error_message="expired")

    async def lost(context: AppContext) -> None:
        await archive_process.make_due(context)
        with pytest.raises(TimeoutError):
            await step(context, read_archive)
        await forget_leases(context)

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.net.buckets.BucketReader.page", lost_reader)
        behind(api.settings, lost)
    worked(api.settings)
    assert archive.shown["error"]["code"] == "BUCKET_CREDENTIALS_EXPIRED"
    assert archive.counts(waiting=1)


def lost_reader(*_: Any) -> None:
    raise TimeoutError


def test_new_credentials_are_not_paused_by_an_answer_to_the_old_ones(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    changes = list[Callable[[], object]]()
    expired, access = expiring(serve, lambda: [change() for change in changes])
    expired.append("old")
    archive = Archive(api, customer, "s3://bucket/", bucketAccess=access)
    new = {"bucketAccess": access | {"accessKeyId": "new"}}
    changes.append(lambda: archive.call("PATCH", f"/{archive.id}", new))
    assert worked(api.settings) == 1
    assert archive.counts(completed=1)


def test_failures_are_counted_one_after_the_other(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    away = list[int]()

    def script(_: Asked, connection: socket.socket) -> None:
        answer(connection, away.pop() if away else 200, page(["a.mp4"]))

    access = {"endpoint": serve(script).url("")}
    archive = Archive(api, customer, "s3://bucket/", bucketAccess=access)
    worked(api.settings, ends=False)
    for statuses, failures in (([503], 1), ([503], 2), ([], 0)):
        away += statuses
        ended(api.settings, JobState.FAILED, error_code="FETCH_FAILED", error_message="gone")
        behind(api.settings, one_step)
        assert rows(api.settings, "SELECT failures FROM archives") == [(failures,)]
        behind(api.settings, one_step)
    assert archive.objects == {"a.mp4": ("failed", "FETCH_FAILED")}


def test_a_failure_is_shown_with_the_next_try_until_a_step_succeeds(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer]
) -> None:
    away = [503]

    def script(_: Asked, connection: socket.socket) -> None:
        answer(connection, away.pop() if away else 200, page([]))

    archive = Archive(
        api,
        customer,
        "s3://bucket/",
        watchSeconds=60,
        bucketAccess={"endpoint": serve(script).url("")},
    )
    assert not {"error", "nextTryAt"} & set(archive.shown)
    before = datetime.now(UTC)
    behind(api.settings, one_step)
    shown = archive.shown
    assert (shown["state"], shown["error"]["code"]) == ("active", "BUCKET_UNREACHABLE")
    assert datetime.fromisoformat(shown["nextTryAt"]) > before
    behind(api.settings, one_step)
    assert not {"error", "nextTryAt"} & set(archive.shown)


def test_a_step_that_fails_for_whatever_reason_pauses_its_archive_in_the_end(
    api: RunningApi,
    customer: Customer,
    bucket: S3Place,
) -> None:
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket)
    # What the database refuses of an object, whatever that is.
    refuses = "ALTER TABLE archive_objects ADD CONSTRAINT refused CHECK (size_bytes > 1000)"

    async def steps(context: AppContext) -> int:
        async with context.database.transaction() as connection:
            await connection.execute(text(refuses))
        count = 0
        while "active" in await archive_process.states(context):
            with pytest.raises(IntegrityError):
                await one_step(context)
            count += 1
        return count

    assert behind(api.settings, steps) == MOST_FAILURES
    assert (archive.shown["state"], archive.shown["error"]["code"]) == ("paused", "INTERNAL_ERROR")


def test_an_account_has_no_more_objects_than_it_may_and_goes_on_when_it_may(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, *(f"{number}.mp4" for number in range(3)))
    first = of_bucket(api, customer, bucket)
    second = of_bucket(api, customer, bucket)
    settings = api.settings.model_copy(update={"max_archive_objects": 5})
    worked(settings)
    states = [first.shown, second.shown]
    [paused] = [each for each in states if each["state"] == "paused"]
    assert paused["error"]["code"] == "TOO_MANY_OBJECTS"
    assert "5 objects" in paused["error"]["message"]
    assert sum(sum(each["objects"].values()) for each in states) == 3
    first.call("POST", f"/{paused['archiveId']}/resume")
    assert worked(api.settings) == 3
    assert first.counts(completed=3)
    assert second.counts(completed=3)


async def one_step(context: AppContext) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(text("UPDATE work SET due_at = now()"))
    await step(context, read_archive)


@pytest.mark.parametrize("change", ["PATCH", "resume"])
def test_a_key_with_a_cap_has_no_archive_make_jobs_past_it(
    api: RunningApi, customer: Customer, bucket: S3Place, change: str
) -> None:
    archive = of_bucket(api, customer, bucket)
    caps = keys.KeyCaps(max_monthly_cents=100)
    issued = api.transact(
        lambda connection: keys.create_key(connection, customer.account_id, caps=caps)
    )
    headers = {"Authorization": f"Bearer {issued.secret}"}
    path = f"/archives/{archive.id}"
    if change == "PATCH":
        answer = api.client.patch(path, json={"watchSeconds": 60}, headers=headers)
    else:
        answer = api.client.post(f"{path}/resume", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert archive.shown["watchSeconds"] is None


def test_an_account_without_credits_pauses_and_what_they_cover_is_created(
    api: RunningApi, bucket: S3Place
) -> None:
    poor = api.customer(5)
    put(bucket, *(f"{number}.mp4" for number in range(6)))
    archive = of_bucket(api, poor, bucket)
    worked(api.settings, ends=False)
    assert archive.shown["error"]["code"] == "INSUFFICIENT_CREDITS"
    assert archive.shown["objects"]["running"] == len(urls(api, poor)) == 2
    assert archive.shown["objects"]["waiting"] == 4


def test_paused_nothing_is_created_until_it_is_resumed(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4")
    archive = of_bucket(api, customer, bucket)
    archive.call("POST", f"/{archive.id}/pause")
    assert worked(api.settings) == 0
    assert archive.shown["state"] == "paused"
    archive.call("POST", f"/{archive.id}/resume")
    assert worked(api.settings) == 1


def test_a_removed_archive_leaves_results_and_neither_credentials_nor_jobs_under_way(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4", "b.mp4")
    archive = of_bucket(api, customer, bucket, maxActiveJobs=1)
    worked(api.settings, ends=False)
    ended(api.settings, JobState.COMPLETED)
    worked(api.settings, ends=False)
    put(bucket, "b.mp4", body=b"changed while its job runs")
    archive.call("POST", f"/{archive.id}/resume")
    behind(api.settings, one_step)
    archive.call("POST", f"/{archive.id}/pause")
    archive.call("DELETE", f"/{archive.id}")
    gone = api.client.get(f"/archives/{archive.id}", headers=customer.headers)
    assert gone.status_code == 404
    listed = api.client.get("/jobs", headers=customer.headers).json()["data"]
    assert [job["state"] for job in listed] == ["cancelled", "cancelled", "completed"]
    assert rows(api.settings, "SELECT sealed_access FROM archives") == [(None,)]
    worked(api.settings)
    assert rows(api.settings, "SELECT sealed_access FROM archives") == []


def rows(settings: Settings, query: str) -> list[Any]:
    async def read(context: AppContext) -> list[Any]:
        async with context.database.statement() as connection:
            return [tuple(row) for row in await connection.execute(text(query))]

    return behind(settings, read)


def test_an_erased_job_takes_its_object_s_key_along_and_is_not_made_again(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "private.mp4")
    archive = of_bucket(api, customer, bucket)
    worked(api.settings)
    [job] = api.client.get("/jobs", headers=customer.headers).json()["data"]
    api.client.post(f"/jobs/{job['jobId']}/erase", headers=customer.headers)
    assert rows(api.settings, "SELECT key FROM archive_objects") == [(None,)]
    archive.call("POST", f"/{archive.id}/resume")
    assert worked(api.settings) == 0
    assert len(api.client.get("/jobs", headers=customer.headers).json()["data"]) == 1


def test_an_erased_account_leaves_nothing_of_its_archives(
    api: RunningApi, customer: Customer, bucket: S3Place
) -> None:
    put(bucket, "a.mp4")
    of_bucket(api, customer, bucket)
    worked(api.settings)
    api.transact(lambda connection: cleaning.erase_account(connection, customer.account_id))
    kept = rows(api.settings, "SELECT url, sealed_access, options::text FROM archives")
    assert kept == [("", None, "{}")]
    worked(api.settings)
    assert rows(api.settings, "SELECT 1 FROM archives") == []
    assert rows(api.settings, "SELECT 1 FROM archive_objects") == []


KEYS_A_PAGE = 1000


def endless_pages(pages: int) -> Callable[[Asked, socket.socket], None]:
    """A bucket of so many pages, made as they are requested."""

    def script(asked: Asked, connection: socket.socket) -> None:
        query = parse_qs(urlsplit(asked.target).query)
        [after] = query.get("start-after", ["-1.mp4"])
        first = int(after.removesuffix(".mp4")) + 1
        keys = [f"{number:010d}.mp4" for number in range(first, first + KEYS_A_PAGE)]
        answer(connection, 200, page(keys, more=first + KEYS_A_PAGE < pages * KEYS_A_PAGE))

    return script


@pytest.mark.parametrize(
    "pages", [5, pytest.param(300, marks=pytest.mark.long)], ids=["5000", "300000"]
)
def test_a_large_bucket_is_listed_page_by_page_in_bounded_memory(
    api: RunningApi, customer: Customer, serve: Callable[[Any], ScriptedServer], pages: int
) -> None:
    server = serve(endless_pages(pages))
    archive = Archive(
        api, customer, "s3://bucket", bucketAccess={"endpoint": server.url("")}, maxActiveJobs=1
    )
    peaks: list[int] = []

    async def steps(context: AppContext) -> None:
        tracemalloc.start()
        for _ in range(pages):
            await archive_process.make_due(context)
            tracemalloc.reset_peak()
            await step(context, read_archive)
            peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    began = time.monotonic()
    behind(api.settings, steps)
    print(
        f"{pages * KEYS_A_PAGE} keys in {time.monotonic() - began:.0f} s, peak {max(peaks)} bytes"
    )
    assert archive.shown["objects"] == {
        "waiting": pages * KEYS_A_PAGE - 1,
        "running": 1,
        "completed": 0,
        "failed": 0,
        "refused": 0,
    }
    assert not archive.shown["listing"]
    # A page after hundreds takes no more than the second one.
    assert max(peaks[2:]) < 1.5 * peaks[1] + (8 << 20)
