"""Layers, import cycles and sizes of the packages: ``python -m tests.structure [FOLDER]``.

The members of a package are the files and folders directly in it. A member stands one layer above
the highest member of the same package that it imports; members that import each other form a cycle
and share a layer. Imports inside functions and under TYPE_CHECKING count, and so do strings that
name a module (``"pipelines.ingest.clip:copy"``).

``structure.toml`` holds what may not grow: files and lines a package, and counts of what the
project is getting rid of. A value that has fallen is lowered there; one that must rise is raised by
a commit of its own, with a comment that names the capability that needed it.
"""

from __future__ import annotations

import ast
import functools
import re
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
MOST_LAYERS = {"serve_app": 9, "pipelines": 7, "models": 7, "storage": 7}
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70

LIMITS = Path(__file__).with_name("structure.toml")

Graph = dict[str, set[str]]

_MODULE_STRING = re.compile(r"[a-z_]+(\.\w+)+(:\w+)?")
_UNTYPED = re.compile(r"\bdict\[str, Any\]")
_PERSONIFYING = re.compile(
    r"\b(hears?|heard|wants?|brings?|brought|tells?|told|asks?|asked|says?|said|for ever)\b"
)
"""Verbs for people. Code returns, receives, requests, requires; durations are unlimited."""


_COUNTED = (
    ast.Import,
    ast.ImportFrom,
    ast.Constant,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Expr,
    ast.Attribute,
)


@functools.cache
def nodes_of(source: str) -> list[ast.AST]:
    """The nodes of a file's syntax tree that something here looks at."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, _COUNTED)]


def module_name(path: Path) -> str:
    """``pipelines/media/audio.py`` as ``pipelines.media.audio``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str) -> set[str]:
    """All names that a file imports, as dotted paths."""
    found: set[str] = set()
    for node in nodes_of(source):
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


@functools.cache
def functions_of(text: str) -> list[tuple[str, int]]:
    """Name and length in lines of each function of a file, nested ones included."""
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in nodes_of(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@functools.cache
def words_of(text: str) -> Counter[str]:
    """How often each word occurs in a file."""
    return Counter(re.findall(r"\w+", text))


def size_of(texts: list[str]) -> Size:
    """Size of files, given their source code.

    A function is private if its name begins with one underscore; it is used once if its name
    occurs in exactly one other place of its file.
    """
    lengths: list[int] = []
    uses: list[int] = []
    for text in texts:
        words = words_of(text)
        for name, length in functions_of(text):
            lengths.append(length)
            if name.startswith("_") and not name.startswith("__"):
                uses.append(words[name] - 1)
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


def public_class_names_used_twice(texts: Iterable[str]) -> set[str]:
    """Names that more than one public class has."""
    names: defaultdict[str, int] = defaultdict(int)
    for text in texts:
        for node in nodes_of(text):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[node.name] += 1
    return {name for name, count in names.items() if count > 1}


def personifying_lines(text: str) -> int:
    """Lines of comments and docstrings with a verb for people."""
    prose = [
        node.value.value
        for node in nodes_of(text)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    prose += re.findall(r"(?m)(?:^|\s)# (.*)$", text)
    return sum(bool(_PERSONIFYING.search(line)) for each in prose for line in each.splitlines())


def private_names_in_tests(texts: Iterable[str]) -> int:
    """How often tests reach for a name with a leading underscore that is not their own."""
    count = 0
    for text in texts:
        for node in nodes_of(text):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
                own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
                count += not own
            elif isinstance(node, ast.ImportFrom):
                count += sum(alias.name.startswith("_") for alias in node.names)
    return count


def measured(project: Path, packages: Iterable[str]) -> dict[str, dict[str, int]]:
    """What ``structure.toml`` limits, as it is now."""
    texts = {
        each: [path.read_text() for path in (project / each).rglob("*.py")] for each in packages
    }
    everything = [text for each in texts.values() for text in each]
    tests = [path.read_text() for path in (project / "tests").rglob("*.py")]
    size = size_of(everything)
    return {
        "files": {each: len(found) for each, found in texts.items()},
        "lines": {each: size_of(found).lines for each, found in texts.items()},
        "counts": {
            "class_names_used_twice": len(public_class_names_used_twice(everything)),
            "untyped_dictionaries": sum(len(_UNTYPED.findall(text)) for text in everything),
            "private_functions_used_once_percent": size.private_functions_used_once_percent,
            "personifying_lines": sum(map(personifying_lines, everything)),
            "private_names_in_tests": private_names_in_tests(tests),
        },
    }


def print_limits(project: Path, packages: Iterable[str]) -> int:
    """Print each limited value beside its limit; the number of those above it."""
    limits, above = tomllib.loads(LIMITS.read_text()), 0
    for section, values in measured(project, packages).items():
        for name, value in values.items():
            most = limits[section][name]
            above += value > most
            note = f"  ABOVE by {value - most}" if value > most else ""
            print(f"{section + ' ' + name:48}{value:>8} of at most {most}{note}")
    return above


def main(project: Path = PROJECT) -> int:
    """Print layers, cycles, sizes and limits; 1 where one of them is broken."""
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
    print()
    faults += print_limits(project, MOST_LAYERS)
    for part in long_parts(project, MOST_LAYERS):
        print(f"long: {part}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT))
