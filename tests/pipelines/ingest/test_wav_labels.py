"""What recorders write into WAV files beside sound, also when it is damaged or hostile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.ingest.headers import wav_labels
from tests.pipelines.ingest.sound_material import bext, ixml, write_wav

SILENCE = np.zeros(160, np.int16)


def labels_of(folder: Path, *chunks: tuple[bytes, bytes]) -> dict[str, Any]:
    return wav_labels(write_wav(folder / "sound.wav", [SILENCE], chunks=chunks))


def test_bext_says_when_and_its_description_who(tmp_path: Path) -> None:
    found = labels_of(tmp_path, bext(4_800_000_000, "sSPEED=025.00\r\nsTRK1=Boom\r\nsTRK3=Lav"))
    assert found == {
        "sample_rate_hz": 16_000,
        "time_reference": 4_800_000_000,
        "channel_names": [[0, "Boom"], [2, "Lav"]],
    }


def test_ixml_names_channels_and_the_timecode_rate(tmp_path: Path) -> None:
    found = labels_of(tmp_path, ixml(names=["Boom", "Ännchen"], rate="30000/1001", flag="DF"))
    assert found["channel_names"] == [[0, "Boom"], [1, "Ännchen"]]
    assert found["timecode_rate"] == "30000/1001"
    assert found["drop_frame"] is True


@pytest.mark.parametrize("first", ["bext", "iXML"])
def test_names_in_ixml_count_for_more_wherever_it_stands(tmp_path: Path, first: str) -> None:
    chunks = [bext(7, "sTRK1=Old"), ixml(names=["New"])]
    found = labels_of(tmp_path, *(chunks if first == "bext" else reversed(chunks)))
    assert found["channel_names"] == [[0, "New"]]
    assert found["time_reference"] == 7


def test_ixml_counts_samples_since_midnight_in_two_halves(tmp_path: Path) -> None:
    text = (
        "<BWFXML><SPEED><TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI>1</TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_HI>"
        "<TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO>5</TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO>"
        "<TIMESTAMP_SAMPLE_RATE>48000</TIMESTAMP_SAMPLE_RATE></SPEED></BWFXML>"
    )
    found = labels_of(tmp_path, (b"iXML", text.encode()))
    assert found["time_reference"] == (1 << 32) + 5
    assert found["sample_rate_hz"] == 48_000


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">%s]><BWFXML><TRACK_LIST>&z;</TRACK_LIST></BWFXML>' % (
    b"".join(
        b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(25)
    )
)  # fmt: skip


ENTITY = (
    '<!DOCTYPE x [<!ENTITY a "Boom">]>'
    "<BWFXML><TRACK_LIST><TRACK><NAME>&a;</NAME></TRACK></TRACK_LIST></BWFXML>"
)


@pytest.mark.parametrize(
    "chunk",
    [
        (b"iXML", b"<BWFXML><TRACK_LIST>"),
        (b"iXML", ENTITY.encode()),
        (b"iXML", ("\ufeff" + ENTITY).encode("utf-16-be")),
        (b"iXML", b"\xff\xfe\x00"),
        (b"iXML", BOMB),
        (b"iXML", b"<BWFXML><SPEED><TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO>-1"
                  b"</TIMESTAMP_SAMPLES_SINCE_MIDNIGHT_LO></SPEED></BWFXML>"),
        (b"bext", b"short"),
    ],
    ids=["broken off", "an entity", "an entity, UTF-16", "no text", "a bomb of entities",
         "a negative count", "a short bext"],
)  # fmt: skip
def test_labels_that_make_no_sense_are_passed_over(
    tmp_path: Path, chunk: tuple[bytes, bytes]
) -> None:
    assert labels_of(tmp_path, chunk) == {"sample_rate_hz": 16_000}


@pytest.mark.parametrize(
    "content",
    [b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0AVI fmt ", b"ID3" + bytes(500)],
)
def test_what_is_no_wav_file_has_no_labels(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sound").write_bytes(content)
    assert wav_labels(tmp_path / "sound") == {}


def test_chunks_behind_the_samples_of_a_large_file_are_found(tmp_path: Path) -> None:
    name, text = ixml(names=["Boom"])
    sizes = struct.pack("<QQQI", 0, 320, 160, 0)
    chunks = [(b"ds64", sizes), (b"fmt ", bytes(16))]
    body = b"".join(n + struct.pack("<I", len(data)) + data for n, data in chunks)
    body += b"data" + struct.pack("<I", 0xFFFFFFFF) + bytes(320)
    body += name + struct.pack("<I", len(text)) + text
    (tmp_path / "large.wav").write_bytes(b"RF64" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE" + body)
    assert wav_labels(tmp_path / "large.wav")["channel_names"] == [[0, "Boom"]]
