"""What is fuzzed: a plain function of bytes each, which raises only where an invariant is broken.

The functions lie in ``requests`` (what clients write) and ``outside`` (media, addresses, other
servers, manifests); here they have names, and inputs to begin with that reach far inside.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing import outside, requests

CORPUS = Path(__file__).parent / "corpus"

_SHA1 = base64.b64encode(hashlib.sha1(b"hello world", usedforsecurity=False).digest())
_IXML = (
    b"<BWFXML><SPEED><TIMECODE_RATE>30000/1001</TIMECODE_RATE><TIMECODE_FLAG>DF</TIMECODE_FLAG>"
    b"<TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI>0</TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI>"
    b"<TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO>48000</TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO>"
    b"<TIMESTAMP_SAMPLE_RATE>48000</TIMESTAMP_SAMPLE_RATE></SPEED><TRACK_LIST><TRACK>"
    b"<CHANNEL_INDEX>1</CHANNEL_INDEX><INTERLEAVE_INDEX>1</INTERLEAVE_INDEX><NAME>Boom</NAME>"
    b"</TRACK></TRACK_LIST></BWFXML>"
)
_FORM = (1).to_bytes(2, "little") * 2 + (48_000).to_bytes(4, "little") + bytes(8)
_BEXT = (
    b"sTRK1=Boom\r\nsTRK2=Lav\r\n".ljust(338, b"\0") + (48_000).to_bytes(8, "little") + bytes(256)
)


def _signed(identity: bytes, stamp: bytes, body: bytes) -> bytes:
    digest = hmac.new(b"a" * 24, identity + b"." + stamp + b"." + body, hashlib.sha256).digest()
    return stamp + b"\n" + identity + b"\nv1," + base64.b64encode(digest) + b"\n" + body


@dataclass(frozen=True, slots=True)
class Target:
    """A function to feed, and what to begin with."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


TARGETS: Mapping[str, Target] = {
    "tus": Target(
        requests.check_tus,
        (
            b"Content-Type: application/offset+octet-stream\nUpload-Offset: 0\nUpload-Length: 11\n"
            b"Tus-Resumable: 1.0.0\nUpload-Checksum: sha1 " + _SHA1,
            b"Content-Type:application/offset+octet-stream\nUpload-Offset:12\nUpload-Offset:12\n"
            b"Upload-Metadata: filename d29ybGQ=,is_confidential\nUpload-Defer-Length: 1",
        ),
    ),
    "ranges": Target(
        outside.check_ranges,
        (
            b"bytes 0-499/1234\n1234\n"
            b"attachment; filename=\"a.mp4\"; filename*=UTF-8''%e2%82%ac.mp4\n"
            b'video/mp4; charset="x"\n"abc"\n120\nfolder/clip.mp4?x=1',
            b'bytes 500-999/*\n-1\ninline; filename*0="a"; filename*1="b.mov"\n\nW/"weak"\n'
            b"Fri, 31 Dec 1999 23:59:59 GMT\n..%2f..%2fetc%2fpasswd",
        ),
    ),
    "cursor": Target(
        requests.check_cursor,
        (b"\1\0\x65\x53\xf1\0" + bytes(range(16)) + b"\x35A", b"\0AAAA_-=", b"\0" + b"A" * 54),
    ),
    "signed-path": Target(
        requests.check_signed_path,
        (
            b"\0\0\1\0uploads/7/media\n\1\1\0001",
            b"\0\0\1\0uploads/7/media\n\2\5\1a",
            b"\0\0\1\0a\n\0\3\0/../b",
            b"\0\0\1\0a\n\2\0\0",
        ),
    ),
    "body": Target(
        requests.check_body,
        (
            b'key-1\n{"fileName":"a.mp4","idempotencyKey":"key-1","metadata":{"a":1.5e3,"b":null}}',
            b'\n{"a":[[[{"b":"\\ud83d\\ude00"}]]],"c":-0.0,"d":1e400}',
            b'\n{"procesingMode":"vision","audioTracks":[{"url":"https://x/a","syncmode":1}]}',
        ),
    ),
    "setting-address": Target(
        requests.check_setting_address,
        (
            b"https://video.example.com/",
            b"javascript:alert(1)//x",
            b"http://[::1]:8000/a//",
            b"https://u:p@x",
        ),
    ),
    "forwarded-for": Target(
        requests.check_forwarded_for,
        (b"\x00203.0.113.9, 10.0.0.7", b"\2fd00::7,2001:db8::1%eth0\n ,10.1.1.1", b"\1 1.2.3.4"),
    ),
    "queries": Target(
        requests.check_queries, (b"n=12&c=json", b"n=1.5e3&c=srt&c=json", b"n=%2B1&n=2&c=%00")
    ),
    "download-name": Target(
        requests.check_download_name,
        ("Müller \"1\".mp4".encode(), b'a\\b;x="y".mov', b"...", b"%0d%0a"),
    ),
    "csv-cell": Target(requests.check_csv_cell, (b"=1+1", b"a;=1", b" +1;;\t@x", b"'=a")),
    "redaction": Target(
        requests.check_redaction,
        (
            b"\0Authorization: Bearer\nGET /u?expires=17&signature=0a1b2c&token=abc",
            b"\1key\npostgresql://vas:hunter2@db/vas password='a b' host=x",
            b"\2'whsec_\n?a-key=x&Sig=y://u:p@h",
        ),
    ),
    "captions": Target(
        outside.check_captions,
        (
            b"\0\0\0\0\2Hello\x1ethere,\x1eworld.\n" + bytes(12) + b"I\x1eam-->fine\n" + bytes(12),
            b"\0\0\0\0\1a\r\n\r\n1\r\n00:00:01,000\x1e--\x1e>\x1e<b>&amp;\n"
            + b"\1\1" * 9 + b"Ann\xe2\x80\xa8B",
        ),
    ),
    "wav-labels": Target(
        outside.check_wav_labels,
        (
            b"\2" + _FORM + _IXML,
            b"\1" + _FORM + _BEXT,
            b"\0" + outside.wave_of((b"fmt ", _FORM), (b"iXML", _IXML), (b"data", bytes(8))),
            b"\0RF64\xff\xff\xff\xffWAVEds64" + (28).to_bytes(4, "little") + bytes(28)
            + b"data\xff\xff\xff\xff",
            b"\2" + _FORM + b'<?xml version="1.0" encoding="UTF-16"?>'
            b'<!DOCTYPE x [<!ENTITY a "b">]><x/>',
        ),
    ),
    "addresses": Target(
        outside.check_addresses,
        (
            bytes([127, 0, 0, 1]), bytes([8, 8, 8, 8]), bytes([169, 254, 169, 254]),
            bytes.fromhex("20014860486000000000000000008888"),
            bytes.fromhex("00000000000000000000ffff7f000001"),
            bytes.fromhex("0064ff9b0000000000000000a9fea9fe"),
            bytes.fromhex("260000000000000000005efe0a000001"),
            bytes.fromhex("20027f00000100000000000000000000"),
        ),
    ),
    "urls": Target(
        outside.check_urls,
        (
            b"https://media.example.com:8443/a%20b/c.mp4?x=[1]&y=%zz#f\n../d e?f",
            b"http://0x7f.1/\n//169.254.169.254/latest",
            "https://ｅxample。com/ü\nhttp://①②⑦.0.0.1/".encode(),
            b"http://[2001:4860:4860::8888]:80/\nhttp://[::ffff:127.0.0.1]/",
            b"https://drive.google.com/file/d/1A2b3C4d5E6f7G8h9I0j/view?resourcekey=0-a\n",
            b"https://www.dropbox.com/scl/fi/a1/b.mp4?rlkey=x&dl=0\nhttp://a@b/",
        ),
    ),
    "webhook-signature": Target(
        outside.check_webhook_signature,
        (
            b"1700000000\nmsg_1\nsign\n{}",
            _signed(b"msg_1", b"1700000000", b'{"type":"job.completed"}'),
            _signed(b"msg_1", b"1699999000", b"{}"),
        ),
    ),
    "manifest": Target(
        outside.check_manifest,
        (
            b"\0id,source,name,mode,language,keyterms,speakers_expected,provider,metadata\n"
            b'1,s3://b/k.mov,a.mov,all,en,"a;b",2,,"{""x"":1}"\n,https://e.org/a.mp4,,,,,,gdrive,\n',
            b'\1{"id":"a","source":"/m/a.mp4","keyterms":["x"],"metadata":{"a":null}}\n'
            b'{"id":7,"source":"file:///m/%41.mp4"}\n{"source":"~/x.mp4"}\n{"id":"a","source":"b"}',
            b"\2PAR1" + bytes(40) + b"PAR1",
        ),
    ),
}  # fmt: skip
"""Name -> what to run."""


def regressions(name: str) -> list[Path]:
    """Inputs that once broke the target's invariants, kept to be tried again."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())
