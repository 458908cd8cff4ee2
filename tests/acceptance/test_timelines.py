"""Separate audio and continuous batches through the public API of a running service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest

from tests.acceptance.service import Service, serving_files
from tests.media.two_recorders import close_microphone, recorded
from tests.pipelines.ingest.ingest_material import Pcm, shot, write_footage, write_wav
from tests.pipelines.media_builders import still_shot
from tests.places import DEMO, PROJECT

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

TRUTH = json.loads((PROJECT / "tests" / "media" / "demo.truth.json").read_text())
BOOM_STARTS_SECONDS = 4.0
BOOM_SECONDS = 14.0
WORD_TOLERANCE_SECONDS = 0.35
"""Of the embedded transcriber at the start of a sentence."""


@pytest.fixture(scope="module")
def speech() -> Pcm:
    """What the demo video sounds like."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=16_000)
    with av.open(str(DEMO)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, speech: Pcm) -> Path:
    """A folder of clips and sounds: ``boom.wav`` was recorded beside the demo video."""
    folder = tmp_path_factory.mktemp("material")
    part = speech[round(BOOM_STARTS_SECONDS * 16_000) :][: round(BOOM_SECONDS * 16_000)]
    random = np.random.default_rng(5)
    boom = recorded(part.astype(np.float64), close_microphone(random), random)
    write_wav(folder / "boom.wav", [boom])
    write_wav(folder / "field.wav", [speech[: 4 * 16_000], np.zeros(4 * 16_000, np.int16)])
    write_footage(
        folder / "mute.webm", pictures=list(still_shot(3, 90)), rate=30, codec="libvpx-vp9"
    )
    write_footage(folder / "short.mp4", pictures=shot(4, 3.0))
    (folder / "demo.mp4").write_bytes(DEMO.read_bytes())
    return folder


@pytest.fixture(scope="module")
def files_url(material: Path) -> Iterator[str]:
    with serving_files(material) as url:
        yield url


@pytest.fixture(scope="module")
def call(service: Service) -> Callable[..., Any]:
    """``call(method, path, body)`` gives the payload of the answer."""

    def run(method: str, path: str, body: Any = None) -> Any:
        headers = {"X-API-Key": service.api_key}
        url = service.base_url + path
        answer = httpx.request(method, url, headers=headers, json=body, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    return run


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def recorded_job(service: Service, call: Call, material: Path, files_url: str) -> dict[str, Any]:
    """The demo video with a recorder's file, and one to fetch, of which each channel is
    transcribed."""
    tracks = [
        {"fileName": "boom.wav"},
        {
            "url": f"{files_url}/field.wav",
            "label": "Field",
            "perChannelTranscription": True,
            "syncMode": "offset",
            "offsetMs": 0,
        },
    ]
    job = call(
        "POST",
        "/jobs",
        {"fileName": "demo.mp4", "processingMode": "transcript", "audioTracks": tracks},
    )
    [upload] = job["audioTrackUploadUrls"]
    for url, name in ((job["uploadUrl"], "demo.mp4"), (upload["url"], "boom.wav")):
        answer = httpx.put(url, content=(material / name).read_bytes(), trust_env=False)
        assert answer.is_success, answer.text
    ended = service.ended(job["jobId"])
    assert ended["state"] == "completed", ended
    return ended


def test_separate_audio_becomes_the_tracks_of_the_job(
    call: Call, recorded_job: dict[str, Any]
) -> None:
    names = ["boom.wav", "Field ch0", "Field ch1"]
    assert recorded_job["audioTrackNames"] == names
    assert recorded_job["audioTrackCount"] == recorded_job["audioTracksCompleted"] == 3
    # The second channel of the field recorder is silent, and that is its own track.
    assert [warning["code"] for warning in recorded_job["warnings"]] == ["AUDIO_SILENT"]
    tracks = call("GET", f"/jobs/{recorded_job['jobId']}/audioTracks")["tracks"]
    assert [track["trackName"] for track in tracks] == names
    assert [bool(track["transcript"]) for track in tracks] == [True, True, False]


def test_words_of_a_recorder_lie_where_the_video_has_them(
    call: Call, recorded_job: dict[str, Any]
) -> None:
    transcript = call("GET", f"/jobs/{recorded_job['jobId']}/transcript?track=0")
    ends = BOOM_STARTS_SECONDS + BOOM_SECONDS
    spoken = [
        sentence["start_ms"] / 1000
        for sentence in TRUTH["sentences"]
        if sentence["start_ms"] / 1000 > BOOM_STARTS_SECONDS
        and sentence["end_ms"] / 1000 < ends - 0.5
    ]
    assert len(spoken) >= 2
    assert_sentences_start_at(spoken, transcript)


def assert_sentences_start_at(seconds: list[float], transcript: dict[str, Any]) -> None:
    starts = [w["startTime"] for segment in transcript["segments"] for w in segment["words"]]
    for moment in seconds:
        nearest = min(starts, key=lambda start: abs(start - moment))
        assert abs(nearest - moment) <= WORD_TOLERANCE_SECONDS, (moment, starts)


def test_every_track_is_charged_as_the_estimate_says(
    call: Call, recorded_job: dict[str, Any]
) -> None:
    seconds = recorded_job["durationSeconds"]
    query = f"durationSeconds={seconds}&mode=transcript&audioTracks=3"
    assert recorded_job["chargedCents"] == call("GET", f"/pricing/estimate?{query}")["cents"]


def test_audio_that_cannot_be_fetched_fails_the_job_by_its_name(
    service: Service, call: Call, files_url: str
) -> None:
    body = {"url": f"{files_url}/short.mp4", "audioUrl": f"{files_url}/gone.wav"}
    ended = service.ended(call("POST", "/jobs/from-url", body)["jobId"])
    assert ended["state"] == "failed"
    assert ended["error"]["code"] == "EXTERNAL_AUDIO_FAILED"
    assert ended["error"]["message"].startswith("Audio file gone.wav: ")
    assert ended["chargedCents"] == 0


@pytest.fixture(scope="module")
def timeline(service: Service, call: Call, files_url: str) -> dict[str, Any]:
    """Three clips of different size, rate and codec as one job."""
    clips = [{"sourceUrl": f"{files_url}/{name}"} for name in ("mute.webm", "demo.mp4")]
    clips.append({"sourceUrl": f"{files_url}/short.mp4", "fileName": "last.mp4"})
    batch = call("POST", "/jobs/batch", {"mode": "continuous", "clips": clips})
    [job] = batch["jobs"]
    assert job["index"] == 0
    assert [clip["startTime"] for clip in job["clips"]] == [None] * 3
    ended = service.ended(job["jobId"])
    assert ended["state"] == "completed", ended
    return ended


def test_a_timeline_gives_where_its_clips_start(timeline: dict[str, Any]) -> None:
    clips = timeline["clips"]
    assert [clip["fileName"] for clip in clips] == ["mute.webm", "demo.mp4", "last.mp4"]
    assert [clip["startTime"] for clip in clips] == pytest.approx([0, 3.0, 32.76], abs=0.1)
    end = clips[-1]["startTime"] + clips[-1]["durationSeconds"]
    assert timeline["durationSeconds"] == pytest.approx(end)


def test_scenes_of_a_timeline_are_those_of_its_clips(call: Call, timeline: dict[str, Any]) -> None:
    scenes = call("GET", f"/jobs/{timeline['jobId']}/scenes")["scenes"]
    _, demo, last = (clip["startTime"] for clip in timeline["clips"])
    cuts = [demo, *(demo + cut["time_ms"] / 1000 for cut in TRUTH["cuts"]), last]
    starts = [scene["startTime"] for scene in scenes[1:]]
    # The fade's middle is told less exactly than a hard cut.
    tolerance = [0.5 if cut == demo + 12.88 else 0.081 for cut in cuts]
    assert len(starts) == len(cuts)
    assert all(
        abs(start - cut) <= allowed
        for start, cut, allowed in zip(starts, cuts, tolerance, strict=True)
    )
    assert scenes[-1]["endTime"] == timeline["durationSeconds"]


def test_words_have_times_on_the_timeline(call: Call, timeline: dict[str, Any]) -> None:
    transcript = call("GET", f"/jobs/{timeline['jobId']}/transcript")
    demo = timeline["clips"][1]["startTime"]
    spoken = [demo + sentence["start_ms"] / 1000 for sentence in TRUTH["sentences"]]
    assert_sentences_start_at(spoken, transcript)
    assert len(transcript["speakers"]) == 2


def test_a_clip_that_cannot_be_fetched_fails_the_timeline_by_its_name(
    service: Service, call: Call, files_url: str
) -> None:
    clips = [{"sourceUrl": f"{files_url}/{name}"} for name in ("short.mp4", "gone.mp4")]
    [job] = call("POST", "/jobs/batch", {"mode": "continuous", "clips": clips})["jobs"]
    ended = service.ended(job["jobId"])
    assert ended["error"]["code"] == "FETCH_FAILED"
    assert ended["error"]["message"].startswith("Clip 2 (gone.mp4): ")
