"""The structure script finds import cycles, counts layers and measures sizes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.structure import (
    MOST_LAYERS,
    Graph,
    cycles,
    file_graph,
    layers,
    long_parts,
    main,
    member_graph,
    personifying_lines,
    private_names_in_tests,
    public_class_names_used_twice,
    size_of,
)

ROOT = Path(__file__).parents[2]
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


def test_public_classes_of_one_name_are_found() -> None:
    texts = ["class A: ...\nclass _B: ...\n", "class A: ...\nclass _B: ...\nclass C: ...\n"]
    assert public_class_names_used_twice(texts) == {"A"}


def test_verbs_for_people_are_found_in_comments_and_docstrings_only() -> None:
    text = '"""It says so.\n\nIt returns."""\nx = "says"  # told by y\n# requires z\n'
    assert personifying_lines(text) == 2


def test_private_names_of_others_are_counted() -> None:
    text = "from p import _f, g\nself._own = g()._other\nx.__class__\n"
    assert private_names_in_tests([text]) == 2


def test_sizes_count_lines_and_the_lengths_of_functions() -> None:
    two = "def f():\n    return _g()\n\n\ndef _g():\n    a = 1\n    b = 2\n    return a + b\n"
    size = size_of([two, "x = 1\n"])
    assert (size.files, size.lines, size.files_under_40_lines, size.longest_file) == (2, 9, 2, 8)
    assert (size.functions, size.function_median, size.longest_function) == (2, 3, 4)
    assert size.private_functions_used_once_percent == 100


def test_files_over_400_lines_and_functions_over_70_are_listed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = tmp_path_factory.mktemp("project")
    (project / "p").mkdir()
    (project / "p" / "one.py").write_text("def f():\n" + "    x = 1\n" * 70 + "\n" * 329)
    (project / "p" / "two.py").write_text("def f():\n" + "    x = 1\n" * 69 + "\n" * 331)
    assert long_parts(project, ["p"]) == ["p/one.py:f: 71", "p/two.py: 401"]


def test_serve_app_has_at_most_9_layers_and_the_others_at_most_7() -> None:
    assert MOST_LAYERS == {"serve_app": 9, "pipelines": 7, "models": 7, "storage": 7}


def test_the_packages_have_no_import_cycle_no_layer_too_many_and_keep_their_limits() -> None:
    assert main() == 0


def streaming_faults(text: str) -> list[str]:
    """Lines that send while they hold a connection of the database, or send without a place."""
    tree, found = ast.parse(text), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            answers = {"StreamingResponse", "FileResponse", "EventSourceResponse"}
            found += [f"{node.lineno}: {it.name}" for it in node.names if it.name in answers]
        if isinstance(node, ast.AsyncWith) and any(map(_opens_connection, node.items)):
            found += [f"{at}: yield" for at in _yields(node)]
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and _yields(node):
            given = [ast.unparse(it.annotation) for it in node.args.args if it.annotation]
            found += [f"{node.lineno}: {it}" for it in given if "Connection" in it]
    return sorted(found)


def _opens_connection(item: ast.withitem) -> bool:
    call = item.context_expr
    opens = {"statement", "transaction", "connection", "connect", "begin", "_connection"}
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in opens
    )


def _yields(node: ast.AST) -> list[int]:
    """Lines of the node's own ``yield``, not of functions inside it."""
    found, inside = list[int](), [*ast.iter_child_nodes(node)]
    while inside:
        each = inside.pop()
        if isinstance(each, ast.Yield | ast.YieldFrom):
            found.append(each.lineno)
        if not isinstance(each, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            inside += ast.iter_child_nodes(each)
    return found


def test_streams_that_hold_a_connection_or_no_place_are_found() -> None:
    text = """
from starlette.responses import Response, StreamingResponse
async def lines(connection: Connection): yield
async def pages(database):
    async with database.statement() as connection:
        async def other(): yield
        yield
    yield
"""
    assert streaming_faults(text) == ["2: StreamingResponse", "3: Connection", "7: yield"]


def test_every_stream_has_a_place_and_holds_no_connection_while_it_is_sent() -> None:
    """``DownloadPlace.stream`` makes the only streamed answers; nobody yields with a connection."""
    found = {
        str(path.relative_to(ROOT)): faults
        for path in (ROOT / "serve_app").rglob("*.py")
        if (faults := streaming_faults(path.read_text()))
    }
    [[only]] = found.values()
    assert found == {"serve_app/api/downloads.py": [only]}
    assert only.endswith("StreamingResponse")
