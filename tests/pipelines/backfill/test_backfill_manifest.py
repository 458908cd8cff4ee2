"""What a manifest may say, and what is said of rows that are no items."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.backfill import manifest
from pipelines.backfill.manifest import Item, Manifest, ManifestError, read_manifest
from pipelines.collection import BucketAccess
from pipelines.types import ChannelUse
from storage.objects.s3 import client_of
from storage.types import ProcessingMode
from tests.storage.s3_server import place_at
from tests.tables import every

ROWS: list[dict[str, Any]] = [
    {"id": "a", "source": "one.mp4", "mode": "vision", "keyterms": ["Pemberley", "Bennet"]},
    {
        "source": "s3://bucket/two.mov",
        "language": "pt-BR",
        "speakers_expected": 2,
        "channels": "mixed",
        "metadata": {"asset": 5},
    },
    {"source": "https://example.com/x/three%20four.mkv?sig=1", "name": "three.mkv"},
]


def written(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """The rows as a manifest of a kind."""
    path = folder / f"manifest.{kind}"
    columns = sorted({name for row in rows for name in row})
    if kind == "parquet":
        plain = [{name: _as_json(row.get(name)) for name in columns} for row in rows]
        pq.write_table(pa.Table.from_pylist(plain), path)
    elif kind == "csv":
        lines = [",".join(columns)]
        lines += [",".join(_quoted(row.get(name)) for name in columns) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8-sig")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def _as_json(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _quoted(value: object) -> str:
    if value is None:
        return ""
    text = ";".join(value) if isinstance(value, list) else _as_json(value)
    return '"' + str(text).replace('"', '""') + '"'


def read(path: Path, **options: Any) -> Manifest:
    return read_manifest(str(path), BucketAccess(), **options)


@every("kind", ["csv", "jsonl", "ndjson", "parquet"])
def test_a_manifest_says_the_same_in_every_format(tmp_path: Path, kind: str) -> None:
    manifest = read(written(tmp_path, kind, ROWS))
    first, second, third = manifest.items
    assert not manifest.errors
    assert first == Item(
        id="a",
        row=1,
        source=str(tmp_path / "one.mp4"),
        name="one.mp4",
        mode=ProcessingMode.VISION,
        keyterms=("Pemberley", "Bennet"),
    )
    assert (second.source, second.name) == ("s3://bucket/two.mov", "two.mov")
    assert (second.language, second.speakers_expected) == ("pt-BR", 2)
    assert (first.channels, second.channels) == (ChannelUse.AUTO, ChannelUse.MIXED)
    assert json.loads(second.metadata) == {"asset": 5}
    assert (third.name, third.mode, third.row) == ("three.mkv", ProcessingMode.ALL, 3)


@every(
    ("row", "column", "message"),
    [
        pytest.param({}, "source", "Field required", id="no source"),
        pytest.param({"source": "ftp://host/x"}, "source", "not ftp://", id="ftp"),
        pytest.param({"source": "s3://bucket"}, "source", "no object in it", id="bucket only"),
        pytest.param({"source": "https:///x"}, "source", "names no host", id="no host"),
        pytest.param(
            {"source": "x", "mode": "fast"}, "mode", "'all', 'transcript' or 'vision'", id="mode"
        ),
        pytest.param({"source": "x", "language": "e"}, "language", "match pattern", id="language"),
        pytest.param({"source": "x", "id": "a\nb"}, "id", "control character", id="id"),
        pytest.param({"source": "x", "name": ".."}, "name", "must name a file", id="name"),
        pytest.param({"source": "x", "keyterms": 5}, "keyterms", "valid tuple", id="keyterms"),
        pytest.param(
            {"source": "x", "keyterms": ["word"] * 101},
            "keyterms",
            "at most 100",
            id="many terms",
        ),
        pytest.param(
            {"source": "x", "speakers_expected": "two"},
            "speakers_expected",
            "valid integer",
            id="speakers",
        ),
        pytest.param(
            {"source": "x", "channels": "1"},
            "channels",
            "'auto', 'separate' or 'mixed'",
            id="channels",
        ),
        pytest.param({"source": "x", "metadata": [1]}, "metadata", "JSON object", id="metadata"),
        pytest.param(
            {"source": "x", "metadata": {"a": {}}}, "metadata", "a must be a string", id="nested"
        ),
        pytest.param({"source": "x", "provider": "ftp"}, "provider", "'gdrive' or", id="provider"),
        pytest.param(
            {"source": "x", "provider": "gdrive"}, "provider", "only http(s)", id="local share"
        ),
    ],
)
def test_a_bad_row_is_told_by_its_column_and_the_others_count(
    tmp_path: Path, row: dict[str, Any], column: str, message: str
) -> None:
    manifest = read(written(tmp_path, "jsonl", [{"source": "good.mp4"}, row]))
    [error] = manifest.errors
    assert (error.row, error.column) == (2, column)
    assert message in error.message
    assert [item.row for item in manifest.items] == [1]


def test_what_is_no_row_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text('{"source": "a"}\nnot json\n["a"]\n')
    assert [(error.row, error.column) for error in read(path).errors] == [(2, None), (3, None)]
    path = tmp_path / "manifest.csv"
    path.write_text("source,mode\na,all,surplus\nb,all\n")
    manifest = read(path)
    assert [error.message for error in manifest.errors] == [
        "The row has more fields than the header."
    ]
    assert len(manifest.items) == 1


def test_equal_rows_are_items_of_their_own_whatever_their_order(tmp_path: Path) -> None:
    rows = [{"source": "same.mp4"}, {"source": "other.mp4"}, {"source": "same.mp4"}]
    ids = {item.id for item in read(written(tmp_path, "jsonl", rows)).items}
    assert len(ids) == 3
    moved = [rows[1], {"source": "new.mp4"}, rows[0], rows[2]]
    assert ids < {item.id for item in read(written(tmp_path, "jsonl", moved)).items}


def test_rows_that_ask_for_something_else_have_other_ids(tmp_path: Path) -> None:
    rows = [{"source": "a.mp4", "mode": mode} for mode in ("all", "vision")]
    one, other = (item.id for item in read(written(tmp_path, "jsonl", rows)).items)
    assert one.removesuffix("-2") != other.removesuffix("-2")


def test_the_second_row_of_an_id_is_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "x", "source": "a"},
        {"id": "x", "source": "b"},
        {"id": 7, "source": "c"},
    ]
    manifest = read(written(tmp_path, "jsonl", rows))
    assert [item.id for item in manifest.items] == ["x", "7"]
    [error] = manifest.errors
    assert (error.column, error.message) == ("id", "The id 'x' is that of row 1 already.")


def test_every_file_below_a_folder_is_an_item(tmp_path: Path) -> None:
    for name in ("a.mp4", "deep/b.MOV", "deep/notes.txt", ".hidden/c.mp4", "out/items/d.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    everything = read(tmp_path, outside=f"{tmp_path}/out/")
    assert [item.name for item in everything.items] == ["a.mp4", "b.MOV", "notes.txt"]
    some = read(tmp_path, include=["deep/*.mov"], outside=f"{tmp_path}/out/")
    assert [item.name for item in some.items] == ["b.MOV"]


@every(
    ("name", "content", "message"),
    [
        pytest.param("missing.csv", None, "There is no manifest", id="missing"),
        pytest.param("empty", None, "There are no files below", id="no folder"),
        pytest.param("m.csv", b"path,mode\na,all\n", "no column `source`", id="no source column"),
        pytest.param("m.csv", b"source\n\xff\xfe\n", "not UTF-8", id="bytes"),
        pytest.param("m.csv", b'source\n"a\n', "not CSV", id="open quote"),
        pytest.param("m.parquet", b"PAR1 no", "not Parquet", id="no parquet"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError, match=message):
        read(tmp_path / name)


def test_a_row_without_end_is_refused_by_its_line_and_never_whole_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MOST_ROW_BYTES", 10_000)
    head = {"csv": "source,name\na.mp4,\n", "jsonl": '{"source": "a.mp4"}\n'}
    for kind, begin, row in (
        ("csv", head["csv"], "b.mp4" + "x" * 40_000_000),
        ("csv", head["csv"], '"b.mp4' + "x\n" * 20_000_000),
        ("jsonl", head["jsonl"], '{"source": "' + "x" * 40_000_000 + '"}'),
    ):
        path = tmp_path / f"long.{kind}"
        path.write_text(begin + row)
        tracemalloc.start()
        with pytest.raises(ManifestError, match=r"more than 10000 bytes, at line \d+\."):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()


def test_rows_of_parquet_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST_ROW_BYTES", 100)
    rows = [{"source": "a.mp4" + "x" * 10_000} for _ in range(10)]
    with pytest.raises(ManifestError, match=r"more than 100 bytes, at row 1 or soon after\."):
        read(written(tmp_path, "parquet", rows))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_manifest_is_bounded_in_bytes_and_in_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = written(tmp_path, kind, ROWS)
    monkeypatch.setattr(manifest, "MOST_ROWS", 2)
    with pytest.raises(ManifestError, match="more than 2 items"):
        read(path)
    monkeypatch.setattr(manifest, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(ManifestError, match="larger than"):
        read(path)


def test_a_manifest_in_a_bucket_is_bounded_too(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_at(endpoint)
    client_of(place).create_bucket(Bucket=place.bucket)
    body = b'{"source": "https://example.com/a.mp4"}'
    client_of(place).put_object(Bucket=place.bucket, Key="list.jsonl", Body=body)
    access = BucketAccess(endpoint, None, place.access_key_id, place.secret_access_key)
    address = f"s3://{place.bucket}/list.jsonl"
    assert len(read_manifest(address, access).items) == 1
    monkeypatch.setattr(manifest, "MOST_BYTES", len(body) - 1)
    with pytest.raises(ManifestError, match="larger than"):
        read_manifest(address, access)
