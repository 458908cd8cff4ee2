"""Which of a file's streams are analysed: the picture that moves, the sounds that go with it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from pipelines.ingest.pipeline import probe
from pipelines.ingest.preview import PreviewOrder, make_preview
from pipelines.ingest.streams import ProbeLimits
from pipelines.types import MediaInfo, StageError
from storage.objects.folder import FolderStore
from tests.pipelines.ingest.ingest_material import (
    CLICKS,
    HEIGHT,
    SECONDS,
    WIDTH,
    heard,
    ingested,
    remuxed,
    seen,
    write_film,
)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4")


def codes(media: MediaInfo) -> list[str]:
    return [warning.code for warning in media.warnings]


def with_still(source: Path, target: Path, codec: str, pictures: int) -> Path:
    """The film and, as a picture of its own, a large still of so many frames."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        copies = {stream.index: written.add_stream_from_template(stream) for stream in read.streams}
        still: Any = written.add_stream(codec, rate=25)
        still.width, still.height = 1_280, 720
        still.pix_fmt = {"png": "rgb24", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        frames = [av.VideoFrame(1_280, 720, still.pix_fmt) for _ in range(pictures)]
        for number, frame in enumerate(frames):
            frame.pts, frame.time_base = number, Fraction(1, 25)
        packets: list[Any] = [packet for frame in frames for packet in still.encode(frame)]
        packets += still.encode(None)
        for packet in read.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                written.mux(packet)
                while packets:
                    written.mux(packets.pop(0))
    return target


@pytest.mark.parametrize(
    ("name", "codec", "pictures"),
    [("poster.mp4", "png", 1), ("poster.mkv", "mjpeg", 1), ("still.mkv", "libx264", 2)],
)
def test_a_still_beside_a_film_is_not_analysed_instead_of_it(
    name: str, codec: str, pictures: int, film: Path, tmp_path: Path
) -> None:
    media = probe(with_still(film, tmp_path / name, codec, pictures))

    assert media.video is not None
    assert (media.video.index, media.video.width, media.video.height) == (0, WIDTH, HEIGHT)
    assert media.video.frame_count == SECONDS * 25
    assert media.duration_seconds == pytest.approx(SECONDS, abs=0.15)
    assert codes(media) == ["STREAM_IGNORED"]
    assert "stands still" in media.warnings[0].message


def test_attachments_count_towards_no_limit(film: Path, tmp_path: Path) -> None:
    path = tmp_path / "fonts.mkv"
    with av.open(str(film)) as read, av.open(str(path), "w") as written:
        copies = {stream.index: written.add_stream_from_template(stream) for stream in read.streams}
        for number in range(40):
            written.add_attachment(f"{number}.ttf", "application/x-truetype-font", bytes(2_000))
        for packet in read.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                written.mux(packet)

    media = probe(path)

    assert media.video is not None
    assert media.warnings == ()


def test_more_sounds_than_the_limit_are_refused(film: Path) -> None:
    with pytest.raises(StageError, match="2 streams; the limit is 1 of picture and sound"):
        probe(film, ProbeLimits(max_streams=1))


def test_a_picture_joined_between_key_frames_is_a_picture_with_a_late_start(
    tmp_path: Path,
) -> None:
    """A recorder that tunes in: hundreds of pictures come before the first that can be decoded."""
    film = write_film(tmp_path / "film.mp4", options="bframes=0", rate=200, group=600)
    whole = remuxed(film, tmp_path / "whole.ts")
    path = remuxed(
        film, tmp_path / "joined.ts", drop=lambda kind, number: kind == "video" and number < 30
    )

    done = ingested(path, tmp_path)

    media = done.result.media
    assert media.video is not None
    assert media.video.start_ms == pytest.approx(3_000, abs=40)
    assert codes(media) == ["PICTURE_STARTS_LATE"]
    assert (media.warnings[0].start_ms, media.warnings[0].end_ms) == (0, media.video.start_ms)
    assert media.duration_seconds == pytest.approx(probe(whole).duration_seconds, abs=0.1)
    assert heard(done) == pytest.approx(CLICKS, abs=0.08)


# --- programs ---


def crc32(data: bytes) -> bytes:
    """Of ISO/IEC 13818-1, annex A."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7 if value >> 31 else value << 1) & 0xFFFFFFFF
    return value.to_bytes(4, "big")


def table(pid: int, table_id: int, body: bytes) -> bytes:
    """A packet with one section."""
    length = (len(body) + 9).to_bytes(2, "big")
    section = bytes([table_id, 0xB0 | length[0], length[1], 0, 1, 0xC1, 0, 0]) + body
    payload = b"\0" + section + crc32(section)
    return bytes([0x47, 0x40 | pid >> 8, pid & 0xFF, 0x10]) + payload.ljust(184, b"\xff")


def multiplex(path: Path, films: Sequence[Path], names: Sequence[str]) -> Path:
    """The films as programs 1, 2 … of one transport stream."""
    parts, programs, services = [], b"", b""
    for number, film in enumerate(films, start=1):
        first, tables = 0x100 * number, 0x1000 + 0x10 * number
        part = remuxed(
            film,
            path.with_name(f"{number}.ts"),
            muxing={
                "mpegts_start_pid": str(first),
                "mpegts_pmt_start_pid": str(tables),
                "mpegts_service_id": str(number),
                "output_ts_offset": str(number * 5_000),
            },
        ).read_bytes()
        packets = [part[at : at + 188] for at in range(0, len(part), 188)]
        parts.append([each for each in packets if (each[1] & 0x1F) << 8 | each[2] > 0x11])
        programs += number.to_bytes(2, "big") + (0xE000 | tables).to_bytes(2, "big")
        name = names[number - 1].encode("latin-1")
        descriptor = bytes([0x48, 3 + len(name), 1, 0, len(name)]) + name
        services += (
            number.to_bytes(2, "big") + b"\xfc" + (0x8000 | len(descriptor)).to_bytes(2, "big")
        )
        services += descriptor
    head = table(0, 0, programs) + table(0x11, 0x42, b"\0\1\xff" + services)
    rounds = itertools.zip_longest(*parts, fillvalue=b"")
    path.write_bytes(head + b"".join(b"".join(each) for each in rounds))
    return path


def test_of_a_multiplex_picture_and_sound_of_one_program_are_analysed(
    film: Path, tmp_path: Path
) -> None:
    large = write_film(tmp_path / "large.mp4", size=(192, 144))
    path = multiplex(tmp_path / "multiplex.ts", [film, large, film], ["Eins", "Zwei", "Drei"])

    done = ingested(path, tmp_path)

    media = done.result.media
    assert media.video is not None
    assert (media.video.width, len(media.audio)) == (192, 1)
    assert codes(media) == ["PROGRAM_CHOSEN"]
    assert "3 programs: 1 (Eins), 2 (Zwei), 3 (Drei). 2 (Zwei) was" in media.warnings[0].message
    assert media.duration_seconds == pytest.approx(SECONDS, abs=0.15)
    assert len(seen(done)) == SECONDS * 25
    assert heard(done) == pytest.approx(CLICKS, abs=0.1)


@pytest.mark.usefixtures("previews_at_once")
def test_a_preview_has_the_sound_of_the_program_with_the_picture(
    film: Path, tmp_path: Path
) -> None:
    silent = remuxed(film, tmp_path / "silent.mp4", kinds=("video",))
    large = write_film(tmp_path / "large.mp4", size=(192, 144))
    path = multiplex(tmp_path / "multiplex.ts", [film, large, silent], ["1", "2", "3"])
    store = FolderStore(tmp_path / "store")
    store.write_bytes("source", path.read_bytes())

    make_preview(
        PreviewOrder("source", "preview", probe(path), 1 << 20, 600.0), store, check=lambda: None
    )

    shown = probe(store.path("preview"))
    assert shown.video is not None
    assert (shown.video.width, len(shown.audio)) == (192, 1)
    assert shown.duration_seconds == pytest.approx(SECONDS, abs=0.2)
