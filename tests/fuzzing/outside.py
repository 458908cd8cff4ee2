"""Targets: what comes from outside through other doors: media, addresses, servers, manifests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import math
import os
import re
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from pipelines.backfill.manifest import ManifestError, read_manifest
from pipelines.codec import from_json, to_json
from pipelines.collection import BucketAccess
from pipelines.ingest.headers import wav_labels
from pipelines.ingest.timecode import WavLabels, from_labels, parse_timecode
from pipelines.net.addresses import (
    MAX_URL_LENGTH,
    ParsedUrl,
    Provider,
    UrlError,
    check_callback_url,
    check_redirect,
    check_url_text,
    direct_download_url,
    is_internal_name,
    is_public_address,
)
from pipelines.net.fetch import (
    content_range,
    content_type,
    declared_bytes,
    file_name_hint,
    retry_after_seconds,
    validator,
)
from pipelines.speech.caption_rules import CUE_MAX_MS
from pipelines.speech.captions import to_srt, to_txt, to_vtt
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord
from serve_app.webhooks.signing import TOLERANCE_SECONDS, VerificationError, signature, verify
from tests.fuzzing.feeding import Feed, as_text


@contextlib.contextmanager
def _file(content: bytes, suffix: str) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(suffix)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        yield Path(name)
    finally:
        Path(name).unlink()


def check_ranges(data: bytes) -> None:
    """What a server says of a download is read as it would be written, or not at all."""
    feed = Feed(data)
    names = ("content-range", "content-length", "content-disposition", "content-type", "etag",
             "retry-after")  # fmt: skip
    headers = httpx.Headers([(name.encode(), feed.line()) for name in names])
    found = content_range(headers)
    if found is not None:
        assert 0 <= found.first <= found.last < 10**18
        assert found.total_bytes is None or found.last < found.total_bytes
        total = "*" if found.total_bytes is None else found.total_bytes
        again = httpx.Headers({"content-range": f"bytes {found.first}-{found.last}/{total}"})
        assert content_range(again) == found
    for number in (declared_bytes(headers), retry_after_seconds(headers)):
        assert number is None or (math.isfinite(number) and 0 <= number < 10**18)
    tag = validator(headers)
    assert tag is None or (tag.startswith('"') and tag.endswith('"') and len(tag) >= 2)
    assert len(content_type(headers) or "") <= 255
    name = file_name_hint(headers, "/" + as_text(feed.rest()))
    if name is not None:
        assert 1 <= len(name) <= 255
        assert name.isprintable()
        assert name not in {".", ".."}
        assert not {"/", "\\"} & set(name)


# --- captions ---

_ENDED = re.compile(r"\r\n|\r|\n")
_TIME = r"(\d{2,}):([0-5]\d):([0-5]\d)[,.](\d{3})"
_TIMING = re.compile(f"{_TIME} --> {_TIME}")


@dataclass(frozen=True, slots=True)
class Shown:
    """A cue as a player would read it."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def _segments(feed: Feed) -> tuple[list[TranscriptSegment], list[Speaker]]:
    segments, now = [], feed.number(0, 400_000_000)
    for index in range(feed.number(0, 4)):
        words = []
        for text in as_text(feed.line()).split("\x1e")[:40]:
            # Times of words come in order; they may last no time, or overlap the next.
            now += feed.number(0, 3000)
            words.append(TranscriptWord(text, now, now + feed.number(0, 9000), 0.5, None))
        joined, end_ms = " ".join(w.text for w in words), max(w.end_ms for w in words)
        speaker = ("s0", "s1", None)[feed.number(0, 2)]
        segments.append(
            TranscriptSegment(index, words[0].start_ms, end_ms, joined, speaker, 0.5, tuple(words))
        )
    label = as_text(feed.line()) or "Speaker 1"
    return segments, [Speaker("s0", label, 1.0), Speaker("s1", "Speaker 2", 1.0)]


def _cues(text: str, *, numbered: bool) -> list[Shown]:
    """Cues of a caption file, read strictly: blocks between blank lines."""
    blocks = [block for block in text.split("\n\n") if block.strip("\n")]
    found = []
    for number, block in enumerate(blocks, start=1):
        lines = _ENDED.split(block.strip("\n"))
        if numbered:
            assert lines.pop(0) == str(number)
        timing = _TIMING.fullmatch(lines.pop(0))
        assert timing is not None
        hours, minutes, seconds, millis, *end = map(int, timing.groups())
        start_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis
        end_ms = ((end[0] * 60 + end[1]) * 60 + end[2]) * 1000 + end[3]
        found.append(Shown(start_ms, end_ms, tuple(lines)))
    return found


def check_captions(data: bytes) -> None:
    """Whatever was said, a player reads the cues that were meant, in order, and no other."""
    segments, speakers = _segments(Feed(data))
    srt = _cues(to_srt(segments), numbered=True)
    head, _, body = to_vtt(segments, speakers).partition("\n\n")
    assert head == "WEBVTT"
    vtt = _cues(body, numbered=False)
    assert [(cue.start_ms, cue.end_ms) for cue in srt] == [(c.start_ms, c.end_ms) for c in vtt]
    before_ms = 0
    for cue in (*srt, *vtt):
        assert 1 <= len(cue.lines) <= 2
        assert not any("-->" in line or not line.strip() for line in cue.lines)
    for cue in srt:
        assert before_ms <= cue.start_ms < cue.end_ms <= cue.start_ms + CUE_MAX_MS
        before_ms = cue.end_ms
    for cue in vtt:
        assert re.fullmatch(r"(<v [^<>\r\n]+>)?[^<>]*", "\n".join(cue.lines))
    written = "".join(w.text for s in segments for w in s.words)
    said = "".join(line for cue in srt for line in cue.lines).replace("—>", "-->")
    assert _bare(said) == _bare(written).replace("—>", "-->")
    paragraphs = to_txt(segments, speakers).splitlines()
    assert len([line for line in paragraphs if line]) <= len(segments)


def _bare(text: str) -> str:
    # A word joiner keeps what looks like a tag from being one.
    controls = [
        0x2060,
        *range(32),
        *range(127, 160),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ]
    return "".join(text.split()).translate(dict.fromkeys(controls))


# --- WAV labels ---


def wave_of(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
        for name, content in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def check_wav_labels(data: bytes) -> None:
    """A file that nobody vouches for has labels that fit their type, and say sensible times."""
    feed = Feed(data)
    kind = feed.number(0, 2)
    if kind == 0:
        content = feed.rest()
    elif kind == 1:
        content = wave_of((b"fmt ", feed.take(16)), (b"bext", feed.rest()))
    else:
        content = wave_of((b"fmt ", feed.take(16)), (b"iXML", feed.rest()))
    with _file(content, ".wav") as path:
        labels = from_json(WavLabels, json.loads(json.dumps(wav_labels(path))))
    for channel, name in labels.channel_names:
        assert channel >= -1
        assert len(name) <= 100
        assert not re.search(r"[\x00-\x1f\x7f]", name)
        name.encode()
    moment = from_labels(labels)
    if moment is not None:
        assert 0 <= moment.seconds < 2 * moment.day_seconds <= 2 * 86_487
    parse_timecode(labels.timecode_rate, 25.0)


# --- addresses ---

_EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0), (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80), (ipaddress.IPv6Network("::/96"), 0),
)  # fmt: skip
"""IPv6 networks whose addresses carry an IPv4 address, and how far from their end."""


def check_addresses(data: bytes) -> None:
    """What is public to us is so to Python's own tables, and carries no private address inside."""
    if len(data) not in (4, 16):
        data = data[:16].ljust(16, b"\0") if len(data) > 4 else data.ljust(4, b"\0")
    address = ipaddress.ip_address(data)
    public = is_public_address(address)
    assert public == is_public_address(str(address))
    if not public:
        return
    assert address.is_global
    kinds = ("multicast", "reserved", "link_local", "loopback", "unspecified", "private")
    assert not [kind for kind in kinds if getattr(address, f"is_{kind}")]
    if isinstance(address, ipaddress.IPv6Address):
        assert address.ipv4_mapped is None
        assert address.teredo is None
        assert address.sixtofour is None
        assert not any(address in network for network, _ in _EMBEDDING)
        assert (int(address) >> 32) & 0xFDFF_FFFF != 0x5EFE


def check_urls(data: bytes) -> None:
    """A URL that passes is the same to everybody: us again, httpx, urllib, the C library."""
    feed = Feed(data)
    base, location = as_text(feed.line()), as_text(feed.rest())
    for read in (check_url_text, check_callback_url):
        with contextlib.suppress(UrlError):
            _check_parsed(read(base))
    with contextlib.suppress(UrlError):
        parsed = check_url_text(base)
        _check_parsed(check_redirect(parsed, location))
    for provider in Provider:
        with contextlib.suppress(UrlError):
            check_url_text(direct_download_url(check_url_text(base).url, provider))


def _check_parsed(parsed: ParsedUrl) -> None:
    assert parsed.scheme in ("http", "https")
    assert parsed.url.isascii()
    assert not re.search(r"[\x00-\x20\x7f\\#]", parsed.url)
    if len(parsed.url) > MAX_URL_LENGTH:
        return  # percent-encoding has made it too long to be read again
    assert check_url_text(parsed.url) == parsed
    theirs = httpx.URL(parsed.url)
    assert theirs.raw_host.decode() == parsed.host  # ``host`` is that of readers, in Unicode
    assert (theirs.port or {"http": 80, "https": 443}[theirs.scheme]) == parsed.port
    split = urlsplit(parsed.url)
    assert split.hostname == parsed.host
    assert split.username is None
    if parsed.address is not None:
        assert is_public_address(parsed.address)
    else:
        assert not is_internal_name(parsed.host)
        with contextlib.suppress(OSError):
            raise AssertionError(socket.inet_ntoa(socket.inet_aton(parsed.host)))


# --- webhooks ---

SIGNING_SECRETS = ("whsec_" + base64.b64encode(b"a" * 24).decode(),
                   "whsec_" + base64.b64encode(b"b" * 24).decode())  # fmt: skip
NOW_SECONDS = 1_700_000_000


def check_webhook_signature(data: bytes) -> None:
    """Believed is exactly what one of the secrets signed within five minutes."""
    feed = Feed(data)
    stamp, identity, entries = feed.text(), feed.text(), feed.text()
    body, forge = feed.rest(), False
    if entries.startswith("sign"):
        # Sign what the header says, so that the way through is walked too.
        forge = stamp.isascii() and stamp.isdigit() and len(stamp) < 12
        if forge:
            entries = f"v1,x {signature(SIGNING_SECRETS[1], identity, int(stamp), body)}"
    headers = {"webhook-id": identity, "webhook-timestamp": stamp, "webhook-signature": entries}
    try:
        verify(SIGNING_SECRETS, headers, body, float(NOW_SECONDS))
    except VerificationError:
        believed = False
    else:
        believed = True
    assert believed == _fits(identity, stamp, entries, body)


def _fits(identity: str, stamp: str, entries: str, body: bytes) -> bool:
    if not identity or not re.fullmatch("[0-9]{1,11}", stamp):
        return False
    signed = f"{identity}.{int(stamp)}.".encode() + body
    right = {
        "v1," + base64.b64encode(hmac.new(key * 24, signed, hashlib.sha256).digest()).decode()
        for key in (b"a", b"b")
    }
    recent = abs(int(stamp) - NOW_SECONDS) <= TOLERANCE_SECONDS
    return recent and bool(right & set(entries.split(" ")))


# --- manifests ---


def check_manifest(data: bytes) -> None:
    """Rows are items or errors, both can be stored, ids are unique, and always the same."""
    feed = Feed(data)
    suffix = (".csv", ".jsonl", ".parquet")[feed.number(0, 2)]
    with _file(feed.rest(), suffix) as path:
        try:
            found = read_manifest(str(path), BucketAccess())
        except ManifestError as error:
            str(error).encode()
            return
        assert read_manifest(str(path), BucketAccess()) == found
    ids = [item.id for item in found.items]
    assert len(set(ids)) == len(ids)
    for item in found.items:
        assert 1 <= len(item.id) <= 200
        assert item.name not in {"", ".", ".."}
        assert "/" not in item.name
        assert not re.search(r"[\x00-\x1f\x7f]", item.id + item.name + item.source)
        assert isinstance(json.loads(item.metadata), dict)
        json.dumps(to_json(item), ensure_ascii=False).encode()
    for error_row in found.errors:
        json.dumps(to_json(error_row), ensure_ascii=False).encode()
