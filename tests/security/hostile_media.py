"""Files that ask their reader for other files or for the network, and what would notice it.

Every attack names a *canary*, a file beside it with a token in its sound, and a *trap*, a
listener on loopback. Real ones of the kind: CVE-2016-1897/1898 (HLS with concat and subfile),
HLS inside AVI's GAB2 subtitles, QuickTime data references.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.pipelines.ingest.damaged_media import FTYP, box, element, matroska, track

TOKEN = b"CANARY-7f3a91c25e"
RATE_HZ = 16_000


class Trap:
    """A listener on loopback that counts who comes, and gives nothing."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.visits = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing alone would not wake a thread that waits in accept.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(120)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = self._server.accept()
                self.visits += 1
                visitor.close()


@dataclass(frozen=True, slots=True)
class Bait:
    """What an attack tries to reach."""

    canary: Path
    port: int

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.port}/secret.ts"

    @property
    def file(self) -> str:
        return f"file://{self.canary}"


PLAYLIST_NAMES = ("film.m3u8", "film.mp4")


@dataclass(frozen=True, slots=True)
class Attack:
    """How to make a file of it, and whether it is media that may be read for what it holds."""

    build: Callable[[Bait], bytes]
    names: tuple[str, ...] = PLAYLIST_NAMES
    is_media: bool = field(default=False)


def token_samples() -> bytes:
    """A second of 16-bit mono sound that is the token, over and over, padded to whole samples."""
    piece = TOKEN + bytes(len(TOKEN) % 2)
    return (piece * (2 * RATE_HZ // len(piece) + 1))[: 2 * RATE_HZ]


def wave(samples: bytes, *chunks: bytes) -> bytes:
    """A WAV file of 16-bit mono sound at RATE_HZ."""
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
    body = b"WAVE" + header + b"".join(chunks) + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


def playlist(*addresses: str, head: str = "") -> bytes:
    entries = "".join(f"#EXTINF:10,\n{address}\n" for address in addresses)
    return f"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n{head}{entries}#EXT-X-ENDLIST\n".encode()


def _key(address: str) -> str:
    return f'#EXT-X-KEY:METHOD=AES-128,URI="{address}",IV=0x{0:032x}\n'


def dash(bait: Bait) -> bytes:
    return f"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT10S">
<Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1">
<BaseURL>{bait.web}</BaseURL></Representation></AdaptationSet></Period></MPD>""".encode()


def svg(bait: Bait) -> bytes:
    return f"""<?xml version="1.0"?>
<!DOCTYPE svg [<!ENTITY secret SYSTEM "{bait.file}">]>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">
<image xlink:href="{bait.web}" width="9" height="9"/><text>&secret;</text></svg>""".encode()


def styled_subtitles(bait: Bait) -> bytes:
    return (
        "[Script Info]\nScriptType: v4.00+\n"
        f"[Events]\nDialogue: 0,0:00:00.00,0:00:09.00,,,0,0,0,,{{\\img({bait.file})}}x\n"
    ).encode()


def data_address(bait: Bait) -> bytes:
    """A playlist in a data address in a playlist."""
    inner = playlist(bait.web).hex()
    return playlist(f"data:application/x-mpegurl;hex,{inner}", "data:,x")


def avi_with_a_playlist_as_subtitles(bait: Bait) -> bytes:
    """GAB2: FFmpeg opens what an AVI's text stream holds with whatever demuxer fits it."""
    inner = playlist(bait.web, bait.file)
    text = b"GAB2\0" + struct.pack("<HI", 2, 2) + b"x\0" + struct.pack("<HI", 4, len(inner)) + inner
    sound = token_free_samples()
    streams = _avi_stream(
        b"auds", b"\0\0\0\0", struct.pack("<HHIIHH", 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
    )
    streams += _avi_stream(b"txts", b"\0\0\0\0", b"")
    head = _list(b"hdrl", _chunk(b"avih", struct.pack("<14I", *[40_000, 0, 0, 0x10, 25, 0, 2],
                                                      *[0] * 7)), streams)  # fmt: skip
    body = _list(b"movi", _chunk(b"00wb", sound), _chunk(b"01tx", text))
    content = b"AVI " + head + body
    return b"RIFF" + struct.pack("<I", len(content)) + content


def token_free_samples() -> bytes:
    """Half a second of a saw tooth."""
    return b"".join(struct.pack("<h", (n * 37) % 8000) for n in range(RATE_HZ // 2))


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def _list(kind: bytes, *contents: bytes) -> bytes:
    return _chunk(b"LIST", kind + b"".join(contents))


def _avi_stream(kind: bytes, handler: bytes, form: bytes) -> bytes:
    header = kind + handler + struct.pack("<IHHIIIIIIIIhhhh", *[0] * 4, *[2, 2 * RATE_HZ],
                                          *[0, RATE_HZ, 0, 0, 2], *[0] * 4)  # fmt: skip
    return _list(b"strl", _chunk(b"strh", header), _chunk(b"strf", form))


def movie_whose_sound_lies_in_another_file(bait: Bait) -> bytes:
    """A QuickTime alias record (``alis``) and an address (``url ``) in place of own samples."""
    return quicktime(_alias(str(bait.canary)))


def _alias(path: str) -> bytes:
    name = path.encode()
    body = bytes(4) + bytes(10) + bytes([1]) + b"V".ljust(27, b"\0") + bytes(12)
    body += bytes([len(name.rsplit(b"/", 1)[1])]) + name.rsplit(b"/", 1)[1].ljust(63, b"\0")
    body += bytes(16) + struct.pack(">HH", 1, 1) + bytes(16)
    body += struct.pack(">HH", 18, len(name)) + name + bytes(len(name) % 2)
    return box(b"alis", body + struct.pack(">HH", 0xFFFF, 0))


def quicktime(*references: bytes) -> bytes:
    """A second of 16-bit sound, all of it at offset 44 of whatever the first reference names."""
    rate = struct.pack(">I", RATE_HZ << 16)
    entry = box(b"sowt", bytes(6), struct.pack(">H", 1), bytes(8),
                struct.pack(">HHHH", 1, 16, 0, 0), rate)  # fmt: skip
    counted = struct.pack(">II", 0, 1)
    table = box(
        b"stbl",
        box(b"stsd", counted, entry),
        box(b"stts", counted, struct.pack(">II", RATE_HZ, 1)),
        box(b"stsc", counted, struct.pack(">III", 1, RATE_HZ, 1)),
        box(b"stsz", struct.pack(">III", 0, 2, RATE_HZ)),
        box(b"stco", counted, struct.pack(">I", 44)),
    )
    dref = box(b"dref", struct.pack(">II", 0, len(references)), *references)
    media = box(
        b"mdia",
        box(b"mdhd", struct.pack(">IIIIIHH", 0, 0, 0, RATE_HZ, RATE_HZ, 0, 0)),
        box(b"hdlr", bytes(8), b"soun", bytes(13)),
        box(b"minf", box(b"smhd", bytes(8)), box(b"dinf", dref), table),
    )
    header = struct.pack(">IIIII", 0, 0, 0, RATE_HZ, RATE_HZ) + bytes(80)
    heading = struct.pack(">IIIIII", 7, 0, 0, 1, 0, RATE_HZ) + bytes(60)
    return (
        box(b"ftyp", b"qt  \0\0\0\0qt  ")
        + box(b"moov", box(b"mvhd", header), box(b"trak", box(b"tkhd", heading), media))
        + box(b"mdat", token_free_samples())
    )


def reference_movie(bait: Bait) -> bytes:
    """``rmra``: a QuickTime file that only says where the film is."""
    where = box(
        b"rdrf", bytes(4), b"url ", struct.pack(">I", len(bait.web)), bait.web.encode() + b"\0"
    )
    return FTYP + box(b"moov", box(b"rmra", box(b"rmda", where)))


def matroska_with_attachments(bait: Bait) -> bytes:
    """Sound, a font and a playlist as attachments, and links to segments in other files."""
    attached = [
        element(
            "61a7",
            element("466e", f"../../{name}".encode()),
            element("4660", kind),
            element("465c", playlist(bait.web, bait.file)),
            element("46ae", bytes([number])),
        )
        for number, (name, kind) in enumerate(
            [("a.ttf", b"application/x-truetype-font"), ("b.m3u8", b"application/x-mpegurl")], 1
        )
    ]
    info = element(
        "1549a966",
        element("3eb923", bytes(range(16))),
        element("3e83bb", str(bait.canary).encode()),
        element("3c83ab", str(bait.canary).encode()),
    )
    sound = element("a3", b"\x81\0\0\x80", token_free_samples())
    cluster = element("1f43b675", element("e7", b"\0"), sound)
    tracks = element("1654ae6b", track(1))
    return matroska(info, tracks, element("1941a469", *attached), cluster)


def wave_with_an_entity(bait: Bait) -> bytes:
    """iXML that includes a file, and one that would grow a billionfold."""
    laughs = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    text = (
        f'<!DOCTYPE x [<!ENTITY e0 "ha"><!ENTITY f SYSTEM "{bait.file}">{laughs}]>'
        "<BWFXML><TRACK_LIST><TRACK><NAME>&f;&e9;</NAME></TRACK></TRACK_LIST></BWFXML>"
    ).encode()
    return wave(token_free_samples(), _chunk(b"iXML", text))


def vobsub(bait: Bait) -> bytes:
    """An index whose pictures lie in a file of the same name."""
    return (
        b"# VobSub index file, v7 (do not modify this line!)\nsize: 720x576\nid: en, index: 0\n"
        b"timestamp: 00:00:00:000, filepos: 000000000\n"
    )


_SUBFILE = "subfile,,start,0,end,64,,:"

ATTACKS: Mapping[str, Attack] = {
    "hls-file": Attack(lambda b: playlist(b.file), ("film.m3u8", "film.mp4", "film.txt", "film")),
    "hls-bare-path": Attack(lambda b: playlist(str(b.canary))),
    "hls-sibling": Attack(lambda b: playlist(b.canary.name)),
    "hls-web": Attack(lambda b: playlist(b.web), ("film.m3u8", "film.mkv")),
    "hls-concat": Attack(lambda b: playlist(f"concat:{b.web}|{b.file}")),
    "hls-subfile": Attack(lambda b: playlist(f"{_SUBFILE}{b.canary}")),
    "hls-crypto": Attack(lambda b: playlist(f"crypto+{b.web}", head=_key(b.web))),
    "hls-key-in-a-file": Attack(lambda b: playlist(b.canary.name, head=_key(b.file))),
    "hls-map": Attack(lambda b: playlist(b.file, head=f'#EXT-X-MAP:URI="{b.web}"\n')),
    "hls-master": Attack(
        lambda b: f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{b.web}\n".encode(),
        ("film.m3u8", "film.m3u"),
    ),
    "hls-nested-protocols": Attack(
        lambda b: playlist(
            f"async:cache:{b.web}", f"tcp://127.0.0.1:{b.port}", f"tls://127.0.0.1:{b.port}",
            f"ffrtmphttp://127.0.0.1:{b.port}/x", f"unix:{b.canary}", "fd:3", "pipe:0",
        )
    ),
    "hls-data": Attack(data_address),
    "hls-behind-a-mark": Attack(lambda b: "\ufeff".encode() + playlist(b.web), ("film.m3u8",)),
    "dash": Attack(dash, ("film.mpd", "film.mp4")),
    "ffconcat": Attack(
        lambda b: f"ffconcat version 1.0\nfile {b.canary}\nfile {b.web}\n".encode(),
        ("film.ffconcat", "film.mov"),
    ),
    "ffconcat-relative": Attack(
        lambda b: f"ffconcat version 1.0\nfile {b.canary.name}\n".encode(), ("film.mp4", "film")
    ),
    "sdp": Attack(
        lambda b: f"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\n"
        f"m=video {b.port} RTP/AVP 96\na=rtpmap:96 H264/90000\n".encode(),
        ("film.sdp", "film.mp4"),
    ),
    "asx": Attack(
        lambda b: f'<asx version="3.0"><entry><ref href="{b.web}"/></entry></asx>'.encode(),
        ("film.asx", "film.wmv"),
    ),
    "imf": Attack(
        lambda b: f'<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/'
        f'schemas/2067-3/2016"><Id>urn:uuid:{b.port}</Id></CompositionPlaylist>'.encode(),
        ("CPL_film.xml", "film.mxf"),
    ),
    "svg": Attack(svg, ("film.svg", "film.gif")),
    "ass": Attack(styled_subtitles, ("film.ass", "film.mkv")),
    "vobsub": Attack(vobsub, ("canary.idx",)),
    "lavfi": Attack(lambda b: f"movie={b.canary}".encode(), ("film.lavfi",)),
    "reference-movie": Attack(reference_movie, ("film.mov",)),
    "data-reference": Attack(
        movie_whose_sound_lies_in_another_file, ("film.mov", "film.mp4"), is_media=True
    ),
    "gab2": Attack(avi_with_a_playlist_as_subtitles, ("film.avi",), is_media=True),
    "matroska": Attack(matroska_with_attachments, ("film.mkv",), is_media=True),
    "ixml": Attack(wave_with_an_entity, ("film.wav",), is_media=True),
}  # fmt: skip
"""Kind of attack -> how to make it. ``is_media``: the file holds sound of its own as well."""


def cases() -> Iterator[tuple[str, str]]:
    """Every attack under every name that it goes by."""
    for kind, attack in ATTACKS.items():
        for name in attack.names:
            yield kind, name


def lay(folder: Path, kind: str, name: str, port: int) -> Path:
    """Write the attack and its canary into ``folder``; returns the attack's path."""
    canary = folder / "canary.ts"
    canary.write_bytes(wave(token_samples()))
    path = folder / name
    path.write_bytes(ATTACKS[kind].build(Bait(canary, port)))
    return path
