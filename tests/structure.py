"""Layers and import cycles of the packages: ``python -m tests.structure [FOLDER]``.

The members of a package are the files and folders directly in it. A member stands one layer above
the highest member of the same package that it imports; members that import each other form a cycle
and share a layer. Imports inside functions and under TYPE_CHECKING count, and so do strings that
name a module (``"pipelines.ingest.clip:copy"``).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
MOST_LAYERS = {"serve_app": 9, "pipelines": 7, "models": 7, "storage": 7}

Graph = dict[str, set[str]]

_MODULE_STRING = re.compile(r"[a-z_]+(\.\w+)+(:\w+)?")


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
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _MODULE_STRING.fullmatch(node.value)
        ):
            name = node.value.partition(":")[0]
            found |= {name, name.rpartition(".")[0]}
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


def main(project: Path = PROJECT) -> int:
    """Print layers and cycles; return 1 where there is a cycle or a layer too many."""
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
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT))
