"""Targets: what clients write into requests, headers first."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import math
import time
import uuid
from datetime import UTC, datetime
from email.message import Message
from typing import Annotated
from urllib.parse import unquote, urlsplit

from fastapi import Request
from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers

from serve_app.api.authentication import client_address
from serve_app.api.idempotency import idempotency_key
from serve_app.api.parameters import (
    MAX_DEPTH,
    NUMBER,
    WHOLE_NUMBER,
    BadCursorError,
    Cursor,
    decode_cursor,
    encode_cursor,
    one_of,
    parse_json_object,
    require_plain_query,
)
from serve_app.crypto import BadSignatureError, Signer
from serve_app.errors import ApiError
from serve_app.exports.captions import attachment
from serve_app.exports.timeline import harmless
from serve_app.jobs.plans import MAX_UNKNOWN_FIELDS, unknown_field_warnings
from serve_app.jobs.schemas import CreateJobBody
from serve_app.observability.logs import without_secrets
from serve_app.settings import InvalidSettingsError, load_settings
from serve_app.uploads.tus import (
    ALGORITHMS,
    PATCH_TYPE,
    ContentTypeError,
    HeaderError,
    has_supported_version,
    parse_patch,
)
from tests.fuzzing.feeding import Feed, as_text

SECRET = b"a secret of the fuzzers, long enough"
ACCOUNT = uuid.UUID(int=7)
HOUR_SECONDS = 3_600
"""However long a starved process takes for one input, nothing that was just signed expires."""
TRUSTED = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))


def _headers(lines: list[bytes]) -> Headers:
    pairs = [line.partition(b":")[::2] for line in lines]
    return Headers(raw=[(name.strip().lower(), value.strip(b" \t")) for name, value in pairs])


def _request(headers: list[tuple[bytes, bytes]], query: bytes = b"", peer: str = "") -> Request:
    scope = {"type": "http", "headers": headers, "query_string": query, "client": (peer, 1)}
    return Request(scope)


def _require_refusal(error: ApiError, *statuses: int, param: str | None = None) -> None:
    assert error.status in statuses
    assert param in (None, error.param)
    json.dumps([error.message, error.param], ensure_ascii=False).encode()


def check_tus(data: bytes) -> None:
    """Headers of a PATCH are refused, or read as they would be written."""
    fields = _headers(Feed(data).lines(12))
    has_supported_version(fields)
    try:
        found = parse_patch(fields)
    except (HeaderError, ContentTypeError):
        return
    assert 0 <= found.offset_bytes < 10**16
    written = [f"content-type:{PATCH_TYPE}", f"upload-offset:{found.offset_bytes}"]
    if found.length_bytes is not None:
        assert 0 <= found.length_bytes < 10**16
        written.append(f"upload-length:{found.length_bytes}")
    if found.checksum is not None:
        name, digest = found.checksum.algorithm, found.checksum.digest
        assert len(digest) == ALGORITHMS[name]().digest_size
        written.append(f"upload-checksum:{name} {base64.b64encode(digest).decode()}")
    assert parse_patch(_headers([line.encode() for line in written])) == found


def check_cursor(data: bytes) -> None:
    """Text is refused, or is to the letter what was given out to this account.

    What guides the fuzzing sees what is compared, so it finds cursors that were given out.
    """
    feed = Feed(data)
    given_out = bool(feed.number(0, 1))
    if given_out:
        when = datetime.fromtimestamp(feed.number(0, 2**32 - 1), UTC)
        cursor = Cursor(when, uuid.UUID(bytes=feed.take(16).ljust(16, b"\0")))
        text = encode_cursor(cursor, secret=SECRET, account_id=ACCOUNT)
        assert decode_cursor(text, secret=SECRET, account_id=ACCOUNT) == cursor
        at, letter = feed.number(0, len(text) - 1), as_text(feed.take(1))
        changed = text[:at] + letter + text[at + 1 :]
    else:
        text, changed = "never given out", feed.rest().decode("latin-1")
    try:
        found = decode_cursor(changed, secret=SECRET, account_id=ACCOUNT)
    except BadCursorError:
        assert changed != text
    else:
        assert changed == encode_cursor(found, secret=SECRET, account_id=ACCOUNT)
        assert changed == text or not given_out


def check_signed_path(data: bytes) -> None:
    """A signed address opens itself and nothing that is written otherwise."""
    feed = Feed(data)
    signer, expires_at = Signer(SECRET), int(time.time()) + HOUR_SECONDS + feed.number(0, 2**31)
    path = f"/v1/{as_text(feed.line())}"
    signed = signer.sign_path("upload", path, expires_at=expires_at)
    expires, signature = signed.rsplit("?", 1)[1].removeprefix("expires=").split("&signature=")
    signer.check_path("upload", path, expires=expires, signature=signature)
    shown = [path, expires, signature]
    which = feed.number(0, 2)
    at, dropped = feed.number(0, len(shown[which])), feed.number(0, 1)
    text = feed.rest().decode("latin-1")
    changed = [*shown]
    changed[which] = shown[which][:at] + text + shown[which][at + dropped :]
    try:
        signer.check_path("upload", changed[0], expires=changed[1], signature=changed[2])
    except BadSignatureError:
        assert changed != shown
    else:
        assert changed == shown


def check_body(data: bytes) -> None:
    """A body is refused, or is an object that a database can keep; an idempotency key likewise."""
    feed = Feed(data)
    header = feed.line()
    request = _request([(b"idempotency-key", header)] if header else [])
    try:
        body = parse_json_object(feed.rest())
    except ApiError as error:
        _require_refusal(error, 400)
        return
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    assert "\\u0000" not in text.replace("\\\\", "")
    assert parse_json_object(text.encode()) == body
    assert _depth(body) <= MAX_DEPTH
    try:
        key = idempotency_key(request.headers.get("idempotency-key"), body)
    except ApiError as error:
        _require_refusal(error, 400, 422)
        return
    assert key is None or (1 <= len(key) <= 255 and key.isascii() and key.isprintable())
    with contextlib.suppress(ValidationError):
        _check_unknown(CreateJobBody.model_validate({"fileName": "a.mp4"} | body))


def _check_unknown(body: CreateJobBody) -> None:
    """What is said of unknown fields is bounded, can be kept, and names no field that there is."""
    warnings = unknown_field_warnings(body)
    assert len(warnings) <= MAX_UNKNOWN_FIELDS
    for warning in warnings:
        assert len(warning["param"]) <= 200
        assert warning["message"].isprintable()
        assert warning["param"] not in CreateJobBody.model_fields


def check_setting_address(data: bytes) -> None:
    """A setting's address is refused without its value, or is one that paths are put behind."""
    text = as_text(data)
    try:
        address = str(load_settings(public_url=text).public_url)
    except InvalidSettingsError as refused:
        said = str(refused)
        assert said == "VAS_PUBLIC_URL: Input should be like https://video.example.com."
        return
    parts = urlsplit(f"{address}/v1/api")
    assert parts.scheme in {"http", "https"}
    assert parts.hostname
    assert parts.path.endswith("/v1/api")
    assert (parts.query, parts.fragment, parts.username) == ("", "", None)
    assert load_settings(public_url=address).public_url == address


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, dict | list) else 1


def check_forwarded_for(data: bytes) -> None:
    """The client is the last hop that no trusted proxy vouches for; nothing else ever is."""
    feed = Feed(data)
    peer = ("10.0.0.1", "203.0.113.5", "fd00::1", "unknown")[feed.number(0, 3)]
    lines = feed.lines(4)
    request = _request([(b"x-forwarded-for", line) for line in lines], peer=peer)
    found = client_address(request, TRUSTED)
    hops = [hop.strip() for line in lines for hop in line.decode("latin-1").split(",")]
    expected = peer
    for hop in reversed([hop for hop in hops if hop]):
        if not _trusted(expected) or _parsed(hop) is None:
            break
        expected = hop
    assert found == expected


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _trusted(text: str) -> bool:
    address = _parsed(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address.packed[0] == 10
    return address is not None and address.packed[0] == 0xFD


_INTEGER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=-5, le=10**9), WHOLE_NUMBER])
_DECIMAL: TypeAdapter[float] = TypeAdapter(Annotated[float, Field(ge=-5, le=10**9), NUMBER])
_CHOICE: TypeAdapter[str] = TypeAdapter(Annotated[str, one_of(("json", "srt"))])


def check_queries(data: bytes) -> None:
    """A parameter is refused, or is within its bounds."""
    request = _request([], query=data[:2000].replace(b"\n", b"&"))
    for name in "nc":
        try:
            require_plain_query(request, [name])
        except ApiError as error:
            _require_refusal(error, 400, param=name)
            return
    number, choice = (request.query_params.get(name, "") for name in "nc")
    for form in (_INTEGER, _DECIMAL):
        with contextlib.suppress(ValidationError):
            value = form.validate_python(number)
            assert math.isfinite(value)
            assert -5 <= value <= 10**9
    with contextlib.suppress(ValidationError):
        assert _CHOICE.validate_python(choice) in {"json", "srt"}


def check_download_name(data: bytes) -> None:
    """A file name in Content-Disposition stays one parameter of one header."""
    name = "".join(c for c in as_text(data)[:255] if c >= " " and c != "\x7f")
    if not name.strip("./"):
        return
    header = attachment(name, "srt")
    assert header.isascii()
    assert header.isprintable()
    assert header.startswith('attachment; filename="')
    message = Message()
    message["Content-Disposition"] = header
    assert message.get_content_disposition() == "attachment"
    plain = header.removeprefix('attachment; filename="').partition('"')[0]
    assert plain.endswith(".srt")
    rest = header.removeprefix(f'attachment; filename="{plain}"')
    assert rest == "" or (rest.startswith("; filename*=UTF-8''") and ";" not in rest[1:])
    assert not {"\\", "%", "/"} & set(plain) or "/" in name
    assert rest == "" or unquote(rest.partition("''")[2]).endswith(".srt")


def check_csv_cell(data: bytes) -> None:
    """No cell, nor a part of it behind a separator, begins like a formula; text is only added."""
    cell = as_text(data)
    shown = harmless(cell)
    assert shown.replace("'", "") == cell.replace("'", "")
    for part in shown.split(";"):
        assert not part.lstrip(" \u00a0\ufeff").startswith(("=", "+", "-", "@", "＝", "＋", "－"))
    assert not shown.startswith(("\t", "\r", "\n"))
    assert len(shown) <= 2 * len(cell) + 1


_PLANTED = tuple(
    prefix + base64.urlsafe_b64encode(hashlib.sha256(prefix.encode()).digest()).decode()[:-1]
    for prefix in ("vas_live_", "vas_sess_", "whsec_")
)


def check_redaction(data: bytes) -> None:
    """A key of ours never gets through, whatever stands around it."""
    feed = Feed(data)
    secret = _PLANTED[feed.number(0, len(_PLANTED) - 1)]
    before = as_text(feed.line())
    text = f"{before} {secret}\n{as_text(feed.rest())}"
    shown = without_secrets(text)
    assert secret.rsplit("_", 1)[1] not in shown
