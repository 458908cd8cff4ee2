"""Does what is queued beside the jobs: one loop, one lease and one account of failures for all
kinds of work. A kind is a function with ``@work`` above it, and a row in ``runner.KINDS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from models.provider import ModelProvider
from pipelines.types import StageStoppedError
from serve_app.context import AppContext
from serve_app.observability.logs import log_context
from serve_app.periodic import Periodic
from storage import work as queued
from storage.database import UNAVAILABLE, Connection
from storage.objects import is_outage
from storage.work import Held, Terms, WorkLostError

log = logging.getLogger("vas.work")

PAUSE = timedelta(seconds=10)
"""After an attempt that broke, or an outage."""
POLL_SECONDS = 30.0
"""Until it is looked again for work that no notification came for."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work in the hands of its holder."""

    held: Held
    context: AppContext
    models: ModelProvider
    stopped: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise StageStoppedError where the work is not needed any more; for its threads too."""
        if self.stopped.is_set():
            raise StageStoppedError(f"{self.held.kind} {self.held.subject_id}")


Run = Callable[[Work], Awaitable[None]]
GiveUp = Callable[[Work, BaseException | None], Awaitable[None]]
IsWanted = Callable[[Connection, Held], Awaitable[bool]]


async def _forget(work: Work, error: BaseException | None) -> None:
    """Give work up that nobody has to learn about."""
    log.warning("%s is given up: %s", work.held.kind, error or "whoever did it was lost")
    await work.context.database.write(queued.end, work.held)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work."""

    name: str
    run: Run
    """Does a piece; ends it in the transaction that stores its result, or leaves that to the queue.

    What it raises is an attempt that failed, unless it is an outage.
    """
    lease: timedelta
    attempts: int | None
    """A piece that broke, or whose holder was lost, so often is given up; None: never."""
    subject: str = "jobId"
    """What the log calls its subject."""
    concurrency: int = 1
    """Of a runner."""
    per_account: int | None = None
    pause: timedelta = PAUSE
    looked_after: timedelta | None = None
    """How often the lease is renewed; None: three times in its time."""
    is_wanted: IsWanted | None = None
    """Whether the piece is needed still; where it is not, its holder is stopped."""
    give_up: GiveUp = _forget
    """Ends a piece, because of an error or, without one, because its holders were lost."""

    @property
    def terms(self) -> Terms:
        return Terms(self.name, self.lease, self.per_account)


def work(
    name: str, *, lease: timedelta, attempts: int | None, **terms: object
) -> Callable[[Run], Kind]:
    """Make a kind of work of the function that does a piece of it; ``terms`` are Kind's others."""

    def kind_of(run: Run) -> Kind:
        return Kind(name, run, lease, attempts, **terms)  # type: ignore[arg-type]

    return kind_of


async def perform(kind: Kind, work: Work) -> None:
    """Do a piece of work under its lease, to its end. Raises what broke it."""
    try:
        if kind.attempts is not None and work.held.attempts > kind.attempts:
            await kind.give_up(work, None)
            return
        with contextlib.suppress(StageStoppedError):
            await _run(kind, work)
        with contextlib.suppress(WorkLostError):  # mostly it has ended itself
            await work.context.database.write(queued.end, work.held)
    except WorkLostError:
        log.info("%s %s: no longer ours", kind.name, work.held.subject_id)
    except BaseException as error:
        with contextlib.suppress(WorkLostError):
            await _leave(kind, work, error)
        raise


async def _run(kind: Kind, work: Work) -> None:
    lasts = (kind.looked_after or kind.lease / 3).total_seconds()
    await _look_after(kind, work)
    doing = asyncio.ensure_future(kind.run(work))
    try:
        while not (await asyncio.wait([doing], timeout=lasts))[0]:
            try:
                await _look_after(kind, work)
            except UNAVAILABLE as error:
                # Nobody else can take it meanwhile, and nothing is stored without the lease.
                log.warning("%s: the lease is not renewed: %s", kind.name, error)
        doing.result()
    finally:
        work.stopped.set()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def _look_after(kind: Kind, work: Work) -> None:
    async with work.context.database.statement() as connection:
        if kind.is_wanted is not None and not await kind.is_wanted(connection, work.held):
            work.stopped.set()
        await queued.extend(connection, work.held, kind.lease)


async def _leave(kind: Kind, work: Work, error: BaseException) -> None:
    """Leave a piece to another, after a pause; one that broke too often is given up.

    What is the machine's fault alone does not count: an outage, or a runner that stops.
    """
    is_stopped = not isinstance(error, Exception)
    counts = not (is_stopped or isinstance(error, UNAVAILABLE) or is_outage(error))
    if counts and kind.attempts is not None and work.held.attempts >= kind.attempts:
        await kind.give_up(work, error)
        return
    async with work.context.database.transaction() as connection:
        pause = timedelta(0) if is_stopped else kind.pause
        await queued.put_off(connection, work.held, pause, counts=counts)


class WorkQueue:
    """Leases and does work of all kinds; any number of runners share it."""

    def __init__(self, context: AppContext, models: ModelProvider, kinds: Sequence[Kind]) -> None:
        self._context, self._models = context, models
        self._kinds = {kind.name: kind for kind in kinds}
        self._free = {kind.name: kind.concurrency for kind in kinds}
        self._wake = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()

    async def run(self) -> None:
        """Do what is due until cancelled; what is under way then is left to others."""
        try:
            await Periodic("leasing work", 0.0, self._take).run()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wake_when_notified(self) -> None:
        """Polling covers for it whenever this connection is down."""
        async for _ in self._context.database.listen(queued.WORK_CHANNEL):
            self._wake.set()

    async def _take(self) -> None:
        """Begin what is due; where nothing is, wait for more, or for a kind to be free."""
        self._wake.clear()
        terms = [kind.terms for name, kind in self._kinds.items() if self._free[name]]
        found, seconds = await queued.lease_next(self._context.database, terms)
        for held in found:
            self._free[held.kind] -= 1
            task = asyncio.create_task(self._do(held), name=held.kind)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not found:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_SECONDS, seconds or POLL_SECONDS)):
                    await self._wake.wait()

    async def _do(self, held: Held) -> None:
        kind = self._kinds[held.kind]
        with log_context(**{kind.subject: held.subject_id}):
            try:
                await perform(kind, Work(held, self._context, self._models))
            except Exception:
                log.exception("%s failed", kind.name)
            finally:
                self._free[kind.name] += 1
                self._wake.set()
