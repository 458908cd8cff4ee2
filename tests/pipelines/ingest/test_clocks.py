"""A file's clock leaps, restarts, wraps or has strays; what is analysed is its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.ingest.pipeline import probe
from pipelines.ingest.preview import PreviewOrder, is_playable, make_preview
from pipelines.types import StageCode, StageError
from storage.objects.folder import FolderStore
from tests.pipelines.ingest.ingest_material import (
    CLICKS,
    HOURS_MS,
    SECONDS,
    Ingested,
    heard,
    ingested,
    later,
    remuxed,
    seen,
    with_tag_times,
    write_film,
)

pytestmark = pytest.mark.usefixtures("previews_at_once")

FRAMES = SECONDS * 25


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4")


@pytest.fixture(scope="module")
def flv(film: Path) -> Path:
    return remuxed(film, film.with_suffix(".flv"))


@pytest.fixture(scope="module")
def clean(film: Path, flv: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ingested]:
    """The film itself, by its container's extension, after ingest."""
    folder = tmp_path_factory.mktemp("clean")
    files = {"mp4": film, "flv": flv}
    files |= {ext: remuxed(film, folder / f"clean.{ext}") for ext in ("mkv", "mov", "ts")}
    return {
        name: ingested(path, folder / name, segment_seconds=2.0) for name, path in files.items()
    }


def warned(done: Ingested) -> list[str]:
    return [warning.code for warning in done.result.warnings]


def assert_same(done: Ingested, clean: Ingested) -> None:
    """Length, rate, pictures and clicks are those of the film with its own clock."""
    media, expected = done.result.media, clean.result.media
    assert media.duration_seconds == pytest.approx(expected.duration_seconds, abs=0.003)
    assert media.video is not None
    assert expected.video is not None
    assert media.video.frame_rate == pytest.approx(expected.video.frame_rate, rel=0.001)
    frames = seen(clean)
    assert len(frames) == FRAMES
    found = seen(done)
    assert [checksum for _, checksum in found] == [checksum for _, checksum in frames]
    assert all(abs(one[0] - other[0]) <= 1 for one, other in zip(found, frames, strict=True))
    assert heard(done) == pytest.approx(heard(clean), abs=0.003)


Times = Callable[[str, int, int], int]
SINCE_MS = 4_000
"""Where a group of pictures begins."""
MIDDLE_MS = 3_000
"""In the middle of one."""

TAGS: dict[str, Times] = {
    "begins again": lambda kind, n, ms: ms - SINCE_MS if ms >= SINCE_MS else ms,
    "begins again within a group": lambda kind, n, ms: ms - MIDDLE_MS if ms >= MIDDLE_MS else ms,
    "leaps two hours": lambda kind, n, ms: ms + HOURS_MS if ms >= SINCE_MS else ms,
    "leaps back": lambda kind, n, ms: ms + HOURS_MS if ms < SINCE_MS else ms,
    "leaps half a minute": lambda kind, n, ms: ms + 30_000 if ms >= MIDDLE_MS else ms,
    "leaps several times": lambda kind, n, ms: ms % 1_700 + ms // 1_700 % 2 * HOURS_MS,
    "only the sound leaps": lambda kind, n, ms: (
        ms + HOURS_MS if kind == "audio" and ms >= SINCE_MS else ms
    ),
    "only the picture leaps": lambda kind, n, ms: (
        ms + HOURS_MS if kind == "video" and ms >= SINCE_MS else ms
    ),
    "only the sound begins again": lambda kind, n, ms: (
        ms - SINCE_MS if kind == "audio" and ms >= SINCE_MS else ms
    ),
    "only the picture begins again": lambda kind, n, ms: (
        ms - MIDDLE_MS if kind == "video" and ms >= MIDDLE_MS else ms
    ),
    "a stray tag of sound": lambda kind, n, ms: ms + HOURS_MS * ((kind, n) == ("audio", 100)),
    "a stray tag of sound at 0": lambda kind, n, ms: ms * ((kind, n) != ("audio", 200)),
    "a stray picture": lambda kind, n, ms: ms + HOURS_MS * ((kind, n) == ("video", 60)),
    "a stray picture 5 s later": lambda kind, n, ms: ms + 5_000 * ((kind, n) == ("video", 60)),
    "three strays, each elsewhere": lambda kind, n, ms: (
        ms + HOURS_MS * max(0, n - 99) if kind == "audio" and n < 103 else ms
    ),
    "the first tag strays": lambda kind, n, ms: ms + HOURS_MS * ((kind, n) == ("audio", 0)),
    "the first picture strays": lambda kind, n, ms: ms + HOURS_MS * ((kind, n) == ("video", 0)),
    "the last tag strays": lambda kind, n, ms: ms + HOURS_MS * (kind == "audio" and ms > 5_980),
}


@pytest.mark.parametrize("times", TAGS.values(), ids=TAGS.keys())
def test_flash_video_whose_clock_leaps_is_analysed_by_its_content(
    times: Times, flv: Path, clean: dict[str, Ingested], tmp_path: Path
) -> None:
    path = with_tag_times(flv, tmp_path / "leaps.flv", times)

    done = ingested(path, tmp_path, segment_seconds=2.0)

    assert warned(done) == ["TIMELINE_REPAIRED"]
    assert_same(done, clean["flv"])


@pytest.mark.parametrize("kind", ["begins again", "a stray picture"])
def test_pictures_that_matroska_has_no_name_for_are_laid_out_too(kind: str, tmp_path: Path) -> None:
    """Sorenson's H.263 of old Flash: NUT has a name for it."""
    plain = write_film(tmp_path / "plain.flv", codec="flv")
    clean = ingested(plain, tmp_path / "clean", segment_seconds=2.0)
    path = with_tag_times(plain, tmp_path / "leaps.flv", TAGS[kind])

    done = ingested(path, tmp_path / "leaps", segment_seconds=2.0)

    assert done.result.video is not None
    assert len(done.result.video.segments) == 3
    assert_same(done, clean)


BOTH = ("video", "audio")


@pytest.mark.parametrize("ext", ["mp4", "mov", "mkv", "ts"])
@pytest.mark.parametrize(
    ("kinds", "since_ms"),
    [(BOTH, SINCE_MS), (BOTH, MIDDLE_MS), (("video",), MIDDLE_MS), (("audio",), MIDDLE_MS)],
    ids=["both", "both within a group", "the picture", "the sound"],
)
def test_a_leap_is_closed_whatever_the_container(
    ext: str,
    kinds: tuple[str, ...],
    since_ms: int,
    film: Path,
    clean: dict[str, Ingested],
    tmp_path: Path,
) -> None:
    edit = later(HOURS_MS, since_ms=since_ms, kinds=kinds)

    done = ingested(remuxed(film, tmp_path / f"leaps.{ext}", edit), tmp_path, segment_seconds=2.0)

    assert warned(done) == ["TIMELINE_REPAIRED"]
    assert_same(done, clean[ext])


@pytest.mark.parametrize("ext", ["mp4", "mkv"])
def test_pictures_shown_hours_off_are_put_where_pictures_are_missing(
    ext: str, film: Path, clean: dict[str, Ingested], tmp_path: Path
) -> None:
    def edit(kind: str, number: int, packet: Any) -> None:
        if kind == "video" and number in (60, 61):
            packet.pts += round(HOURS_MS / (1000 * packet.time_base))

    done = ingested(remuxed(film, tmp_path / f"off.{ext}", edit), tmp_path, segment_seconds=2.0)

    assert warned(done) == ["TIMELINE_REPAIRED"]
    assert_same(done, clean[ext])


@pytest.mark.parametrize("ext", ["flv", "mp4", "mkv", "ts"])
def test_a_pause_of_a_camera_stays_as_it_is(ext: str, film: Path, tmp_path: Path) -> None:
    path = remuxed(film, tmp_path / f"pause.{ext}", later(7_000, since_ms=SINCE_MS))

    done = ingested(path, tmp_path, segment_seconds=2.0)

    assert warned(done) == []
    assert done.result.media.duration_seconds == pytest.approx(SECONDS + 7, abs=0.1)
    heard_at = heard(done)
    assert heard_at[:4] == pytest.approx(CLICKS[:4], abs=0.06)
    assert heard_at[4:] == pytest.approx([click + 7 for click in CLICKS[4:]], abs=0.06)


def test_a_picture_that_stands_for_a_minute_is_no_leap(film: Path, tmp_path: Path) -> None:
    edit = later(60_000, since_ms=SINCE_MS)

    media = probe(remuxed(film, tmp_path / "stands.mkv", edit, kinds=("video",)))

    assert media.warnings == ()
    assert media.duration_seconds == pytest.approx(SECONDS + 60, abs=0.5)


def test_a_clock_that_wraps_in_the_middle_adds_nothing(
    film: Path, clean: dict[str, Ingested], tmp_path: Path
) -> None:
    """The clock of a transport stream has 33 bits of 90 kHz."""
    start = str(2**33 / 90_000 - 3.0 - 1.4)
    path = remuxed(film, tmp_path / "wraps.ts", muxing={"output_ts_offset": start})

    assert_same(ingested(path, tmp_path, segment_seconds=2.0), clean["ts"])


def test_a_file_that_is_only_strays_is_refused_with_a_sentence(flv: Path, tmp_path: Path) -> None:
    path = with_tag_times(
        flv, tmp_path / "strays.flv", lambda _, n, ms: (n * 7_919 + ms) % 80_000 * 999
    )

    with pytest.raises(StageError, match="Nearly all times in the file are far off") as caught:
        probe(path)

    assert caught.value.code is StageCode.VALIDATION_FAILED


def test_a_preview_of_a_file_whose_clock_leaps_has_the_times_of_its_content(
    flv: Path, tmp_path: Path
) -> None:
    path = with_tag_times(flv, tmp_path / "leaps.flv", TAGS["begins again"])
    store, media = FolderStore(tmp_path / "store"), probe(path)
    store.write_bytes("source", path.read_bytes())
    order = PreviewOrder("source", "preview", media, most_bytes=1 << 20, wall_seconds=600.0)

    make_preview(order, store, check=lambda: None)

    assert not is_playable(replace(media, container="mov,mp4,m4a,3gp,3g2,mj2"))
    assert probe(store.path("preview")).duration_seconds == pytest.approx(SECONDS, abs=0.2)
