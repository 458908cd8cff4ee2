"""Texts of strangers: no pattern of the service reads them again and again."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import models
import pipelines
import serve_app
import storage
from pipelines.across.redaction import find_personal_data, no_recognizer
from pipelines.across.redaction_patterns import PersonalData, find_patterns
from tests.places import PROJECT
from tests.tables import every

PACKAGES = (serve_app, pipelines, models, storage)
SOURCES = {
    path: path.read_text()
    for package in PACKAGES
    for path in (PROJECT / package.__name__).rglob("*.py")
}
FRAGMENTS = (
    "a", "a.", "a-", "a ", "a'", "aB", "a1", "a_", "a@", "@a", "a@a.", "a:b@", "a.com ", "A", "A.",
    "Aa ", "1", "1.", "1,", "1-", "1 ", "19 ", "at.", "at . ", "com.", "five ", ".", "-", " ", "/",
    "/a/", "!", "'", "''", '"', '"a', "[a", "[a]", "[email]", "(", "<", "<a", "=", "?a=", "&a=b",
    "://", "a://", "\\", "{", ";  ", ", ", ",A", "\n", "\na", "\r\n", "\xa0", "中", "中。", "ない",
    "L ", "LN ", "R ", "mail ", "in A", "my name is A", "error: ", "TRK1=", "Bearer ", "<!---->",
    "vas_live_a", "whsec_a", "X-Amz-Signature=a", "?token=a", '"token":"a', "DETAIL: ", "<Code>a",
)  # fmt: skip
ENDS = ("", "!", "@\x00", " \n")
SIZE = 1_000
GROWTH = 4
LEAST_SECONDS = 0.01
"""What any text of the larger size may take; one that is read once for each of its characters takes
longer."""


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Each compiled pattern of a module, once, by its name."""
    seen = set[int]()
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield from _of(importlib.import_module(found.name), seen)


def _of(module: ModuleType, seen: set[int]) -> Iterator[tuple[str, re.Pattern[Any]]]:
    for name, value in [*vars(module).items()]:
        parts = value if isinstance(value, list | tuple) else [value]
        for part in [each for it in parts for each in (it if isinstance(it, tuple) else [it])]:
            found = getattr(part, "__self__", part)
            if isinstance(found, re.Pattern) and id(found) not in seen:
                seen.add(id(found))
                yield f"{module.__name__}.{name}", found


def calls_of(name: str) -> set[str]:
    """How the service applies the pattern of that name; ``search`` where that is not seen."""
    _, _, own = name.rpartition(".")
    calls = re.compile(rf"\b{own}\.(search|match|fullmatch|finditer|findall|sub|split)\b")
    found = {it[1] for text in SOURCES.values() for it in calls.finditer(text)}
    return found or {"search"}


def seconds(work: Callable[[], object]) -> float:
    """Of this thread's processor, the least of some tries."""
    tries = []
    for _ in range(3):
        start = time.thread_time()
        work()
        tries.append(time.thread_time() - start)
        if tries[-1] < LEAST_SECONDS:
            break
    return min(tries)


@cache
def texts(size: int) -> list[str]:
    return [(each * size)[:size] + end for each in FRAGMENTS for end in ENDS]


def assert_linear(work: Callable[[str], object]) -> None:
    gc.disable()
    try:
        for short, long in zip(texts(SIZE), texts(GROWTH * SIZE), strict=True):
            taken = seconds(lambda text=long: work(text))  # type: ignore[misc]
            if taken > LEAST_SECONDS:
                before = seconds(lambda text=short: work(text))  # type: ignore[misc]
                assert taken < 3 * GROWTH * before, (short[:40], short[-1:], before, taken)
    finally:
        gc.enable()


@every(("name", "pattern"), patterns(), ids=lambda it: str(it)[:60])
def test_a_pattern_reads_a_text_about_once(name: str, pattern: re.Pattern[Any]) -> None:
    for call in calls_of(name):
        apply = getattr(pattern, {"sub": "finditer"}.get(call, call))

        def work(text: str, apply: Callable[..., Any] = apply) -> None:
            found = apply(text.encode() if isinstance(pattern.pattern, bytes) else text)
            for _ in found if call in {"finditer", "sub"} else ():  # noqa: B023
                pass

        assert_linear(work)


def test_personal_data_is_looked_for_in_a_text_about_once() -> None:
    kinds = [it for it in PersonalData if it not in {PersonalData.NAME, PersonalData.PLACE}]
    assert_linear(find_patterns)
    assert_linear(
        lambda text: find_personal_data([text], kinds, english=True, recognizer=no_recognizer)
    )
