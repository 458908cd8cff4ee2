"""Kinds of media that users of players, recorders and transcribers reported, rebuilt small."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.pipelines.ingest.clock_material import (
    CLICKS,
    SECONDS,
    heard,
    later,
    remuxed,
    seen,
    write_film,
)
from tests.pipelines.ingest.ingest_material import Sound, clicks, ingested, write_sound

_PES_OF_PICTURE = b"\0\0\1\xe0"
_ID3_OF_A_SEGMENT = (
    b"ID3\4\0\0\0\0\0\x3fPRIV\0\0\0\x35\0\0"
    b"com.apple.streaming.transportStreamTimestamp\0" + bytes(8)
)


def sound(folder: Path, name: str, codec: str, rate_hz: int, sample_format: str = "s16") -> Path:
    """Six seconds with a click a second."""
    signal = clicks(CLICKS, SECONDS, rate_hz)
    return write_sound(folder, Sound(name, codec, rate_hz, "mono", sample_format), signal)


def browser_recording(folder: Path) -> Path:
    """WebM of a browser's MediaRecorder: without a length and an index."""
    film = write_film(folder / "film.webm", codec="libvpx", audio="libopus")
    return remuxed(film, folder / "recorded.webm", muxing={"live": "1"})


def wav_of_length(size: int) -> Callable[[Path], Path]:
    """WAV that was streamed: its lengths are placeholders."""

    def write(folder: Path) -> Path:
        path = sound(folder, "voice.wav", "pcm_s16le", 16_000)
        data = bytearray(path.read_bytes())
        at = data.index(b"data")
        data[4:8] = data[at + 4 : at + 8] = struct.pack("<I", size)
        path.write_bytes(data)
        return path

    return write


def fragments_joined(folder: Path) -> Path:
    """Two fragmented MP4 files laid end to end with ``cat``."""
    film = write_film(folder / "film.mp4", options="bframes=0")
    flags = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    data = remuxed(film, folder / "fragments.mp4", muxing=flags).read_bytes()
    path = folder / "joined.mp4"
    path.write_bytes(data + data)
    return path


def outlier_in_transport_stream(folder: Path) -> Path:
    """One picture's PES header names a time two hours off."""
    path = remuxed(write_film(folder / "film.mp4", options="bframes=0"), folder / "outlier.ts")
    data, pictures = bytearray(path.read_bytes()), 0
    for packet in range(0, len(data), 188):
        at = packet + 4 + (1 + data[packet + 4] if data[packet + 3] & 0x20 else 0)
        if data[packet + 1] & 0x40 and data[at : at + 4] == _PES_OF_PICTURE:
            pictures += 1
            if pictures == 60:
                ticks = 7_217 * 90_000
                parts = ticks >> 30 & 7, ticks >> 15 & 0x7FFF, ticks & 0x7FFF
                data[at + 9 : at + 14] = struct.pack(
                    ">BHH", data[at + 9] & 0xF0 | parts[0] << 1 | 1,
                    parts[1] << 1 | 1, parts[2] << 1 | 1,
                )  # fmt: skip
    path.write_bytes(data)
    return path


def zeros_in_transport_stream(folder: Path) -> Path:
    """A recorder's buffers: zeros before the first packet, in the middle and behind the last."""
    data = remuxed(write_film(folder / "film.mp4", options="bframes=0"), folder / "whole.ts")
    whole, path = data.read_bytes(), folder / "padded.ts"
    middle = len(whole) // 2 // 188 * 188
    path.write_bytes(
        bytes(2_000_000) + whole[:middle] + bytes(300_001) + whole[middle:] + bytes(100_000)
    )
    return path


def mxf_of_a_camera_that_failed(folder: Path) -> Path:
    """MXF without its last fifth, and so without its footer."""
    path = write_film(folder / "camera.mxf", codec="mpeg2video", audio="pcm_s16le")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 8 // 10])
    return path


def start_cut_off_by_edit_list(folder: Path) -> Path:
    """MP4 whose edit lists begin two seconds into its packets, as editors cut without encoding."""
    path = write_film(folder / "film.mp4")
    data = bytearray(path.read_bytes())
    lists, scales, at = [], [], 0
    while (at := data.find(b"elst", at + 1)) >= 0:
        lists.append(at + 12)
    at = 0
    while (at := data.find(b"mdhd", at + 1)) >= 0:
        scales.append(int.from_bytes(data[at + 16 : at + 20], "big"))
    for place, ticks in zip(lists, scales, strict=True):
        length, start = struct.unpack_from(">Ii", data, place)
        struct.pack_into(">Ii", data, place, length - 2_000, start + 2 * ticks)
    path.write_bytes(data)
    return path


def sound_delayed_by_edit_list(folder: Path) -> Path:
    """MP4 whose sound begins with an empty edit."""
    film = write_film(folder / "film.mp4")
    return remuxed(film, folder / "late.mp4", later(500, kinds=("audio",)))


def call(folder: Path) -> Path:
    """AMR, as telephones record calls."""
    return sound(folder, "call.amr", "libopencore_amrnb", 8_000)


def still_screen(folder: Path) -> Path:
    """A screen that stands still for five seconds: no frame is written meanwhile."""
    film = write_film(folder / "film.mp4", options="bframes=0")
    return remuxed(
        film, folder / "screen.mkv", drop=lambda kind, number: kind == "video" and 10 < number < 145
    )


def cover_of_another_type(folder: Path) -> Path:
    """MP3 whose cover is named a PNG and is half a JPEG."""
    path = sound(folder, "show.mp3", "libmp3lame", 44_100, "s16p")
    body = b"\0image/png\0\3\0" + b"\xff\xd8\xff\xe0" + bytes(500)
    frame = b"APIC" + struct.pack(">I", len(body)) + b"\0\0" + body
    size = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    path.write_bytes(b"ID3\3\0\0" + size + frame + path.read_bytes())
    return path


def segments_of_packed_audio(folder: Path) -> Path:
    """AAC segments of HTTP Live Streaming joined: each begins with an ID3 tag."""
    film = write_film(folder / "film.mp4")
    data = remuxed(film, folder / "sound.aac", kinds=("audio",)).read_bytes()
    parts, at = [b""], 0
    for number in range(len(data)):
        if at >= len(data):
            break
        length = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
        parts[-1] += data[at : at + length]
        at += length
        if number % 47 == 46:
            parts.append(b"")
    path = folder / "packed.aac"
    path.write_bytes(b"".join(_ID3_OF_A_SEGMENT + part for part in parts if part))
    return path


def radio_tuned_in(folder: Path) -> Path:
    """Opus of a radio station: the headers, and then from the third second on."""
    path = sound(folder, "radio.ogg", "libopus", 48_000)
    pages = path.read_bytes().split(b"OggS")[1:]
    path.write_bytes(b"".join(b"OggS" + page for page in [*pages[:2], *pages[4:]]))
    return path


def without_index(folder: Path) -> Path:
    """AVI of a recorder whose power failed before the index was written."""
    path = write_film(folder / "camera.avi", codec="mpeg4", audio="mp3")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"idx1")])
    return path


def picture_ends_first(folder: Path) -> Path:
    """Sound that goes on for twice as long as the picture."""
    film = write_film(folder / "film.mp4", options="bframes=0")
    return remuxed(
        film, folder / "long.mkv", drop=lambda kind, number: kind == "video" and number >= 50
    )


@dataclass(frozen=True)
class Kind:
    """``pictures`` and ``clicks`` of its content, ``seconds`` of length."""

    write: Callable[[Path], Path]
    pictures: int = SECONDS * 25
    clicks: tuple[float, ...] = CLICKS
    seconds: float = SECONDS
    codes: tuple[str, ...] = ()


_LATER = tuple(each + 0.5 for each in CLICKS)
_TWICE = (*CLICKS, *(each + SECONDS for each in CLICKS))
KINDS = {
    "a browser's recording": Kind(browser_recording),
    "a streamed WAV": Kind(wav_of_length(0xFFFFFFFF), 0),
    "a streamed WAV, signed": Kind(wav_of_length(0x7FFFFFFF), 0),
    "fragments joined": Kind(
        fragments_joined, 2 * SECONDS * 25, _TWICE, 2 * SECONDS, ("TIMELINE_REPAIRED",)
    ),
    "an outlier in a transport stream": Kind(
        outlier_in_transport_stream, codes=("TIMELINE_REPAIRED",)
    ),
    "zeros in a transport stream": Kind(zeros_in_transport_stream, codes=("PICTURE_DAMAGED",)),
    "MXF that breaks off": Kind(
        mxf_of_a_camera_that_failed, 121, CLICKS[:5], 4.8, ("MEDIA_TRUNCATED",)
    ),
    "a start cut off": Kind(start_cut_off_by_edit_list, 100, CLICKS[:4], 4),
    "a delayed sound": Kind(sound_delayed_by_edit_list, clicks=_LATER, seconds=6.5),
    "a call": Kind(call, 0, codes=("AUDIO_QUIET",)),
    "a still screen": Kind(still_screen, 16),
    "a cover of another type": Kind(cover_of_another_type, 0),
    "packed audio": Kind(segments_of_packed_audio, 0),
    "a radio tuned in": Kind(radio_tuned_in, 0, CLICKS[:4], 4),
    "an AVI without index": Kind(without_index, codes=("MEDIA_TRUNCATED",)),
    "a picture that ends first": Kind(picture_ends_first, 50),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_the_field_sends_is_analysed_by_its_content(kind: Kind, tmp_path: Path) -> None:
    done = ingested(kind.write(tmp_path), tmp_path)

    media = done.result.media
    assert media.duration_seconds == pytest.approx(kind.seconds, abs=0.13)
    assert heard(done) == pytest.approx(kind.clicks, abs=0.1)
    assert (len(seen(done)) if done.result.video else 0) == kind.pictures
    assert {warning.code for warning in done.result.warnings} == {*kind.codes}
    assert np.all(np.isfinite(done.samples()))
