"""Search: how much of what is known to be there it finds, and how fast among two million segments.

    python -m benchmarks.search recall [--semantic]
    python -m benchmarks.search vectors [--rows 100000]
    python -m benchmarks.search speed [--rows 2000000 --times 1 --clients 16 --seconds 20]

``recall`` publishes the programmes of ``search_library`` and the transcripts that the packaged
models make of the real media, and asks 60 queries; one is answered where the right segment is among
the first five hits. ``--semantic``: by meaning too, and 80 queries in eight
other languages. The last line is JSON.

``speed`` fills the embedded server with one account's synthetic transcripts (words of Zipf's
frequencies, hours of 900 segments), then lets clients search one after the other, as fast as they
are answered, in the process that the API would be; and publishes hours with and without their
search rows. With ``--times 10`` there are ten times as many rows, each ten times under ids and jobs
of its own, which takes PostgreSQL a fraction of the time.

``vectors`` makes, keeps and searches vectors of an account, exactly and through the index.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import SecretStr
from sqlalchemy import text

from benchmarks import search_library as library
from benchmarks.speech.material import RECORDINGS, load
from benchmarks.speech.plain_loop import transcribe_samples
from models.provider import LocalModels
from pipelines.codec import encode
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptResult, TranscriptSegment, TranscriptWord
from serve_app.context import TextEncoder, build_context
from serve_app.deployment.model_choice import encoder_of
from serve_app.search.service import SearchHitJson, find_page, parse_query
from serve_app.settings import Settings
from serve_app.work.indexing import SearchIndexer
from storage import history, keys, search_index, search_vectors
from storage.database import Database, embedded_postgres, migrate
from storage.job_records import JobSource, NewJob
from storage.jobs import insert_job
from storage.results import TrackTranscript
from storage.search import Filters
from storage.search_index import LABELS, insert_rows, merge_pending_rows, transcript_rows
from storage.types import JobState, ProcessingMode, SearchKind, StageName, StageStatus
from tests.places import SHARED_MEDIA
from tests.serve_app.running_api import SECRET

HOUR_SEGMENTS = 900
WORDS = 40_000
WORDS_A_SEGMENT = 12
SYLLABLES = [a + b for a in "bdfgklmnprstvwz" for b in "aeiou"]


FUNCTION_WORDS = [
    "the",
    "i",
    "and",
    "you",
    "to",
    "a",
    "of",
    "it",
    "that",
    "in",
    "is",
    "we",
    "was",
    "on",
    "for",
    "this",
    "have",
    "they",
    "be",
    "with",
    "so",
    "not",
    "are",
    "but",
    "do",
    "at",
    "what",
    "there",
    "he",
    "my",
    "just",
    "as",
    "no",
    "about",
    "if",
    "can",
    "all",
    "now",
    "out",
    "up",
    "them",
    "or",
    "from",
    "then",
    "she",
    "me",
    "your",
    "will",
    "how",
    "some",
    "which",
    "were",
    "by",
    "who",
    "because",
    "had",
    "very",
    "when",
    "our",
    "an",
    "here",
    "did",
    "has",
    "been",
    "over",
    "more",
    "only",
    "into",
    "than",
    "these",
    "why",
    "down",
    "where",
    "same",
    "too",
    "should",
    "those",
    "again",
    "their",
    "his",
    "her",
    "him",
    "its",
    "most",
    "other",
    "such",
    "through",
    "few",
    "any",
    "both",
    "own",
    "before",
    "after",
    "during",
    "off",
    "once",
]
"""The most frequent words of every language say nothing; those of English are stop words."""


class Speech:
    """Sentences with Zipf's frequencies, made-up words after the function words; the same for the
    same seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        words = dict.fromkeys(FUNCTION_WORDS)
        while len(words) < WORDS:
            words["".join(chance.choices(SYLLABLES, k=chance.choice([2, 2, 3, 3, 4])))] = None
        self.words = np.array(list(words))
        weights = 1 / np.arange(1, WORDS + 1)
        self._shares = weights / weights.sum()
        self._numbers = np.random.default_rng(seed)

    def segments(self, count: int) -> list[str]:
        """Sentences."""
        chosen = self._numbers.choice(self.words, (count, WORDS_A_SEGMENT), p=self._shares)
        return [" ".join(row) for row in chosen]


def hour(speech: Speech, segments: int = HOUR_SEGMENTS) -> str:
    """A stored transcript with words, as publishing gets it."""
    said = []
    for number, sentence in enumerate(speech.segments(segments)):
        start_ms = number * 4000
        words = tuple(
            TranscriptWord(word, start_ms, start_ms + 300, 0.9, "speaker_0")
            for word in sentence.split()
        )
        said.append(
            TranscriptSegment(number, start_ms, start_ms + 4000, sentence, "speaker_0", 0.9, words)
        )
    return encode(TranscriptResult("en", (), tuple(said))).decode()


async def _new_job(database: Database, account: uuid.UUID, name: str = "a.mp4") -> uuid.UUID:
    job = NewJob(account, JobState.QUEUED, ProcessingMode.ALL, name, JobSource(kind="upload"))
    await database.write(insert_job, job)
    return job.id


async def fill(
    database: Database, account: uuid.UUID, rows: int, times: int, speech: Speech
) -> None:
    """The rows of so many segments, so many times, their index made at the end as a restored
    database makes it. Rows that are there stay."""
    async with database.transaction() as connection:
        found = text("SELECT pg_get_indexdef('ix_search_rows_vector'::regclass)")
        definition = (await connection.execute(found)).scalar_one()
        await connection.execute(text("DROP INDEX ix_search_rows_vector"))
    [there] = await database.query(text("SELECT count(*) FROM search_rows"))
    for _ in range((rows - there["count"]) // HOUR_SEGMENTS):
        said = [
            {"start_ms": n * 4000, "end_ms": n * 4000 + 4000, "text": text, "speaker": None}
            for n, text in enumerate(speech.segments(HOUR_SEGMENTS))
        ]
        job = await _new_job(database, account)
        async with database.transaction() as connection:
            segments = transcript_rows(0, "en", said)
            await insert_rows(connection, job, segments, StageName.TRANSCRIPT)
    async with database.transaction() as connection:
        for statement in _COPY_JOBS:
            await connection.execute(text(statement), {"times": times})
        await connection.execute(text(_COPY_ROWS))
    async with database.statement() as connection:
        await connection.execute(text("SET maintenance_work_mem = '512MB'"))
        await connection.execute(text(definition))
        await connection.execute(text("VACUUM ANALYZE search_rows"))


_COPY_JOBS = (
    "SET LOCAL synchronous_commit = off",
    "CREATE TEMPORARY TABLE copies ON COMMIT DROP AS"
    " SELECT id AS job_id, gen_random_uuid() AS copy, number"
    " FROM jobs, generate_series(2, :times) AS number",
    "INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source, created_at)"
    " SELECT copy, account_id, state, processing_mode, tier, file_name, source, created_at"
    " FROM jobs JOIN copies ON job_id = id",
)
_COPY_ROWS = f"""
    INSERT INTO search_rows (id, account_id, job_id, job_created_at, kind, config, language,
                             start_ms, end_ms, track_index, text, ahead, vector)
    SELECT new.id, account_id, copy, job_created_at, kind, config, language, start_ms, end_ms,
           track_index, text, ahead,
           ts_filter(vector, '{{a,d}}') || {LABELS}
      FROM (SELECT nextval(pg_get_serial_sequence('search_rows', 'id')) AS id, copy, old_id
              FROM (SELECT copy, r.id AS old_id FROM copies JOIN search_rows r USING (job_id)
                     ORDER BY number, r.id) AS ordered) AS new
      JOIN search_rows r ON r.id = old_id
"""  # noqa: S608  (constants of this module)
"""Words have weights in a vector, labels none."""

Query = Callable[[list[str], str, random.Random], str]
KINDS: dict[str, Query] = {
    "a word": lambda said, frequent, chance: chance.choice(said),
    "a frequent word": lambda said, frequent, chance: frequent,
    "three words": lambda said, frequent, chance: " ".join(said[2:5]),
    "six words": lambda said, frequent, chance: " ".join(said[2:8]),
    "six words, one wrong": lambda said, frequent, chance: " ".join(
        [*said[2:4], "mistake", *said[5:8]]
    ),
    "a phrase": lambda said, frequent, chance: f'"{" ".join(said[2:6])}"',
    "a beginning": lambda said, frequent, chance: f"{said[3]} {frequent[:4]}*",
    "one of two, without a third": lambda said, frequent, chance: (
        f"{said[1]} OR {said[6]} -{said[8]}"
    ),
    "nothing like it": lambda said, frequent, chance: "unheard quixotic zymurgy",
}
"""From the words of a segment that is there, and the most frequent of them, to a query."""


async def search_times(
    database: Database, account: uuid.UUID, *, clients: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each search, by its kind."""
    there = "SELECT text FROM search_rows TABLESAMPLE SYSTEM (1) LIMIT 20000"
    segments = [row["text"].split() for row in await database.query(text(there))]
    counts = Counter(itertools.chain.from_iterable(segments))
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < until:
            kind = chance.choice(list(KINDS))
            said = chance.choice(segments)
            telling = [word for word in said if word not in FUNCTION_WORDS]
            frequent = max(telling, key=counts.__getitem__, default="unheard")
            q = KINDS[kind](said, frequent, chance)
            began = time.monotonic()
            await find_page(database, account, parse_query(q), Filters(), limit=20)
            took[kind].append((time.monotonic() - began) * 1000)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return took


async def publishing_times(
    database: Database, account: uuid.UUID, speech: Speech, hours: int
) -> tuple[list[float], list[float]]:
    """Milliseconds to publish an hour's transcript without and with its search rows, in turns."""
    without, indexed = list[float](), list[float]()

    async def no_rows(*_: object) -> None:
        return None

    with_rows = insert_rows
    for turn in range(2 * hours):
        job = await _new_job(database, account)
        track = TrackTranscript(0, "Mic", StageStatus.COMPLETED, None, "en", hour(speech))
        setattr(search_index, "insert_rows", with_rows if turn % 2 else no_rows)  # noqa: B010
        began = time.monotonic()
        await database.write(history.store_transcripts, job, [track])
        (indexed if turn % 2 else without).append((time.monotonic() - began) * 1000)
        await database.read(merge_pending_rows)
    setattr(search_index, "insert_rows", with_rows)  # noqa: B010
    return without, indexed


@dataclass(frozen=True, slots=True)
class Sought:
    """The answer to a query: a file, and when in it; None: anywhere in a short recording."""

    file_name: str
    start_seconds: float | None

    def is_among(self, hits: list[SearchHitJson]) -> bool:
        """Whether one of the hits is it."""
        return any(
            hit["fileName"] == self.file_name
            and self.start_seconds in (None, hit["startTime"])
            and hit["kind"] == SearchKind.TRANSCRIPT
            for hit in hits
        )


def programme_segments(sentences: Sequence[str]) -> list[dict[str, Any]]:
    """A segment of five seconds for each sentence, as it was transcribed."""
    segments = []
    for number, said in enumerate(sentences):
        for right, wrong in library.MISHEARD.items():
            said = said.replace(right, wrong)  # noqa: PLW2901
        start_ms = number * 6000
        times = {"start_ms": start_ms, "end_ms": start_ms + 5000}
        segments.append(times | {"text": said, "speaker": "a"})
    return segments


def sought(file_name: str, words: str) -> Sought:
    """The one segment of a programme that has the words, as they were said."""
    sentences = library.PROGRAMMES.get(file_name)
    if sentences is None:
        return Sought(file_name, None)
    [number] = [number for number, said in enumerate(sentences) if words in said]
    return Sought(file_name, number * 6.0)


async def publish_library(database: Database, account: uuid.UUID) -> None:
    """Every programme and every recording a job."""
    documents: dict[str, tuple[str, str]] = {
        name: ("en", json.dumps({"segments": programme_segments(sentences)}))
        for name, sentences in library.PROGRAMMES.items()
    }
    for recording in RECORDINGS:
        with tempfile.TemporaryDirectory() as folder:
            samples = load(SHARED_MEDIA / recording.path, recording.channel)
            found = transcribe_samples(samples, Path(folder), LocalModels(), TranscriptConfig())
        language = found.language or "en"
        documents[recording.name] = (language, encode(found).decode())
    for name, (language, document) in documents.items():
        job = await _new_job(database, account, name)
        track = TrackTranscript(0, "Mic", StageStatus.COMPLETED, None, language, document)
        await database.write(history.store_transcripts, job, [track])


async def make_vectors(url: str, encoder: TextEncoder) -> None:
    """As a runner does, without its pauses."""
    context = build_context(Settings(database_url=url, secret_key=SecretStr(SECRET)))
    indexer = SearchIndexer(replace(context, encoder=encoder))
    while await indexer.embed():
        pass
    await context.database.close()


async def measure_recall(url: str, options: argparse.Namespace) -> dict[str, Any]:
    database = Database(url, pool_size=4)
    encoder = encoder_of(LocalModels()) if options.semantic else None
    async with database.transaction() as connection:
        account = (await keys.create_account(connection, "library")).id
    await publish_library(database, account)
    if encoder is not None:
        await make_vectors(url, encoder)
        await encoder.encode(["opened before the first search"])
    [rows] = await database.query(text("SELECT count(*) AS rows FROM search_rows"))
    recall: dict[str, Any] = rows
    kinds = {name: getattr(library, name) for name in ("SAID", "SAID_MISHEARD", "PARAPHRASED")}
    if encoder is not None:
        kinds |= library.IN_OTHER_LANGUAGES
    queries: dict[str, tuple[str, str]]
    for name, queries in kinds.items():
        right = 0
        for q, answer in queries.items():
            page = await find_page(
                database, account, parse_query(q), Filters(), limit=5, encoder=encoder
            )
            hits, found = page.hits, sought(*answer).is_among(page.hits)
            right += found
            if not found:
                print(f"not found: {q}", [hit["snippet"]["text"] for hit in hits], flush=True)
        recall[f"{name.lower()}_recall_at_5"] = round(right / len(queries), 3)
    await database.close()
    return recall


async def measure_vectors(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a vector costs to make, to keep and to search, exactly and through the index."""
    database = Database(url, pool_size=4)
    async with database.transaction() as connection:
        account = (await keys.create_account(connection, "vectors")).id
        assert await search_vectors.make_tables(connection)
    encoder = encoder_of(LocalModels())
    assert encoder is not None, "the text model is not installed"
    speech, job = Speech(2026), await _new_job(database, account)
    sentences = speech.segments(256)
    await encoder.encode(sentences[:8])
    began = time.monotonic()
    await encoder.encode(sentences)
    measured: dict[str, Any] = {"embed_ms": (time.monotonic() - began) * 1000 / len(sentences)}
    async with database.statement() as connection:
        await connection.execute(text("DROP INDEX ix_search_vectors_embedding"))
        for statement in (_MANY_ROWS, _MANY_VECTORS):
            await connection.execute(text(statement), {"job": job, "rows": options.rows})
        await connection.execute(text("SET maintenance_work_mem = '1GB'"))
        began = time.monotonic()
        await connection.execute(text(search_vectors.index_statement(search_vectors.TEXTS)))
        measured["index_ms_a_row"] = (time.monotonic() - began) * 1000 / options.rows
        await connection.execute(text("VACUUM ANALYZE search_vectors"))
    sizes = (
        "SELECT pg_table_size('search_vectors') / count(*) AS bytes_a_row,"
        " pg_indexes_size('search_vectors') / count(*) AS index_bytes_a_row FROM search_vectors"
    )
    measured |= (await database.query(text(sizes)))[0]
    vectors = await encoder.encode(speech.segments(30))
    ways = {"exact": (options.rows, 1), "exact_of_8": (options.rows, 8)}
    ways |= {"index": (-1, 1), "index_of_8": (-1, 8)}
    for name, (most, alternatives) in ways.items():
        setattr(search_vectors, "EXACT_MOST", most)  # noqa: B010
        search_vectors._near_statement.cache_clear()
        took = []
        for number in range(len(vectors) - alternatives):
            sought = vectors[number : number + alternatives]
            began = time.monotonic()
            await search_vectors.find_near(
                database, account, "m", sought, conditions=(), values={}, newest_id=1 << 40,
                least_similarity=-1, limit=50,
            )  # fmt: skip
            took.append((time.monotonic() - began) * 1000)
        measured[f"{name}_median_ms"] = statistics.median(took)
        measured[f"{name}_p95_ms"] = percentile(took, 0.95)
    async with database.statement() as connection:
        began = time.monotonic()
        made = np.resize(vectors, (256, vectors.shape[1])) + np.float32(0.001)
        await search_vectors.store_vectors(connection, "n", range(1, 257), made)
        measured["store_ms_a_row"] = (time.monotonic() - began) * 1000 / len(made)
    await database.close()
    return {name: round(float(value), 2) for name, value in measured.items()}


_MANY_ROWS = """
    INSERT INTO search_rows (account_id, job_id, job_created_at, kind, config, start_ms, end_ms,
                             text, ahead, vector)
    SELECT account_id, id, created_at, 'transcript', 'english', n, n + 1, 'a', '', ''::tsvector
      FROM jobs, generate_series(1, :rows) AS n WHERE id = :job
"""
_MANY_VECTORS = """
    INSERT INTO search_vectors
    SELECT r.id, account_id, 'm', (SELECT array_agg(random() - 0.5)
                                     FROM generate_series(1, 512) WHERE r.id > 0)::real[]::halfvec
      FROM search_rows r WHERE job_id = :job AND :rows > 0
"""
"""Random directions: the hardest for an index, as all are about as far from each other."""


def percentile(values: Sequence[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))], 1)


async def measure_speed(url: str, options: argparse.Namespace) -> dict[str, Any]:
    database = Database(url, pool_size=8)
    speech = Speech(2026)
    try:
        async with database.transaction() as connection:
            account = (await keys.create_account(connection, "archive")).id
    except keys.AccountExistsError:
        async with database.transaction() as connection:
            account = (await keys.get_account(connection, "archive")).id
    [there] = await database.query(text("SELECT count(*) FROM search_rows"))
    if there["count"] < 0.99 * options.rows * options.times:
        began = time.monotonic()
        await fill(database, account, options.rows, options.times, speech)
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
    await search_times(database, account, clients=2, seconds=3)
    took = await search_times(database, account, clients=options.clients, seconds=options.seconds)
    for kind, each in took.items():
        shown = percentile(each, 0.5), percentile(each, 0.95)
        print(f"{kind:30} n {len(each):5}  median {shown[0]:7}  p95 {shown[1]:7}", flush=True)
    whole = [value for each in took.values() for value in each]
    without, indexed = await publishing_times(database, account, speech, options.hours)
    size = "SELECT pg_total_relation_size('search_rows') / count(*) AS a_row FROM search_rows"
    [stored] = await database.query(text(size))
    await database.close()
    return {
        "bytes_a_row": stored["a_row"],
        "rows": options.rows * options.times,
        "clients": options.clients,
        "searches": len(whole),
        "searches_per_second": round(len(whole) / options.seconds, 1),
        "median_ms": percentile(whole, 0.5),
        "p95_ms": percentile(whole, 0.95),
        "publish_without_ms": round(statistics.median(without), 1),
        "publish_with_ms": round(statistics.median(indexed), 1),
        "publish_more_ms": round(statistics.median(indexed) - statistics.median(without), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--rows", type=int, default=2_000_000)
    speed.add_argument("--times", type=int, default=1)
    speed.add_argument("--clients", type=int, default=16)
    speed.add_argument("--seconds", type=float, default=20)
    speed.add_argument("--hours", type=int, default=10)
    speed.add_argument("--folder", type=Path, help="of a server that is filled once and kept")
    speed.set_defaults(measure=measure_speed)
    vectors = commands.add_parser("vectors")
    vectors.add_argument("--rows", type=int, default=100_000)
    vectors.set_defaults(measure=measure_vectors, folder=None)
    recall = commands.add_parser("recall")
    recall.add_argument("--semantic", action="store_true", help="by meaning too")
    recall.set_defaults(measure=measure_recall, folder=None)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="vas-search-") as folder,
        embedded_postgres((options.folder or Path(folder)) / "pg") as url,
    ):
        migrate(url)
        print(json.dumps(asyncio.run(options.measure(url, options))))


if __name__ == "__main__":
    main()
