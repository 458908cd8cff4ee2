"""One item of a backfill, from wherever its source lies, and what becomes of one that breaks."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import cast

import pytest

from models.contracts import AudioChunk, ChunkTranscript
from models.provider import LocalModels
from models.tasks import DESCRIBE_SCENES, TRANSCRIBE, Contract, Task
from pipelines.backfill.items import ItemWork, SourceRules
from pipelines.backfill.manifest import Item, read_manifest
from pipelines.backfill.output import ItemOutcome
from pipelines.collection import BucketAccess, Place, place_at
from pipelines.net.addresses import AddressPolicy
from storage.objects.s3 import S3Place, S3Store, client_of
from storage.types import ProcessingMode, StageName, StageStatus
from tests.pipelines.backfill.backfill_material import carry_out, write_clips
from tests.storage.s3_server import fresh_store

LOOPBACK = AddressPolicy(allowed_networks=(ip_network("127.0.0.0/8"),))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips"), 1)[0]


@pytest.fixture(scope="module")
def web(clip: Path) -> Iterator[str]:
    """The clip's folder on a web server."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(clip.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def bucket(clip: Path, endpoint: str) -> Place:
    """A bucket with the clip in it."""
    own = fresh_store(endpoint).place
    place = place_at(f"s3://{own.bucket}", access_of(own))
    place.files.write_bytes("footage/clip.mkv", clip.read_bytes())
    return place


def access_of(place: S3Place) -> BucketAccess:
    return BucketAccess(
        place.endpoint_url, place.region, place.access_key_id, place.secret_access_key
    )


def own_of(bucket: Place) -> S3Place:
    assert isinstance(bucket.files, S3Store)
    return bucket.files.place


def item_at(source: str, mode: ProcessingMode = ProcessingMode.ALL) -> Item:
    return Item(id="one", row=1, source=source, name="clip.mkv", mode=mode)


@pytest.fixture(scope="module")
def expected(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> ItemOutcome:
    """What comes of the clip as a file, in a folder."""
    return carry_out(work_in(str(tmp_path_factory.mktemp("out"))), item_at(str(clip)))


def work_in(out: str, rules: SourceRules | None = None) -> ItemWork:
    rules = rules or SourceRules()
    return ItemWork(
        out=place_at(out, rules.access),
        models=LocalModels(),
        profile="packaged",
        run="this",
        rules=rules,
    )


def results(outcome: ItemOutcome) -> ItemOutcome:
    """Without what differs from source to source and from run to run."""
    return replace(outcome, item=item_at(""), seconds=0.0)


def test_a_clip_has_scenes_and_words(expected: ItemOutcome) -> None:
    assert expected.status is StageStatus.COMPLETED
    assert len(expected.scenes) == 2
    assert expected.scenes[1].start_ms == pytest.approx(720, abs=1)
    assert (transcript := expected.tracks[0].transcript) is not None
    assert transcript.segments


def test_the_same_comes_of_it_from_the_web_and_from_a_bucket(
    expected: ItemOutcome, web: str, bucket: Place, tmp_path: Path
) -> None:
    rules = SourceRules(access=access_of(own_of(bucket)), addresses=LOOPBACK)
    bucket_url = bucket.address
    fetched = carry_out(work_in(str(tmp_path), rules), item_at(f"{web}/clip-0000.mkv"))
    assert results(fetched) == results(expected)
    out = work_in(f"{bucket_url}results", rules)
    copied = carry_out(out, item_at(f"{bucket_url}footage/clip.mkv"))
    assert results(copied) == results(expected)
    assert out.out.files.read_bytes(copied.scenes[0].thumbnail_key).startswith(b"\xff\xd8")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("/nowhere/clip.mkv", "There is no such file.", id="no file"),
        pytest.param("/", "There is no such file.", id="folder"),
        pytest.param("{bucket}footage/none.mkv", "There is no such file.", id="no object"),
        pytest.param("s3://no-such-bucket-here/x", "NoSuchBucket", id="no bucket"),
        pytest.param("{web}/none.mkv", "404", id="not on the web"),
        pytest.param("http://10.1.2.3/x.mkv", "cannot be used", id="forbidden address"),
    ],
)
def test_a_source_that_cannot_be_had_fails_ingest(
    web: str, bucket: Place, tmp_path: Path, source: str, message: str
) -> None:
    rules = SourceRules(access=access_of(own_of(bucket)), addresses=LOOPBACK)
    address = source.format(web=web, bucket=bucket.address)
    outcome = carry_out(work_in(str(tmp_path), rules), item_at(address))
    [failure] = outcome.failures
    assert (failure.stage, failure.code) == (StageName.INGEST, "FETCH_FAILED")
    assert message in str(failure.message)
    assert {it.reason for it in outcome.stages if it.status is StageStatus.SKIPPED} == {
        "job_failed"
    }


@dataclass(frozen=True)
class BrokenTranscriber:
    """A backend whose every call fails."""

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        raise RuntimeError("out of memory")


class BrokenModels(LocalModels):
    """The packaged models, but for the transcriber."""

    def find(self, task: Task[Contract]) -> Contract | None:
        return cast("Contract", BrokenTranscriber()) if task is TRANSCRIBE else super().find(task)


def test_a_stage_that_fails_leaves_the_other_ones_results(
    clip: Path, expected: ItemOutcome, tmp_path: Path
) -> None:
    work = replace(work_in(str(tmp_path)), models=BrokenModels())
    outcome = carry_out(work, item_at(str(clip)))
    assert outcome.scenes == expected.scenes
    [failure] = outcome.failures
    assert (failure.stage, failure.code) == (StageName.TRANSCRIPT, "TRANSCRIPT_FAILED")
    assert "out of memory" in str(failure.message)


def test_an_outcome_that_is_stored_is_not_worked_out_again(clip: Path, tmp_path: Path) -> None:
    work = work_in(str(tmp_path))
    first = carry_out(work, item_at(str(clip), ProcessingMode.TRANSCRIPT))
    again = replace(work, models=BrokenModels())
    assert carry_out(again, item_at(str(clip), ProcessingMode.TRANSCRIPT)) == first


def test_a_task_that_outlives_its_killed_driver_takes_nothing_from_the_next_run(
    clip: Path, expected: ItemOutcome, tmp_path: Path
) -> None:
    """It ends its item while a task of the next run is in the middle of the same one."""
    item = item_at(str(clip))
    orphan = work_in(str(tmp_path))
    ended: list[ItemOutcome] = []

    @dataclass(frozen=True)
    class Overtaken(LocalModels):
        """Models that the orphan's end comes before."""

        def find(self, task: Task[Contract]) -> Contract | None:
            if task is DESCRIBE_SCENES and not ended:
                with ThreadPoolExecutor(1) as other_task:
                    ended.append(other_task.submit(carry_out, orphan, item).result())
            return LocalModels.find(self, task)

    work = replace(orphan, models=Overtaken(), run="the next one")
    outcome = carry_out(work, item)
    assert len(ended) == 1
    assert not outcome.failures
    assert (outcome.scenes, outcome.tracks) == (expected.scenes, expected.tracks)


def test_stages_run_in_the_thread_of_the_task_which_signals_unwind(
    clip: Path, tmp_path: Path
) -> None:
    threads: set[int] = set()

    @dataclass(frozen=True)
    class Observed(LocalModels):
        """The packaged models; note the threads that ask for them."""

        def find(self, task: Task[Contract]) -> Contract | None:
            threads.add(threading.get_ident())
            return LocalModels.find(self, task)

    work = replace(work_in(str(tmp_path)), models=Observed())
    assert not carry_out(work, item_at(str(clip))).failures
    assert threads == {threading.get_ident()}


def test_an_item_whose_worker_was_lost_twice_in_this_run_fails(clip: Path, tmp_path: Path) -> None:
    work, item = work_in(str(tmp_path)), item_at(str(clip), ProcessingMode.VISION)
    store = work.out.work
    for run, count in (("an earlier one", 5), ("this", 2)):
        for number in range(count):
            store.write_bytes(f"{item.folder}/runs/{run}/ingest/0/begun/0/{number}", b"")
    [failure] = carry_out(work, item).failures
    assert failure.code == "PROCESSING_FAILED"
    fresh = replace(work, run="the next one", out=place_at(str(tmp_path / "other"), BucketAccess()))
    assert carry_out(fresh, item).status is StageStatus.COMPLETED


def test_manifests_and_prefixes_in_a_bucket_name_its_objects(bucket: Place) -> None:
    bucket.files.write_bytes(
        "lists/june.csv", b"source\nclip.mkv\ns3://other/clip.mkv\n/disk/clip.mkv\n"
    )
    bucket.files.write_bytes("lists/deep/.hidden/x.mkv", b"")
    listed = read_manifest(f"{bucket.address}lists/june.csv", access_of(own_of(bucket)))
    assert [item.source for item in listed.items] == [
        f"{bucket.address}lists/clip.mkv",
        "s3://other/clip.mkv",
        "/disk/clip.mkv",
    ]
    below = read_manifest(f"{bucket.address}lists", access_of(own_of(bucket)))
    assert [item.source for item in below.items] == [f"{bucket.address}lists/june.csv"]


def test_the_bucket_holds_nothing_of_the_work_in_the_end(bucket: Place) -> None:
    place = place_at(f"{bucket.address}emptied", access_of(own_of(bucket)))
    place.work.write_bytes("folder/source", b"media")
    place.files.delete_prefix("_work")
    listing = client_of(own_of(bucket)).list_objects_v2(
        Bucket=own_of(bucket).bucket, Prefix="emptied"
    )
    assert listing["KeyCount"] == 0
