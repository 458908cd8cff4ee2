"""Comments on places in a job's media, and links that show a job to whoever has no account."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, public_url, success
from serve_app.api.openapi import answers
from serve_app.api.schemas import NO_NUL_PATTERN, WHOLE, Answer, Timestamp, Url, Uuid, doc
from serve_app.api.urls import parse_job_id
from serve_app.errors import existing, invalid
from storage import comments
from storage.audit import record
from storage.records import timestamp
from storage.tables import Comment

SHARE_PURPOSE = "share"
SHARED_PATH = "/dashboard/shared"
MOST_SHARED_DAYS = 365


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class CommentBody(_Body):
    """Body of ``POST /jobs/{jobId}/comments``."""

    time: Annotated[
        Annotated[float, Field(ge=0, le=1_000_000)], doc("Seconds of the media.", 12.48)
    ]
    text: Annotated[
        Annotated[
            str, Field(min_length=1, max_length=2000, json_schema_extra={"pattern": NO_NUL_PATTERN})
        ],
        doc("Plain text.", "Is this the right take?"),
    ]


class CommentChangesBody(_Body):
    """Body of ``PATCH /jobs/{jobId}/comments/{commentId}``."""

    resolved: Annotated[bool, doc("Whether it is settled.", True)]


class ShareBody(_Body):
    """Body of ``POST /jobs/{jobId}/share``."""

    days: Annotated[
        Annotated[int, Field(ge=1, le=MOST_SHARED_DAYS), WHOLE], doc("How long it works.", 7)
    ] = 7


class SharedLink(TypedDict):
    """An address that shows a job to whoever has it."""

    url: Annotated[Url, doc("A page with the player, scenes and transcript; nothing to change.")]
    expiresAt: Annotated[Timestamp, doc("Until when.")]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
CommentId = Annotated[Uuid, Path(alias="commentId", description="The comment's id.")]


@router.get("/jobs/{jobId}/comments", **answers(Answer[list[Comment]], "By their places."))
async def list_comments(context: Context, job: CurrentJob) -> Response:
    """List a job's comments."""
    found = await context.database.read(comments.list_comments, job.id)
    return success([each.json() for each in found])


@router.post(
    "/jobs/{jobId}/comments", **answers(Answer[Comment], "The comment is added.", status=201)
)
async def add_comment(context: Context, job: CurrentJob, body: CommentBody) -> Response:
    """Comment on a place in a job's media.

    At most 1,000 a job. They are erased with it, and not redacted."""
    place = job.account_id, job.id, round(body.time * 1000)
    added = await context.database.write(comments.add_comment, *place, body.text)
    if added is None:
        message = f"The job was erased, or has {comments.MOST_COMMENTS} comments already."
        raise invalid(message)
    return success(added.json(), status=201)


@router.patch("/jobs/{jobId}/comments/{commentId}", **answers(Answer[Comment], "The comment."))
async def change_comment(
    context: Context, job: CurrentJob, comment_id: CommentId, body: CommentChangesBody
) -> Response:
    """Resolve a comment, or open it again."""
    known_id = parse_job_id(comment_id)
    changed = await context.database.write(
        comments.resolve_comment, job.account_id, job.id, known_id, resolved=body.resolved
    )
    return success(existing(changed, "comment").json())


@router.delete("/jobs/{jobId}/comments/{commentId}", **answers(Answer[Comment], "As it was."))
async def delete_comment(context: Context, job: CurrentJob, comment_id: CommentId) -> Response:
    """Delete a comment."""
    of = job.account_id, job.id, parse_job_id(comment_id)
    deleted = await context.database.write(comments.delete_comment, *of)
    return success(existing(deleted, "comment").json())


@router.post("/jobs/{jobId}/share", **answers(Answer[SharedLink], "The link.", status=201))
async def share_job(
    request: Request, context: Context, job: CurrentJob, body: ShareBody
) -> Response:
    """Make a link that shows a job.

    For a reader without an account: the player, scenes, transcript, as they are when it is opened,
    and nothing to change. It works until it expires or the job is erased."""
    if job.erased_at is not None:
        raise invalid("The job was erased.")
    ends = datetime.now(UTC) + timedelta(days=body.days)
    path = f"{SHARED_PATH}/{job.id}"
    signed = context.signer.sign_path(SHARE_PURPOSE, path, expires_at=int(ends.timestamp()))
    await context.database.write(record, job.account_id, "shareJob", job_id=job.id)
    link = {"url": public_url(request) + signed, "expiresAt": timestamp(ends)}
    return success(link, status=201)
