"""Media that tries to make its reader open other files or connections: it gets neither.

Through the code that reads clients' media, layer by layer: the confined child that probes and
cuts, the readers of pictures, and the format gate alone, as where the kernel confines nothing.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import av.error
import numpy as np
import pytest

from pipelines.ingest.headers import wav_labels
from pipelines.ingest.pipeline import probe
from pipelines.media.decoding import decode_segment
from pipelines.media.files import NoVideoStreamError, open_media
from pipelines.media_types import Orientation
from pipelines.sandbox.child import MediaRefusedError
from pipelines.types import Segment, StageCode, StageError, VideoStream
from pipelines.vision.stills import DecordUnsuitableError, by_seeking, pictures_by_decord
from tests.pipelines.ingest.ingest_material import Ingested, ingested
from tests.places import PROJECT
from tests.security.hostile_media import ATTACKS, TOKEN, Trap, cases, lay
from tests.tables import every

CASES = [pytest.param(kind, name, id=f"{kind}-{name}") for kind, name in cases()]
ONE_EACH = [pytest.param(kind, attack.names[0], id=kind) for kind, attack in ATTACKS.items()]
FOREIGN = [case for case in ONE_EACH if not ATTACKS[str(case.values[0])].is_media]

DEFENCELESS = {
    "allowed_extensions": "ALL",
    "allowed_segment_extensions": "ALL",
    "extension_picky": "0",
    "safe": "0",
    "protocol_whitelist": "file,http,tcp,crypto,data,subfile,concat,async,cache",
}
"""Options of FFmpeg that let such files have what they ask for."""


@pytest.fixture
def trap() -> Iterator[Trap]:
    with Trap() as listening:
        yield listening


def carries_token(path: Path, options: dict[str, str]) -> bool:
    """Whether a packet of the file at ``path`` holds the canary's token."""
    with av.open(str(path), options=options, timeout=3) as container:
        return any(TOKEN in bytes(packet) for packet in container.demux())


@pytest.mark.parametrize(
    ("kind", "name", "reached"),
    [
        ("hls-file", "film.m3u8", "file"),
        ("hls-web", "film.m3u8", "web"),
        ("ffconcat-relative", "film.mp4", "file"),
    ],
)
def test_the_attacks_are_real_where_nothing_defends(
    trap: Trap, tmp_path: Path, kind: str, name: str, reached: str
) -> None:
    path = lay(tmp_path, kind, name, trap.port)
    found = False
    try:
        found = carries_token(path, DEFENCELESS)
    except av.error.FFmpegError:
        assert reached == "web"
    assert found == (reached == "file")
    assert visited(trap, 60.0 if reached == "web" else 0.02) == (reached == "web")


def visited(trap: Trap, seconds: float = 0.02) -> bool:
    """Whether anybody came; a visit that is on its way is waited for."""
    ends = time.monotonic() + seconds
    while not trap.visits and time.monotonic() < ends:
        time.sleep(0.02)
    return trap.visits > 0


@every(("kind", "name"), CASES)
def test_the_format_gate_alone_opens_no_other_file_and_no_connection(
    trap: Trap, tmp_path: Path, kind: str, name: str
) -> None:
    path = lay(tmp_path, kind, name, trap.port)
    if ATTACKS[kind].is_media:
        with open_media(path) as container:
            assert not any(TOKEN in bytes(packet) for packet in container.demux())
    else:
        with pytest.raises(MediaRefusedError):
            refuse_or_read(path)
    assert not visited(trap)


def refuse_or_read(path: Path) -> None:
    with open_media(path) as container:
        if not container.streams:
            raise MediaRefusedError("It holds nothing.")


@every(("kind", "name"), FOREIGN)
def test_ingest_refuses_what_only_points_elsewhere_and_says_nothing_of_it(
    trap: Trap, tmp_path: Path, kind: str, name: str
) -> None:
    path = lay(tmp_path, kind, name, trap.port)
    with pytest.raises(StageError) as caught:
        ingested(path, tmp_path / "work")
    assert caught.value.code is StageCode.VALIDATION_FAILED
    assert "canary" not in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert not visited(trap)


@every(("kind", "name"), [case for case in ONE_EACH if ATTACKS[str(case.values[0])].is_media])
def test_media_with_an_attack_inside_is_read_for_what_it_holds_itself(
    trap: Trap, tmp_path: Path, kind: str, name: str
) -> None:
    path = lay(tmp_path, kind, name, trap.port)
    done = ingested(path, tmp_path / "work")
    assert len(done.result.tracks) == 1
    assert TOKEN not in everything_written(done)
    assert not visited(trap)


def test_labels_of_a_recorder_include_no_file_and_do_not_grow(trap: Trap, tmp_path: Path) -> None:
    """External entities, and one that would become a billion words."""
    path = lay(tmp_path, "ixml", "film.wav", trap.port)
    labels = wav_labels(path)
    assert set(labels) == {"sample_rate_hz"}
    assert not visited(trap)


def everything_written(done: Ingested) -> bytes:
    """All objects but the source, and the sound of the track as samples."""
    files = [path for path in done.store.root.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files if path != done.path("source"))
    sound = np.round(done.samples() * 32768).astype("<i2").tobytes()
    return written + repr(done.result).encode() + sound


@every(("kind", "name"), [("hls-file", "film.m3u8"), ("ffconcat", "film.mov")])
def test_probing_by_name_is_not_fooled_either(
    trap: Trap, tmp_path: Path, kind: str, name: str
) -> None:
    with pytest.raises(StageError) as caught:
        probe(lay(tmp_path, kind, name, trap.port))
    assert caught.value.code is StageCode.VALIDATION_FAILED
    assert not visited(trap)


SEGMENT = Segment(0, "source", 0, 1_000)
STREAM = VideoStream(0, "h264", 64, 36, Orientation(), 1.0, 25.0, 25)


def by_features(path: Path) -> object:
    return list(decode_segment(path, SEGMENT, stream_index=0, origin_ms=0))


def by_seek(path: Path) -> object:
    return by_seeking(path, STREAM, 0, [0])


def by_decord(path: Path) -> object:
    taken: list[object] = []
    pictures_by_decord(
        path, STREAM, 0, times_ms=[0],
        take=lambda time_ms, picture: taken.append((time_ms, picture)), check=lambda: None,
    )  # fmt: skip
    return taken


@every("read", [by_features, by_seek, by_decord])
@every(
    ("kind", "name"),
    [("ffconcat-relative", "film.mp4"), ("hls-file", "film.m3u8"), ("hls-web", "film.m3u8")],
)
def test_readers_of_pictures_have_the_same_gate(
    trap: Trap, tmp_path: Path, kind: str, name: str, read: Callable[[Path], object]
) -> None:
    """They read segments of our own making, but where a codec cannot be cut the source itself."""
    path = lay(tmp_path, kind, name, trap.port)
    with pytest.raises((av.error.ArgumentError, DecordUnsuitableError)):
        read(path)
    assert not visited(trap)


def test_a_picture_reader_without_pictures_says_so(trap: Trap, tmp_path: Path) -> None:
    path = lay(tmp_path, "matroska", "film.mkv", trap.port)
    with pytest.raises(NoVideoStreamError):
        by_features(path)
    assert not visited(trap)


def test_whatever_reads_media_names_what_may_be_opened() -> None:
    """So that a new reader cannot leave the gate open: FFmpeg's own defaults follow playlists."""
    bare = [
        f"{path.relative_to(PROJECT)}:{call.lineno}"
        for path in sorted((PROJECT / "pipelines").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "av.open"
        and not {"options", "format"} & {keyword.arg for keyword in call.keywords}
    ]
    assert bare == []
