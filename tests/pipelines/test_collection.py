"""What holds for a file of a collection, whichever door it comes in by."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipelines import collection
from pipelines.collection import BucketAccess, MemberProblem, PlaceError, place_at
from storage.types import Member
from tests.tables import every


@every(
    ("key", "patterns", "chosen"),
    [
        ("deep/a.MOV", [], True),
        ("deep/a.MOV", ["*.mp4", "*.mov"], True),
        ("deep/a.mov", ["deep/*.MOV"], True),
        ("deep/a.mov", ["/*.mov"], False),
        ("deep/notes.txt", ["*.mov"], False),
        ("a.mp4.txt", ["*.mp4"], False),
    ],
)
def test_a_pattern_is_one_of_names_or_with_a_slash_of_keys(
    key: str, patterns: list[str], chosen: bool
) -> None:
    assert collection.is_chosen(key, patterns) == chosen


@every("key", [".hidden.mp4", "~a.mp4", "deep/.trash/a.mp4", "a.mp4.part", "a.PARTIAL",
               "b.mp4.crdownload", "c.download", "d.filepart", "x.tmp", "folder/"])  # fmt: skip
def test_what_is_not_whole_yet_or_hidden_is_passed_over(key: str) -> None:
    assert collection.is_hidden(key)


@every("key", ["a.mp4", "deep/a.mp4", "part.mp4", "a~.mp4", "tmp/a.mp4", "a.b.mp4"])
def test_an_ordinary_name_is_not_hidden(key: str) -> None:
    assert not collection.is_hidden(key)


@every(
    ("key", "size_bytes", "problem"),
    [
        ("a.mp4", 1, None),
        ("a.mp4", 0, MemberProblem.EMPTY),
        ("folder/", 0, MemberProblem.FOLDER),
        ("old_$folder$", 0, MemberProblem.FOLDER),
        ("n\0ul.mp4", 1, MemberProblem.KEY),
        ("x\udcff.mp4", 1, MemberProblem.KEY),
    ],
)
def test_what_is_nothing_to_analyse_has_a_reason(
    key: str, size_bytes: int, problem: MemberProblem | None
) -> None:
    assert collection.problem_of(Member(key, size_bytes)) is problem


NOW = datetime(2024, 5, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


@every(
    ("other", "is_another"),
    [
        (Member("a", 5, "tag", NOW), False),
        (Member("a", 5, "tag", LATER), False),  # the same was put there again
        (Member("a", 6, "tag", NOW), True),
        (Member("a", 5, "other", NOW), True),
    ],
)
def test_another_tag_or_size_is_another_file(other: Member, is_another: bool) -> None:
    assert (Member("a", 5, "tag", NOW).version != other.version) is is_another


def test_without_tags_another_time_is_another_file() -> None:
    assert Member("a", 5, None, NOW).version == Member("a", 5, None, NOW).version
    assert Member("a", 5, None, NOW).version != Member("a", 5, None, LATER).version


def test_a_file_on_a_disk_is_another_when_it_was_written_or_is_a_link(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    first = collection.member_at(path)
    assert (first.key, first.size_bytes, collection.problem_of(first)) == ("a.mp4", 3, None)
    os.utime(path, ns=(1, 1))
    assert collection.member_at(path).version != first.version
    path.rename(tmp_path / "b.mp4")
    path.symlink_to(tmp_path / "b.mp4")
    assert collection.problem_of(collection.member_at(path)) is MemberProblem.EMPTY


def test_pauses_grow_up_to_a_bound() -> None:
    pauses = [collection.pause_seconds(failures) for failures in (1, 2, 3, 8, 9, 5000)]
    assert pauses == [2, 4, 8, 256, 300, 300]


@every(("status", "passes"), [(429, True), (500, True), (503, True), (402, False), (404, False)])
def test_only_what_may_pass_is_tried_again(status: int, passes: bool) -> None:
    assert collection.may_pass(status) is passes


@every(
    ("address", "name"),
    [
        ("https://example.com/x/three%20four.mkv?sig=1", "three four.mkv"),
        ("HTTP://example.com/", "video"),
        ("https://example.com/a%2Fb.mp4", "b.mp4"),
        ("s3://bucket/three%20four.mkv", "three%20four.mkv"),
        ("/media/line\nbreak.mp4", "linebreak.mp4"),
        ("/media/..", "video"),
        (f"/{'x' * 300}.mp4", f"{'x' * 251}.mp4"),
    ],
)
def test_a_file_is_called_what_its_address_ends_with(address: str, name: str) -> None:
    assert collection.name_in(address) == name


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    place = place_at(str(tmp_path), BucketAccess())
    with place.locked(), pytest.raises(PlaceError, match="Another backfill"), place.locked():
        pass
    with place.locked():
        pass
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with (
        pytest.raises(OSError, match="remove it"),
        collection.held_alone(tmp_path / "lock", "held"),
    ):
        pass
    assert not (tmp_path / "target").exists()
