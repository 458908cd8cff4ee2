"""Stored outputs: named by all that they depend on, computed once, read strictly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipelines.codec import Artifact, CodecError, Made, digest
from storage.objects.folder import FolderStore
from tests.tables import every


@dataclass(frozen=True, slots=True)
class Shape:
    """A dataclass that an output depends on, or is."""

    sides: int
    name: bytes = b""


SHAPES = Artifact.of(tuple[int, ...], "shapes", version=1)


@every(
    "other",
    [
        pytest.param(SHAPES.key("job", Shape(4), "red"), id="another field"),
        pytest.param(SHAPES.key("job", Shape(3, b"\x00"), "red"), id="other bytes"),
        pytest.param(SHAPES.key("job", Shape(3), "blue"), id="another input"),
        pytest.param(SHAPES.key("job", Shape(3), "red", None), id="an input more"),
        pytest.param(replace(SHAPES, version=2).key("job", Shape(3), "red"), id="another version"),
        pytest.param(SHAPES.key("other", Shape(3), "red"), id="another job"),
    ],
)
def test_an_output_of_anything_else_has_another_key(other: str) -> None:
    assert SHAPES.key("job", Shape(3), "red") != other


def test_a_key_is_the_same_everywhere_and_shows_where_it_belongs() -> None:
    assert SHAPES.key("job", Shape(3), position=7).startswith("job/shapes/00007-")
    assert digest(Shape(3, b"a"), {"b": 1, "a": None}) == digest(
        Shape(3, b"a"), {"a": None, "b": 1}
    )
    assert digest("fixed", 1.5, (1, 2)) == "03ce7614a2649b1d0f07"


def test_an_output_is_computed_once(tmp_path: Path) -> None:
    store, calls = FolderStore(tmp_path), iter([(1, 2)])
    assert SHAPES.make(store, "one", lambda: next(calls)) == Made("one", computed=True)
    assert SHAPES.make(store, "one", lambda: next(calls)) == Made("one", computed=False)
    assert SHAPES.load(store, "one") == (1, 2)
    store.write_bytes("one", b'["1"]')
    with pytest.raises(CodecError):
        SHAPES.load(store, "one")
