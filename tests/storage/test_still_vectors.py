"""Scenes that look alike, on a real pgvector, with a model that knows colours alone."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from serve_app.context import PictureEncoder, build_context
from serve_app.errors import ApiError, ErrorCode
from serve_app.search import service
from serve_app.search.service import (
    End,
    Likeness,
    Page,
    end_bytes,
    end_of,
    find_alike_page,
    find_page,
    parse_query,
)
from serve_app.settings import Settings
from serve_app.work import indexing
from serve_app.work.indexing import SearchIndexer
from storage import search_vectors
from storage.database import Database
from storage.search import Filters
from storage.types import SearchKind
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET
from tests.stills import BLUE, GREEN, ORANGE, RED, ColourEmbedder, jpeg
from tests.storage.test_search import Library, scene


class Stills(Library):
    """A library whose scenes have stills, and the indexer of a runner beside it."""

    def __init__(self, database: Database, url: str, data_dir: Path) -> None:
        super().__init__(database)
        settings = Settings(database_url=url, secret_key=SecretStr(SECRET), data_dir=data_dir)
        self.embedder = ColourEmbedder()
        self.model: str | None = "colours"
        pictures = PictureEncoder(lambda: self.embedder, "colours", lambda: self.embedder)
        self.context = replace(build_context(settings, pictures=pictures), database=database)
        self.indexer = SearchIndexer(self.context)

    async def shows(self, account: uuid.UUID, *colours: tuple[int, int, int]) -> uuid.UUID:
        """A job with a scene of each colour."""
        scenes = []
        for index, colour in enumerate(colours):
            key = f"jobs/{uuid.uuid4()}/{index}.jpg"
            self.context.objects.write_bytes(key, jpeg(colour))
            scenes.append(scene(index, f"It is {colour}.", thumbnail_key=key))
        return await self.job(account, scenes=scenes)

    async def embed(self) -> None:
        for maker in self.indexer._makers:
            maker._look_again_at = 0.0
        while await self.indexer.embed():
            pass

    async def page(
        self,
        account: uuid.UUID,
        job: uuid.UUID,
        index: int = 0,
        *,
        limit: int = 10,
        after: End | None = None,
        **filters: Any,
    ) -> Page:
        assert after is None or isinstance(after, tuple)
        return await find_alike_page(
            self.database,
            account,
            Likeness(job, index),
            Filters(**filters),
            limit=limit,
            after=after,
            model=self.model,
        )

    async def searched(
        self,
        account: uuid.UUID,
        q: str,
        *,
        limit: int = 10,
        after: End | None = None,
        **filters: Any,
    ) -> Page:
        """By words and by stills; there is no model of texts."""
        return await find_page(
            self.database,
            account,
            parse_query(q),
            Filters(**filters),
            limit=limit,
            after=after,
            pictures=self.context.pictures,
        )

    async def alike(self, *args: Any, **filters: Any) -> list[tuple[str, int]]:
        """Job and index of each scene, the most alike first."""
        hits = (await self.page(*args, **filters)).hits
        return [(hit["jobId"], hit["sceneIndex"]) for hit in hits]

    async def count(self, job: uuid.UUID) -> int:
        query = "SELECT count(*) FROM still_vectors JOIN search_rows ON id = row_id"
        async with self.database.statement() as connection:
            found = await connection.execute(text(f"{query} WHERE job_id = :job"), {"job": job})
            return int(found.scalar_one())


@pytest.fixture(autouse=True)
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a search waits for its query's vector."""
    monkeypatch.setattr(service, "ENCODING_SECONDS", 60.0)


@pytest.fixture(scope="module")
async def library(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stills]:
    with fresh_database(postgres_url) as url:
        # Of so few rows the planner would sort all in place of using the index.
        database = Database(f"{url}&options=-c%20enable_sort%3Doff")
        yield Stills(database, url, tmp_path_factory.mktemp("data"))
        await database.close()


@pytest.fixture(params=["exact", "index"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    most = search_vectors.EXACT_MOST if request.param == "exact" else -1
    monkeypatch.setattr(search_vectors, "EXACT_MOST", most)
    search_vectors._near_statement.cache_clear()
    yield
    search_vectors._near_statement.cache_clear()


@pytest.mark.usefixtures("either_way")
async def test_scenes_that_look_alike_are_found_most_alike_first_within_the_account(
    library: Stills,
) -> None:
    account, other = await library.account(), await library.account()
    one = await library.shows(account, RED, BLUE, GREEN)
    two = await library.shows(account, ORANGE)
    stolen = await library.shows(other, RED, BLUE)
    await library.embed()
    page = await library.page(account, one)
    assert (page.mode, page.end) == ("like", None)
    first, last = page.hits[0], page.hits[-1]
    assert (first["jobId"], first["kind"], first["fileName"]) == (str(two), "scene", "clip.mp4")
    snippet = first["snippet"]
    assert (snippet["text"], snippet["ranges"]) == (f"It is {ORANGE}.", [])
    assert first["score"] == pytest.approx(0.95, abs=0.03)
    assert first["score"] > last["score"] > 0
    found = await library.alike(account, one)
    assert set(found) == {(str(two), 0), (str(one), 1), (str(one), 2)}, "not itself, none of others"
    assert await library.alike(account, one, job_id=one) == found[1:]
    assert await library.alike(account, one, job_id=stolen) == []
    now = datetime.now(UTC)
    assert await library.alike(account, one, created_from=now + timedelta(hours=1)) == []
    assert len(await library.alike(account, one, created_to=now + timedelta(hours=1))) == 3
    assert await library.alike(other, stolen) == [(str(stolen), 1)]


@pytest.mark.usefixtures("either_way")
async def test_nearer_scenes_of_other_accounts_displace_none_of_ones_own(library: Stills) -> None:
    """The index is one of all accounts; it has far more candidates that are nearer than own."""
    account, other = await library.account(), await library.account()
    job = await library.shows(account, RED, *[BLUE] * 30)
    await library.shows(other, *[(220, 20, 20 + n) for n in range(150)])
    await library.embed()
    assert len(await library.alike(account, job, limit=100)) == 30


def places(page: Page) -> list[tuple[str, Sequence[str]]]:
    """What each hit is of, and what of it matches."""
    return [(hit["snippet"]["text"], hit["foundBy"]) for hit in page.hits]


@pytest.mark.usefixtures("either_way")
async def test_a_scene_is_found_by_what_its_still_shows(library: Stills) -> None:
    account, other = await library.account(), await library.account()
    job = await library.shows(account, BLUE, RED, GREEN)
    said = scene(0, "A red car stops.", thumbnail_key=None)
    await library.job(account, scenes=[said])
    await library.shows(other, RED)
    await library.embed()
    page = await library.searched(account, "red car")
    assert (page.mode, page.end) == ("hybrid", None)
    assert places(page) == [("A red car stops.", ["words"]), (f"It is {RED}.", ["picture"])]
    assert (page.hits[1]["jobId"], page.hits[1]["sceneIndex"]) == (str(job), 1)
    assert places(await library.searched(account, "a red thing", job_id=job)) == [
        (f"It is {RED}.", ["picture"])
    ], "words that stand nowhere"
    both = places(await library.searched(account, "red 220"))
    assert both[0] == (f"It is {RED}.", ["words", "picture"])
    assert places(await library.searched(account, "blue OR green")) == [
        (f"It is {GREEN}.", ["picture"]), (f"It is {BLUE}.", ["picture"])
    ], "those that are alike: the newest first"  # fmt: skip
    assert places(await library.searched(account, "red -220")) == [("A red car stops.", ["words"])]
    assert places(await library.searched(account, '"red thing"')) == []
    assert places(await library.searched(account, "red thing", kinds=(SearchKind.TEXT,))) == []
    assert places(await library.searched(account, "red thing", language="en")) == []


async def test_pages_go_on_with_what_matches(library: Stills) -> None:
    account = await library.account()
    await library.shows(account, *((220, 20 + n, 20) for n in range(9)))
    await library.embed()
    whole = places(await library.searched(account, "something red"))
    assert (len(whole), whole[0][1]) == (9, ["picture"])
    first = await library.searched(account, "something red", limit=4)
    assert first.end is not None
    after = end_of(end_bytes(first.end))
    assert after == first.end
    rest = await library.searched(account, "something red", after=after)
    assert places(first) + places(rest) == whole


async def test_a_model_that_fails_leaves_a_search_as_it_is_without(
    library: Stills, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await library.account()
    await library.shows(account, RED)
    await library.embed()
    monkeypatch.setattr(library.embedder, "embed_phrases", None)
    page = await library.searched(account, "red")
    assert (page.mode, page.hits) == ("text", [])


async def test_pages_are_those_of_the_list_that_the_first_page_saw(library: Stills) -> None:
    account = await library.account()
    job = await library.shows(account, *((200, 10 * n, 30) for n in range(20)))
    await library.embed()
    whole = await library.alike(account, job, limit=100)
    assert whole == [(str(job), n) for n in range(1, 20)]
    seen, after = list[int](), None
    while True:
        page = await library.page(account, job, limit=7, after=after)
        seen += [hit["sceneIndex"] for hit in page.hits]
        if page.end is None:
            break
        after = end_of(end_bytes(page.end))
        assert after == page.end
        await library.shows(account, RED)
        await library.embed()
    assert seen == [index for _, index in whole]
    other = await library.account()
    first = (await library.page(account, job, limit=7)).end
    assert (await library.page(other, job, after=first)).hits == []


async def test_vectors_go_with_their_job_and_those_of_another_model_are_made_anew(
    library: Stills,
) -> None:
    account = await library.account()
    job, gone = await library.shows(account, RED, BLUE), await library.shows(account, RED)
    await library.embed()
    assert (await library.count(job), await library.count(gone)) == (2, 1)
    async with library.database.transaction() as connection:
        await connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": gone})
        await connection.execute(text("UPDATE still_vectors SET model = 'of last year'"))
    assert await library.count(gone) == 0
    await refused(library, account, job, 0, ErrorCode.RESULTS_NOT_READY)
    library.indexer._makers[0]._next_pass_at = 0.0
    await library.embed()
    assert await library.alike(account, job) == [(str(job), 1)]


async def test_stills_are_embedded_in_small_steps_and_those_that_are_none_are_passed_over(
    library: Stills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing._StillMaker, "at_once", 3)
    account = await library.account()
    scenes = [
        scene(0, "Its still is gone.", thumbnail_key="jobs/x/gone.jpg"),
        scene(1, "It has none."),
        scene(2, "It is no picture.", thumbnail_key="jobs/x/text.jpg"),
        scene(3, "It is empty.", thumbnail_key="jobs/x/empty.jpg"),
    ]
    library.context.objects.write_bytes("jobs/x/text.jpg", b"no picture")
    library.context.objects.write_bytes("jobs/x/empty.jpg", b"")
    broken = await library.job(account, scenes=scenes)
    job = await library.shows(account, *[RED] * 7)
    library.embedder.most = 0
    await library.embed()
    assert (await library.count(job), library.embedder.most) == (7, 3)
    for index in range(4):
        code = ErrorCode.NOT_FOUND if index == 1 else ErrorCode.RESULTS_UNAVAILABLE
        await refused(library, account, broken, index, code)
    assert {each for each, _ in await library.alike(account, job)} == {str(job)}


async def refused(
    library: Stills, account: uuid.UUID, job: uuid.UUID, index: int, code: ErrorCode
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await library.page(account, job, index)
    assert caught.value.code is code
    return caught.value


async def test_a_scene_that_is_not_the_accounts_is_as_one_that_is_not(library: Stills) -> None:
    account, other = await library.account(), await library.account()
    job = await library.shows(account, RED)
    await library.embed()
    for asks, named, index in ((other, job, 0), (account, uuid.uuid4(), 0), (account, job, 1)):
        error = await refused(library, asks, named, index, ErrorCode.NOT_FOUND)
        assert (error.param, error.args[1]) == ("like", "There is no such scene.")


async def test_without_a_model_or_a_table_it_is_said(
    library: Stills, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await library.account()
    job = await library.shows(account, RED)
    monkeypatch.setattr(library, "model", None)
    error = await refused(library, account, job, 0, ErrorCode.RESULTS_UNAVAILABLE)
    assert error.args[1] == "The service has no model that compares pictures."
    with fresh_database(postgres_url) as url:
        database = Database(url)
        without = Stills(database, url, tmp_path)
        account = await without.account()
        job = await without.shows(account, RED)
        error = await refused(without, account, job, 0, ErrorCode.RESULTS_UNAVAILABLE)
        assert error.args[1] == "The service's database cannot keep vectors of pictures."
        await database.close()
