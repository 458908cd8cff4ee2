"""Archives beside the jobs: buckets are listed page by page, and jobs created of their objects.

Work on an archive is a step: how its jobs ended is recorded, a page of the bucket is read, and
jobs are created as far as the archive's bound goes. A job and its object's state are written in
one transaction, so that whatever dies, each object has one job; the list goes on behind the last
page that was kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from pipelines import collection
from pipelines.net import buckets
from serve_app.api.urls import address_policy
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.jobs.plans import JobPlan, Planner, plan_from_url, unseal_access
from serve_app.jobs.schemas import CreateJobFromUrlBody
from serve_app.jobs.service import create_jobs
from serve_app.media.formats import tier_of
from serve_app.work.queue import Work, work
from storage import archives, keys
from storage.archives import Archive, ArchiveObject, ListedObject
from storage.audit import record
from storage.database import UNAVAILABLE, Connection
from storage.types import ArchiveState, Member, ObjectState
from storage.work import Held, WorkLostError

log = logging.getLogger("vas.archives")

CREATED_AT_ONCE = 50
"""Jobs in one transaction."""
STEPS_AT_ONCE = 4
"""Of a runner, each for another account: a slow server of one occupies no more."""
_THREADS = ThreadPoolExecutor(STEPS_AT_ONCE, "bucket")
"""Of their own: servers that answer slowly delay nothing else."""
TOO_MANY_OBJECTS = "TOO_MANY_OBJECTS"
_LOOK_SECONDS = 2.0
_WAIT_SECONDS = 15.0


@work(
    archives.KIND,
    lease=archives.LEASE,
    attempts=None,
    subject="archiveId",
    concurrency=STEPS_AT_ONCE,
    per_account=1,
)
async def read_archive(work: Work) -> None:
    """Do what is due for an archive."""
    archive = await work.context.database.write(archives.take_archive, work.held)
    if archive is None:
        return
    step = _Step(work.context, work.held, archive)
    try:
        await step.run()
    except (WorkLostError, *UNAVAILABLE):
        raise
    except Exception:
        # Else it would be repeated without end.
        await step.fail(ErrorCode.INTERNAL_ERROR, "The service could not go on with it.")
        raise


@dataclass(slots=True)
class _Step:
    """One step of one archive under its lease."""

    context: AppContext
    held: Held
    archive: Archive

    async def run(self) -> None:
        """Raises WorkLostError where the archive was paused or removed meanwhile."""
        async with self.context.database.transaction() as connection:
            archive = await archives.lock_archive(connection, self.held)
            await archives.begin_list(connection, archive)
            unfetched = await archives.settle_objects(connection, archive.id)
            self.archive = await archives.lock_archive(connection, self.held)
        listing = self.archive.list_after is not None
        is_read = listing or unfetched
        try:
            if is_read:
                page = await self._page()
        except buckets.BucketError as error:
            await self._refused(error)
            return
        if listing and not await self._merge(page):
            return
        if unfetched:
            # The bucket can be read: what could not be fetched failed for reasons of its own.
            async with self.context.database.transaction() as connection:
                archive = await archives.lock_archive(connection, self.held)
                await archives.settle_objects(connection, archive.id, unfetched=ObjectState.FAILED)
        try:
            created = await self._create(CREATED_AT_ONCE)
        except ApiError as error:
            # No job can be created at present.
            async with self.context.database.transaction() as connection:
                archive = await archives.lock_archive(connection, self.held)
                if collection.may_pass(error.status):
                    await archives.release_archive(connection, self.held, _WAIT_SECONDS)
                else:
                    await self._leave(connection, archive, error.code, error.message)
            return
        await self._release(created, is_read=is_read)

    async def _page(self) -> collection.Page:
        over = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_THREADS, self._read_page, over)
        finally:
            over.set()

    def _read_page(self, over: threading.Event) -> collection.Page:
        """Return the next page of the list; the first one shows whether the bucket can be read."""

        def watch() -> None:
            if over.is_set():
                raise buckets.BucketError(buckets.BucketProblem.UNREACHABLE)

        scheme, name, prefix = buckets.split_bucket_address(self.archive.url)
        access = unseal_access(self.context.encrypter, self.archive.sealed_access)
        reader = buckets.BucketReader(address_policy(self.context.settings), watch=watch)
        bucket = reader.located(buckets.ClientBucket(scheme, name, access))
        after = (self.archive.list_after or b"").decode(errors="surrogateescape")
        return reader.page(bucket, prefix, after)

    async def _merge(self, page: collection.Page) -> bool:
        """Keep the page; False where it pauses the archive, for objects without end."""
        _, _, prefix = buckets.split_bucket_address(self.archive.url)
        listed = [
            self._listed(each)
            for each in page.members
            if collection.is_chosen(each.key.removeprefix(prefix), self.archive.patterns)
        ]
        after = None
        if page.next_after is not None:
            after = page.next_after.encode(errors="surrogateescape")
        async with self.context.database.transaction() as connection:
            locked = await archives.lock_archive(connection, self.held)
            most = self.context.settings.max_archive_objects
            if await archives.merge_page(connection, locked, listed, after, most_objects=most):
                return True
            sentence = f"The account's archives may have {most} objects, and the bucket has more."
            await self._leave(connection, locked, TOO_MANY_OBJECTS, sentence)
            return False

    def _listed(self, found: Member) -> ListedObject:
        code, message = self._refusal(found) or (None, None)
        key = collection.key_bytes(found)
        return ListedObject(
            # As text that PostgreSQL keeps.
            **asdict(found) | {"key": key.decode(errors="replace").replace("\0", "\ufffd")},
            key_sha256=archives.key_digest(key),
            error_code=code,
            error_message=message,
        )

    def _refusal(self, found: Member) -> tuple[str, str] | None:
        """Code and sentence of what no job is created of."""
        problem, settings = collection.problem_of(found), self.context.settings
        if problem is not None:
            return problem, problem.sentence
        try:
            tier = tier_of(
                found.key.rpartition("/")[2], enabled_raw=settings.raw_decoders, param="url"
            )
        except ApiError as error:
            return error.code, error.message
        if (limit := settings.max_upload_bytes(tier)) < found.size_bytes:
            return ErrorCode.FILE_TOO_LARGE, f"The object is larger than {limit} bytes."
        return None

    async def _create(self, most: int) -> int:
        """Create jobs of waiting objects; how many. Raises ApiError where none can be."""
        try:
            return await self._create_at_once(most)
        except ApiError as error:
            # What still fits is created.
            room = 1
            if error.code is ErrorCode.TOO_MANY_ACTIVE_JOBS:
                room = error.extra["maxActiveJobs"] - error.extra["activeJobs"]
            if room < 1 or most == 1:
                raise
            return await self._create(min(room, most - 1))

    async def _create_at_once(self, most: int) -> int:
        archive = self.archive
        async with self.context.database.transaction() as connection:
            # In the order in which an erased account and a removed archive lock them too.
            await keys.lock_account(connection, archive.account_id)
            archive = await archives.lock_archive(connection, self.held)
            room = min(most, archive.max_active_jobs - archive.running_objects)
            if room < 1:
                return 0
            waiting = await archives.list_objects(
                connection, archive.id, limit=room, state=ObjectState.WAITING
            )
            planned = await self._planned(connection, waiting)
            if planned:
                plans = [plan for _, plan in planned]
                await create_jobs(
                    connection, archive.account_id, plans, self.context, leaves_room=True
                )
                await archives.move_objects(
                    connection,
                    archive.id,
                    [each for each, _ in planned],
                    ObjectState.RUNNING,
                    job_ids=[plan.job.id for plan in plans],
                )
            return len(waiting)

    async def _planned(
        self, connection: Connection, waiting: Sequence[ArchiveObject]
    ) -> list[tuple[ArchiveObject, JobPlan]]:
        """Plans of the objects that jobs can be created of; the others are refused."""
        archive, planned = self.archive, []
        settings, encrypter = self.context.settings, self.context.encrypter
        planner = Planner(
            settings, encrypter, archive.account_id, archive.base_url, archive_id=archive.id
        )
        bucket = "/".join(archive.url.split("/", 3)[:3])
        for each in waiting:
            try:
                fields = {"url": f"{bucket}/{each.key}", **archive.options}
                plan = plan_from_url(planner, CreateJobFromUrlBody.model_validate(fields))
            except ApiError as error:
                if error.param != "url":
                    raise
                await archives.move_objects(
                    connection,
                    archive.id,
                    [each],
                    ObjectState.REFUSED,
                    error_code=error.code,
                    error_message=error.message,
                )
                continue
            planned.append((each, plan))
        return planned

    async def _release(self, created: int, *, is_read: bool) -> None:
        async with self.context.database.transaction() as connection:
            archive = await archives.lock_archive(connection, self.held)
            due_seconds: float | None = None
            values: dict[str, object] = dict(_NO_FAILURE) if is_read else {}
            if archive.list_after is not None or (created and archive.waiting_objects):
                due_seconds = 0.0
            elif archive.waiting_objects or archive.running_objects:
                due_seconds = _LOOK_SECONDS
            elif archive.next_list_at is None:
                values |= _NO_FAILURE | {"state": ArchiveState.COMPLETED}
            await archives.release_archive(connection, self.held, due_seconds, **values)

    async def _refused(self, error: buckets.BucketError) -> None:
        """The bucket cannot be read: try again later, or wait for whoever can change that."""
        log.info("archive %s: %s", self.archive.id, error.problem)
        async with self.context.database.transaction() as connection:
            archive = await archives.lock_archive(connection, self.held)
            # Their jobs failed for the same reason, not for one of their own.
            await archives.settle_objects(connection, archive.id, unfetched=ObjectState.WAITING)
            if archive.sealed_access != self.archive.sealed_access:
                # Of credentials in whose place there are others since.
                await archives.release_archive(connection, self.held, 0)
            else:
                code, passes = error.problem, error.may_pass
                await self._leave(connection, archive, code, str(error), passes=passes)

    async def fail(self, code: str, message: str) -> None:
        """Have the step tried again later. Raises WorkLostError."""
        async with self.context.database.transaction() as connection:
            archive = await archives.lock_archive(connection, self.held)
            await self._leave(connection, archive, code, message, passes=True)

    async def _leave(
        self,
        connection: Connection,
        archive: Archive,
        code: str,
        message: str,
        *,
        passes: bool = False,
    ) -> None:
        """Have the step tried again later where the failure ``passes``, unless too many did not;
        else pause the archive."""
        failure: dict[str, object] = {"error_code": code, "error_message": message}
        failures = archive.failures + 1
        if passes and failures < collection.MOST_FAILURES:
            pause_seconds = collection.pause_seconds(failures)
            failure["failures"] = failures
            await archives.release_archive(connection, self.held, pause_seconds, **failure)
            return
        failure |= {"state": ArchiveState.PAUSED, "failures": 0}
        await archives.release_archive(connection, self.held, 0, **failure)
        await record(connection, archive.account_id, "pauseArchive", target=archive.id)


_NO_FAILURE: dict[str, object] = {"failures": 0, "error_code": None, "error_message": None}
