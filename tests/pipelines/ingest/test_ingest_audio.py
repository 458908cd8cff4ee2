"""Tracks: 16 kHz mono, and the place of a sample is its time."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from models.contracts import SAMPLE_RATE_HZ
from pipelines.ingest.headers import wav_labels
from pipelines.ingest.tracks import SAMPLE_RATE_HZ as TRACK_RATE_HZ
from pipelines.ingest.tracks import down_mix
from tests.pipelines.ingest.ingest_material import (
    Clip,
    Sound,
    bext,
    clicks,
    ingested,
    ixml,
    onsets,
    write_clip,
    write_sound,
    write_wav,
)
from tests.tables import every

CLICKS = [0.5, 1.25, 2.0, 2.875]
ONE_MS = 0.001


def test_the_rate_is_the_one_that_models_expect() -> None:
    assert TRACK_RATE_HZ == SAMPLE_RATE_HZ


@every(
    ("sound", "tolerance_seconds"),
    [
        pytest.param(Sound("a.wav", "pcm_s16le", 8_000), ONE_MS, id="wav 8 kHz"),
        pytest.param(Sound("a.wav", "pcm_s16le", 16_000), 0.0, id="wav 16 kHz"),
        pytest.param(Sound("a.wav", "pcm_s24le", 192_000, "stereo", "s32"), ONE_MS, id="192 kHz"),
        pytest.param(Sound("a.flac", "flac", 44_100, "stereo"), ONE_MS, id="flac 44.1 kHz"),
        pytest.param(Sound("a.m4a", "aac", 44_100, "stereo", "fltp"), 0.002, id="aac, priming"),
        pytest.param(Sound("a.mp3", "libmp3lame", 48_000, "stereo", "s16p"), 0.002, id="mp3"),
        pytest.param(Sound("a.webm", "libopus", 48_000, "stereo", "s16"), 0.002, id="opus"),
        pytest.param(Sound("a.ts", "mp2", 48_000, "stereo", "s16"), 0.002, id="mp2, late start"),
    ],
)
def test_a_click_is_where_it_was_in_the_source(
    sound: Sound, tolerance_seconds: float, tmp_path: Path
) -> None:
    channels = 2 if sound.layout == "stereo" else 1
    signal = np.repeat(clicks(CLICKS, 3.5, sound.rate_hz), channels, axis=0)

    done = ingested(write_sound(tmp_path, sound, signal), tmp_path)

    (track,) = done.result.tracks
    samples = done.samples()
    assert track.duration_seconds == len(samples) / SAMPLE_RATE_HZ
    assert track.duration_seconds == pytest.approx(3.5, abs=0.05)
    assert track.offset_seconds == pytest.approx(0.0, abs=0.001)
    # The encoder's own delay is what the container leaves unsaid (mp2, mpeg-ts).
    delay = onsets(samples)[0] - CLICKS[0] if sound.codec == "mp2" else 0.0
    assert [seconds - delay for seconds in onsets(samples)] == pytest.approx(
        CLICKS, abs=tolerance_seconds + 1e-9
    )


@every("layout", ["mono", "stereo", "5.1", "7.1", "4 channels", "32 channels"])
def test_full_scale_in_every_channel_is_full_scale_in_the_mix_and_not_clipped(
    layout: str, tmp_path: Path
) -> None:
    channels = av.AudioLayout(layout).nb_channels
    tone = np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)
    sound = Sound("a.wav", "pcm_s16le", 48_000, layout)

    done = ingested(write_sound(tmp_path, sound, np.tile(tone, (channels, 1))), tmp_path)

    samples = done.samples()[2_000:-2_000]
    assert np.abs(samples).max() == pytest.approx(1.0, abs=0.02)
    expected = np.sin(2 * np.pi * 440 * np.arange(2_000, len(samples) + 2_000) / SAMPLE_RATE_HZ)
    assert np.abs(samples - expected).max() < 0.02


@pytest.mark.parametrize("channel", [0, 3, 7])
def test_each_channel_of_a_recorder_is_heard(channel: int, tmp_path: Path) -> None:
    signal = np.zeros((8, 48_000))
    signal[channel] = clicks([0.5], 1.0, 48_000)[0]
    sound = Sound("a.wav", "pcm_s16le", 48_000, "8 channels")

    done = ingested(write_sound(tmp_path, sound, signal), tmp_path)

    assert onsets(done.samples(), threshold=0.03) == pytest.approx([0.5], abs=ONE_MS)


@every(
    ("layout", "argument"),
    [
        ("mono", None),
        ("stereo", None),
        ("5.1(side)", None),
        ("1 channels", None),
        ("2 channels", None),
        ("4 channels", "mono|c0=" + "+".join(f"0.250000000*c{n}" for n in range(4))),
    ],
)
def test_only_channels_without_a_place_are_mixed_by_number(
    layout: str, argument: str | None
) -> None:
    assert down_mix(layout) == argument


def _write_with_times(path: Path, parts: list[tuple[int, np.ndarray]]) -> None:
    """PCM in Matroska: (start in ms, 16 kHz samples) per packet."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=16_000)
        stream.codec_context.layout = "mono"
        for start_ms, samples in parts:
            values = np.round(samples * 32767).astype(np.int16).reshape(1, -1)
            frame: Any = av.AudioFrame.from_ndarray(values, "s16", "mono")
            frame.sample_rate = 16_000
            for packet in stream.encode(frame):
                packet.pts = packet.dts = start_ms
                packet.time_base = Fraction(1, 1000)
                container.mux(packet)


def test_what_timestamps_leave_out_is_silence_so_that_later_sound_keeps_its_time(
    tmp_path: Path,
) -> None:
    signal = clicks([0.1, 0.6, 1.1, 1.6], 2.0, 16_000)[0]
    path = tmp_path / "gap.mka"
    _write_with_times(path, [(0, signal[:8_000]), (1_000, signal[16_000:24_000])])

    samples = ingested(path, tmp_path).samples()

    assert len(samples) == 24_000
    assert not samples[8_000:16_000].any()
    assert onsets(samples) == pytest.approx([0.1, 1.1], abs=ONE_MS)


def test_what_timestamps_repeat_is_left_out(tmp_path: Path) -> None:
    signal = clicks([0.1, 0.6, 0.9], 1.0, 16_000)[0]
    path = tmp_path / "overlap.mka"
    _write_with_times(path, [(0, signal[:8_000]), (400, signal[6_400:])])

    samples = ingested(path, tmp_path).samples()

    assert len(samples) == 16_000
    assert onsets(samples) == pytest.approx([0.1, 0.6, 0.9], abs=ONE_MS)


def test_timestamps_that_jitter_by_milliseconds_cut_nothing_up(tmp_path: Path) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)
    jitter = [0, 3, -4, 2, -1, 4, -3, 0, 1, -2]
    parts = [(n * 100 + jitter[n], tone[n * 1600 : (n + 1) * 1600]) for n in range(10)]
    path = tmp_path / "jitter.mka"
    _write_with_times(path, parts)

    samples = ingested(path, tmp_path).samples()

    assert np.abs(samples - tone).max() < 0.001


def test_a_slow_clock_is_corrected_before_it_is_audible_against_the_picture(
    tmp_path: Path,
) -> None:
    """A recorder whose clock is 1 % slow: its packets come 101 ms apart with 100 ms in them."""
    parts = []
    for number in range(100):
        part = np.zeros(1600)
        if number % 20 == 0:
            part = clicks([0.0], 0.1, 16_000)[0]
        parts.append((number * 101, part))
    path = tmp_path / "drift.mka"
    _write_with_times(path, parts)

    found = onsets(ingested(path, tmp_path).samples())

    assert found == pytest.approx([number * 0.101 for number in range(0, 100, 20)], abs=0.0115)


def _with_sound(folder: Path, *, sound_first_ms: int, names: list[dict[str, str]]) -> Path:
    """A drawn video with one 16 kHz stereo track of a click at its start per entry of ``names``."""
    silent = write_clip(folder, Clip("silent.mkv", "libx264", frames=50))
    path = folder / "sound.mkv"
    with av.open(str(silent)) as source, av.open(str(path), "w") as target:
        video: Any = target.add_stream_from_template(source.streams.video[0])
        tracks: list[Any] = []
        for number, metadata in enumerate(names):
            track: Any = target.add_stream("flac", rate=16_000)
            track.codec_context.layout = "mono"
            track.metadata.update(metadata)
            tracks.append((number, track))
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                target.mux(packet)
        for number, track in tracks:
            values = np.round(clicks([0.25 * (number + 1)], 1.5, 16_000) * 32767)
            frame: Any = av.AudioFrame.from_ndarray(values.astype(np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 16_000, sound_first_ms * 16
            frame.time_base = Fraction(1, 16_000)
            target.mux(track.encode(frame))
            target.mux(track.encode(None))
    return path


@pytest.mark.parametrize("late_ms", [0, 400, 777])
def test_sound_that_starts_late_says_so_in_its_offset(late_ms: int, tmp_path: Path) -> None:
    done = ingested(_with_sound(tmp_path, sound_first_ms=late_ms, names=[{}]), tmp_path)

    (track,) = done.result.tracks
    assert track.offset_seconds == pytest.approx(late_ms / 1000, abs=ONE_MS)
    found = onsets(done.samples())
    assert found[0] + track.offset_seconds == pytest.approx(0.25 + late_ms / 1000, abs=ONE_MS)


def test_every_audio_stream_becomes_a_track_named_by_title_language_or_number(
    tmp_path: Path,
) -> None:
    names = [{"title": "Boom", "language": "eng"}, {"language": "deu"}, {}]
    done = ingested(_with_sound(tmp_path, sound_first_ms=0, names=names), tmp_path)

    tracks = done.result.tracks
    assert [track.name for track in tracks] == ["Boom", "deu", "Track 3"]
    assert [track.index for track in tracks] == [0, 1, 2]
    found = [onsets(done.samples(number))[0] for number in range(3)]
    assert found == pytest.approx([0.25, 0.5, 0.75], abs=ONE_MS)


def test_damaged_sound_keeps_what_decodes_at_its_time_and_warns(tmp_path: Path) -> None:
    hiss = np.random.default_rng(5).normal(0, 0.02, 80_000)
    signal = clicks([0.5, 4.5], 5.0, 16_000) + hiss
    path = write_sound(tmp_path, Sound("a.mka", "flac", 16_000), signal)
    with av.open(str(path)) as container:
        packet = next(packet for packet in container.demux(audio=0) if (packet.pts or 0) > 2_000)
        position, size_bytes = packet.pos, packet.size
    assert position is not None
    data = bytearray(path.read_bytes())
    data[position + 10 : position + size_bytes] = b"\xff" * (size_bytes - 10)
    path.write_bytes(data)

    done = ingested(path, tmp_path)

    assert [warning.code for warning in done.result.warnings] == ["AUDIO_DAMAGED"]
    assert onsets(done.samples())[0] == pytest.approx(0.5, abs=ONE_MS)
    assert onsets(done.samples())[-1] == pytest.approx(4.5, abs=ONE_MS)


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


@every(
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


@every(
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
