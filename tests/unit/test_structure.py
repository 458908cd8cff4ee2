"""The structure script finds circles and counts floors."""

from __future__ import annotations

import pytest

from tests.structure import Graph, circles, file_graph, floors, main, room_graph

CHAIN: Graph = {"a": {"b"}, "b": {"c"}, "c": set()}
RING: Graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}


@pytest.mark.parametrize(
    ("graph", "found", "level"),
    [
        pytest.param(CHAIN, [], {"a": 3, "b": 2, "c": 1}, id="a chain"),
        pytest.param(RING, [("b", "c")], {"a": 2, "b": 1, "c": 1, "d": 3}, id="a ring below"),
        pytest.param({"a": set(), "b": set()}, [], {"a": 1, "b": 1}, id="side by side"),
    ],
)
def test_circles_and_floors(
    graph: Graph, found: list[tuple[str, ...]], level: dict[str, int]
) -> None:
    assert circles(graph) == found
    assert floors(graph) == level


def test_rooms_are_the_files_and_folders_directly_in_a_package() -> None:
    files: Graph = {"p.x.one": {"p.y", "p.x.two", "q.z"}, "p.x.two": set(), "p.y": set()}
    assert room_graph(files, "p") == {"x": {"y"}, "y": set()}


def test_imports_inside_functions_count(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "p").mkdir()
    (project / "p" / "__init__.py").touch()
    (project / "p" / "one.py").write_text("def f():\n    from p.two import g\n    return g\n")
    (project / "p" / "two.py").write_text("def g(): ...\n")
    assert file_graph(project, ["p"])["p.one"] == {"p.two"}


def test_the_packages_have_no_circles_and_no_floor_too_many() -> None:
    assert main() == 0
