"""What real recordings do to a timeline and to a picture, and files that are not all there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from pipelines.ingest.headers import declared_bytes
from pipelines.ingest.pipeline import probe
from pipelines.media.decoding import rgb, upright
from pipelines.types import StageCode, StageError, VideoStream
from tests.pipelines.ingest.format_samples import (
    AAC,
    CLICK_SECONDS,
    H264,
    MPEG2,
    PCM,
    STRICT,
    Pictures,
    Sample,
    Sound,
    write_sample,
)
from tests.pipelines.ingest.ingest_material import Ingested, ingested, onsets, segment_frames
from tests.tables import every

Light = npt.NDArray[np.float64]

# --- clocks that are set anew ---

AC3 = Sound("ac3", format="fltp")
JOINED = {
    "transport stream, from the beginning again": (Sample("a.ts", H264, AAC), 0.0),
    "transport stream, a day later": (Sample("a.ts", H264, AAC), 80_000.0),
    "transport stream, half a minute later": (Sample("a.ts", H264, AAC), 32.0),
    "disc, from the beginning again": (Sample("a.vob", MPEG2, AC3, "vob"), 0.0),
}


def joined(folder: Path, sample: Sample, offset_seconds: float, parts: int = 3) -> Path:
    """``sample`` several times end to end, the clock of each part that much after the last."""
    data = b""
    for part in range(parts):
        muxing = {**sample.muxing, "output_ts_offset": str(part * offset_seconds)}
        data += write_sample(folder, replace(sample, muxing=muxing)).read_bytes()
    path = folder / f"joined-{sample.file_name}"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("sample", "offset_seconds"), JOINED.values(), ids=JOINED.keys())
def test_recordings_laid_end_to_end_are_one_continuous_timeline(
    sample: Sample, offset_seconds: float, tmp_path: Path
) -> None:
    done = ingested(joined(tmp_path, sample, offset_seconds), tmp_path, segment_seconds=2.0)

    media = done.result.media
    assert media.duration_seconds == pytest.approx(6.0, abs=0.15)
    assert [warning.code for warning in media.warnings] == ["TIMELINE_REPAIRED"]
    times = [time_ms for time_ms, _ in sorted(segment_frames(done))]
    assert len(times) == 150
    assert max(later - earlier for earlier, later in pairwise(times)) < 130
    parts = [2.0 * part + click for part in range(3) for click in CLICK_SECONDS]
    assert click_seconds(done) == pytest.approx(parts, abs=0.12)


def click_seconds(done: Ingested) -> list[float]:
    (track,) = done.result.tracks
    return [track.offset_seconds + seconds for seconds in onsets(done.samples(), 0.2)]


def test_picture_and_sound_stay_together_across_a_leap(tmp_path: Path) -> None:
    done = ingested(joined(tmp_path, JOINED_TS, 80_000.0), tmp_path, segment_seconds=2.0)

    frames = sorted(segment_frames(done))
    changes = [after[0] / 1000 for before, after in pairwise(frames) if before[1] != after[1]]
    clicks = click_seconds(done)
    for part in range(3):
        assert min(abs(change - clicks[2 * part] - 0.5) for change in changes) < 0.045


JOINED_TS = Sample("a.ts", replace(H264, options={**H264.options, "crf": "0"}), AAC)


def test_a_pause_in_a_transport_stream_is_kept(tmp_path: Path) -> None:
    media = probe(joined(tmp_path, Sample("a.ts", H264, AAC), 7.0, parts=2))

    assert media.duration_seconds == pytest.approx(9.0, abs=0.1)
    assert not media.timeline.repairs


# --- ends that are missing ---

FRONT_INDEX = {"movflags": "faststart"}
SHORT = Sample("a.mp4", H264, AAC, None, FRONT_INDEX)
DECLARING = {
    "mp4, index in front": SHORT,
    "m4a, index in front": Sample("a.m4a", None, PCM, "mov", FRONT_INDEX),
    "matroska": Sample("a.mkv", H264, AAC),
    "wav": Sample("a.wav", None, PCM),
    "rf64": Sample("a.wav", None, PCM, None, {"rf64": "always"}),
    "avi": Sample("a.avi", Pictures("mjpeg", pixels="yuvj420p"), PCM),
    "aiff": Sample("a.aiff", None, Sound("pcm_s16be")),
    "mxf": Sample("a.mxf", MPEG2, PCM),
    "asf": Sample("a.wmv", Pictures("wmv2"), None, "asf"),
}


@every("sample", DECLARING.values(), ids=DECLARING.keys())
def test_half_a_file_is_read_as_far_as_it_goes_with_a_warning(
    sample: Sample, tmp_path: Path
) -> None:
    path = write_sample(tmp_path, sample)
    assert declared_bytes(path) is not None
    assert probe(path).warnings == ()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])

    result = ingested(path, tmp_path, segment_seconds=1.0).result

    assert 0.5 < result.media.duration_seconds < 1.6
    assert [warning.code for warning in result.warnings if "DAMAGED" not in warning.code] == [
        "MEDIA_TRUNCATED"
    ]
    assert "seconds of it could be read" in result.media.warnings[0].message


@pytest.mark.parametrize("sample", [SHORT, DECLARING["wav"]], ids=["mp4", "wav"])
def test_a_file_of_which_next_to_nothing_is_there_fails(sample: Sample, tmp_path: Path) -> None:
    path = write_sample(tmp_path, sample)
    data = path.read_bytes()
    path.write_bytes(data[: _index_end(data) + 1_000])

    with pytest.raises(StageError, match="The file breaks off") as caught:
        probe(path)
    assert caught.value.code is StageCode.INGEST_FAILED


def _index_end(data: bytes) -> int:
    """Where the media data begins."""
    at = data.find(b"mdat")
    return at if at >= 0 else data.find(b"data")


@pytest.mark.parametrize(
    ("cut_bytes", "codes"), [(20, []), (400_000, ["MEDIA_TRUNCATED"])], ids=["a trifle", "much"]
)
def test_the_loss_of_a_trifle_is_not_worth_a_word(
    cut_bytes: int, codes: list[str], tmp_path: Path
) -> None:
    path = write_sample(tmp_path, Sample("a.wav", None, Sound("pcm_s24le", 96_000, format="s32")))
    path.write_bytes(path.read_bytes()[:-cut_bytes])

    assert [warning.code for warning in probe(path).warnings] == codes


def test_a_fragmented_recording_that_breaks_off_says_so_however_little_is_missing(
    tmp_path: Path,
) -> None:
    fragmented = {"movflags": "frag_keyframe+empty_moov"}
    sample = Sample("a.mp4", Pictures("h264"), Sound("aac"), muxing=fragmented)
    path = write_sample(tmp_path, sample)
    assert probe(path).warnings == ()
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(b"mfra") - 4 - 20])  # without the index behind the fragments
    assert "MEDIA_TRUNCATED" in [warning.code for warning in probe(path).warnings]
    path.write_bytes(data + b"\0\0\7\xd0what follows is no media")
    assert probe(path).warnings == ()


@every(
    "content",
    [
        b"",
        b"RIFF",
        b"RIFF\xff\xff\xff\xffWAVE",
        b"RF64\0\0\0\0WAVE",
        b"FORM\0\0\0\0AIFF",
        b"\x1aE\xdf\xa3" + bytes(40),
        b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" + bytes(20),
        b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\0" + bytes(20),
        b"\0\0\0\x04ftyp",
        b"\0\0\0\x01ftyp\0\0\0",
        bytes.fromhex("060e2b34020501010d01020101020400") + b"\xff" * 60,
        bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
        b"an ordinary text",
    ],
)
def test_files_that_do_not_say_how_long_they_are(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    assert declared_bytes(path) in (None, len(content))


# --- pictures ---


BT709_TO_BT2020 = np.array(
    [[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]]
)
"""ITU-R BT.2087."""


def nits_to_pq(nits: Light) -> Light:
    """The inverse EOTF of ITU-R BT.2100 PQ."""
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    power = (np.clip(nits, 0, None) / 10_000) ** m1
    return np.asarray(((c1 + c2 * power) / (1 + c3 * power)) ** m2)


def nits_to_hlg(nits: Light) -> Light:
    """The inverse of ITU-R BT.2100 HLG on a display of 1000 cd/m2."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    shown = np.clip(nits, 0, None) / 1000
    luma = np.maximum(shown @ np.array([0.2627, 0.6780, 0.0593]), 1e-9)[..., None]
    scene = luma ** ((1 - 1.2) / 1.2) * shown
    high = a * np.log(np.maximum(12 * scene - b, 1e-9)) + c
    return np.asarray(np.where(scene <= 1 / 12, np.sqrt(3 * scene), high))


def encoded(folder: Path, adjust: Callable[[Any], None], planes: np.ndarray[Any, Any]) -> Path:
    """Ten HEVC frames of one 10-bit picture, RGB in 16 bits."""
    path = folder / "hdr.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx265", rate=25, options={"x265-params": X265})
        stream.height, stream.width = planes.shape[:2]
        stream.pix_fmt = "yuv420p10le"
        adjust(stream.codec_context)
        for _ in range(10):
            wide = av.VideoFrame.from_ndarray(planes, format="rgb48le")
            frame = wide.reformat(format="yuv420p10le", dst_colorspace=9, dst_color_range=1)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


X265 = "log-level=none:qp=4:colorprim=bt2020:colormatrix=bt2020nc:range=limited:transfer="
COLOURS = np.array(
    [[0.8, 0.1, 0.1], [0.1, 0.7, 0.1], [0.1, 0.15, 0.8], [0.5, 0.5, 0.5], [0.2, 0.2, 0.2]]
)
"""In linear light of the ordinary range, BT.709; 1 is diffuse white."""


@pytest.mark.parametrize(
    ("transfer", "number", "curve"),
    [("smpte2084", 16, nits_to_pq), ("arib-std-b67", 18, nits_to_hlg)],
    ids=["PQ", "HLG"],
)
def test_colours_of_an_hdr_picture_come_out_as_they_were(
    transfer: str, number: int, curve: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Patches of known colour, encoded as HDR in BT.2020, are shown again in BT.709."""
    bars = np.repeat(np.repeat(COLOURS[None], 96, axis=0), 32, axis=1)
    light = (bars @ BT709_TO_BT2020.T) * 203.0
    planes = np.rint(curve(light) * 65535).astype(np.uint16)

    def adjust(context: Any) -> None:
        context.options = {"x265-params": X265 + transfer}
        context.color_trc, context.color_primaries, context.colorspace = number, 9, 9
        context.color_range = 1

    path = encoded(tmp_path, adjust, planes)
    video = probe(path).video
    assert video is not None
    assert video.hdr
    with av.open(str(path)) as container:
        shown = rgb(next(container.decode(video=0))).astype(float) / 255
    for number_of_bar, colour in enumerate(COLOURS):
        found = shown[48, number_of_bar * 32 + 16]
        expected = np.where(
            colour <= 0.0031308, colour * 12.92, 1.055 * colour ** (1 / 2.4) - 0.055
        )
        assert found == pytest.approx(expected, abs=0.09)


def test_interlaced_pictures_of_something_moving_have_no_comb(tmp_path: Path) -> None:
    path = tmp_path / "interlaced.mpg"
    with av.open(str(path), "w", format="dvd") as container:
        stream: Any = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.bit_rate = 8_000_000
        stream.codec_context.flags |= (1 << 18) | (1 << 29)
        for number in range(25):
            frame = av.VideoFrame.from_ndarray(woven(number), format="rgb24")
            planar: Any = frame.reformat(format="yuv420p")
            planar.pts, planar.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(planar))
        container.mux(stream.encode(None))
    video = probe(path).video
    assert video is not None
    assert video.interlaced
    still = shown_still(path, video)
    assert still.shape[:2] == (240, 320)
    assert comb(woven(10)) > 5
    assert comb(still) < 1


def woven(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A white bar that moves eight pixels from one field to the next."""
    picture = np.full((240, 320, 3), 16, np.uint8)
    for field in (0, 1):
        left = (number * 16 + field * 8) % 240
        picture[field::2, left : left + 60] = 235
    return picture


def comb(picture: np.ndarray[Any, Any]) -> float:
    """How much neighbouring lines differ, against lines two apart."""
    grey = picture.astype(float).mean(axis=2)
    near = np.abs(grey[2:] - grey[1:-1]).mean()
    far = np.abs(grey[2:] - grey[:-2]).mean()
    return float(near - far)


def shown_still(path: Path, video: VideoStream) -> np.ndarray[Any, Any]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    shape = video.width / video.height, video.orientation
    return upright(rgb(frames[10]), *shape, 960, interlaced=video.interlaced)


# --- sound ---

MANY = {
    "8 kHz": Sound("pcm_s16le", 8_000),
    "11 025 Hz": Sound("pcm_s16le", 11_025),
    "192 kHz": Sound("pcm_s24le", 192_000, format="s32"),
    "24 bits": Sound("pcm_s24le", 48_000, format="s32"),
    "floating point": Sound("pcm_f32le", 48_000, format="flt"),
    "double precision": Sound("pcm_f64le", 48_000, format="dbl"),
    "32 channels": Sound("pcm_s24le", 48_000, "32 channels", "s32"),
    "22.2": Sound("pcm_s16le", 48_000, "22.2"),
    "vorbis 7.1": Sound("vorbis", 48_000, "stereo", "fltp", STRICT),
}


@every("sound", MANY.values(), ids=MANY.keys())
def test_sound_of_any_rate_depth_and_number_of_channels_keeps_its_times(
    sound: Sound, tmp_path: Path
) -> None:
    done = ingested(write_sample(tmp_path, Sample("a.mka", None, sound)), tmp_path)

    channels = av.AudioLayout(sound.layout).nb_channels
    assert [stream.channels for stream in done.result.media.audio] == [channels]
    assert click_seconds(done) == pytest.approx(CLICK_SECONDS, abs=0.005)


def test_a_file_whose_rest_cannot_be_found_behind_damage_says_so(tmp_path: Path) -> None:
    path = write_sample(tmp_path, Sample("a.mkv", H264, PCM))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle:] = bytes(len(data) - middle)
    path.write_bytes(data)

    media = probe(path)

    assert 0.5 < media.duration_seconds < 1.6
    assert [warning.code for warning in media.warnings] == ["MEDIA_TRUNCATED"]
