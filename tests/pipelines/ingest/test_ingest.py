"""Ingest as its caller sees it: results that can be taken over, stops, and no litter."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest

from pipelines.execution.chain import FreeRun, Workspace
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest, probe_source, segment_ms
from pipelines.ingest.streams import ProbeLimits
from pipelines.types import StageCode, StageError, StageStoppedError
from storage.objects.folder import FolderStore
from tests.pipelines.ingest.ingest_material import Clip, Sound, clicks, write_clip, write_sound
from tests.stopwatch import Stopwatch
from tests.tables import every

CLIP = Clip("clip.mp4", "libx264", {"x264-params": "keyint=15:scenecut=0:threads=1"}, frames=100)


class Place:
    """A store with a source in it, a workspace, and a folder for temporary files."""

    def __init__(self, root: Path, source: Path | None) -> None:
        self.store = FolderStore(root / "store")
        self.store.root.mkdir(parents=True)
        self.temporary = root / "temporary"
        self.workspace = Workspace(self.store, "job")
        self.config = IngestConfig(segment_seconds=1.0, temporary_folder=self.temporary)
        if source is not None:
            shutil.copy(source, self.store.path("source"))

    def ingest(self, **changes: Any) -> Any:
        context = IngestContext(
            changes.pop("workspace", self.workspace),
            changes.pop("control", FreeRun()),
            changes.pop("config", self.config),
        )
        return ingest("source", context, **changes)

    def stored(self) -> list[str]:
        return list(self.store.list_keys("job"))

    def litter(self) -> list[Path]:
        return list(self.temporary.iterdir()) if self.temporary.exists() else []


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of drawn video with a click per second."""
    folder = tmp_path_factory.mktemp("film")
    silent, path = write_clip(folder, CLIP), folder / "film.mp4"
    with av.open(str(silent)) as source, av.open(str(path), "w") as target:
        video: Any = target.add_stream_from_template(source.streams.video[0])
        audio: Any = target.add_stream("aac", rate=48_000)
        audio.codec_context.layout = "mono"
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                target.mux(packet)
        values = np.round(clicks([0.5, 1.5, 2.5, 3.5], 4.0, 48_000) * 32767).astype(np.int16)
        frame: Any = av.AudioFrame.from_ndarray(values, "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, 0, Fraction(1, 48_000)
        resampler = av.AudioResampler("fltp", "mono", 48_000)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            target.mux(audio.encode(part))
        target.mux(audio.encode(None))
    return path


@pytest.fixture
def place(film: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, film)


def test_a_film_becomes_segments_and_a_track_below_the_workspace(place: Place) -> None:
    control = FreeRun()

    result = place.ingest(control=control)

    assert result.video is not None
    assert len(result.video.segments) == 3
    assert len(result.tracks) == 1
    keys = [segment.key for segment in result.video.segments] + [result.tracks[0].key]
    assert all(place.store.exists(key) and key.startswith("job/ingest/") for key in keys)
    assert result.warnings == ()
    assert control.fractions[-1] == 1.0
    assert control.fractions == sorted(control.fractions)
    assert place.litter() == []


def test_a_second_run_takes_over_what_the_first_stored_and_reads_nothing(place: Place) -> None:
    media = probe_source("source", store=place.store, config=place.config)
    first = place.ingest(media=media)
    place.store.delete("source")

    assert place.ingest(media=media) == first


def test_a_result_whose_objects_are_gone_is_made_again(place: Place) -> None:
    first = place.ingest()
    assert first.video is not None
    place.store.delete(first.video.segments[1].key)

    assert place.ingest() == first
    assert place.store.exists(first.video.segments[1].key)


def test_a_result_of_another_version_is_made_again(place: Place) -> None:
    first = place.ingest()
    (result_key,) = (key for key in place.stored() if key.endswith(".json"))
    place.store.write_bytes(result_key, b'{"media": 1}')

    assert place.ingest() == first


def test_segments_stored_by_a_run_that_died_are_kept_and_not_written_again(place: Place) -> None:
    first = place.ingest()
    (result_key,) = (key for key in place.stored() if key.endswith(".json"))
    place.store.delete(result_key)
    assert first.video is not None
    kept, lost = first.video.segments[0].key, first.video.segments[1].key
    place.store.delete(lost)
    marked = place.store.path(kept).stat().st_mtime_ns

    assert place.ingest() == first
    assert place.store.path(kept).stat().st_mtime_ns == marked
    assert place.store.exists(lost)


@pytest.mark.parametrize(
    ("video", "audio", "has_video", "tracks"),
    [(True, False, True, 0), (False, True, False, 1), (False, False, False, 0)],
)
def test_only_what_is_wanted_is_made(
    video: bool, audio: bool, has_video: bool, tracks: int, place: Place
) -> None:
    result = place.ingest(video=video, audio=audio)

    assert (result.video is not None) == has_video
    assert len(result.tracks) == tracks
    assert result.media.video is not None
    assert sum(key.endswith(".mkv") for key in place.stored()) == (3 if has_video else 0)
    assert sum(key.endswith(".flac") for key in place.stored()) == tracks


def test_other_segment_lengths_lie_beside_each_other(place: Place) -> None:
    one = place.ingest()
    whole = place.ingest(config=replace(place.config, segment_seconds=60.0))

    assert one.video is not None
    assert whole.video is not None
    assert len(one.video.segments) == 3
    assert [segment.key for segment in whole.video.segments] == ["source"]
    assert place.ingest() == one


@every(
    ("video_seconds", "segment_seconds"),
    [(12, 10), (60, 10), (80, 10), (300, 37.5), (480, 60), (36_000, 60)],
)
def test_short_videos_are_cut_into_shorter_segments(
    place: Place, video_seconds: int, segment_seconds: float
) -> None:
    video = place.ingest().media.video
    assert video is not None
    longer = replace(video, end_ms=video_seconds * 1_000)
    config = IngestConfig(shortest_segment_seconds=10.0)
    assert segment_ms(config, longer) == segment_seconds * 1_000
    assert segment_ms(IngestConfig(), longer) == 60_000


def test_a_short_video_is_shared_out(place: Place) -> None:
    config = replace(place.config, segment_seconds=60.0, shortest_segment_seconds=1.0)
    shared = place.ingest(config=config)
    assert shared.video is not None
    assert len(shared.video.segments) == 3


def test_audio_only_media_have_no_video(tmp_path: Path) -> None:
    sound = Sound("a.wav", "pcm_s16le", 44_100)
    path = write_sound(tmp_path, sound, clicks([0.5], 1.0, 44_100))
    place = Place(tmp_path / "place", path)

    result = place.ingest()

    assert result.video is None
    assert [track.name for track in result.tracks] == ["Track 1"]


BAD = {
    "an empty file": b"",
    "text": b"This is only text.\n" * 100,
    "a web page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "a playlist that names another file": b"#EXTM3U\n#EXTINF:10,\n/etc/passwd\n#EXT-X-ENDLIST\n",
    "a concat script": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "noise": np.random.default_rng(3).bytes(50_000),
}


@every("content", BAD.values(), ids=BAD.keys())
def test_what_is_no_media_file_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    place = Place(tmp_path, None)
    place.store.write_bytes("source", content)

    with pytest.raises(StageError) as caught:
        place.ingest()

    assert caught.value.code is StageCode.VALIDATION_FAILED
    assert caught.value.message.endswith(".")
    assert "passwd" not in caught.value.message
    assert place.stored() == []
    assert place.litter() == []


def test_an_mp4_that_was_cut_off_before_its_index_is_refused(film: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, None)
    place.store.write_bytes("source", film.read_bytes()[: film.stat().st_size // 2])

    with pytest.raises(StageError) as caught:
        place.ingest()

    assert caught.value.code is StageCode.VALIDATION_FAILED


def test_a_matroska_file_that_was_cut_off_is_analysed_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = write_clip(tmp_path, replace(CLIP, file_name="clip.mkv"))
    place = Place(tmp_path / "place", None)
    place.store.write_bytes("source", whole.read_bytes()[: whole.stat().st_size // 2])

    result = place.ingest()

    assert result.video is not None
    assert 1_000 < result.video.duration_ms < 3_500
    assert result.media.duration_seconds == pytest.approx(result.video.duration_ms / 1000)


def test_children_that_run_out_of_memory_time_or_luck_fail_the_stage_only(place: Place) -> None:
    for limits, code in (
        (ProbeLimits(memory_bytes=1 << 20), StageCode.VALIDATION_FAILED),
        (ProbeLimits(seconds=0.0), StageCode.INGEST_FAILED),
    ):
        with pytest.raises(StageError) as caught:
            place.ingest(config=replace(place.config, limits=limits))
        assert caught.value.code is code
    assert place.litter() == []


class StopAfter:
    """A Control that says stop once ``seconds`` have gone by."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._until:
            raise StageStoppedError("job")

    def progress(self, fraction: float) -> None:
        return


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture
def endless(tmp_path: Path) -> Place:
    """A source that never ends and gives nothing: a pipe with nobody at the other end."""
    place = Place(tmp_path, None)
    os.mkfifo(place.store.path("source"))
    return place


class PipeStore(FolderStore):
    """A folder store that hands out a pipe as if it were a file."""

    def local_copy(self, key: str, *, check: Any = None) -> Any:
        return nullcontext(self.path(key))


def _with_pipe(place: Place) -> Workspace:
    return Workspace(PipeStore(place.store.root), "job")


def test_work_that_is_told_to_stop_stops_within_two_seconds_and_leaves_nothing(
    endless: Place,
) -> None:
    before = _children()
    with Stopwatch() as watch, pytest.raises(StageStoppedError):
        endless.ingest(workspace=_with_pipe(endless), control=StopAfter(0.5))

    assert watch.seconds < 2.5
    assert _children() == before
    assert endless.litter() == []


def test_stopping_while_segments_are_being_stored_leaves_no_temporary_file(place: Place) -> None:
    class StopAtFirstSegment(FreeRun):
        def check(self) -> None:
            if any(key.endswith(".mkv") for key in place.stored()):
                raise StageStoppedError("job")

    before = _children()
    with pytest.raises(StageStoppedError):
        place.ingest(control=StopAtFirstSegment())

    assert _children() == before
    assert place.litter() == []
    assert not any(key.endswith(".json") for key in place.stored())


def _kill_the_child(before: set[int]) -> None:
    for _ in range(1200):
        time.sleep(0.05)
        for pid in _children() - before:
            psutil.Process(pid).kill()
            return


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        pytest.param(_kill_the_child, "crashed (SIGKILL)", id="killed from outside"),
        pytest.param(lambda _: None, "longer than 1 s", id="hanging"),
    ],
)
def test_a_child_that_dies_or_hangs_fails_the_stage_with_a_sentence(
    harm: Callable[[set[int]], None], sentence: str, endless: Place
) -> None:
    before = _children()
    helper = threading.Thread(target=harm, args=(before,))
    helper.start()
    config = replace(endless.config, limits=ProbeLimits(seconds=1.0))

    with pytest.raises(StageError) as caught:
        endless.ingest(workspace=_with_pipe(endless), config=config)

    helper.join()
    assert caught.value.code is StageCode.INGEST_FAILED
    assert sentence in caught.value.message
    assert _children() == before
