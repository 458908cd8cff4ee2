"""Clips of a source: from the key frame before, to the frame, in ranges, and only while it is kept.

The program that copies runs confined, as in the service; files are real.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from pipelines.codec import to_json
from pipelines.ingest.pipeline import probe
from pipelines.media.files import rounded_ms
from pipelines.types import ClipSpan, IngestResult, VideoPart, VideoSource
from serve_app.work import publishing
from storage.types import StageName
from tests.pipelines.ingest.clock_material import remuxed, with_tag_times, write_film
from tests.pipelines.ingest.ingest_material import (
    HEIGHT,
    WIDTH,
    Clip,
    Sound,
    clicks,
    picture,
    write_clip,
    write_sound,
)
from tests.pipelines.ingest.test_clocks import TAGS
from tests.places import PROJECT
from tests.serve_app.interface_contract import Contract
from tests.serve_app.published_jobs import lease_of
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

DEMO = PROJECT / "tests" / "media" / "demo.mp4"


def ingested_job(api: RunningApi, customer: Customer, path: Path) -> str:
    """A job whose media was uploaded and whose ingest is published."""
    answer = api.client.post("/jobs", json={"fileName": path.name}, headers=customer.headers)
    job = answer.json()["data"]
    httpx.put(job["uploadUrl"], content=path.read_bytes(), trust_env=False).raise_for_status()
    job_id: str = job["jobId"]
    publish_ingest(api, job_id, IngestResult(probe(path), None, ()))
    return job_id


def publish_ingest(api: RunningApi, job_id: str, found: IngestResult) -> None:
    async def publish(connection: AsyncConnection) -> None:
        lease = await lease_of(connection, job_id)
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await publishing.raise_hold(connection, lease, found.media, api.context.prices)
        await publishing.publish_ingest(
            connection,
            lease,
            media=found.media,
            result=to_json(found),
            track_names=[],
            warnings=[],
            timings={},
        )

    api.transact(publish)


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def job(api: RunningApi, owner: Customer) -> str:
    return ingested_job(api, owner, DEMO)


def clip(
    api: RunningApi, owner: Customer, job: str, start: float, end: float, **headers: str
) -> httpx.Response:
    query = {"start": start, "end": end}
    return api.client.get(f"/jobs/{job}/clip", params=query, headers=owner.headers | headers)


def key_times(path: Path) -> list[float]:
    with av.open(str(path)) as source:
        return [float(packet.pts * packet.time_base) for packet in source.demux(video=0)
                if packet.is_keyframe and packet.pts is not None]  # fmt: skip


def pictures(data: Any) -> list[Any]:
    """Decoded pictures with their times in seconds."""
    with av.open(data) as source:
        return [(frame.time, bytes(frame.planes[0])) for frame in source.decode(video=0)]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (3.3, 6.1), (7.98, 8.02), (11, 14.9)])
def test_a_clip_begins_at_the_key_frame_before_and_ends_with_the_last_frame(
    api: RunningApi, owner: Customer, job: str, start: float, end: float
) -> None:
    answer = clip(api, owner, job, start, end)
    assert answer.status_code == 200, answer.text
    true_start = float(answer.headers["x-clip-start"])
    assert true_start == max(time for time in key_times(DEMO) if time <= start)
    found = pictures(io.BytesIO(answer.content))
    expected = [(t, p) for t, p in pictures(str(DEMO)) if true_start <= t < end]
    # At most two pictures more: the last ones may refer to them.
    assert len(expected) <= len(found) <= len(expected) + 2
    found = found[: len(expected)]
    offset = found[0][0]
    for (time, shown), (source_time, source_shown) in zip(found, expected, strict=True):
        assert time - offset == pytest.approx(source_time - true_start, abs=0.002)
        assert shown == source_shown


def test_a_clip_is_named_after_its_source_and_time(
    api: RunningApi, owner: Customer, job: str
) -> None:
    answer = clip(api, owner, job, 0, 1)
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["content-disposition"] == 'attachment; filename="demo-0ms.mp4"'
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize(
    ("asked", "first", "end"),
    [("bytes=0-99", 0, 100), ("bytes=100-", 100, None), ("bytes=-50", -50, None)],
)
def test_a_range_is_that_part_of_the_same_bytes(
    api: RunningApi, owner: Customer, job: str, asked: str, first: int, end: int | None
) -> None:
    whole = clip(api, owner, job, 3, 4).content
    answer = clip(api, owner, job, 3, 4, Range=asked)
    assert answer.status_code == 206
    assert answer.content == whole[first:end]
    begin = first % len(whole)
    expected = f"bytes {begin}-{begin + len(answer.content) - 1}/{len(whole)}"
    assert answer.headers["content-range"] == expected


@every(
    "asked", ["bytes=99999999999-", "bytes=5-2", "bytes=-0", "bytes=0-1,4-5", "lines=1-2", "bytes="]
)
def test_what_is_no_range_of_these_bytes_gets_the_whole(
    api: RunningApi, owner: Customer, job: str, asked: str
) -> None:
    answer = clip(api, owner, job, 3, 4, Range=asked)
    assert (answer.status_code, answer.content) == (200, clip(api, owner, job, 3, 4).content)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Range": "bytes=0-9"}, {"Accept": "application/octet-stream"}],
    ids=["whole", "part", "as bytes of any kind"],
)
def test_the_answer_is_as_documented(
    api: RunningApi, owner: Customer, job: str, headers: dict[str, str]
) -> None:
    answer = clip(api, owner, job, 3, 4, **headers)
    Contract(api.client.get("/openapi.json").json()).check("getClip", answer)
    assert answer.headers["content-type"] == headers.get("Accept", "video/mp4")


@pytest.mark.parametrize(
    ("start", "end", "param"),
    [(1, 1, "end"), (2, 1, "end"), (0, 601, "end"), (0, 500, "end"), (400, 401, "start")],
)
def test_times_out_of_the_media_are_refused_by_name(
    api: RunningApi, owner: Customer, job: str, start: float, end: float, param: str
) -> None:
    answer = clip(api, owner, job, start, end)
    assert (answer.status_code, answer.json()["param"]) == (400, param)


def test_a_source_that_is_gone_is_not_found(api: RunningApi, customer: Customer) -> None:
    job = ingested_job(api, customer, DEMO)
    api.context.objects.delete_prefix(f"jobs/{job}/source")
    answer = clip(api, customer, job, 0, 1)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


FILES = [
    Clip("b-frames.mkv", "libx264", {"x264-params": "keyint=25:bframes=3:threads=1"}, frames=150),
    Clip("open.ts", "mpeg2video", frames=150, b_frames=2),
    Clip("old.avi", "mpeg4", frames=150),
]


@pytest.mark.parametrize("made", FILES, ids=lambda made: made.file_name)
def test_other_containers_become_matroska(
    api: RunningApi, customer: Customer, made: Clip, tmp_path: Path
) -> None:
    path = write_clip(tmp_path, made)
    job = ingested_job(api, customer, path)
    answer = clip(api, customer, job, 2.5, 4)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "video/x-matroska"
    true_start = float(answer.headers["x-clip-start"])
    assert 0 < true_start <= 2.5
    found = pictures(io.BytesIO(answer.content))
    assert len(found) == pytest.approx((4 - true_start) * 25, abs=2)


def test_sound_alone_begins_where_it_is_asked(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    path = PROJECT / "tests" / "media" / "speech" / "one_voice.flac"
    job = ingested_job(api, customer, path)
    answer = clip(api, customer, job, 1, 3)
    assert answer.status_code == 200, answer.text
    assert float(answer.headers["x-clip-start"]) == pytest.approx(1, abs=0.3)
    with av.open(io.BytesIO(answer.content)) as source:
        seconds = sum(frame.samples / frame.sample_rate for frame in source.decode(audio=0))
    assert seconds == pytest.approx(3 - float(answer.headers["x-clip-start"]), abs=0.3)


RATES = ("24000/1001", "24", "25", "30000/1001", "30", "50", "60000/1001", "60")
SCENE_FRAMES = 7


def write_scenes(path: Path, rate: Fraction, scenes: int) -> None:
    """Pictures with B-frames and a key frame at each scene's beginning, beside sound."""
    sound = np.sin(np.arange(48_000 * 3) / 40).astype(np.float32).reshape(1, -1)
    with av.open(str(path), "w") as target:
        video: Any = target.add_stream("libx264", rate=rate, options={"bf": "2", "threads": "1"})
        video.width, video.height, video.codec_context.gop_size = WIDTH, HEIGHT, SCENE_FRAMES
        audio: Any = target.add_stream("aac", rate=48_000, layout="mono")
        samples: Any = av.AudioFrame.from_ndarray(sound, "fltp", "mono")
        samples.sample_rate, samples.pts = 48_000, 0
        target.mux(audio.encode(samples))
        for number in range(SCENE_FRAMES * scenes):
            frame: Any = av.VideoFrame.from_ndarray(picture(number), "yuv420p")
            frame.pts, frame.time_base = number, 1 / rate
            target.mux(video.encode(frame))
        target.mux([*video.encode(None), *audio.encode(None)])


@pytest.mark.parametrize("ending", ["mp4", "mov"])
@pytest.mark.parametrize("rate", [Fraction(each) for each in RATES], ids=RATES)
def test_the_clip_of_a_scene_has_its_frames_all_and_no_others(
    api: RunningApi, customer: Customer, rate: Fraction, ending: str, tmp_path: Path
) -> None:
    """The times of results are rounded to milliseconds, up or down."""
    path = tmp_path / f"film.{ending}"
    write_scenes(path, rate, scenes=6)
    source = pictures(str(path))
    assert len(source) == 6 * SCENE_FRAMES
    job = ingested_job(api, customer, path)
    for first in range(0, 6 * SCENE_FRAMES, SCENE_FRAMES):
        start_ms, end_ms = (rounded_ms(n, 1 / rate) for n in (first, first + SCENE_FRAMES))
        answer = clip(api, customer, job, start_ms / 1000, end_ms / 1000)
        assert answer.status_code == 200, answer.text
        found = pictures(io.BytesIO(answer.content))
        expected = [each for _, each in source[first : first + SCENE_FRAMES]]
        assert [each for _, each in found] == expected
        assert [round(time * rate, 2) for time, _ in found] == list(range(SCENE_FRAMES))


def joined_job(api: RunningApi, customer: Customer) -> str:
    """A continuous job of two clips whose ingest is published."""
    clips = [{"sourceUrl": f"https://media.example.com/{number}.mp4"} for number in range(2)]
    body = {"mode": "continuous", "clips": clips}
    answer = api.client.post("/jobs/batch", json=body, headers=customer.headers)
    [job] = answer.json()["data"]["jobs"]
    media = probe(DEMO)
    assert media.video is not None
    length_ms = round(media.duration_seconds * 1000)
    spans = [ClipSpan(number, "demo.mp4", number * length_ms, length_ms) for number in range(2)]
    parts = tuple(
        VideoPart(media.video, media.origin_ms - span.start_ms, span.start_ms,
                  span.start_ms + length_ms)
        for span in spans
    )  # fmt: skip
    for number in range(2):
        key = f"jobs/{job['jobId']}/source/clip-{number:03d}"
        api.context.objects.write_bytes(key, DEMO.read_bytes())
    whole = replace(media, duration_seconds=2 * length_ms / 1000)
    video = VideoSource(media.video, 2 * length_ms, media.origin_ms, (), parts)
    publish_ingest(api, job["jobId"], IngestResult(whole, video, (), clips=tuple(spans)))
    job_id: str = job["jobId"]
    return job_id


def test_a_clip_of_a_continuous_job_comes_from_the_file_that_is_there(
    api: RunningApi, customer: Customer
) -> None:
    job = joined_job(api, customer)
    length = probe(DEMO).duration_seconds
    first = clip(api, customer, job, 3.3, 6.1)
    second = clip(api, customer, job, length + 3.3, length + 6.1)
    assert (second.status_code, second.content) == (200, first.content)
    started = [float(answer.headers["x-clip-start"]) for answer in (first, second)]
    assert started[1] - started[0] == pytest.approx(length, abs=0.002)
    across = clip(api, customer, job, length - 1, length + 1)
    assert (across.status_code, across.json()["param"]) == (400, "end")


@pytest.mark.parametrize("kind", ["begins again", "leaps two hours", "a stray tag of sound"])
def test_a_clip_of_a_file_whose_clock_leaps_is_of_the_content_at_that_time(
    kind: str, api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    plain = remuxed(write_film(tmp_path / "film.mp4"), tmp_path / "plain.flv")
    expected = clip(api, customer, ingested_job(api, customer, plain), 4.4, 5.6)
    path = with_tag_times(plain, tmp_path / "leaps.flv", TAGS[kind])

    found = clip(api, customer, ingested_job(api, customer, path), 4.4, 5.6)

    assert found.status_code == 200, found.text
    assert found.headers["x-clip-start"] == expected.headers["x-clip-start"]
    assert digests(found.content) == digests(expected.content)


def digests(content: bytes) -> list[tuple[int, int]]:
    """Stream and checksum of each packet."""
    with av.open(io.BytesIO(content)) as source:
        return [(each.stream.index, zlib.crc32(bytes(each))) for each in source.demux()]


def test_a_clip_of_the_second_of_two_files_joined_has_its_format(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    parts = [
        write_sound(tmp_path, Sound(f"{rate}.wav", "pcm_s16le", rate), clicks([0.5], 3.0, rate))
        for rate in (16_000, 48_000)
    ]
    path = tmp_path / "joined.wav"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    job = ingested_job(api, customer, path)

    answer = clip(api, customer, job, 3.2, 5)
    across = clip(api, customer, job, 2, 4)

    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as source:
        assert source.streams.audio[0].rate == 48_000
    assert (across.status_code, across.json()["code"]) == (404, "NOT_FOUND")
    assert "format changes" in across.json()["error"]
