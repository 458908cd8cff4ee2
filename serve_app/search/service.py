"""A search: its query read, a page of it found, snippets cut; and the types of its answer."""

from __future__ import annotations

import asyncio
import re
import unicodedata
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple, NotRequired

import numpy as np
from typing_extensions import TypedDict

from serve_app.api.schemas import Count, RequestId, Seconds, Uuid, doc, rendered
from serve_app.context import PictureEncoder, TextEncoder
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.results.availability import no_result
from storage import jobs, search
from storage.database import Database
from storage.results import find_thumbnail_key
from storage.search_index import without_accents
from storage.search_vectors import STILLS, NoVectorsError, find_still
from storage.types import SearchKind, SkipReason, StageName

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


LANGUAGE = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
MAX_QUERY_CHARACTERS = 500
MAX_ALTERNATIVES = 8
"""Each has a vector, and costs what a search costs."""
MIN_PREFIX_CHARACTERS = 3
"""Fewer letters begin too many words."""
SNIPPET_CHARACTERS = 300
ENCODING_SECONDS = 1.0
"""What a search waits for the vector of its query; then it is by words alone."""
LEAST_SIMILARITY = 0.15
"""Cosine of the angle between a query and what is found by its meaning; of two sentences on other
subjects it is more in one pair of five (``search recall`` of the benchmarks)."""
LEAST_PROBABILITY = 0.005
"""That a still shows what is sought, as its model has it: a query is no caption, and the model is
sparing with what it calls one. Chosen without weights (``benchmarks.find_pictures``)."""

_TOKEN = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"'})


def parse_query(q: str) -> list[search.Alternative]:
    """Words, ``"phrases"``, ``-word``, ``beginning*``, alternatives with ``OR`` between them.

    Of alternatives that differ in case alone there is one. Raises INVALID_REQUEST, blaming ``q``.
    """
    if len(q) > MAX_QUERY_CHARACTERS:
        raise _bad(f"It has at most {MAX_QUERY_CHARACTERS} characters.")
    q = unicodedata.normalize("NFKC", q.translate(_QUOTES))
    if q.count('"') % 2:
        raise _bad("A quotation mark is not closed.")
    groups: list[list[search.Clause]] = [[]]
    for token in _TOKEN.finditer(q):
        if token[0] == "OR":
            groups.append([])
        else:
            groups[-1].extend(_clauses(token))
    if len(groups) > 1 and not all(groups):
        raise _bad("OR stands between two words.")
    if not all(any(not clause.negated for clause in group) for group in groups):
        raise _bad("There must be a word to look for.")
    alternatives = {tuple(_folded(clause) for clause in group): tuple(group) for group in groups}
    if len(alternatives) > MAX_ALTERNATIVES:
        raise _bad(f"OR stands between at most {MAX_ALTERNATIVES} alternatives.")
    return list(alternatives.values())


def _folded(clause: search.Clause) -> search.Clause:
    return replace(clause, words=tuple(word.casefold() for word in clause.words))


def _clauses(token: re.Match[str]) -> Iterator[search.Clause]:
    negated = bool(token["minus"])
    if token["phrase"] is not None:
        words = tuple(word for word in token["phrase"].split() if _has_letters(word))
        if words:
            yield search.Clause(words, negated)
        return
    word = token["word"]
    prefix = word.endswith("*")
    word = word.rstrip("*")
    if not _has_letters(word):
        return
    if prefix and len(word) < MIN_PREFIX_CHARACTERS:
        raise _bad(f"At least {MIN_PREFIX_CHARACTERS} characters stand before an asterisk.")
    yield search.Clause((word,), negated, prefix)


def _has_letters(word: str) -> bool:
    return any(character.isalnum() for character in word)


def _bad(message: str) -> ApiError:
    return invalid(f"q: {message}", "q")


End = search.MatchedPlace | search.Ranking
"""Where the next page goes on: a place among the matches, or the rest of a ranking."""

_RANKED = b"r"
_ID_BYTES = 5


def end_bytes(end: End) -> bytes:
    """For a cursor: 24 bytes of a place; one, and 8 for each row, of a ranking."""
    if isinstance(end, search.MatchedPlace):
        numbers = (end.newest_id, end.score, end.row_id)
        return b"".join(number.to_bytes(8) for number in numbers)
    rows = (
        each.id.to_bytes(_ID_BYTES) + (each.score << 3 | each.match).to_bytes(8 - _ID_BYTES)
        for each in end
    )
    return _RANKED + b"".join(rows)


def end_of(payload: bytes) -> End:
    """Return what ``end_bytes`` made the bytes of."""
    if len(payload) == 24:
        return search.MatchedPlace(*(int.from_bytes(payload[at : at + 8]) for at in (0, 8, 16)))
    rows = []
    for at in range(len(_RANKED), len(payload), 8):
        score = int.from_bytes(payload[at + _ID_BYTES : at + 8])
        row_id = int.from_bytes(payload[at : at + _ID_BYTES])
        rows.append(search.Ranked(row_id, score >> 3, search.Match(score & 7)))
    return tuple(rows)


class Page(NamedTuple):
    """Hits, where the next page goes on, and how they were found."""

    hits: list[SearchHitJson]
    end: End | None
    mode: SearchMode


async def find_page(
    database: Database,
    account_id: uuid.UUID,
    alternatives: list[search.Alternative],
    filters: search.Filters,
    *,
    limit: int,
    after: End | None = None,
    encoder: TextEncoder | None = None,
    pictures: PictureEncoder | None = None,
) -> Page:
    """Return the best hits of the account after those before; by meaning, and by what stills show,
    where that is possible."""
    words, ranking = _words(alternatives), after
    if after is None:
        sought = [" ".join(_words([clauses])) for clauses in alternatives]
        waiting = [] if encoder is None else [meant(sought, account_id, encoder, ENCODING_SECONDS)]
        if pictures is not None and SearchKind.SCENE in filters.kinds:
            waiting.append(_shown(sought, account_id, pictures))
        meanings = [each for each in await asyncio.gather(*waiting) if each is not None]
        if meanings:
            ranking = await search.rank_rows(database, account_id, alternatives, filters, meanings)
    if isinstance(ranking, tuple):
        shown, rest = ranking[:limit], ranking[limit:]
        rows = await search.read_ranked(database, account_id, alternatives, filters, shown)
        return Page([_hit(row, words) for row in rows], rest or None, "hybrid")
    rows, end = await search.find_rows(
        database, account_id, alternatives, filters, limit=limit, after=ranking
    )
    return Page([_hit(row, words) for row in rows], end, "text")


class Likeness(NamedTuple):
    """A scene whose like is sought."""

    job_id: uuid.UUID
    scene_index: int


async def find_alike_page(
    database: Database,
    account_id: uuid.UUID,
    like: Likeness,
    filters: search.Filters,
    *,
    limit: int,
    after: End | None = None,
    model: str | None = None,
) -> Page:
    """Return scenes of the account that look like one of its scenes, the most alike first.

    ``model`` names the picture model. Raises NOT_FOUND, RESULTS_UNAVAILABLE, RESULTS_NOT_READY.
    """
    ranking = after
    if not isinstance(ranking, tuple):  # a place is where a list by words goes on
        async with database.transaction() as connection:
            job = await jobs.find_job(connection, like.job_id, account_id=account_id)
            if job is None or await find_thumbnail_key(connection, *like) is None:
                raise ApiError(ErrorCode.NOT_FOUND, "There is no such scene.", param="like")
        if model is None:
            message = "The service has no model that compares pictures."
            raise no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED)
        try:
            still = await find_still(database, *like, model)
        except NoVectorsError:
            message = "The service's database cannot keep vectors of pictures."
            raise no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED) from None
        if still is None:
            raise no_result(job, StageName.VISION, "The scene's still has no vector yet.")
        row_id, sought = still
        if not sought.any():
            message = "The scene's still cannot be read."
            raise no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED)
        ranking = await search.rank_alike(
            database, account_id, filters, model, sought, without=row_id
        )
    rows = await search.read_ranked(database, account_id, [], filters, ranking[:limit])
    return Page([_hit(row, []) for row in rows], ranking[limit:] or None, "like")


async def meant(
    sought: list[str], account_id: uuid.UUID, encoder: TextEncoder, seconds: float
) -> search.Meaning | None:
    """Return what texts mean; None where the model does not answer in time."""
    vectors = await encoder.encode_within(sought, seconds, account_id)
    return None if vectors is None else search.Meaning(encoder.model, vectors, LEAST_SIMILARITY)


async def _shown(
    sought: list[str], account_id: uuid.UUID, pictures: PictureEncoder
) -> search.Meaning | None:
    phrases = await pictures.queries.encode_within(sought, ENCODING_SECONDS, account_id)
    if phrases is None:
        return None
    least = max(0.0, phrases[0].least_cosine(LEAST_PROBABILITY))
    vectors = np.array([each.vector for each in phrases])
    return search.Meaning(pictures.model, vectors, least, STILLS)


def _words(alternatives: list[search.Alternative]) -> list[str]:
    return [
        word
        for clauses in alternatives
        for clause in clauses
        if not clause.negated
        for word in clause.words
    ]


def _hit(row: search.SearchHit, words: list[str]) -> SearchHitJson:
    return rendered(
        SearchHitJson,
        row,
        snippet=snippet(row, words),
        score=row.score / search.SCORE_UNITS,
        foundBy=[str(match.name).lower() for match in row.match],
    )


def snippet(row: search.SearchHit, words: list[str]) -> Snippet:
    """At most SNIPPET_CHARACTERS of the row's text, with what matches.

    What the database's parser marks; where that marks nothing (in names of files, in scripts
    without spaces), the words as they stand in the query.
    """
    whole = f"{row.text} {row.ahead}"
    unmarked, found = _marked(row.headline or "")
    if search.Match.WORDS not in row.match and not found:
        return _cut(row.text, [])
    if not found or len(unmarked) != len(whole):
        return _cut(row.text, _literal(row.text, words))
    crosses = any(end > len(row.text) for _, end in found)
    return _cut(whole if crosses else row.text, found)


def _marked(headline: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the headline without marks, and where they were."""
    text, ranges = "", list[tuple[int, int]]()
    for number, part in enumerate(headline.split(search.MARK_START)):
        marked, _, plain = part.partition(search.MARK_STOP) if number else ("", "", part)
        if marked:
            ranges.append((len(text), len(text) + len(marked)))
        text += marked + plain
    return text, ranges


def _literal(text: str, words: list[str]) -> list[tuple[int, int]]:
    """Return where the words are, whatever their case and accents."""
    letters = [without_accents(letter) for letter in text]
    places = [at for at, letter in enumerate(letters) for _ in letter] + [len(text)]
    plain = "".join(letters)
    found = sorted(
        (places[match.start()], places[match.end()])
        for word in set(words)
        for match in re.finditer(re.escape(without_accents(word)), plain, re.IGNORECASE)
    )
    merged: list[tuple[int, int]] = []
    for start, end in found:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _cut(text: str, ranges: list[tuple[int, int]]) -> Snippet:
    begin = 0
    if ranges and len(text) > SNIPPET_CHARACTERS:
        begin = min(max(0, ranges[0][0] - SNIPPET_CHARACTERS // 3), len(text) - SNIPPET_CHARACTERS)
        begin = text.find(" ", begin) + 1 if " " in text[begin : ranges[0][0]] else begin
    shown = text[begin : begin + SNIPPET_CHARACTERS]
    kept: list[MatchedRange] = [
        {"start": start - begin, "end": end - begin}
        for start, end in ranges
        if start >= begin and end - begin <= len(shown)
    ]
    return {"text": shown, "ranges": kept}
