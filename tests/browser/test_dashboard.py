"""The dashboard as people use it: in a browser, by mouse and keyboard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from storage import history, people
from storage.types import Role, StageName
from tests.browser.visits import (
    DESK,
    PHONE,
    PLAIN_HOST,
    ZOOMED,
    Line,
    Visits,
    playable_job,
    sign_in_as_operator,
    sign_in_path,
)
from tests.contract.calling import Caller, ContractApi
from tests.contract.long_jobs import SCENES, long_job
from tests.contract.runner_side import RunnerSide
from tests.contract.test_queries import insert_jobs
from tests.security.test_roles import join

MIB = 1024**2


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


@pytest.fixture
def line(api: ContractApi) -> Iterator[Line]:
    """The way to the API at 20 MB/s."""
    port = urlsplit(api.root).port or 0
    with Line(port, bytes_a_second=20 * MIB).running() as way:
        yield way


@pytest.mark.long
def test_a_file_is_sent_although_the_connection_breaks(
    visits: Visits, caller: Caller, api: ContractApi, line: Line, tmp_path: Path
) -> None:
    """50 MB, with no network for a while in the middle."""
    file = tmp_path / "long film.mp4"
    file.write_bytes(os.urandom(50 * MIB))
    page = visits.open(caller, base_url=line.root, viewport=DESK)
    page.set_input_files("#files", file)
    until(page, "document.querySelector('.upload progress')?.value > 0.2")
    line.cut()
    expect(page.locator(".upload .line")).to_contain_text("connection broke")
    line.mend()
    expect(page.locator(".upload")).to_have_count(0)
    expect(page.locator(".job h2")).to_have_text("long film.mp4")
    [job] = caller.get("/jobs").json()["data"]
    assert job["state"] == "queued"
    stored = api.settings.data_dir / "objects" / "jobs" / job["jobId"] / "source" / "media"
    assert stored.read_bytes() == file.read_bytes()


def test_an_upload_goes_on_after_a_reload(
    visits: Visits, caller: Caller, line: Line, tmp_path: Path
) -> None:
    file = tmp_path / "film.mp4"
    file.write_bytes(os.urandom(40 * MIB))
    page = visits.open(caller, base_url=line.root)
    page.set_input_files("#files", file)
    until(page, "document.querySelector('.upload progress')?.value > 0.2")
    page.reload()
    expect(page.locator(".upload .line")).to_contain_text("Choose the same file again")
    assert page.locator(".upload progress").evaluate("bar => bar.value") > 0
    page.set_input_files("#files", file)
    expect(page.locator(".upload")).to_have_count(0)
    jobs = caller.get("/jobs").json()["data"]
    assert [job["state"] for job in jobs] == ["queued"]


def test_a_job_that_awaits_its_file_takes_it_on_its_page(
    visits: Visits, caller: Caller, tmp_path: Path
) -> None:
    file = tmp_path / "film.mp4"
    file.write_bytes(os.urandom(MIB))
    job = caller.create(fileName="film.mp4")
    page = visits.open(caller)
    page.goto(f"/dashboard/jobs/{job['jobId']}")
    page.set_input_files("#files", file)
    expect(page.locator("#drop")).to_have_count(0)
    assert [each["state"] for each in caller.get("/jobs").json()["data"]] == ["queued"]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "is empty"), (b"Dear all,\n", "is a text file"), (b"%PDF-1.7\n\xe2\0", "is a PDF")],
    ids=["empty", "text", "PDF"],
)
def test_what_is_no_media_is_refused_before_it_is_sent(
    visits: Visits, caller: Caller, tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "film.mp4"
    file.write_bytes(content)
    page = visits.open(caller)
    page.set_input_files("#files", file)
    expect(page.locator(".upload .line")).to_contain_text(f"film.mp4 {told}")
    assert caller.get("/jobs").json()["data"] == []


def test_signing_in_leads_to_the_page_that_was_open(
    visits: Visits, caller: Caller, runner: RunnerSide
) -> None:
    there = f"/dashboard/jobs/{playable_job(runner, caller)}"
    page = visits.open(None)
    page.goto(there)
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(sign_in_path(caller))
    page.wait_for_url(f"**{there}")


def until(page: Page, condition: str) -> None:
    """Wait for something in the page. Playwright's own way evaluates text, which pages forbid."""
    deadline = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def test_a_job_is_played_read_searched_and_taken_away(
    visits: Visits, caller: Caller, runner: RunnerSide
) -> None:
    job_id = playable_job(runner, caller)
    page = visits.open(caller, viewport=DESK)
    page.click(".job h2 a")
    page.wait_for_selector("#watch[data-ready]")
    player = page.locator("#player")
    page.click(".segment i:nth-of-type(2)")
    assert player.evaluate("player => player.currentTime") == pytest.approx(1.5)
    expect(page.locator(".segment i.now")).to_have_text("1")
    player.evaluate("player => { player.muted = true; return player.play() }")
    until(page, "document.getElementById('player').currentTime > 1.6")
    player.evaluate("player => player.pause()")

    page.press("body", "/")
    page.keyboard.type("track")
    expect(page.locator("#found")).to_have_text("1 of 1")
    page.fill("#find-text", "camera")
    expect(page.locator("#found")).to_have_text("1 of 2")

    page.hover(".speaker")
    page.click(".speaker .rename")
    page.keyboard.type("Anna <b>Weber</b>")
    page.keyboard.press("Enter")
    expect(page.locator(".speaker span")).to_have_text("Anna <b>Weber</b>")
    page.reload()
    expect(page.locator(".speaker span")).to_have_text("Anna <b>Weber</b>")

    for name, beginning in (("Captions, SRT", "1\n00:00:01,000"), ("Edit list, EDL", "TITLE:")):
        page.click("text=Download")
        with page.expect_download() as download:
            page.click(f"text={name}")
        assert Path(download.value.path()).read_text().startswith(beginning)
        page.click("text=Download")
    assert page.url.endswith(job_id)


@pytest.mark.long
def test_the_timeline_is_moved_by_keys(visits: Visits, caller: Caller, runner: RunnerSide) -> None:
    job_id = playable_job(runner, caller)
    page = visits.open(caller)
    page.goto(f"/dashboard/jobs/{job_id}")
    page.wait_for_selector("#watch[data-ready]")
    lanes = page.locator("#lanes")
    lanes.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "+", "ArrowRight"):
        lanes.press(key)
    expect(lanes).to_have_attribute("aria-valuetext", re.compile("^0:10, scene 1"))
    lanes.press("End")
    expect(lanes).to_have_attribute("aria-valuenow", "29")


@pytest.mark.long
def test_a_running_job_moves_by_itself(visits: Visits, caller: Caller, runner: RunnerSide) -> None:
    job_id = runner.queued(caller, fileName="film.mp4")
    page = visits.open(caller)
    page.goto(f"/dashboard/jobs/{job_id}")
    lease = runner.lease(job_id)
    runner.ingest(lease)
    expect(page.locator(".stage.completed")).to_have_count(1)
    runner.start(lease, "vision")
    runner.publish_scenes(lease)
    expect(page.locator(".scene")).to_have_count(2)
    runner.start(lease, "transcript")
    runner.publish_transcripts(lease)
    page.click("text=Show it")
    expect(page.locator(".segment")).to_have_count(1)


def test_the_list_goes_on_by_itself_and_keeps_its_place(
    visits: Visits, caller: Caller, api: ContractApi
) -> None:
    jobs = insert_jobs(caller, 60)
    api.sql("UPDATE jobs SET file_name = 'Council 100%.mp4' WHERE id = :id", id=jobs[5])
    page = visits.open(caller, viewport=DESK)
    expect(page.locator(".job")).to_have_count(25)
    page.locator("#older").scroll_into_view_if_needed()
    expect(page.locator(".job")).to_have_count(50)
    page.locator(".pick").nth(30).check()
    page.locator("#older").scroll_into_view_if_needed()
    expect(page.locator(".job")).to_have_count(60)
    expect(page.locator("#count")).to_have_text("1 selected")
    expect(page.locator(".pick:checked")).to_have_count(1)
    page.locator(".job h2 a").nth(54).click()
    page.go_back()
    expect(page.locator(".job")).to_have_count(60)
    expect(page.locator(".job").nth(54)).to_be_in_viewport()

    page.fill("#name", "CIL 100%")
    page.press("#name", "Enter")
    expect(page.locator(".job h2")).to_have_text("Council 100%.mp4")
    page.click("text=Days")
    page.fill("input[name=to]", "2001-01-01")
    page.click("text=Filter")
    expect(page.locator("#list")).to_contain_text("No jobs here")


def test_many_jobs_are_run_again_and_erased(
    visits: Visits, caller: Caller, runner: RunnerSide, api: ContractApi
) -> None:
    done = runner.complete(caller)
    insert_jobs(caller, 2)
    api.transact(lambda c: history.publish_versions(c, dict.fromkeys(StageName, "now")))
    page = visits.open(caller, viewport=DESK)
    for box in page.locator(".pick").all():
        box.check()
    page.click("text=Run again")
    expect(page.locator("#chosen li", has_text="pending")).to_have_count(2)
    expect(page.locator("#chosen li", has_text="clip.mp4: runs again")).to_have_count(1)
    expect(page.locator("#count")).to_have_text("2 selected")
    page.click("#all")
    page.click("#chosen >> text=Erase")
    expect(page.locator("#chosen li", has_text="erased")).to_have_count(4)
    assert caller.job(done)["erasedAt"]


def test_a_job_is_renamed_on_its_page(visits: Visits, caller: Caller, runner: RunnerSide) -> None:
    page = visits.open(caller, viewport=DESK)
    page.goto(f"/dashboard/jobs/{runner.complete(caller)}")
    page.click("text=More")
    page.fill("#file-name", "Council")
    page.press("#file-name", "Enter")
    expect(page.locator("h1")).to_have_text("Council.mp4")


PLACES = {
    "a time": ("#t=10000", "#s1111.now", "word11111"),
    "a line": ("#s1150", "#s1150.now", "word11500"),
    "a scene": ("#scene-1500", "#scene-1500", "in scene 1500."),
}


@pytest.mark.long
def test_links_into_parts_that_are_not_there_yet_arrive(
    visits: Visits, caller: Caller, api: ContractApi, runner: RunnerSide
) -> None:
    page = visits.open(caller, viewport=DESK)
    job = f"/dashboard/jobs/{long_job(api, runner, caller)}"
    for link, place, text in PLACES.values():
        page.goto("/dashboard")
        page.goto(job + link)
        expect(page.locator(place)).to_contain_text(text)
        expect(page.locator(place)).to_be_in_viewport()
    expect(page.locator(".scene")).not_to_have_count(SCENES)
    page.evaluate("location.hash = '#t=5000'")
    expect(page.locator("#s555.now")).to_be_in_viewport()


def test_a_long_job_is_found_read_and_named_in_all_its_parts(
    visits: Visits, caller: Caller, api: ContractApi, runner: RunnerSide
) -> None:
    page = visits.open(caller, viewport=DESK)
    page.goto(f"/dashboard/jobs/{long_job(api, runner, caller)}")
    page.wait_for_selector("#watch[data-ready]")
    assert page.locator(".segment").count() == 100
    page.fill("#find-text", "word9999")
    expect(page.locator("#found")).to_have_text("1 of 1")
    expect(page.locator("#s999")).to_be_in_viewport()
    page.fill("#find-text", "SCENE 199")
    expect(page.locator("#found")).to_have_text("1 of 11")
    for _ in range(2):
        page.press("#find-text", "Shift+Enter")
    expect(page.locator("#found")).to_have_text("10 of 11")
    expect(page.locator("#scene-1998")).to_be_in_viewport()

    page.evaluate("location.hash = '#t=4500.2'")
    expect(page.locator("#s500 i.now")).to_have_text("word5000")
    page.click("#s503 i:nth-of-type(3)")
    expect(page.locator("#s503 i.now")).to_have_text("word5032")
    lanes = page.locator("#lanes")
    lanes.press("End")
    expect(page.locator("#s1199")).to_be_in_viewport()
    expect(lanes).to_have_attribute("aria-valuetext", "3:00:00, scene 2000, Speaker 2")

    page.locator(".speaker").last.hover()
    page.locator(".speaker .rename").last.click()
    page.keyboard.type("Anna")
    page.keyboard.press("Enter")
    page.evaluate("location.hash = '#t=7000'")
    expect(page.locator("#s777.now")).to_be_visible()
    expect(page.locator(".part:has(#s777) .speaker >> nth=0")).to_have_text(
        re.compile("Anna|Speaker 1")
    )
    expect(page.locator(".speaker > span", has_text="Speaker 2")).to_have_count(0)
    assert set(page.locator(".speaker > span").all_text_contents()) == {"Anna", "Speaker 1"}


def test_without_scripts_a_long_job_is_read_page_by_page(
    visits: Visits, caller: Caller, api: ContractApi, runner: RunnerSide
) -> None:
    page = visits.open(caller, java_script_enabled=False)
    page.goto(f"/dashboard/jobs/{long_job(api, runner, caller)}")
    page.click("#lines a[rel=next]")
    expect(page.locator("#s100")).to_contain_text("word1000")
    page.click("a[rel=next]")
    expect(page.locator("#s200")).to_be_visible()
    page.click("a[rel=prev]")
    expect(page.locator("#s100")).to_be_visible()
    page.click("text=Back to the job")
    page.click("#scenes a[rel=next]")
    expect(page.locator(".scene")).to_have_count(24)


HOSTILE = "<img src=x onerror=\"document.title='broken in'\">"


@pytest.mark.long
def test_stills_far_from_view_are_let_go_and_come_again(
    visits: Visits, caller: Caller, api: ContractApi, runner: RunnerSide
) -> None:
    page = visits.open(caller, viewport=DESK)
    page.goto(f"/dashboard/jobs/{long_job(api, runner, caller)}")
    page.wait_for_selector("#watch[data-ready]")
    loaded = "document.querySelectorAll('.scene img[src]').length"
    first = page.locator(".scene img").first
    for _ in range(2):
        page.locator(".scene").first.scroll_into_view_if_needed()
        expect(first).to_have_attribute("src", re.compile("/thumbnails/0.jpg"))
        until(page, f"{loaded} < 150")
        page.locator("#scenes > :last-child").scroll_into_view_if_needed()
        last = page.locator("#scenes > :last-child img").last
        expect(last).to_have_attribute("src", re.compile(f"/thumbnails/{SCENES - 1}.jpg"))
        expect(first).not_to_have_attribute("src", re.compile("."))


@pytest.mark.long
def test_markup_from_outside_stays_text_in_the_browser(
    visits: Visits, caller: Caller, runner: RunnerSide, api: ContractApi
) -> None:
    job_id = playable_job(runner, caller, metadata={"note": HOSTILE})
    api.sql("UPDATE jobs SET file_name = :text WHERE account_id = :id", text=HOSTILE,
            id=caller.customer.account_id)  # fmt: skip
    api.sql(
        "UPDATE scene_lists SET scenes = replace(scenes::text, 'A person speaks', :text)::json"
        " WHERE job_id = CAST(:id AS uuid)", text=HOSTILE.replace('"', '\\"'), id=job_id,
    )  # fmt: skip
    api.sql(
        "UPDATE transcripts SET document = replace(document::text, 'track', :text)::json"
        " WHERE job_id = CAST(:id AS uuid)", text=HOSTILE.replace('"', '\\"'), id=job_id,
    )  # fmt: skip
    page = visits.open(caller)
    expect(page.locator(".job h2")).to_have_text(HOSTILE)
    page.click(".job h2 a")
    page.wait_for_selector("#watch[data-ready]")
    page.click(".segment i >> nth=0")
    expect(page.locator(".segment i >> nth=0")).to_have_text(HOSTILE)
    assert page.locator("img[src=x]").count() == 0
    assert "broken in" not in page.title()[:9]


@pytest.mark.long
def test_nothing_is_asked_of_another_host(
    visits: Visits, caller: Caller, runner: RunnerSide, api: ContractApi
) -> None:
    job_id = playable_job(runner, caller)
    page = visits.open(caller)
    for path in ("", f"/jobs/{job_id}", "/account", "/keys", "/search?q=track", "/nothing",
                 "/sign-in", "/sign-in?token=used"):  # fmt: skip
        page.goto(f"/dashboard{path}")
        page.wait_for_load_state("networkidle")
    assert visits.hosts == {api.root.removeprefix("http://")}


def test_forms_work_without_tls_too_and_a_link_asks_before_it_changes_who_is_signed_in(
    visits: Visits, caller: Caller, api: ContractApi
) -> None:
    """At such an address browsers do not tell which site a form came from."""
    page = visits.open(caller, base_url=api.root.replace("127.0.0.1", PLAIN_HOST))
    name = page.text_content(".who .name") or ""
    link = sign_in_path(api.caller())
    page.goto(link)
    expect(page.locator("h1")).to_contain_text(f"instead of {name}?")
    page.click("text=Stay")
    expect(page.locator(".who .name")).to_have_text(name)
    page.goto(link)
    page.click("button.primary")
    page.wait_for_url("**/dashboard")
    expect(page.locator(".who .name")).not_to_have_text(name)
    page.click("text=Sign out")
    expect(page.locator("h1")).to_have_text("You are signed out")


@pytest.mark.long
def test_another_site_can_neither_frame_a_page_nor_send_its_forms(
    visits: Visits, caller: Caller, api: ContractApi
) -> None:
    page = visits.open(caller)
    page.route("https://evil.example/", lambda route: route.fulfill(
        content_type="text/html",
        body=f'<iframe src="{api.root}/dashboard"></iframe>'
        f'<form method="post" action="{api.root}/dashboard/sign-out"><button>x</button></form>',
    ))  # fmt: skip
    page.goto("https://evil.example/")
    page.wait_for_timeout(500)
    framed = [frame for frame in page.frames if frame.url.startswith(f"{api.root}/dashboard")]
    assert framed == []
    page.click("button")
    page.goto(f"{api.root}/dashboard")
    expect(page.locator(".who .name")).to_be_visible()  # still signed in
    visits.problems.clear()  # the browser said that it refused


PAGES = {
    "sign-in": "/dashboard/sign-in",
    "link": "",
    "other account": "/dashboard",
    "jobs": "/dashboard",
    "job": "/dashboard/jobs/{job}",
    "running": "/dashboard/jobs/{running}",
    "archives": "/dashboard/archives",
    "vocabulary": "/dashboard/vocabulary",
    "account": "/dashboard/account?hours=1",
    "keys": "/dashboard/keys",
    "people": "/dashboard/people",
    "audit log": "/dashboard/audit",
    "search": "/dashboard/search?q=camera",
    "part": "/dashboard/jobs/{long}/segments?from=100",
    "scenes": "/dashboard/jobs/{long}/scenes?from=24",
    "captions": "/dashboard/jobs/{long}/captions?rules=bbc",
    "compare": "/dashboard/compare?from={long}&to={long}",
    "shared": "{shared}",
    "missing": "/dashboard/nothing",
    "signed out": "/dashboard/sign-in?ended=out",
    "session over": "/dashboard/sign-in?ended=1",
    "used link": "/dashboard/sign-in?token=used",
    "failed": "/dashboard/jobs/{failed}",
    "without its media": "/dashboard/jobs/{gone}",
    "no such state": "/dashboard?state=nothing",
    "nothing in this state": "/dashboard?state=cancelled",
    "before a search": "/dashboard/search",
    "nothing found": "/dashboard/search?q=zebra",
    "refused search": "/dashboard/search?q=-only",
    "queue": "/dashboard/operator",
    "accounts": "/dashboard/operator/accounts",
    "throughput": "/dashboard/operator/throughput",
    "failures": "/dashboard/operator/failures",
    "system": "/dashboard/operator/system",
    "missing to operators": "/dashboard/operator/nothing",
    "reference": "/docs",
    "error codes": "/docs/errors",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE, ZOOMED], ids=["desk", "phone", "200 %"])
@pytest.mark.long
def test_pages_are_accessible_and_fit(
    visits: Visits, caller: Caller, runner: RunnerSide, scheme: str, size: ViewportSize
) -> None:
    """axe-core without a violation; nothing is wider than the window."""
    from axe_playwright_python.sync_playwright import Axe

    ids = {"job": playable_job(runner, caller), "gone": playable_job(runner, caller)}
    visits.api.context.objects.delete_prefix(f"jobs/{ids['gone']}/source")
    ids["failed"] = runner.queued(caller)
    runner.fail(runner.lease(ids["failed"]), "ingest", "INGEST_FAILED")
    ids["running"] = runner.queued(caller)
    ids["shared"] = caller.post(f"/jobs/{ids['job']}/share", {}).json()["data"]["url"]
    ids["long"] = long_job(visits.api, runner, caller)
    join(caller, Role.VIEWER)
    account_id = caller.customer.account_id
    visits.api.transact(lambda c: people.invite(c, account_id, "guest@example.com", Role.OWNER))
    page = visits.open(caller, viewport=size, color_scheme=scheme)
    sign_in_as_operator(page, visits.api)
    found = {}
    for name, path in PAGES.items():
        if name == "link":
            page.route("**/sign_in.js", lambda route: route.abort())
        page.goto(path.format(**ids) or sign_in_path(caller))
        page.wait_for_load_state("networkidle")
        if name == "other account":
            page.goto(sign_in_path(visits.api.caller()))
            page.click("text=Continue")
            expect(page.locator("h1")).to_contain_text("instead of")
        if name == "used link":
            page.click("text=Continue")
            expect(page.locator("h1")).to_have_text("This link has expired")
        for summary in page.locator("main details > summary").all():
            if summary.is_visible():  # not in the tools of an editor that is closed
                summary.click()
        results = Axe().run(page)
        found[name] = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in results.response["violations"]
        ]
        wide = page.evaluate("document.documentElement.scrollWidth")
        # Schemas that are opened in the reference are wider than a phone, and scroll with the page.
        if wide > size["width"] and name != "reference":
            found[name].append(("too wide", [str(wide)]))
    assert {name: each for name, each in found.items() if each} == {}
