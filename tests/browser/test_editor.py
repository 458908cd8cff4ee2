"""The transcript corrected on the job's page, by keyboard; what was typed is never lost."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.visits import DESK, PHONE, Visits, playable_job
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.serve_app.test_transcript_edits import LINES, said


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


@pytest.fixture
def job(runner: RunnerSide, caller: Caller) -> str:
    return playable_job(runner, caller, said())


@pytest.fixture
def page(visits: Visits, caller: Caller, job: str) -> Page:
    return opened(visits.open(caller, viewport=DESK), job)


def opened(page: Page, job: str) -> Page:
    page.goto(f"/dashboard/jobs/{job}")
    page.wait_for_selector("#watch[data-ready]")
    return page


def texts(caller: Caller, job: str) -> list[str]:
    return [each["text"] for each in transcript(caller, job)["segments"]]


def transcript(caller: Caller, job: str) -> dict[str, Any]:
    data: dict[str, Any] = shown(caller.get(f"/jobs/{job}/transcript"))
    return data


def field(page: Page) -> Locator:
    """The line that is edited; the one before is read-only until it is saved."""
    return page.locator(".segment textarea:not([readonly])")


def lines(page: Page) -> Locator:
    return page.locator(".segment .spoken")


def saved(page: Page, revision: int) -> None:
    expect(page.locator("#edit-status")).to_have_text(f"Saved. Correction {revision}.")


def test_lines_are_corrected_split_joined_and_taken_back_by_keys(
    page: Page, caller: Caller, job: str
) -> None:
    page.keyboard.press("e")
    expect(field(page)).to_have_value(LINES[0][0])
    expect(field(page)).to_be_focused()
    field(page).fill("Good evening to the bakers.")
    page.keyboard.press("Alt+ArrowDown")
    saved(page, 1)
    expect(lines(page).nth(0)).to_have_text("Good evening to the bakers.")
    expect(field(page)).to_have_value("Today it rains.")
    page.keyboard.press("Home")
    for _ in "Today ":
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    saved(page, 2)
    expect(lines(page)).to_have_count(5)
    expect(field(page)).to_have_value("it rains.")
    assert texts(caller, job)[1:3] == ["Today", "it rains."]
    page.keyboard.press("Alt+Digit1")
    saved(page, 3)
    assert transcript(caller, job)["segments"][2]["speaker"] == "speaker_0"
    expect(page.locator(".speaker")).to_have_count(4)
    expect(field(page)).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Backspace")
    saved(page, 4)
    expect(lines(page)).to_have_count(4)
    assert texts(caller, job)[1] == "Today it rains."
    expect(field(page)).to_be_focused()
    page.keyboard.press("Control+z")
    saved(page, 5)
    assert texts(caller, job)[1:3] == ["Today", "it rains."]
    page.click("#redo")
    saved(page, 6)
    assert texts(caller, job)[1] == "Today it rains."
    page.click("#undo")
    page.click("#undo")
    saved(page, 8)
    assert transcript(caller, job)["segments"][2]["speaker"] == "speaker_1"


def test_what_is_typed_while_the_line_before_is_saved_goes_into_the_next_one(
    page: Page, caller: Caller, job: str
) -> None:
    def later(route: Route) -> None:
        page.wait_for_timeout(400)
        route.continue_()

    page.route("**/transcript", later)
    page.keyboard.press("e")
    field(page).fill("Good evening.")
    lines(page).nth(1).click()
    page.keyboard.press("End")
    page.keyboard.type(" Jnl, it does?", delay=30)  # letters that are shortcuts elsewhere
    expect(field(page)).to_have_count(1)
    expect(field(page)).to_have_value("Today it rains. Jnl, it does?")
    saved(page, 1)
    expect(page.locator(".segment textarea")).to_have_count(1)
    page.locator("h1").click()
    saved(page, 2)
    assert texts(caller, job)[:2] == ["Good evening.", "Today it rains. Jnl, it does?"]
    field(page).press("Escape")
    expect(page.locator(".segment textarea")).to_have_count(0)
    assert page.evaluate(f"localStorage.getItem('vas-draft:{job}:0')") is None


def test_it_plays_from_the_word_at_the_cursor(page: Page) -> None:
    page.keyboard.press("e")
    page.keyboard.press("Home")
    for _ in "Good morn":
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => !document.getElementById('player').paused")
    assert page.evaluate("() => document.getElementById('player').currentTime") >= 1.5
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => document.getElementById('player').paused")
    page.keyboard.press("Escape")
    expect(field(page)).to_have_count(0)
    expect(lines(page).nth(0)).to_have_text(LINES[0][0])


def test_it_goes_through_the_places_that_are_most_worth_checking(
    page: Page, caller: Caller, job: str
) -> None:
    status = page.locator("#review-status")
    page.keyboard.press("n")
    # Each word has a confidence of 0.5, five wrong ones lack another: the densest line is first.
    expect(status).to_contain_text("0:00–0:03: check the words. About 3.0 likely errors")
    expect(status).to_contain_text("5.4 left in the rest")
    expect(field(page)).to_have_value(LINES[0][0])
    page.wait_for_function("() => !document.getElementById('player').paused")
    assert page.evaluate("() => document.getElementById('player').currentTime") >= 0.5
    page.wait_for_function("() => document.getElementById('player').paused")
    page.keyboard.press("End")
    page.keyboard.type(" Yes.")
    page.keyboard.press("Alt+Enter")
    saved(page, 1)
    expect(field(page)).to_have_value(LINES[2][0])
    expect(status).to_contain_text("3.0 left in the rest")
    page.click("#next-place")
    expect(status).to_contain_text("1.2 left in the rest")
    page.click("#next-place")
    expect(status).to_contain_text("0.0 left in the rest")
    page.click("#next-place")
    expect(status).to_have_text("Everything is checked.")
    assert texts(caller, job)[0] == f"{LINES[0][0]} Yes."


def test_what_is_not_saved_is_there_again_after_a_reload(
    page: Page, caller: Caller, job: str
) -> None:
    page.click("#edit")
    lines(page).nth(2).click()
    field(page).press_sequentially(" and more")
    opened(page, job)
    expect(field(page)).to_have_value("We sell green tees. and more")
    expect(page.locator("#edit-status")).to_have_text("This text was not saved yet.")
    page.keyboard.press("Control+s")
    saved(page, 1)
    assert texts(caller, job)[2] == "We sell green tees. and more"
    page.keyboard.press("Escape")
    opened(page, job)
    expect(field(page)).to_have_count(0)


def correct(caller: Caller, job: str, revision: int, index: int, text: str) -> None:
    """Correct a line as somebody else."""
    body = {"revision": revision, "segments": [{"index": index, "text": text}]}
    path = f"/jobs/{job}/transcript"
    assert caller.api.client.patch(path, json=body, headers=caller.customer.headers).is_success


def test_edits_of_different_lines_are_joined(
    visits: Visits, page: Page, caller: Caller, job: str
) -> None:
    other = opened(visits.open(caller, viewport=DESK), job)
    for each, line in ((page, 2), (other, 3)):
        each.click("#edit")
        lines(each).nth(line).click()
    field(other).fill("Come in.")
    other.keyboard.press("Control+s")
    saved(other, 1)
    correct(caller, job, 1, 0, "")  # the lines after it move up
    field(page).fill("We sell quinoa.")
    page.keyboard.press("Control+s")
    saved(page, 3)
    expect(lines(page)).to_have_text(["Today it rains.", "We sell quinoa.", "Come in."])
    assert texts(caller, job) == ["Today it rains.", "We sell quinoa.", "Come in."]


@pytest.mark.parametrize("choice", ["Keep mine", "Take theirs"])
def test_of_edits_of_the_same_line_one_is_chosen(
    page: Page, caller: Caller, job: str, choice: str
) -> None:
    page.click("#edit")
    lines(page).nth(2).click()
    field(page).fill("We sell quinoa.")
    correct(caller, job, 0, 2, "We sell green teas.")
    page.keyboard.press("Control+s")
    expect(page.locator("#edit-status")).to_contain_text("elsewhere: “We sell green teas.”")
    expect(field(page)).to_have_value("We sell quinoa.")
    page.click(f"text={choice}")
    chosen = "We sell quinoa." if choice == "Keep mine" else "We sell green teas."
    expect(lines(page).nth(2)).to_have_text(chosen)
    expect(field(page)).to_have_count(0)
    assert texts(caller, job)[2] == chosen


def test_what_is_typed_offline_is_saved_once_the_connection_is_back(
    page: Page, caller: Caller, job: str
) -> None:
    page.click("#edit")
    lines(page).nth(2).click()
    field(page).fill("We sell quinoa.")
    page.context.set_offline(True)
    expect(page.locator("#offline")).to_be_visible()
    page.keyboard.press("Control+s")
    expect(page.locator("#edit-status")).to_contain_text("Your text is saved in this browser.")
    page.context.set_offline(False)
    expect(page.locator("#offline")).to_be_hidden()
    page.keyboard.press("Control+s")
    saved(page, 1)
    assert texts(caller, job)[2] == "We sell quinoa."


def test_a_word_is_replaced_in_the_whole_job_and_the_difference_shown(
    page: Page, caller: Caller, job: str
) -> None:
    page.click("#edit")
    page.click("summary:has-text('Replace')")
    page.fill("#replace-from", "to")
    page.fill("#replace-to", "<b>for</b>")
    page.click("text=Replace all")
    expect(page.locator("#edit-status")).to_contain_text("1 replaced in 1 lines.")
    expect(lines(page).nth(0)).to_have_text("Good morning <b>for</b> the bakers.")
    opened(page, job)
    page.click("text=Edit history")
    expect(page.locator("del")).to_have_text("to")
    expect(page.locator("ins")).to_have_text("<b>for</b>")
    expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_editor_is_accessible_and_fits(
    visits: Visits, caller: Caller, job: str, size: Any, scheme: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(visits.open(caller, viewport=size, color_scheme=scheme), job)
    page.click("#edit")
    lines(page).nth(1).click()
    field(page).fill("Today it snows.")
    page.keyboard.press("Control+s")
    saved(page, 1)
    page.click("#next-place")
    expect(page.locator("#review-status")).to_contain_text("likely errors here")
    for address in (None, f"/dashboard/jobs/{job}/changes"):
        if address:
            page.goto(address)
        results = Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= size["width"]
