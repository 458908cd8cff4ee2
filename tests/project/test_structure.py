"""The structure script finds import cycles and counts layers."""

from __future__ import annotations

import pytest

from tests.structure import (
    MOST_LAYERS,
    Graph,
    cycles,
    file_graph,
    layers,
    main,
    member_graph,
)

CHAIN: Graph = {"a": {"b"}, "b": {"c"}, "c": set()}
RING: Graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}


@pytest.mark.parametrize(
    ("graph", "found", "level"),
    [
        pytest.param(CHAIN, [], {"a": 3, "b": 2, "c": 1}, id="chain"),
        pytest.param(
            RING, [("b", "c")], {"a": 2, "b": 1, "c": 1, "d": 3}, id="cycle at the bottom"
        ),
        pytest.param({"a": set(), "b": set()}, [], {"a": 1, "b": 1}, id="independent"),
    ],
)
def test_cycles_and_layers(
    graph: Graph, found: list[tuple[str, ...]], level: dict[str, int]
) -> None:
    assert cycles(graph) == found
    assert layers(graph) == level


def test_members_are_the_files_and_folders_directly_in_a_package() -> None:
    files: Graph = {"p.x.one": {"p.y", "p.x.two", "q.z"}, "p.x.two": set(), "p.y": set()}
    assert member_graph(files, "p") == {"x": {"y"}, "y": set()}


def test_imports_inside_functions_count(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "p").mkdir()
    (project / "p" / "__init__.py").touch()
    (project / "p" / "one.py").write_text("def f():\n    from p.two import g\n    return g\n")
    (project / "p" / "two.py").write_text("def g(): ...\n")
    assert file_graph(project, ["p"])["p.one"] == {"p.two"}


def test_strings_that_name_a_module_count_as_imports(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "p").mkdir()
    (project / "p" / "__init__.py").touch()
    (project / "p" / "one.py").write_text("F, G = 'p.two:f', 'p.three.g'\nX = 'p.four is here'\n")
    (project / "p" / "two.py").write_text("def f(): ...\n")
    (project / "p" / "three.py").write_text("def g(): ...\n")
    (project / "p" / "four.py").touch()
    assert file_graph(project, ["p"])["p.one"] - {"p"} == {"p.two", "p.three"}


def test_serve_app_has_at_most_9_layers_and_the_others_at_most_7() -> None:
    assert MOST_LAYERS == {"serve_app": 9, "pipelines": 7, "models": 7, "storage": 7}


def test_the_packages_have_no_import_cycle_and_no_layer_too_many() -> None:
    assert main() == 0
