"""Kinds of media that users of players, recorders and transcribers reported, rebuilt small."""

from __future__ import annotations

import random
import struct
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from PIL import Image

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.headers import STILL
from pipelines.ingest.pipeline import probe
from pipelines.ingest.preview import PreviewOrder, is_playable, make_preview
from pipelines.markup import NEEDS, page_refusal
from pipelines.media.decoding import rgb
from pipelines.types import StageCode, StageError, WarningCode
from pipelines.vision.features import FeaturesConfig, ReadFrames
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.stills import stills_at
from tests.pipelines.ingest.ingest_material import (
    CLICKS,
    SECONDS,
    Sound,
    clicks,
    heard,
    ingested,
    later,
    onsets,
    remuxed,
    samples_of,
    seen,
    write_film,
    write_sound,
)
from tests.pipelines.media_builders import texture
from tests.tables import every

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


@every("kind", KINDS.values(), ids=KINDS)
def test_what_the_field_sends_is_analysed_by_its_content(kind: Kind, tmp_path: Path) -> None:
    done = ingested(kind.write(tmp_path), tmp_path)

    media = done.result.media
    assert media.duration_seconds == pytest.approx(kind.seconds, abs=0.13)
    assert heard(done) == pytest.approx(kind.clicks, abs=0.1)
    assert (len(seen(done)) if done.result.video else 0) == kind.pictures
    assert {warning.code for warning in done.result.warnings} == {*kind.codes}
    assert np.all(np.isfinite(done.samples()))


def write_title(path: Path, codec: str, pixels: str, *, is_opaque: bool = False) -> Path:
    """A name in dark blue over a red bar, on nothing or on black, for three seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        (stream.width, stream.height), stream.pix_fmt = (640, 360), pixels
        stream.codec_context.gop_size = 10
        for number in range(30):
            drawn = np.zeros((360, 640, 4), np.uint8)
            drawn[..., 3] = 255 * is_opaque
            cv2.rectangle(drawn, (100 + number, 250), (500, 290), (190, 30, 30, 255), -1)
            font, blue = cv2.FONT_HERSHEY_DUPLEX, (20, 20, 70, 255)
            cv2.putText(drawn, "MERIDIAN", (110, 200), font, 2.4, blue, 8)
            frame = av.VideoFrame.from_ndarray(drawn, "rgba").reformat(format=pixels)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "pixels"),
    [
        ("title.webm", "libvpx-vp9", "yuva420p"),
        ("title.mov", "qtrle", "argb"),
        ("title.mov", "prores_ks", "yuva444p10le"),
    ],
)
def test_a_transparent_ground_is_white(name: str, codec: str, pixels: str, tmp_path: Path) -> None:
    done = ingested(write_title(tmp_path / name, codec, pixels), tmp_path)
    video, workspace = done.result.video, Workspace(done.store, "job")
    assert video is not None
    assert len(video.segments) == 3
    shown = analyse_vision(
        video,
        workspace=workspace,
        models=LocalModels(),
        control=FreeRun(),
        config=VisionConfig(),
        mapper=map_here,
    ).overview
    assert [warning.code for warning in done.result.warnings] == [WarningCode.PICTURE_TRANSPARENT]
    assert "MERIDIAN" in {text.text for text in shown.on_screen_text}
    colours = [tuple(bytes.fromhex(each[1:])) for each in shown.color_palette]
    assert all(max(colour) < 220 for colour in colours)
    assert {colour[0] > 150 for colour in colours} == {True, False}
    jpeg = np.frombuffer(done.store.read_bytes(shown.thumbnail_key), np.uint8)
    still = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
    assert still is not None
    assert still[:40].min() > 240
    assert not is_playable(done.result.media)
    make_preview(
        PreviewOrder("source", "preview", done.result.media, 1 << 20, 600.0),
        done.store,
        check=lambda: None,
    )
    with av.open(str(done.path("preview"))) as container:
        assert next(container.decode(video=0)).to_ndarray(format="gray")[:40].min() > 240


def test_an_alpha_channel_that_is_not_used_changes_nothing(tmp_path: Path) -> None:
    path = write_title(tmp_path / "title.mov", "qtrle", "argb", is_opaque=True)
    media = probe(path)
    assert not media.warnings
    assert media.video is not None
    assert not media.video.transparent
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    assert np.array_equal(rgb(frame), frame.to_ndarray(format="rgb24"))


CLICK_SECONDS = (0.5, 1.25, 2.0)


def frames(count: int) -> list[Image.Image]:
    return [Image.fromarray(texture(number)) for number in range(1, count + 1)]


def refusal(path: Path) -> str:
    with pytest.raises(StageError) as caught:
        probe(path)
    assert caught.value.code is StageCode.VALIDATION_FAILED
    return caught.value.message


@every("name", ["picture.mp4", "picture"])
@every("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_still_pictures_are_refused_all_alike_by_content(
    kind: str, name: str, tmp_path: Path
) -> None:
    frames(1)[0].save(tmp_path / name, format=kind)
    assert refusal(tmp_path / name) == STILL


def test_a_still_of_a_telephone_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "IMG_0001.mov"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(5_000))
    assert refusal(path) == STILL


@pytest.mark.parametrize("kind", ["GIF", "PNG", "AVIF"])
def test_animations_are_videos(kind: str, tmp_path: Path) -> None:
    first, *others = frames(4)
    path = tmp_path / "animation.bin"
    first.save(path, format=kind, save_all=True, append_images=others, duration=500)
    done = ingested(path, tmp_path / "store", segment_seconds=60.0)
    video = done.result.video
    assert video is not None
    assert video.duration_ms == pytest.approx(2_000, abs=10)
    workspace = Workspace(done.store, "job")
    ReadFrames(video, workspace, FeaturesConfig()).process(video.segments[0])
    stills = stills_at(video, (0, 500, 1_000, 1_500), workspace, 960)
    for (_, still), drawn in zip(stills.items(), (first, *others), strict=True):
        assert np.abs(still.astype(int) - np.asarray(drawn)).mean() < 15


def test_an_animated_webp_is_refused_in_words(tmp_path: Path) -> None:
    first, *others = frames(3)
    path = tmp_path / "animation.gif"
    first.save(path, format="WEBP", save_all=True, append_images=others, duration=500)
    assert "animated WebP" in refusal(path)


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html>\n<html>",
        b"\xef\xbb\xbf\r\n <HTML lang=en>",
        b"<?xml version='1.0'?>\n<!-- a\npage -->\n<!doctype HTML PUBLIC '-//W3C//DTD XHTML 1.0'>",
    ],
    ids=["html", "mark and spaces", "xhtml"],
)
def test_a_web_page_is_refused_in_words(page: bytes, tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(page + b"<title>Sign in</title>" * 100)
    assert refusal(path).startswith("It is a web page, not media; give the address")


@every("host", [host for hosts, _ in NEEDS for host in hosts])
def test_what_a_share_link_needs_follows_from_its_host(host: str) -> None:
    default = page_refusal("example.com")
    assert page_refusal(host) == page_refusal(f"www.{host}") != default
    assert page_refusal(f"not{host}") == default


@pytest.mark.parametrize("junk_bytes", [70_000, 500_000, 3_000_000])
def test_an_mp3_behind_junk_is_heard_from_its_first_frame(junk_bytes: int, tmp_path: Path) -> None:
    sound = Sound("song.mp3", "libmp3lame", 44_100, sample_format="s16p")
    path = write_sound(tmp_path, sound, clicks(CLICK_SECONDS, 3.0, 44_100))
    path.write_bytes(random.Random(junk_bytes).randbytes(junk_bytes) + path.read_bytes())
    done = ingested(path, tmp_path / "store")
    [track] = done.result.tracks
    assert onsets(samples_of(done.path(track.key))) == pytest.approx(CLICK_SECONDS, abs=0.06)
    if done.result.media.timeline.begins_at:
        assert {each.code for each in done.result.warnings} == {WarningCode.AUDIO_DAMAGED}


@every(("samples", "length_ms"), [(1, 0), (24, 0), (30, 1), (480, 10)])
def test_what_lasts_no_millisecond_has_no_length(
    samples: int, length_ms: int, tmp_path: Path
) -> None:
    """Eight channels at 48 kHz."""
    path = tmp_path / "tiny.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(8)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(b"\0\1" * 8 * samples)
    if length_ms:
        assert round(probe(path).duration_seconds * 1000) == length_ms
    else:
        assert "no length" in refusal(path)
