"""Two cuts of a film compared: what became of shots, words and titles."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Annotated, Any, Literal, NotRequired

from pydantic_core import from_json
from typing_extensions import TypedDict

from pipelines.across import comparison
from pipelines.speech.captions import vtt_time
from pipelines.speech.edits import WordChange, Words, changed_words
from pipelines.types import Scene, ScreenText
from pipelines.vision.fingerprints import Fingerprints
from serve_app.api.schemas import Count, Seconds, Share, Timestamp, Url, Uuid, doc, rendered
from serve_app.api.urls import OVERVIEW_STILL, parse_job_id, still_path
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.exports.timeline import Section
from serve_app.results.availability import no_result, require_stage
from serve_app.results.scenes import find_overview, scenes_of
from serve_app.results.transcripts import transcript_of
from storage import comparisons as stored
from storage import jobs, results
from storage.database import Connection
from storage.job_records import JobRecord
from storage.tables import CutComparison
from storage.types import ANALYSES, ComparisonState, SkipReason, StageName, StageStatus

Side = Literal["from", "to"]


class ShotSpanJson(TypedDict):
    """A shot of a cut, neighbouring ones, or the part of one that was cut into."""

    sceneIndex: Annotated[Count, doc("The first scene; 0 where the video has no cuts.")]
    scenes: Annotated[int, doc("How many scenes.", 1, ge=1)]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the cut.")]
    endTime: Annotated[Seconds, doc("Where it ends.")]
    stillUrl: Annotated[Url, doc("A still; signed, needs no key, expires.")]


ShotPairJson = TypedDict(
    "ShotPairJson",
    {
        "change": Annotated[comparison.ShotChange, doc("What became of it.", "moved")],
        "from": NotRequired[Annotated[ShotSpanJson, doc("In the first cut; not of added ones.")]],
        "to": NotRequired[Annotated[ShotSpanJson, doc("In the second; not of removed ones.")]],
        "moved": Annotated[bool, doc("Whether it is at another place among the others.", False)],
        "retimed": Annotated[bool, doc("Whether it is longer or shorter.", False)],
        "headSeconds": Annotated[
            float, doc("How much later in the shot it begins now; negative: earlier.", 0.0)
        ],
        "tailSeconds": Annotated[
            float, doc("How much earlier in the shot it ends now; negative: later.", 0.0)
        ],
        "speed": Annotated[float, doc("How much faster it runs now.", 1.0, ge=0)],
        "reframed": Annotated[bool, doc("Whether it shows a part of the picture, or more.", False)],
        "similarity": Annotated[Share, doc("Of the pictures, whatever their grade.", 0.97)],
    },
)


class SpokenJson(TypedDict):
    """Words of a cut."""

    text: Annotated[str, doc("As written.", "good morning")]
    startTime: Annotated[Seconds, doc("Where they begin, in seconds of the cut.")]
    endTime: Annotated[Seconds, doc("Where they end.")]


class WrittenJson(TypedDict):
    """A line of writing in a cut."""

    text: Annotated[str, doc("As read.", "Anna Weber, baker")]
    sceneIndex: Annotated[Count, doc("The scene.")]
    startTime: NotRequired[Annotated[Seconds, doc("From when it is there.")]]


_ENDS = {"from": "In the first cut.", "to": "In the second cut."}
WordChangeJson = TypedDict(
    "WordChangeJson",
    {
        "from": NotRequired[Annotated[SpokenJson, doc(_ENDS["from"])]],
        "to": NotRequired[Annotated[SpokenJson, doc(_ENDS["to"])]],
    },
)
TitleChangeJson = TypedDict(
    "TitleChangeJson",
    {
        "from": NotRequired[Annotated[WrittenJson, doc(_ENDS["from"])]],
        "to": NotRequired[Annotated[WrittenJson, doc(_ENDS["to"])]],
    },
)


class ShotCounts(TypedDict):
    """How many shots of each kind."""

    kept: int
    retimed: int
    moved: int
    removed: int
    added: int


ComparisonJson = TypedDict(
    "ComparisonJson",
    {
        "from": Annotated[Uuid, doc("The job of the first cut.")],
        "to": Annotated[Uuid, doc("The job of the second cut.")],
        "identical": Annotated[bool, doc("Whether nothing changed.", False)],
        "counts": ShotCounts,
        "shots": Annotated[
            list[ShotPairJson],
            doc(
                "All shots by their place in the second cut; removed ones behind what they followed"
            ),
        ],
        "words": Annotated[list[WordChangeJson], doc("What is said otherwise, in order.")],
        "titles": Annotated[list[TitleChangeJson], doc("What is written otherwise, by shot.")],
    },
)


class ComparisonFault(TypedDict):
    """Why there is none."""

    code: Annotated[ErrorCode, doc("A code of the catalogue.", "INVALID_REQUEST")]
    message: Annotated[str, doc("In a sentence.", "The cut is too long to be compared.")]
    param: NotRequired[Annotated[Side, doc("Which of the jobs it is about.", "from")]]


_OF_FAULT = ("code", "message", "param")

ComparisonStatus = TypedDict(
    "ComparisonStatus",
    {
        "comparisonId": Annotated[Uuid, doc("The comparison.")],
        "state": Annotated[ComparisonState, doc("`pending` until it has ended.", "completed")],
        "from": Annotated[Uuid, doc("The job of the first cut.")],
        "to": Annotated[Uuid, doc("The job of the second cut.")],
        "createdAt": Annotated[Timestamp, doc("When it was requested.")],
        "completedAt": NotRequired[Annotated[Timestamp, doc("When it was made, or failed.")]],
        "error": NotRequired[ComparisonFault],
        "result": NotRequired[ComparisonJson],
    },
)

_COME_BACK = {"Retry-After": "5"}
MOST_SAMPLES = 40_000
"""Of a cut: five and a half hours of shots shorter than half a minute."""
MOST_SHOTS = 4_000
MOST_WORDS = 100_000
"""Ten hours of speech."""


async def request_comparison(
    context: AppContext, account_id: uuid.UUID, before: str, after: str
) -> CutComparison:
    """The comparison of two jobs, queued where there is none. Raises as ``read_jobs``, and
    RATE_LIMITED."""
    async with context.database.transaction() as connection:
        one, other = (await read_jobs(connection, account_id, before, after))[0].values()
        try:
            queued = await stored.queue_comparison(connection, account_id, one.id, other.id)
        except stored.TooManyComparisonsError:
            message = f"At most {stored.MOST_PENDING} comparisons of an account at once."
            raise ApiError(ErrorCode.RATE_LIMITED, message, headers=_COME_BACK) from None
        found = await stored.find_comparison(connection, account_id, queued)
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such comparison any more.")
    return found


def status_json(found: CutComparison) -> ComparisonStatus:
    """Return a comparison as the API shows it, without its result."""
    given: dict[str, object] = {"from": str(found.before_id), "to": str(found.after_id)}
    if found.error is not None:
        given["error"] = {name: found.error[name] for name in _OF_FAULT if name in found.error}
    return rendered(ComparisonStatus, found, comparisonId=str(found.id), **given)


def result_json(
    found: CutComparison, document: str, context: AppContext, root: str
) -> ComparisonJson:
    """Return what was made, its stills at signed addresses below ``root``."""
    result: ComparisonJson = from_json(document)["result"]
    sides: dict[Side, uuid.UUID] = {"from": found.before_id, "to": found.after_id}
    for pair in result["shots"]:
        for side, job_id in sides.items():
            if side in pair:
                name = pair[side]["stillUrl"]
                pair[side]["stillUrl"] = root + still_path(context.signer, job_id, name)
    return result


@dataclass(frozen=True, slots=True)
class JobCut:
    """What a job has of a cut."""

    job: JobRecord
    prints: Fingerprints | None
    scenes: Sequence[Scene]
    written: Sequence[Scene]
    """The scenes, or without any the whole video as one."""
    words: Words | None

    def writing(self, shots: Sequence[int], span: tuple[int, int]) -> list[ScreenText]:
        """Of shots, what is there within ``span``: one that was cut into is compared in parts."""
        own = [self.written[at] for at in shots if at < len(self.written)]
        lines = chain(*(scene.on_screen_text for scene in own))
        return [line for line in lines if _is_within(line, *span)]

    def scene_at(self, time_ms: int) -> int:
        """Return the scene at a time, 0 where there are none."""
        found = (scene.index for scene in self.scenes if scene.start_ms <= time_ms < scene.end_ms)
        return next(found, 0)


def _is_within(line: ScreenText, start_ms: int, end_ms: int) -> bool:
    """Return whether a line is there for half a second of a span, or half of its own time where
    that is shorter: borders of lines are found to as much."""
    if line.start_ms is None or line.end_ms is None:
        return True
    shared = min(end_ms, line.end_ms) - max(start_ms, line.start_ms)
    return 2 * shared >= min(1000, line.end_ms - line.start_ms)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of everything."""

    before: JobCut
    after: JobCut
    shots: Sequence[comparison.ShotPair]
    words: Sequence[WordChange]
    titles: Sequence[comparison.TitleChange]


async def read_jobs(
    connection: Connection, account_id: uuid.UUID, before: str, after: str
) -> tuple[dict[Side, JobRecord], list[StageName]]:
    """Both jobs, and the stages that both have. Raises NOT_FOUND, RESULTS_NOT_READY,
    RESULTS_UNAVAILABLE and INVALID_REQUEST, naming the field."""
    sides: dict[Side, str] = {"from": before, "to": after}
    found = {
        side: await jobs.find_job(connection, parse_job_id(name), account_id=account_id)
        for side, name in sides.items()
    }
    listed = dict[Side, JobRecord]()
    for side, job in found.items():
        if job is None or job.erased_at is not None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.", param=side)
        listed[side] = job
    both = [
        stage
        for stage in ANALYSES
        if all(it.stages[stage].status is not StageStatus.SKIPPED for it in listed.values())
    ]
    for side, job in listed.items():
        # Without anything in common the error is that of the first stage.
        for stage in both or ANALYSES[:1]:
            try:
                require_stage(job, stage)
            except ApiError as refused:
                refused.param = side
                raise
    if not both:
        raise invalid("One job has scenes only, the other a transcript only.", "to")
    if StageName.VISION in both:
        for side, job in listed.items():
            if not await results.has_fingerprints(connection, job.id):
                message = "It was analysed before there were fingerprints: rerun its vision stage."
                missing = no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED)
                missing.param = side
                raise missing
    return listed, both


async def read_cuts(
    context: AppContext, account_id: uuid.UUID, before: uuid.UUID, after: uuid.UUID
) -> tuple[JobCut, JobCut]:
    """Both, with what both have. Raises as ``read_jobs``."""
    listed, both = await context.database.read(read_jobs, account_id, str(before), str(after))
    one, other = [await _cut(context, side, job, both) for side, job in listed.items()]
    return one, other


async def _cut(
    context: AppContext, side: Side, job: JobRecord, stages: Sequence[StageName]
) -> JobCut:
    async with context.database.statement() as connection:
        prints, listed, whole, words = None, "[]", None, None
        if StageName.VISION in stages:
            listed = await results.get_scenes(connection, job.id)
            whole = await find_overview(connection, job.id)
            prints = await results.find_fingerprints(connection, job.id)
        if StageName.TRANSCRIPT in stages:
            words = await results.list_transcripts(connection, job.id)

    def read() -> JobCut:
        shown = None if prints is None else Fingerprints.from_bytes(prints)
        if shown is not None and (
            len(shown.times_ms) > MOST_SAMPLES or len(shown.counts) > MOST_SHOTS
        ):
            raise invalid("The cut is too long to be compared.", side)
        spoken = None
        if words is not None:
            segments = chain(*(transcript_of(track).segments for track in words[:1]))
            spoken = [word for segment in segments for word in segment.words]
            if len(spoken) > MOST_WORDS:
                raise invalid("It has too many words to be compared.", side)
        scenes = scenes_of(listed)
        return JobCut(job, shown, scenes, scenes or (whole and [whole]) or [], spoken)

    return await asyncio.to_thread(read)


def compared(before: JobCut, after: JobCut, check: Callable[[], None]) -> dict[str, object]:
    """Return what is stored of a comparison: its result, with names of stills in place of
    addresses, and the sections of its files.

    Takes 38 processor seconds for two films of two hours and 1,000 shots, some minutes at most.
    ``check`` may raise, to stop it.
    """
    shots: Sequence[comparison.ShotPair] = ()
    titles = list[comparison.TitleChange]()
    if before.prints is not None and after.prints is not None:
        shots = comparison.compare_shots(before.prints, after.prints, check)
        for pair in shots:
            check()
            titles += comparison.changed_titles(
                before.writing(pair.before, pair.before_ms),
                after.writing(pair.after, pair.after_ms),
            )
    words = list[WordChange]()
    if before.words is not None and after.words is not None:
        words += changed_words(before.words, after.words)
    found = Comparison(before, after, shots, words, titles)
    sections = [astuple(section) for section in comparison_sections(found)]
    return {"result": comparison_json(found), "sections": sections}


def comparison_json(found: Comparison) -> ComparisonJson:
    """As the API shows it, with names of stills in place of their addresses."""
    shown = [_pair_json(found, pair) for pair in found.shots]
    counts: ShotCounts = {"kept": 0, "retimed": 0, "moved": 0, "removed": 0, "added": 0}
    for pair in found.shots:
        counts[pair.change.value] += 1
    unchanged = counts["kept"] == len(shown) and not found.words and not found.titles
    return {
        "from": str(found.before.job.id),
        "to": str(found.after.job.id),
        "identical": unchanged,
        "counts": counts,
        "shots": shown,
        "words": [_sides(found, each, _spoken) for each in found.words],
        "titles": [_sides(found, each, _written) for each in found.titles],
    }


def _pair_json(found: Comparison, pair: comparison.ShotPair) -> ShotPairJson:
    alike = round(min(1.0, max(0.0, pair.similarity)), 4)
    shown = rendered(ShotPairJson, pair, speed=round(pair.speed, 3), similarity=alike)
    if pair.before:
        shown["from"] = _span_json(found.before, pair.before, pair.before_ms)
    if pair.after:
        shown["to"] = _span_json(found.after, pair.after, pair.after_ms)
    return shown


def _span_json(cut: JobCut, shots: Sequence[int], span: tuple[int, int]) -> ShotSpanJson:
    name = shots[0] if cut.scenes else OVERVIEW_STILL
    return {
        "sceneIndex": shots[0],
        "scenes": len(shots),
        "startTime": span[0] / 1000,
        "endTime": span[1] / 1000,
        "stillUrl": str(name),
    }


def _sides(
    found: Comparison,
    change: WordChange | comparison.TitleChange,
    show: Callable[[JobCut, Any], Any],
) -> Any:
    """Return what is there of a change on either side, as ``show`` does."""
    sides = {"from": (found.before, change.before), "to": (found.after, change.after)}
    return {side: show(cut, own) for side, (cut, own) in sides.items() if own}


def _spoken(_: JobCut, words: Words) -> SpokenJson:
    return {
        "text": " ".join(word.text for word in words),
        "startTime": words[0].start_ms / 1000,
        "endTime": words[-1].end_ms / 1000,
    }


def _written(cut: JobCut, line: ScreenText) -> WrittenJson:
    shown: WrittenJson = {"text": line.text, "sceneIndex": cut.scene_at(line.start_ms or 0)}
    if line.start_ms is not None:
        shown["startTime"] = line.start_ms / 1000
    return shown


def comparison_sections(found: Comparison) -> list[Section]:
    """Return the shots of the second cut; what was removed stands in the note of the one before it,
    or of the first."""
    sections = list[Section]()
    removed = list[str]()
    for pair in found.shots:
        if not pair.after:
            removed.append(_time_range(pair.before_ms))
            if not sections:
                continue
            last = sections[-1]
            note = "; ".join(filter(None, (last.note, f"then removed: {removed.pop()}")))
            sections[-1] = Section(last.start_ms, last.end_ms, last.name, note)
            continue
        note = "" if not pair.before else f"from {_time_range(pair.before_ms)}"
        note = note if pair.change is not comparison.ShotChange.KEPT else ""
        if removed:
            note = "; ".join(filter(None, (note, *(f"before it removed: {it}" for it in removed))))
            removed.clear()
        sections.append(Section(*pair.after_ms, pair.change.value, note))
    return sections


def _time_range(span: tuple[int, int]) -> str:
    return " to ".join(map(vtt_time, span))
