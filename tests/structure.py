"""Layers, import cycles and sizes of the packages: ``python -m tests.structure [FOLDER]``.

The members of a package are the files and folders directly in it. A member stands one layer above
the highest member of the same package that it imports; members that import each other form a cycle
and share a layer. Imports inside functions and under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
MOST_LAYERS = {"serve_app": 9, "pipelines": 7, "models": 7, "storage": 7}
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70

Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    """``pipelines/media/audio.py`` as ``pipelines.media.audio``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str) -> set[str]:
    """All names that a file imports, as dotted paths."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def file_graph(project: Path, packages: Iterable[str]) -> Graph:
    """Module -> the modules of the packages that it imports."""
    files = {
        module_name(path.relative_to(project)): path
        for package in packages
        for path in (project / package).rglob("*.py")
    }
    return {
        name: {each for each in imports_of(path.read_text()) if each in files and each != name}
        for name, path in files.items()
    }


def member_graph(files: Graph, folder: str) -> Graph:
    """Member of a package (a file or folder directly in it) -> the members that it imports."""
    depth = folder.count(".") + 1
    members: Graph = {}
    for name, imported in files.items():
        if name.startswith(f"{folder}."):
            own = name.split(".")[depth]
            others = {each.split(".")[depth] for each in imported if each.startswith(f"{folder}.")}
            members.setdefault(own, set()).update(others - {own})
    return members


def cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one node (Tarjan's algorithm), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            at = stack.index(node)
            component = tuple(sorted(stack[at:]))
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def layers(graph: Graph) -> dict[str, int]:
    """Node -> layer, from 1 at the bottom; the nodes of a cycle count as one."""
    home = {node: component[0] for component in cycles(graph) for node in component}
    joined: Graph = {}
    for node, others in graph.items():
        own = home.get(node, node)
        joined.setdefault(own, set()).update({home.get(each, each) for each in others} - {own})
    level: dict[str, int] = {}
    for node in TopologicalSorter(joined).static_order():
        level[node] = 1 + max((level[each] for each in joined[node]), default=0)
    return {node: level[home.get(node, node)] for node in graph}


@dataclass(frozen=True)
class Size:
    """Counts of a set of files; lengths of functions in lines, from ``def`` to the last line."""

    files: int
    lines: int
    files_under_40_lines: int
    longest_file: int
    functions: int
    function_median: float
    function_p90: float
    longest_function: int
    private_functions_used_once_percent: int


def functions_of(text: str) -> list[tuple[str, int]]:
    """Name and length in lines of each function of a file, nested ones included."""
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def size_of(texts: list[str]) -> Size:
    """Size of files, given their source code.

    A function is private if its name begins with one underscore; it is used once if its name
    occurs in exactly one other place of its file.
    """
    lengths: list[int] = []
    uses: list[int] = []
    for text in texts:
        for name, length in functions_of(text):
            lengths.append(length)
            if name.startswith("_") and not name.startswith("__"):
                uses.append(len(re.findall(rf"\b{name}\b", text)) - 1)
    lines = [text.count("\n") for text in texts]
    return Size(
        files=len(texts),
        lines=sum(lines),
        files_under_40_lines=sum(count < 40 for count in lines),
        longest_file=max(lines, default=0),
        functions=len(lengths),
        function_median=statistics.median(lengths or [0]),
        function_p90=statistics.quantiles(lengths, n=10)[8] if len(lengths) > 1 else 0,
        longest_function=max(lengths, default=0),
        private_functions_used_once_percent=round(100 * uses.count(1) / max(len(uses), 1)),
    )


COLUMNS = {
    "files": "files",
    "lines": "lines",
    "< 40 lines": "files_under_40_lines",
    "longest": "longest_file",
    "functions": "functions",
    "median": "function_median",
    "p90": "function_p90",
    "max": "longest_function",
    "private once %": "private_functions_used_once_percent",
}


def print_sizes(project: Path, packages: Iterable[str]) -> None:
    """Print a row of sizes for each package, and one for all of them together."""
    sources = {
        package: [path.read_text() for path in (project / package).rglob("*.py")]
        for package in packages
    }
    rows = {package: size_of(texts) for package, texts in sources.items()}
    rows["total"] = size_of([text for texts in sources.values() for text in texts])
    print(f"{'':10}" + "".join(f"{title:>{len(title) + 3}}" for title in COLUMNS))
    for name, size in rows.items():
        cells = (f"{getattr(size, field):>{len(title) + 3}g}" for title, field in COLUMNS.items())
        print(f"{name:10}" + "".join(cells))


def long_parts(project: Path, packages: Iterable[str]) -> list[str]:
    """Files and functions longer than the project aims for, as ``path[:function]: lines``."""
    found = []
    for path in sorted(path for each in packages for path in (project / each).rglob("*.py")):
        text, name = path.read_text(), path.relative_to(project)
        if (lines := text.count("\n")) > MOST_LINES_OF_A_FILE:
            found.append(f"{name}: {lines}")
        found += [
            f"{name}:{function}: {length}"
            for function, length in functions_of(text)
            if length > MOST_LINES_OF_A_FUNCTION
        ]
    return found


def main(project: Path = PROJECT) -> int:
    """Print layers, cycles and sizes; 1 where a package has a cycle or too many layers."""
    files = file_graph(project, MOST_LAYERS)
    faults = 0
    for package, most in MOST_LAYERS.items():
        members = member_graph(files, package)
        found, level = cycles(members), layers(members)
        height = max(level.values())
        faults += bool(found) + (height > most)
        print(f"{package}: {height} layers (at most {most}), {len(found)} cycles")
        for layer in range(height, 0, -1):
            print(f"  {layer}  {', '.join(sorted(each for each in level if level[each] == layer))}")
        for names in found:
            print(f"  cycle: {', '.join(names)}")
    print()
    print_sizes(project, MOST_LAYERS)
    for part in long_parts(project, MOST_LAYERS):
        print(f"long: {part}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT))
