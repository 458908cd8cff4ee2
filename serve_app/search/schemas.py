"""What a search answers."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from serve_app.api.schemas import Count, RequestId, Seconds, Uuid, doc
from storage.types import SearchKind

SearchMode = Literal["text", "hybrid", "like"]


class MatchedRange(TypedDict):
    """A part of a snippet that matches, in characters (Unicode code points) of its text."""

    start: Annotated[Count, doc("Its first character, from 0.", 5)]
    end: Annotated[Count, doc("The character after its last.", 12)]


class Snippet(TypedDict):
    """The text around a match: plain text, never markup."""

    text: Annotated[str, doc("As said, read or described.", "Good morning.")]
    ranges: Annotated[
        list[MatchedRange],
        doc("What matches, in order; none overlap. Empty where the meaning alone does."),
    ]


class SearchHitJson(TypedDict):
    """Something that was found."""

    jobId: Annotated[Uuid, doc("The job.")]
    fileName: Annotated[str, doc("Name of the job's media file.", "interview.mp4")]
    kind: SearchKind
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.", 1.2)]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.", 2.06)]
    trackIndex: NotRequired[Annotated[Count, doc("Audio track of what is said.", 0)]]
    sceneIndex: NotRequired[Annotated[Count, doc("The scene, where one was found.", 0)]]
    speaker: NotRequired[Annotated[str, doc("Who says it.", "speaker_0")]]
    speakerLabel: NotRequired[Annotated[str, doc("The name that the speaker was given.", "Anna")]]
    snippet: Snippet
    score: Annotated[float, doc("Higher is better; of use within one search only.", 0.84, ge=0)]
    foundBy: Annotated[
        list[Literal["words", "meaning", "picture"]],
        doc(
            "What of it matches the query: its words, their meaning, or the scene's still.",
            ["words"],
        ),
    ]


class SearchPage(TypedDict):
    """A page of what was found, best first."""

    data: Annotated[list[SearchHitJson], doc("May hold fewer than `limit`.")]
    hasMore: Annotated[bool, doc("Whether another page follows.", False)]
    nextCursor: Annotated[str | None, doc("Pass it as `cursor` for the next page.", None)]
    mode: Annotated[
        SearchMode,
        doc(
            "`text`: by the words of the query; `hybrid`: by its meaning too, and by what stills "
            "show; `like`: by what stills look like.",
            "text",
        ),
    ]
    requestId: RequestId
