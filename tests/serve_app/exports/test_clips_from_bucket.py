"""Clips of a source in a bucket: of a long file little is fetched, and the clip is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from pipelines.ingest.pipeline import probe
from pipelines.types import IngestResult
from serve_app.settings import Settings
from storage.objects.s3 import S3Store, client_of
from tests.databases import fresh_database
from tests.pipelines.ingest.ingest_material import remuxed, with_tag_times
from tests.serve_app.exports.test_clips import clip, pictures, publish_ingest
from tests.serve_app.published_jobs import created, media
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.storage.s3_server import fresh_store
from tests.tables import every

SECONDS, RATE = 12, 25


@pytest.fixture(scope="module")
def api_settings(
    postgres_url: str, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    with fresh_database(postgres_url) as url:
        place = fresh_store(endpoint).place
        yield Settings(
            data_dir=tmp_path_factory.mktemp("data"),
            database_url=url,
            secret_key=SECRET,
            s3_bucket=place.bucket,
            s3_endpoint_url=endpoint,
            s3_access_key_id=place.access_key_id,
            s3_secret_access_key=place.secret_access_key,
        )


@pytest.fixture(scope="module", params=["mp4", "mkv", "ts"])
def film(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, some two megabytes a second; an MP4 has its table at the end."""
    path: Path = tmp_path_factory.mktemp("film") / f"film.{request.param}"
    noise = np.random.default_rng(7)
    options = {"preset": "ultrafast", "qp": "8", "threads": "1"}
    with av.open(str(path), "w") as target:
        stream: Any = target.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.codec_context.gop_size = 320, 240, RATE
        for number in range(SECONDS * RATE):
            planes = noise.integers(0, 256, (360, 320), np.uint8)
            frame: Any = av.VideoFrame.from_ndarray(planes, "yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def job(api: RunningApi, owner: Customer, film: Path) -> str:
    """A job of the film, which is in the bucket."""
    made = created(api, owner)
    api.context.objects.write_bytes(f"jobs/{made}/source/clip-000", film.read_bytes())
    publish_ingest(api, made, IngestResult(probe(film), None, ()))
    return made


@pytest.fixture(scope="module")
def shown(film: Path) -> list[Any]:
    return pictures(str(film))


@contextmanager
def fetched_bytes(api: RunningApi) -> Iterator[list[int]]:
    """What the bucket sends during the block, answer by answer."""
    store = api.context.objects
    assert isinstance(store, S3Store)
    events, found = client_of(store.place).meta.events, list[int]()

    def note(parsed: dict[str, Any], **_: Any) -> None:
        found.append(int(parsed["ContentLength"]))

    events.register("after-call.s3.GetObject", note)
    try:
        yield found
    finally:
        events.unregister("after-call.s3.GetObject", note)


@every("start", [0, 6.2, 11])
def test_a_clip_of_a_second_fetches_little_of_a_long_file(
    api: RunningApi, owner: Customer, job: str, film: Path, shown: list[Any], start: float
) -> None:
    with fetched_bytes(api) as fetched:
        answer = clip(api, owner, job, start, start + 1)
    assert answer.status_code == 200, answer.text
    assert sum(fetched) < film.stat().st_size / 2
    true_start = float(answer.headers["x-clip-start"])
    (path := film.with_name("clip")).write_bytes(answer.content)
    expected = [p for t, p in shown if true_start <= round(t, 3) < start + 1]
    assert expected
    assert [picture for _, picture in pictures(str(path))][: len(expected)] == expected


def test_a_source_that_is_gone_is_not_found(api: RunningApi, customer: Customer) -> None:
    job = created(api, customer)
    publish_ingest(api, job, IngestResult(media(1), None, ()))
    assert clip(api, customer, job, 0, 1).status_code == 404


@pytest.mark.parametrize("film", ["mp4"], indirect=True)
def test_of_a_file_whose_clock_leaps_no_more_is_fetched_than_up_to_the_clips_end(
    api: RunningApi, customer: Customer, film: Path, tmp_path: Path
) -> None:
    """The times of its content are counted from its beginning."""
    plain = remuxed(film, tmp_path / "plain.flv")
    leaps = with_tag_times(
        plain, tmp_path / "leaps.flv", lambda _, n, ms: ms + 7_200_000 * (n > 250)
    )
    job = created(api, customer)
    api.context.objects.write_bytes(f"jobs/{job}/source/clip-000", leaps.read_bytes())
    publish_ingest(api, job, IngestResult(probe(leaps), None, ()))
    with fetched_bytes(api) as fetched:
        answer = clip(api, customer, job, 2, 3)
    assert answer.status_code == 200, answer.text
    assert sum(fetched) < leaps.stat().st_size / 2
    (found := tmp_path / "clip").write_bytes(answer.content)
    expected = [shown for time, shown in pictures(str(plain)) if 2 <= round(time, 3) < 3]
    assert [shown for _, shown in pictures(str(found))][: len(expected)] == expected
