"""The headers of tus, read to the letter, whatever a client sends."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from serve_app.uploads.tus import (
    ALGORITHMS,
    PATCH_TYPE,
    Checksum,
    ContentTypeError,
    HeaderError,
    Patch,
    has_supported_version,
    parse_checksum,
    parse_patch,
    parse_size,
)
from tests.tables import every


def headers(*fields: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.lower().encode(), value.encode("latin-1")) for name, value in fields])


def sha1(content: bytes) -> str:
    return base64.b64encode(hashlib.sha1(content).digest()).decode()  # noqa: S324


TYPE = ("Content-Type", PATCH_TYPE)


def test_a_patch_says_where_it_begins() -> None:
    assert parse_patch(headers(TYPE, ("Upload-Offset", "70"))) == Patch(70, None, None)


def test_a_patch_may_tell_the_length_and_a_checksum() -> None:
    found = parse_patch(
        headers(
            TYPE,
            ("Upload-Offset", "0"),
            ("Upload-Length", "11"),
            ("Upload-Checksum", f"sha1 {sha1(b'hello world')}"),
        )
    )
    assert found == Patch(0, 11, Checksum("sha1", hashlib.sha1(b"hello world").digest()))  # noqa: S324


@every(
    "text",
    ["", "-1", "+1", "1.0", "1e3", " 1", "1 ", "0x10", "٣", "²", "1_000", "9" * 17, "1,1", "\0"],
)
def test_a_size_is_plain_decimal_digits(text: str) -> None:
    with pytest.raises(HeaderError, match="Upload-Offset"):
        parse_size("Upload-Offset", text)


@every(
    "value",
    [
        pytest.param("", id="nothing"),
        pytest.param("sha1", id="no digest"),
        pytest.param("sha1 ", id="empty digest"),
        pytest.param(f"sha1  {sha1(b'')}", id="two spaces"),
        pytest.param(f"SHA1 {sha1(b'')}", id="capitals"),
        pytest.param(f"crc32 {sha1(b'')}", id="unknown algorithm"),
        pytest.param(f"sha256 {sha1(b'')}", id="digest of another length"),
        pytest.param("sha1 " + hashlib.sha1(b"").hexdigest(), id="hexadecimal"),  # noqa: S324
        pytest.param(f"sha1 {sha1(b'')[:-1]}", id="padding missing"),
        pytest.param(f"sha1 {sha1(b'')} x", id="more behind it"),
        pytest.param("sha1 äöü", id="not ASCII"),
    ],
)
def test_a_malformed_checksum_is_refused(value: str) -> None:
    with pytest.raises(HeaderError, match="Upload-Checksum"):
        parse_checksum(value)


@every("name", ["Upload-Offset", "Upload-Length", "Upload-Checksum"])
def test_a_header_that_stands_twice_is_refused(name: str) -> None:
    fields = [TYPE, ("Upload-Offset", "0"), (name, "0"), (name, "0")]
    with pytest.raises(HeaderError, match="more than once"):
        parse_patch(headers(*fields))


@every(
    "content_type",
    [None, "", "application/octet-stream", "application/offset+octet-stream; charset=utf-8"],
)
def test_only_one_content_type_will_do(content_type: str | None) -> None:
    fields = [] if content_type is None else [("Content-Type", content_type)]
    with pytest.raises(ContentTypeError):
        parse_patch(headers(*fields, ("Upload-Offset", "0")))


@every(
    ("values", "ours"),
    [(["1.0.0"], True), ([], False), (["1.0"], False), (["2.0.0"], False), (["1.0.0"] * 2, False)],
)
def test_one_version_is_spoken(values: list[str], ours: bool) -> None:
    assert has_supported_version(headers(*[("Tus-Resumable", v) for v in values])) is ours


LATIN = st.text(st.characters(max_codepoint=255), max_size=40)


@given(LATIN, LATIN, LATIN)
def test_whatever_the_headers_hold_the_answer_is_a_patch_or_a_refusal(
    offset: str, length: str, checksum: str
) -> None:
    fields = headers(
        TYPE, ("Upload-Offset", offset), ("Upload-Length", length), ("Upload-Checksum", checksum)
    )
    try:
        found = parse_patch(fields)
    except HeaderError:
        return
    assert found.offset_bytes == int(offset)
    assert found.length_bytes == int(length)
    assert found.checksum is not None


@given(st.sampled_from(sorted(ALGORITHMS)), st.binary(max_size=200))
def test_every_algorithm_s_checksum_is_read_as_it_was_written(name: str, content: bytes) -> None:
    hasher = ALGORITHMS[name]()
    hasher.update(content)
    value = f"{name} {base64.b64encode(hasher.digest()).decode()}"
    assert parse_checksum(value) == Checksum(name, hasher.digest())


@given(st.integers(min_value=0, max_value=10**16 - 1), st.integers(min_value=0, max_value=3))
def test_every_size_is_read_as_it_was_written(size: int, zeros: int) -> None:
    text = "0" * zeros + str(size)
    if len(text) <= 16:
        assert parse_size("Upload-Length", text) == size
