"""The main job through the public API of a running service, and what may go wrong around it."""

from __future__ import annotations

import io
import itertools
import json
import os
import stat
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from PIL import Image

from serve_app.client.api import RequestFailedError
from tests.acceptance.service import Service, wait_until
from tests.places import DEMO, PROJECT, SHARED_MEDIA

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

TRUTH = json.loads((PROJECT / "tests" / "media" / "demo.truth.json").read_text())
CUT_TOLERANCE_SECONDS = 0.081
"""Two frames at 25 a second, and the rounding of times."""


def test_progress_moves_and_never_goes_back(demo_job: str, polled: list[dict[str, Any]]) -> None:
    fractions = [job["progress"] for job in polled]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) > 3
    assert fractions[-1] == 1.0
    expected = [job["estimatedCompletionTimeSeconds"] for job in polled]
    assert expected[-1] is None
    assert all(seconds is None or seconds >= 0 for seconds in expected)
    analysed = [
        job["estimatedCompletionTimeSeconds"]
        for job in polled
        if job["state"] == "processing" and job["stages"]["ingest"]["status"] == "completed"
    ]
    assert analysed
    assert None not in analysed, "the footage is known, so is what it takes"


def test_the_demo_video_gives_the_scenes_it_was_drawn_with(service: Service, demo_job: str) -> None:
    scenes = service.results(demo_job)["scenes"]
    cuts = [scene["startTime"] for scene in scenes[1:]]
    truth = [cut["time_ms"] / 1000 for cut in TRUTH["cuts"]]
    assert len(cuts) == len(truth)
    for found, true in zip(cuts, truth, strict=True):
        assert abs(found - true) <= (0.5 if true == 12.88 else CUT_TOLERANCE_SECONDS)
    assert scenes[0]["startTime"] == 0
    for before, after in itertools.pairwise(scenes):
        assert before["endTime"] == after["startTime"]
    assert [scene["objects"] for scene in scenes][:2] == [["text"], ["face", "person"]]


def test_the_spoken_sentences_are_recognisable(service: Service, demo_job: str) -> None:
    transcript = service.results(demo_job)["transcript"]
    said = " ".join(sentence["text"] for sentence in TRUTH["sentences"]).split()
    heard = " ".join(segment["text"] for segment in transcript["segments"]).lower().split()
    assert word_error_rate(said, heard) < 0.3
    assert len(transcript["speakers"]) == 2
    assert transcript["text"] == "\n".join(s["text"] for s in transcript["segments"])


def test_what_was_said_and_seen_is_found_by_its_words(service: Service, demo_job: str) -> None:
    results = service.results(demo_job)
    said = max(results["transcript"]["segments"], key=lambda segment: len(segment["text"]))
    line = results["scenes"][0]["onScreenText"][0]["text"]
    for q, kind, start in (
        (said["text"], "transcript", said["startTime"]),
        (line, "text", 0),
        ("demo", "file", 0),
    ):
        found = service.client().search(q, kinds=kind, jobId=demo_job)["data"]
        assert (found[0]["kind"], found[0]["startTime"]) == (kind, start)


def test_what_was_said_is_found_by_its_meaning(service: Service, demo_job: str) -> None:
    """Once a runner has made the vectors and the API has opened the model."""
    q = "a movie about the ocean"

    def found() -> dict[str, Any]:
        return service.client().search(q, kinds="transcript", jobId=demo_job)

    wait_until(lambda: found()["mode"] == "hybrid" and found()["data"], 300, "found by its meaning")
    assert "short film" in found()["data"][0]["snippet"]["text"].lower()


def test_what_the_service_stores_is_readable_by_its_user_alone(
    service: Service, demo_job: str
) -> None:
    """Under root the user that PostgreSQL runs as passes through the data folder, and reads none
    of it."""
    passes = 0o011 if os.geteuid() == 0 else 0
    assert stat.S_IMODE(service.data.stat().st_mode) == 0o700 | passes
    found = [path for name in ("objects", "logs") for path in (service.data / name).rglob("*")]
    open_to_others = [path for path in found if path.exists() and path.stat().st_mode & 0o077]
    assert found
    assert open_to_others == []


def word_error_rate(reference: list[str], hypothesis: list[str]) -> float:
    """Levenshtein distance over words, by the length of the reference."""
    previous = list(range(len(hypothesis) + 1))
    for row, word in enumerate(reference, 1):
        current = [row]
        for column, other in enumerate(hypothesis, 1):
            substitution = previous[column - 1] + (word != other)
            current.append(min(previous[column] + 1, current[-1] + 1, substitution))
        previous = current
    return previous[-1] / len(reference)


def test_thumbnails_are_pictures_behind_signed_addresses(service: Service, demo_job: str) -> None:
    with service.client() as client:
        url = client.get_scenes(demo_job)[1]["thumbnailUrl"]
    answer = httpx.get(url, trust_env=False)
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size[0] <= 480
    assert httpx.get(url.replace("/1.jpg", "/2.jpg"), trust_env=False).status_code == 404


@pytest.mark.parametrize(
    ("form", "media_type", "beginning"),
    [
        ("srt", "application/x-subrip", "1\n00:00:0"),
        ("vtt", "text/vtt", "WEBVTT\n"),
        ("txt", "text/plain", "Speaker 1: "),
    ],
)
def test_the_transcript_comes_as_a_file(
    service: Service, demo_job: str, form: str, media_type: str, beginning: str
) -> None:
    answer = httpx.get(
        f"{service.base_url}/jobs/{demo_job}/transcript?format={form}",
        headers={"X-API-Key": service.api_key},
        trust_env=False,
    )
    assert answer.headers["content-type"].startswith(media_type)
    assert answer.headers["content-disposition"] == f'attachment; filename="demo.{form}"'
    assert answer.text.replace("\r\n", "\n").startswith(beginning)


def test_the_job_is_charged_what_the_price_table_says_and_nothing_stays_held(
    service: Service, demo_job: str
) -> None:
    estimate = httpx.get(
        f"{service.base_url}/pricing/estimate?durationSeconds=29.76", trust_env=False
    ).json()["data"]
    with service.client() as client:
        assert client.get_job(demo_job)["chargedCents"] == estimate["cents"]
    [(held,)] = service.query("SELECT held_cents FROM jobs WHERE id = %s", demo_job)
    assert held == 0


def test_processed_data_has_the_legacy_shape(service: Service, demo_job: str) -> None:
    with service.client() as client:
        data = client.get_job(demo_job, include="scenes,transcript")["processedData"]
    assert data["length"] == pytest.approx(29.76, abs=0.1)
    assert data["scenes"][0]["endTs"] == data["scenes"][0]["endTime"]
    assert set(data["transcript"][0]) == {"StartTime", "EndTime", "Text", "Speaker"}


def index_last() -> bytes:
    """The demo video with its index (moov) at the end, as cameras write it."""
    output = io.BytesIO()
    with av.open(str(DEMO)) as source, av.open(output, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return output.getvalue()


BROKEN: list[Any] = [
    pytest.param(lambda: b"This is a letter, not a film.\n" * 50, id="a text file"),
    pytest.param(lambda: index_last()[:500_000], id="an MP4 cut before its index"),
]


@pytest.mark.parametrize("content", BROKEN)
def test_what_is_no_media_fails_on_ingest_with_a_sentence_and_costs_nothing(
    service: Service, tmp_path: Path, content: Callable[[], bytes]
) -> None:
    path = tmp_path / "x.mp4"
    path.write_bytes(content())
    job = service.ended(service.submit(path))
    assert job["state"] == "failed"
    assert job["error"]["code"] in {"VALIDATION_FAILED", "INGEST_FAILED"}
    assert len(job["error"]["message"]) > 15
    assert job["stages"]["ingest"]["status"] == "failed"
    assert job["stages"]["vision"]["status"] == job["stages"]["transcript"]["status"] == "skipped"
    assert job["chargedCents"] == 0
    assert job["status"] == "INGEST_FAILED"


def test_killing_the_runner_changes_nothing_but_the_time(service: Service, demo_job: str) -> None:
    job_id = service.submit(DEMO)
    count = (
        "SELECT count(*) FROM stages WHERE job_id = %s AND stage <> 'ingest' AND status = 'running'"
    )
    shards = service.data / "objects" / "jobs" / job_id / "work"
    wait_until(lambda: service.query(count, job_id)[0][0], 300, "no analysis began")
    wait_until(lambda: computed_shards(shards), 300, "no shard was stored")
    runner = service.replica("Api")
    runner.kill()
    before = computed_shards(shards)
    job = service.ended(job_id, timeout_seconds=600)
    assert job["state"] == "completed"
    assert service.results(job_id) == service.results(demo_job)
    [(leases,)] = service.query("SELECT lease_count FROM jobs WHERE id = %s", job_id)
    assert leases == 2
    # Shards are written once, atomically: one that was computed again would be a new file.
    after = computed_shards(shards)
    assert before
    assert {name: after.get(name) for name in before} == before
    timings = service.query("SELECT timings FROM stages WHERE job_id = %s", job_id)
    assert sum(stage.get("shards_reused", 0) for (stage,) in timings) >= 1


def computed_shards(folder: Path) -> dict[str, int]:
    """Stored features and words of single shards, with the identity of their files."""
    paths = [*folder.glob("vision/features/*.npz"), *folder.rglob("*.words.json")]
    return {path.relative_to(folder).as_posix(): path.stat().st_ino for path in paths}


def test_cancelling_stops_the_work_within_seconds(service: Service) -> None:
    job_id = service.submit(DEMO)
    with service.client() as client:
        wait_until(lambda: client.get_job(job_id)["state"] == "processing", 300, "not begun")
        cancelled = client.cancel(job_id)
        assert cancelled["state"] == "cancelled"
        with pytest.raises(RequestFailedError) as again:
            client.cancel(job_id)
        assert again.value.code == "JOB_NOT_CANCELLABLE"
    folder = service.data / "objects" / "jobs" / job_id

    def is_still() -> bool:
        files = set(folder.rglob("*"))
        time.sleep(2)
        return {path for path in folder.rglob("*") if path not in files} == set()

    wait_until(is_still, 30, "work goes on after the job was cancelled")
    time.sleep(5)
    assert is_still()


def test_audio_only_media_skip_vision(service: Service) -> None:
    path = PROJECT / "tests" / "media" / "speech" / "one_voice.flac"
    job = service.ended(service.submit(path))
    assert job["state"] == "completed"
    assert job["stages"]["vision"]["status"] == "skipped"
    assert job["stages"]["vision"]["reason"] == "audio_only_input"
    with service.client() as client:
        assert client.get_transcript(job["jobId"])["segments"]
        with pytest.raises(RequestFailedError) as unavailable:
            client.get_scenes(job["jobId"])
    assert unavailable.value.code == "RESULTS_UNAVAILABLE"


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "scenes", "words"),
    [
        pytest.param("cuts/narrated-cuts-a.mp4", 6, True, marks=pytest.mark.long),
        ("cuts/bikes.mp4", 6, False),
        pytest.param("speech/jfk.wav", None, True, marks=pytest.mark.long),
    ],
)
def test_real_media(service: Service, name: str, scenes: int | None, words: bool) -> None:
    job = service.ended(service.submit(SHARED_MEDIA / name))
    assert job["state"] == "completed", job
    with service.client() as client:
        if scenes is not None:
            assert len(client.get_scenes(job["jobId"])) == scenes
        if words:
            assert len(client.get_transcript(job["jobId"])["text"].split()) > 8
        else:
            assert job["stages"]["transcript"]["reason"] == "no_audio"


@pytest.mark.long
def test_the_quickstart_notebook_runs(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VAS_URL", service.base_url)
    monkeypatch.setenv("VAS_KEY", service.api_key)
    monkeypatch.chdir(PROJECT / "notebooks")
    shown: list[Any] = []
    display = types.ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    notebook = json.loads((PROJECT / "notebooks" / "01_quickstart.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102
    names["client"].close()
    assert shown[0].size[0] > 500
    assert "good morning" in capsys.readouterr().out.lower()
