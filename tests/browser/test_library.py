"""The list of jobs as a library, in a browser: filtered, gone through, changed many at once."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from storage import history
from storage.types import StageName
from tests.browser.visits import DESK, Visits
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.contract.test_queries import insert_jobs


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


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

    page.fill("input[name=name]", "CIL 100%")
    page.press("input[name=name]", "Enter")
    expect(page.locator(".job h2")).to_have_text("Council 100%.mp4")
    page.click("text=Days")
    page.fill("input[name=to]", "2001-01-01")
    page.click("text=Filter")
    expect(page.locator("#list")).to_contain_text("No jobs here")


def test_without_scripts_older_jobs_are_a_page_of_their_own(visits: Visits, caller: Caller) -> None:
    insert_jobs(caller, 26)
    page = visits.open(caller, java_script_enabled=False)
    page.goto("/dashboard?name=A.&from=2024-01-01&state=queued")
    page.click("#older")
    expect(page.locator(".job")).to_have_count(1)
    assert "name=A." in page.url


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
