"""Take the pictures of ``dashboard.md`` from a running service.

``python docs/pictures.py LINK JOB WORD``: a sign-in link, the id of a completed job, a word that is
spoken in it. Needs Playwright and the machine's Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "pictures"


def main(link: str, job: str, word: str) -> None:
    root = "{0.scheme}://{0.netloc}/dashboard".format(urlsplit(link))
    with sync_playwright() as play:
        path = shutil.which("chromium")
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(link)
        page.wait_for_url(root)
        save(page, "jobs")
        page.goto(f"{root}/jobs/{job}")
        page.wait_for_selector("#watch[data-ready]")
        page.keyboard.press("l")
        page.wait_for_timeout(2000)
        save(page, "job")
        page.click("summary:has-text('More')")
        save(page, "tools")
        page.click("summary:has-text('More')")
        page.click("#edit")
        page.locator(".segment .spoken").first.click()
        save(page, "editor")
        page.goto(f"{root}/search?q={word}")
        save(page, "search")
        browser.close()


def save(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=FOLDER / f"{name}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
