"""The webhooks of the interface document: what the service sends, and what it makes of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Depends, Header
from typing_extensions import TypedDict

from serve_app.api.schemas import Timestamp, doc
from serve_app.jobs.answers import Job
from serve_app.webhooks.routes import TEST_EVENT, TEST_MESSAGE
from storage.tables import Translation


class JobEvent(TypedDict):
    """The body of a webhook: the job without `processedData`."""

    timestamp: Annotated[Timestamp, doc("When it happened.")]
    data: Job


class TranslatedJob(Job):
    """The job, and its translation."""

    translation: Translation


class TranslationEvent(TypedDict):
    """The body of a translation's end, which is sent only to endpoints that subscribe to it."""

    timestamp: Annotated[Timestamp, doc("When it happened.")]
    data: TranslatedJob


class TestMessage(TypedDict):
    """What a test event holds."""

    message: Annotated[str, doc("For people.", TEST_MESSAGE)]


class WebhookTestEvent(TypedDict):
    """The body of a test event."""

    type: Literal["webhook.test"]
    timestamp: Annotated[Timestamp, doc("When it was made.")]
    data: TestMessage


_SUBSCRIBED = ", which is sent only to endpoints that subscribe to it"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    "2XX": {"description": "Received. Answer within 10 seconds."},
    410: {"description": "Received; no more events of this kind for this job, please."},
    429: {"description": "Tried again later, 8 times in all; `Retry-After` is honoured."},
    "5XX": {"description": "Tried again later, 8 times in all."},
    "default": {"description": "Final: not tried again. Redirects are not followed."},
}


def _headers(
    _id: Annotated[
        str,
        Header(
            alias="webhook-id",
            description="The event's id, the same on every attempt: use it to drop repetitions.",
            examples=["6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77:job.completed"],
        ),
    ],
    _timestamp: Annotated[
        int,
        Header(
            alias="webhook-timestamp",
            description="Unix seconds at which this attempt was signed; refuse what is more than "
            "5 minutes off.",
        ),
    ],
    _signature: Annotated[
        str,
        Header(
            alias="webhook-signature",
            description="`v1,` and base64 of HMAC-SHA256 over `<webhook-id>.<webhook-timestamp>."
            "<raw body>`; two of them for 24 hours after the secret was rotated.",
            pattern="^v1,[A-Za-z0-9+/]+=*( v1,[A-Za-z0-9+/]+=*)*$",
        ),
    ],
) -> None:
    """Signed as Standard Webhooks are."""


def _body(kind: str, of: Any, note: str) -> Any:
    """Return the type of an event's body."""
    name = "".join(part.capitalize() for part in kind.split(".")) + "Event"
    fields = get_type_hints(of, include_extras=True) | {"type": Literal[kind]}
    body: Any = TypedDict(name, fields)  # type: ignore[misc]
    body.__doc__ = f"The body of `{kind}`{note}."
    return body


def _event(kind: str, body: Any, summary: str) -> None:
    def receive(body: Any) -> None:
        """Signed as Standard Webhooks are. May come more than once, or out of order."""

    receive.__annotations__["body"] = body
    events.post(
        kind,
        operation_id="on" + "".join(part.capitalize() for part in kind.split(".")),
        summary=summary,
        responses=_ANSWERS,
        dependencies=[Depends(_headers)],
    )(receive)


events = APIRouter()
for _kind, _of, _note, _summary in (
    ("job.completed", JobEvent, "", "A job is completed"),
    ("job.failed", JobEvent, "", "A job has failed"),
    ("job.cancelled", JobEvent, "", "A job was cancelled"),
    ("job.erased", JobEvent, _SUBSCRIBED, "A job's content was erased"),
    ("job.progress", JobEvent, _SUBSCRIBED, "A job goes on: at most every 10 seconds"),
    ("translation.completed", TranslationEvent, "", "A translation is made"),
    ("translation.failed", TranslationEvent, "", "A translation could not be made"),
):
    _event(_kind, _body(_kind, _of, _note), _summary)
_event(TEST_EVENT, WebhookTestEvent, "A test event")
