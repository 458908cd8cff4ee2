"""The preview of a job's media: made once, played in the source's place, and gone with it."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import av
import httpx
import pytest

from pipelines.codec import to_json
from pipelines.ingest.pipeline import probe
from pipelines.types import IngestResult
from serve_app.context import AppContext
from serve_app.observability.metrics import PREVIEWS
from serve_app.work import publishing
from serve_app.work.previews import make_job_preview
from storage import jobs, uploads
from storage.database import Connection
from storage.types import PreviewStatus, StageName
from storage.uploads import Preview, preview_key
from storage.work import lease_next
from tests.pipelines.ingest.format_samples import STANDARD, Pictures, Sample, Sound, write_sample
from tests.serve_app.beside_jobs import behind, clean_due, make_due, step
from tests.serve_app.dashboard.test_dashboard_pages import link_token, visitor
from tests.serve_app.observability.metrics import RecordedMetrics
from tests.serve_app.published_jobs import SCENES, lease_of, stored, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_job_media import path_of

pytestmark = pytest.mark.usefixtures("previews_at_once")

MPEG = next(sample for sample in STANDARD if sample.file_name == "mpeg2.mpeg")
LARGE = Sample("large.mkv", Pictures("ffv1", 1920, 1080), Sound("flac", format="s16"))
"""Takes some seconds."""


@pytest.fixture(autouse=True)
def nothing_waits(api: RunningApi) -> Iterator[None]:
    """Neither jobs nor previews of one test for the next."""
    yield
    while api.transact(lambda c: jobs.lease_next(c, lease=timedelta(seconds=60))):
        pass
    api.sql("DELETE FROM work")


def at_work(
    api: RunningApi, work: Callable[[AppContext], Coroutine[Any, Any, Any]]
) -> RecordedMetrics:
    """Run ``work`` as a runner would, in a loop of its own."""
    metrics = RecordedMetrics()
    behind(api, work, metrics)
    return metrics


def make(api: RunningApi) -> RecordedMetrics:
    """Make the next preview."""
    return at_work(api, lambda context: step(context, make_job_preview))


def wanting(api: RunningApi, customer: Customer, path: Path, *, ends: bool = True) -> str:
    """A job of a file that needs a preview."""
    answer = api.client.post("/jobs", json={"fileName": path.name}, headers=customer.headers)
    job = answer.json()["data"]
    httpx.put(job["uploadUrl"], content=b"-", trust_env=False).raise_for_status()
    job_id: str = job["jobId"]
    media = probe(path)
    [source] = api.context.objects.list_keys(f"jobs/{job_id}/source")
    api.context.objects.write_bytes(source, path.read_bytes())  # larger than may be sent here

    async def publish(connection: Connection) -> None:
        lease = await lease_of(connection, job_id)
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await publishing.raise_hold(connection, lease, media, api.context.prices)
        await publishing.publish_ingest(
            connection, lease, media=media, result=to_json(IngestResult(media, None, ())),
            track_names=["Track 1"], warnings=[], timings={}, preview_of=source,
        )  # fmt: skip
        if ends:
            await publishing.publish_scenes(connection, lease, stored(SCENES), {})
            await publishing.publish_transcripts(connection, lease, [track(0)], {})

    api.transact(publish)
    return job_id


def preview(api: RunningApi, job_id: str) -> Preview:
    found = api.transact(lambda c: uploads.find_preview(c, uuid.UUID(job_id)))
    assert found is not None
    return found


def page(api: RunningApi, customer: Customer, job_id: str) -> str:
    with visitor(api) as client:
        client.post("/dashboard/sign-in", data={"token": link_token(api, customer)})
        return client.get(f"/dashboard/jobs/{job_id}").text


def test_a_preview_is_played_in_place_of_the_source(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    path = write_sample(tmp_path, MPEG)
    job_id = wanting(api, customer, path)
    assert path_of(api, job_id) is None
    shown = page(api, customer, job_id)
    assert "A copy that they can play is being made" in shown
    assert 'id="player"' not in shown
    metrics = make(api)
    assert len(metrics.of(PREVIEWS, outcome="made")) == 1
    address = f"{api.root}{path_of(api, job_id)}"
    answer = httpx.get(address, trust_env=False)
    assert answer.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(answer.content)) as container:
        assert [stream.codec_context.name for stream in container.streams] == ["h264", "aac"]
    part = httpx.get(address, headers={"Range": "bytes=4-7"}, trust_env=False)
    assert (part.status_code, part.content) == (206, b"ftyp")
    original = httpx.get(f"{address}&original=true", trust_env=False)
    assert original.content == path.read_bytes()
    shown = page(api, customer, job_id)
    assert 'id="player"' in shown
    assert "&amp;original=true" in shown  # what is offered to take away


def test_a_preview_is_made_once(api: RunningApi, customer: Customer, tmp_path: Path) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, MPEG))
    for outcomes in (1, 0):
        assert len(make(api).of(PREVIEWS, outcome="made")) == outcomes
    api.transact(lambda c: uploads.want_preview(c, uuid.UUID(job_id), "another"))
    assert make(api).values == {}
    assert preview(api, job_id).status is PreviewStatus.MADE


def test_what_cannot_be_made_fails_alone_and_the_page_says_why(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, MPEG))
    [source] = api.context.objects.list_keys(f"jobs/{job_id}/source")
    api.context.objects.write_bytes(source, b"<b>no media</b>" * 100)
    assert len(make(api).of(PREVIEWS, outcome="failed")) == 1
    assert preview(api, job_id).status is PreviewStatus.FAILED
    shown = page(api, customer, job_id)
    assert "no copy that they can play could be made. The file is not a media file" in shown
    job = api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]
    assert job["state"] == "completed"
    assert make(api).values == {}


def test_a_cancelled_job_stops_the_making_of_its_preview(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, LARGE), ends=False)
    cancel = threading.Timer(
        0.5, lambda: api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    )
    cancel.start()
    metrics = make(api)
    cancel.join()
    [seconds] = metrics.of(PREVIEWS, outcome="failed")
    assert seconds < 4
    assert not api.context.objects.exists(preview_key(uuid.UUID(job_id)))
    assert preview(api, job_id).status is PreviewStatus.FAILED


def test_a_preview_goes_with_the_source(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, MPEG))
    make(api)
    key = preview_key(uuid.UUID(job_id))
    assert api.context.objects.exists(key)
    api.sql("UPDATE jobs SET completed_at = now() - interval '40 days' WHERE id = :id",
        id=uuid.UUID(job_id),
    )  # fmt: skip
    at_work(api, clean_due)
    assert not api.context.objects.exists(key)
    assert path_of(api, job_id) is None
    assert "the media was removed after its retention time" in page(api, customer, job_id)


def test_one_that_comes_after_the_media_was_removed_is_not_kept(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, MPEG))
    api.sql("UPDATE jobs SET cleaned_at = now() WHERE id = :id", id=uuid.UUID(job_id))
    assert len(make(api).of(PREVIEWS, outcome="failed")) == 1
    assert not api.context.objects.exists(preview_key(uuid.UUID(job_id)))


def test_media_whose_makers_are_lost_are_given_up(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    job_id = wanting(api, customer, write_sample(tmp_path, MPEG))

    async def lost(context: AppContext) -> None:
        assert (await lease_next(context.database, [make_job_preview.terms]))[0]

    for _ in range(make_job_preview.attempts or 0):
        at_work(api, lost)
        make_due(api)
    assert make(api).values == {}
    assert preview(api, job_id).status is PreviewStatus.FAILED
    assert "lost again and again" in page(api, customer, job_id)
