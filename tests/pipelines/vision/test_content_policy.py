"""The content policy: hashes that outlast re-encoding and small crops, lists, and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from models.contracts import Picture
from pipelines.media.files import EXIF_ORIENTATIONS
from pipelines.vision.blocked_pictures import (
    listed_hashes,
    listed_stills,
    still_hash,
    without_borders,
)
from pipelines.vision.policy import (
    DEFAULT_DISTANCE,
    BlocklistError,
    ContentPolicy,
    find_breach,
    packed,
    parsed,
    read_blocklist,
)
from serve_app.context import ContentPolicyError, load_content_policy
from serve_app.settings import Settings
from tests.pipelines.media_builders import texture
from tests.tables import every

SEEDS = range(12)


def picture(seed: int) -> Picture:
    return texture(seed, 640, 360)


def distance(own: int | None, listed: Sequence[int]) -> int:
    assert own is not None
    return min((own ^ value).bit_count() for value in listed)


def jpeg(shown: Picture, quality: int) -> Picture:
    done, data = cv2.imencode(".jpg", shown, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)


def scaled(shown: Picture, width: int, height: int) -> Picture:
    return np.asarray(cv2.resize(shown, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def cropped(shown: Picture, left: float, top: float, right: float, bottom: float) -> Picture:
    height, width = shown.shape[:2]
    return shown[
        round(top * height) : height - round(bottom * height),
        round(left * width) : width - round(right * width),
    ]


@pytest.mark.parametrize("tag", EXIF_ORIENTATIONS)
@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_a_picture_file_is_listed_as_its_exif_turns_it(kind: str, tag: int, tmp_path: Path) -> None:
    """Pillow's own transposition of the file is what it looks like."""
    path = tmp_path / f"blocked.{kind}"
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(picture(3)).save(path, exif=exif)
    with Image.open(path) as stored:
        shown = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    [still] = listed_stills(path, 1.0)
    assert distance(still_hash(shown), still.hashes) <= 2


def boxed(shown: Picture) -> Picture:
    framed = cv2.copyMakeBorder(shown, 60, 60, 0, 0, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    return np.asarray(framed, np.uint8)


@every(
    "change",
    [
        pytest.param(lambda shown: shown, id="nothing"),
        pytest.param(lambda shown: jpeg(shown, 25), id="strong compression"),
        pytest.param(lambda shown: scaled(shown, 160, 90), id="a quarter of the size"),
        pytest.param(lambda shown: scaled(shown, 640, 480), id="another aspect"),
        pytest.param(lambda shown: cropped(shown, 0.04, 0.04, 0.04, 0.04), id="4 % off each side"),
        pytest.param(lambda shown: cropped(shown, 0.07, 0.0, 0.0, 0.0), id="7 % off the left"),
        pytest.param(lambda shown: cropped(shown, 0.0, 0.0, 0.0, 0.08), id="8 % off the bottom"),
        pytest.param(boxed, id="black bars"),
        pytest.param(
            lambda shown: cv2.convertScaleAbs(shown, alpha=0.8, beta=15), id="another brightness"
        ),
        pytest.param(
            lambda shown: jpeg(scaled(cropped(shown, 0.03, 0.03, 0.03, 0.03), 320, 180), 40),
            id="cropped, scaled and compressed",
        ),
    ],
)
def test_a_listed_picture_is_recognised_after(change: Callable[[Picture], Picture]) -> None:
    for seed in SEEDS:
        listed = listed_hashes(picture(seed))
        assert distance(still_hash(change(picture(seed))), listed) <= DEFAULT_DISTANCE


def test_other_pictures_are_far_from_a_listed_one() -> None:
    for seed in SEEDS:
        listed = listed_hashes(picture(seed))
        others = [still_hash(picture(other)) for other in SEEDS if other != seed]
        assert min(distance(own, listed) for own in others) > DEFAULT_DISTANCE


@pytest.mark.parametrize("level", [0, 16, 128, 255])
def test_a_plain_picture_is_neither_listed_nor_matched(level: int) -> None:
    plain = np.full((180, 320, 3), level, np.uint8)
    assert listed_hashes(plain) == ()
    assert still_hash(plain) is None


def test_bars_are_cut_off_and_a_picture_of_bars_alone_stays() -> None:
    assert without_borders(boxed(picture(1))).shape == picture(1).shape
    lonely = np.zeros((360, 640, 3), np.uint8)
    lonely[170:190] = picture(1)[170:190]
    assert without_borders(lonely).shape == lonely.shape


def test_a_list_is_read_with_notes_comments_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "blocked.txt"
    path.write_text(
        "# ours\n\n00000000000000ff\nFF00000000000000  a note\n00000000000000ff again\n"
    )
    assert read_blocklist(path) == bytes([0] * 7 + [255, 255] + [0] * 7)


@pytest.mark.parametrize(
    "line", ["xyz", "00ff", "0" * 17, "0x00000000000000"], ids=["word", "short", "long", "prefix"]
)
def test_a_line_that_is_no_hash_is_named(line: str) -> None:
    with pytest.raises(BlocklistError, match="list, line 2"):
        parsed(["# fine", line], "list")


class Reds:
    """A ContentClassifier: how red a still is."""

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        return [{"red": float(still[..., 0].mean()) / 255, "none": 0.0} for still in stills]


def red(level: int) -> Picture:
    return np.full((90, 160, 3), (level, 0, 0), np.uint8)


def test_the_first_still_at_or_over_a_labels_limit_breaches_the_policy() -> None:
    policy = ContentPolicy(label_limits=(("red", 0.5),))
    assert find_breach([red(100), red(127)], policy, Reds()) is None
    found = find_breach([red(100), red(128), red(255)], policy, Reds())
    assert found is not None
    assert (found.index, found.reason) == (1, "red 0.50")


def test_a_label_that_the_classifier_does_not_know_is_an_error_and_no_pass() -> None:
    with pytest.raises(ValueError, match="no label 'blue'"):
        find_breach([red(0)], ContentPolicy(label_limits=(("blue", 0.5),)), Reds())


def test_an_empty_policy_permits_everything_and_asks_nobody() -> None:
    assert not ContentPolicy().is_active
    assert find_breach([picture(1)], ContentPolicy(), None) is None


def test_the_limit_of_distance_is_inclusive() -> None:
    own = still_hash(picture(3))
    assert own is not None
    listed = packed([own ^ 0b111])
    assert find_breach([picture(3)], ContentPolicy(listed, hash_distance=2), None) is None
    assert find_breach([picture(3)], ContentPolicy(listed, hash_distance=3), None) is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param("zz", "line 1", id="no hash"),
    ],
)
def test_a_list_that_cannot_be_read_keeps_the_service_from_starting(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "blocked.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ContentPolicyError, match=f"VAS_BLOCKED_HASHES_FILE.*{message}"):
        load_content_policy(Settings(blocked_hashes_file=path))


def test_labels_need_a_profile_with_a_classifier() -> None:
    with pytest.raises(ContentPolicyError, match="VAS_BLOCKED_LABELS"):
        load_content_policy(Settings(blocked_labels={"nudity": 0.8}))
