"""Searches by words and by meaning, with the packaged sentence model on a real pgvector."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from models.provider import LocalModels
from models.tasks import EMBED_TEXT
from serve_app.context import TextEncoder, build_context
from serve_app.deployment.model_choice import encoder_of
from serve_app.search import service
from serve_app.search.service import End, Page, end_bytes, end_of, find_page, parse_query
from serve_app.settings import Settings
from serve_app.work.indexing import SearchIndexer
from storage import search_vectors
from storage.database import Database
from storage.search import Filters, MatchedPlace
from storage.types import SearchKind
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET
from tests.storage.test_search import Library, scene, track

GUITAR = "A man plays the guitar on a small stage."
RAIN = "Tomorrow it will pour over the whole country."
SHIP = "The captain steered his vessel into the port."
KITCHEN = "A cook cuts onions on a wooden board."
MUSIC = "someone making music with strings"
"""Has no word of GUITAR."""


class Meanings(Library):
    """A library with an encoder, and the indexer of a runner beside it."""

    def __init__(self, database: Database, url: str, encoder: TextEncoder | None) -> None:
        super().__init__(database)
        settings = Settings(database_url=url, secret_key=SecretStr(SECRET))
        self.encoder = encoder
        context = replace(build_context(settings, encoder=encoder), database=database)
        self.indexer = SearchIndexer(context)

    async def embed(self) -> None:
        for maker in self.indexer._makers:
            maker._look_again_at = 0.0
        while await self.indexer.embed():
            pass

    async def page(
        self,
        account: uuid.UUID,
        q: str,
        *,
        limit: int = 10,
        after: End | None = None,
        **filters: Any,
    ) -> Page:
        wanted, rules = parse_query(q), Filters(**filters)
        return await find_page(
            self.database, account, wanted, rules, limit=limit, after=after, encoder=self.encoder
        )

    async def texts(self, account: uuid.UUID, q: str, **filters: Any) -> list[str]:
        found = await self.page(account, q, **filters)
        assert found.mode == "hybrid"
        return [hit["snippet"]["text"] for hit in found.hits]

    async def vectors(self, job: uuid.UUID) -> list[tuple[str, str]]:
        """Model and text of each vector of the job."""
        query = (
            "SELECT v.model, r.text FROM search_vectors v JOIN search_rows r ON r.id = v.row_id"
            " WHERE r.job_id = :job ORDER BY r.id"
        )
        async with self.database.statement() as connection:
            found = (await connection.execute(text(query), {"job": job})).all()
        return [(row.model, row.text) for row in found]


@pytest.fixture(autouse=True)
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a search waits for its query's vector."""
    monkeypatch.setattr(service, "ENCODING_SECONDS", 60.0)


@pytest.fixture(scope="module")
async def library(postgres_url: str) -> AsyncIterator[Meanings]:
    encoder = encoder_of(LocalModels())
    assert encoder is not None, "the text model is not installed"
    await encoder.encode(["opened before the first search"])
    with fresh_database(postgres_url) as url:
        database = Database(url)
        yield Meanings(database, url, encoder)
        await database.close()


@pytest.fixture(scope="module")
async def account(library: Meanings) -> uuid.UUID:
    account = await library.account()
    await library.job(
        account,
        track([GUITAR, RAIN, SHIP], gap=30),
        scenes=[scene(0, KITCHEN, objects=["knife"])],
    )
    await library.embed()
    return account


async def test_what_means_alike_is_found_without_a_word_in_common(
    library: Meanings, account: uuid.UUID
) -> None:
    found = await library.page(account, MUSIC)
    assert found.mode == "hybrid"
    best = found.hits[0]
    assert (best["snippet"]["text"], best["snippet"]["ranges"]) == (GUITAR, [])
    assert (best["kind"], best["startTime"], best["fileName"]) == ("transcript", 0.0, "clip.mp4")
    assert (await library.texts(account, "preparing vegetables for a meal"))[0] == KITCHEN


async def test_rows_with_the_words_and_the_meaning_come_first_with_their_words_marked(
    library: Meanings, account: uuid.UUID
) -> None:
    found = await library.page(account, "guitar stage")
    scores = [hit["score"] for hit in found.hits]
    assert scores[0] == 1.0
    assert scores == sorted(scores, reverse=True)
    snippet = found.hits[0]["snippet"]
    assert [snippet["text"][r["start"] : r["end"]] for r in snippet["ranges"]] == [
        "guitar",
        "stage",
    ]


async def test_what_is_unlike_everything_is_not_found(
    library: Meanings, account: uuid.UUID
) -> None:
    assert await library.texts(account, "zymurgy quixotic 12345") == []


async def test_filters_phrases_and_unwanted_words_hold_for_meanings(
    library: Meanings, account: uuid.UUID
) -> None:
    assert GUITAR in await library.texts(account, MUSIC)
    refused = [f"{MUSIC} -guitar", f'{MUSIC} -"small stage"', f'{MUSIC} "large stage"']
    for q in refused:
        assert GUITAR not in await library.texts(account, q), q
    assert GUITAR in await library.texts(account, f'{MUSIC} "small stage"')
    filters: list[dict[str, Any]] = [
        {"kinds": (SearchKind.SCENE, SearchKind.FILE)},
        {"language": "de"},
        {"job_id": uuid.uuid4()},
    ]
    for each in filters:
        assert GUITAR not in await library.texts(account, MUSIC, **each), each
    assert GUITAR in await library.texts(account, MUSIC, language="en")
    either = await library.texts(account, f"{MUSIC} OR steering boats")
    assert {GUITAR, SHIP} <= set(either[:2])


async def test_eight_alternatives_cost_no_more_statements_or_calls_of_the_model_than_one(
    library: Meanings, account: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.encoder is not None
    counted = list[str]()

    async def query(statement: Any, **values: Any) -> Any:
        counted.append("statement")
        return await Database.query(library.database, statement, **values)

    async def encode(texts: Sequence[str]) -> Any:
        counted.append("model")
        return await TextEncoder.encode(library.encoder, texts)  # type: ignore[arg-type]

    monkeypatch.setattr(library.database, "query", query)
    monkeypatch.setattr(library.encoder, "encode", encode)
    costs = []
    for q in (MUSIC, " OR ".join([f'{MUSIC} -"part {number}"' for number in range(8)])):
        counted.clear()
        assert GUITAR in await library.texts(account, q)
        costs.append(sorted(counted))
    assert costs[0] == costs[1]


async def test_each_alternative_has_its_own_phrases_and_unwanted_words(
    library: Meanings, account: uuid.UUID
) -> None:
    queries = {
        f'{MUSIC} -guitar OR {MUSIC} "small stage"': True,
        f'{MUSIC} "large stage" OR {MUSIC} -guitar': False,
        f"boats -vessel OR {MUSIC} -vessel": True,
    }
    for q, is_found in queries.items():
        assert (GUITAR in await library.texts(account, q)) == is_found, q


async def test_accounts_never_see_each_others_meanings(
    library: Meanings, account: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await library.account()
    job = await library.job(other, track(["Somebody strums an instrument.", RAIN]))
    await library.embed()
    for most in (search_vectors.EXACT_MOST, -1):
        monkeypatch.setattr(search_vectors, "EXACT_MOST", most)
        search_vectors._near_statement.cache_clear()
        assert await library.texts(other, MUSIC) == ["Somebody strums an instrument."]
        assert "Somebody strums an instrument." not in await library.texts(account, MUSIC)
        assert await library.texts(account, MUSIC, job_id=job) == []
    search_vectors._near_statement.cache_clear()
    rest = (await library.page(account, f"{MUSIC} OR rain OR boats", limit=1)).end
    stolen = await library.page(other, MUSIC, after=rest)
    assert stolen.hits == [], "a cursor carries ids; they are of the account that asks"


async def test_pages_are_those_of_the_list_that_the_first_page_saw(library: Meanings) -> None:
    account = await library.account()
    said = [f"Lesson {number}: how to tune a guitar" for number in range(30)]
    jobs = [await library.job(account, track([each])) for each in said]
    await library.embed()
    whole = [hit["jobId"] for hit in (await library.page(account, "lesson", limit=100)).hits]
    assert set(whole) == {str(job) for job in jobs}
    seen, after, gone = list[str](), None, ""
    while True:
        found = await library.page(account, "lesson", limit=7, after=after)
        seen += [hit["jobId"] for hit in found.hits]
        if found.end is None:
            break
        after = end_of(end_bytes(found.end))
        assert after == found.end
        if not gone:
            gone = whole[20]
            async with library.database.transaction() as connection:
                await connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": gone})
        await library.job(account, track(["Lesson: another guitar"]))
        await library.embed()
    assert seen == [job for job in whole if job != gone]


def test_a_place_by_words_alone_is_read_back_too() -> None:
    place = MatchedPlace(7, 900_000, 3)
    assert end_of(end_bytes(place)) == place


async def test_vectors_go_with_their_job(library: Meanings) -> None:
    account = await library.account()
    job = await library.job(account, track([GUITAR]), scenes=[scene(0, KITCHEN, objects=["cup"])])
    await library.embed()
    assert [said for _, said in await library.vectors(job)] == [KITCHEN, GUITAR]
    async with library.database.transaction() as connection:
        await connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": job})
    assert await library.vectors(job) == []
    assert await library.texts(account, MUSIC) == []


async def test_chapters_get_the_vectors_of_a_job(library: Meanings) -> None:
    account = await library.account()
    job = await library.job(account, track([GUITAR, RAIN]))
    assert await search_vectors.vectors_of_job(library.database, job) == {}
    await library.embed()
    found = await search_vectors.vectors_of_job(library.database, job)
    assert set(found) == {GUITAR, RAIN}
    assert all(abs(float(vector @ vector) - 1) < 0.01 for vector in found.values())


async def test_vectors_of_another_model_are_not_compared_and_are_made_anew(
    library: Meanings,
) -> None:
    account = await library.account()
    job = await library.job(account, track([GUITAR]))
    await library.embed()
    async with library.database.transaction() as connection:
        await connection.execute(text("UPDATE search_vectors SET model = 'of last year'"))
    assert await library.texts(account, MUSIC) == []
    library.indexer._makers[0]._next_pass_at = 0.0
    await library.embed()
    assert library.encoder is not None
    assert await library.vectors(job) == [(library.encoder.model, GUITAR)]
    assert await library.texts(account, MUSIC) == [GUITAR]


async def test_meanings_are_found_across_languages(library: Meanings) -> None:
    account = await library.account()
    train = "Der Zug nach Hamburg fährt um acht Uhr ab."
    await library.job(account, track([train], "de"), track([GUITAR], index=1))
    await library.embed()
    assert await library.texts(account, "railway departure in the morning") == [train]
    assert (await library.texts(account, "jemand spielt ein Instrument"))[0] == GUITAR
    assert (await library.texts(account, "ギターを弾く男"))[0] == GUITAR


async def test_a_table_for_vectors_of_another_length_gives_way(
    postgres_url: str, library: Meanings
) -> None:
    """As a version before left it, whose model had vectors of 384 numbers."""
    with fresh_database(postgres_url) as url:
        database = Database(url)
        upgraded = Meanings(database, url, library.encoder)
        account = await upgraded.account()
        job = await upgraded.job(account, track([GUITAR]))
        async with database.transaction() as connection:
            assert await search_vectors.make_tables(connection)
            former = "ALTER TABLE search_vectors ALTER COLUMN embedding TYPE halfvec(384)"
            await connection.execute(text(former))
            await connection.execute(
                text(
                    "INSERT INTO search_vectors SELECT id, account_id, 'former',"
                    " array_fill(0.05, ARRAY[384])::real[]::halfvec FROM search_rows"
                )
            )
        assert await upgraded.texts(account, MUSIC) == [], "until a runner looks, by words"
        assert await upgraded.texts(account, "guitar") == [GUITAR]
        await upgraded.embed()
        assert upgraded.encoder is not None
        assert await upgraded.vectors(job) == [(upgraded.encoder.model, GUITAR)]
        assert await upgraded.texts(account, MUSIC) == [GUITAR]
        await database.close()


async def test_one_runner_at_a_time_makes_vectors(library: Meanings) -> None:
    account = await library.account()
    job = await library.job(account, track([GUITAR]))
    async with library.database.statement() as connection:
        assert await search_vectors.try_lock(connection)
        await library.embed()
        assert await library.vectors(job) == []
        await search_vectors.unlock(connection)
    await library.embed()
    assert len(await library.vectors(job)) == 1


async def test_a_server_without_the_extension_is_searched_by_words(
    postgres_url: str, library: Meanings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that does not offer it, and one whose administrator has to make it."""
    with fresh_database(postgres_url) as url:
        database = Database(url)
        without = Meanings(database, url, library.encoder)
        account = await without.account()
        await without.job(account, track([GUITAR]))
        real = search_vectors._holds

        async def not_offered(connection: Any, condition: str) -> bool:
            return "pg_available_extensions" not in condition and await real(connection, condition)

        with monkeypatch.context() as patch:
            patch.setattr(search_vectors, "_holds", not_offered)
            await without.embed()
        async with database.transaction() as connection:
            await connection.execute(text("CREATE ROLE plain"))
            await connection.execute(text("SET LOCAL ROLE plain"))
            assert not await search_vectors.make_tables(connection)
            await connection.execute(text("RESET ROLE"))
            await connection.execute(text("DROP ROLE plain"))
        found = await without.page(account, "guitar")
        assert (found.mode, len(found.hits)) == ("text", 1)
        without.indexer._makers[0]._next_pass_at = 0.0
        await without.embed()
        assert await without.texts(account, MUSIC) == [GUITAR]
        await database.close()


class Refusing:
    """A text model that fails after some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.calls = seconds, 0

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.calls += 1
        time.sleep(self._seconds)
        raise RuntimeError("No.")


@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_a_model_that_fails_or_hangs_leaves_searches_by_words(
    library: Meanings, account: uuid.UUID, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ENCODING_SECONDS", 0.1)
    model = Refusing(seconds)
    encoder = TextEncoder(lambda: model, "refusing")
    for _ in range(3):
        found = await find_page(
            library.database, account, parse_query("guitar"), Filters(), limit=5, encoder=encoder
        )
        assert (found.mode, len(found.hits)) == ("text", 1)
    assert model.calls == 1, "the next searches do not wait for it"


class Slow:
    """A text model that takes its time for some texts."""

    def __init__(self) -> None:
        self._embedder = LocalModels().get(EMBED_TEXT)

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if any("costly" in each for each in texts):
            time.sleep(1.2)
        return self._embedder.embed_texts(texts)


async def test_one_accounts_costly_queries_leave_the_others_their_meanings(
    library: Meanings, account: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ENCODING_SECONDS", 3.0)
    assert library.encoder is not None
    model, busy = Slow(), await library.account()
    encoder = TextEncoder(lambda: model, library.encoder.model)

    async def search(by: uuid.UUID, q: str) -> str:
        found = await find_page(
            library.database, by, parse_query(q), Filters(), limit=5, encoder=encoder
        )
        return found.mode

    await library.job(busy, track([RAIN]))
    costly = [asyncio.create_task(search(busy, "costly rain")) for _ in range(6)]
    await asyncio.sleep(0)
    meanwhile = await search(account, MUSIC)
    modes = await asyncio.gather(*costly)
    assert "text" in modes, "the model could not answer all of them in time"
    assert (meanwhile, await search(account, MUSIC)) == ("hybrid", "hybrid")
    assert await search(busy, "rain") == "text", "its own searches do not wait so soon again"
