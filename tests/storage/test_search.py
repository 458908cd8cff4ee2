"""Searches over rows as publishing writes them, on a real PostgreSQL."""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from sqlalchemy import text

from serve_app.search.service import SearchHitJson, find_page, parse_query
from storage import history, keys, search
from storage.database import Database
from storage.job_records import JobSource, NewJob
from storage.jobs import insert_job
from storage.results import TrackTranscript
from storage.search import Filters, resolve_words
from storage.search_index import (
    BEGINNING,
    CONFIGS,
    Position,
    file_rows,
    index_older_results,
    insert_rows,
    merge_pending_rows,
    words_of,
)
from storage.types import JobState, ProcessingMode, SearchKind, StageName, StageStatus
from tests.databases import fresh_database
from tests.tables import every

Said = Sequence[str]


def document(said: Said, gap_seconds: float = 0.0) -> str:
    """A stored transcript: a segment of two seconds for each sentence."""
    segments = [
        {
            "index": number,
            "start_ms": round(number * (2 + gap_seconds) * 1000),
            "end_ms": round((number * (2 + gap_seconds) + 2) * 1000),
            "text": sentence,
            "speaker": "speaker_0",
        }
        for number, sentence in enumerate(said)
    ]
    return json.dumps({"language": "en", "speakers": [], "segments": segments})


def track(said: Said, language: str = "en", index: int = 0, gap: float = 0.0) -> TrackTranscript:
    return TrackTranscript(
        index, f"Mic {index}", StageStatus.COMPLETED, None, language, document(said, gap)
    )


def scene(index: int, description: str, **fields: Any) -> dict[str, Any]:
    times = {"start_ms": index * 10_000, "end_ms": index * 10_000 + 10_000}
    return {"index": index, "description": description, "objects": []} | times | fields


class Library:
    """Accounts with jobs whose results are published."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def account(self) -> uuid.UUID:
        async with self.database.transaction() as connection:
            return (await keys.create_account(connection, uuid.uuid4().hex)).id

    async def job(
        self,
        account: uuid.UUID,
        *tracks: TrackTranscript,
        scenes: list[dict[str, Any]] | None = None,
        overview: dict[str, Any] | None = None,
        file_name: str = "clip.mp4",
    ) -> uuid.UUID:
        job = NewJob(
            account, JobState.QUEUED, ProcessingMode.ALL, file_name, JobSource(kind="upload")
        )
        async with self.database.transaction() as connection:
            await insert_job(connection, job)
            await insert_rows(connection, job.id, file_rows(file_name, 60_000), StageName.INGEST)
            if scenes is not None:
                await history.store_scenes(connection, job.id, scenes, overview)
            if tracks:
                await history.store_transcripts(connection, job.id, list(tracks))
        return job.id

    async def hits(self, account: uuid.UUID, q: str, **filters: Any) -> list[SearchHitJson]:
        wanted, rules = parse_query(q), Filters(**filters)
        return (await find_page(self.database, account, wanted, rules, limit=100))[0]

    async def found(self, account: uuid.UUID, q: str, **filters: Any) -> list[str]:
        """Texts of what is found, best first."""
        return [hit["snippet"]["text"] for hit in await self.hits(account, q, **filters)]

    async def rows(self, job_id: uuid.UUID) -> int:
        async with self.database.statement() as connection:
            query = text("SELECT count(*) FROM search_rows WHERE job_id = :id")
            return int((await connection.execute(query, {"id": job_id})).scalar_one())


@pytest.fixture(scope="module")
async def library(postgres_url: str) -> AsyncIterator[Library]:
    with fresh_database(postgres_url) as url:
        database = Database(url)
        yield Library(database)
        await database.close()


FOX = "The quick brown foxes were running towards the old mill."
RIVER = "They stopped at the river to drink."
MARKET = "On Friday we sell apples and pears at the market."


QUERIES = [
    ("fox", [FOX]),
    ("run", [FOX]),
    ("RUNNING Mill", [FOX]),
    ('"old mill"', [FOX]),
    ('"mill old"', []),
    ("appl*", [MARKET]),
    ("runn*", [FOX]),
    ("mill -apples", [FOX]),
    ("mill -old", []),
    ("fox OR pears", [FOX, MARKET]),
    ("river", [RIVER]),
    ("unheard", []),
    ("'; DROP TABLE search_rows; --", []),
    ("fox & !mill | (river", [FOX]),
]


@pytest.fixture(scope="module")
async def english(library: Library) -> uuid.UUID:
    account = await library.account()
    await library.job(account, track([FOX, RIVER, MARKET], gap=30))
    return account


@every(("q", "expected"), QUERIES, ids=[q for q, _ in QUERIES])
async def test_words_phrases_beginnings_and_exclusions(
    library: Library, english: uuid.UUID, q: str, expected: list[str]
) -> None:
    assert sorted(await library.found(english, q)) == sorted(expected)


@every(
    "q",
    [
        *("crème", "cre\u0300me", "CREME", "creme brulee", '"brûlée in zurich"', "brul*"),
        *("Zürich", "Zu\u0308rich", "zurich", "cafe", "cafe\u0301"),
    ],
)
@every("form", ["NFC", "NFD"])
async def test_words_are_found_with_and_without_their_accents(
    library: Library, form: Literal["NFC", "NFD"], q: str
) -> None:
    account = await library.account()
    said = unicodedata.normalize(form, "Crème brûlée in Zürich, café")
    await library.job(account, track([said]))
    [hit] = await library.hits(account, q)
    assert hit["snippet"]["text"] == said
    assert hit["snippet"]["ranges"], "what matches is marked"
    assert await library.found(account, "-cafe creme") == []
    assert await library.found(account, "crema") == []


async def test_a_phrase_across_two_segments_is_found_once_with_both(library: Library) -> None:
    account = await library.account()
    await library.job(account, track(["We walked towards the old", "mill near the river."]))
    [hit] = await library.hits(account, '"old mill"')
    assert (hit["startTime"], hit["endTime"]) == (0, 2)
    shown = hit["snippet"]["text"]
    assert [shown[r["start"] : r["end"]] for r in hit["snippet"]["ranges"]] == ["old", "mill"]
    assert len(await library.hits(account, "mill")) == 1


async def test_segments_far_apart_are_not_read_as_one(library: Library) -> None:
    account = await library.account()
    await library.job(account, track(["towards the old", "mill near the river"], gap=30))
    assert await library.found(account, '"old mill"') == []


WRONG_WORDS = [
    "quick brown socks running towards mill",
    "brown foxes standing",
    "the quick crown foxes",
    "foxes lunar",
]


@pytest.mark.parametrize("q", WRONG_WORDS)
async def test_a_word_that_was_transcribed_otherwise_does_not_hide_the_rest(
    library: Library, english: uuid.UUID, q: str
) -> None:
    assert (await library.found(english, q))[0] == FOX


async def test_a_phrase_in_quotation_marks_is_meant_to_the_letter(
    library: Library, english: uuid.UUID
) -> None:
    assert await library.found(english, '"quick crown foxes"') == []


LANGUAGES = [
    ("de", "Die Häuser standen am Fluss.", "Haus"),
    ("fr", "Les chevaux mangeaient tranquillement.", "tranquille"),
    ("es", "Los gatos corrían por la calle.", "gato"),
    ("ru", "Мы говорили о книгах.", "книга"),
    ("zh", "我们明天去北京看长城。", "北京"),
    ("ja", "日本語の音声認識をテストしています。", "音声認識"),
    ("ko", "한국어를 공부하고 있습니다.", "한국어"),
    ("th", "วันนี้อากาศดีมาก", "อากาศ"),
    ("xx", "Sinu keelde pole siin.", "keelde"),
]


@every(("language", "said", "q"), LANGUAGES, ids=[c[0] for c in LANGUAGES])
async def test_words_are_found_in_their_language(
    library: Library, language: str, said: str, q: str
) -> None:
    account = await library.account()
    await library.job(account, track([said], language), track([FOX], "en", index=1))
    [hit] = await library.hits(account, q)
    assert hit["snippet"]["text"] == said
    assert hit["snippet"]["ranges"]
    assert await library.found(account, q, language=language) == [said]
    assert await library.found(account, q, language="en") == []
    assert await library.found(account, "fox") == [FOX]


async def test_a_single_character_of_a_script_without_spaces_is_found(library: Library) -> None:
    account = await library.account()
    await library.job(account, track(["日本語"], "ja"))
    for q in "日本語":
        assert await library.found(account, q) == ["日本語"]


async def test_silence_has_no_rows(library: Library) -> None:
    account = await library.account()
    job = await library.job(account, track([]), track(["  "], index=1), scenes=[])
    assert await library.rows(job) == 1


@pytest.mark.parametrize(("cuts", "indices"), [(0, [None]), (1, [0])], ids=["no cuts", "cuts"])
async def test_a_video_is_found_by_its_overview_where_it_has_no_scenes(
    library: Library, cuts: int, indices: list[int | None]
) -> None:
    account = await library.account()
    seen = scene(0, "A lighthouse.", on_screen_text=[{"text": "Keep out"}])
    overview = {name: value for name, value in seen.items() if name != "index"}
    await library.job(account, scenes=[seen] * cuts, overview=overview)
    for word in ("lighthouse", "keep out"):
        hits = await library.hits(account, word)
        assert [hit.get("sceneIndex") for hit in hits] == indices


async def test_every_configuration_of_the_table_is_one_of_the_servers(library: Library) -> None:
    async with library.database.statement() as connection:
        there = (await connection.execute(text("SELECT cfgname FROM pg_ts_config"))).scalars()
        assert set(CONFIGS.values()) <= set(there)


SCENES = [
    scene(
        0,
        "A woman speaks to the camera in a bright kitchen.",
        objects=["kettle", "woman"],
        object_tracks=[{"label": "spoon"}],
        on_screen_text=[{"text": "Anna Weber, baker"}],
    ),
    scene(1, "A street at night."),
]
KINDS = [
    ("kitchens", SearchKind.SCENE),
    ("weber", SearchKind.TEXT),
    ("kettles", SearchKind.OBJECT),
    ("spoon", SearchKind.OBJECT),
    ("harbour", SearchKind.FILE),
    ("tour", SearchKind.FILE),
    ("2024", SearchKind.FILE),
    ("foxes", SearchKind.TRANSCRIPT),
]


@pytest.fixture(scope="module")
async def everything(library: Library) -> uuid.UUID:
    account = await library.account()
    await library.job(account, track([FOX]), scenes=SCENES, file_name="Harbour_cityTour-2024.mp4")
    return account


@every(("q", "kind"), KINDS, ids=[q for q, _ in KINDS])
async def test_all_that_was_found_out_can_be_searched(
    library: Library, everything: uuid.UUID, q: str, kind: SearchKind
) -> None:
    [hit] = await library.hits(everything, q)
    assert hit["kind"] == kind
    assert ("sceneIndex" in hit) == (kind in {SearchKind.SCENE, SearchKind.TEXT, SearchKind.OBJECT})
    assert hit["snippet"]["ranges"]
    others = tuple(other for other in SearchKind if other is not kind)
    assert await library.found(everything, q, kinds=others) == []
    assert len(await library.found(everything, q, kinds=(kind,))) == 1


async def test_accounts_never_find_each_others_rows(library: Library) -> None:
    """Not even where the labels of two accounts, 48 bits of their ids, are the same."""
    first = await library.account()
    second = uuid.UUID(int=first.int ^ 1)
    async with library.database.transaction() as connection:
        await connection.execute(
            text("INSERT INTO accounts (id, name) VALUES (:id, :name)"),
            {"id": second, "name": second.hex},
        )
    job = await library.job(first, track(["Zanzibar"]))
    assert await library.found(first, "zanzibar") == ["Zanzibar"]
    assert await library.found(second, "zanzibar") == []
    assert await library.found(second, "zanzibar", job_id=job) == []


async def test_filters_by_job_and_by_its_creation(library: Library) -> None:
    account = await library.account()
    jobs = [await library.job(account, track([f"Meeting number {n}"])) for n in range(3)]
    assert await library.found(account, "meeting", job_id=jobs[1]) == ["Meeting number 1"]
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    assert await library.found(account, "meeting", created_from=now + hour) == []
    assert await library.found(account, "meeting", created_to=now - hour) == []
    between = await library.found(
        account, "meeting", created_from=now - hour, created_to=now + hour
    )
    assert len(between) == 3


async def test_pages_neither_skip_nor_repeat_while_more_is_published(library: Library) -> None:
    account = await library.account()
    await library.job(account, track([f"Lesson {n} of many" for n in range(45)], gap=30))
    whole = await library.hits(account, "lesson")
    assert len(whole) == 45
    scores = [hit["score"] for hit in whole]
    assert scores == sorted(scores, reverse=True)
    seen, after = [], None
    while True:
        hits, after, _ = await find_page(
            library.database, account, parse_query("lesson"), Filters(), limit=7, after=after
        )
        seen += hits
        if after is None:
            break
        await library.job(account, track([f"Lesson published after {len(seen)}"]))
    assert seen == whole


async def test_the_newest_of_too_many_matches_are_ranked(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the bound, from as few ranges of ids as hold them."""
    account = await library.account()
    for first in range(0, 30, 10):
        await library.job(account, track([f"chapter {first + n}" for n in range(10)], gap=30))
    monkeypatch.setattr(search, "MOST_CANDIDATES", 12)
    found = await library.found(account, "chapter")
    assert len(found) == 12
    assert {int(each.split()[1]) for each in found} == set(range(18, 30))


async def test_rows_far_back_are_found_through_their_ranges(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await library.account()
    await library.job(account, track(["Antediluvian"]))
    async with library.database.transaction() as connection:
        await connection.execute(
            text("SELECT setval(pg_get_serial_sequence('search_rows', 'id'), 9000000)")
        )
    await library.job(account, track(["Postdiluvian"]))
    assert await library.found(account, "antediluvian") == ["Antediluvian"]
    assert await library.found(account, "postdiluvian") == ["Postdiluvian"]
    both = await library.found(account, "*diluvian OR antediluvian OR postdiluvian")
    assert sorted(both) == ["Antediluvian", "Postdiluvian"]


async def test_rows_go_with_their_job(library: Library) -> None:
    account = await library.account()
    job = await library.job(account, track([FOX]), scenes=SCENES)
    assert await library.rows(job) == 6
    async with library.database.transaction() as connection:
        await connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": job})
    assert await library.rows(job) == 0
    assert await library.found(account, "fox") == []


async def test_results_published_without_an_index_are_indexed_in_batches(
    library: Library,
) -> None:
    account = await library.account()
    jobs = [
        await library.job(account, track([f"Older {FOX}"]), scenes=SCENES, file_name=f"{n}.mp4")
        for n in range(4)
    ]
    unfinished = await library.job(account)
    async with library.database.transaction() as connection:
        ids = {"ids": [*jobs, unfinished]}
        await connection.execute(text("DELETE FROM search_rows WHERE job_id = ANY(:ids)"), ids)
        await connection.execute(
            text("UPDATE stages SET indexed = NULL, status = 'completed' WHERE job_id = ANY(:ids)"),
            {"ids": jobs},
        )
        await connection.execute(
            text("UPDATE stages SET indexed = NULL WHERE job_id = ANY(:ids)"), {"ids": [unfinished]}
        )
    position: Position | None = BEGINNING
    steps = 0
    while position is not None:
        async with library.database.transaction() as connection:
            before = await _all_rows(library)
            position = await index_older_results(connection, position, look_at=7, index=2)
        assert await _all_rows(library) - before <= 2 * 5
        steps += 1
    assert steps > 6
    assert [await library.rows(job) for job in jobs] == [6] * 4
    assert await library.rows(unfinished) == 0
    assert len(await library.found(account, "fox")) == 4
    async with library.database.transaction() as connection:
        assert await index_older_results(connection, BEGINNING, look_at=999, index=99) is None
    assert [await library.rows(job) for job in jobs] == [6] * 4


async def _all_rows(library: Library) -> int:
    async with library.database.statement() as connection:
        return int(
            (await connection.execute(text("SELECT count(*) FROM search_rows"))).scalar_one()
        )


async def test_one_process_at_a_time_indexes_older_results(library: Library) -> None:
    async with library.database.transaction() as one, library.database.transaction() as other:
        await index_older_results(one, BEGINNING, look_at=1, index=1)
        assert await index_older_results(other, BEGINNING, look_at=1, index=1) is None


async def test_what_is_merged_is_found_as_before(library: Library, english: uuid.UUID) -> None:
    await library.database.read(merge_pending_rows)
    assert await library.found(english, "fox") == [FOX]


def test_pairs_stand_for_words_where_there_are_no_spaces() -> None:
    assert words_of("AI技術の今 and 中") == "AI 技術 術の の今 今  and  中 "
    assert words_of("plain text") == "plain text"


ODD_TEXTS = [
    "\x00nul",
    "a\x02b\x03c",
    "<script>alert(1)</script>",
    "x" * 12_000,
    "'quo''ted\\",
    "=a0",
]


@every("said", ODD_TEXTS)
async def test_odd_text_is_stored_and_shown_as_text(library: Library, said: str) -> None:
    account = await library.account()
    await library.job(
        account, track([said.replace("\x00", ""), f"marker {said}".replace("\x00", "")])
    )
    [shown] = await library.found(account, "marker")
    assert len(shown) <= 300
    assert "\x02" not in shown
    for q in ("script", "alert", "=a0", "quo''ted\\"):
        await library.found(account, q)


async def test_a_snippet_of_a_tag_keeps_it_and_its_ranges(library: Library) -> None:
    account = await library.account()
    await library.job(account, track(["He typed <b>bold</b> & left"]))
    [hit] = await library.hits(account, "bold")
    snippet = hit["snippet"]
    assert snippet["text"] == "He typed <b>bold</b> & left"
    assert [snippet["text"][r["start"] : r["end"]] for r in snippet["ranges"]] == ["bold"]


async def test_an_account_with_most_rows_finds_its_own_alone(postgres_url: str) -> None:
    """Its label is left out of the index's conditions then."""
    with fresh_database(postgres_url) as url:
        library = Library(Database(url))
        large, small = await library.account(), await library.account()
        await library.job(large, track([f"Sentence {number}." for number in range(50)] + [FOX]))
        await library.job(small, track([FOX + " Again.", RIVER]))
        before = [await library.found(account, "foxes mill") for account in (large, small)]
        async with library.database.statement() as connection:
            await connection.execute(text("ANALYZE search_rows"))
        clauses = parse_query("foxes")
        known = [
            (await resolve_words(library.database, account, clauses, None))[0].mostly_own
            for account in (large, small)
        ]
        after = [await library.found(account, "foxes mill") for account in (large, small)]
        await library.database.close()
    assert known == [True, False]
    assert after == before == [[FOX], [FOX + " Again."]]


async def test_a_search_is_planned_once_for_all_words_and_other_queries_as_before(
    postgres_url: str,
) -> None:
    with fresh_database(postgres_url) as url:
        library = Library(Database(url, pool_size=1))
        account = await library.account()
        await library.job(account, track(["A heron stands in the reeds"]))
        for word in ["heron", "reeds", "stands", "boat", "heron reeds", '"in the reeds"']:
            await library.hits(account, word)
        plans = text(
            "SELECT generic_plans, custom_plans, current_setting('plan_cache_mode') AS mode"
            "  FROM pg_prepared_statements WHERE statement LIKE '%ts_headline%'"
        )
        [row] = await library.database.query(plans)
        workers = text("SELECT current_setting('max_parallel_workers_per_gather')::int AS workers")
        [within] = await library.database.query_planned_once(workers)
        [after] = await library.database.query(workers)
        await library.database.close()
    assert row == {"generic_plans": 4, "custom_plans": 0, "mode": "auto"}
    assert within["workers"] == 0 < after["workers"]
