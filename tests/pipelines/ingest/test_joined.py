"""Files joined with ``cat``: each has a clock, and may have a format, of its own."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.ingest.headers import joined_at
from pipelines.ingest.pipeline import probe
from tests.pipelines.ingest.format_samples import (
    CLICK_SECONDS,
    RATE,
    STANDARD,
    STRICT,
    Sample,
    Sound,
    write_sample,
)
from tests.pipelines.ingest.format_samples import SECONDS as SAMPLE_SECONDS
from tests.pipelines.ingest.ingest_material import (
    CLICKS,
    SECONDS,
    clicks,
    heard,
    ingested,
    remuxed,
    seen,
    write_film,
    write_sound,
)
from tests.pipelines.ingest.ingest_material import Sound as Encoding
from tests.tables import every

FIRST_SECONDS, SECOND_SECONDS = 3.0, 2.0
FIRST_CLICKS, SECOND_CLICKS = (0.5, 2.5), (0.5, 1.5)
ID3 = b"ID3\x04\0\0\0\0\x10\0" + b"TIT2" + bytes(2_044)
"""A tag of 2 058 bytes."""

SOUNDS: dict[str, tuple[Encoding, Encoding]] = {
    "wav": (Encoding("a.wav", "pcm_s16le", 16_000), Encoding("b.wav", "pcm_s16le", 16_000)),
    "wav of other rate, channels and depth": (
        Encoding("a.wav", "pcm_s16le", 16_000),
        Encoding("b.wav", "pcm_s24le", 48_000, "stereo", "s32"),
    ),
    "aiff": (Encoding("a.aiff", "pcm_s16be", 16_000), Encoding("b.aiff", "pcm_s16be", 44_100)),
    "flac": (Encoding("a.flac", "flac", 16_000), Encoding("b.flac", "flac", 16_000)),
    "flac of another rate": (
        Encoding("a.flac", "flac", 16_000),
        Encoding("b.flac", "flac", 44_100, "stereo"),
    ),
    "opus": (Encoding("a.opus", "libopus", 48_000), Encoding("b.opus", "libopus", 48_000)),
    "opus of other channels": (
        Encoding("a.opus", "libopus", 48_000),
        Encoding("b.opus", "libopus", 48_000, "stereo"),
    ),
    "vorbis of another rate": (
        Encoding("a.ogg", "vorbis", 48_000, "stereo", "fltp", STRICT),
        Encoding("b.ogg", "vorbis", 44_100, "stereo", "fltp", STRICT),
    ),
    "flac in ogg": (Encoding("a.oga", "flac", 16_000), Encoding("b.oga", "flac", 44_100, "stereo")),
    "matroska": (Encoding("a.mka", "libopus", 48_000), Encoding("b.mka", "libopus", 48_000)),
    "mp3": (
        Encoding("a.mp3", "libmp3lame", 44_100, "mono", "s16p"),
        Encoding("b.mp3", "libmp3lame", 44_100, "mono", "s16p"),
    ),
    "mp3, a tag between": (
        Encoding("a.mp3", "libmp3lame", 44_100, "mono", "s16p"),
        Encoding("b.mp3", "libmp3lame", 44_100, "mono", "s16p"),
    ),
    "mp3 of another rate": (
        Encoding("a.mp3", "libmp3lame", 16_000, "mono", "s16p"),
        Encoding("b.mp3", "libmp3lame", 44_100, "stereo", "s16p"),
    ),
}


def sound(folder: Path, encoding: Encoding, seconds: float, at: tuple[float, ...]) -> bytes:
    signal = clicks(at, seconds, encoding.rate_hz)
    channels = av.AudioLayout(encoding.layout).nb_channels
    return write_sound(folder, encoding, np.repeat(signal, channels, axis=0)).read_bytes()


@every("kind", SOUNDS)
def test_sounds_joined_are_heard_one_after_the_other(kind: str, tmp_path: Path) -> None:
    (first, second), between = SOUNDS[kind], ID3 if "tag between" in kind else b""
    path = tmp_path / f"joined{Path(first.file_name).suffix}"
    path.write_bytes(
        sound(tmp_path, first, FIRST_SECONDS, FIRST_CLICKS)
        + between
        + sound(tmp_path, second, SECOND_SECONDS, SECOND_CLICKS)
    )

    done = ingested(path, tmp_path)

    total = FIRST_SECONDS + SECOND_SECONDS
    assert done.result.media.duration_seconds == pytest.approx(total, abs=0.15)
    assert done.result.warnings[0].code == "TIMELINE_REPAIRED"
    expected = [*FIRST_CLICKS, *(FIRST_SECONDS + click for click in SECOND_CLICKS)]
    assert heard(done) == pytest.approx(expected, abs=0.12)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two films, encoded with other settings."""
    folder = tmp_path_factory.mktemp("films")
    one = write_film(folder / "one.mp4")
    return one, write_film(folder / "other.mp4", options="bframes=0:cabac=0:ref=1")


@pytest.mark.parametrize("ext", ["mp4", "mov", "flv", "mkv", "ts"])
@pytest.mark.parametrize("second", [0, 1], ids=["the same again", "encoded otherwise"])
def test_films_joined_are_seen_and_heard_one_after_the_other(
    ext: str, second: int, films: tuple[Path, Path], tmp_path: Path
) -> None:
    parts = [remuxed(films[n], tmp_path / f"part-{at}.{ext}") for at, n in enumerate((0, second))]
    path = tmp_path / f"joined.{ext}"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    alone = [ingested(part, tmp_path / f"alone-{at}") for at, part in enumerate(parts)]

    done = ingested(path, tmp_path)

    lengths = [each.result.media.duration_seconds for each in alone]
    assert done.result.media.duration_seconds == pytest.approx(sum(lengths), abs=0.1)
    assert [warning.code for warning in done.result.warnings] == ["TIMELINE_REPAIRED"]
    frames, expected = seen(done), [frame for each in alone for frame in seen(each)]
    assert [pixels for _, pixels in frames] == [pixels for _, pixels in expected]
    assert frames[-1][0] / 1000 == pytest.approx(2 * SECONDS, abs=0.15)
    assert heard(done) == pytest.approx([*CLICKS, *(SECONDS + at for at in CLICKS)], abs=0.15)


@pytest.mark.parametrize("name", ["wmv2.wmv", "mpeg2.mxf"])
def test_files_of_windows_media_and_mxf_joined_are_read_to_the_end(
    name: str, tmp_path: Path
) -> None:
    sample = next(each for each in STANDARD if each.file_name == name)
    path = write_sample(tmp_path, sample)
    path.write_bytes(2 * path.read_bytes())

    done = ingested(path, tmp_path / "store")

    assert [warning.code for warning in done.result.warnings] == ["TIMELINE_REPAIRED"]
    assert done.result.media.duration_seconds == pytest.approx(2 * SAMPLE_SECONDS, abs=0.1)
    assert len(seen(done)) == 2 * SAMPLE_SECONDS * RATE
    twice = [*CLICK_SECONDS, *(SAMPLE_SECONDS + at for at in CLICK_SECONDS)]
    assert heard(done) == pytest.approx(twice, abs=0.1)


def test_a_decoder_set_anew_within_a_file_is_followed(
    films: tuple[Path, Path], tmp_path: Path
) -> None:
    """A recorder that reconnects: the tags of another encoder follow, without another header."""
    parts = [remuxed(film, tmp_path / f"{film.stem}.flv").read_bytes() for film in films]
    path = tmp_path / "reconnected.flv"
    path.write_bytes(parts[0] + parts[1][13:])

    done = ingested(path, tmp_path)

    assert [warning.code for warning in done.result.warnings] == ["TIMELINE_REPAIRED"]
    assert len(seen(done)) == 2 * SECONDS * 25
    assert heard(done) == pytest.approx([*CLICKS, *(SECONDS + at for at in CLICKS)], abs=0.15)


def test_files_that_are_no_others_joined_have_no_such_places(tmp_path: Path) -> None:
    for sample in (
        Sample("a.ogg", None, Sound("vorbis", 44_100, options=STRICT, format="fltp")),
        Sample("a.mp3", None, Sound("libmp3lame", 44_100, format="s16p")),
        Sample("a.flac", None, Sound("flac", format="s16")),
        Sample("a.wav", None, Sound("pcm_s16le")),
    ):
        path = write_sample(tmp_path, sample)
        assert joined_at(path) == []
        path.write_bytes(path.read_bytes() + bytes(5_000))
        assert joined_at(path) == []


def test_a_joined_file_that_cannot_be_read_is_said_to_be_lost(tmp_path: Path) -> None:
    whole = sound(tmp_path, Encoding("a.wav", "pcm_s16le", 16_000), FIRST_SECONDS, FIRST_CLICKS)
    path = tmp_path / "joined.wav"
    path.write_bytes(whole + whole[:12] + b"\xff" * 3_000)

    media = probe(path)

    assert media.duration_seconds == pytest.approx(FIRST_SECONDS, abs=0.01)
    assert "MEDIA_TRUNCATED" in [warning.code for warning in media.warnings]
