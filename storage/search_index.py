"""What can be searched: a row for each interval of speech, scene, writing on the screen, file.

A row's vector has its words as the text search configuration of its language stems them, with
weight A; those of the next segment's beginning with weight D, so that a phrase across the border
of two segments matches; and labels, which no text can have as words (they begin with ``=``): the
account, the kind, and the ranges of ids that the row is in. Queries name them, so that the GIN
index alone finds the rows of an account, and the newest first.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Text, cast, delete, func, select, text, tuple_, update

from storage.database import Connection
from storage.tables import jobs, scene_lists, search_configs, search_rows, stages, transcripts
from storage.types import Cause, ResultChange, SearchKind, StageName, StageStatus

SIMPLE = "simple"
ENGLISH = "english"
CONFIGS = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": ENGLISH,
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "nb": "norwegian",
    "ne": "nepali",
    "nl": "dutch",
    "nn": "norwegian",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}
"""Language to text search configuration, of those that every PostgreSQL since 14 has."""

RANGE_BITS = (9, 13, 17, 21)
"""A row is labelled with its id shifted right by so many bits: ranges of 512 rows, 8,192 …"""

AHEAD_CHARACTERS = 80
AHEAD_MS = 5000
MOST_CHARACTERS = 10_000
"""Of a row's text; nothing that the pipelines make is longer."""

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+"
)
"""Runs of scripts that do not put a space between words (Thai, Lao, Burmese, Khmer, Chinese,
Japanese), or join particles to them (Korean)."""

_ACCENTS = re.compile("[\u0300-\u036f]+")
"""The block of combining diacritical marks."""
_CONTROL = re.compile("[\x00-\x1f\x7f\x80-\x9f\ud800-\udfff]+")
_INSIDE_NAMES = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[^\W\d])(?=\d)|(?<=\d)(?=[^\W\d])")


@dataclass(frozen=True, slots=True)
class SearchRow:
    """Something to be found; times in milliseconds of the media."""

    kind: SearchKind
    text: str
    start_ms: int
    end_ms: int
    ahead: str = ""
    language: str | None = None
    track_index: int | None = None
    scene_index: int | None = None
    speaker: str | None = None

    @property
    def config(self) -> str:
        """Descriptions and objects are English; names and writing are of any language."""
        if self.kind in {SearchKind.SCENE, SearchKind.OBJECT}:
            return ENGLISH
        return config_of(self.language)

    @property
    def words(self) -> str:
        """The text as PostgreSQL's parser is given it."""
        if self.kind is SearchKind.FILE:
            return words_of(f"{self.text} {_INSIDE_NAMES.sub(' ', self.text)}")
        return words_of(self.text)


def config_of(language: str | None) -> str:
    """Return the configuration of a BCP 47 language; ``simple`` where there is none."""
    return CONFIGS.get((language or "").split("-")[0].lower(), SIMPLE)


def words_of(passage: str) -> str:
    """Return the passage with pairs of characters for words where a script has no spaces, and
    once more without accents where it has any.

    The last character of a run also occurs alone, so that each is the first of some word.
    """
    composed = unicodedata.normalize("NFKC", passage)
    plain = without_accents(composed)
    return _UNSPACED.sub(
        lambda run: f" {' '.join(run[0][at : at + 2] for at in range(len(run[0])))} ",
        composed if plain == composed else f"{composed} {plain}",
    )


def without_accents(text: str) -> str:
    """Return the text without the marks of Latin, Greek and Cyrillic letters; those of other
    scripts (Hangul, kana, Devanagari) make other letters and stay."""
    letters = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", letters)


def pairs_of(word: str) -> list[str]:
    """Return the words to look for where ``words_of`` made pairs of a word; empty where it has
    none."""
    return [
        run[0][at : at + 2]
        for run in _UNSPACED.finditer(unicodedata.normalize("NFKC", word))
        for at in range(max(1, len(run[0]) - 1))
    ]


def account_label(account_id: uuid.UUID) -> str:
    """48 bits of the id: rows found by it are held to the whole id."""
    return f"=a{account_id.hex[:12]}"


def file_rows(file_name: str, duration_ms: int | None) -> list[SearchRow]:
    """Return the row of a job's file."""
    return [SearchRow(SearchKind.FILE, file_name, 0, duration_ms or 0)]


def transcript_rows(
    track_index: int, language: str | None, segments: Sequence[Mapping[str, Any]]
) -> Iterator[SearchRow]:
    """Yield a row for each segment of a stored transcript."""
    for segment, following in itertools.zip_longest(segments, segments[1:]):
        ahead = ""
        if following and following["start_ms"] - segment["end_ms"] <= AHEAD_MS:
            ahead = _beginning(following["text"])
        yield SearchRow(
            SearchKind.TRANSCRIPT,
            segment["text"],
            segment["start_ms"],
            segment["end_ms"],
            ahead=ahead,
            language=language,
            track_index=track_index,
            speaker=segment["speaker"],
        )


def scene_rows(
    scenes: Sequence[Mapping[str, Any]], overview: Mapping[str, Any] | None
) -> Iterator[SearchRow]:
    """Yield rows of stored scenes: description, writing on the screen, objects and tags; what each
    has.

    Of a video without cuts they are those of its overview.
    """
    for scene in scenes or ([] if overview is None else [overview]):
        tracks = [track["label"] for track in scene.get("object_tracks", ())]
        tags = [tag["label"] for tag in scene.get("tags", ())]
        labels = [*scene.get("objects", ()), *tracks, *tags]
        passages = {
            SearchKind.SCENE: scene.get("description"),
            SearchKind.TEXT: " / ".join(line["text"] for line in scene.get("on_screen_text", ())),
            SearchKind.OBJECT: ", ".join(dict.fromkeys(labels)),
        }
        for kind, passage in passages.items():
            if passage:
                yield SearchRow(
                    kind,
                    passage,
                    scene["start_ms"],
                    scene["end_ms"],
                    scene_index=scene["index"] if scenes else None,
                )


def _beginning(passage: str) -> str:
    if len(passage) <= AHEAD_CHARACTERS:
        return passage
    cut = passage.rfind(" ", 0, AHEAD_CHARACTERS)
    return passage[: cut if cut > 0 else AHEAD_CHARACTERS]


LABELS = (
    "array_to_tsvector(ARRAY['=k' || kind, '=a' || left(replace(account_id::text, '-', ''), 12), "
    + ", ".join(f"'={bits}:' || (new.id >> {bits})" for bits in RANGE_BITS)
    + "])"
)
"""Of a row whose id is that of ``new``, in SQL."""
_INSERT = text(
    f"""
    INSERT INTO search_rows (id, account_id, job_id, job_created_at, kind, config, language,
                             start_ms, end_ms, track_index, scene_index, speaker, text, ahead,
                             vector)
    SELECT new.id, jobs.account_id, jobs.id, jobs.created_at, kind, config, language,
           start_ms, end_ms, track_index, scene_index, speaker, passage, ahead,
           setweight(to_tsvector(config::regconfig, words), 'A')
           || setweight(to_tsvector(config::regconfig, ahead_words), 'D')
           || {LABELS}
      FROM jobs,
           (SELECT nextval(pg_get_serial_sequence('search_rows', 'id')) AS id, given.*
              FROM unnest(CAST(:kind AS text[]), CAST(:config AS text[]),
                          CAST(:language AS text[]), CAST(:start_ms AS bigint[]),
                          CAST(:end_ms AS bigint[]), CAST(:track_index AS smallint[]),
                          CAST(:scene_index AS integer[]), CAST(:speaker AS text[]),
                          CAST(:passage AS text[]), CAST(:ahead AS text[]),
                          CAST(:words AS text[]), CAST(:ahead_words AS text[]))
                   AS given (kind, config, language, start_ms, end_ms, track_index, scene_index,
                             speaker, passage, ahead, words, ahead_words)) AS new
     WHERE jobs.id = :job_id
    """  # noqa: S608  (constants of this module)
)


async def insert_rows(
    connection: Connection, job_id: uuid.UUID, rows: Iterable[SearchRow], stage: StageName
) -> None:
    """Make a stage's result searchable; the stage is marked."""
    listed = [row for row in rows if row.text.strip()]
    if listed:
        await _note_configs(connection, job_id, {row.config for row in listed})
        columns = [_columns(row) for row in listed]
        values = {name: [column[name] for column in columns] for name in columns[0]}
        await connection.execute(_INSERT, {"job_id": job_id} | values)
    await connection.execute(
        update(stages)
        .where(stages.c.job_id == job_id, stages.c.stage == stage)
        .values(indexed=True)
    )


def _columns(row: SearchRow) -> dict[str, Any]:
    kept = ("kind", "config", "language", "start_ms", "end_ms")
    names = (*kept, "track_index", "scene_index", "speaker")
    return {name: getattr(row, name) for name in names} | {
        "passage": _CONTROL.sub(" ", row.text)[:MOST_CHARACTERS],
        "ahead": _CONTROL.sub(" ", row.ahead),
        "words": _CONTROL.sub(" ", row.words)[: 4 * MOST_CHARACTERS],
        "ahead_words": _CONTROL.sub(" ", words_of(row.ahead)),
    }


async def follow(connection: Connection, change: ResultChange) -> None:
    """Keep what is searched for in step with a result: the newest only."""
    own = {"job_id": change.job_id, "rerun_id": change.rerun_id}
    if change.cause is Cause.MADE:
        [stage] = change.stages
        await insert_rows(connection, change.job_id, change.rows[1], stage)
    elif change.cause is Cause.ERASED:
        await connection.execute(delete(search_rows).where(search_rows.c.job_id == change.job_id))
    elif change.cause is Cause.RENEWED:
        kinds = [kind for stage in change.stages for kind in KINDS[stage]]
        for statement in _RENEW:
            await connection.execute(statement, own | {"kinds": kinds})
    elif change.cause is Cause.EDITED:
        [stage] = change.stages
        if not await index_once(connection, change.job_id, stage):
            await replace_rows(connection, change.job_id, stage, *change.rows)


KINDS = {
    StageName.VISION: (SearchKind.SCENE, SearchKind.TEXT, SearchKind.OBJECT),
    StageName.TRANSCRIPT: (SearchKind.TRANSCRIPT,),
}
"""What is found of each analysis."""
_RENEW = (
    text("DELETE FROM search_rows WHERE job_id = :job_id AND kind = ANY(CAST(:kinds AS text[]))"),
    text(
        "UPDATE search_rows SET job_id = :job_id,"
        " job_created_at = (SELECT created_at FROM jobs WHERE id = :job_id)"
        " WHERE job_id = :rerun_id AND kind = ANY(CAST(:kinds AS text[]))"
    ),
    # What was not exchanged, of a transcript that was corrected meanwhile.
    text("DELETE FROM search_rows WHERE job_id = :rerun_id"),
)


async def replace_rows(
    connection: Connection,
    job_id: uuid.UUID,
    stage: StageName,
    before: list[SearchRow],
    after: list[SearchRow],
) -> None:
    """Exchange what was indexed of a stage, with the vectors of rows that stay."""
    gone = Counter(before) - Counter(after)
    columns = [_columns(row) for row in gone]
    if columns:
        names = ("kind", "track_index", "scene_index", "start_ms", "end_ms", "passage")
        values = {name: [column[name] for column in columns] for name in names}
        await connection.execute(_DELETE, {"job_id": job_id} | values)
    made = Counter(after) - Counter(before)
    await insert_rows(connection, job_id, made.elements(), stage)


_DELETE = text(
    """
    DELETE FROM search_rows r
     USING unnest(CAST(:kind AS text[]), CAST(:track_index AS smallint[]),
                  CAST(:scene_index AS integer[]), CAST(:start_ms AS bigint[]),
                  CAST(:end_ms AS bigint[]), CAST(:passage AS text[]))
           AS gone (kind, track_index, scene_index, start_ms, end_ms, passage)
     WHERE r.job_id = :job_id AND r.kind = gone.kind
       AND r.track_index IS NOT DISTINCT FROM gone.track_index
       AND r.scene_index IS NOT DISTINCT FROM gone.scene_index
       AND r.start_ms = gone.start_ms AND r.end_ms = gone.end_ms AND r.text = gone.passage
    """
)


async def _note_configs(connection: Connection, job_id: uuid.UUID, configs: set[str]) -> None:
    """Written once an account and configuration: later publications do not wait for each other."""
    own = select(jobs.c.account_id).where(jobs.c.id == job_id).scalar_subquery()
    known = select(search_configs.c.config).where(search_configs.c.account_id == own)
    missing = configs - set((await connection.execute(known)).scalars())
    for config in sorted(missing):
        await connection.execute(
            text(
                "INSERT INTO search_configs SELECT account_id, :config FROM jobs WHERE id = :job_id"
                " ON CONFLICT DO NOTHING"
            ),
            {"config": config, "job_id": job_id},
        )


async def index_stage(connection: Connection, job_id: uuid.UUID, stage: StageName) -> None:
    """Make the stored result of a completed stage searchable."""
    rows: list[SearchRow] = []
    if stage is StageName.INGEST:
        query = select(jobs.c.file_name, jobs.c.duration_ms).where(jobs.c.id == job_id)
        [job] = await connection.execute(query)
        rows = file_rows(job.file_name, job.duration_ms)
    elif stage is StageName.VISION:
        columns = (cast(scene_lists.c.scenes, Text), cast(scene_lists.c.overview, Text))
        seen = select(*columns).where(scene_lists.c.job_id == job_id)
        for scenes, overview in await connection.execute(seen):
            whole = None if overview is None else from_json(overview)
            rows.extend(scene_rows(from_json(scenes), whole))
    else:
        document = cast(transcripts.c.document, Text)
        tracks = select(transcripts.c.track_index, transcripts.c.language, document).where(
            transcripts.c.job_id == job_id, transcripts.c.document.is_not(None)
        )
        for track_index, language, found in await connection.execute(tracks):
            segments = from_json(found)["segments"]
            rows.extend(transcript_rows(track_index, language, segments))
    await insert_rows(connection, job_id, rows, stage)


_BACKFILL_LOCK = 0x7661735F73726368
"""Advisory lock of the runner that indexes older results ("vas_srch")."""

Position = tuple[uuid.UUID, StageName]
BEGINNING: Position = (uuid.UUID(int=0), StageName.INGEST)


async def index_older_results(
    connection: Connection, after: Position, *, look_at: int, index: int
) -> Position | None:
    """Index results that were published without: after an upgrade, and by an older version.

    Looks at no more than ``look_at`` stages, in the order of their primary key, and indexes no more
    than ``index`` of them. Returns where to go on; None at the end, or where another does it.
    """
    lock = await connection.execute(select(func.pg_try_advisory_xact_lock(_BACKFILL_LOCK)))
    if not lock.scalar_one():
        return None
    query = (
        select(stages.c.job_id, stages.c.stage, stages.c.status, stages.c.indexed)
        .where(tuple_(stages.c.job_id, stages.c.stage) > tuple_(*after))
        .order_by(stages.c.job_id, stages.c.stage)
        .limit(look_at)
    )
    seen, indexed = after, 0
    found = (await connection.execute(query)).all()
    for row in found:
        if row.status == StageStatus.COMPLETED and not row.indexed:
            if indexed == index:
                return seen
            indexed += await index_once(connection, row.job_id, StageName(row.stage))
        seen = (row.job_id, StageName(row.stage))
    return seen if len(found) == look_at else None


async def index_once(connection: Connection, job_id: uuid.UUID, stage: StageName) -> bool:
    """Index a result that was published without; False where it is indexed."""
    claimed = await connection.execute(
        update(stages)
        .where(stages.c.job_id == job_id, stages.c.stage == stage, stages.c.indexed.is_(None))
        .values(indexed=True)
    )
    if claimed.rowcount:
        await index_stage(connection, job_id, stage)
    return bool(claimed.rowcount)


async def merge_pending_rows(connection: Connection) -> None:
    """Merge what was published into the index, which searches else read entry by entry."""
    await connection.execute(select(func.gin_clean_pending_list("ix_search_rows_vector")))
