"""The dashboard's pages over HTTP: signing in, what each shows, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import text

from pipelines.codec import encode
from pipelines.types import StageCode, TranscriptResult
from serve_app.dashboard.access import OpenPageRoute
from serve_app.dashboard.jobs import ADVICE, ENDED_WITHOUT_RESULT
from serve_app.dashboard.library import KINDS, marked
from serve_app.dashboard.pages import STATIC, static_version
from serve_app.dashboard.routes import ROUTERS
from storage import jobs, keys, ledger
from storage.results import TrackTranscript
from storage.types import SearchKind, SkipReason, StageStatus
from tests.serve_app.published_jobs import SENTENCES, complete, created, fail, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

HTML = "text/html; charset=utf-8"
PAGES = ("/dashboard", "/dashboard/archives", "/dashboard/account", "/dashboard/keys")


def link_token(api: RunningApi, customer: Customer) -> str:
    return api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))


def visitor(api: RunningApi) -> httpx.Client:
    return httpx.Client(base_url=api.root, trust_env=False, timeout=120)


@contextmanager
def signed_in(api: RunningApi, customer: Customer) -> Iterator[httpx.Client]:
    with visitor(api) as client:
        answer = client.post("/dashboard/sign-in", data={"token": link_token(api, customer)})
        assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture
def browser(api: RunningApi, customer: Customer) -> Iterator[httpx.Client]:
    """A client that is signed in."""
    with signed_in(api, customer) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_waits(api: RunningApi) -> Iterator[None]:
    """What publishes results here takes the job that waits; there must be one only."""
    yield
    while api.transact(lambda c: jobs.lease_next(c, lease=timedelta(seconds=60))):
        pass


def plain(page: httpx.Response) -> str:
    """The text of a page, without its markup."""
    return unescape(re.sub("<[^>]+>", "", page.text))


def csrf(page: httpx.Response) -> str:
    [token] = re.findall(r'<meta name="csrf" content="([^"]+)">', page.text)
    return str(token)


def test_the_link_signs_in_once_and_only_by_its_form(api: RunningApi, customer: Customer) -> None:
    token = link_token(api, customer)
    with visitor(api) as client:
        for _ in range(2):  # a preview of the link uses nothing up
            assert client.get("/dashboard/sign-in", params={"token": token}).status_code == 200
        answer = client.post("/dashboard/sign-in", data={"token": token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "Path=/dashboard", "SameSite=strict"} <= set(cookie.split("; "))
        assert client.get("/dashboard").status_code == 200
    with visitor(api) as second:
        answer = second.post("/dashboard/sign-in", data={"token": token})
        assert answer.status_code == 401
        assert "vas sessions create" in answer.text
        assert "set-cookie" not in answer.headers


def test_behind_https_the_cookie_stays_there(api: RunningApi, customer: Customer) -> None:
    object.__setattr__(api.context.settings, "public_url", "https://video.example.com")
    try:
        with visitor(api) as client:
            form = {"token": link_token(api, customer)}
            answer = client.post("/dashboard/sign-in", data=form)
    finally:
        object.__setattr__(api.context.settings, "public_url", None)
    assert "Secure" in answer.headers["set-cookie"]


@every("path", [*PAGES, "/dashboard/jobs/x", "/dashboard/nothing"])
def test_who_is_not_signed_in_comes_to_the_sign_in_page(api: RunningApi, path: str) -> None:
    with visitor(api) as client:
        answer = client.get(path)
        # The script of the sign-in page reads where to return to.
        back = "" if path == "/dashboard" else f"#{path}"
        there = f"/dashboard/sign-in{back}"
        assert (answer.status_code, answer.headers["location"]) == (303, there)
        client.cookies.set("vas_session", "vas_sess_" + "x" * 43)
        assert client.get(path).headers["location"] == f"/dashboard/sign-in?ended=1{back}"


def test_signing_out_ends_the_session_everywhere(browser: httpx.Client) -> None:
    session = browser.cookies["vas_session"]
    token = csrf(browser.get("/dashboard"))
    answer = browser.post("/dashboard/sign-out", data={"csrf": token})
    assert answer.headers["location"] == "/dashboard/sign-in?ended=out"
    assert "vas_session" not in browser.cookies
    copied = httpx.get(
        f"{browser.base_url}/dashboard", cookies={"vas_session": session}, trust_env=False
    )
    assert copied.status_code == 303


FORGED = {
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "origin": {"Origin": "https://evil.example"},
    "an origin that is none": {"Origin": "http://["},
    "a page without an origin": {"Origin": "null"},
    "a page without an origin, of this site": {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
}
CHANGES = ("/dashboard/sign-out", "/dashboard/jobs", "/dashboard/jobs/x/cancel",
           "/dashboard/keys/x/rotate", "/dashboard/webhook-secret/rotate", "/dashboard/endpoints",
           "/dashboard/endpoints/x/rotate", "/dashboard/endpoints/x/delete",
           "/dashboard/archives/x/pause", "/dashboard/vocabulary")  # fmt: skip


@every("path", CHANGES)
@every("forged", ["no token", "another session's", *FORGED])
def test_a_change_that_no_page_of_ours_sent_is_refused(
    api: RunningApi, browser: httpx.Client, path: str, forged: str
) -> None:
    form, headers = {"csrf": csrf(browser.get("/dashboard"))}, {}
    if forged == "no token":
        form = {"csrf": ""}
    elif forged == "another session's":
        with visitor(api) as other:
            other.post("/dashboard/sign-in", data={"token": link_token(api, api.customer())})
            form = {"csrf": csrf(other.get("/dashboard"))}
    else:
        headers = FORGED[forged]
    answer = browser.post(path, data=form, headers=headers)
    assert answer.status_code == 403
    assert "did not come from the page" in answer.text
    assert browser.get("/dashboard").status_code == 200  # still signed in


@pytest.mark.parametrize("forged", FORGED)
def test_nobody_is_signed_in_by_another_sites_page(
    api: RunningApi, customer: Customer, forged: str
) -> None:
    token = link_token(api, customer)
    with visitor(api) as client:
        answer = client.post("/dashboard/sign-in", data={"token": token}, headers=FORGED[forged])
        assert (answer.status_code, answer.headers["content-type"]) == (403, HTML)
        own = {"Origin": api.root}
        answer = client.post("/dashboard/sign-in", data={"token": token}, headers=own)
        assert answer.status_code == 303


def test_a_link_asks_before_it_signs_in_over_another_session(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    other = api.customer()
    token, session = link_token(api, other), browser.cookies["vas_session"]
    asked = browser.post("/dashboard/sign-in", data={"token": token})
    assert (asked.status_code, browser.cookies["vas_session"]) == (200, session)
    names = [name_of(api, each) for each in (other, customer)]
    assert "Sign in as {} instead of {}?".format(*names) in re.sub("<[^>]+>", "", asked.text)
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text))
    wrong = browser.post("/dashboard/sign-in", data=form | {"instead": str(uuid.uuid4())})
    assert "instead of" in wrong.text
    assert browser.post("/dashboard/sign-in", data=form).status_code == 303
    assert names[0] in browser.get("/dashboard").text
    with visitor(api) as copied:
        copied.cookies.set("vas_session", session)
        assert copied.get("/dashboard").status_code == 303, "the other session is over"
    again = browser.post("/dashboard/sign-in", data={"token": link_token(api, other)})
    assert again.status_code == 303, "nobody is asked about the account that is signed in"


def test_a_link_signs_in_over_a_suspended_accounts_session(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    api.transact(lambda c: keys.set_restrictions(c, customer.account_id, suspended=True))
    form = {"token": link_token(api, api.customer()), "instead": str(customer.account_id)}
    assert browser.post("/dashboard/sign-in", data=form).status_code == 303


def name_of(api: RunningApi, customer: Customer) -> str:
    return api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name


ODD_VALUES = ("a\0b", "²", "1e9", "-1", "9" * 400, "[", "\ud800".encode("utf-8", "surrogatepass"))


PLACES = {"jobId": uuid.UUID(int=0), "kind": "scenes", "content": "texts"}


def page_parameters() -> Iterator[tuple[str, str]]:
    """Every page and each parameter that it reads."""
    for pages in ROUTERS:
        for route in pages.routes:
            # The billing page has a signed address, and answers as the interface does.
            signed = "{account_id}" in getattr(route, "path", "")
            if isinstance(route, OpenPageRoute) and "GET" in (route.methods or ()) and not signed:
                for field in route.dependant.query_params:
                    yield route.path.format_map(PLACES), field.alias


@every(("path", "name"), list(page_parameters()))
def test_odd_parameters_are_answered_or_refused_with_a_page(
    browser: httpx.Client, path: str, name: str
) -> None:
    for value in ODD_VALUES:
        answer = browser.get(path, params={name: value})
        assert answer.status_code in {200, 303, 400, 404}, (value, answer.text)
        assert answer.headers["content-type"] == HTML or answer.status_code == 303
        assert (value, answer.status_code) != ("a\0b", 200)
    assert browser.get(f"{path}?{name}=1&{name}=2").status_code in {400, 404}


@pytest.mark.parametrize("host", ["[", "a b", "x" * 300, "[::1", "%"])
def test_odd_hosts_are_answered_or_refused(browser: httpx.Client, host: str) -> None:
    for path in (*PAGES, "/dashboard/nothing"):
        assert browser.get(path, headers={"Host": host}).status_code < 500
    data = {"csrf": csrf(browser.get("/dashboard"))}
    answer = browser.post(
        "/dashboard/jobs", data=data, headers={"Host": host, "Origin": "http://["}
    )
    assert answer.status_code in {400, 403}


def test_scripts_need_the_token_for_changes_and_the_cookie_for_all(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    body = {"fileName": "a.mp4"}
    assert browser.get("/dashboard/api/jobs").json()["data"] == []
    refused = browser.post("/dashboard/api/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (403, "INVALID_REQUEST")
    headers = {"X-CSRF-Token": csrf(browser.get("/dashboard"))}
    made = browser.post("/dashboard/api/jobs", json=body, headers=headers)
    assert made.status_code == 201, made.text
    job_id = made.json()["data"]["jobId"]
    assert api.client.get(f"/jobs/{job_id}", headers=customer.headers).status_code == 200
    with visitor(api) as nobody:
        answer = nobody.get("/dashboard/api/jobs", headers=customer.headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED")


def test_scripts_are_counted_with_the_requests_of_keys(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    first = browser.get("/dashboard/api/jobs").headers
    second = api.client.get("/jobs", headers=customer.headers).headers
    assert first["x-ratelimit-limit"] == second["x-ratelimit-limit"] == "600"
    assert int(second["x-ratelimit-remaining"]) < int(first["x-ratelimit-remaining"])


def test_a_suspended_account_is_told_so(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    api.transact(lambda c: keys.set_restrictions(c, customer.account_id, suspended=True))
    answer = browser.get("/dashboard")
    assert answer.status_code == 403
    assert "The account is suspended." in answer.text


def test_the_list_shows_jobs_newest_first_by_state(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    done = created(api, customer, fileName="done.mp4")
    complete(api, done, [track(0)], [])
    created(api, customer, fileName="waiting.mp4")
    page = browser.get("/dashboard").text
    assert page.index("waiting.mp4") < page.index("done.mp4")
    assert f"/v1/api/jobs/{done}/thumbnails/0.jpg?expires=" in page
    only = browser.get("/dashboard", params={"state": "completed"}).text
    assert "done.mp4" in only
    assert "waiting.mp4" not in only
    assert browser.get("/dashboard", params={"state": "nothing"}).status_code == 400
    assert browser.get("/dashboard", params={"cursor": "x"}).status_code == 400


def test_results_are_there_without_scripts(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [], SENTENCES)
    page = browser.get(f"/dashboard/jobs/{job_id}").text
    for shown in ("<i>Good</i> <i>morning.</i></span>", "Speaker 1", "kettle",
                  "A woman speaks to the camera", "Somebody says good morning.",
                  "Anna Weber, baker", 'fill="#e8e2d6"', "transcript?format=srt"):  # fmt: skip
        assert shown in page
    links = re.findall(r'href="(/dashboard/api/[^"]+)" download', page)
    answers = {link: browser.get(unescape(link)) for link in links}
    refused = [link for link, answer in answers.items() if answer.status_code != 200]
    # YouTube would show no list of so few chapters.
    assert (len(links), [it.rpartition("=")[2] for it in refused]) == (15, ["youtube"])
    srt = browser.get(f"/dashboard/api/jobs/{job_id}/transcript", params={"format": "srt"})
    assert "00:00:01,200" in srt.text


def test_a_job_s_page_says_where_it_is_in_the_queue_and_how_long_its_media_stays(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    path = f"/dashboard/jobs/{job_id}"
    assert "Queued: next in line" in browser.get(path).text
    complete(api, job_id, [track(0)], [])
    api.context.objects.write_bytes(f"jobs/{job_id}/source/clip-000", b"footage")
    page = browser.get(path).text
    assert re.search(r"Media until <time datetime=[^>]*>\d+ \w+ \d+, \d\d:\d\d UTC</time>", page)
    assert "<h2>Translate</h2>" not in page, "it is in the only language that there is"
    assert "Erase the media and all results" in page
    answer = browser.post(f"{path}/erase", data={"csrf": csrf(browser.get(path))})
    erased = browser.get(answer.headers["location"]).text
    assert '<span class="state">Erased</span>' in erased
    assert "Download" not in erased


def test_translations_are_downloaded_in_every_format_and_shown_as_subtitles(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    spoken = json.dumps({"0": json.loads(track(0).document or "")}).replace("Good", "Guten")
    insert = (
        "INSERT INTO translations (job_id, language, status, price_cents, source, documents,"
        " completed_at) VALUES (:id, :language, :status, 0, 'x', CAST(:made AS json),"
        " CASE WHEN :status = 'completed' THEN now() END)"
    )
    api.sql(insert, id=job_id, language="de", status="completed", made=spoken)
    api.sql(insert, id=job_id, language="fr", status="pending", made=None)
    page = browser.get(f"/dashboard/jobs/{job_id}").text
    links = re.findall(r'href="(/dashboard/api/[^"]+language=\w+)" download', page)
    assert [re.search(r"format=(\w+)&amp;language=de$", link)[1] for link in links] == [  # type: ignore[index]
        "srt", "vtt", "ttml", "txt", "md", "csv",
    ]  # fmt: skip
    for link in links:
        answer = browser.get(unescape(link))
        assert (answer.status_code, "Guten" in answer.text) == (200, True), link


def test_search_marks_what_was_found_and_leads_to_its_place(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    page = browser.get("/dashboard/search", params={"q": "morning"}).text
    assert "Good <mark>morning</mark>." in page
    assert f"/dashboard/jobs/{job_id}#t=1.2" in page
    kettle = {"q": "kettle", "kind": "object"}
    assert "<mark>kettle</mark>" in browser.get("/dashboard/search", params=kettle).text
    assert "models pull" not in browser.get("/dashboard/search").text  # readers are no operators
    none = browser.get("/dashboard/search", params={"q": "zebra <b>"})
    assert "No hits" in none.text
    assert "<b>" not in none.text
    wrong = browser.get("/dashboard/search", params={"q": "-only"})
    assert (wrong.status_code, 'role="alert"' in wrong.text) == (400, True)


def test_a_spoken_hit_has_its_scenes_still_and_a_sentence_of_two_tracks_is_one_hit(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id, other = created(api, customer), created(api, customer)
    api.client.post(f"/jobs/{other}/cancel", headers=customer.headers)
    complete(api, job_id, [track(0), track(1)], [])
    said = {"q": "morning", "kind": "transcript"}

    def hits(**more: str) -> list[str]:
        page = browser.get("/dashboard/search", params=said | more).text
        return re.findall(r'<li class="job">.*?</li>', page, re.S)

    [hit] = hits()
    assert f"/jobs/{job_id}/thumbnails/0.jpg" in hit
    assert f"q=morning&amp;kind=transcript&amp;job={job_id}" in hit
    assert "Similar scenes" not in hit
    assert [len(hits(job=each)) for each in (job_id, other, "x")] == [1, 0, 0]
    assert len(hits(**{"from": "2024-01-01", "to": "2124-01-01"})) == 1
    assert hits(to="2024-01-01") == []
    wrong = browser.get("/dashboard/search", params=said | {"from": "May"})
    assert (wrong.status_code, "There is no such day." in wrong.text) == (400, True)
    unavailable = browser.get("/dashboard/search", params={"like": f"{job_id}:0"})
    assert (unavailable.status_code, "no model that compares" in unavailable.text) == (404, True)


def test_a_snippet_is_text_but_for_its_marks() -> None:
    shown = marked({"text": "<b>a</b>", "ranges": [{"start": 0, "end": 3}]})
    assert shown == "<mark>&lt;b&gt;</mark>a&lt;/b&gt;"


def test_a_track_is_chosen_by_its_index(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0), track(1, "TRANSCRIPT_FAILED")], [])
    assert "Good morning." in plain(browser.get(f"/dashboard/jobs/{job_id}"))
    failed = browser.get(f"/dashboard/jobs/{job_id}", params={"track": "1"})
    assert "could not be transcribed" in failed.text
    for wrong in ("2", "-1", "x"):
        answer = browser.get(f"/dashboard/jobs/{job_id}", params={"track": wrong})
        assert answer.status_code in {400, 404}


def test_the_first_track_with_words_is_what_is_shown_where_none_is_named(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    empty = encode(TranscriptResult(None, (), ())).decode()
    silent = TrackTranscript(1, "Desktop", StageStatus.COMPLETED, None, None, empty)
    complete(api, job_id, [track(0, "TRANSCRIPT_FAILED"), silent, track(2), track(3)], [])

    shown = api.client.get(f"/jobs/{job_id}/transcript", headers=customer.headers).json()["data"]
    assert (shown["trackIndex"], shown["text"]) == (2, "Good morning.")
    job = api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]
    assert [it["Text"] for it in job["processedData"]["transcript"]] == ["Good morning."]
    page = browser.get(f"/dashboard/jobs/{job_id}")
    assert "Good morning." in plain(page)
    assert '?track=2" aria-current="true"' in page.text


def test_a_failure_comes_with_what_to_do(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    fail(api, job_id)
    page = unescape(browser.get(f"/dashboard/jobs/{job_id}").text)
    assert "The source answered 404." in page
    assert ADVICE[StageCode.FETCH_FAILED] in page


def test_every_code_and_reason_has_its_words() -> None:
    assert set(ADVICE) == set(StageCode)
    assert set(ENDED_WITHOUT_RESULT) == set(SkipReason)
    assert set(KINDS) == set(SearchKind)


def test_addresses_become_jobs(browser: httpx.Client) -> None:
    form = {"csrf": csrf(browser.get("/dashboard")), "mode": "vision", "keyterms": "Weber, Rye",
            "speakers": "2", "urls": "https://media.example.com/one.mp4"}  # fmt: skip
    answer = browser.post("/dashboard/jobs", data=form)
    job = browser.get(answer.headers["location"])
    assert "one.mp4" in job.text
    assert "Scenes only" in job.text
    two = form | {"urls": "https://media.example.com/2.mp4\nhttps://media.example.com/3.mp4"}
    assert browser.post("/dashboard/jobs", data=two).headers["location"] == "/dashboard"
    page = browser.get("/dashboard").text
    assert "2.mp4" in page
    assert "Batch, 2" in page


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no address": ({"urls": ""}, "1 to 100 URLs"),
    "no URL": ({"urls": "film.mp4"}, "absolute http or https"),
    "loopback": ({"urls": "http://127.0.0.1/a.mp4"}, "private, loopback"),
    "speakers": ({"urls": "https://media.example.com/a.mp4", "speakers": "99"}, "Speakers"),
    "a power": ({"urls": "https://media.example.com/a.mp4", "speakers": "²"}, "Speakers"),
    "words": ({"urls": "https://media.example.com/a.mp4", "speakers": "two"}, "Speakers"),
    "mode": ({"urls": "https://media.example.com/a.mp4", "mode": "x"}, "Analysis"),
}


@every("case", WRONG)
def test_what_is_wrong_with_a_new_job_is_said_where_it_was_typed(
    browser: httpx.Client, case: str
) -> None:
    form, told = WRONG[case]
    answer = browser.post("/dashboard/jobs", data=form | {"csrf": csrf(browser.get("/dashboard"))})
    assert 400 <= answer.status_code < 500
    assert told in answer.text
    assert form["urls"] in answer.text


def test_a_job_is_cancelled_from_its_page(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    form = {"csrf": csrf(browser.get(f"/dashboard/jobs/{job_id}"))}
    for _ in range(2):  # the second finds it cancelled already
        answer = browser.post(f"/dashboard/jobs/{job_id}/cancel", data=form)
        assert answer.headers["location"] == f"/dashboard/jobs/{job_id}"
    assert "Cancelled" in browser.get(f"/dashboard/jobs/{job_id}").text


def test_a_key_is_rotated_and_shown_once(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    page = browser.get("/dashboard/keys")
    assert customer.key not in page.text
    [action] = re.findall(r'action="(/dashboard/keys/[^"]+/rotate)"', page.text)
    answer = browser.post(action, data={"csrf": csrf(page)})
    [secret] = re.findall(r"vas_live_[\w-]{43}", answer.text)
    assert api.client.get("/quota", headers={"X-API-Key": secret}).status_code == 200
    assert api.client.get("/quota", headers=customer.headers).status_code == 401
    assert secret not in browser.get("/dashboard/keys").text


def test_the_signing_secret_is_shown_and_rotated(browser: httpx.Client) -> None:
    page = browser.get("/dashboard/keys")
    [first] = set(re.findall(r"whsec_[\w+/=]+", page.text))
    browser.post("/dashboard/webhook-secret/rotate", data={"csrf": csrf(page)})
    [second] = set(re.findall(r"whsec_[\w+/=]+", browser.get("/dashboard/keys").text))
    assert first != second


def test_an_endpoint_is_added_and_deleted_and_its_secrets_shown_once(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    page = browser.get("/dashboard/keys")
    [of_account] = set(re.findall(r"whsec_[\w+/=]+", page.text))
    form = {"csrf": csrf(page), "url": "https://hooks.example.com/x"}
    assert browser.post("/dashboard/endpoints", data=form).status_code == 400
    assert browser.post(
        "/dashboard/endpoints", data=form | {"url": "http://10.0.0.1", "job.failed": "on"}
    ).status_code == 400  # fmt: skip
    page = browser.post("/dashboard/endpoints", data=form | {"job.failed": "on"})
    [first] = set(re.findall(r"whsec_[\w+/=]+", page.text)) - {of_account}
    [endpoint] = api.client.get("/webhooks/endpoints", headers=customer.headers).json()["data"]
    assert (endpoint["url"], endpoint["events"]) == ("https://hooks.example.com/x", ["job.failed"])
    path = f"/dashboard/endpoints/{endpoint['id']}"
    page = browser.post(f"{path}/rotate", data=form)
    [second] = set(re.findall(r"whsec_[\w+/=]+", page.text)) - {of_account}
    assert first != second
    assert second not in browser.get("/dashboard/keys").text
    with signed_in(api, api.customer()) as other:
        theirs = {"csrf": csrf(other.get("/dashboard"))}
        for action in ("rotate", "delete"):
            assert other.post(f"{path}/{action}", data=theirs).status_code == 404
    assert browser.post(f"{path}/delete", data=form).status_code == 303
    assert api.client.get("/webhooks/endpoints", headers=customer.headers).json()["data"] == []


def test_the_account_page_has_the_months_charges_and_an_estimate(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    page = browser.get("/dashboard/account", params={"hours": "2", "minutes": "30"}).text
    assert "$9.96" in page  # 10 dollars less 3 cents of scenes and 1 of the transcript
    assert "$4.00" in page  # 2.5 h at 1.60
    assert re.search(r"<title>\d{4}-\d\d-\d\d: \$0\.04, 1 job</title>", page)
    for wrong in ({"hours": "x"}, {"hours": "²"}, {"hours": "99999"}, {"hours": "1", "tier": "x"}):
        assert browser.get("/dashboard/account", params=wrong).status_code == 400


HOSTILE = "<img src=x onerror=alert(1)>\"'&lt;{{7*7}}"


def test_markup_from_outside_is_text_everywhere(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    scene = {"description": HOSTILE, "objects": [HOSTILE], "onScreenText": [{"text": HOSTILE}]}
    job_id = created(
        api, customer, fileName=f"{HOSTILE}.mp4".replace("/", ""), metadata={"note": HOSTILE}
    )
    complete(api, job_id, [track(0)], [{"code": HOSTILE, "message": HOSTILE}])
    sql = (
        "UPDATE scene_lists SET scenes = (SELECT json_agg(s::jsonb || CAST(:scene AS jsonb))"
        " FROM json_array_elements(scenes) s) WHERE job_id = CAST(:id AS uuid)",
        "UPDATE transcripts SET document = replace(replace(document::text, 'Good morning.', :word),"
        " 'Speaker 1', :word)::json, track_name = :name WHERE job_id = CAST(:id AS uuid)",
    )
    change(api, sql, id=job_id, scene=scene, word=HOSTILE, name=HOSTILE)
    for path in ("/dashboard", f"/dashboard/jobs/{job_id}"):
        page = browser.get(path).text
        assert "<img src=x" not in page
        assert "{{7*7}}" in page
        assert "49" not in re.findall(r"&gt;.{0,8}49", page)


def test_markup_from_outside_is_text_on_the_pages_of_the_account(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    """Names of accounts and speakers, references of receipts, answers to webhooks, searches."""
    job_id = created(api, customer, callbackUrl="https://hooks.example.com/x")
    complete(api, job_id, [track(0)], [])
    account = customer.account_id
    renamed = api.client.put(
        f"/jobs/{job_id}/speakers/speaker_0", json={"label": HOSTILE}, headers=customer.headers
    )
    assert renamed.status_code == 200, renamed.text
    for statement in (
        "UPDATE accounts SET name = :text || id WHERE id = :account",
        "UPDATE search_rows SET text = text || :text WHERE account_id = :account",
        "UPDATE jobs SET file_name = :text WHERE account_id = :account",
        "UPDATE webhook_events SET last_error = :text, event_type = :text"
        " WHERE account_id = :account",
    ):
        api.sql(statement, text=HOSTILE, account=account)
    api.transact(
        lambda c: ledger.record_purchase(
            c, account, 500, provider=ledger.OPERATOR, reference=HOSTILE
        )
    )
    for path, times in (
        ("/account", 2), ("/keys", 3), ("/search?q=morning", 4), ("/nothing", 1),
        (f"/search?q={quote(HOSTILE)}", 2), (f"/account?hours={quote(HOSTILE)}", 1),
        (f"/{quote(HOSTILE, safe='')}", 1), (f"/jobs/{quote(HOSTILE, safe='')}", 1),
    ):  # fmt: skip
        page = browser.get(f"/dashboard{path}").text
        assert "<img src=x" not in page, path
        assert page.count("{{7*7}}") >= times, path
        assert "&lt;img src=x" in page, path


def change(api: RunningApi, statements: tuple[str, ...], **values: Any) -> None:
    async def run(connection: Any) -> None:
        quoted = json.dumps(values["word"])[1:-1]
        bound = {"id": values["id"], "scene": json.dumps(values["scene"]), "word": quoted,
                 "name": values["name"]}  # fmt: skip
        for statement in statements:
            names = re.findall(r"(?<!:):(\w+)", statement)
            await connection.execute(text(statement), {name: bound[name] for name in names})

    api.transact(run)


def test_files_are_kept_for_good_under_their_version(api: RunningApi) -> None:
    with visitor(api) as client:
        path = f"/dashboard/static/{static_version()}/dashboard.css"
        answer = client.get(path)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
        again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text == answer.text
        other = client.get("/dashboard/static/0/dashboard.css")
        assert other.headers["cache-control"] == "public, max-age=60"
        for missing in ("nothing.css", "../app.py", "%2e%2e/pages.py", "vendor/README.md"):
            assert client.get(f"/dashboard/static/0/{missing}").status_code in {303, 404}


def test_the_first_page_is_small_and_asks_nobody_else(browser: httpx.Client) -> None:
    page = browser.get("/dashboard")
    sizes = [len(gzip.compress(page.content))]
    loaded = set(re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page.text))
    for path in loaded | {path.replace("jobs.js", name) for path in loaded if "jobs.js" in path
                          for name in ("page.js", "uploads.js")}:  # fmt: skip
        with browser.stream("GET", path) as answer:
            assert answer.status_code == 200
            sizes.append(len(b"".join(answer.iter_raw())))
    assert len(sizes) >= 7
    assert sum(sizes) < 150_000
    assert not re.search(r'(src|href|action)="(https?:)?//', page.text)


def test_libraries_are_the_published_files() -> None:
    folder = STATIC / "vendor"
    table = (folder / "README.md").read_text()
    listed = dict(re.findall(r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$", table, re.M))
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert found.pop("README.md")
    assert found == listed


@pytest.mark.parametrize("house", ["netflix", "bbc"])
def test_captions_of_a_house_are_offered_with_what_is_to_be_mended(
    api: RunningApi, customer: Customer, browser: httpx.Client, house: str
) -> None:
    job = created(api, customer)
    complete(api, job, [track(0)], [])
    assert f"/dashboard/jobs/{job}/captions" in browser.get(f"/dashboard/jobs/{job}").text
    page = browser.get(f"/dashboard/jobs/{job}/captions?rules={house}")
    assert page.status_code == 200
    assert "captions follow the style" in page.text
    for form in ("srt", "ebu-tt-d"):
        path = f"/dashboard/api/jobs/{job}/transcript?rules={house}&amp;format={form}"
        assert path in page.text
        assert browser.get(unescape(path)).status_code == 200
    assert browser.get(f"/dashboard/jobs/{job}/captions?rules=nobody").status_code == 400


def test_an_archive_is_shown_with_its_error_and_is_paused_and_resumed(
    api: RunningApi, customer: Customer, browser: httpx.Client
) -> None:
    body = {"url": "s3://bucket/films/"}
    made = api.client.post("/archives", json=body, headers=customer.headers).json()["data"]
    page = browser.get("/dashboard/archives")
    assert "s3://bucket/films/" in plain(page)
    assert "0 completed, 0 running, 0 waiting, 0 failed, 0 refused" in plain(page)
    form = {"csrf": csrf(page)}
    for action, shown in (("pause", "Paused"), ("resume", "Active")):
        answer = browser.post(f"/dashboard/archives/{made['archiveId']}/{action}", data=form)
        assert answer.status_code == 303, answer.text
        assert shown in plain(browser.get("/dashboard/archives"))
    assert browser.post(f"/dashboard/archives/{uuid.uuid4()}/pause", data=form).status_code == 404
    api.sql(
        "UPDATE archives SET failures = 2, error_code = 'BUCKET_UNREACHABLE',"
        " error_message = 'It cannot be reached.', due_at = '2100-01-01T00:00:00Z'",
    )
    shown = plain(browser.get("/dashboard/archives"))
    assert "It cannot be reached. BUCKET_UNREACHABLE Next try: 1 Jan 2100, 00:00 UTC" in shown
    api.sql(
        "UPDATE archives SET state = 'paused', error_code = 'BUCKET_NOT_FOUND',"
        " error_message = 'There is no such bucket.'",
    )
    assert "There is no such bucket. BUCKET_NOT_FOUND" in plain(browser.get("/dashboard/archives"))
