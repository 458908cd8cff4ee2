"""Separate audio: brought onto the video's timeline by offset, timecode or ear; named; split."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from pipelines.ingest.external_audio import ExternalFile
from pipelines.ingest.source import SourceMedia
from pipelines.ingest.timecode import SyncMode, start_of
from pipelines.types import IngestResult, StageCode, StageError, TrackOutcome
from tests.media.two_recorders import Take, babbled, camera, close_microphone, take
from tests.pipelines.ingest.ingest_material import (
    Pcm,
    Place,
    bext,
    ingested,
    ixml,
    samples_of,
    shot,
    write_footage,
    write_wav,
)

SECONDS = 14.0
OFFSET, TIMECODE = SyncMode.OFFSET, SyncMode.TIMECODE


@pytest.fixture(scope="module")
def scene() -> Take:
    """12 s from a recorder that was started 3.2 s after the camera."""
    random = np.random.default_rng(11)
    return take(
        babbled(30, random),
        random,
        offset_seconds=3.2,
        reference_seconds=SECONDS,
        target_seconds=12.0,
        recorders=(camera(random), close_microphone(random)),
    )


@pytest.fixture(scope="module")
def footage(scene: Take, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Camera files of the scene: with its sound, without, and with a start timecode."""
    folder = tmp_path_factory.mktemp("camera")
    pictures = shot(1, SECONDS)[: round(SECONDS * 25)]
    heard: dict[str, Any] = {"sounds": [scene.reference]}
    return {
        "camera": write_footage(folder / "camera.mov", pictures=pictures, **heard),
        "mute": write_footage(folder / "mute.mov", pictures=pictures),
        "clocked": write_footage(
            folder / "clocked.mov", pictures=pictures, timecode="10:00:00:00", **heard
        ),
    }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def tone(hertz: float, seconds: float = 2.0) -> Pcm:
    times = np.arange(round(seconds * 16_000)) / 16_000
    return np.round(np.sin(2 * np.pi * hertz * times) * 8_000).astype(np.int16)


def with_sound(place: Place, video: Path, *sounds: ExternalFile) -> IngestResult:
    return place.ingest(SourceMedia((place.clip(video),), sounds))


def codes(result: IngestResult) -> list[str]:
    return [warning.code for warning in result.warnings]


def test_sound_without_a_word_about_its_time_is_placed_by_ear(
    place: Place, footage: dict[str, Path], scene: Take, tmp_path: Path
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [scene.target])
    result = with_sound(place, footage["camera"], place.sound(wav))
    [track] = result.tracks
    assert track.name == "boom.wav"
    assert track.offset_seconds == pytest.approx(3.2, abs=0.040)
    assert track.duration_seconds == pytest.approx(12.0, abs=0.01)
    assert codes(result) == []


@pytest.mark.parametrize("offset_ms", [-500, 0, 2_750])
def test_a_given_offset_is_kept_to_the_millisecond(
    place: Place, footage: dict[str, Path], tmp_path: Path, offset_ms: int
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [tone(440)])
    sound = place.sound(wav, sync_mode=OFFSET, offset_ms=offset_ms)
    [track] = with_sound(place, footage["camera"], sound).tracks
    assert track.offset_seconds == offset_ms / 1000


@pytest.mark.parametrize("mode", [SyncMode.AUTO, TIMECODE])
@pytest.mark.parametrize(
    ("chunks", "starts"),
    [
        ([bext(16_000 * 36_003)], 3.0),
        ([bext(16_000 * 35_999)], -1.0),
        ([bext(16_000 * 36_000 + 4_000), ixml(rate="25/1")], 0.25),
    ],
    ids=["bext", "bext, earlier", "iXML"],
)
def test_timecodes_of_both_place_the_sound(
    place: Place,
    footage: dict[str, Path],
    tmp_path: Path,
    mode: SyncMode,
    chunks: list[tuple[bytes, bytes]],
    starts: float,
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [tone(440)], chunks=chunks)
    result = with_sound(place, footage["clocked"], place.sound(wav, sync_mode=mode))
    assert result.tracks[0].offset_seconds == pytest.approx(starts)
    assert codes(result) == []


def test_a_timecode_track_beside_the_sound_places_it_too(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    mov = write_footage(
        tmp_path / "boom.mov", pictures=shot(2, 2), sounds=[tone(440)], timecode="10:00:01:05"
    )
    result = with_sound(place, footage["clocked"], place.sound(mov, sync_mode=TIMECODE))
    assert result.tracks[0].offset_seconds == pytest.approx(1.2)


def test_a_timecode_counts_at_the_rate_of_its_own_track(tmp_path: Path) -> None:
    """30 drop frame beside 59.94p, as cameras write it."""
    path = tmp_path / "camera.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(60_000, 1001))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.metadata["timecode"] = "01:00:00;30"
        for shade in range(60):
            picture = np.full((48, 64, 3), 2 * shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    data = path.read_bytes()
    counted = struct.pack(">IIB", 60_000, 1001, 60), struct.pack(">I", 215_814)
    assert [data.count(each) for each in counted] == [1, 1]
    data = data.replace(counted[0], struct.pack(">IIB", 30_000, 1001, 30))
    path.write_bytes(data.replace(counted[1], struct.pack(">I", 107_907)))

    media = ingested(path, tmp_path / "work").result.media
    assert (media.timecode, media.timecode_rate) == ("01:00:00;15", "30000/1001")
    start = start_of(media.timecode, media.timecode_rate, 59.94)
    assert start is not None
    assert start.seconds == Fraction(107_907 * 1001, 30_000)


def test_timecodes_that_cannot_be_right_leave_it_to_the_ear(
    place: Place, footage: dict[str, Path], scene: Take, tmp_path: Path
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [scene.target], chunks=[bext(16_000 * 40_000)])
    result = with_sound(place, footage["clocked"], place.sound(wav))
    assert result.tracks[0].offset_seconds == pytest.approx(3.2, abs=0.040)


@pytest.mark.parametrize(("video", "reason"), [("camera", "not be matched"), ("mute", "no sound")])
def test_what_cannot_be_placed_starts_with_the_video_and_says_so(
    place: Place, footage: dict[str, Path], tmp_path: Path, video: str, reason: str
) -> None:
    wav = write_wav(tmp_path / "music.wav", [tone(440, 5.0)])
    result = with_sound(place, footage[video], place.sound(wav))
    [warning] = result.warnings
    assert warning.code == "AUDIO_SYNC_UNCERTAIN"
    assert warning.message.startswith("Audio file music.wav: ")
    assert reason in warning.message
    assert result.tracks[0].offset_seconds == 0


def test_sound_outside_the_video_is_worth_a_warning(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [tone(440)])
    sound = place.sound(wav, sync_mode=OFFSET, offset_ms=20_000)
    assert codes(with_sound(place, footage["camera"], sound)) == ["AUDIO_OUTSIDE_VIDEO"]


NAMED = [ixml(names=["Boom", "Lav Anna"])]


@pytest.mark.parametrize(
    ("chunks", "options", "names"),
    [
        ([], {}, ["mix.wav"]),
        ([], {"label": "Mix"}, ["Mix"]),
        ([], {"per_channel": True}, ["mix.wav ch0", "mix.wav ch1"]),
        ([], {"per_channel": True, "label": "Set"}, ["Set ch0", "Set ch1"]),
        (NAMED, {"per_channel": True}, ["Boom ch0", "Lav Anna ch1"]),
        (NAMED, {"per_channel": True, "channels": (1,)}, ["Lav Anna ch1"]),
        (NAMED, {"channels": (1,)}, ["Lav Anna"]),
        (NAMED, {}, ["mix.wav"]),
        ([ixml(names=["Boom", "Boom"])], {}, ["Boom"]),
        (
            [bext(0, "sTRK1=WebhookHarness\r\nsTRK2=Aux")],
            {"per_channel": True},
            ["WebhookHarness ch0", "Aux ch1"],
        ),
    ],
)
def test_tracks_are_named_by_label_then_recorder_then_file(
    place: Place,
    footage: dict[str, Path],
    tmp_path: Path,
    chunks: list[tuple[bytes, bytes]],
    options: dict[str, Any],
    names: list[str],
) -> None:
    wav = write_wav(tmp_path / "mix.wav", [tone(300), tone(900)], chunks=chunks)
    sound = place.sound(wav, sync_mode=OFFSET, offset_ms=0, **options)
    found = place.probe(SourceMedia((place.clip(footage["camera"]),), (sound,)))
    assert [stream.title for stream in found.media.audio] == names


def test_each_channel_is_a_track_of_its_own(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    pitches = [200 + 100 * channel for channel in range(32)]
    wav = write_wav(tmp_path / "stage.wav", [tone(pitch) for pitch in pitches])
    sound = place.sound(wav, sync_mode=OFFSET, offset_ms=0, per_channel=True)
    result = with_sound(place, footage["camera"], sound)
    assert [track.index for track in result.tracks] == list(range(32))
    heard = [pitch_of(samples_of(place.store.path(track.key))) for track in result.tracks]
    assert heard == pytest.approx(pitches, abs=2)


def pitch_of(samples: Any) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * 16_000 / len(samples))


def test_chosen_channels_are_mixed_without_the_others(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    wav = write_wav(tmp_path / "mix.wav", [tone(300), tone(900), tone(1_500)])
    sound = place.sound(wav, sync_mode=OFFSET, offset_ms=0, channels=(0, 2))
    [track] = with_sound(place, footage["camera"], sound).tracks
    samples = samples_of(place.store.path(track.key))
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    at = {pitch: spectrum[round(pitch * len(samples) / 16_000)] for pitch in (300, 900, 1_500)}
    assert at[300] == pytest.approx(at[1_500], rel=0.1)
    assert at[900] < at[300] / 100


def test_separate_audio_replaces_the_sound_of_the_video(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    sounds = [
        place.sound(write_wav(tmp_path / f"{name}.wav", [tone(440)]), sync_mode=OFFSET, offset_ms=0)
        for name in ("one", "two", "three")
    ]
    result = with_sound(place, footage["camera"], *sounds)
    assert [track.name for track in result.tracks] == ["one.wav", "two.wav", "three.wav"]
    assert len(result.media.audio) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"per_channel": True, "channels": (0, 2)}, "Channel 2 was asked for, but it has 2"),
        ({"sync_mode": TIMECODE}, "Neither it nor the video has a start timecode"),
        ({"problem": "The source answered 404."}, "The source answered 404"),
    ],
    ids=["a channel it does not have", "no timecode", "not fetched"],
)
def test_a_single_file_that_cannot_be_used_fails_by_its_name(
    place: Place, footage: dict[str, Path], tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    wav = write_wav(tmp_path / "boom.wav", [tone(440), tone(500)])
    with pytest.raises(StageError, match=f"Audio file boom.wav: {sentence}") as failed:
        with_sound(place, footage["camera"], place.sound(wav, **options))
    assert failed.value.code is StageCode.EXTERNAL_AUDIO_FAILED


def test_what_is_no_sound_fails_with_a_sentence(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.wav").write_bytes(b"not a sound at all")
    with pytest.raises(StageError, match=r"Audio file notes\.wav: The file is not a"):
        with_sound(place, footage["camera"], place.sound(tmp_path / "notes.wav"))


def test_a_bad_file_among_good_ones_fails_only_its_own_track(
    place: Place, footage: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    good = {"sync_mode": OFFSET, "offset_ms": 100}
    sounds = [
        place.sound(write_wav(tmp_path / "first.wav", [tone(440)]), **good),
        place.sound(tmp_path / "bad.wav", label="Lost", **good),
        place.sound(write_wav(tmp_path / "last.wav", [tone(440)]), **good),
    ]
    result = with_sound(place, footage["camera"], *sounds)
    assert [(track.index, track.name) for track in result.tracks] == [
        (0, "first.wav"),
        (2, "last.wav"),
    ]
    assert result.failed_tracks == (TrackOutcome(1, "Lost", code=StageCode.EXTERNAL_AUDIO_FAILED),)
    assert codes(result) == ["EXTERNAL_AUDIO_FAILED"]
    assert len(result.media.audio) == 2


def test_a_new_runner_finds_what_is_done(
    place: Place, footage: dict[str, Path], scene: Take, tmp_path: Path
) -> None:
    sound = place.sound(write_wav(tmp_path / "boom.wav", [scene.target]))
    first = with_sound(place, footage["camera"], sound)
    written = {
        key: place.store.path(key).stat().st_mtime_ns for key in place.store.list_keys("job")
    }
    assert any(key.startswith("job/sync/") for key in written)
    assert with_sound(place, footage["camera"], sound) == first
    again = {key: place.store.path(key).stat().st_mtime_ns for key in place.store.list_keys("job")}
    assert again == written
