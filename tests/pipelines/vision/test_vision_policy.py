"""The vision stage under a content policy: what is blocked, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import pytest

from models.contracts import Picture
from models.provider import LocalModels
from models.tasks import CLASSIFY_CONTENT, Contract, Task
from pipelines.execution.chain import FreeRun, Workspace
from pipelines.types import StageCode, StageError, VideoSource, VisionResult
from pipelines.vision.blocked_pictures import UnreadableMediaError, listed_stills
from pipelines.vision.detections import checked_times
from pipelines.vision.pipeline import VisionConfig, analyse_vision
from pipelines.vision.policy import ContentPolicy, packed
from tests.pipelines.media_builders import (
    folder_workspace,
    still_shot,
    texture,
    video_source,
    write_video,
)
from tests.places import PROJECT

MEDIA = PROJECT / "../shared/media"
BLOCKED_SHOT = 21

pytestmark = pytest.mark.usefixtures("ray_session")


class Reds:
    """A ContentClassifier: how red a still is, which it takes for explicit too."""

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        reds = [float(np.clip(still[..., 0].mean() / 255, 0, 1)) for still in stills]
        return [{"red": each, "nsfw": each} for each in reds]


class WithClassifier(LocalModels):
    def find(self, task: Task[Contract]) -> Contract | None:
        return cast("Contract", Reds()) if task is CLASSIFY_CONTENT else super().find(task)


@pytest.fixture(scope="module")
def programme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve seconds: three shots of four, the last of them ``BLOCKED_SHOT``."""
    pictures = [*still_shot(1, 100), *still_shot(2, 100), *still_shot(BLOCKED_SHOT, 100)]
    return write_video(tmp_path_factory.mktemp("policy") / "programme.mp4", pictures)


def listing(path: Path) -> ContentPolicy:
    """A policy that blocks what is seen in the file."""
    return ContentPolicy(packed(v for still in listed_stills(path, 1.0) for v in still.hashes))


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> ContentPolicy:
    """A list made from the blocked shot as somebody else had it: larger, and one second of it."""
    folder = tmp_path_factory.mktemp("listed")
    large = cv2.resize(texture(BLOCKED_SHOT), (960, 540), interpolation=cv2.INTER_CUBIC)
    path = folder / "listed.png"
    assert cv2.imwrite(str(path), cv2.cvtColor(large, cv2.COLOR_RGB2BGR))
    return listing(path)


def analysed(workspace: Workspace, video: VideoSource, policy: ContentPolicy) -> VisionResult:
    return analyse_vision(
        video,
        workspace=workspace,
        models=WithClassifier(),
        control=FreeRun(),
        config=VisionConfig(policy=policy),
    )


def code_of(workspace: Workspace, video: VideoSource, policy: ContentPolicy) -> StageCode:
    with pytest.raises(StageError) as raised:
        analysed(workspace, video, policy)
    return raised.value.code


@pytest.mark.parametrize("segment_ms", [None, 3_000], ids=["in one piece", "in four segments"])
def test_a_listed_picture_blocks_the_stage_and_nothing_seen_is_kept(
    programme: Path, blocking: ContentPolicy, tmp_path: Path, segment_ms: int | None
) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, programme, segment_ms=segment_ms)
    assert code_of(workspace, video, blocking) is StageCode.CONTENT_BLOCKED
    assert list(workspace.store.list_keys(workspace.key("vision"))) == []


def test_a_video_without_any_cut_is_looked_at_too(blocking: ContentPolicy, tmp_path: Path) -> None:
    path = write_video(tmp_path / "one shot.mp4", still_shot(BLOCKED_SHOT, 50))
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, path)
    assert code_of(workspace, video, blocking) is StageCode.CONTENT_BLOCKED


def test_what_is_permitted_is_described_as_without_a_policy(
    programme: Path, tmp_path: Path
) -> None:
    other = write_video(tmp_path / "other.mp4", still_shot(5, 30))
    free, watched = folder_workspace(tmp_path, "free"), folder_workspace(tmp_path, "watched")
    plain = analysed(free, video_source(free, programme), ContentPolicy())
    checked = analysed(watched, video_source(watched, programme), listing(other))
    assert [(s.start_ms, s.description) for s in checked.scenes] == [
        (s.start_ms, s.description) for s in plain.scenes
    ]


@pytest.mark.parametrize(("limit", "blocked"), [(0.05, True), (1.0, False)])
def test_a_label_at_its_limit_blocks(
    programme: Path, tmp_path: Path, limit: float, blocked: bool
) -> None:
    workspace = folder_workspace(tmp_path)
    video, policy = (
        video_source(workspace, programme),
        ContentPolicy(label_limits=(("red", limit),)),
    )
    if blocked:
        assert code_of(workspace, video, policy) is StageCode.CONTENT_BLOCKED
    else:
        assert len(analysed(workspace, video, policy).scenes) == 3


def test_stills_have_their_likelihood_where_the_policy_has_a_model(
    programme: Path, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    video, policy = video_source(workspace, programme), ContentPolicy(label_limits=(("red", 1.0),))
    judged = [
        still.explicit
        for each in analysed(workspace, video, policy).scenes
        for still in each.stills
    ]
    assert all(each is not None and 0 <= each <= 1 for each in judged)
    plain = analysed(workspace, video, ContentPolicy()).scenes
    assert {still.explicit for each in plain for still in each.stills} == {None}


def test_another_policy_is_not_satisfied_by_an_earlier_verdict(
    programme: Path, blocking: ContentPolicy, tmp_path: Path
) -> None:
    workspace = folder_workspace(tmp_path)
    video = video_source(workspace, programme)
    analysed(workspace, video, ContentPolicy(label_limits=(("red", 1.0),)))
    assert code_of(workspace, video, blocking) is StageCode.CONTENT_BLOCKED


def test_long_shots_are_looked_at_every_five_seconds() -> None:
    times = np.arange(0, 20_000, 40)
    assert checked_times(times, [2_000]) == (0, 2_000, 5_000, 10_000, 15_000)


@pytest.mark.parametrize("content", [b"", b"no picture"], ids=["empty", "text"])
def test_a_file_without_pictures_cannot_be_listed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UnreadableMediaError):
        list(listed_stills(path, 1.0))


@pytest.mark.shared_media
def test_a_turned_phone_video_is_listed_upright(tmp_path: Path) -> None:
    """Its stills match those that the pipeline looks at, which are upright."""
    if not MEDIA.exists():
        pytest.skip("the shared media are not there")
    from pipelines.ingest.pipeline import IngestContext, ingest

    path = MEDIA / "odd" / "portrait_4k60.mp4"
    workspace = folder_workspace(tmp_path)
    workspace.store.write_bytes("source", path.read_bytes())
    ingested = ingest("source", IngestContext(workspace, FreeRun()))
    assert ingested.video is not None
    assert code_of(workspace, ingested.video, listing(path)) is StageCode.CONTENT_BLOCKED
