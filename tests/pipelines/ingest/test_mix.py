"""Sound that is there is in the track: channels that cancel, one of many, levels far too low."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from models.contracts import SAMPLE_RATE_HZ
from pipelines.ingest.tracks import Meter
from pipelines.media.audio import read_blocks
from pipelines.media_types import ChannelUse, WarningCode
from tests.pipelines.ingest.ingest_material import Sound, ingested, write_sound
from tests.places import SHARED_MEDIA
from tests.tables import every

Signal = npt.NDArray[np.float64]

SECONDS = 6
RNG = np.random.default_rng(5)
SAMPLES = SECONDS * SAMPLE_RATE_HZ
CANCEL, IGNORED = WarningCode.AUDIO_CHANNELS_CANCEL, WarningCode.AUDIO_CHANNEL_IGNORED
QUIET, SILENT = WarningCode.AUDIO_QUIET, WarningCode.AUDIO_SILENT


def voice() -> Signal:
    """Noise that comes and goes as syllables and pauses do, at the level of speech."""
    syllables = np.repeat(RNG.random(SECONDS * 5), SAMPLE_RATE_HZ // 5) ** 2
    pauses = np.repeat(RNG.random(SECONDS * 2) > 0.3, SAMPLE_RATE_HZ // 2)
    smooth = np.convolve(syllables * pauses, np.hanning(800) / 400, mode="same")
    # Nothing below 100 Hz, nor a constant part.
    return np.diff(RNG.standard_normal(SAMPLES + 1)) * smooth * 0.2


def hiss(dbfs: float) -> Signal:
    return RNG.standard_normal(SAMPLES) * 10 ** (dbfs / 20)


def alone(count: int, channel: int, noise_dbfs: float = -70) -> Signal:
    """One channel has the voice, all have a little noise."""
    channels = np.stack([hiss(noise_dbfs) for _ in range(count)])
    channels[channel] += VOICE
    return channels


def turn(number: int) -> Signal:
    """One of eight who speak one after the other."""
    return np.where(np.arange(SAMPLES) * 8 // SAMPLES == number, voice(), 0.0)


VOICE, AMBIENCE, OTHER = voice(), voice(), voice()
HALVES = np.arange(SAMPLES) < SAMPLES // 2
STEREO = Sound("a.wav", "pcm_s16le", SAMPLE_RATE_HZ, "stereo")
SURROUND = Sound("a.wav", "pcm_s16le", SAMPLE_RATE_HZ, "5.1")
RECORDER = Sound("a.wav", "pcm_s16le", SAMPLE_RATE_HZ, "8 channels")
FLOAT = Sound("a.wav", "pcm_f32le", SAMPLE_RATE_HZ, "mono", "flt")

FAULTS: dict[str, tuple[Sound, Signal, set[WarningCode]]] = {
    "opposite polarity": (STEREO, np.stack([VOICE, -VOICE]), {CANCEL}),
    "opposite polarity in AAC": (
        Sound("a.m4a", "aac", 48_000, "stereo", "fltp"),
        np.repeat(np.stack([VOICE, -VOICE]), 3, axis=1),
        {CANCEL},
    ),
    "middle turned over, ambience beside it": (
        STEREO, np.stack([AMBIENCE / 2 + VOICE, AMBIENCE / 2 - VOICE]), {CANCEL},
    ),
    "one of two voices turned over": (
        STEREO,
        np.stack([VOICE, np.where(HALVES, VOICE, -VOICE)]),
        {CANCEL},
    ),
    **{f"surround, channel {n}": (SURROUND, alone(6, n), set()) for n in range(6)},
    "one microphone of eight": (RECORDER, alone(8, 5), set()),
    "one of eight, all noisy": (RECORDER, alone(8, 5, -50), set()),
    "a channel of hiss": (STEREO, np.stack([VOICE, hiss(-18)]), {IGNORED}),
    "45 dB too low, 24 bits": (
        Sound("a.wav", "pcm_s24le", SAMPLE_RATE_HZ, "mono", "s32"), VOICE[None] / 180, {QUIET},
    ),
    "60 dB too low, 24 bits": (
        Sound("a.flac", "flac", SAMPLE_RATE_HZ, "mono", "s32"), VOICE[None] / 1000, {QUIET},
    ),
    "65 dB too low, floating point": (FLOAT, VOICE[None] / 1800, {QUIET}),
    "too low, with clicks": (
        FLOAT, VOICE[None] / 1000 + 0.9 * (np.arange(SAMPLES) % 60_000 == 9), {QUIET},
    ),
    "too low beside a constant": (FLOAT, VOICE[None] / 1000 + 0.1, {QUIET}),
    "too low and turned over": (
        Sound("a.wav", "pcm_f32le", SAMPLE_RATE_HZ, "stereo", "flt"),
        np.stack([VOICE, -VOICE]) / 1000,
        {CANCEL, QUIET},
    ),
}  # fmt: skip


def likeness(samples: npt.NDArray[np.float32], signal: Signal) -> float:
    """Correlation where nothing clicks, at the best of the delays that a codec may have."""
    quiet = np.abs(samples) < 0.99
    found = [
        np.corrcoef(samples[delay:][: SAMPLES - 1600][quiet[delay:][: SAMPLES - 1600]],
                    signal[: SAMPLES - 1600][quiet[delay:][: SAMPLES - 1600]])[0, 1]
        for delay in range(4)
    ]  # fmt: skip
    return float(max(map(abs, found)))


@every(("sound", "signal", "codes"), FAULTS.values(), ids=FAULTS)
def test_a_voice_that_the_usual_mix_loses_is_in_the_track(
    sound: Sound, signal: Signal, codes: set[WarningCode], tmp_path: Path
) -> None:
    done = ingested(write_sound(tmp_path, sound, signal), tmp_path)

    assert {warning.code for warning in done.result.warnings} == codes
    assert all(warning.track_index == 0 for warning in done.result.warnings)
    samples = done.samples()
    assert likeness(samples, VOICE) > 0.7
    loud = np.sort(np.abs(samples))[-len(samples) // 20]
    assert loud > 10 ** (-26 / 20)
    assert len(samples) == pytest.approx(SAMPLES, abs=1024)


CLEAN: dict[str, tuple[Sound, Signal]] = {
    "the same in both channels": (STEREO, np.stack([VOICE, VOICE])),
    "two people, a microphone each": (STEREO, np.stack([VOICE, OTHER])),
    "one channel is empty": (STEREO, np.stack([VOICE, np.zeros(SAMPLES)])),
    "in a wide room": (STEREO, np.stack([VOICE + AMBIENCE / 2, VOICE - AMBIENCE / 2])),
    "all around": (SURROUND, np.stack([voice() for _ in range(6)])),
    "eight people in turn": (RECORDER, np.stack([turn(n) for n in range(8)])),
    "20 dB lower": (FLOAT, VOICE[None] / 10),
}


@every(("sound", "signal"), CLEAN.values(), ids=CLEAN)
def test_a_clean_recording_has_the_usual_mix(sound: Sound, signal: Signal, tmp_path: Path) -> None:
    path = write_sound(tmp_path, sound, signal)
    done = ingested(path, tmp_path)
    assert done.result.warnings == ()
    with av.open(str(path)) as container:
        resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE_HZ)
        usual = np.concatenate(
            [
                part.to_ndarray()[0]
                for frame in container.decode(audio=0)
                for part in resampler.resample(frame)
            ]
        )
    if sound is RECORDER:
        usual = np.round(signal.mean(axis=0) * 32767).astype(np.int16)
    assert np.abs(done.samples()[: len(usual)] * 32768 - usual[: len(done.samples())]).max() <= 1


@pytest.mark.parametrize(
    ("signal", "code"),
    [
        pytest.param(np.zeros((1, SAMPLES)), SILENT, id="nothing"),
        pytest.param(hiss(-97)[None], SILENT, id="the noise of 16 bits"),
        pytest.param(hiss(-65)[None], QUIET, id="steady noise, which is not raised"),
    ],
)
def test_sound_without_a_voice_is_left_as_it_is_with_a_warning(
    signal: Signal, code: WarningCode, tmp_path: Path
) -> None:
    done = ingested(write_sound(tmp_path, FLOAT, signal), tmp_path)
    assert [warning.code for warning in done.result.warnings] == [code]
    assert np.abs(done.samples()).max() < 0.01


def test_a_rate_and_a_layout_that_change_are_followed_in_a_raw_stream(tmp_path: Path) -> None:
    first = Sound("a.aac", "aac", 48_000, "stereo", "fltp")
    second = Sound("b.aac", "aac", 22_050, "mono", "fltp")
    time = np.arange(3 * 48_000) / 48_000
    low = np.sin(2 * np.pi * 300 * time)
    high = np.sin(2 * np.pi * 2000 * np.arange(3 * 22_050) / 22_050)
    parts = [
        write_sound(tmp_path, first, np.stack([low, low]) * 0.5).read_bytes(),
        write_sound(tmp_path, second, high[None] * 0.5).read_bytes(),
    ]
    path = tmp_path / "both.aac"
    path.write_bytes(b"".join(parts))
    done = ingested(path, tmp_path)
    assert done.result.media.duration_seconds == pytest.approx(6.1, abs=0.1)
    samples = done.samples()
    for start, hertz in ((1.0, 300), (4.5, 2000)):
        part = samples[round(start * SAMPLE_RATE_HZ) :][:SAMPLE_RATE_HZ]
        assert np.argmax(np.abs(np.fft.rfft(part))) == pytest.approx(hertz, abs=2)


def frame_of(values: Any, layout: str, rate_hz: int = SAMPLE_RATE_HZ) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(values.reshape(1, -1), "flt", layout)
    frame.sample_rate = rate_hz
    return frame


def test_a_day_of_many_channels_is_measured_in_bounded_memory() -> None:
    meter = Meter(86_400.0)
    channels = 16
    second = np.tile(
        RNG.standard_normal((SAMPLE_RATE_HZ, channels)).astype(np.float32) / 10, (6, 1)
    )
    for _ in range(20):
        meter.add(frame_of(second, "16 channels"), ("flt", "16 channels", SAMPLE_RATE_HZ, channels))
    meter.choose(lambda _, count: (1 / count,) * count)
    blocks = sum(len(part) for part in meter._found["16 channels"])
    assert 0 < blocks * channels**2 * 86_400 / 120 <= 4_000_000


@every("value", [np.nan, np.inf, 1e30])
def test_values_that_are_no_sound_do_not_matter(value: float) -> None:
    gains = []
    for odd in (0.0, value):
        samples = (VOICE / 1000).astype(np.float32)
        samples[50_000] = odd
        meter = Meter(SECONDS)
        for part in np.split(samples, 10):
            meter.add(frame_of(part, "mono"), ("flt", "mono", SAMPLE_RATE_HZ, 1))
        gains.append(meter.choose(lambda _, count: (1.0,) * count).gain_db)
    assert gains[0] > 30
    assert gains[1] == pytest.approx(gains[0], abs=1)


ONE = np.where(HALVES, VOICE, 0.0)
OTHER_HALF = np.where(HALVES, 0.0, OTHER)
TURNS = [turn(number) for number in range(6)]


def in_the_room(signal: Signal) -> Signal:
    """In the microphone of somebody else, 16 dB below and 2.5 ms later."""
    return np.concatenate([np.zeros(40), signal[:-40]]) / 6


@every(
    ("channels", "apart"),
    [
        pytest.param([ONE, OTHER_HALF], 2, id="who speaks in turn"),
        pytest.param([VOICE, OTHER], 2, id="who speak at once, with pauses"),
        pytest.param([ONE / 3, OTHER_HALF / 90], 2, id="one of them far too low"),
        pytest.param(TURNS, 6, id="six of a recorder"),
        pytest.param([VOICE, VOICE], 0, id="the same twice"),
        pytest.param([VOICE, -VOICE], 0, id="opposite polarity"),
        pytest.param([VOICE, np.zeros(SAMPLES)], 0, id="a channel without sound"),
        pytest.param([VOICE, hiss(-30)], 0, id="a channel of hiss"),
        pytest.param([VOICE + AMBIENCE, VOICE + OTHER], 0, id="ambience beside a voice"),
        pytest.param(
            [ONE + in_the_room(OTHER_HALF), OTHER_HALF + in_the_room(ONE)],
            0,
            id="two microphones in a room",
        ),
        pytest.param([ONE + in_the_room(OTHER), OTHER], 0, id="an echo of one in the other"),
        pytest.param([*TURNS, np.sum(TURNS, axis=0)], 0, id="a mix beside them"),
    ],
)
def test_channels_that_are_voices_apart_are_files_of_their_own(
    channels: list[Signal], apart: int, tmp_path: Path
) -> None:
    layout = "stereo" if len(channels) == 2 else f"{len(channels)} channels"
    sound = Sound("a.wav", "pcm_f32le", SAMPLE_RATE_HZ, layout, "flt")
    path = write_sound(tmp_path, sound, np.stack(channels))
    [track] = (done := ingested(path, tmp_path)).result.tracks
    assert len(track.channels) == apart
    for key, channel in zip(track.channels, channels, strict=False):
        samples = np.concatenate([*read_blocks(done.path(key))])
        assert len(samples) == len(done.samples())
        assert likeness(samples, channel) > 0.95
        assert np.sort(np.abs(samples))[-100] > 0.02
    assert (
        ingested(path, tmp_path / "mixed", channels=ChannelUse.MIXED).result.tracks[0].channels
        == ()
    )


def test_a_client_says_that_channels_are_apart(tmp_path: Path) -> None:
    path = write_sound(tmp_path, STEREO, np.stack([VOICE, VOICE / 2]))
    [track] = ingested(path, tmp_path, channels=ChannelUse.SEPARATE).result.tracks
    assert (len(track.channels), track.are_channels_asked) == (2, True)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("path", "apart"),
    [
        ("field/19-call-two-channels/call-crosstalk.wav", 2),
        ("field/19-call-two-channels/call-turns.wav", 2),
        ("speakers/stereo-two-channels.wav", 0),
        ("field/01-antiphase-stereo/antiphase.wav", 0),
        ("cuts/big_buck_bunny_0_30.webm", 0),
        ("cuts2/chrome-imaginary-forces.mp4", 0),
        ("formats/sample.avi", 0),
        ("speakers2/podcast-three.opus", 0),
    ],
)
def test_channels_of_recordings(path: str, apart: int, tmp_path: Path) -> None:
    [track] = ingested(SHARED_MEDIA / path, tmp_path).result.tracks
    assert len(track.channels) == apart


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("field/01-antiphase-stereo/antiphase.wav", [CANCEL]),
        ("field/18-quiet-voice/quiet45.wav", [QUIET]),
        ("cuts/flower.mp4", [SILENT]),
        ("speakers/stereo-two-channels.wav", []),
    ],
)
def test_recordings_of_the_field(path: str, codes: list[WarningCode], tmp_path: Path) -> None:
    done = ingested(SHARED_MEDIA / path, tmp_path)
    sound = [each.code for each in done.result.warnings if each.code.startswith("AUDIO_")]
    assert sound == codes
