"""Archives of an account: buckets that are analysed object by object, once or again and again."""

# ruff: noqa: N815  (names of the wire)
from __future__ import annotations

import contextlib
import uuid
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.net.buckets import split_bucket_address
from serve_app.api.authentication import CurrentAccount, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, base_url, page, success
from serve_app.api.idempotency import create_once
from serve_app.api.openapi import answers, headers
from serve_app.api.parameters import WHOLE_NUMBER, CursorQuery, Cursors, one_of
from serve_app.api.schemas import (
    NO_NUL_PATTERN,
    PAGE,
    WHOLE,
    Answer,
    Body,
    Count,
    Timestamp,
    Uuid,
    doc,
    list_of,
    rendered,
    timestamp,
)
from serve_app.api.urls import blaming, parse_job_id, require_bucket_access
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.jobs import service
from serve_app.jobs.plans import Planner, plan_from_url, seal_access, unseal_access
from serve_app.jobs.routes import IdempotencyKey
from serve_app.jobs.schemas import BucketAccessOptions, CreateJobFromUrlBody, JobOptions
from serve_app.jobs.vocabulary import VocabularyJson
from storage import archives, keys
from storage.archives import MOST_ARCHIVES, Archive, ArchiveObject
from storage.database import Connection
from storage.duplicates import list_groups
from storage.types import ArchiveState, ObjectState

MAX_PATTERNS = 20
MAX_PAGE = 1000
_PURPOSE, _GROUPS = b"archive-objects", b"archive-duplicates"

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Archives"])

ArchiveUrl = Annotated[
    str,
    Field(
        json_schema_extra={
            "format": "uri",
            "pattern": "^([Ss]3|[Gg][Ss])://",
            "minLength": 1,
            "maxLength": 2048,
        }
    ),
]
Pattern = Annotated[
    str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": NO_NUL_PATTERN})
]
WatchSeconds = Annotated[
    Annotated[int, Field(ge=60, le=30 * 86_400), WHOLE] | None,
    doc("List it again so long after each list; once only if not given.", 3600),
]
MaxActiveJobs = Annotated[
    Annotated[int, Field(ge=1, le=1000), WHOLE],
    doc("Its unfinished jobs at a time; they count against the account's limit too.", 20),
]
VocabularyOption = Annotated[
    VocabularyJson | None,
    doc("Of its jobs, before the account's: see `replaceVocabulary`."),
]


class NewArchiveBody(JobOptions):
    """Body of ``POST /archives``."""

    url: Annotated[
        ArchiveUrl,
        doc("Bucket and the prefix below which everything counts.", "s3://footage/2024/"),
    ]
    patterns: Annotated[
        Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)] | None,
        doc(
            "Only objects whose name fits one of them (`*`, `?`, `[a-z]`; of whatever case); "
            "with a slash, whose key behind the prefix does. All if not given.",
            ["*.mp4", "*.mov"],
        ),
    ] = None
    watchSeconds: WatchSeconds = None
    maxActiveJobs: MaxActiveJobs = 20
    vocabulary: VocabularyOption = None
    priority: Annotated[
        Literal["low", "normal", "high"],
        doc("Of its jobs; refused where the account may not use it."),
    ] = "low"


class ArchiveChangesBody(Body):
    """Body of ``PATCH /archives/{archiveId}``: what is not given stays."""

    bucketAccess: Annotated[
        BucketAccessOptions | None, doc("New credentials, in the place of the old ones.")
    ] = None
    watchSeconds: WatchSeconds = None
    maxActiveJobs: Annotated[MaxActiveJobs | None, doc("Of its unfinished jobs.")] = None
    vocabulary: VocabularyOption = None


class ObjectCounts(TypedDict):
    """How many of its objects are in each state."""

    waiting: Annotated[Count, doc("A job is to be created.", 812)]
    running: Annotated[Count, doc("Its job has not ended.", 20)]
    completed: Annotated[Count, doc("Its job completed.", 9160)]
    failed: Annotated[Count, doc("Its job failed, or was cancelled.", 3)]
    refused: Annotated[Count, doc("No job was created: see `errorCode` of the object.", 5)]


class ShownAccess(TypedDict):
    """How the bucket is read, without secrets."""

    endpoint: str | None
    region: str | None
    accessKeyId: str | None


class ArchiveError(TypedDict):
    """Why it is paused, or of an active one why its last step failed."""

    code: Annotated[str, doc("Stable.", "BUCKET_CREDENTIALS_EXPIRED")]
    message: Annotated[str, doc("For people.", "The bucket's credentials have expired.")]


class ArchiveJson(TypedDict):
    """A bucket that is analysed object by object."""

    archiveId: Annotated[Uuid, doc("The archive.")]
    url: Annotated[str, doc("Bucket and prefix.", "s3://footage/2024/")]
    patterns: list[str]
    state: ArchiveState
    error: NotRequired[ArchiveError]
    nextTryAt: NotRequired[
        Annotated[Timestamp, doc("When it is tried again; only after a step that failed.")]
    ]
    watchSeconds: int | None
    maxActiveJobs: int
    vocabulary: VocabularyJson | None
    bucketAccess: ShownAccess
    objects: ObjectCounts
    listing: Annotated[bool, doc("Whether a list of the bucket is under way.")]
    createdAt: Annotated[Timestamp, doc("When it was made.")]
    listedAt: Annotated[Timestamp | None, doc("When the last list was complete.")]


_ARCHIVES = list_of(
    "Archives",
    Annotated[list[ArchiveJson], Field(max_length=MOST_ARCHIVES)],
    "The account's archives, the oldest first.",
)
_OBJECTS = list_of(
    "ArchiveObjects",
    list[ArchiveObject],
    "A page of objects, in the order in which they were found.",
    **PAGE,
)


class DuplicateObjectJson(TypedDict):
    """An object of a group."""

    key: Annotated[str | None, doc("Null once it was erased with its job.", "2024/a.mp4")]
    jobId: Annotated[Uuid, doc("Its job.")]


class DuplicateGroupJson(TypedDict):
    """Objects whose files are the same, each as one of the others."""

    objects: list[DuplicateObjectJson]


_DUPLICATES = list_of(
    "DuplicateGroups",
    list[DuplicateGroupJson],
    "A page of groups, the greatest first.",
    **PAGE,
    complete=Annotated[bool, doc("Whether all pairs were looked at, 50,000 at most.", True)],
)
ArchiveId = Annotated[
    Uuid, Path(alias="archiveId", description="The archive's id; what is no UUID is not found.")
]


def _found(archive: Archive | None) -> Archive:
    return existing(archive, "archive")


def render_archive(archive: Archive, context: AppContext) -> ArchiveJson:
    """As answers have it, without secrets."""
    access = unseal_access(context.encrypter, archive.sealed_access)
    given: dict[str, object] = {
        "archiveId": str(archive.id),
        "bucketAccess": rendered(ShownAccess, access),
        "objects": {str(state): count for state, count in archive.counts.items()},
        "listing": archive.list_after is not None,
        "vocabulary": archive.vocabulary,
    }
    if archive.error_code is not None:
        given["error"] = {"code": archive.error_code, "message": archive.error_message or ""}
    if archive.is_retried:
        given["nextTryAt"] = timestamp(archive.due_at)
    return rendered(ArchiveJson, archive, **given)


def _checked_access(
    url: str, options: BucketAccessOptions | None, context: AppContext
) -> str | None:
    """Encrypted, or None without any. Raises INVALID_URL or URL_NOT_ALLOWED."""
    with blaming("url"):
        split_bucket_address(url)
    if options is None:
        return None
    access = options.access()
    require_bucket_access(access, context.settings)
    return seal_access(context.encrypter, access)


def _options(body: NewArchiveBody) -> dict[str, object]:
    """Return what is given of a job's options; the priority too, whose default is another here."""
    given = body.model_dump(
        mode="json",
        include=set(JobOptions.model_fields) - {"bucketAccess", "idempotencyKey"},
        exclude_unset=True,
    )
    return given | {"priority": body.priority}


@router.post(
    "/archives",
    **answers(
        Answer[ArchiveJson],
        "The archive; its bucket is listed from now on.",
        ErrorCode.INVALID_URL,
        ErrorCode.URL_NOT_ALLOWED,
        ErrorCode.INVALID_CALLBACK_URL,
        ErrorCode.IDEMPOTENCY_IN_PROGRESS,
        ErrorCode.IDEMPOTENCY_BODY_MISMATCH,
        status=201,
        headers=headers("Location", sometimes=["Idempotent-Replayed"]),
    ),
)
async def create_archive(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    body: NewArchiveBody,
    key: IdempotencyKey = None,
) -> Response:
    """Analyse a bucket.

    A job is created of each object, once, and again when it has changed; they are ordinary jobs
    with the given options, of priority `low` unless another is given. A bucket that cannot be read
    pauses the archive, with `error`; one whose server fails is tried again first, at `nextTryAt`.
    A fifth of the account's limit of unfinished jobs stays free for jobs of other sources. An
    account has at most 100."""
    sealed = _checked_access(body.url, body.bucketAccess, context)
    options = _options(body)
    # As its jobs will be planned, so that what they would be refused for is refused here.
    planner = Planner(context.settings, context.encrypter, account_id, base_url(request))
    bucket = "/".join(body.url.split("/", 3)[:3])
    plan_from_url(
        planner, CreateJobFromUrlBody.model_validate({"url": f"{bucket}/a.mp4", **options})
    )

    values = {
        "url": body.url,
        "patterns": body.patterns or [],
        "watch_seconds": body.watchSeconds,
        "max_active_jobs": body.maxActiveJobs,
        "sealed_access": sealed,
        "options": options,
        "vocabulary": body.vocabulary,
        "base_url": base_url(request),
    }

    async def create(connection: Connection) -> Response:
        account = await keys.lock_account(connection, account_id)
        service.require_priority(body.priority, account, context.settings)
        await _require_uncapped(connection)
        added = await archives.add_archive(connection, account_id, values)
        if added is None:
            raise invalid(f"An account has at most {MOST_ARCHIVES} archives.", "url")
        location = {"Location": f"{base_url(request)}/archives/{added.id}"}
        return success(render_archive(added, context), status=201, headers=location)

    return await create_once(request, "createArchive", key, create)


@router.get("/archives", **answers(_ARCHIVES, "The archives."))
async def list_archives(context: Context, account_id: CurrentAccount) -> Response:
    """List archives.

    At most 100, the oldest first."""
    found = await context.database.read(archives.list_archives, account_id)
    return success([render_archive(each, context) for each in found])


async def _get(connection: Connection, account_id: uuid.UUID, archive_id: str) -> Archive:
    found = await archives.list_archives(connection, account_id, parse_job_id(archive_id))
    return _found(found[0] if found else None)


@router.get("/archives/{archiveId}", **answers(Answer[ArchiveJson], "The archive."))
async def get_archive(
    context: Context, account_id: CurrentAccount, archive_id: ArchiveId
) -> Response:
    """Read an archive.

    With how many of its objects are in each state."""
    found = await context.database.read(_get, account_id, archive_id)
    return success(render_archive(found, context))


@router.get("/archives/{archiveId}/objects", **answers(_OBJECTS, "A page of objects."))
async def list_archive_objects(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    archive_id: ArchiveId,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MAX_PAGE), WHOLE_NUMBER],
        Query(description="Most objects of a page."),
    ] = 100,
    cursor: CursorQuery = None,
    state: Annotated[
        Annotated[str, one_of(ObjectState)] | None,
        Query(
            description="Only objects in this state; `failed` and `refused` have an error.",
            json_schema_extra={"enum": [str(each) for each in ObjectState]},
        ),
    ] = None,
) -> Response:
    """List an archive's objects.

    In the order in which they were found: go on while `hasMore` is true."""
    cursors = Cursors(context.signer.secret, account_id, _PURPOSE)
    after = int.from_bytes(cursors.read(cursor))
    async with context.database.statement() as connection:
        archive = await _get(connection, account_id, archive_id)
        found = await archives.list_objects(
            connection,
            archive.id,
            limit=limit + 1,
            after=after,
            state=None if state is None else ObjectState(state),
        )
    shown, next_cursor = found[:limit], None
    if len(found) > limit:
        next_cursor = cursors.write(shown[-1].position.to_bytes(8))
    return page(request, [each.json() for each in shown], next_cursor)


@router.get("/archives/{archiveId}/duplicates", **answers(_DUPLICATES, "A page of groups."))
async def list_archive_duplicates(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    archive_id: ArchiveId,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MAX_PAGE), WHOLE_NUMBER],
        Query(description="Most groups of a page."),
    ] = 100,
    cursor: CursorQuery = None,
) -> Response:
    """List an archive's duplicates.

    Groups of objects that are near duplicates, as `GET /jobs/{jobId}/duplicates` finds files."""
    cursors = Cursors(context.signer.secret, account_id, _GROUPS)
    first = int.from_bytes(cursors.read(cursor))
    async with context.database.statement() as connection:
        archive = await _get(connection, account_id, archive_id)
        groups, complete = await list_groups(connection, archive.id)
    next_cursor = None
    if len(groups) > first + limit:
        next_cursor = cursors.write((first + limit).to_bytes(8))
    shown: list[DuplicateGroupJson] = [
        {"objects": [{"key": key, "jobId": str(job_id)} for job_id, key in group.items()]}
        for group in groups[first : first + limit]
    ]
    return page(request, shown, next_cursor, complete=complete)


async def _require_uncapped(connection: Connection) -> None:
    """Jobs of archives are created by the service, and count towards no key."""
    if await keys.find_capped_key(connection) is not None:
        raise invalid("A key with a cap cannot have archives make jobs.")


@router.patch(
    "/archives/{archiveId}",
    **answers(
        Answer[ArchiveJson], "The archive.", ErrorCode.INVALID_URL, ErrorCode.URL_NOT_ALLOWED
    ),
)
async def change_archive(
    context: Context, account_id: CurrentAccount, archive_id: ArchiveId, body: ArchiveChangesBody
) -> Response:
    """Change an archive.

    New credentials hold for jobs that wait already too. An archive that an error has paused goes
    on with them, and objects that could not be fetched are tried again."""
    values: dict[str, object] = {}
    if body.maxActiveJobs is not None:
        values["max_active_jobs"] = body.maxActiveJobs
    if "watchSeconds" in body.model_fields_set:
        values["watch_seconds"] = body.watchSeconds
    if "vocabulary" in body.model_fields_set:
        values["vocabulary"] = body.vocabulary
    async with context.database.transaction() as connection:
        found = await _get(connection, account_id, archive_id)
        await _require_uncapped(connection)
        if body.bucketAccess is not None:
            values["sealed_access"] = _checked_access(found.url, body.bucketAccess, context)
        changed = _found(await archives.change_archive(connection, account_id, found.id, values))
        if body.bucketAccess is not None and changed.error_code is not None:
            changed = _found(await archives.resume_archive(connection, changed))
    return success(render_archive(changed, context))


@router.post("/archives/{archiveId}/pause", **answers(Answer[ArchiveJson], "The archive."))
async def pause_archive(
    context: Context, account_id: CurrentAccount, archive_id: ArchiveId
) -> Response:
    """Pause an archive.

    No job is created any more until it is resumed; those that there are go on."""
    async with context.database.transaction() as connection:
        found = await _get(connection, account_id, archive_id)
        found = _found(await archives.pause_archive(connection, found))
    return success(render_archive(found, context))


@router.post(
    "/archives/{archiveId}/resume",
    **answers(Answer[ArchiveJson], "The archive.", ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
)
async def resume_archive(
    context: Context, account_id: CurrentAccount, archive_id: ArchiveId
) -> Response:
    """Resume an archive.

    It goes on where it was; one that is completed is listed again, for what is new or has
    changed. Objects that could not be fetched are tried again."""
    async with context.database.transaction() as connection:
        found = await _get(connection, account_id, archive_id)
        await _require_uncapped(connection)
        found = _found(await archives.resume_archive(connection, found))
    return success(render_archive(found, context))


@router.delete(
    "/archives/{archiveId}",
    **answers(Answer[ArchiveJson], "The archive that was removed."),
)
async def delete_archive(
    context: Context, account_id: CurrentAccount, archive_id: ArchiveId
) -> Response:
    """Remove an archive.

    With its credentials and the list of its objects; its jobs that have not ended are cancelled,
    the others and their results stay."""
    async with context.database.transaction() as connection:
        found = await _get(connection, account_id, archive_id)
        await archives.pause_archive(connection, found)
        running = await archives.list_running_jobs(connection, found)
    for job_id in running:
        # Each by itself: runners lock a job before the account.
        async with context.database.transaction() as connection:
            with contextlib.suppress(ApiError):  # it has ended or is erased meanwhile
                await service.cancel_job(connection, account_id, str(job_id))
    async with context.database.transaction() as connection:
        # In the order in which jobs of archives lock them too.
        await keys.lock_account(connection, account_id)
        found = await _get(connection, account_id, archive_id)
        await archives.remove_archives(connection, account_id, found.id)
    return success(render_archive(found, context))
