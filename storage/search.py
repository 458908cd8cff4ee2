"""Finding rows by their words: matches, newest first and so many of them, then the best of those.

A search is two statements. The first makes lexemes of the words, in every configuration that the
account has rows of. The second takes the newest MOST_CANDIDATES rows that match, through labels of
ranges of ids, each sixteen times as long as the one before, so that a common word does not read all
rows that have it. Where few match, rows that lack a part of the words are taken too: one that was
transcribed wrongly hides no row. The candidates are ranked, and a page of them read.

With vectors of the query the best by words, the nearest by meaning and the scenes whose stills are
nearest are made one list by reciprocal rank. A rank depends on all others, so the list is made
once: pages read on in it.

Words of a query as PostgreSQL's lexemes, in every configuration that an account has rows of.
"""

from __future__ import annotations

import functools
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import TextClause, text

from storage import search_vectors
from storage.database import Database
from storage.search_index import RANGE_BITS, account_label, config_of, pairs_of, without_accents
from storage.search_vectors import Near
from storage.types import SearchKind

RELAXED_WORDS = 32
"""Words after these are not looked for one by one."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A word, or several in this order, that must be there, or must not."""

    words: tuple[str, ...]
    negated: bool = False
    prefix: bool = False
    """The word is the beginning of one."""


Alternative = tuple[Clause, ...]


_Key = tuple[str, bool]
"""Text, and whether it is the beginning of a word."""


@dataclass(frozen=True, slots=True)
class Lexemes:
    """What the words are in each configuration, as the text of tsqueries; '' for stop words."""

    configs: tuple[str, ...]
    queries: dict[tuple[str, _Key], str]
    mostly_own: bool
    """Whether most rows are the account's, as the statistics of the table have it: looking each
    match up in the label's long list then costs more than reading the few rows of others."""

    def all_of(self, alternatives: Sequence[Alternative]) -> str:
        """Return rows with all words of an alternative."""
        return disjunction(
            conjunction(self._atoms(config, _wanted(clauses)))
            for config in self.configs
            for clauses in alternatives
        )

    def most_of(self, alternatives: Sequence[Alternative]) -> str:
        """Return rows with all words but one, or, of five and more, with a part of them that are
        together.

        '' where the query has a phrase, which is meant to the letter, or alternatives.
        """
        if len(alternatives) > 1 or any(len(clause.words) > 1 for clause in alternatives[0]):
            return ""
        return disjunction(
            disjunction(_parts(self._words(config, alternatives[0]))) for config in self.configs
        )

    def kept(self, alternatives: Sequence[Alternative], query: str) -> str | None:
        """Of the rows of ``query`` those with a word not in ``ahead`` alone, and no unwanted one.

        Not part of ``query``: an index has no weights, and is slower with each word of a query.
        """
        own = disjunction(
            conjunction(
                [
                    _weighted(disjunction(self._words(config, clauses))),
                    *self._unwanted(config, clauses),
                ]
            )
            for config in self.configs
            for clauses in alternatives
        )
        return conjunction([query, own]) or None

    def needed(self, config: str, clauses: Alternative) -> str:
        """Return what a row must have and must not, to the letter: phrases, words that are
        unwanted."""
        phrases = [clause for clause in _wanted(clauses) if len(clause.words) > 1]
        wanted = (_weighted(query) for query in self._atoms(config, phrases) if query)
        return conjunction([*wanted, *self._unwanted(config, clauses)])

    def scoring(self, alternatives: Sequence[Alternative]) -> dict[str, list[str]]:
        """Return all words of a configuration; and, where all of them are needed, each with its
        own."""
        ranks = [
            conjunction(word for clauses in alternatives for word in self._words(config, clauses))
            for config in self.configs
        ]
        terms = [
            (config, word)
            for config in self.configs
            for word in self._words(config, alternatives[0])[:RELAXED_WORDS]
        ]
        return {
            "configs": list(self.configs),
            "ranks": ranks,
            "term_configs": [config for config, _ in terms],
            "terms": [term for _, term in terms],
        }

    def marks(self, alternatives: Sequence[Alternative]) -> str:
        """Any of the words."""
        return disjunction(
            word
            for config in self.configs
            for clauses in alternatives
            for word in self._words(config, clauses)
        )

    def _words(self, config: str, clauses: Alternative) -> list[str]:
        keys = _word_keys(_wanted(clauses))
        return list(dict.fromkeys(q for key in keys if (q := self.queries[config, key])))

    def _atoms(self, config: str, clauses: Iterable[Clause]) -> Iterator[str]:
        return (self.queries[config, key] for clause in clauses for key in _atoms_of(clause))

    def _unwanted(self, config: str, clauses: Alternative) -> Iterator[str]:
        negated = (clause for clause in clauses if clause.negated)
        return (f"!({_weighted(query)})" for query in self._atoms(config, negated) if query)


async def resolve_words(
    database: Database,
    account_id: uuid.UUID,
    alternatives: Sequence[Alternative],
    language: str | None,
) -> tuple[Lexemes, int]:
    """Return the lexemes, of one language's configuration alone where it is given; and the newest
    row."""
    clauses = [clause for each in alternatives for clause in each]
    keys = list(
        dict.fromkeys(
            [*_word_keys(clauses), *(key for clause in clauses for key in _atoms_of(clause))]
        )
    )
    plains = [(without_accents(passage), prefix) for passage, prefix in keys]
    rows = await database.query(
        _RESOLVE,
        account_id=account_id,
        only=None if language is None else config_of(language),
        passages=[_prefix_query(passage) if prefix else passage for passage, prefix in keys],
        plains=[_prefix_query(plain) if prefix else plain for plain, prefix in plains],
        prefixes=[prefix for _, prefix in keys],
    )
    configs = tuple(dict.fromkeys(row["config"] for row in rows))
    queries = {(row["config"], keys[row["n"] - 1]): row["query"] for row in rows}
    mostly_own = bool(rows and rows[0]["mostly_own"])
    return Lexemes(configs, queries, mostly_own), rows[0]["newest_id"] if rows else 0


_RESOLVE = text(
    """
    SELECT c.config, t.n,
           (CASE WHEN t.prefix THEN to_tsquery(c.config::regconfig, t.passage)
                 ELSE phraseto_tsquery(c.config::regconfig, t.passage) END
               || CASE WHEN t.passage = t.plain THEN CAST('' AS tsquery)
                       WHEN t.prefix THEN to_tsquery(c.config::regconfig, t.plain)
                       ELSE phraseto_tsquery(c.config::regconfig, t.plain) END)::text AS query,
           (SELECT coalesce(max(id), 0) FROM search_rows) AS newest_id,
           EXISTS (SELECT FROM pg_stats,
                          unnest(most_common_vals::text::uuid[], most_common_freqs) AS m (id, share)
                    WHERE schemaname = current_schema() AND tablename = 'search_rows'
                      AND attname = 'account_id' AND m.id = :account_id AND share > 0.5
                  ) AS mostly_own
      FROM (SELECT config FROM search_configs
             WHERE account_id = :account_id AND config = coalesce(:only, config)) AS c,
           unnest(CAST(:passages AS text[]), CAST(:plains AS text[]), CAST(:prefixes AS boolean[]))
           WITH ORDINALITY AS t (passage, plain, prefix, n)
     ORDER BY c.config, t.n
    """
)


def _wanted(clauses: Alternative) -> Alternative:
    return tuple(clause for clause in clauses if not clause.negated)


def _word_keys(clauses: Iterable[Clause]) -> Iterator[_Key]:
    """Yield each word for itself, in order; a script without spaces by pairs of characters."""
    for clause in clauses:
        for word in clause.words:
            pairs = pairs_of(word)
            yield from ((pair, len(pair) == 1) for pair in pairs)
            if not pairs:
                yield word, clause.prefix


def _atoms_of(clause: Clause) -> Iterator[_Key]:
    """Yield the clause's words as phrases; those of a script without spaces are a phrase each."""
    spaced = []
    for word in clause.words:
        pairs = pairs_of(word)
        if pairs:
            yield " ".join(pairs), len(pairs) == 1 and len(pairs[0]) == 1
        else:
            spaced.append(word)
    if spaced:
        yield " ".join(spaced), clause.prefix


def _prefix_query(word: str) -> str:
    """Return words that begin so, and those whose stem is a beginning of it (manageme*: manag)."""
    stems = (word[:length] for length in range(max(3, len(word) - 5), len(word)))
    return " | ".join([f"{_quoted(word)}:*", *(_quoted(stem) for stem in stems)])


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def conjunction(queries: Iterable[str]) -> str:
    return " & ".join(f"({query})" for query in dict.fromkeys(queries) if query)


def disjunction(queries: Iterable[str]) -> str:
    return " | ".join(f"({query})" for query in dict.fromkeys(queries) if query)


_LEXEME = re.compile(r"'(?:[^'\\]|''|\\\\)*'(?::\*)?")


def _weighted(query: str) -> str:
    """Return the query for words of weight A only; ``query`` is as PostgreSQL writes a tsquery."""
    return _LEXEME.sub(lambda found: f"{found[0]}{'A' if found[0].endswith('*') else ':A'}", query)


def _parts(words: list[str]) -> list[str]:
    words = words[:RELAXED_WORDS]
    if len(words) < 2:
        return []
    if len(words) < 5:
        return [
            conjunction(words[:left_out] + words[left_out + 1 :]) for left_out in range(len(words))
        ]
    count = max(2, round(len(words) / 3))
    borders = [round(len(words) * part / count) for part in range(count + 1)]
    return [conjunction(words[a:b]) for a, b in itertools.pairwise(borders)]


MOST_CANDIDATES = 300
"""Of more matches the newest are ranked."""

ENOUGH = 5
"""With fewer rows that have all words, those that have most of them are found too; of more than
three words one row is enough."""

SCORE_UNITS = 1_000_000

FUSED_MOST = 200
"""Hits of a search by words and by vectors."""
NEAREST = 50
"""Of them at most so many are found by meaning alone, or by stills alone."""
_RANK_OFFSET = 60
"""Of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
MARK_START, MARK_STOP = "\x02", "\x03"
"""Around a match in a headline; indexed text has no control characters."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which rows of the account are searched; times are those of the jobs' creation."""

    kinds: tuple[SearchKind, ...] = tuple(SearchKind)
    language: str | None = None
    job_id: uuid.UUID | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    job_ids: tuple[uuid.UUID, ...] | None = None
    archive_id: uuid.UUID | None = None
    speaker: str | None = None
    """An id, or a name that was given, in any case."""

    @property
    def conditions(self) -> dict[str, Any]:
        """Those that are given, beside the kinds."""
        given = {name: getattr(self, name) for name in _CONDITIONS}
        return {
            name: [*value] if isinstance(value, tuple) else value
            for name, value in given.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True)
class MatchedPlace:
    """Where a page ends: score (in millionths, exact) and id of its last row.

    ``newest_id`` is the newest row that there was at the first page; later pages see none since.
    """

    newest_id: int
    score: int
    row_id: int


class Match(IntFlag):
    """What of a row matches."""

    WORDS = 1
    MEANING = 2
    PICTURE = 4


@dataclass(frozen=True, slots=True)
class Ranked:
    """A row in a list by words and by vectors."""

    id: int
    score: int
    match: Match


Ranking = tuple[Ranked, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is sought: a unit vector for each alternative, and the model that made them.

    In ``table``: of what rows mean, or of the stills of the scenes that they describe.
    """

    model: str
    vectors: npt.NDArray[np.float32]
    least_similarity: float
    table: str = search_vectors.TEXTS


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that was found."""

    id: int
    score: int
    job_id: uuid.UUID
    file_name: str
    kind: SearchKind
    start_ms: int
    end_ms: int
    track_index: int | None
    scene_index: int | None
    speaker: str | None
    speaker_label: str | None
    """The name that the speaker was given."""
    text: str
    ahead: str
    headline: str
    """``text`` and ``ahead`` with a blank between, words that match between marks."""
    match: Match = Match.WORDS


async def find_rows(
    database: Database,
    account_id: uuid.UUID,
    alternatives: Sequence[Alternative],
    filters: Filters,
    *,
    limit: int,
    after: MatchedPlace | None = None,
) -> tuple[list[SearchHit], MatchedPlace | None]:
    """Return the best rows that match one of the alternatives, and where the next page goes on."""
    lexemes, newest_id = await resolve_words(database, account_id, alternatives, filters.language)
    if after is not None:
        newest_id = after.newest_id
    if not lexemes.configs:
        return [], None
    statement = _find_statement(tuple(filters.conditions))
    rows = await database.query_planned_once(
        statement,
        **_parameters(account_id, alternatives, filters, lexemes, newest_id),
        **_headlines(lexemes, alternatives),
        score=_NO_SCORE if after is None else after.score,
        row_id=0 if after is None else after.row_id,
        limit=limit + 1,
    )
    hits = [_hit(row) for row in rows[:limit]]
    more = len(rows) > limit
    return hits, MatchedPlace(newest_id, hits[-1].score, hits[-1].id) if more else None


async def rank_rows(
    database: Database,
    account_id: uuid.UUID,
    alternatives: Sequence[Alternative],
    filters: Filters,
    meanings: Sequence[Meaning],
) -> Ranking | None:
    """Return the best rows by words and by vectors, best first; None where there are no vectors."""
    lexemes, newest_id = await resolve_words(database, account_id, alternatives, filters.language)
    if not lexemes.configs:
        return ()
    conditions, values = _conditions_of_near(lexemes, alternatives, filters)
    near: dict[Match, list[list[Near]]] = {}
    for meaning in meanings:
        found = await search_vectors.find_near(
            database,
            account_id,
            meaning.model,
            meaning.vectors,
            conditions=conditions,
            values=values,
            newest_id=newest_id,
            least_similarity=meaning.least_similarity,
            limit=NEAREST,
            table=meaning.table,
        )
        if found is not None:
            near[_MATCHES[meaning.table]] = found
    if not near:
        return None
    rows = await database.query_planned_once(
        _find_statement(tuple(filters.conditions), shown=False),
        **_parameters(account_id, alternatives, filters, lexemes, newest_id),
        score=_NO_SCORE,
        row_id=0,
        limit=FUSED_MOST,
    )
    return _fused([row["id"] for row in rows], near)


_MATCHES = {search_vectors.TEXTS: Match.MEANING, search_vectors.STILLS: Match.PICTURE}


def _fused(by_words: list[int], near: Mapping[Match, list[list[Near]]]) -> Ranking:
    """By the sum of reciprocal ranks; 1 is the first by words and by each kind of vectors.

    Of alternatives a row has its best rank.
    """
    places = {Match.WORDS: {row_id: rank for rank, row_id in enumerate(by_words, start=1)}}
    for match, lists in near.items():
        ranks: dict[int, int] = {}
        for found in lists:
            for rank, (row_id, _) in enumerate(found, start=1):
                ranks[row_id] = min(rank, ranks.get(row_id, rank))
        nearest = sorted(ranks, key=lambda row_id: (ranks[row_id], -row_id))[:NEAREST]
        places[match] = {row_id: ranks[row_id] for row_id in nearest}
    whole, rows = len(places) / (_RANK_OFFSET + 1), set().union(*places.values())
    scored = (
        Ranked(
            row_id,
            round(
                SCORE_UNITS
                * sum(1 / (_RANK_OFFSET + own[row_id]) for own in places.values() if row_id in own)
                / whole
            ),
            functools.reduce(Match.__or__, (it for it, own in places.items() if row_id in own)),
        )
        for row_id in rows
    )
    best = sorted(scored, key=lambda it: (-it.score, Match.WORDS not in it.match, -it.id))
    return tuple(best[:FUSED_MOST])


async def rank_alike(
    database: Database,
    account_id: uuid.UUID,
    filters: Filters,
    model: str,
    sought: npt.NDArray[np.float32],
    *,
    without: int,
) -> Ranking:
    """Return the scenes whose stills are nearest to a unit vector, but for the row ``without``.

    Scores are cosines, of those that are less than 0 too: 0.
    """
    near = await search_vectors.find_near(
        database,
        account_id,
        model,
        sought[np.newaxis],
        conditions=[_CONDITIONS[name].format(r="r") for name in filters.conditions],
        values=filters.conditions,
        least_similarity=-1.0,
        limit=FUSED_MOST + 1,
        table=search_vectors.STILLS,
    )
    return tuple(
        Ranked(each.row_id, round(SCORE_UNITS * max(0.0, min(1.0, each.similarity))), Match.PICTURE)
        for each in (near[0] if near else ())
        if each.row_id != without
    )[:FUSED_MOST]


def _conditions_of_near(
    lexemes: Lexemes, alternatives: Sequence[Alternative], filters: Filters
) -> tuple[list[str], dict[str, Any]]:
    """Filters, unwanted words and phrases hold for what is found by meaning too.

    The last two are an alternative's own: ``needed`` has a query for each configuration of the
    first, then of the second.
    """
    conditions = [_CONDITIONS[name].format(r="r") for name in filters.conditions]
    values = filters.conditions
    if not set(search_vectors.KINDS) <= set(filters.kinds):
        conditions.append("r.kind = ANY(:kinds)")
        values["kinds"] = list(filters.kinds)
    needed = [
        lexemes.needed(config, clauses) or None
        for clauses in alternatives
        for config in lexemes.configs
    ]
    if any(needed):
        conditions.append(
            "coalesce(r.vector @@ (CAST(:needed AS tsquery[]))"
            "[(sought.n - 1) * cardinality(CAST(:configs AS text[]))"
            " + array_position(CAST(:configs AS text[]), r.config)], true)"
        )
        values |= {"needed": needed, "configs": list(lexemes.configs)}
    return conditions, values


async def read_ranked(
    database: Database,
    account_id: uuid.UUID,
    alternatives: Sequence[Alternative],
    filters: Filters,
    ranking: Ranking,
) -> list[SearchHit]:
    """Return the rows of a part of a ranking; those that are gone by now are left out."""
    lexemes, _ = await resolve_words(database, account_id, alternatives, filters.language)
    rows = await database.query(
        _READ_RANKED,
        account_id=account_id,
        ids=[each.id for each in ranking],
        scores=[each.score for each in ranking],
        **_headlines(lexemes, alternatives),
    )
    matches = {each.id: each.match for each in ranking}
    return [_hit(row | {"match": matches[row["id"]]}) for row in rows]


async def find_around(
    database: Database, account_id: uuid.UUID, ids: Sequence[int], around_ms: int
) -> list[int]:
    """Return these rows and what is said shortly before and after those of speech, by job, track
    and time."""
    rows = await database.query(_FIND_AROUND, account_id=account_id, ids=list(ids), ms=around_ms)
    return [row["id"] for row in rows]


_FIND_AROUND = text(
    """
    SELECT r.id FROM search_rows r
     WHERE r.account_id = :account_id
       AND r.job_id IN (SELECT job_id FROM search_rows WHERE id = ANY(CAST(:ids AS bigint[])))
       AND (r.id = ANY(CAST(:ids AS bigint[])) OR EXISTS (
            SELECT FROM search_rows hit
             WHERE hit.id = ANY(CAST(:ids AS bigint[])) AND hit.kind = 'transcript'
               AND (r.job_id, r.kind, r.track_index) = (hit.job_id, hit.kind, hit.track_index)
               AND r.end_ms > hit.start_ms - :ms AND r.start_ms < hit.end_ms + :ms))
     ORDER BY r.job_id, r.kind, r.track_index, r.start_ms, r.id
    """
)


async def find_scenes_at(
    database: Database, places: Sequence[tuple[uuid.UUID, float]]
) -> dict[tuple[uuid.UUID, float], int | None]:
    """Return what is seen at a second of a job, where something is: a scene, or None for all."""
    ids, times = [job_id for job_id, _ in places], [seconds for _, seconds in places]
    rows = await database.query(_FIND_SCENES_AT, ids=ids, times=times)
    return {(row["job_id"], row["seconds"]): row["scene_index"] for row in rows}


_FIND_SCENES_AT = text(
    """
    SELECT DISTINCT job_id, seconds, scene_index
      FROM unnest(CAST(:ids AS uuid[]), CAST(:times AS float8[])) AS given (job_id, seconds)
      JOIN search_rows r USING (job_id)
     WHERE kind NOT IN ('file', 'transcript')
       AND start_ms <= round(seconds * 1000) AND end_ms > round(seconds * 1000)
    """
)


async def content_words(
    database: Database, account_id: uuid.UUID, words: Sequence[str]
) -> list[str]:
    """Return the words that no configuration of the account's rows leaves out as too frequent."""
    alternatives = [(Clause((word,)),) for word in words]
    lexemes, _ = await resolve_words(database, account_id, alternatives, None)
    return [
        word
        for word, clauses in zip(words, alternatives, strict=True)
        if all(lexemes.queries[config, key] for config in lexemes.configs
               for key in _word_keys(clauses))
    ]  # fmt: skip


def _hit(row: dict[str, Any]) -> SearchHit:
    return SearchHit(**row | {"kind": SearchKind(row["kind"])})


def _headlines(lexemes: Lexemes, alternatives: Sequence[Alternative]) -> dict[str, Any]:
    return {"marks": lexemes.marks(alternatives) or None, "options": _HEADLINE}


def _parameters(
    account_id: uuid.UUID,
    alternatives: Sequence[Alternative],
    filters: Filters,
    lexemes: Lexemes,
    newest_id: int,
) -> dict[str, Any]:
    """Return what ``_find_statement`` matches and ranks by."""
    strict, relaxed = lexemes.all_of(alternatives), lexemes.most_of(alternatives)
    account = "" if lexemes.mostly_own else f"'{account_label(account_id)}'"
    everything = set(filters.kinds) == set(SearchKind)
    kinds = "" if everything else disjunction(f"'=k{kind}'" for kind in filters.kinds)
    labels = [account, kinds]
    return {
        "account_id": account_id,
        "below": newest_id + 1,
        **_numbered("strict", _in_ranges(strict, newest_id, labels)),
        **_numbered("relaxed", _in_ranges(relaxed, newest_id, labels)),
        "strict": lexemes.kept(alternatives, strict),
        "relaxed": lexemes.kept(alternatives, relaxed),
        "most": MOST_CANDIDATES,
        "enough": 1 if sum(len(clause.words) for clause in alternatives[0]) > 3 else ENOUGH,
        **lexemes.scoring(alternatives),
        **filters.conditions,
    }


_RANGES = (*RANGE_BITS, None)
_NO_SCORE = 1 << 31


def _numbered(name: str, values: Sequence[object]) -> dict[str, object]:
    """Return a parameter for each: one that is an array would be read again for each row."""
    return {f"{name}{number}": value for number, value in enumerate(values)}


def _in_ranges(query: str, newest_id: int, labels: list[str]) -> list[str | None]:
    """Return the query for each range of ids, each with those before it; None where it is not
    needed."""
    if not query:
        return [None] * len(_RANGES)
    found: list[str | None] = []
    for bits in RANGE_BITS:
        block = newest_id >> bits
        # A range that has all rows is the last one, but for the first, after which there is none.
        needed = block > 1 or not found
        ids = f"'={bits}:{block}' | '={bits}:{block - 1}'"
        found.append(conjunction([query, ids, *labels]) if needed else None)
    everything = newest_id >> RANGE_BITS[0] > 1
    return [*found, conjunction([query, *labels]) if everything else None]


_CONDITIONS = {
    "job_id": "{r}.job_id = :job_id",
    "language": "{r}.language = :language",
    "created_from": "{r}.job_created_at >= :created_from",
    "created_to": "{r}.job_created_at < :created_to",
    "job_ids": "{r}.job_id = ANY(CAST(:job_ids AS uuid[]))",
    "archive_id": "{r}.job_id IN (SELECT o.job_id FROM archive_objects o"
    " WHERE o.archive_id = :archive_id)",
    "speaker": "({r}.speaker = :speaker OR EXISTS (SELECT FROM speaker_labels l"
    " WHERE (l.job_id, l.track_index, l.speaker_id) = ({r}.job_id, {r}.track_index, {r}.speaker)"
    " AND lower(l.label) = lower(:speaker)))",
}
KIND_WEIGHTS = {
    SearchKind.FILE: 1.0,
    SearchKind.TRANSCRIPT: 1.0,
    SearchKind.TEXT: 0.9,
    SearchKind.SCENE: 0.8,
    SearchKind.OBJECT: 0.7,
}
_KIND_WEIGHT = " ".join(
    f"WHEN '{kind}' THEN {weight}::float8" for kind, weight in KIND_WEIGHTS.items()
)
_HEADLINE = f'HighlightAll=true, StartSel="{MARK_START}", StopSel="{MARK_STOP}"'


def _count(queries: str, number: int) -> str:
    return f"(SELECT count(*) FROM {queries}{number})"  # noqa: S608  (a name of this module)


def _range_query(queries: str, number: int, conditions: str, still_few: str) -> str:
    """Return a common table expression: the newest matches in a range of ids, where they are
    needed.

    The first range is short, and shows how frequent matches are. Of the others those are left out
    that would probably not have enough: a range costs as much as its rarest word or label is
    frequent, however few rows it has. OFFSET 0 and id + 0: the planner would else go through all
    rows by id for the first that match.
    """
    too_few = [f"{_count(queries, earlier)} < :most" for earlier in range(number)]
    if 0 < number < len(RANGE_BITS):
        times = 1 << (RANGE_BITS[number] - RANGE_BITS[0])
        too_few.append(f"{_count(queries, 0)} * {times} >= :most")
    return f"""
        {queries}{number} AS MATERIALIZED (
            SELECT id FROM (
                SELECT id FROM search_rows
                 WHERE vector @@ CAST(:{queries}{number} AS tsquery)
                   AND (vector @@ CAST(:{queries} AS tsquery)) IS TRUE
                   AND account_id = :account_id AND id + 0 < :below{conditions}
                OFFSET 0
            ) AS found
            WHERE {" AND ".join([still_few, *too_few])}
            ORDER BY id DESC LIMIT :most
        )"""  # noqa: S608  (constants of this module)


# The parser must not take text for tags, which a headline leaves out.
_SHOWN = """
        SELECT page.id, page.score, r.job_id, jobs.file_name, r.kind, r.start_ms, r.end_ms,
               r.track_index, r.scene_index, r.speaker, l.label AS speaker_label, r.text, r.ahead,
               ts_headline(r.config::regconfig, translate(r.text || ' ' || r.ahead, '<>', '  '),
                           CAST(:marks AS tsquery), :options) AS headline
          FROM page JOIN search_rows r USING (id) JOIN jobs ON jobs.id = r.job_id
          LEFT JOIN speaker_labels l
            ON (l.job_id, l.track_index, l.speaker_id) = (r.job_id, r.track_index, r.speaker)"""
_READ_RANKED = text(
    f"""
        WITH page AS (
            SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:scores AS bigint[]))
                     WITH ORDINALITY AS given (id, score, place)
        ) {_SHOWN}
         WHERE r.account_id = :account_id
         ORDER BY page.place
    """  # noqa: S608  (constants of this module)
)


@functools.cache
def _find_statement(conditions: tuple[str, ...], *, shown: bool = True) -> TextClause:
    """One statement, for a round trip costs as much as a range of ids. Without ``shown`` only ids.

    The score is the kind's weight, times the square of the share of the words that there are, and
    up to two fifths for how close they are.
    """
    further = "".join(f" AND {_CONDITIONS[name].format(r='search_rows')}" for name in conditions)
    numbers = range(len(_RANGES))
    strict = [_range_query("strict", number, further, "true") for number in numbers]
    counts = ", ".join(_count("strict", number) for number in numbers)
    relaxed = [
        _range_query("relaxed", number, further, f"greatest({counts}) < :enough")
        for number in numbers
    ]
    every = " UNION ALL ".join(
        f"SELECT id, {complete} AS complete FROM {name}{number}"  # noqa: S608
        for name, complete in (("strict", "true"), ("relaxed", "false"))
        for number in numbers
    )
    return text(
        f"""
        WITH {",".join([*strict, *relaxed])},
        candidates AS (SELECT id, bool_or(complete) AS complete FROM ({every}) GROUP BY id),
        given AS MATERIALIZED (
            SELECT CAST(:configs AS text[]) AS configs, CAST(:ranks AS tsquery[]) AS ranks,
                   CAST(:term_configs AS text[]) AS term_configs, CAST(:terms AS tsquery[]) AS terms
        ),
        scored AS (
            SELECT id, CAST({SCORE_UNITS} * CASE kind {_KIND_WEIGHT} END
                   * CASE WHEN complete THEN 1 ELSE (
                       SELECT power(avg((r.vector @@ term)::int::float8), 2)
                         FROM unnest(given.term_configs, given.terms) AS t (config, term)
                        WHERE t.config = r.config) END
                   * (0.6 + 0.4 * ts_rank(r.vector, given.ranks
                         [coalesce(array_position(given.configs, r.config), 1)])) AS bigint)
                   AS score
              FROM candidates JOIN search_rows r USING (id), given
        ),
        page AS (
            SELECT id, score FROM scored
             WHERE (score, id) < (:score, :row_id)
             ORDER BY score DESC, id DESC LIMIT :limit
        )
        {_SHOWN if shown else "SELECT page.id FROM page"}
         ORDER BY page.score DESC, page.id DESC
        """  # noqa: S608  (constants of this module)
    )
