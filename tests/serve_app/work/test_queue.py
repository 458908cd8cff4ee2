"""Work beside the jobs: done once, by one at a time, whoever is lost, and accounts in turn."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.provider import LocalModels
from pipelines.types import StageStoppedError
from serve_app.context import AppContext, build_context
from serve_app.settings import Settings
from serve_app.work import queue
from serve_app.work.queue import Kind, Work, WorkQueue, perform
from serve_app.work.runner import KINDS
from storage.database import Connection, Database
from storage.objects import ObjectStoreUnavailableError
from storage.work import (
    Held,
    Terms,
    WorkLostError,
    end,
    extend,
    is_queued,
    lease_next,
    put_off,
    withdraw,
)
from storage.work import queue as queue_work
from tests.serve_app.running_api import SECRET
from tests.storage.test_jobs import new_account
from tests.tables import every

NAME = "test"
LEASE = timedelta(minutes=1)
TERMS = Terms(NAME, LEASE)


@pytest.fixture
async def context(database_url: str, tmp_path: Path) -> AsyncIterator[AppContext]:
    """A runner's."""
    settings = Settings(data_dir=tmp_path, database_url=database_url, secret_key=SECRET)
    made = build_context(settings)
    yield made
    await made.database.close()


async def queued(
    database: Database, account_id: uuid.UUID | None = None, kind: str = NAME
) -> uuid.UUID:
    """A subject that there is something to do for."""
    account_id, subject_id = account_id or await new_account(database), uuid.uuid4()
    await database.write(queue_work, kind, subject_id, account_id=account_id)
    return subject_id


async def leased(database: Database, terms: Terms = TERMS) -> Held | None:
    found, _ = await lease_next(database, [terms])
    return found[0] if found else None


async def must_lease(database: Database, terms: Terms = TERMS) -> Held:
    found = await leased(database, terms)
    assert found is not None
    return found


async def time_passes(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE work SET due_at = now() - interval '1 s'"))


@dataclass(slots=True)
class Doing:
    """What was done, and how it goes."""

    error: BaseException | None = None
    begun: list[Held] = field(default_factory=list)
    given_up: list[BaseException | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def kind(self, *, lasts: float = 0.0, **terms: object) -> Kind:
        async def run(work: Work) -> None:
            self.begun.append(work.held)
            self.changed.set()
            await asyncio.sleep(lasts)
            work.check()
            if self.error is not None:
                raise self.error

        async def give_up(work: Work, error: BaseException | None) -> None:
            self.given_up.append(error)
            await work.context.database.write(end, work.held)

        return Kind(NAME, run, **{"lease": LEASE, "attempts": 3, "give_up": give_up} | terms)  # type: ignore[arg-type]


async def step(context: AppContext, kind: Kind) -> bool:
    held = await leased(context.database, kind.terms)
    if held is not None:
        await perform(kind, Work(held, context, LocalModels()))
    return held is not None


# --- The lease. ---


@every("kind", KINDS, ids=lambda kind: kind.name)
async def test_accounts_take_turns_with_each_kind(database: Database, kind: Kind) -> None:
    """Who has queued much delays nobody else's by more than one piece."""
    first, second = [await new_account(database) for _ in range(2)]
    for account in (first, first, first, first, second):
        await queued(database, account, kind.name)
    served = []
    while held := await leased(database, kind.terms):
        served.append(held.account_id)
        await database.write(end, held)
    assert served == [first, second, first, first, first]


async def test_one_statement_leases_a_piece_of_each_kind(database: Database) -> None:
    account = await new_account(database)
    names = {"one", "two", "three"}
    for name in names:
        await queued(database, account, name)
        await queued(database, account, name)
    found, _ = await lease_next(database, [Terms(name, LEASE) for name in sorted(names)])
    assert {each.kind for each in found} == names
    found, _ = await lease_next(database, [Terms("two", LEASE)])
    assert [each.kind for each in found] == ["two"]


async def test_a_piece_has_one_holder_until_its_lease_ends(database: Database) -> None:
    subject = await queued(database)
    first = await must_lease(database)
    assert (first.subject_id, first.attempts) == (subject, 1)
    assert await leased(database) is None
    await time_passes(database)
    await database.write(extend, first, LEASE)
    assert await leased(database) is None, "it was kept"
    await time_passes(database)
    second = await must_lease(database)
    assert second.attempts == 2
    for late in (end, lambda c, held: extend(c, held, LEASE), _put_off):
        with pytest.raises(WorkLostError):
            await _in_transaction(database, first, late)
    await _in_transaction(database, second, end)
    async with database.statement() as connection:
        assert not await is_queued(connection, NAME, subject)


async def _put_off(connection: Connection, held: Held) -> None:
    await put_off(connection, held, timedelta(0))


async def _in_transaction(
    database: Database, held: Held, step: Callable[[Connection, Held], Awaitable[None]]
) -> None:
    await database.write(step, held)


async def test_what_is_queued_anew_while_it_is_done_is_done_once_more(database: Database) -> None:
    account, subject = await new_account(database), uuid.uuid4()

    async def again() -> None:
        await database.write(queue_work, NAME, subject, account_id=account)

    await again()
    first = await must_lease(database)
    await again()
    with pytest.raises(WorkLostError):
        await _in_transaction(database, first, end)
    assert (await must_lease(database)).attempts == 1


async def test_what_is_withdrawn_has_no_holder_any_more(database: Database) -> None:
    subject = await queued(database)
    held = await must_lease(database)
    await database.write(withdraw, subject)
    with pytest.raises(WorkLostError):
        await _in_transaction(database, held, end)


@pytest.mark.parametrize(("counts", "attempts"), [(False, 1), (True, 2)])
async def test_what_is_put_off_is_due_after_its_pause(
    database: Database, counts: bool, attempts: int
) -> None:
    await queued(database)
    async with database.transaction() as connection:
        held = await must_lease(database)
        await put_off(connection, held, timedelta(seconds=30), counts=counts)
    found, seconds = await lease_next(database, [TERMS])
    assert found == []
    assert seconds is not None
    assert 20 < seconds <= 30, "how long to wait is known"
    await time_passes(database)
    assert (await must_lease(database)).attempts == attempts


async def test_an_account_has_no_more_than_its_share_at_once(database: Database) -> None:
    account = await new_account(database)
    for _ in range(3):
        await queued(database, account)
    other = await queued(database)
    terms = Terms(NAME, LEASE, per_account=1)
    found = await asyncio.gather(*(leased(database, terms) for _ in range(4)))
    held = [each for each in found if each is not None]
    assert sorted(each.account_id == account for each in held) == [False, True]
    assert other in {each.subject_id for each in held}


# --- Its holder. ---


async def test_work_that_is_done_is_gone(context: AppContext) -> None:
    await queued(context.database)
    doing = Doing()
    assert await step(context, doing.kind())
    await time_passes(context.database)
    assert not await step(context, doing.kind())
    assert len(doing.begun) == 1


async def test_what_breaks_is_tried_again_after_a_pause_and_given_up(context: AppContext) -> None:
    await queued(context.database)
    doing = Doing(error=RuntimeError("broken"))
    kind = doing.kind(attempts=2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await step(context, kind)
        assert not await step(context, kind), "put off, or given up"
        await time_passes(context.database)
    assert not await step(context, kind)
    assert (len(doing.begun), doing.given_up) == (2, [doing.error])


OUTAGES = {
    "of the store": ObjectStoreUnavailableError("away"),
    "of the database": OperationalError("", {}, Exception("away")),
    "of the disk": OSError(28, "no space left"),
}


@pytest.mark.parametrize("error", OUTAGES.values(), ids=OUTAGES)
async def test_an_outage_does_not_count(context: AppContext, error: BaseException) -> None:
    await queued(context.database)
    doing = Doing(error=error)
    kind = doing.kind(attempts=1)
    for _ in range(3):
        with pytest.raises(type(error)):
            await step(context, kind)
        assert not await step(context, kind), "put off"
        await time_passes(context.database)
    doing.error = None
    assert await step(context, kind)
    assert doing.given_up == []


async def test_what_kills_its_holders_is_given_up(context: AppContext) -> None:
    await queued(context.database)
    doing = Doing()
    kind = doing.kind(attempts=2)
    for _ in range(2):
        assert await leased(context.database)
        await time_passes(context.database)
    assert await step(context, kind)
    assert (doing.begun, doing.given_up) == ([], [None])


async def test_a_holder_that_is_stopped_leaves_it_to_the_next_at_once(context: AppContext) -> None:
    await queued(context.database)
    doing = Doing()
    kind = doing.kind(lasts=60)
    doing_it = asyncio.create_task(step(context, kind))
    await doing.changed.wait()
    doing_it.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing_it
    assert (await must_lease(context.database)).attempts == 1


async def test_a_lease_is_renewed_while_its_holder_is_at_work(context: AppContext) -> None:
    await queued(context.database)
    doing = Doing()
    kind = doing.kind(lasts=1.0, lease=timedelta(seconds=0.4))
    doing_it = asyncio.create_task(step(context, kind))
    await doing.changed.wait()
    while not doing_it.done():
        assert await leased(context.database, kind.terms) is None
        await asyncio.sleep(0.05)
    assert await doing_it


async def test_a_holder_that_lost_its_work_is_stopped(context: AppContext) -> None:
    subject = await queued(context.database)
    doing = Doing()
    kind = doing.kind(lasts=60, looked_after=timedelta(seconds=0.05))
    doing_it = asyncio.create_task(step(context, kind))
    await doing.changed.wait()
    await context.database.write(withdraw, subject)
    async with asyncio.timeout(5):
        assert await doing_it
    assert doing.given_up == []


async def test_what_is_not_wanted_any_more_is_stopped_and_gone(context: AppContext) -> None:
    await queued(context.database)
    doing, wanted = Doing(), [True, True]

    async def is_wanted(_: Connection, __: Held) -> bool:
        return bool(wanted and wanted.pop())

    kind = doing.kind(lasts=0.5, looked_after=timedelta(seconds=0.05), is_wanted=is_wanted)
    assert await step(context, kind)
    await time_passes(context.database)
    assert not await step(context, kind)
    assert (len(doing.begun), doing.given_up) == (1, [])


async def test_threads_of_stopped_work_end_with_it(context: AppContext) -> None:
    await queued(context.database)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def run(work: Work) -> None:
        def thread() -> None:
            with contextlib.suppress(StageStoppedError):
                while True:
                    work.check()
                    time.sleep(0.01)
            loop.call_soon_threadsafe(ended.set)

        await asyncio.to_thread(thread)

    kind = Kind(NAME, run, LEASE, 3)
    doing_it = asyncio.create_task(step(context, kind))
    await asyncio.sleep(0.2)
    doing_it.cancel()
    async with asyncio.timeout(5):
        await ended.wait()


# --- The loop. ---


@contextlib.asynccontextmanager
async def at_work(context: AppContext, *kinds: Kind) -> AsyncIterator[None]:
    beside = WorkQueue(context, LocalModels(), kinds)
    running = [asyncio.create_task(each()) for each in (beside.run, beside.wake_when_notified)]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.to_thread(time.sleep, 0.01)


async def test_what_is_queued_is_begun_at_once(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notification; the poll behind it is slow."""
    monkeypatch.setattr(queue, "POLL_SECONDS", 60.0)
    doing = Doing()
    async with at_work(context, doing.kind()):
        await asyncio.sleep(0.5)
        for number in range(3):
            await queued(context.database)
            await until(lambda number=number: len(doing.begun) > number)  # type: ignore[misc]


async def test_what_no_notification_came_for_is_found_by_polling(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.2)
    doing, account = Doing(), await new_account(context.database)
    silent = "INSERT INTO work (kind, subject_id, account_id) VALUES (:kind, :subject, :account)"
    async with at_work(context, doing.kind()):
        await asyncio.sleep(0.5)
        async with context.database.transaction() as connection:
            values = {"kind": NAME, "subject": uuid.uuid4(), "account": account}
            await connection.execute(text(silent), values)
        await until(lambda: len(doing.begun) == 1)


async def test_a_pause_ends_before_the_next_poll(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "POLL_SECONDS", 60.0)
    await queued(context.database)
    doing = Doing(error=RuntimeError("broken"))
    async with at_work(context, doing.kind(attempts=2, pause=timedelta(seconds=0.3))):
        await until(lambda: len(doing.begun) == 2)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_runner_does_so_many_of_a_kind_at_once(
    context: AppContext, concurrency: int
) -> None:
    for _ in range(5):
        await queued(context.database)
    doing = Doing()
    async with at_work(context, doing.kind(lasts=60, concurrency=concurrency)):
        await until(lambda: len(doing.begun) == concurrency)
        await asyncio.sleep(0.3)
        assert len(doing.begun) == concurrency
    left = [await must_lease(context.database) for _ in range(5)]
    assert {each.attempts for each in left} == {1}, "a stopped runner's attempts do not count"


async def test_an_idle_queue_asks_the_database_once_a_poll(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    lease = lease_next

    async def counted(database: Database, terms: list[Terms]) -> tuple[list[Held], float | None]:
        asked.append(len(terms))
        return await lease(database, terms)

    monkeypatch.setattr(queue, "POLL_SECONDS", 0.5)
    monkeypatch.setattr("serve_app.work.queue.queued.lease_next", counted)
    async with at_work(context, *KINDS):
        await asyncio.sleep(1.2)
    assert asked
    assert len(asked) <= 4
    assert set(asked) == {len(KINDS)}
