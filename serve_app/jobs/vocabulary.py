"""Vocabulary: key terms and replacements that an account, or an archive, gives all of its jobs."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, cast

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.codec import from_json
from pipelines.speech.edits import changed_words, common_places, parted, plain
from pipelines.speech.words import joined
from pipelines.types import TranscriptSegment
from serve_app.api.authentication import CurrentAccount, KeyedRoute
from serve_app.api.downloads import turn_if_large
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import answers
from serve_app.api.schemas import Answer, Count, Uuid, doc
from serve_app.context import AppContext
from serve_app.jobs.schemas import MAX_KEYTERMS
from storage import history, keys
from storage.history import ReadTranscript
from storage.results import Element

MOST_REPLACEMENTS = 200
MOST_PROPOSALS = 100
_MOST_CORRECTED = 200
_MOST_BYTES = 2 * 2**20
"""Of transcripts that are looked at for proposals, as they are stored: ten hours of speech."""
_MOST_TRIED = 500
"""Changes that are looked for in these transcripts, the most frequent ones."""
_FEW = range(1, 4)
"""Words of a name or a term."""
_CONTROLS = r"\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069"
Written = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=rf"^[^\s{_CONTROLS}][^{_CONTROLS}]*$"),
    AfterValidator(lambda text: " ".join(text.split())),
]
ReplacementJson = TypedDict(
    "ReplacementJson",
    {
        "from": Annotated[Written, doc("Whole words; in lower case: in whatever case.", "Webber")],
        "to": Annotated[Written, doc("In their place; punctuation around it stays.", "Weber")],
    },
)
ReplacementJson.__doc__ = "Words, and what is written in their place."


def _from_once(value: list[ReplacementJson]) -> list[ReplacementJson]:
    if len({plain(each["from"]).lower() for each in value}) < len(value):
        raise PydanticCustomError("from_once", "must name each from once, in whatever case")
    return value


class VocabularyJson(TypedDict):
    """Key terms and replacements."""

    keyterms: Annotated[
        Annotated[list[Written], Field(max_length=MAX_KEYTERMS)],
        doc("Words that transcriptions should know.", ["Weber"]),
    ]
    replacements: Annotated[
        Annotated[list[ReplacementJson], Field(max_length=MOST_REPLACEMENTS)],
        AfterValidator(_from_once),
        doc("What is written otherwise in every later transcript."),
    ]


class ProposalJson(ReplacementJson):
    """A change that people made."""

    times: Annotated[Count, doc("How often it was made.", 2)]
    jobs: Annotated[Count, doc("In how many jobs.", 1)]
    jobId: Annotated[Uuid, doc("The one that was corrected last.")]  # noqa: N815 - of the wire


class AccountVocabularyJson(VocabularyJson):
    """The account's vocabulary, and what may be added to it."""

    proposals: Annotated[list[ProposalJson], Field(max_length=MOST_PROPOSALS)]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Account"])


@router.get("/vocabulary", **answers(Answer[AccountVocabularyJson], "The vocabulary."))
async def get_vocabulary(
    request: Request, context: Context, account_id: CurrentAccount
) -> Response:
    """Read the vocabulary.

    `proposals` are replacements of one to three words that people made in the transcripts that were
    corrected last (200, of some ten hours), the most frequent first: twice, or with a capital
    letter, and of words that do not stay in lower case elsewhere. Redacted jobs propose nothing."""
    return success(await read_vocabulary(request, context, account_id))


@router.put("/vocabulary", **answers(Answer[VocabularyJson], "The vocabulary."))
async def replace_vocabulary(
    context: Context, account_id: CurrentAccount, body: VocabularyJson
) -> Response:
    """Replace the vocabulary.

    Jobs that are created from now on, reruns too, have its key terms behind their own and those of
    their archive, up to 100 in all, and its replacements where their archive has none of the same
    words. Transcripts that there are stay."""
    await context.database.write(keys.replace_vocabulary, account_id, {**body})
    return success(body)


async def read_vocabulary(
    request: Request, context: AppContext, account_id: uuid.UUID
) -> AccountVocabularyJson:
    """Return the account's vocabulary with proposals, which follow what is corrected, taken back,
    redacted or erased."""
    async with context.database.statement() as connection:
        account = await keys.get_account(connection, str(account_id))
        corrected = await history.list_corrected(connection, account_id, most=_MOST_CORRECTED)
    made, texts, room = _Made(list), list[str](), _MOST_BYTES
    async with turn_if_large(request, account_id, sum(size for *_, size in corrected)):
        for job_id, index, size in corrected:
            if (room := room - size) < 0:
                break
            async with context.database.statement() as connection:
                read = await history.read_transcript(connection, job_id, index)
            if read is not None:
                of = context.database, job_id, index, read.document, read.revision
                machine = await history.document_at(*of, 0) or read.document  # erased meanwhile
                texts.append(await asyncio.to_thread(_compare, machine, read, made))
        found = cast("VocabularyJson", account.vocabulary or {"keyterms": [], "replacements": []})
        known = {plain(each["from"]).lower() for each in found["replacements"]}
        proposals = await asyncio.to_thread(_proposals, made, texts, known)
    return {**found, "proposals": proposals}


_Made = defaultdict[tuple[str, str], list[tuple[str, str]]]
"""Changes by the words in lower case and what was written in their place: of each time the job and
the words; the job that was corrected last comes first."""


def _compare(machine: Element, now: ReadTranscript, made: _Made) -> str:
    """Add what the machine's transcript was corrected to; return the words that it has now."""
    before, after = machine["segments"], now.document["segments"]
    texts = [[it["text"] for it in side] for side in (before, after)]
    first = start = 0
    for end, stop in [*common_places(*texts), (len(before), len(after))]:
        sides = (
            [word for it in side for word in from_json(TranscriptSegment, it).words]
            for side in (before[first:end], after[start:stop])
        )
        for change in changed_words(*sides):
            both = [[word.text for word in it] for it in (change.before, change.after)]
            if len(both[0]) in _FEW and len(both[1]) in _FEW:
                heard, written = (parted(joined(each))[1] for each in both)
                if heard[-2:] == written[-2:] in {"'s", "’s"}:
                    heard, written = heard[:-2], written[:-2]
                made[_spaced(both[0]).lower(), written].append((str(now.job_id), heard))
        first, start = end + 1, stop + 1
    return _spaced(word["text"] for it in after for word in it["words"])


def _proposals(made: _Made, texts: Sequence[str], known: set[str]) -> list[ProposalJson]:
    """Return the most frequent first. Once is enough of what has a capital letter, as names have.
    Words in lower case that are left elsewhere are words of their own, which a replacement would
    spoil."""
    likely = [it for it in made.items() if len(it[1]) > 1 or it[0][1] != it[0][1].lower()]
    likely.sort(key=lambda it: -len(it[1]))
    found = list[ProposalJson]()
    for (words, written), pairs in likely[:_MOST_TRIED]:
        job_id, heard = pairs[0]
        if plain(heard).lower() not in known and not any(words in text for text in texts):
            counts = len(pairs), len({each for each, _ in pairs})
            change: ReplacementJson = {"from": heard, "to": written}
            found.append({**change, "times": counts[0], "jobs": counts[1], "jobId": job_id})
    return found[:MOST_PROPOSALS]


def _spaced(words: Iterable[str]) -> str:
    bare = (parted(word)[1].removesuffix("'s").removesuffix("’s") for word in words)
    return f" {' '.join(bare)} "
