"""Words of a query as PostgreSQL's lexemes, in every configuration that an account has rows of."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from storage.database import Database
from storage.search_index import config_of, pairs_of

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
        """Rows with all words of an alternative."""
        return disjunction(
            conjunction(self._atoms(config, _wanted(clauses)))
            for config in self.configs
            for clauses in alternatives
        )

    def most_of(self, alternatives: Sequence[Alternative]) -> str:
        """Rows with all words but one, or, of five and more, with a part of them that are together.

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
        """What a row must have and must not, to the letter: phrases, words that are unwanted."""
        phrases = [clause for clause in _wanted(clauses) if len(clause.words) > 1]
        wanted = (_weighted(query) for query in self._atoms(config, phrases) if query)
        return conjunction([*wanted, *self._unwanted(config, clauses)])

    def scoring(self, alternatives: Sequence[Alternative]) -> dict[str, list[str]]:
        """All words of a configuration; and, where all of them are needed, each with its own."""
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
    """The lexemes, of one language's configuration alone where it is given; and the newest row."""
    clauses = [clause for each in alternatives for clause in each]
    keys = list(
        dict.fromkeys(
            [*_word_keys(clauses), *(key for clause in clauses for key in _atoms_of(clause))]
        )
    )
    rows = await database.query(
        _RESOLVE,
        account_id=account_id,
        only=None if language is None else config_of(language),
        passages=[_prefix_query(passage) if prefix else passage for passage, prefix in keys],
        prefixes=[prefix for _, prefix in keys],
    )
    configs = tuple(dict.fromkeys(row["config"] for row in rows))
    queries = {(row["config"], keys[row["n"] - 1]): row["query"] for row in rows}
    mostly_own = bool(rows and rows[0]["mostly_own"])
    return Lexemes(configs, queries, mostly_own), rows[0]["newest_id"] if rows else 0


_RESOLVE = text(
    """
    SELECT c.config, t.n,
           CASE WHEN t.prefix THEN to_tsquery(c.config::regconfig, t.passage)
                ELSE phraseto_tsquery(c.config::regconfig, t.passage) END::text AS query,
           (SELECT coalesce(max(id), 0) FROM search_rows) AS newest_id,
           EXISTS (SELECT FROM pg_stats,
                          unnest(most_common_vals::text::uuid[], most_common_freqs) AS m (id, share)
                    WHERE schemaname = current_schema() AND tablename = 'search_rows'
                      AND attname = 'account_id' AND m.id = :account_id AND share > 0.5
                  ) AS mostly_own
      FROM (SELECT config FROM search_configs
             WHERE account_id = :account_id AND config = coalesce(:only, config)) AS c,
           unnest(CAST(:passages AS text[]), CAST(:prefixes AS boolean[]))
           WITH ORDINALITY AS t (passage, prefix, n)
     ORDER BY c.config, t.n
    """
)


def _wanted(clauses: Alternative) -> Alternative:
    return tuple(clause for clause in clauses if not clause.negated)


def _word_keys(clauses: Iterable[Clause]) -> Iterator[_Key]:
    """Each word for itself, in order; a script without spaces by pairs of characters."""
    for clause in clauses:
        for word in clause.words:
            pairs = pairs_of(word)
            yield from ((pair, len(pair) == 1) for pair in pairs)
            if not pairs:
                yield word, clause.prefix


def _atoms_of(clause: Clause) -> Iterator[_Key]:
    """The clause's words as phrases; those of a script without spaces are a phrase each."""
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
    """Words that begin so, and those whose stem is a beginning of it (manageme*: manag)."""
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
    """The query for words of weight A only; ``query`` is as PostgreSQL writes a tsquery."""
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
