"""What files are by their bytes: still pictures, animations, web pages, junk before an MP3."""

from __future__ import annotations

import random
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.execution.chain import Workspace
from pipelines.ingest.headers import STILL
from pipelines.ingest.pipeline import probe
from pipelines.markup import NEEDS, page_refusal
from pipelines.types import StageCode, StageError, WarningCode
from pipelines.vision.features import FeaturesConfig, ReadFrames
from pipelines.vision.stills import SegmentTimes, StillsConfig, segment_stills
from tests.pipelines.ingest.ingest_material import (
    Sound,
    clicks,
    ingested,
    onsets,
    samples_of,
    write_sound,
)
from tests.pipelines.media_builders import texture
from tests.tables import every

CLICK_SECONDS = (0.5, 1.25, 2.0)


def frames(count: int) -> list[Image.Image]:
    return [Image.fromarray(texture(number)) for number in range(1, count + 1)]


def refusal(path: Path) -> str:
    with pytest.raises(StageError) as caught:
        probe(path)
    assert caught.value.code is StageCode.VALIDATION_FAILED
    return caught.value.message


@pytest.mark.parametrize("name", ["picture.mp4", "picture"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
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
    times = SegmentTimes(video.segments[0], (0, 500, 1_000, 1_500))
    stills = segment_stills(video, times, workspace, StillsConfig())
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


@pytest.mark.parametrize(("samples", "length_ms"), [(1, 0), (24, 0), (30, 1), (480, 10)])
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
