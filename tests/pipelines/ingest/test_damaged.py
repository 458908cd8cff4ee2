"""Damaged and hostile files through ingest and both readers of pictures, without a service.

Every file becomes a result or a failure with a code; no exception of another kind, no crash of
this process, nothing left behind. ``VAS_DAMAGED_ROUNDS`` (1) runs more seeds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import av
import pytest

from models.provider import LocalModels
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import probe
from pipelines.types import StageCode, StageError, WarningCode
from pipelines.vision.features import FeaturesConfig, segment_features
from pipelines.vision.pipeline import VisionConfig, analyse_vision, damage_warnings
from pipelines.vision.stills import fetch_stills
from tests.pipelines.ingest.damaged_media import (
    BOMBS,
    DAMAGES,
    damaged_files,
    identity_tag_bomb,
    tags_of_many_megabytes,
)
from tests.pipelines.ingest.format_samples import AUDIO_ONLY, STANDARD, Sample, write_sample
from tests.pipelines.ingest.ingest_material import Ingested, ingested, remuxed, write_film
from tests.pipelines.media_builders import moving_shot, write_video
from tests.tables import every

ROUNDS = int(os.environ.get("VAS_DAMAGED_ROUNDS", "1"))
ORIGINALS = ("h264.mp4", "hevc.mkv", "vp9.webm", "mpeg4.avi", "h264.ts", "mpeg2.mxf", "h264.flv",
             "wmv2.wmv", "vp8.ogv", "plain.wav", "song.mp3", "aac.m4a", "plain.flac")  # fmt: skip
REFUSALS = {StageCode.VALIDATION_FAILED, StageCode.INGEST_FAILED}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("originals")
    samples = {sample.file_name: sample for sample in (*STANDARD, *AUDIO_ONLY)}
    return [write_sample(folder, samples[name]) for name in ORIGINALS]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_damaged_file_becomes_a_result_or_a_failure_with_a_code(
    seed: int, originals: list[Path], tmp_path: Path
) -> None:
    for number, file in enumerate(
        damaged_files(originals, tmp_path, seed=seed, count=len(DAMAGES))
    ):
        assert outcome(file.path, tmp_path / str(number)) in {None, *REFUSALS}, file


def outcome(path: Path, root: Path) -> StageCode | None:
    """With which code the file fails; None if it is read, and looked at."""
    try:
        done = ingested(path, root, segment_seconds=1.0)
    except StageError as error:
        return error.code
    look_at(done)
    return None


def look_at(done: Ingested) -> None:
    """Decode every segment, and one still of each, as the vision stage does."""
    video = done.result.video
    if video is None:
        return
    for segment in video.segments:
        features = segment_features(video, segment, Workspace(done.store, "job"), FeaturesConfig())
        middle = len(features.times_ms) // 2
        looks = features.looks()
        wanted = {time: looks[time] for time in features.times_ms[middle : middle + 1].tolist()}
        path = done.path(segment.key)
        fetch_stills(path, segment, video.stream, video.origin_ms, wanted, 960)


MEDIA_BOMBS = {"chapters.mkv": 0.5, "too-long.mka": 2.0}
"""Bombs that are media all the same, and their length in seconds. One of the others takes long."""


@every("name", sorted(set(BOMBS) - {"packets.mka"}))
def test_small_files_that_ask_for_much_are_refused_or_read_for_what_they_are(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    if name in MEDIA_BOMBS:
        assert probe(path).duration_seconds == pytest.approx(MEDIA_BOMBS[name], abs=0.01)
        return
    with pytest.raises(StageError) as caught:
        probe(path)
    assert caught.value.code is StageCode.VALIDATION_FAILED


def test_huge_tags_change_nothing(originals: list[Path], tmp_path: Path) -> None:
    sound = next(path for path in originals if path.suffix == ".wav")
    path = tmp_path / "tags.wav"
    path.write_bytes(tags_of_many_megabytes(sound.read_bytes()))
    assert probe(path).duration_seconds == probe(sound).duration_seconds
    song = next(path for path in originals if path.suffix == ".mp3")
    path = tmp_path / "tags.mp3"
    path.write_bytes(identity_tag_bomb(song.read_bytes()))
    assert probe(path).duration_seconds == pytest.approx(2.0, abs=0.1)


@every("sample", [s for s in STANDARD if s.file_name in ORIGINALS[:4]], ids=lambda s: s.file_name)
def test_the_end_of_the_name_decides_nothing(sample: Sample, tmp_path: Path) -> None:
    path = write_sample(tmp_path, sample)
    other = tmp_path / "clip.gif"
    path.rename(other)
    assert probe(other).video is not None


FILMS: dict[str, tuple[str, dict[str, str], bool]] = {
    "h264.mp4": ("libx264", {"preset": "ultrafast"}, False),
    "h264.ts": ("libx264", {"preset": "ultrafast"}, False),
    "hevc.mkv": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}, True),
    "mpeg4.avi": ("mpeg4", {}, False),
    "vp9.webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, True),
}
"""Encoders, their options, and whether heads of packets are damaged: whatever follows these,
decoders of such codecs make a picture of it."""


def warnings_of(path: Path, root: Path) -> list[tuple[int, int]]:
    """Stretches of damaged pictures that the vision stage gives, in seconds."""
    done = ingested(path, root, segment_seconds=2.0)
    video = done.result.video
    assert video is not None
    found = analyse_vision(
        video, workspace=Workspace(done.store, "job"), models=LocalModels(), control=FreeRun(),
        config=VisionConfig(), mapper=map_here,
    )  # fmt: skip
    assert {warning.code for warning in found.warnings} <= {WarningCode.PICTURE_DAMAGED}
    return [((w.start_ms or 0) // 1000, (w.end_ms or 0) // 1000) for w in found.warnings]


@pytest.mark.parametrize("name", FILMS)
def test_damage_in_pictures_is_a_warning_with_its_times(name: str, tmp_path: Path) -> None:
    """Noise in each packet between 3.1 and 3.5 s; a key frame follows each second."""
    codec, options, at_head = FILMS[name]
    film = list(moving_shot(3, 150, across=2, shake=1.0))
    path = write_video(tmp_path / name, film, codec=codec, options=options)
    assert warnings_of(path, tmp_path / "whole") == []
    data, chance = bytearray(path.read_bytes()), random.Random(5)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
        first = min(float((packet.pts or 0) * packet.time_base) for packet in packets)
        payloads = [
            bytes(packet)
            for packet in packets
            if 3.1 <= float((packet.pts or 0) * packet.time_base) - first < 3.5
        ]
    for payload in payloads:
        spoiled = payload[:100] if at_head else payload[len(payload) // 3 :][:100]
        at = data.find(spoiled)
        if at >= 0:
            data[at : at + len(spoiled)] = chance.randbytes(len(spoiled))
    path.write_bytes(data)
    assert warnings_of(path, tmp_path / "damaged") == [(3, 3)]


@pytest.mark.parametrize(
    ("stretch", "lost_ms"),
    [
        pytest.param((0.5, 0.66), [(2_980, 3_940)], id="zeros"),
        pytest.param((0.3, 0.6), [(1_780, 3_580)], id="more than a group"),
    ],
)
@pytest.mark.parametrize("how", ["zeros", "gone"])
def test_what_a_transport_stream_lost_is_a_warning_with_its_times(
    stretch: tuple[float, float], lost_ms: list[tuple[int, int]], how: str, tmp_path: Path
) -> None:
    """Continuity counters show it (ISO/IEC 13818-1, 2.4.3.3): decoders skip what is not there."""
    film = write_film(tmp_path / "film.mp4", options="bframes=0")
    data = remuxed(film, tmp_path / "whole.ts").read_bytes()
    begin, end = (int(len(data) // 188 * share) * 188 for share in stretch)
    filling = bytes(end - begin) if how == "zeros" else b""
    (tmp_path / "lost.ts").write_bytes(data[:begin] + filling + data[end:])

    whole, media = probe(tmp_path / "whole.ts"), probe(tmp_path / "lost.ts")

    assert whole.warnings == ()
    assert media.duration_seconds == pytest.approx(whole.duration_seconds, abs=0.01)
    found = {warning.code: (warning.start_ms, warning.end_ms) for warning in media.warnings}
    assert list(found) == [WarningCode.PICTURE_DAMAGED, WarningCode.AUDIO_DAMAGED]
    for span in found.values():
        assert span == pytest.approx(lost_ms[0], abs=100)


def test_pictures_that_refer_to_a_lost_one_are_damaged(tmp_path: Path) -> None:
    """H.264 whose decoder leaves out what follows half a picture up to the next key frame."""
    film = write_film(tmp_path / "film.mp4", options="bframes=0")
    path = remuxed(film, tmp_path / "lost.ts")
    data = path.read_bytes()
    begin, end = (int(len(data) // 188 * share) * 188 for share in (0.55, 0.56))
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])

    assert warnings_of(path, tmp_path / "store") == [(3, 3)]


def test_many_stretches_of_damage_are_few_warnings_that_cover_all() -> None:
    times = [start + more for start in range(0, 300_000, 10_000) for more in (0, 40, 1_500)]
    found = list(damage_warnings(times))
    assert len(found) == 20
    assert [(each.start_ms, each.end_ms) for each in found[:2]] == [(0, 1_500), (10_000, 11_500)]
    assert (found[-1].start_ms, found[-1].end_ms) == (190_000, 291_500)
    assert list(damage_warnings([])) == []
