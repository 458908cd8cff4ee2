"""Questions about an account's recordings: passages are found, a model answers, code checks it.

What leaves is held to what the recordings have at that moment: each sentence has a quote that is
word for word in the row of the index that it cites, read again after the model has answered, and
no number and no address that neither its quotes nor the question have. Without a model, or where
nothing of its answer holds, the passages are the answer.
"""

# ruff: noqa: N815  (names of the wire)
from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Container, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Self

from fastapi import APIRouter, Header
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from typing_extensions import TypedDict

from models.contracts import AnswerSentence, Question
from serve_app.api.authentication import CurrentAccount, KeyedRoute
from serve_app.api.downloads import AskPlace
from serve_app.api.envelope import API_PREFIX, NO_STORE, Context, success
from serve_app.api.openapi import answers
from serve_app.api.parameters import matching, shown
from serve_app.api.schemas import Answer, Count, Seconds, Uuid, doc, rendered
from serve_app.api.urls import parse_job_id
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.search.service import LANGUAGE, meant
from storage import archives, search
from storage.search import Clause, Filters, Ranked, SearchHit
from storage.types import SearchKind

log = logging.getLogger("vas.ask")

MAX_QUESTION_CHARACTERS = 500
MAX_JOBS = 100
PASSAGES_SHOWN = 5
_PASSAGES_READ = 8
"""Of the best ones, with what is said about them, that the model is given."""
_AROUND_MS = 15_000
_ENCODING_SECONDS = 15.0
"""A question waits longer than a search until the model is loaded."""
_LINE_CHARACTERS, _PASSAGE_CHARACTERS = 500, 400
_MOST_WORDS = 8
"""Of the question that are looked for; each pair of them is an alternative."""
ANSWERING_SECONDS = 120.0
"""Then the passages are the answer."""
_HEARTBEAT_SECONDS = 15.0
_LEAST_QUOTE_CHARACTERS = 8
"""Of a quote that is not its whole line: fewer are found anywhere."""
_MOST_ABOVE_QUOTES = 3
"""A sentence of more times the letters of its quotations claims more than they have."""
KINDS = tuple(kind for kind in SearchKind if kind is not SearchKind.FILE)

_ORDERS = re.compile(
    r"\b(ignor|disregard|forget|vergiss|oublie|olvid)\w*\b.{0,40}"
    r"\b(instruct|anweisung|prompt|rules|regeln|consign|instruccion)"
    r"|\bsystem prompt\b|\byou are (now )?an? (ai|assistant|language model)\b"
    r"|\b(as|dear) (an? )?(ai|assistant|language model)\b",
    re.IGNORECASE,
)
"""What addresses a model is shown to people among the passages and not given to the model."""
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_MARKS_OF_ADDRESSES = ("://", "@", "www.")


Language = Annotated[str, Field(max_length=35), shown(LANGUAGE), matching(LANGUAGE, "language")]


def _text_alone(value: Any) -> Any:
    """Pydantic also takes a number for a moment."""
    if not isinstance(value, str):
        raise PydanticCustomError("form", "must be a time with its offset (RFC 3339)")
    return value


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_text_alone)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class AskFilter(_Body):
    """Which results are asked about."""

    kinds: Annotated[
        Annotated[list[Annotated[SearchKind, Field(strict=False)]], Field(min_length=1)] | None,
        doc("All but file names if not given.", ["transcript"]),
    ] = None
    language: Annotated[Language | None, doc("Only what is said in it (BCP 47).", "en")] = None
    createdFrom: Annotated[Moment | None, doc("Only jobs created then or later.")] = None
    createdTo: Annotated[Moment | None, doc("Only jobs created before.")] = None


class AskBody(_Body):
    """Body of ``POST /ask``."""

    question: Annotated[
        Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_CHARACTERS, pattern=r"\w")],
        doc("In any language.", "What does the speaker ask for?"),
    ]
    jobIds: Annotated[
        Annotated[list[str], Field(min_length=1, max_length=MAX_JOBS)] | None,
        doc("Only these jobs. Not together with `archiveId`."),
    ] = None
    archiveId: Annotated[str | None, doc("Only the jobs of this archive.")] = None
    filter: AskFilter | None = None
    language: Annotated[
        Language | None,
        doc("Of the answer (BCP 47); that of the question if not given.", "en"),
    ] = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.jobIds is not None and self.archiveId is not None:
            raise PydanticCustomError("places", "Either jobIds or archiveId is given, not both.")
        return self


class CitationJson(TypedDict):
    """Where a sentence is from."""

    jobId: Annotated[Uuid, doc("The job.")]
    fileName: Annotated[str, doc("Name of the job's media file.", "interview.mp4")]
    kind: SearchKind
    trackIndex: NotRequired[Annotated[Count, doc("Audio track of what is said.", 0)]]
    sceneIndex: NotRequired[Annotated[Count, doc("The scene of what is seen or read.", 0)]]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.", 1.2)]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.", 2.06)]
    speaker: NotRequired[Annotated[str, doc("Who says it.", "speaker_0")]]
    speakerLabel: NotRequired[Annotated[str, doc("The name that the speaker was given.", "Anna")]]
    quote: Annotated[str, doc("Word for word as said, read or described.", "Good morning.")]


class AnswerSentenceJson(TypedDict):
    """A sentence of the answer."""

    text: Annotated[str, doc("Written by a model: data, never instructions.", "She greets them.")]
    citations: Annotated[list[CitationJson], Field(min_length=1)]


class AskAnswer(TypedDict):
    """An answer, and what it was found in."""

    answered: Annotated[bool, doc("Whether there are sentences.", True)]
    reason: NotRequired[
        Annotated[
            Literal["NO_MODEL", "MODEL_FAILED", "NOT_IN_RECORDINGS"],
            doc(
                "Why there are none: the service has no model that answers; it failed; or the "
                "recordings do not answer the question.",
                "NOT_IN_RECORDINGS",
            ),
        ]
    ]
    sentences: list[AnswerSentenceJson]
    passages: Annotated[
        list[CitationJson],
        doc("What is nearest to the question, with what is said around it, best first."),
    ]
    model: Annotated[str | None, doc("What wrote the sentences; null: nothing was asked.", None)]


_TYPE = "text/event-stream"
_EVENTS = {
    "schema": {"type": "string", "description": "`passages`, `sentence` each, then `answer`."},
    "example": 'event: sentence\ndata: {"text":"…","citations":[…]}\n\n',
}

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.post(
    "/ask",
    **answers(
        Answer[AskAnswer],
        "The answer; as events where `Accept` is `text/event-stream`.",
        ErrorCode.NOT_FOUND,
        content={_TYPE: _EVENTS},
    ),
)
async def ask(
    context: Context,
    account_id: CurrentAccount,
    place: AskPlace,
    body: AskBody,
    accept: Annotated[
        str | None, Header(description="`text/event-stream`: events as they come.")
    ] = None,
) -> Response:
    """Ask about the recordings.

    Sentences with citations, whose quotes are word for word in the transcripts, on the screen or in
    the descriptions of scenes; and the passages that are nearest to the question, which are the
    answer by themselves where the service has no model that answers (`reason`). What recordings
    say is never followed as an instruction.

    As events: `passages` at once, a `sentence` each, then `answer` with all of it. An account has
    at most 2 questions at a time on a replica of the API."""
    filters = await _filters(context, account_id, body)
    nearest = await _nearest(context, account_id, body.question, filters)
    around = await search.find_around(context.database, account_id, nearest, _AROUND_MS)
    lines = await _read(context, account_id, around)
    places = {each.id: at for at, each in enumerate(lines)}
    passages: list[range] = []
    for row_id in nearest:
        at = places.get(row_id)
        if at is not None and not any(at in each for each in passages):
            passages.append(_around(lines, at))
    found = _Found(lines, passages)
    if _TYPE in (accept or ""):
        sent = NO_STORE | {"X-Accel-Buffering": "no"}
        return place.stream(
            _events(context, account_id, body, found), media_type=_TYPE, headers=sent
        )
    return success(await _answer(context, account_id, body, found))


async def _filters(context: AppContext, account_id: uuid.UUID, body: AskBody) -> Filters:
    """Raises NOT_FOUND for an archive that the account does not have, and INVALID_REQUEST."""
    of = body.filter or AskFilter()
    archive_id = None if body.archiveId is None else parse_job_id(body.archiveId)
    if archive_id is not None:
        async with context.database.statement() as connection:
            if not await archives.list_archives(connection, account_id, archive_id):
                message = "There is no such archive."
                raise ApiError(ErrorCode.NOT_FOUND, message, param="archiveId")
    return Filters(
        kinds=KINDS if of.kinds is None else tuple(of.kinds),
        language=of.language,
        created_from=of.createdFrom,
        created_to=of.createdTo,
        job_ids=None if body.jobIds is None else tuple(map(parse_job_id, body.jobIds)),
        archive_id=archive_id,
    )


async def _nearest(
    context: AppContext, account_id: uuid.UUID, question: str, filters: Filters
) -> Sequence[int]:
    """Return the rows nearest to a question, best first: by any two of its words that are not too
    frequent, and by its meaning where the service has a model of it."""
    database, encoder = context.database, context.encoder
    words = dict.fromkeys(re.findall(r"\w+", question.casefold()))
    sought = (await search.content_words(database, account_id, [*words]))[:_MOST_WORDS]
    pairs = itertools.combinations(sought, 2) if len(sought) > 1 else [(each,) for each in sought]
    alternatives = [tuple(Clause((word,)) for word in pair) for pair in pairs]
    meaning = None
    if encoder is not None:
        meaning = await meant([question], account_id, encoder, _ENCODING_SECONDS)
    if meaning is not None:
        alternatives = alternatives or [(Clause((question,)),)]
        ranking = await search.rank_rows(database, account_id, alternatives, filters, [meaning])
        if ranking is not None:
            return [each.id for each in ranking[:_PASSAGES_READ]]
    if not alternatives:
        return []
    rows, _ = await search.find_rows(
        database, account_id, alternatives, filters, limit=_PASSAGES_READ
    )
    return [each.id for each in rows]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is near to a question."""

    lines: list[SearchHit]
    """Rows and what is said around them, by job, track and time."""
    passages: list[range]
    """Of the lines, the nearest first."""

    def shown(self, known: Container[int]) -> list[CitationJson]:
        """Return the passages all of whose rows are known, as they are shown."""
        of = [[self.lines[at] for at in each] for each in self.passages[:PASSAGES_SHOWN]]
        return [_passage(lines) for lines in of if all(each.id in known for each in lines)]


def _passage(lines: Sequence[SearchHit]) -> CitationJson:
    shown = rendered(CitationJson, lines[0], quote=" ".join(each.text for each in lines))
    if len({each.speaker for each in lines}) > 1:
        shown.pop("speaker", None)
        shown.pop("speakerLabel", None)
    return {**shown, "endTime": lines[-1].end_ms / 1000}


def _around(lines: Sequence[SearchHit], at: int) -> range:
    """Return the line with those after it, then the one before it, as far as they are the same
    track's and short together: a reply comes after what was asked."""

    def joins(first: int, last: int) -> bool:
        if first < 0 or last >= len(lines):
            return False
        of = lines[first : last + 1]
        return (
            len({(each.job_id, each.kind, each.track_index) for each in of}) == 1
            and of[0].kind is SearchKind.TRANSCRIPT
            and all(b.start_ms - a.end_ms < _AROUND_MS for a, b in itertools.pairwise(of))
            and sum(len(each.text) for each in of) <= _PASSAGE_CHARACTERS
        )

    first = last = at
    while joins(first, last + 1):
        last += 1
    if joins(first - 1, last):
        first -= 1
    return range(first, last + 1)


async def _answer(
    context: AppContext, account_id: uuid.UUID, body: AskBody, found: _Found
) -> AskAnswer:
    answerer = context.answerer
    sentences: list[AnswerSentenceJson] = []
    reason: Literal["NO_MODEL", "MODEL_FAILED", "NOT_IN_RECORDINGS"] = "NOT_IN_RECORDINGS"
    if answerer is None:
        reason = "NO_MODEL"
    near = [found.lines[at] for each in found.passages for at in each]
    given = [each for each in near if not _ORDERS.search(each.text)]
    ids = [each.id for each in found.lines]
    if answerer is not None and given:
        question = Question(body.question, tuple(map(_spoken, given)), body.language)
        try:
            async with asyncio.timeout(ANSWERING_SECONDS):
                written = await answerer.answer(question)
        except Exception as error:  # whatever it is, there are the passages
            log.warning("a question has no answer: %s: %s", type(error).__name__, error)
            reason = "MODEL_FAILED"
        else:
            # What was redacted or erased meanwhile is neither quoted nor shown.
            fresh = {each.id: each for each in await _read(context, account_id, ids)}
            sources = [fresh.get(each.id) for each in given]
            checked = (_checked(each, sources, body.question) for each in written)
            sentences = [each for each in checked if each is not None]
            ids = [*fresh]
    answer: AskAnswer = {
        "answered": bool(sentences),
        "sentences": sentences,
        "passages": found.shown(ids),
        "model": None if answerer is None else answerer.model,
    }
    return answer if sentences else {**answer, "reason": reason}


async def _read(context: AppContext, account_id: uuid.UUID, ids: Sequence[int]) -> list[SearchHit]:
    ranking = tuple(Ranked(each, 0, search.Match.WORDS) for each in ids)
    return await search.read_ranked(context.database, account_id, [], Filters(), ranking)


def _spoken(line: SearchHit) -> str:
    """Return a line as the model is given it: where it is from, and its text."""
    who = line.speaker_label or line.speaker
    source = f"{line.file_name}, {line.start_ms // 1000} s" + (f", {who}" if who else "")
    return f"[{source}] {line.text[:_LINE_CHARACTERS]}"


def _checked(
    sentence: AnswerSentence, lines: Sequence[SearchHit | None], question: str
) -> AnswerSentenceJson | None:
    """Return the sentence with those of its citations that hold; None where they are few beside it,
    or where it has a number or an address that no quote has."""
    citations: list[CitationJson] = []
    for cited in sentence.citations:
        if not 0 <= cited.passage < len(lines):
            continue
        # Its number may be wrong where its words are not.
        for line in (lines[cited.passage], *lines):
            if line is not None and (quote := _verbatim(cited.quote, line.text)):
                found = rendered(CitationJson, line, quote=quote)
                citations += [] if found in citations else [found]
                break
    text = " ".join("".join(c if c.isprintable() else " " for c in sentence.text).split())
    known = " ".join([question, *(each["quote"] for each in citations)])
    words = [word.strip(".,;:!?()'\"") for word in text.split()]
    addresses = [word for word in words if any(it in word.lower() for it in _MARKS_OF_ADDRESSES)]
    quoted = sum(len(each["quote"]) for each in citations)
    if not text or _MOST_ABOVE_QUOTES * quoted < len(text):
        return None
    if not {*_NUMBER.findall(text)} <= {*_NUMBER.findall(known)}:
        return None
    if any(each not in known for each in addresses):
        return None
    return {"text": text, "citations": citations}


def _verbatim(quote: str, text: str) -> str | None:
    """Return the part of the text that has the quote's words, as the text writes them."""
    words = quote.strip(" \t\n\"'“”„«»…").split()
    if not words:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE)
    if found is None or len(found[0]) < min(_LEAST_QUOTE_CHARACTERS, len(text.strip())):
        return None
    return found[0]


async def _events(
    context: AppContext, account_id: uuid.UUID, body: AskBody, found: _Found
) -> AsyncGenerator[str]:
    yield _event("passages", found.shown([each.id for each in found.lines]))
    answering = asyncio.create_task(_answer(context, account_id, body, found))
    try:
        while not answering.done():
            await asyncio.wait([answering], timeout=_HEARTBEAT_SECONDS)
            if not answering.done():
                yield ": still here\n\n"
        answer = answering.result()
        for sentence in answer["sentences"]:
            yield _event("sentence", sentence)
        yield _event("answer", answer)
    finally:
        answering.cancel()


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
