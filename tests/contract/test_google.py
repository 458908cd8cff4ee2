"""Google's own client of Video Intelligence, unchanged but for its address and its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.api_key import Credentials
from google.cloud import videointelligence_v1 as vi
from google.cloud.videointelligence_v1.services.video_intelligence_service.transports import (
    VideoIntelligenceServiceRestTransport,
)

from models.contracts import Box
from pipelines.types import ObjectTrack, Scene, ScreenText, SeenBox, StillFrame, Tag
from serve_app.api.downloads import Downloads, Limit
from serve_app.protocols import google
from serve_app.protocols.google import _followed
from tests.contract import runner_side
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.tables import every

FOOTAGE = b"footage"
URL = "https://example.com/talk.mp4"
LEFT, RIGHT = Box(0.1, 0.2, 0.2, 0.4), Box(0.6, 0.2, 0.2, 0.4)


@pytest.fixture(autouse=True)
def _fresh_rates(api: ContractApi) -> None:
    api.sql("DELETE FROM rate_limits")


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


def client_of(api: ContractApi, key: str) -> vi.VideoIntelligenceServiceClient:
    """Return the client with a key, as Google's API keys are sent."""
    scheme, _, host = api.root.partition("://")

    transport = VideoIntelligenceServiceRestTransport(
        host=host, credentials=Credentials(key), url_scheme=scheme
    )
    return vi.VideoIntelligenceServiceClient(transport=transport)


@pytest.fixture
def client(api: ContractApi, caller: Caller) -> vi.VideoIntelligenceServiceClient:
    return client_of(api, caller.customer.key)


def only_job(caller: Caller) -> Any:
    [job] = caller.get("/jobs").json()["data"]
    return job


@pytest.fixture
def rich_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenes with objects, writing, a tag and a still that was judged."""
    plain: Callable[..., Scene] = runner_side._scene

    def made(*arguments: Any) -> Scene:
        scene = plain(*arguments)
        at = scene.start_ms + 1000
        boxes = (SeenBox(at, LEFT), SeenBox(at, RIGHT), SeenBox(at + 2000, LEFT))
        return replace(
            scene,
            object_tracks=(
                ObjectTrack("person", scene.start_ms, scene.end_ms, 0.9, boxes),
                ObjectTrack("dog", scene.start_ms, at, 0.7, (SeenBox(at, RIGHT),)),
            ),
            on_screen_text=(ScreenText("Anna Weber", 0.95, LEFT, at, at + 4000),),
            tags=(Tag("kitchen", 0.31),),
            stills=(StillFrame(at, scene.thumbnail_key, 0.6),),
        )

    monkeypatch.setattr(runner_side, "_scene", made)


SEEN = [
    vi.Feature.SHOT_CHANGE_DETECTION,
    vi.Feature.LABEL_DETECTION,
    vi.Feature.OBJECT_TRACKING,
    vi.Feature.PERSON_DETECTION,
    vi.Feature.TEXT_DETECTION,
]


def annotated(client: vi.VideoIntelligenceServiceClient, **request: Any) -> Any:
    operation = client.annotate_video(request=request, timeout=60)
    [found] = operation.result(timeout=60).annotation_results
    return found


@pytest.mark.usefixtures("rich_scenes")
def test_each_feature_has_the_native_results(
    caller: Caller, client: vi.VideoIntelligenceServiceClient, runner: RunnerSide
) -> None:
    context = {
        "speech_transcription_config": {"enable_speaker_diarization": True},
        "label_detection_config": {"label_detection_mode": 3},
    }
    features = [*SEEN, vi.Feature.SPEECH_TRANSCRIPTION]
    with runner.completing():
        found = annotated(client, input_content=FOOTAGE, features=features, video_context=context)
    job_id = only_job(caller)["jobId"]
    scenes = caller.get(f"/jobs/{job_id}/scenes", include="boxes").json()["data"]["scenes"]
    assert [
        (each.start_time_offset.total_seconds(), each.end_time_offset.total_seconds())
        for each in found.shot_annotations
    ] == [(each["startTime"], each["endTime"]) for each in scenes]
    labels = {each.entity.description: each.segments for each in found.shot_label_annotations}
    assert [*labels] == ["dog", "kitchen", "person"]
    assert len(labels["kitchen"]) == len(scenes)
    assert labels["kitchen"][0].confidence == pytest.approx(0.31)
    assert {each.entity.description for each in found.segment_label_annotations} == {*labels}
    frames = {each.entity.description: each.frames for each in found.frame_label_annotations}
    assert [*frames] == [*labels]
    assert len(frames["person"]) == 2 * len(scenes)
    _boxes_are_native(found, scenes)
    [text] = found.text_annotations
    assert text.text == "Anna Weber"
    assert len(text.segments) == len(scenes)
    assert text.segments[0].frames[0].rotated_bounding_box.vertices[2].x == pytest.approx(0.3)
    said = caller.get(f"/jobs/{job_id}/transcript").json()["data"]["segments"]
    [alternative] = [each.alternatives[0] for each in found.speech_transcriptions]
    assert alternative.transcript == said[0]["text"]
    assert [
        (each.word, each.start_time.total_seconds(), each.speaker_tag) for each in alternative.words
    ] == [(each["text"], each["startTime"], 1) for each in said[0]["words"]]


def _boxes_are_native(found: Any, scenes: Any) -> None:
    """Each object of a track is one of its own, with its boxes at their times."""
    objects = [each for each in found.object_annotations if each.entity.description == "person"]
    assert len(objects) == 2 * len(scenes)
    shown = sorted(
        (frame.time_offset.total_seconds(), round(frame.normalized_bounding_box.left, 4))
        for each in objects
        for frame in each.frames
    )
    native = sorted(
        (seen["time"], seen["box"]["left"])
        for scene in scenes
        for track in scene["objectTracks"]
        if track["label"] == "person"
        for seen in track["boxes"]
    )
    assert shown == native
    people = [track for each in found.person_detection_annotations for track in each.tracks]
    assert len(people) == len(objects)


def test_scenes_have_boxes_only_where_they_are_asked_for(
    caller: Caller, runner: RunnerSide, rich_scenes: None
) -> None:
    job_id = runner.complete(caller)
    [scene, *_] = caller.get(f"/jobs/{job_id}/scenes").json()["data"]["scenes"]
    assert [set(each) for each in scene["objectTracks"]] == [
        {"label", "start", "end", "confidence"}
    ] * 2
    assert scene["stills"][0]["explicitLikelihood"] == 0.6


def test_speech_alone_makes_no_vision_stage_and_a_bucket_is_read_as_its_archive(
    caller: Caller, client: vi.VideoIntelligenceServiceClient, runner: RunnerSide
) -> None:
    with runner.completing():
        found = annotated(client, input_uri=URL, features=[vi.Feature.SPEECH_TRANSCRIPTION])
    assert only_job(caller)["processingMode"] == "transcript"
    assert found.input_uri == URL
    assert not found.shot_annotations
    options = {"processingMode": "vision"}
    archive = caller.post("/archives", {"url": "s3://footage/2024/", "options": options})
    assert archive.status_code == 201, archive.text
    client.annotate_video(
        request={"input_uri": "s3://footage/2024/a.mp4", "features": [vi.Feature.LABEL_DETECTION]}
    )
    [job] = caller.get("/jobs", state="queued").json()["data"]
    [(source,)] = caller.api.sql("SELECT source FROM jobs WHERE id = :id", id=job["jobId"])
    assert source["clips"][0]["archive_id"] == archive.json()["data"]["archiveId"]


def test_operations_are_read_listed_cancelled_and_deleted(
    caller: Caller, client: vi.VideoIntelligenceServiceClient
) -> None:
    operation = client.annotate_video(request={"input_uri": URL, "features": SEEN})
    name = operation.operation.name
    assert name.rpartition("/")[2] == only_job(caller)["jobId"]
    assert not operation.done()
    operations = client.transport.operations_client
    listed = operations.list_operations(name="projects/-/locations/-", filter_="")
    assert [each.name for each in listed] == [name]
    assert operation.cancel()
    assert only_job(caller)["state"] == "cancelled"
    with pytest.raises(exceptions.GoogleAPICallError, match="cancelled"):
        operation.result(timeout=30)
    operations.delete_operation(name=name)
    assert "erasedAt" in only_job(caller)
    with pytest.raises(exceptions.NotFound):
        operations.get_operation(name=name)


def test_a_stranger_finds_no_operation_of_another_account(
    api: ContractApi, caller: Caller, client: vi.VideoIntelligenceServiceClient
) -> None:
    made = client.annotate_video(request={"input_uri": URL, "features": SEEN}).operation.name
    operations = client_of(api, api.caller().customer.key).transport.operations_client
    assert [*operations.list_operations(name="projects/-/locations/-", filter_="")] == []
    for call in (
        operations.get_operation,
        operations.cancel_operation,
        operations.delete_operation,
    ):
        with pytest.raises(exceptions.NotFound):
            call(name=made)
    assert only_job(caller)["state"] == "queued"


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a logo": (
        {"input_uri": URL, "features": [vi.Feature.LOGO_RECOGNITION]},
        exceptions.MethodNotImplemented,
        "LOGO_RECOGNITION",
    ),
    "no policy": (
        {"input_uri": URL, "features": [vi.Feature.EXPLICIT_CONTENT_DETECTION]},
        exceptions.MethodNotImplemented,
        "policy",
    ),
    "no input": ({"features": SEEN}, exceptions.BadRequest, "inputUri"),
    "no feature": ({"input_uri": URL}, exceptions.BadRequest, "features"),
    "no address": ({"input_uri": "nowhere", "features": SEEN}, exceptions.BadRequest, "URL"),
    "an output": (
        {"input_uri": URL, "features": SEEN, "output_uri": "gs://b/o.json"},
        exceptions.BadRequest,
        "bucket",
    ),
    "a part": (
        {
            "input_uri": URL,
            "features": SEEN,
            "video_context": {"segments": [{"start_time_offset": {"seconds": 1}}]},
        },
        exceptions.BadRequest,
        "whole",
    ),
    "a language": (
        {
            "input_uri": URL,
            "features": [vi.Feature.SPEECH_TRANSCRIPTION],
            "video_context": {"speech_transcription_config": {"language_code": "xx-nowhere"}},
        },
        exceptions.BadRequest,
        "language",
    ),
}


@every("case", WRONG)
def test_what_is_wrong_raises_the_client_s_own_exception(api: ContractApi, case: str) -> None:
    request, raised, named = WRONG[case]
    caller = api.caller()
    with pytest.raises(exceptions.GoogleAPICallError, match=named) as error:
        client_of(api, caller.customer.key).annotate_video(request=request)
    assert isinstance(error.value, raised), error.value
    assert caller.get("/jobs").json()["data"] == []


def test_media_in_requests_is_bounded_before_it_is_read(
    api: ContractApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(api, api.caller().customer.key)
    large = {"input_content": b"x" * 2_000_000, "features": SEEN}
    monkeypatch.setattr(google, "_MOST_BYTES", 1_000_000)
    with pytest.raises(exceptions.GoogleAPICallError, match="larger"):
        client.annotate_video(request=large)
    monkeypatch.setattr(google, "_large", Downloads(Limit(account=0, replica=0, workers=1)))
    with pytest.raises(exceptions.TooManyRequests):
        client.annotate_video(request=large)


def test_keys_credits_and_failures_are_those_of_the_native_interface(
    api: ContractApi, runner: RunnerSide
) -> None:
    request = {"input_uri": URL, "features": SEEN}
    with pytest.raises(exceptions.Unauthorized):
        client_of(api, "vas_live_wrong").annotate_video(request=request)
    poor = api.caller(credits_cents=0)
    with pytest.raises(exceptions.Forbidden, match="credits"):
        client_of(api, poor.customer.key).annotate_video(request=request)
    busy = api.caller()
    account = busy.customer.account_id
    api.sql("UPDATE accounts SET max_active_jobs = 1 WHERE id = :id", id=account)
    client_of(api, busy.customer.key).annotate_video(request=request)
    with pytest.raises(exceptions.TooManyRequests, match="unfinished"):
        client_of(api, busy.customer.key).annotate_video(request=request)
    broken = request | {"input_uri": "https://example.com/bad.mp4"}
    operation = client_of(api, api.caller().customer.key).annotate_video(request=broken)
    with runner.completing(), pytest.raises(exceptions.GoogleAPICallError, match="broke"):
        operation.result(timeout=30)


def test_objects_of_a_class_are_followed_by_overlap() -> None:
    moved = replace(LEFT, left=0.15)
    boxes = (SeenBox(0, LEFT), SeenBox(0, RIGHT), SeenBox(2, moved), SeenBox(2, RIGHT))
    track = ObjectTrack("person", 0, 4, 0.9, boxes)
    one, two = sorted(_followed(track), key=lambda each: each[0].box.left)
    assert [each.box for each in one] == [LEFT, moved]
    assert [each.box for each in two] == [RIGHT, RIGHT]
    assert _followed(replace(track, boxes=None)) == []
