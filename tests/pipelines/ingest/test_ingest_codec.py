"""Results as JSON and back: the same value, or an error that says where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contracts import CameraMotion
from pipelines.codec import PART_CHARACTERS, CodecError, decode, from_json, list_parts, to_json
from pipelines.types import (
    AudioStream,
    AudioTrack,
    IngestResult,
    MediaInfo,
    PipelineWarning,
    Scene,
    Segment,
    VideoSource,
    VideoStream,
)
from tests.examples import examples
from tests.tables import every

SECONDS = st.floats(0, 90_000, allow_nan=False)
VIDEO = st.builds(VideoStream, sample_aspect=SECONDS, frame_rate=SECONDS)
MEDIA = st.builds(
    MediaInfo,
    duration_seconds=SECONDS,
    video=st.none() | VIDEO,
    audio=st.lists(st.builds(AudioStream), max_size=3).map(tuple),
)
SEGMENTS = st.lists(st.builds(Segment), max_size=3).map(tuple)
RESULTS = st.builds(
    IngestResult,
    media=MEDIA,
    video=st.none() | st.builds(VideoSource, stream=VIDEO, segments=SEGMENTS),
    tracks=st.lists(
        st.builds(AudioTrack, duration_seconds=SECONDS, offset_seconds=SECONDS), max_size=3
    ).map(tuple),
    warnings=st.lists(st.builds(PipelineWarning), max_size=2).map(tuple),
)


@settings(deadline=None, max_examples=examples(60))
@given(RESULTS)
def test_an_ingest_result_survives_a_text_of_json(result: IngestResult) -> None:
    assert from_json(IngestResult, json.loads(json.dumps(to_json(result)))) == result


@settings(deadline=None, max_examples=examples(60))
@given(st.builds(Scene, confidence=SECONDS))
def test_other_contracts_survive_too(value: Scene) -> None:
    assert from_json(Scene, json.loads(json.dumps(to_json(value)))) == value


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    colour: Colour
    inner: Inner | None
    pair: tuple[int, str]
    items: tuple[Inner, ...] = ()


OUTER = {"name": "a", "colour": "red", "inner": {"number": 1}, "pair": [1, "b"]}


def test_defaults_fill_what_is_left_out_and_whole_numbers_are_floats_where_wanted() -> None:
    value = from_json(Outer, {**OUTER, "items": [{"number": 2, "share": 1}]})

    assert value == Outer("a", Colour.RED, Inner(1), (1, "b"), (Inner(2, 1.0),))
    assert isinstance(value.items[0].share, float)
    assert value.colour is Colour.RED


@every(
    ("change", "where"),
    [
        ({"name": 1}, r"Outer\.name: .*valid string"),
        ({"name": None}, r"Outer\.name: .*valid string"),
        ({"colour": "blue"}, r"Outer\.colour: .*'red'"),
        ({"inner": {"number": "1"}}, r"Outer\.inner\.number: .*valid integer"),
        ({"inner": {"number": True}}, r"Outer\.inner\.number: .*valid integer"),
        ({"inner": {"number": 1, "share": "x"}}, r"Outer\.inner\.share: .*valid number"),
        ({"inner": {}}, r"Outer\.inner\.number: Field required"),
        ({"inner": []}, r"Outer\.inner: .*an object"),
        ({"items": [{"number": 1}, 5]}, r"Outer\.items\[1\]: .*an object"),
        ({"items": {}}, r"Outer\.items: .*valid array"),
        ({"inner": {"number": 1, "share": True}}, r"Outer\.inner\.share: .*valid number"),
        ({"inner": {"number": 1.5}}, r"Outer\.inner\.number: .*valid integer"),
        ({"pair": [1]}, r"Outer\.pair\[1\]: Field required"),
        ({"pair": [1, "b", 2]}, r"Outer\.pair: .*at most 2 items"),
        ({"surprise": 1}, r"Outer\.surprise: Unexpected"),
    ],
)
def test_json_of_another_shape_is_refused_with_the_place(
    change: dict[str, Any], where: str
) -> None:
    with pytest.raises(CodecError, match=where):
        from_json(Outer, {**OUTER, **change})


@every("value", [b"x", float("nan"), (float("inf"),), {1, 2}, object])
def test_values_without_a_json_form_are_refused(value: object) -> None:
    with pytest.raises(CodecError, match="has no JSON form"):
        to_json(value)


@every("text", [b"", b"{", b"{},{}", b"\xff", b'{"number": NaN}'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="Inner"):
        decode(Inner, text)


def test_enums_become_their_values() -> None:
    assert to_json((CameraMotion.PAN_LEFT,)) == ["pan_left"]


@every("separators", [(",", ":"), (", ", ": "), (",\n ", ": ")])
@every("count", [0, 1, 3, 9_000])
def test_a_long_list_is_divided_into_short_ones(count: int, separators: tuple[str, str]) -> None:
    whole = [{"index": index, "text": '"segments": [ ] } é'} for index in range(count)]
    text = f"""{{"a": {json.dumps(whole, separators=separators)}, "b": []}}"""
    parts = list(list_parts(text, text.index("[")))
    assert [each for part, _ in parts for each in json.loads(part)] == whole
    assert text[parts[-1][1] :] == ', "b": []}'
    assert max(len(part) for part, _ in parts) < PART_CHARACTERS + 100
    assert len(parts) >= len(text) // (PART_CHARACTERS + 100)


@every("text", ["[", "[1", '[{"a": }]', "[1, 2"])
def test_what_is_no_list_is_not_divided(text: str) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        list(list_parts(text))
