"""Files damaged on purpose: from whole ones by a seeded generator, and bombs built by hand.

A whole file in, damaged bytes out; the same seed damages the same places.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20

Damage = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class DamagedFile:
    """A file to send: its name, and how it was made."""

    path: Path
    kind: str
    origin: str


def truncated(share: float) -> Damage:
    """The first ``share`` of the file."""
    return lambda data, _: data[: int(len(data) * share)]


def beheaded(data: bytes, chance: random.Random) -> bytes:
    """The file without its first few hundred bytes."""
    return data[chance.randrange(16, 700) :]


def flipped_bits(
    data: bytes, chance: random.Random, *, every: int = 4_000, start: int = 0
) -> bytes:
    """One bit turned in about every so many bytes."""
    changed = bytearray(data)
    for _ in range(max(1, len(data) // every)):
        changed[chance.randrange(min(start, len(data) - 1), len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flipped_head(data: bytes, chance: random.Random) -> bytes:
    """A dozen bits turned among the first 2000 bytes, where headers stand."""
    changed = bytearray(data)
    for _ in range(12):
        changed[chance.randrange(min(2_000, len(data)))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flipped_body(data: bytes, chance: random.Random) -> bytes:
    return flipped_bits(data, chance, every=500, start=len(data) // 5)


def zero_runs(data: bytes, chance: random.Random) -> bytes:
    """Eight runs of zeros, a twentieth of the file together, none at the beginning."""
    return _overwritten(data, chance, bytes)


def noise_runs(data: bytes, chance: random.Random) -> bytes:
    """The same places full of random bytes."""
    return _overwritten(data, chance, chance.randbytes)


def _overwritten(data: bytes, chance: random.Random, filling: Callable[[int], bytes]) -> bytes:
    changed = bytearray(data)
    length = max(1, len(data) // 160)
    for _ in range(8):
        at = chance.randrange(len(data) // 10, max(len(data) // 10 + 1, len(data) - length))
        changed[at : at + length] = filling(length)
    return bytes(changed[: len(data)])


def shuffled(data: bytes, chance: random.Random) -> bytes:
    """Blocks of 4 KiB behind the first 16 in another order."""
    head, body = data[: 16 << 12], data[16 << 12 :]
    blocks = [body[at : at + 4096] for at in range(0, len(body), 4096)]
    chance.shuffle(blocks)
    return head + b"".join(blocks)


def large_numbers(data: bytes, chance: random.Random) -> bytes:
    """Four-byte fields of the headers set to all ones: sizes, durations, rates, counts."""
    changed = bytearray(data)
    for _ in range(6):
        at = chance.randrange(4, min(len(data) - 4, 3_000))
        changed[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(changed)


def doubled(data: bytes, _: random.Random) -> bytes:
    """The file twice, end to end."""
    return data + data


def with_garbage(data: bytes, chance: random.Random) -> bytes:
    """A megabyte of random bytes behind the end."""
    return data + chance.randbytes(MIB)


DAMAGES: Mapping[str, Damage] = {
    "first 95 %": truncated(0.95),
    "first 50 %": truncated(0.5),
    "first 5 %": truncated(0.05),
    "beheaded": beheaded,
    "bits flipped": flipped_bits,
    "bits flipped in the headers": flipped_head,
    "many bits flipped in the body": flipped_body,
    "zero runs": zero_runs,
    "noise runs": noise_runs,
    "blocks shuffled": shuffled,
    "absurd numbers": large_numbers,
    "twice": doubled,
    "garbage behind": with_garbage,
}


def damaged_files(
    originals: Sequence[Path], folder: Path, *, seed: int, count: int
) -> Iterator[DamagedFile]:
    """``count`` damaged files below ``folder``: every damage in turn, originals at random."""
    chance = random.Random(seed)
    kinds = list(DAMAGES)
    for number in range(count):
        kind, origin = kinds[number % len(kinds)], chance.choice(originals)
        path = folder / f"{number:03d}-{origin.name}"
        path.write_bytes(DAMAGES[kind](origin.read_bytes(), chance))
        yield DamagedFile(path, kind, origin.name)


# --- bombs ---


def box(kind: bytes, *contents: bytes) -> bytes:
    """An ISO BMFF box."""
    body = b"".join(contents)
    return struct.pack(">I", len(body) + 8) + kind + body


def element(identity: str, *contents: bytes) -> bytes:
    """An EBML element, its size in eight bytes."""
    body = b"".join(contents)
    return bytes.fromhex(identity) + (len(body) | 1 << 56).to_bytes(8, "big") + body


FTYP = box(b"ftyp", b"isom\0\0\2\0isomiso2")


def nested_boxes() -> bytes:
    """Boxes 20 000 deep."""
    data = b""
    for _ in range(20_000):
        data = box(b"moov" if len(data) % 3 else b"trak", data)[:8] + data
    return FTYP + data


def compressed_index() -> bytes:
    """A QuickTime index of 64 MiB in a few kB (``cmov``)."""
    packed = zlib.compress(box(b"moov", box(b"udta", bytes(64 * MIB))), 9)
    cmvd = box(b"cmvd", struct.pack(">I", 64 * MIB + 16), packed)
    return FTYP + box(b"moov", box(b"cmov", box(b"dcom", b"zlib"), cmvd))


def index_of_a_billion_samples() -> bytes:
    """A sample table that claims 0x3fffffff entries, in 1 kB."""
    counts = struct.pack(">II", 0, 0x3FFFFFFF)
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), box(b"avc1", bytes(78))),
        *(box(kind, counts, bytes(64)) for kind in (b"stts", b"ctts", b"stsc", b"stsz", b"stco")),
    )
    media = box(
        b"mdia", box(b"mdhd", struct.pack(">IIIIII", 0, 0, 0, 1, 1, 0)),
        box(b"hdlr", bytes(8) + b"vide" + bytes(13)), box(b"minf", table),
    )  # fmt: skip
    return FTYP + box(
        b"moov", box(b"mvhd", bytes(100)), box(b"trak", box(b"tkhd", bytes(84)), media)
    )


def tags_of_many_megabytes(data: bytes) -> bytes:
    """A sound WAV file with 24 MiB of text in its INFO list."""
    text = b"IART" + struct.pack("<I", 24 * MIB) + b"A" * (24 * MIB)
    info = b"LIST" + struct.pack("<I", len(text) + 4) + b"INFO" + text
    body = data[8:] + info
    return b"RIFF" + struct.pack("<I", len(body)) + body


def identity_tag_bomb(data: bytes) -> bytes:
    """An MP3 behind an ID3 tag of 30 MiB: thousands of comments and a huge cover."""
    frames = b"".join(
        b"TXXX" + struct.pack(">I", 1000) + b"\0\0" + b"\0" + b"k%05d\0" % n + b"v" * 992
        for n in range(10_000)
    )
    cover = (
        b"APIC"
        + struct.pack(">I", 20 * MIB)
        + b"\0\0"
        + b"\0image/png\0\3\0"
        + bytes(20 * MIB - 13)
    )
    tag = frames + cover
    size = b"".join(bytes([(len(tag) >> shift) & 0x7F]) for shift in (21, 14, 7, 0))
    return b"ID3\3\0\0" + size + tag + data


def matroska(*contents: bytes) -> bytes:
    head = element("1a45dfa3", element("4282", b"matroska"))
    return head + element("18538067", *contents)


def track(number: int, *more: bytes) -> bytes:
    return element(
        "ae", element("d7", number.to_bytes(4, "big")), element("73c5", number.to_bytes(4, "big")),
        element("83", b"\2"), element("86", b"A_PCM/INT/LIT"),
        element("e1", element("b5", struct.pack(">d", 8000.0)), element("9f", b"\1"),
                element("6264", b"\x10")),
        *more,
    )  # fmt: skip


def thousands_of_streams() -> bytes:
    return matroska(element("1654ae6b", *(track(n) for n in range(1, 5_000))))


def forty_streams() -> bytes:
    """More than are taken, fewer than a demuxer refuses."""
    return matroska(element("1654ae6b", *(track(n) for n in range(1, 41))), _cluster(bytes(8_000)))


def thousands_of_chapters() -> bytes:
    atoms = (
        element("b6", element("73c4", n.to_bytes(4, "big")), element("91", n.to_bytes(4, "big")),
                element("80", element("85", b"chapter %d" % n)))
        for n in range(50_000)
    )  # fmt: skip
    tracks = element("1654ae6b", track(1))
    return matroska(tracks, element("1043a770", element("45b9", *atoms)), _cluster(bytes(8_000)))


def packet_bomb() -> bytes:
    """Sound whose packets are zlib-compressed: 100 of them, 4 MiB of zeros in each."""
    encoding = element(
        "6d80", element("6240", element("5033", b"\0"), element("5034", element("4254", b"\0")))
    )
    packed = zlib.compress(bytes(4 * MIB), 9)
    clusters = [_cluster(packed, at) for at in range(100)]
    return matroska(element("1654ae6b", track(1, encoding)), *clusters)


def _cluster(data: bytes, at: int = 0) -> bytes:
    return element(
        "1f43b675", element("e7", at.to_bytes(4, "big")), element("a3", b"\x81\0\0\x80", data)
    )


def recursive_elements() -> bytes:
    """Matroska tags inside tags, 10 000 deep."""
    data = b""
    for _ in range(10_000):
        data = bytes.fromhex("67c8") + (len(data) | 1 << 56).to_bytes(8, "big") + data
    return matroska(element("1254c367", element("7373", data)))


def zip_of_zeros() -> bytes:
    """A gzip file of 200 MiB of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(200)), packer.flush()])


def absurd_sound(rate_hz: int, channels: int) -> bytes:
    """A WAV whose header claims this rate and number of channels."""
    header = struct.pack(
        "<HHIIHH",
        1,
        channels,
        rate_hz,
        min(rate_hz * channels * 2, 0xFFFFFFFF),
        channels * 2 & 0xFFFF,
        16,
    )
    data = bytes(64_000)
    body = (
        b"WAVEfmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", len(data)) + data
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def vast_picture() -> bytes:
    """An uncompressed video whose pictures claim to be 60 000 x 60 000."""
    return b"YUV4MPEG2 W60000 H60000 F25:1 Ip A1:1 C420\nFRAME\n" + bytes(100_000)


def too_long() -> bytes:
    """Two packets of sound, 49 days apart."""
    late = _cluster(bytes(16_000), 0xFFFFFFFF)
    return matroska(element("1654ae6b", track(1)), _cluster(bytes(16_000)), late)


def playlist() -> bytes:
    return b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"


def concat_script() -> bytes:
    return b"ffconcat version 1.0\nfile /etc/passwd\nfile http://127.0.0.1:9/x\n"


BOMBS: Mapping[str, Callable[[], bytes]] = {
    "nested.mp4": nested_boxes,
    "cmov.mov": compressed_index,
    "billion.mp4": index_of_a_billion_samples,
    "streams.mkv": thousands_of_streams,
    "forty-streams.mkv": forty_streams,
    "chapters.mkv": thousands_of_chapters,
    "packets.mka": packet_bomb,
    "recursive.mkv": recursive_elements,
    "zeros.mp4": zip_of_zeros,
    "rate.wav": lambda: absurd_sound(0xFFFFFFFF, 1),
    "channels.wav": lambda: absurd_sound(48_000, 0xFFFF),
    "no-rate.wav": lambda: absurd_sound(0, 0),
    "vast.y4m": vast_picture,
    "too-long.mka": too_long,
    "list.m3u8": playlist,
    "concat.txt": concat_script,
}
"""Small files that ask for much."""
