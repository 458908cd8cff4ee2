"""What the documents name exists, and what is made from the code is as the code makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.settings_reference import reference

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(PROJECT.glob("docs/**/*.md"))]
_PATH = re.compile(
    r"`((?:serve_app|pipelines|models|storage|tests|docs)/[\w./-]+)(?:::[\w\[\]-]+)?`"
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_file_and_link_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    paths = [PROJECT / name for name in _PATH.findall(text)]
    links = [page.parent / name for name in _LINK.findall(text)]
    assert [str(path) for path in (*paths, *links) if not path.exists()] == []


def test_the_reference_of_settings_is_what_the_settings_make() -> None:
    assert (PROJECT / "docs" / "settings.md").read_text() == reference()


def test_a_job_is_followed_through_at_most_25_files() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text()
    route = text.partition("## The route of a job")[2].partition("\n## ")[0]
    assert 10 < len(set(_PATH.findall(route))) <= 25
