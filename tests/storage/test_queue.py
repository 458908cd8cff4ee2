"""Whose job is next: the tags that the database gives, and the leases that follow them."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from storage import jobs, keys, queue
from storage.database import Database
from storage.job_records import JobSource, NewJob
from storage.types import JobState, Priority, ProcessingMode
from tests.tables import every

LEASE = timedelta(minutes=5)
LEASE_IN_FUNCTION = jobs.LEASE.text.replace(":token", "gen_random_uuid()").replace(
    ":lease", "interval '5 minutes'"
)
WEIGHTS = {Priority.LOW: 0.25, Priority.NORMAL: 1.0, Priority.HIGH: 4.0}


async def account(database: Database) -> uuid.UUID:
    async with database.transaction() as connection:
        return (await keys.create_account(connection, uuid.uuid4().hex)).id


async def queued(
    database: Database,
    account_id: uuid.UUID,
    count: int = 1,
    priority: Priority = Priority.NORMAL,
    state: JobState = JobState.QUEUED,
    **rules: Any,
) -> list[uuid.UUID]:
    made = [
        NewJob(
            account_id,
            state,
            ProcessingMode.ALL,
            "clip.mp4",
            JobSource(kind="upload"),
            priority=priority,
            **{"queue_weight": WEIGHTS[priority]} | rules,
        )
        for _ in range(count)
    ]
    async with database.transaction() as connection:
        for job in made:
            await jobs.insert_job(connection, job)
    return [job.id for job in made]


async def lease(database: Database, count: int = 1) -> list[uuid.UUID]:
    """The next so many jobs, fewer if no more wait."""
    taken = []
    for _ in range(count):
        found = await database.write(jobs.lease_next, lease=LEASE)
        if found is not None:
            taken.append(found[0])
    return taken


async def end(database: Database, job_id: uuid.UUID) -> None:
    async with database.transaction() as connection:
        assert await jobs.set_state(
            connection, job_id, expected=JobState.PROCESSING, state=JobState.COMPLETED
        )


async def test_beside_fifty_jobs_of_one_account_the_first_of_another_takes_the_next_slot(
    database: Database,
) -> None:
    long = await queued(database, await account(database), 50)
    assert await lease(database, 2) == long[:2]
    short = await queued(database, await account(database))
    await end(database, long[0])
    assert await lease(database) == short


async def test_accounts_with_backlogs_take_turns(database: Database) -> None:
    first, second = await account(database), await account(database)
    of_first, of_second = await queued(database, first, 6), await queued(database, second, 3)
    order = await lease(database, 9)
    assert [each for each in order if each in of_first] == of_first
    assert Counter(each in of_second for each in order[:6]) == {True: 3, False: 3}


async def test_who_always_has_one_job_gets_every_other_lease_beside_a_backlog(
    database: Database,
) -> None:
    backlog = await queued(database, await account(database), 20)
    other, order = await account(database), []
    for _ in range(12):
        await queued(database, other)
        [taken] = await lease(database)
        order.append(taken in backlog)
        await end(database, taken)
    assert Counter(order[2:]) == {True: 5, False: 5}


@pytest.mark.parametrize(
    ("priority", "before_it"),
    [
        pytest.param(Priority.HIGH, 0, id="high goes first"),
        pytest.param(Priority.NORMAL, 0, id="normal goes next"),
        pytest.param(Priority.LOW, 3, id="low goes after some, not after all"),
    ],
)
async def test_a_priority_counts_beside_the_backlog_of_another(
    database: Database, priority: Priority, before_it: int
) -> None:
    backlog = await queued(database, await account(database), 20)
    await lease(database)
    [job] = await queued(database, await account(database), priority=priority)
    order = await lease(database, 10)
    assert order.index(job) == before_it
    assert order[:before_it] == backlog[1 : 1 + before_it]


async def test_high_goes_before_the_same_accounts_backlog(database: Database) -> None:
    owner = await account(database)
    await queued(database, owner, 10)
    await lease(database)
    urgent = await queued(database, owner, priority=Priority.HIGH)
    assert await lease(database) == urgent


@pytest.mark.parametrize("used", [[*Priority], [*reversed(Priority)]], ids=["up", "down"])
async def test_an_account_of_all_priorities_has_no_more_turns_than_one_of_the_highest(
    database: Database, used: list[Priority]
) -> None:
    mixed, plain = await account(database), await account(database)
    made = [await queued(database, mixed, 40, priority) for priority in used]
    await queued(database, plain, 40, Priority.HIGH)
    order = await lease(database, 80)
    assert 39 <= sum(any(job in part for part in made) for job in order) <= 41
    # Its own jobs go by their priority.
    assert set(order) >= set(made[used.index(Priority.HIGH)][:39])


async def test_limits_that_change_at_once_keep_the_order_of_priorities(database: Database) -> None:
    owner = await account(database)
    by_priority = [await queued(database, owner, 3, each, running_limit=1) for each in Priority]
    await database.write(queue.limit_running, owner, None)
    low, normal, high = by_priority
    assert await lease(database, 9) == [*high, *normal, *low]


async def test_an_upload_gets_its_turn_when_it_is_complete(database: Database) -> None:
    slow, other = await account(database), await account(database)
    [upload] = await queued(database, slow, state=JobState.AWAITING_UPLOAD)
    backlog = await queued(database, other, 3)
    assert await lease(database) == backlog[:1]
    await database.write(
        jobs.set_state, upload, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
    )
    assert await lease(database) == [upload]


async def test_a_requeued_job_keeps_its_turn(database: Database) -> None:
    [lost, *_] = await queued(database, await account(database), 3)
    await lease(database)
    await queued(database, await account(database), priority=Priority.HIGH)
    await database.write(jobs.set_state, lost, expected=JobState.PROCESSING, state=JobState.QUEUED)
    assert await lease(database) == [lost]


async def test_no_more_jobs_of_an_account_run_than_its_limit(database: Database) -> None:
    limited = await queued(database, await account(database), 5, running_limit=2)
    other = await queued(database, await account(database), 3)
    taken = await lease(database, 8)
    assert set(taken) == {*limited[:2], *other}
    await end(database, limited[1])
    assert await lease(database, 8) == [limited[2]]


async def test_a_cancelled_job_makes_room_within_the_limit(database: Database) -> None:
    first, second = await queued(database, await account(database), 2, running_limit=1)
    await database.write(jobs.set_state, first, expected=JobState.QUEUED, state=JobState.CANCELLED)
    assert await lease(database, 2) == [second]


@pytest.mark.parametrize(("limit", "admitted"), [(3, 3), (None, 4)], ids=str)
async def test_a_raised_limit_admits_jobs_that_wait(
    database: Database, limit: int | None, admitted: int
) -> None:
    owner = await account(database)
    await queued(database, owner, 4, running_limit=1)
    await database.write(queue.limit_running, owner, limit)
    assert len(await lease(database, 4)) == admitted


async def test_a_waiting_job_knows_its_place_and_a_parked_one_that_it_has_none(
    database: Database,
) -> None:
    owner = await account(database)
    made = await queued(database, await account(database), 3)
    parked = await queued(database, owner, 2, running_limit=1)
    async with database.transaction() as connection:
        found = [await queue.find_place(connection, each) for each in [*made, *parked]]
    ahead = [None if place is None else place.ahead for place in found]
    assert ahead == [0, 2, 3, 1, None]
    await lease(database)
    async with database.transaction() as connection:
        assert await queue.find_place(connection, made[0]) is None


async def test_a_wait_is_known_once_three_jobs_were_completed(database: Database) -> None:
    owner, means = await account(database), []
    await queued(database, owner, 4)
    for seconds in (30, 60, 90):
        [job_id] = await lease(database)
        async with database.transaction() as connection:
            [waiting] = (await connection.execute(text(NEXT))).scalars()
            place = await queue.find_place(connection, waiting)
            assert place is not None
            means.append(place.mean_seconds)
            began = text("UPDATE jobs SET started_at = now() - :took WHERE id = :id")
            values = {"id": job_id, "took": timedelta(seconds=seconds)}
            await connection.execute(began, values)
        await end(database, job_id)
    place = await database.write(queue.find_place, waiting)
    assert place is not None
    assert means == [None] * 3
    assert place.mean_seconds == pytest.approx(60, abs=1)
    assert place.start_seconds(slots=1) == 0


NEXT = "SELECT id FROM jobs WHERE state = 'queued' ORDER BY finish_tag LIMIT 1"


@every(
    ("place", "slots", "seconds"),
    [
        pytest.param(queue.QueuePlace(0, 1, 60.0), 2, 0.0, id="a slot is free"),
        pytest.param(queue.QueuePlace(0, 2, 60.0), 2, 30.0, id="next of two slots"),
        pytest.param(queue.QueuePlace(9, 2, 60.0), 2, 300.0, id="tenth"),
        pytest.param(queue.QueuePlace(9, 2, None), 2, None, id="nothing has ended yet"),
        pytest.param(queue.QueuePlace(None, 2, 60.0), 2, None, id="place unknown"),
    ],
)
def test_a_wait_is_estimated_from_what_the_last_jobs_took(
    place: queue.QueuePlace, slots: int, seconds: float | None
) -> None:
    assert place.start_seconds(slots) == seconds


Flow = tuple[uuid.UUID, str]
"""An account and a priority."""

PLAY = f"""
CREATE FUNCTION play(kinds text[], owners uuid[], priorities text[], weights float[])
RETURNS TABLE (event text, owner uuid, urgency text, job uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    step record;
    leased uuid;
BEGIN
    FOR step IN SELECT * FROM unnest(kinds, owners, priorities, weights) AS s (k, o, p, w) LOOP
        IF step.k = 'arrive' THEN
            RETURN QUERY INSERT INTO jobs (id, account_id, priority, queue_weight, state,
                processing_mode, tier, file_name, source, created_at)
            VALUES (gen_random_uuid(), step.o, step.p, step.w, 'queued', 'all', 'standard',
                'a.mp4', '{{}}', clock_timestamp())
            RETURNING 'arrive', account_id, priority, id;
        ELSIF step.k = 'lease' THEN
            FOR leased IN {LEASE_IN_FUNCTION} LOOP
                RETURN QUERY SELECT 'lease', account_id, priority, id
                               FROM jobs WHERE id = leased;
            END LOOP;
        ELSE
            UPDATE jobs SET state = 'completed', completed_at = now(), lease_token = NULL,
                   lease_expires_at = NULL
             WHERE id = (SELECT id FROM jobs WHERE state = 'processing'
                          ORDER BY random() LIMIT 1);
        END IF;
    END LOOP;
END $$
"""  # noqa: S608  (constants)


def random_steps(chance: random.Random, accounts: list[uuid.UUID]) -> list[tuple[Any, ...]]:
    """Arrivals, leases and ends in any order; in the end whatever waits is leased and ended."""
    own = {each: chance.choice([0.5, 1, 1, 1, 3]) for each in accounts}
    steps: list[tuple[Any, ...]] = []
    for _ in range(30):
        kind = chance.choice(["arrive", "arrive", "lease", "lease", "end"])
        if kind == "arrive":
            owner, priority = chance.choice(accounts), chance.choice(list(Priority))
            one = (kind, owner, str(priority), own[owner] * WEIGHTS[priority])
            steps += [one] * chance.choice([1, 1, 1, 5])
        else:
            steps.append((kind, None, None, None))
    rest = [kind for step in steps if step[0] == "arrive" for kind in ("lease", "end")]
    return steps + [(kind, None, None, None) for kind in rest]


def check_history(events: list[tuple[str, uuid.UUID, str, uuid.UUID]], weights: Any) -> None:
    """Every job was leased, those of a flow in the order of their arrival, and no job before one
    of a higher priority of its account.

    While a job was the first of its account, no other account started more than the ratio of its
    greatest weight to the job's and one more: the bound of self-clocked fair queueing. An account
    of several priorities has another one, whose turn a more urgent job put off.
    """
    used: dict[uuid.UUID, set[float]] = defaultdict(set)
    for event, owner, priority, _ in events:
        if event == "arrive":
            used[owner].add(weights[owner, priority])
    waiting: dict[Flow, list[uuid.UUID]] = defaultdict(list)
    passed: dict[uuid.UUID, Counter[uuid.UUID]] = defaultdict(Counter)
    for event, owner, priority, job in events:
        flow = (owner, priority)
        first = first_flow(waiting, owner)
        if event == "arrive":
            waiting[flow].append(job)
            if first_flow(waiting, owner) != first:
                passed[owner].clear()
            continue
        assert flow == first
        assert waiting[flow].pop(0) == job
        passed[owner].clear()
        for other in {each for each, _ in waiting} - {owner}:
            top = first_flow(waiting, other)
            if top is not None:
                passed[other][owner] += 1
                more = min(2, len(used[owner]))
                assert passed[other][owner] <= math.floor(max(used[owner]) / weights[top]) + more
    assert not any(waiting.values()), "a job was never leased"


def first_flow(waiting: dict[Flow, list[uuid.UUID]], owner: uuid.UUID) -> Flow | None:
    """The account's flow of the highest priority in which a job waits."""
    flows = [(owner, str(priority)) for priority in reversed(Priority)]
    return next((each for each in flows if waiting[each]), None)


def play_histories(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(PLAY)
        accounts = [uuid.uuid4() for _ in range(5)]
        for each in accounts:
            connection.execute("INSERT INTO accounts (id, name) VALUES (%s, %s)", (each, each.hex))
        for seed in range(count):
            chance = random.Random(seed)
            steps = random_steps(chance, accounts[: chance.randint(2, 5)])
            columns = [list(column) for column in zip(*steps, strict=True)]
            events = connection.execute("SELECT * FROM play(%s, %s, %s, %s)", columns).fetchall()
            check_history(events, {(owner, priority): w for _, owner, priority, w in steps})


def test_no_job_starves_in_a_hundred_random_histories(database_url: str) -> None:
    play_histories(database_url, 100)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_job_starves_in_ten_thousand_random_histories(database_url: str) -> None:
    play_histories(database_url, 10_000)
