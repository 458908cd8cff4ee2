"""Real, odd and broken files: each becomes a result or a named refusal, and harms nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.ingest.pipeline import probe
from pipelines.types import StageCode, StageError, VideoStream
from tests.pipelines.ingest.ingest_material import Ingested, ingested, segment_frames, source_frames
from tests.tables import every

MEDIA = Path(__file__).resolve().parents[4] / "shared" / "media"
FEW = ("odd", "broken")
MANY = ("speech", "speakers", "cuts", "formats")
GROUPS = (*FEW, *MANY)
NOT_MEDIA = {".json", ".txt", ".vtt", ".srt", ".rttm", ".uem"}

REFUSED = {
    "bad.wav": "not a media file",
    "html-error-page.mp4": "a web page, not media",
    "invalid-bitstream.webm": "neither pictures nor sound",
    "mono.empty.wav": "not a media file",
    "mono.invalid.wav": "not a media file",
    "play-trimmed.mp3": "not a media file",
    "sample_fragmented_clearkey.mp4": "not a media file",
    "truncated-60pct-no-moov.mp4": "not a media file",
    "zero-bytes.mp4": "not a media file",
    "awful.wav": "The media has no length",
}

DURATIONS = {
    # Where the packets say something else than the headers that the manifest quotes.
    "sample_fragmented.mp4": 1.068,
    "no_duration.webm": 4.938,
    "truncated-50pct.webm": 0.135,
    "sample_opus.mp4": 1.004,
    "delayed_start.mp4": 0.96,
    "nasa_13013.mp4": 13.056,
    "sample_with_srt.mkv": 1.071,
    "sample.adts": 3.321,
    "bear-id3.mp3": 2.832,
}

LIBRIVOX_SECONDS = 9.0

SIZES = {
    "portrait_4k60.mp4": (2160, 3840),
    "sample_portrait.mp4": (720, 1080),
    "SAR-2by3.mp4": (427, 360),
    "bear-vp9-odd-dimensions.webm": (161, 121),
    "bbb-telecine-480i-a.mpg": (853, 480),
    "h264-mjpeg.mp4": (640, 360),
    "nasa_13013.mp4": (480, 270),
    "-video-with-dash-.mp4": (1, 1),
}

CUT = {
    "bbb-telecine-480i-a.mpg": 2.0,
    "big_buck_bunny_0_30.webm": 5.0,
    "sample.avi": 1.0,
    "var_fps_video.mp4": 2.0,
    "narrated-cuts-a.mp4": 3.0,
    "bbb_2500ms.ts": 0.5,
    "sample_sef_slow_motion.mp4": 0.5,
}


def _files(*groups: str) -> list[Path]:
    found = [path for group in groups for path in sorted((MEDIA / group).glob("*"))]
    return [p for p in found if p.suffix not in NOT_MEDIA or p.name.startswith("real-")]


def _named(name: str) -> Path:
    return next(path for path in _files(*GROUPS) if path.name == name)


def _claimed_seconds(name: str) -> float | None:
    """What the manifest says, from headers."""
    row = re.search(rf"^\| {re.escape(name)} \|[^|]*\|([^|]*)\|", _manifest(), re.MULTILINE)
    match = re.search(r", ([\d.]+)s[;,]", row[1]) if row else None
    return float(match[1]) if match else None


def _manifest() -> str:
    path = MEDIA / "MANIFEST.md"
    return path.read_text("utf-8") if path.exists() else ""


def _video(done: Ingested) -> VideoStream:
    assert done.result.media.video is not None
    return done.result.media.video


@pytest.mark.shared_media
@pytest.mark.parametrize(
    "group", [*FEW, *(pytest.param(it, marks=pytest.mark.long) for it in MANY)]
)
def test_every_file_becomes_a_result_or_a_refusal_with_a_sentence(
    group: str, tmp_path: Path
) -> None:
    for number, path in enumerate(_files(group)):
        root = tmp_path / str(number)
        if path.name in REFUSED:
            with pytest.raises(StageError, match=REFUSED[path.name]) as caught:
                ingested(path, root, segment_seconds=60.0)
            assert caught.value.code is StageCode.VALIDATION_FAILED, path.name
        else:
            _check_result(path, ingested(path, root, segment_seconds=60.0))


def _check_result(path: Path, done: Ingested) -> None:
    media = done.result.media
    expected = DURATIONS.get(path.name, _claimed_seconds(path.name))
    assert expected is not None, path.name
    assert media.duration_seconds == pytest.approx(expected, abs=0.08), path.name
    assert (done.result.video is not None) == (media.video is not None)
    assert len(done.result.tracks) == len(media.audio), path.name
    for number, track in enumerate(done.result.tracks):
        assert track.duration_seconds == len(done.samples(number)) / 16_000
        end = track.offset_seconds + track.duration_seconds
        assert -0.1 < track.offset_seconds < media.duration_seconds, path.name
        assert end < media.duration_seconds + 0.1, path.name


@pytest.mark.shared_media
def test_the_same_speech_in_eight_containers_has_the_same_length(tmp_path: Path) -> None:
    paths = [path for path in _files("formats") if path.name.startswith("librivox-p001")]

    lengths = {
        path.name: ingested(path, tmp_path / path.name).result.tracks[0].duration_seconds
        for path in paths
    }

    assert len(lengths) == 4
    assert lengths == pytest.approx(dict.fromkeys(lengths, LIBRIVOX_SECONDS), abs=0.06)


@pytest.mark.shared_media
@every("name", SIZES)
def test_pictures_have_their_displayed_size(name: str) -> None:
    video = probe(_named(name)).video

    assert video is not None
    assert (video.width, video.height) == SIZES[name]


@pytest.mark.shared_media
@every(
    ("name", "rotation", "interlaced", "hdr"),
    [
        ("portrait_4k60.mp4", 90, False, False),
        ("internal_emulator_transformer_output_180_rotated.mp4", 180, False, False),
        ("bbb-telecine-480i-a.mpg", 0, True, False),
        ("hdr10-video-with-sdr-container.mp4", 0, False, True),
        ("hlg10-color-test.mp4", 0, False, True),
    ],
)
def test_how_pictures_are_turned_scanned_and_coded(
    name: str, rotation: int, interlaced: bool, hdr: bool
) -> None:
    video = probe(_named(name)).video

    assert video is not None
    assert (video.orientation.degrees, video.interlaced, video.hdr) == (rotation, interlaced, hdr)


@pytest.mark.shared_media
@pytest.mark.parametrize("name", CUT)
def test_real_media_are_cut_without_changing_or_losing_a_frame(name: str, tmp_path: Path) -> None:
    done = ingested(_named(name), tmp_path, segment_seconds=CUT[name])

    assert done.result.video is not None
    assert sorted(segment_frames(done)) == sorted(source_frames(done))
    assert len(segment_frames(done)) == _video(done).frame_count


@pytest.mark.shared_media
def test_two_languages_become_two_named_tracks(tmp_path: Path) -> None:
    done = ingested(_named("two-audio-tracks-a.mkv"), tmp_path, segment_seconds=60.0)

    assert [track.name for track in done.result.tracks] == ["English", "Japanese"]
    assert [stream.language for stream in done.result.media.audio] == ["eng", "jpn"]
