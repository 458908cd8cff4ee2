"""``GET /search``: bad input named, pages, snippets, the results of a published job."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from models.provider import LocalModels
from pipelines.codec import encode
from pipelines.types import TranscriptResult
from serve_app.cli.main import app
from serve_app.client.api import RequestFailedError
from serve_app.context import PictureEncoder, build_context
from serve_app.deployment.model_choice import encoder_of
from serve_app.search import service
from serve_app.search.service import parse_query
from serve_app.work.indexing import SearchIndexer
from storage.search import Clause
from storage.search_index import MOST_CHARACTERS
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.published_jobs import SCENES, SPOKEN, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.stills import BLUE, GREEN, ORANGE, RED, ColourEmbedder, jpeg
from tests.tables import every


@pytest.fixture(autouse=True)
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a search waits for its query's vector."""
    monkeypatch.setattr(service, "ENCODING_SECONDS", 60.0)


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> tuple[Customer, list[str]]:
    """An account with two finished jobs of two tracks each."""
    customer = api.customer()
    jobs = []
    for _ in range(2):
        jobs.append(created(api, customer))
        complete(api, jobs[-1], [track(0), track(1)], [])
    return customer, jobs


def search(api: RunningApi, customer: Customer, **query: str | int) -> httpx.Response:
    return api.client.get("/search", params=query, headers=customer.headers)


def test_everything_of_a_job_is_found(api: RunningApi, owner: tuple[Customer, list[str]]) -> None:
    customer, jobs = owner
    page = search(api, customer, q="morning").json()
    assert (page["hasMore"], page["nextCursor"], page["mode"]) == (False, None, "text")
    assert {(hit["jobId"], hit["trackIndex"]) for hit in page["data"]} == {
        (job, index) for job in jobs for index in (0, 1)
    }
    hit = page["data"][0]
    assert hit["score"] > 0
    assert {name: hit[name] for name in hit if name not in {"jobId", "trackIndex", "score"}} == {
        "fileName": "clip.mp4",
        "kind": "transcript",
        "startTime": 1.2,
        "endTime": 2.06,
        "speaker": "speaker_0",
        "snippet": {"text": "Good morning.", "ranges": [{"start": 5, "end": 12}]},
        "foundBy": ["words"],
    }
    kinds = {"kitchen": "scene", "weber": "text", "kettle": "object", "clip": "file"}
    for q, kind in kinds.items():
        found = search(api, customer, q=q, kinds=f"file,{kind}").json()["data"]
        assert {hit["kind"] for hit in found} == {kind}


def test_what_one_speaker_says_is_found_by_name_and_by_id(api: RunningApi) -> None:
    customer = api.customer()
    jobs = []
    for _ in range(2):
        jobs.append(created(api, customer))
        complete(api, jobs[-1], [track(0)], [])
    named = f"/jobs/{jobs[0]}/speakers/speaker_0"
    api.client.put(named, json={"label": "Anna"}, headers=customer.headers)

    def found(speaker: str) -> set[str]:
        page = search(api, customer, q="morning", speaker=speaker).json()
        return {hit["jobId"] for hit in page["data"]}

    assert found("anna") == {jobs[0]}
    assert found("speaker_0") == {*jobs}
    assert found("Weber") == set()
    answer = search(api, customer, like=f"{jobs[0]}:0", speaker="Anna")
    assert (answer.status_code, answer.json()["param"]) == (400, "like")


def test_pages_go_on_by_cursor_and_by_link(
    api: RunningApi, owner: tuple[Customer, list[str]]
) -> None:
    customer, _ = owner
    whole = search(api, customer, q="morning OR kitchen OR clip").json()["data"]
    assert len(whole) == 8
    answer = search(api, customer, q="morning OR kitchen OR clip", limit=3)
    found = []
    while True:
        found += answer.json()["data"]
        if not answer.json()["hasMore"]:
            break
        link = answer.headers["link"]
        assert link.endswith('>; rel="next"')
        address = urlsplit(link[1:].partition(">")[0])
        assert f"cursor={answer.json()['nextCursor']}" in address.query
        path = f"{address.path.removeprefix('/v1/api')}?{address.query}"
        answer = api.client.get(path, headers=customer.headers)
    assert found == whole
    assert "link" not in answer.headers


def test_a_cursor_is_good_for_its_own_search(
    api: RunningApi, owner: tuple[Customer, list[str]]
) -> None:
    customer, _ = owner
    cursor = search(api, customer, q="morning", limit=1).json()["nextCursor"]
    assert search(api, customer, q="morning", limit=2, cursor=cursor).status_code == 200
    for other in ({"q": "evening"}, {"q": "morning", "kinds": "file"}):
        answer = search(api, customer, cursor=cursor, **other)
        assert (answer.status_code, answer.json()["param"]) == (400, "cursor")


SCENE = f"{uuid.UUID(int=1)}:3"
BAD = {
    "no query": ({}, "q"),
    "empty": ({"q": ""}, "q"),
    "blank": ({"q": "  "}, "q"),
    "501 characters": ({"q": "a" * 501}, "q"),
    "no letters": ({"q": "?! & -"}, "q"),
    "an open quotation": ({"q": 'the "old mill'}, "q"),
    "an open excluded quotation": ({"q": 'mill -"old'}, "q"),
    "OR at the end": ({"q": "mill OR"}, "q"),
    "OR at the beginning": ({"q": "OR mill"}, "q"),
    "OR twice": ({"q": "mill OR OR old"}, "q"),
    "nothing but exclusions": ({"q": "-mill"}, "q"),
    "nine alternatives": ({"q": " OR ".join("abcdefghi")}, "q"),
    "an alternative of exclusions": ({"q": "old OR -mill"}, "q"),
    "a short beginning": ({"q": "mi*"}, "q"),
    "control characters": ({"q": "a\x00b"}, "q"),
    "an unknown kind": ({"q": "a", "kinds": "transcript,song"}, "kinds"),
    "no kind": ({"q": "a", "kinds": ""}, "kinds"),
    "no language": ({"q": "a", "language": "english!"}, "language"),
    "a moment in words": ({"q": "a", "from": "yesterday"}, "from"),
    "a number for a moment": ({"q": "a", "from": "1700000000"}, "from"),
    "a day that is none": ({"q": "a", "to": "2026-02-30"}, "to"),
    "no offset": ({"q": "a", "to": "2026-02-03T10:00:00"}, "to"),
    "a span that ends before it begins": (
        {"q": "a", "from": "2026-02-03", "to": "2026-02-02"},
        "to",
    ),
    "limit 0": ({"q": "a", "limit": "0"}, "limit"),
    "limit 101": ({"q": "a", "limit": "101"}, "limit"),
    "limit in words": ({"q": "a", "limit": "ten"}, "limit"),
    "a cursor of another list": ({"q": "a", "cursor": "AAAA"}, "cursor"),
    "an empty cursor": ({"q": "a", "cursor": ""}, "cursor"),
    "words and a scene": ({"q": "a", "like": SCENE}, "like"),
    "an empty scene": ({"like": ""}, "like"),
    "a job for a scene": ({"like": SCENE.partition(":")[0]}, "like"),
    "a scene in words": ({"like": f"{SCENE}rd"}, "like"),
    "a scene before the first": ({"like": SCENE.replace(":", ":-")}, "like"),
    "a scene of ten digits": ({"like": f"{SCENE}000000000"}, "like"),
    "an id in braces": ({"like": f"{{{SCENE[:36]}}}:0"}, "like"),
    "a scene like speech": ({"like": SCENE, "kinds": "scene,transcript"}, "like"),
    "a scene in a language": ({"like": SCENE, "language": "en"}, "like"),
    "a scene with a cursor of another list": ({"like": SCENE, "cursor": "AAAA"}, "cursor"),
}


@every(("query", "param"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_and_named(
    api: RunningApi, customer: Customer, query: dict[str, str], param: str
) -> None:
    answer = search(api, customer, **query)
    assert answer.status_code == 400
    assert (answer.json()["code"], answer.json()["param"]) == ("INVALID_REQUEST", param)
    assert "pattern" not in answer.json()["error"]


GOOD = [
    {"q": "a" * 500},
    {"q": "日" * 500},
    {"q": "a b " * 125},
    {"q": "x' OR 1=1; --"},
    {"q": "<script>alert(1)</script>"},
    {"q": "\\ ' '' \\' :* & | ! (a) <->"},
    {"q": "say “good morning” -“good evening”"},
    {"q": "morn*", "kinds": "transcript", "from": "0001-01-01T00:00:00+14:00", "to": "9999-12-31"},
    {"q": "a", "jobId": "no-uuid"},
    {"q": "a", "language": "zh-Hant"},
]


@every("query", GOOD)
def test_what_is_odd_but_right_is_answered(
    api: RunningApi, customer: Customer, query: dict[str, str]
) -> None:
    answer = search(api, customer, **query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == []


def test_a_query_is_read_into_clauses() -> None:
    assert parse_query('old "red mill" -river appl* OR “the Sea”') == [
        (
            Clause(("old",)),
            Clause(("red", "mill")),
            Clause(("river",), negated=True),
            Clause(("appl",), prefix=True),
        ),
        (Clause(("the", "Sea")),),
    ]
    of_two = " OR ".join(["sea", "Sea", "sea -mill", "SEA -Mill"] * 10)
    alike = [[(clause.words[0].lower(), clause.negated) for clause in group]
             for group in parse_query(of_two)]  # fmt: skip
    assert alike == [[("sea", False)], [("sea", False), ("mill", True)]]


def test_the_command_line_prints_hits_or_the_page_as_json(
    api: RunningApi, owner: tuple[Customer, list[str]]
) -> None:
    customer, jobs = owner
    where = ["--url", f"{api.root}/v1/api", "--key", customer.key]
    shown = CliRunner().invoke(app, ["search", "morning", *where, "--limit", "3"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("clip.mp4  0:01.2 – 0:02.0  transcript  ") == 3
    assert "Good morning." in shown.output
    assert "More: --limit 6, or --all." in shown.output
    assert "cursor" not in shown.output.lower()
    every = CliRunner().invoke(app, ["search", "morning", *where, "--all"]).output
    assert every.startswith(shown.output.partition("More:")[0])
    assert every.count("clip.mp4") > 3
    assert "More:" not in every
    first = CliRunner().invoke(app, ["search", "morning", *where, "--limit", "3", "--json"])
    cursor = json.loads(first.output)["nextCursor"]
    rest = CliRunner().invoke(
        app, ["search", "morning", *where, "--cursor", cursor, "--json", "--kinds", "transcript"]
    )
    assert isinstance(rest.exception, RequestFailedError)
    assert rest.exception.param == "cursor"
    page = CliRunner().invoke(app, ["search", "kettle", *where, "--json", "--job", jobs[0]])
    [hit] = json.loads(page.output)["data"]
    assert (hit["jobId"], hit["kind"]) == (jobs[0], "object")
    assert CliRunner().invoke(app, ["search", "unheard", *where]).output == "No hits.\n"


def test_runners_index_what_was_published_without(
    api: RunningApi, owner: tuple[Customer, list[str]]
) -> None:
    customer, _ = owner
    before = search(api, customer, q="morning OR kitchen OR clip").json()["data"]

    async def index() -> int:
        context = build_context(api.settings)
        indexer, steps = SearchIndexer(context), 1
        while await indexer.index():
            steps += 1
        await context.database.close()
        return steps

    api.sql("DELETE FROM search_rows")
    api.sql("UPDATE stages SET indexed = NULL")
    assert search(api, customer, q="morning").json()["data"] == []
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: asyncio.run(index())).result() > 1
    after = search(api, customer, q="morning OR kitchen OR clip").json()["data"]
    assert sorted(map(json.dumps, after)) == sorted(map(json.dumps, before))


def test_by_meaning_where_there_is_a_model_and_pages_go_on(
    api: RunningApi, owner: tuple[Customer, list[str]]
) -> None:
    customer, _ = owner
    encoder = encoder_of(LocalModels())
    assert encoder is not None, "the text model is not installed"

    async def embed() -> None:
        await encoder.encode(["opened before the first search"])
        context = build_context(api.settings, encoder=encoder)
        indexer = SearchIndexer(context)
        while await indexer.embed():
            pass
        await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(embed())).result()
    by_words = search(api, customer, q="hello friends").json()
    assert (by_words["mode"], by_words["data"]) == ("text", [])
    with RunningApi(api.settings, encoder=encoder) as other:
        page = search(other, customer, q="hello friends", limit=3).json()
        assert (page["mode"], page["hasMore"]) == ("hybrid", True)
        found = page["data"]
        while page["hasMore"]:
            cursor = page["nextCursor"]
            page = search(other, customer, q="hello friends", limit=3, cursor=cursor).json()
            assert page["mode"] == "hybrid"
            found += page["data"]
        places = [(hit["jobId"], hit["trackIndex"], hit["startTime"]) for hit in found]
        assert len(places) == len(set(places)) >= 4
        assert found[0]["snippet"] == {"text": "Good morning.", "ranges": []}
        assert search(other, other.customer(), q="hello friends").json()["data"] == []
        for speaker, is_found in (("speaker_0", True), ("Weber", False)):
            page = search(other, customer, q="hello friends", speaker=speaker).json()
            assert (page["mode"], bool(page["data"])) == ("hybrid", is_found)
        moved = search(other, other.customer(), q="hello friends", cursor=cursor)
        assert moved.json()["param"] == "cursor"
        where = ["--url", f"{other.root}/v1/api", "--key", customer.key]
        shown = CliRunner().invoke(app, ["search", "hello friends", *where]).output
        assert "By words and by meaning." in shown


def test_scenes_that_look_alike_where_there_is_a_model_and_pages_go_on(api: RunningApi) -> None:
    customer, stranger = api.customer(), api.customer()
    job = created(api, customer)
    scenes = []
    for index, colour in enumerate([RED, BLUE, GREEN, ORANGE]):
        key = f"jobs/{job}/{index}.jpg"
        api.context.objects.write_bytes(key, jpeg(colour))
        scenes.append(SCENES[0] | {"index": index, "thumbnailKey": key})
    complete(api, job, [track(0)], [], scenes=scenes)
    like = f"{job}:0"
    pictures = PictureEncoder(ColourEmbedder, "colours")
    none = search(api, customer, like=like)
    assert (none.status_code, none.json()["code"]) == (404, "RESULTS_UNAVAILABLE")
    assert none.json()["reason"] == "stage_skipped"

    async def embed() -> None:
        context = build_context(api.settings, pictures=pictures)
        indexer = SearchIndexer(context)
        while await indexer.embed():
            pass
        await context.database.close()

    with RunningApi(api.settings, pictures=pictures) as other, ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(embed())).result()
        page = search(other, customer, like=like, kinds="scene", limit=2).json()
        assert (page["mode"], page["hasMore"]) == ("like", True)
        assert [hit["sceneIndex"] for hit in page["data"]] == [3, 2]
        assert page["data"][0]["snippet"] == {"text": SCENES[0]["description"], "ranges": []}
        cursor = page["nextCursor"]
        rest = search(other, customer, like=like, kinds="scene", limit=2, cursor=cursor).json()
        assert [hit["sceneIndex"] for hit in rest["data"]] == [1]
        assert (rest["hasMore"], rest["nextCursor"]) == (False, None)
        moved = search(other, customer, like=f"{job}:1", kinds="scene", cursor=cursor)
        assert moved.json()["param"] == "cursor"
        assert search(other, customer, like=like, to="2020-01-01").json()["data"] == []
        for asks, named in ((stranger, like), (customer, SCENE), (customer, f"{job}:4")):
            missing = search(other, asks, like=named)
            assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
            assert missing.json()["param"] == "like"
        with signed_in(other, customer) as browser:
            alike = f"/dashboard/search?like={job}:"
            assert f'href="{alike}2">Similar scenes' in browser.get(f"/dashboard/jobs/{job}").text
            shown = browser.get(f"{alike}0").text
            assert re.findall(r"thumbnails/(\d).jpg", shown) == ["3", "2", "1"]
            assert f'href="?like={job}:3">Similar scenes' in shown
        where = ["--url", f"{other.root}/v1/api", "--key", customer.key]
        shown = CliRunner().invoke(app, ["search", "--like", like, *where]).output
        assert f"0:00.0 – 0:12.4  scene 3  {job}" in shown
        newer = created(api, customer)
        complete(api, newer, [track(0)], [])
        early = search(other, customer, like=f"{newer}:0")
        assert (early.status_code, early.json()["code"]) == (409, "RESULTS_NOT_READY")
        assert early.json()["stageStatus"] == "completed"
        assert "retry-after" in early.headers
    for wrong in (["search", *where], ["search", "a", "--like", like, *where]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


def test_a_long_text_is_cut_around_what_matches(api: RunningApi) -> None:
    customer = api.customer()
    job = created(api, customer)
    words = " ".join(f"word{n}" for n in range(400))
    assert len(words) < MOST_CHARACTERS
    segment = replace(SPOKEN, text=f"{words} needle {words}")
    document = encode(TranscriptResult("en", (), (segment,))).decode()
    complete(api, job, [replace(track(0), document=document)], [])
    [hit] = search(api, customer, q="needle").json()["data"]
    shown = hit["snippet"]
    assert len(shown["text"]) <= 300
    assert shown["text"].startswith("word")
    [match] = shown["ranges"]
    assert shown["text"][match["start"] : match["end"]] == "needle"
