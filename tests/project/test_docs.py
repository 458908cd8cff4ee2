"""Documents name only files that exist; generated pages are what their generator prints."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pipelines.types import StageCode, WarningCode
from serve_app import __version__
from serve_app.cli.main import COMMANDS, load
from tests.pipelines.ingest.test_field_kinds import KINDS as FIELD_KINDS
from tests.serve_app.interface_contract import DOCUMENT
from tests.settings_reference import reference
from tests.tables import every

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(PROJECT.glob("*.md")),
    *sorted(PROJECT.glob("docs/**/*.md")),
    *sorted(PROJECT.glob("tests/*/README.md")),
]
_TEST = re.compile(r"`(tests/[\w./-]+)::(\w+)`")
_PATH = re.compile(
    r"`((?:serve_app|pipelines|models|storage|tests|docs|deploy)/[\w./-]+)(?:::[\w\[\]-]+)?`"
)
_MODULE = re.compile(r"python -m ((?:serve_app|pipelines|models|storage|tests)[\w.]*)")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
CATEGORIES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def exists_as_module(name: str) -> bool:
    path = PROJECT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@every("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_file_module_and_link_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    paths = [PROJECT / name for name in _PATH.findall(text)]
    links = [page.parent / name for name in _LINK.findall(text)]
    assert [str(path) for path in (*paths, *links) if not path.exists()] == []
    assert [name for name in _MODULE.findall(text) if not exists_as_module(name)] == []


def tables_of(text: str) -> list[list[list[str]]]:
    """Each table's rows, of cells."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[row.strip("|").split("|") for row in block.splitlines()] for block in blocks]


@every("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_table_of_a_page_has_a_header(page: Path) -> None:
    """A line between its rows ends a table: what follows is shown as text."""
    for first, *rest in tables_of(page.read_text()):
        assert rest, first
        assert {*"".join(rest[0])} <= {*"-: "}, first


def test_the_page_of_media_has_every_warning_and_each_kind_has_its_test() -> None:
    text = (PROJECT / "docs" / "media.md").read_text()
    codes = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", text))
    assert codes - set(StageCode) == set(WarningCode) - set(StageCode)
    missing = [
        f"{path}::{name}"
        for path, name in _TEST.findall(text)
        if f"def {name}(" not in (PROJECT / path).read_text()
    ]
    assert missing == []
    last_cells = [row[-1].strip(" |") for table in tables_of(text) for row in table[2:]]
    untested = {each for each in last_cells if not _TEST.search(each)} - {"the same"}
    assert untested | {"a streamed WAV, signed"} == FIELD_KINDS.keys()


def test_the_reference_of_settings_is_what_the_settings_make() -> None:
    assert (PROJECT / "docs" / "settings.md").read_text() == reference()


def test_the_commands_page_has_every_command_of_vas() -> None:
    rows = (PROJECT / "docs" / "commands.md").read_text().splitlines()
    missing: list[str] = []
    for name in COMMANDS:
        about = " ".join(row for row in rows if f"vas {name}" in row)
        commands = getattr(load(name), "commands", [name])
        missing += [f"{name} {each}" for each in commands if each not in re.split(r"[^\w-]", about)]
    assert missing == []


@every(("route", "more_than"), [("The route of an upload", 4), ("The route of a job", 10)])
def test_a_route_is_followed_through_at_most_22_files(route: str, more_than: int) -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text()
    section = text.partition(f"## {route}")[2].partition("\n## ")[0]
    assert more_than < len(set(_PATH.findall(section))) <= 22


@every("page", sorted((PROJECT / "docs" / "decisions").glob("0*.md")), ids=str)
def test_a_decision_states_status_context_decision_and_consequences(page: Path) -> None:
    headings = re.findall(r"^\*\*([A-Z]\w+)[.:]", page.read_text(), re.MULTILINE)
    assert headings[:4] == ["Status", "Context", "Decision", "Consequences"]
    assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_the_changelog_has_a_section_for_the_version_and_only_known_categories() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[([\d.]+)\]", text, re.MULTILINE)[0] == __version__
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= CATEGORIES


def test_package_and_project_have_one_version() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def _unused_words() -> re.Pattern[str]:
    rows = (PROJECT / "docs/glossary.md").read_text().splitlines()
    cells = [row.split("|")[3] for row in rows if row.startswith("| ") and row.count("|") == 4]
    words = {word.strip() for cell in cells[1:] for word in cell.split(",") if word.strip()}
    assert {"thing", "house rules"} <= words
    return re.compile(rf"\b({'|'.join(map(re.escape, sorted(words)))})\b", re.IGNORECASE)


def _prose(node: object) -> Iterator[str]:
    """Yield the texts of an interface document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"description", "summary"} and isinstance(value, str):
                yield value
            else:
                yield from _prose(value)
    elif isinstance(node, list):
        for each in node:
            yield from _prose(each)


def test_pages_reference_and_commands_use_the_words_of_the_glossary() -> None:
    unused, wrong = _unused_words(), []
    pages = {
        str(path): re.sub(r"\{[{%#].*?[}%#]\}|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
        for path in PROJECT.glob("serve_app/*/templates/**/*.html")
    }
    commands = (PROJECT / "docs/commands.md").read_text()
    settings = (PROJECT / "docs/settings.md").read_text()
    texts = [*_prose(DOCUMENT), *pages.values(), commands, settings]
    for text in texts:
        wrong += [(each[0], text[:80]) for each in unused.finditer(re.sub(r"`[^`]*`", "", text))]
    assert len(pages) > 20
    assert not wrong
