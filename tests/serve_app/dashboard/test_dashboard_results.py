"""A job's results on its page: a first part however long they are, the others at addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from serve_app.dashboard.results import spelled
from storage.results import Kept
from tests.contract.long_jobs import WORDS_A_LINE, long_scenes, long_transcript
from tests.serve_app.dashboard.test_dashboard_pages import csrf, plain, signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

MOST_PAGE_BYTES = 300_000


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def browser(api: RunningApi, owner: Customer) -> Iterator[httpx.Client]:
    with signed_in(api, owner) as client:
        yield client


def long_job(api: RunningApi, customer: Customer, *, scenes: int, lines: int) -> str:
    """A completed job whose results are as long as that."""
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    for table, column, value in (
        ("scene_lists", "scenes", long_scenes(scenes, job_id)),
        ("transcripts", "document", long_transcript(lines * WORDS_A_LINE)),
    ):
        statement = f"UPDATE {table} SET {column} = CAST(:value AS json) WHERE job_id = :id"  # noqa: S608
        api.sql(statement, value=json.dumps(value), id=job_id)
    return job_id


@pytest.fixture(scope="module")
def job_id(api: RunningApi, owner: Customer) -> str:
    return long_job(api, owner, scenes=60, lines=250)


def ids(page: httpx.Response, kind: str) -> list[int]:
    beginning = {"scenes": "scene-", "segments": "s"}[kind]
    return [int(number) for number in re.findall(f'id="{beginning}([0-9]+)"', page.text)]


def following(page: httpx.Response, kind: str) -> str | None:
    found = re.findall(rf'<a rel="next" href="([^"]+/{kind}\?[^"]+)"', page.text)
    return unescape(found[0]) if found else None


@pytest.mark.parametrize(("kind", "size", "count"), [("scenes", 24, 60), ("segments", 100, 250)])
def test_each_part_leads_to_the_next_until_all_were_read_once(
    browser: httpx.Client, job_id: str, kind: str, size: int, count: int
) -> None:
    page = browser.get(f"/dashboard/jobs/{job_id}")
    read = ids(page, kind)
    assert read == list(range(size))
    while (address := following(page, kind)) is not None:
        page = browser.get(address)
        assert page.status_code == 200
        assert "Back to the job" in page.text
        read += ids(page, kind)
    assert read == list(range(count))


def test_a_speaker_is_named_where_one_begins_across_parts_too(
    api: RunningApi, browser: httpx.Client, job_id: str
) -> None:
    path, header = f"/dashboard/jobs/{job_id}/segments", 'class="speaker" data-speaker="speaker_'
    first, second = (browser.get(path, params={"from": first}).text for first in (0, 100))
    # They take turns of five lines.
    assert [page.count(header) for page in (first, second)] == [20, 20]
    body = second.partition('id="s100"')[0]
    assert header + '0"' in body, "line 99 is of the other one"
    inside = browser.get(path, params={"from": 102})
    assert ids(inside, "segments")[0] == 100, "the part that the line is in"
    named = {"label": "Anna <b>"}
    headers = {"X-CSRF-Token": csrf(browser.get("/dashboard"))}
    speaker = f"/dashboard/api/jobs/{job_id}/speakers/speaker_0"
    assert browser.put(speaker, json=named, headers=headers).status_code == 200
    again = browser.get(path, params={"from": 200}).text
    assert "Anna &lt;b&gt;" in again
    assert "Speaker 1" not in again


def test_outlines_and_texts_are_of_everything(browser: httpx.Client, job_id: str) -> None:
    path = f"/dashboard/jobs/{job_id}"
    scenes = browser.get(f"{path}/scenes/outline").json()
    assert (len(scenes), scenes[59][:2], len(scenes[59][2]), scenes[59][3]) == (
        60, [10_620.0, 10_800.0], 4, 0,
    )  # fmt: skip
    segments = browser.get(f"{path}/segments/outline").json()
    assert (len(segments), segments[249][2]) == (250, "speaker_1")
    assert browser.get(f"{path}/segments/texts").json()[249][0].startswith("word2490 word2491")
    texts = browser.get(f"{path}/scenes/texts", headers={"Accept-Encoding": "identity"}).json()
    assert texts[59] == ["A person speaks to the camera in scene 59.", "face", "text"]


MISSING = ("scenes?from=60", "segments?from=250", "scenes?from=-1", "segments?track=1",
           "segments?track=99999", "nothing", "scenes/nothing",
           "segments/texts?track=7")  # fmt: skip


@every("path", MISSING)
def test_what_is_not_there_is_a_page_that_says_so(
    browser: httpx.Client, job_id: str, path: str
) -> None:
    answer = browser.get(f"/dashboard/jobs/{job_id}/{path}")
    assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html")


PATHS = ["scenes", "segments", "scenes/outline", "segments/outline", "scenes/texts",
         "segments/texts"]  # fmt: skip


@every("path", PATHS)
def test_parts_are_of_the_accounts_own_jobs(api: RunningApi, job_id: str, path: str) -> None:
    with signed_in(api, api.customer()) as other:
        assert other.get(f"/dashboard/jobs/{job_id}/{path}").status_code == 404
        other.cookies.clear()
        assert other.get(f"/dashboard/jobs/{job_id}/{path}").status_code == 303


def test_the_page_of_thousands_of_scenes_is_small(api: RunningApi) -> None:
    customer = api.customer()
    huge = long_job(api, customer, scenes=3_000, lines=6_000)
    with signed_in(api, customer) as own:
        page = own.get(f"/dashboard/jobs/{huge}")
        assert page.status_code == 200
        assert len(page.content) <= MOST_PAGE_BYTES, "before it is compressed"
        last = own.get(f"/dashboard/jobs/{huge}/segments", params={"from": 5_999})
        assert ids(last, "segments")[-1] == 5_999
        assert len(last.content) <= MOST_PAGE_BYTES


@pytest.mark.parametrize("part", ["", "/scenes?from=24", "/segments?from=100"])
def test_a_page_is_rendered_aside_of_other_requests(
    browser: httpx.Client, job_id: str, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    places: list[str] = []

    def noted(content: bytes, **how: int) -> bytes:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            places.append("on the event loop")
        places.append("compressed")
        return zlib.compress(content, wbits=31)

    browser.get("/dashboard")  # its files are compressed once
    monkeypatch.setattr("serve_app.dashboard.pages.gzip.compress", noted)
    assert browser.get(f"/dashboard/jobs/{job_id}{part}").status_code == 200
    assert places == ["compressed"]


def test_results_that_are_stored_anew_are_read_anew(
    api: RunningApi, browser: httpx.Client, owner: Customer
) -> None:
    job_id = created(api, owner)
    complete(api, job_id, [track(0)], [])
    assert "Good morning." in plain(browser.get(f"/dashboard/jobs/{job_id}"))
    statement = (
        "UPDATE transcripts SET document = replace(document::text, 'morning', 'evening')::json"
        " WHERE job_id = :id"
    )
    api.sql(statement, id=job_id)
    assert "Good evening." in plain(browser.get(f"/dashboard/jobs/{job_id}"))


SPELLED: dict[str, tuple[str, list[str], str]] = {
    "spaces": ("Good morning.", ["Good", "morning."], "<i>Good</i> <i>morning.</i>"),
    "no spaces": ("今日は", ["今日", "は"], "<i>今日</i><i>は</i>"),
    "markup": ("<b> &amp;", ["<b>", "&amp;"], "<i>&lt;b&gt;</i> <i>&amp;amp;</i>"),
    "the same word twice": ("so so", ["so", "so"], "<i>so</i> <i>so</i>"),
    "other words": ("Good", ["evil"], "Good"),
    "no words": ("<Good>", [], "&lt;Good&gt;"),
}


@every(("text", "words", "shown"), SPELLED.values(), ids=SPELLED)
def test_each_word_of_a_line_is_an_element(text: str, words: list[str], shown: str) -> None:
    timed = [{"text": word, "start_ms": n, "end_ms": n + 500} for n, word in enumerate(words)]
    found, times = spelled({"text": text, "words": timed})
    assert found == shown
    assert len(times.split()) == 2 * shown.count("<i>")


def test_a_doubtful_word_can_be_marked() -> None:
    words = [("Good", 0.98), ("morning.", 0.31)]
    timed = [
        {"text": word, "start_ms": n, "end_ms": n + 500, "confidence": confidence}
        for n, (word, confidence) in enumerate(words)
    ]
    found, _ = spelled({"text": "Good morning.", "words": timed})
    assert found == '<i>Good</i> <i class="doubt">morning.</i>'


async def test_a_kept_value_is_made_once_and_the_least_recent_goes_first() -> None:
    made = list[str]()
    kept = Kept[str, str](10, len)

    async def get(key: str) -> str:
        async def make() -> str:
            made.append(key)
            await asyncio.sleep(0.01)
            return key * 4

        return await kept.get(key, make)

    assert await asyncio.gather(*[get("a") for _ in range(8)]) == ["aaaa"] * 8
    for key in ("b", "a", "c", "a", "b"):
        await get(key)
    assert made == ["a", "b", "c", "b"], "'b' made room for 'c'"


async def test_a_reading_that_fails_is_made_again() -> None:
    kept, attempts = Kept[str, str](1), list[int]()

    async def make() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("gone")
        return "here"

    with pytest.raises(OSError, match="gone"):
        await kept.get("a", make)
    assert await kept.get("a", make) == "here"
