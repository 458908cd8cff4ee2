"""Floors, circles and sizes of the packages: ``python -m tests.structure [FOLDER]``.

A package's rooms are the files and folders directly in it. A room stands one floor above the
highest room of the same package that it imports; rooms that import each other form a circle and
stand on one floor together. Imports inside functions and under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
MOST_FLOORS = {"serve_app": 8, "pipelines": 7, "models": 7, "storage": 7}

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


def room_graph(files: Graph, folder: str) -> Graph:
    """Room -> rooms of the same folder that it imports."""
    depth = folder.count(".") + 1
    rooms: Graph = {}
    for name, imported in files.items():
        if name.startswith(f"{folder}."):
            own = name.split(".")[depth]
            others = {each.split(".")[depth] for each in imported if each.startswith(f"{folder}.")}
            rooms.setdefault(own, set()).update(others - {own})
    return rooms


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one node (Tarjan), each sorted."""
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
            members = tuple(sorted(stack[at:]))
            del stack[at:]
            if len(members) > 1:
                found.append(members)

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def floors(graph: Graph) -> dict[str, int]:
    """Room -> floor, from 1; members of a circle count as one room."""
    home = {room: members[0] for members in circles(graph) for room in members}
    joined: Graph = {}
    for room, others in graph.items():
        own = home.get(room, room)
        joined.setdefault(own, set()).update({home.get(each, each) for each in others} - {own})
    level: dict[str, int] = {}
    for room in TopologicalSorter(joined).static_order():
        level[room] = 1 + max((level[each] for each in joined[room]), default=0)
    return {room: level[home.get(room, room)] for room in graph}


def sizes(project: Path, packages: Iterable[str]) -> dict[str, float]:
    """Files, lines, lengths of functions, and the share of private functions named once elsewhere.

    A function is private if its name begins with one underscore; it is used once if its name
    stands in exactly one other place of its file.
    """
    texts = [path.read_text() for package in packages for path in (project / package).rglob("*.py")]
    lengths: list[int] = []
    used: list[int] = []
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if node.name.startswith("_") and not node.name.startswith("__"):
                    used.append(len(re.findall(rf"\b{node.name}\b", text)) - 1)
    return {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts),
        "files under 40 lines": sum(text.count("\n") < 40 for text in texts),
        "function median": statistics.median(lengths),
        "function p90": statistics.quantiles(lengths, n=10)[8],
        "private functions used once, %": round(100 * used.count(1) / len(used)),
    }


def main(project: Path = PROJECT) -> int:
    """Print each package's floors, circles and sizes; 1 where there is a circle or a floor too
    many."""
    files = file_graph(project, MOST_FLOORS)
    faults = 0
    for package, most in MOST_FLOORS.items():
        rooms = room_graph(files, package)
        found, level = circles(rooms), floors(rooms)
        height = max(level.values())
        faults += bool(found) + (height > most)
        print(f"{package}: {height} floors (at most {most}), {len(found)} circles")
        for floor in range(height, 0, -1):
            print(f"  {floor}  {', '.join(sorted(room for room in level if level[room] == floor))}")
        for members in found:
            print(f"  circle: {', '.join(members)}")
    for name, value in sizes(project, MOST_FLOORS).items():
        print(f"{name}: {value:g}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT))
