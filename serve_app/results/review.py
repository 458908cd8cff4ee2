"""What of a job's results a person should check, and the errors expected before and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.across.review import Doubt, Expected, Review, ReviewReason, review_of
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import LargeResults
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import OF_RESULTS, answers
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.schemas import Answer, Count, Seconds, Share, Uuid, doc
from serve_app.results import transcripts
from serve_app.results.routes import TrackQuery
from serve_app.results.scenes import scenes_of
from storage import results
from storage.job_records import JobRecord
from storage.results import TrackTranscript
from storage.types import StageName, StageStatus

MOST_BUDGET_SECONDS = 86_400
_Amount = Annotated[float, Field(ge=0)]


class ExpectedErrors(TypedDict):
    """How much is expected to be wrong."""

    wrongWords: Annotated[_Amount, doc("Words that are written and were not spoken.", 12.4)]
    wordErrorRate: Annotated[
        _Amount, doc("Wrong and missing words for each that is written.", 0.067)
    ]
    wrongCuts: Annotated[_Amount, doc("Cuts between scenes that are none.", 0.3)]
    errors: Annotated[_Amount, doc("Wrong and missing words, and wrong cuts.", 13.1)]


class ReviewStretch(TypedDict):
    """An interval to listen to in one go."""

    startTime: Annotated[Seconds, doc("Where to begin, a little before what is doubted.")]
    endTime: Annotated[Seconds, doc("Where to end.")]
    reasons: Annotated[list[ReviewReason], doc("Why it is doubted.", ["words"])]
    expectedErrors: Annotated[_Amount, doc("How many are expected to be found in it.", 2.1)]
    segments: Annotated[list[Count], doc("Indices of the segments that are doubted.", [4, 5])]
    text: Annotated[str, doc("What they have, a line each.", "Good morning.")]


class JobReview(TypedDict):
    """What to check by eye and ear."""

    jobId: Annotated[Uuid, doc("The job.")]
    trackIndex: Annotated[Count, doc("The track.", 0)]
    revision: Annotated[Count, doc("Of its transcript.", 0)]
    calibrated: Annotated[
        bool, doc("Whether the confidences of its words are calibrated: else they are the model's.")
    ]
    budgetSeconds: Annotated[Count, doc("As requested.", 300)]
    reviewSeconds: Annotated[Seconds, doc("How long all intervals are.")]
    uncheckedShare: Annotated[Share, doc("Of the words, those that nobody corrected.")]
    before: Annotated[ExpectedErrors, doc("Expected now.")]
    after: Annotated[ExpectedErrors, doc("Expected once the intervals are corrected.")]
    stretches: Annotated[
        list[ReviewStretch],
        doc("The most errors a second first; at most 1,000, none longer than 30 seconds."),
    ]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get("/jobs/{jobId}/review", **answers(Answer[JobReview], "What to check.", *OF_RESULTS))
async def get_review(
    context: Context,
    job: CurrentJob,
    answer: LargeResults,
    budgetSeconds: Annotated[  # noqa: N803 - the API's name
        Annotated[int, Field(ge=1, le=MOST_BUDGET_SECONDS), WHOLE_NUMBER],
        Query(description="How long somebody may listen, in seconds."),
    ] = 300,
    track: TrackQuery = None,
) -> Response:
    """Find what to check.

    The intervals most worth a person's time, and the errors expected before and after.

    Segments that were corrected count as right. Expected errors follow from the confidences of
    words and of cuts."""
    transcripts.require_choice(job, track)
    seen, spoken = await context.database.read(results.stored_bytes, job.id)
    async with answer.turn(seen + spoken):
        async with context.database.statement() as connection:
            tracks = await transcripts.read_tracks(connection, job)
            chosen = transcripts.choose_track(job, tracks, track)
            scenes = "[]"
            if job.stages[StageName.VISION].status is StageStatus.COMPLETED:
                scenes = await results.get_scenes(connection, job.id)
        former = chosen
        if chosen.revision > (chosen.redacted_revision or 0):
            machine = chosen.redacted_revision or 0
            former = await transcripts.at_revision(context.database, job, chosen, machine)
        found = await run_in_threadpool(_review, job, chosen, former, scenes, budgetSeconds)
    return success(found)


def _review(
    job: JobRecord, track: TrackTranscript, machine: TrackTranscript, scenes: str, budget: int
) -> JobReview:
    found = transcripts.transcript_of(track)
    checked = frozenset[int]()
    if machine is not track:
        # The segments that are not as the machine wrote them.
        segments = transcripts.transcript_of(machine).segments
        written = {(it.start_ms, it.end_ms, it.text, it.speaker) for it in segments}
        checked = frozenset(
            it.index
            for it in found.segments
            if (it.start_ms, it.end_ms, it.text, it.speaker) not in written
        )
    review = review_of(
        found.segments,
        scenes_of(scenes),
        found.warnings,
        language=found.language,
        checked=checked,
        budget_ms=1000 * budget,
        media_ms=job.duration_ms or max((each.end_ms for each in found.segments), default=0),
    )
    unchecked = sum(len(each.words) for each in found.segments if each.index not in checked)
    texts = {each.index: each.text for each in found.segments}
    return {
        "jobId": str(job.id),
        "trackIndex": track.track_index,
        "revision": track.revision,
        "calibrated": found.calibrated,
        "budgetSeconds": budget,
        "reviewSeconds": sum(each.length_ms for each in review.intervals) / 1000,
        "uncheckedShare": round(unchecked / max(1, review.words), 4),
        "before": _expected(review, review.before),
        "after": _expected(review, review.after),
        "stretches": [_interval(each, texts) for each in review.intervals],
    }


def _expected(review: Review, expected: Expected) -> ExpectedErrors:
    return {
        "wrongWords": round(expected.wrong_words, 2),
        "wordErrorRate": round(expected.word_errors / max(1, review.words), 4),
        "wrongCuts": round(expected.wrong_cuts, 2),
        "errors": round(expected.errors, 2),
    }


def _interval(interval: Doubt, texts: dict[int, str]) -> ReviewStretch:
    return {
        "startTime": interval.start_ms / 1000,
        "endTime": interval.end_ms / 1000,
        "reasons": sorted(interval.reasons),
        "expectedErrors": round(interval.expected.errors, 2),
        "segments": list(interval.segments),
        "text": "\n".join(texts[index] for index in interval.segments),
    }
