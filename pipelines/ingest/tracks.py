"""Decoded sound as a track, 16 kHz mono FLAC: its channels measured, mixed down, laid end to end.

The usual mix stays wherever it has what the channels have. It does not where channels cancel each
other (opposite polarity, a side signal in the place of the middle), where speech is in one of many,
or where steady noise in one drowns it. Sound that is far too low is raised before it is rounded to
16 bits.

The place of a sample is its time. Where timestamps show a gap (lost packets, pauses in a recording)
there is silence; where they go back, what was already covered is left out. Runs in the confined
child process.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.filter import Graph

from pipelines.media_types import ChannelUse, WarningCode

Floats = npt.NDArray[np.float64]
Covariances = npt.NDArray[np.float32]
"""Of the channels in each block of time, shape (blocks, channels, channels)."""
Chosen = npt.NDArray[np.bool_]
"""Which channels."""
AudioFormat = tuple[str, str, int, int]
"""Sample format, channel layout, sample rate in Hz, number of channels."""
Weights = tuple[float, ...]
"""How much each channel counts in a mix."""

_BLOCK_SECONDS, _BLOCK_SAMPLES = 0.1, 1600
"""Samples between are left out: the power of the others is the same."""
_MOST_VALUES = 4_000_000
"""Of a track's covariances: 16 MB. Blocks of long recordings with many channels are longer."""
_BATCH_BLOCKS = 32
_FEW_PLANES = 8
_SCALES = {"u8": 2.0**-7, "s16": 2.0**-15, "s32": 2.0**-31, "s64": 2.0**-63}

# Levels are roots of mean squares in dB of full scale. The figures lie between what clean
# recordings showed and what those at fault did (docs/media.md).
_SILENT_DB = -90.0
"""The noise of 16 bits."""
_QUIET_DB, _RAISED_DB = -52.0, -20.0
"""Clean speech was at -44 and above; at -54 one word of 22 was lost."""
_FAINT_DB = 40.0
"""A channel so far below the loudest has nothing."""
_STEADY_DB = 6.0
"""Hiss and hum vary less; speech by 7 in a large room, elsewhere by 20 and more."""
_DROWNED_DB, _DROWNED_BY_DB = 15.0, 8.0
"""Speech is drowned in a mix that varies less, and so much less than one of its channels."""
_LOST_DB = 9.0
"""6 dB are lost where one of two channels has everything, and nothing is wrong."""
_CANCELLING = 0.7
"""Power of a mix over what unrelated channels would have: two readers 0.99, music 1.1 to 1.9."""
_OPPOSITE = -0.3
"""Correlation from which on a channel is turned over."""
_LOUD_DB = 15.0
"""Blocks no further below the loudest decide."""
_LOUD_BLOCKS, _LOUD_SHARE, _FLOOR_SHARE = 30, 0.05, 0.1
"""How many blocks are louder than the level of loud parts: more than clicks; how many are lower
than the floor."""

# Channels with a voice each, as call recorders write them: of 60 recordings with two channels two
# calls had correlations of 0.01 at most, of their levels over time 0.14, and each was silent for
# 0.4 of the time that the other spoke. All but one of the others had 0.76 and more, and no such
# time; in that one somebody speaks only while the other does, as an echo would.
_MOST_APART = 8
"""Channels that are transcribed one by one; each takes as long as a track does."""
_UNRELATED = 0.1
_AT_OTHER_TIMES = 0.5
"""Correlation of two channels' levels."""
_ALONE_DB, _ALONE_SHARE = 25.0, 0.25
"""So far below its own loud parts, or hardly above its floor, a channel has nothing of another
one's voice, not even from the same room; and in what share of the loud parts of the other."""
_LEAST_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Mix:
    """What to do with a track, and what was found in it."""

    weights: dict[str, Weights] = field(default_factory=dict)
    """By channel layout; none: the usual mix, at its own level."""
    gain_db: float = 0.0
    level_db: float = 0.0
    """Of the loud parts, before the gain."""
    cancels: bool = False
    drowns: bool = False
    channels: tuple[Mix, ...] = ()
    """Of each channel that is a voice apart, for a file of its own."""

    def findings(self, stream: int) -> Iterator[tuple[WarningCode, str]]:
        """Yield what a client should know of, as codes and messages of warnings."""
        if self.cancels:
            message = f"Channels of audio stream {stream} cancel each other in the usual mix."
            yield WarningCode.AUDIO_CHANNELS_CANCEL, f"{message} They were mixed in another way."
        if self.drowns:
            message = f"A channel of audio stream {stream} is steady noise; it was left out."
            yield WarningCode.AUDIO_CHANNEL_IGNORED, message
        if self.level_db < _SILENT_DB:
            yield WarningCode.AUDIO_SILENT, f"There is no sound in audio stream {stream}."
        elif self.level_db < _QUIET_DB:
            message = f"The sound of audio stream {stream} is very low"
            raised = f"it was raised by {self.gain_db:.0f} dB"
            done = raised if self.gain_db else "it is steady noise"
            yield WarningCode.AUDIO_QUIET, f"{message}; {done}."


class Meter:
    """Measures the frames of a track, whatever formats they have, in bounded memory."""

    def __init__(
        self,
        duration_seconds: float,
        channels: Sequence[int] | None = None,
        use: ChannelUse = ChannelUse.MIXED,
    ) -> None:
        """``channels``: those of the track, from 0; all of them if None."""
        self._duration_seconds, self._channels, self._use = duration_seconds, channels, use
        self._format: AudioFormat | None = None
        self._step = 1
        self._pending: list[npt.NDArray[np.float32]] = []
        self._samples = 0
        self._found: dict[str, list[Covariances]] = {}

    def add(self, frame: AudioFrame, audio_format: AudioFormat) -> None:
        """Measure a frame."""
        _, _, rate_hz, count = audio_format
        if audio_format != self._format:
            self._measure(rest=True)
            self._format, self._pending = audio_format, []
            seconds = max(_BLOCK_SECONDS, self._duration_seconds * count**2 / _MOST_VALUES)
            self._step = max(1, round(rate_hz * seconds / _BLOCK_SAMPLES))
        is_planar = frame.format.is_planar
        if is_planar and count >= _FEW_PLANES:
            # PyAV looks for the end of the list of planes behind it, and crashes.
            frame = AudioResampler(frame.format.packed, frame.layout, rate_hz).resample(frame)[0]
            is_planar = False
        samples = frame.to_ndarray()
        if not is_planar:
            samples = samples.reshape(-1, count).T
        self._pending.append(samples[:, :: self._step].astype(np.float32))
        self._samples += self._pending[-1].shape[1]
        if self._samples >= _BATCH_BLOCKS * _BLOCK_SAMPLES:
            self._measure(rest=False)

    def choose(self, usual: Callable[[str, int], Weights]) -> Mix:
        """Return the mix; ``usual`` gives the weights of the usual one in a layout of so many
        channels."""
        self._measure(rest=True)
        found: dict[str, _Channels] = {}
        for layout, blocks in self._found.items():
            covariances = np.concatenate(blocks).astype(np.float64)
            count = covariances.shape[1]
            allowed = np.isin(
                np.arange(count), range(count) if self._channels is None else self._channels
            )
            found[layout] = _Channels(covariances, np.array(usual(layout, count)), allowed)
        mixes = {layout: channels.best_mix() for layout, channels in found.items()}
        powers = [_power(channels.covariances, mixes[key]) for key, channels in found.items()]
        levels = _decibels(np.concatenate(powers or [np.zeros(1)]))
        level_db, gain_db = _loud(levels), _gain_db(levels)
        is_usual = all(mixes[layout] is channels.usual for layout, channels in found.items())
        weights = {layout: tuple(map(float, mix)) for layout, mix in mixes.items()}
        return Mix(
            {} if is_usual and not gain_db else weights,
            gain_db,
            level_db,
            any(channels.cancel for channels in found.values()),
            any(channels.are_drowned for channels in found.values()),
            self._apart(found),
        )

    def _apart(self, found: Mapping[str, _Channels]) -> tuple[Mix, ...]:
        """Return a mix a channel where each is to be transcribed by itself; else none."""
        if self._use is ChannelUse.MIXED or len(found) != 1:
            return ()
        [(layout, channels)] = found.items()
        levels = _decibels(np.diagonal(channels.covariances, axis1=1, axis2=2))
        chosen: Sequence[int] = range(levels.shape[1])
        if self._use is ChannelUse.AUTO:
            chosen = channels.voices_apart(levels)
        if not 2 <= len(chosen) <= _MOST_APART:
            return ()
        return tuple(
            Mix({layout: tuple(float(each == one) for one in range(levels.shape[1]))}, gain, level)
            for each in chosen
            for gain, level in [(_gain_db(levels[:, each]), _loud(levels[:, each]))]
        )

    def _measure(self, *, rest: bool) -> None:
        """Measure the whole blocks of what is pending, and at the end what is left."""
        if not self._samples or self._format is None:
            return
        name, layout, _, count = self._format
        samples = np.concatenate(self._pending, axis=1)
        length = min(_BLOCK_SAMPLES, samples.shape[1]) if rest else _BLOCK_SAMPLES
        whole = samples.shape[1] // length * length
        self._pending = [] if rest else [samples[:, whole:]]
        self._samples = sum(part.shape[1] for part in self._pending)
        blocks = samples[:, :whole].reshape(count, -1, length).transpose(1, 0, 2)
        with np.errstate(over="ignore", invalid="ignore"):
            blocks -= blocks.mean(axis=2, keepdims=True)
            blocks *= np.float32(_SCALES.get(name.removesuffix("p"), 1.0))
            covariances = np.einsum("tcn,tdn->tcd", blocks, blocks) / np.float32(length)
        covariances[~np.isfinite(covariances)] = 0.0
        self._found.setdefault(layout, []).append(covariances)


class _Channels:
    """The channels of one layout, and what mixes have of them."""

    def __init__(self, covariances: Floats, usual: Floats, allowed: Chosen) -> None:
        self.covariances, self.usual, self.allowed = covariances, usual, allowed
        self.cancel = self.are_drowned = False

    def best_mix(self) -> Floats:
        """Return the usual weights where nothing is wrong with them, else better ones."""
        usual, powers = self.usual, np.diagonal(self.covariances, axis1=1, axis2=2)
        levels = _decibels(powers)
        loud = np.array([_loud(channel) for channel in levels.T])
        varies = loud - np.array([_floor(channel) for channel in levels.T])
        loudest = loud[self.allowed].max(initial=_SILENT_DB)
        present = self.allowed & (loud >= max(loudest - _FAINT_DB, _SILENT_DB))
        if (present & (usual != 0.0)).any():
            # A channel of effects that the usual mix leaves out stays out.
            present &= usual != 0.0
        if np.count_nonzero(self.allowed) < 2 or not present.any():
            return usual
        mixed = _decibels(_power(self.covariances, usual))
        mix_varies = _loud(mixed) - _floor(mixed)
        lively = present & (varies >= _STEADY_DB)
        most = varies[lively].max(initial=0.0)
        self.are_drowned = bool(
            lively.any()
            and (present & ~lively).any()
            and mix_varies < _DROWNED_DB
            and most - mix_varies >= _DROWNED_BY_DB
        )
        return self._better(lively if self.are_drowned else present, powers)

    def _better(self, kept: Chosen, powers: Floats) -> Floats:
        """Return the usual weights, or the best of: the kept channels together, or one of them."""
        loudest = powers[:, kept].max(axis=1)
        decide = _decibels(loudest) >= _loud(_decibels(loudest)) - _LOUD_DB
        covariances, powers, loudest = self.covariances[decide], powers[decide], loudest[decide]

        def score(weights: Floats) -> float:
            """Return what the weights leave of the loudest channel, in dB, in the mean of the
            blocks."""
            left = _decibels(_power(covariances, weights) / np.maximum(loudest, 1e-14))
            return float(np.clip(left, -_FAINT_DB, 0.0).mean())

        total = covariances.sum(axis=0)
        own = np.diag(total)
        reference = int(np.argmax(own * kept))
        correlation = total[reference] / np.sqrt(np.maximum(own * own[reference], 1e-28))
        together = np.where(correlation < _OPPOSITE, -1.0, 1.0) * kept / np.count_nonzero(kept)
        alone = [one for one, is_kept in zip(np.eye(len(kept)), kept, strict=True) if is_kept]
        single = max(alone, key=score)
        unrelated = (powers * (self.usual * kept) ** 2).sum(axis=1)
        related = _power(covariances, self.usual * kept)
        loses = score(self.usual) < max(score(together), score(single)) - _LOST_DB
        self.cancel = bool(related.sum() < _CANCELLING * unrelated.sum()) or bool(
            loses and np.mean(related < 0.5 * unrelated) >= 0.2
        )
        if not (self.are_drowned or self.cancel or loses):
            return self.usual
        return together if score(together) >= score(single) - _LOST_DB else single

    def voices_apart(self, levels: Floats) -> Sequence[int]:
        """Return the channels that have a voice, where any two of them are unrelated and speak at
        other times; else none. ``levels`` in dB, shape (blocks, channels)."""
        loud = np.array([_loud(channel) for channel in levels.T])
        floors = np.array([_floor(channel) for channel in levels.T])
        lively = (loud >= max(loud.max(), _SILENT_DB + _FAINT_DB) - _FAINT_DB) & (
            loud - floors >= _STEADY_DB
        )
        if len(levels) < _LEAST_BLOCKS:
            return ()
        speaks = levels >= loud - _LOUD_DB
        silent = levels < np.maximum(loud - _ALONE_DB, floors + _STEADY_DB)
        levels = np.maximum(levels, loud - _FAINT_DB)
        total = self.covariances.sum(axis=0)
        own = np.sqrt(np.diag(total))
        present: list[int] = np.flatnonzero(lively).tolist()
        for one, other in itertools.combinations(present, 2):
            alone = [np.mean(silent[speaks[:, a], b]) for a, b in ((one, other), (other, one))]
            if (
                abs(total[one, other]) > _UNRELATED * own[one] * own[other]
                or np.corrcoef(levels[:, one], levels[:, other])[0, 1] > _AT_OTHER_TIMES
                or min(alone) < _ALONE_SHARE
            ):
                return ()
        return present


def _power(covariances: Floats, weights: Floats) -> Floats:
    """Of a mix in each block."""
    power: Floats = np.einsum("tcd,c,d->t", covariances, weights, weights)
    return power


def _decibels(power: Floats) -> Floats:
    return 10 * np.log10(np.maximum(power, 1e-14))


def _loud(levels: Floats) -> float:
    """Return the level of the loud parts."""
    count = max(1, min(_LOUD_BLOCKS, round(_LOUD_SHARE * len(levels))))
    return float(np.sort(levels)[-count])


def _floor(levels: Floats) -> float:
    return float(np.sort(levels)[int(_FLOOR_SHARE * len(levels))])


def _gain_db(levels: Floats) -> float:
    """Return how much sound is to be raised that is far too low, and no steady noise."""
    loud = _loud(levels)
    is_low = _SILENT_DB <= loud < _QUIET_DB and loud - _floor(levels) >= _STEADY_DB
    return _RAISED_DB - loud if is_low else 0.0


SAMPLE_RATE_HZ = 16_000
"""As ``models.contracts.SAMPLE_RATE_HZ``, whose module imports numpy; a test compares."""

_SAMPLE_BYTES = 2
_TOLERANCE_SECONDS = 0.010
"""Timestamps may be this far off without a correction: containers round to a millisecond,
live recorders jitter by a few; the shortest common packet (Opus) lasts 10 to 20 ms."""

_SILENT_SAMPLES = 1 << 15
_SILENCE = bytes(_SILENT_SAMPLES * _SAMPLE_BYTES)
_UNORDERED_LAYOUT = re.compile(r"(\d+) channels")

Channels = tuple[int, ...]
"""Which channels of a stream make up a track, from 0."""


def down_mix(layout: str) -> str | None:
    """Return the ``pan`` filter's argument where FFmpeg's own down-mix is not right; else None.

    FFmpeg weights channels by speaker position, with a sum of 1, so nothing clips, and drops the
    low-frequency channel. Channels of a recorder have no position: each counts the same.
    """
    match = _UNORDERED_LAYOUT.fullmatch(layout)
    if match is None or int(match[1]) <= 2:
        return None
    return mix_of(range(int(match[1])))


def mix_of(channels: Iterable[int]) -> str:
    """Return the ``pan`` filter's argument for these channels mixed, each counting the same."""
    chosen = list(channels)
    return "mono|c0=" + "+".join(f"{1 / len(chosen):.9f}*c{channel}" for channel in chosen)


def remixing(weights: Weights, gain_db: float) -> list[tuple[str, str]]:
    """Filters, in floating point: what is raised has lost nothing to rounding.

    A constant part, or rumble, would be raised too.
    """
    pan = "mono|c0=" + "+".join(f"{each:.9f}*c{index}" for index, each in enumerate(weights))
    filters = [("aformat", "sample_fmts=fltp"), ("pan", pan.replace("+-", "-"))]
    if gain_db:
        filters += [("highpass", "f=60"), ("volume", f"{gain_db:.3f}dB:precision=float")]
    return filters


class Resampler:
    """Frames of one format to 16-bit mono samples at SAMPLE_RATE_HZ."""

    def __init__(
        self, audio_format: AudioFormat, channels: Channels | None = None, mix: Mix | None = None
    ) -> None:
        """``channels``: those that count, all of them if None; ``mix``: weights, or none."""
        name, layout, rate_hz, count = audio_format
        self._graph = Graph()
        source = self._graph.add(
            "abuffer",
            sample_fmt=name,
            channel_layout=layout,
            sample_rate=str(rate_hz),
            time_base=f"1/{rate_hz}",
        )
        pan = down_mix(layout)
        if channels is not None:
            # Channels that this run of frames lacks are silent.
            present = [channel for channel in channels if channel < count]
            pan = mix_of(present) if present else "mono|c0=0*c0"
        filters = [] if pan is None else [("pan", pan)]
        if mix is not None and layout in mix.weights:
            filters = remixing(mix.weights[layout], mix.gain_db)
        for filter_name, arguments in filters:
            following = self._graph.add(filter_name, arguments)
            source.link_to(following)
            source = following
        wanted = self._graph.add(
            "aformat", sample_fmts="s16", channel_layouts="mono", sample_rates=str(SAMPLE_RATE_HZ)
        )
        sink = self._graph.add("abuffersink")
        source.link_to(wanted)
        wanted.link_to(sink)
        self._graph.configure()

    def add(self, frame: AudioFrame | None) -> bytes:
        """Return samples that are ready after ``frame``; after None, all the rest."""
        self._graph.push(frame)
        pieces: list[bytes] = []
        while True:
            try:
                ready: Any = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return b"".join(pieces)
            pieces.append(bytes(ready.planes[0])[: ready.samples * _SAMPLE_BYTES])


class FlacFile:
    """A growing 16-bit mono FLAC file at SAMPLE_RATE_HZ."""

    def __init__(self, path: Path) -> None:
        self._container = av.open(str(path), "w", format="flac")
        self._stream: Any = self._container.add_stream("flac", rate=SAMPLE_RATE_HZ)
        self._stream.codec_context.layout = "mono"
        self._stream.codec_context.format = "s16"
        self._pending = bytearray()
        self.samples = 0

    def write(self, data: bytes) -> None:
        """Append samples."""
        self._pending += data
        self.samples += len(data) // _SAMPLE_BYTES
        while len(self._pending) >= len(_SILENCE):
            self._encode(bytes(self._pending[: len(_SILENCE)]))
            del self._pending[: len(_SILENCE)]

    def write_silence(self, samples: int) -> None:
        """Append silence of any length."""
        while samples > 0:
            part = min(samples, _SILENT_SAMPLES)
            self.write(_SILENCE[: part * _SAMPLE_BYTES])
            samples -= part

    def close(self) -> None:
        if self._pending:
            self._encode(bytes(self._pending))
        if self.samples:
            self._container.mux(self._stream.encode(None))
        self._container.close()

    def _encode(self, data: bytes) -> None:
        frame = AudioFrame("s16", "mono", len(data) // _SAMPLE_BYTES)
        frame.sample_rate = SAMPLE_RATE_HZ
        frame.planes[0].update(data)
        self._container.mux(self._stream.encode(frame))


@dataclass(frozen=True, slots=True)
class TrackFile:
    """A track as a file of this name."""

    index: int
    name: str
    duration_seconds: float
    offset_seconds: float
    damaged_packets: int
    findings: tuple[tuple[WarningCode, str], ...] = ()
    channels: tuple[str, ...] = ()
    """Files of its channels that are voices apart, as long as it."""


@dataclass(slots=True)
class TrackWriter:
    """Where samples go: silence for gaps, nothing for what is covered already.

    Samples are counted from the media's start. The first sample is put where its
    time is; the track begins there.
    """

    file: FlacFile
    limit_samples: int
    """The media's end: nothing is written behind it, whatever timestamps claim."""
    first_sample: int | None = None
    _skip_samples: int = 0

    def go_to(self, seconds: float) -> None:
        """Continue at this time."""
        target = round(seconds * SAMPLE_RATE_HZ)
        if self.first_sample is None:
            self.first_sample = target
        target = min(target, self.limit_samples)
        missing = target - self.first_sample - self.file.samples
        self.file.write_silence(missing)
        self._skip_samples = max(0, -missing)

    def write(self, data: bytes) -> None:
        """Append samples, less those whose place is taken."""
        skipped = min(self._skip_samples, len(data) // _SAMPLE_BYTES)
        self._skip_samples -= skipped
        room = self.limit_samples - (self.first_sample or 0) - self.file.samples
        self.file.write(data[skipped * _SAMPLE_BYTES :][: max(0, room) * _SAMPLE_BYTES])


@dataclass(slots=True)
class TrackExtractor:
    """Turns one audio stream, or some of its channels, frame by frame into a FLAC file."""

    path: Path
    duration_seconds: float
    channels: Channels | None = None
    mix: Mix = field(default_factory=Mix)
    """Found out by the first reading; without weights there is no second."""
    use: ChannelUse = ChannelUse.MIXED
    _meter: Meter | None = field(init=False, default=None)
    _timeline: TrackWriter = field(init=False)
    _format: AudioFormat | None = None
    _resampler: Resampler | None = None
    _due_seconds: float = 0.0

    def __post_init__(self) -> None:
        limit = round((self.duration_seconds + 1.0) * SAMPLE_RATE_HZ)
        self._timeline = TrackWriter(FlacFile(self.path), limit)
        if not self.mix.weights:
            self._meter = Meter(self.duration_seconds, self.channels, self.use)

    def again(self) -> Iterator[TrackExtractor]:
        """Yield the same track where it needs another mix, and its channels that are apart."""
        if self.mix.weights:
            yield TrackExtractor(self.path, self.duration_seconds, self.channels, self.mix)
        for path, mix in zip(self._channel_paths(), self.mix.channels, strict=True):
            yield TrackExtractor(path, self.duration_seconds, mix=mix)

    def _channel_paths(self) -> list[Path]:
        count = len(self.mix.channels)
        return [self.path.with_stem(f"{self.path.stem}-apart-{n}") for n in range(count)]

    def finish(self, index: int, damaged_packets: int) -> TrackFile | None:
        """Close the file of stream ``index``; None if it is empty."""
        self._end_run()
        file = self._timeline.file
        file.close()
        if self._meter is not None:
            self.mix = self._meter.choose(self._usual_weights)
        if not file.samples or self._timeline.first_sample is None:
            return None
        return TrackFile(
            index=index,
            name=self.path.name,
            duration_seconds=file.samples / SAMPLE_RATE_HZ,
            offset_seconds=self._timeline.first_sample / SAMPLE_RATE_HZ,
            damaged_packets=damaged_packets,
            findings=tuple(self.mix.findings(index)),
            channels=tuple(path.name for path in self._channel_paths()),
        )

    def _usual_weights(self, layout: str, count: int) -> Weights:
        """Return how much each channel counts, as the usual mix shows: an impulse in one after
        another."""
        resampler = Resampler(("flt", layout, SAMPLE_RATE_HZ, count), self.channels)
        impulses = AudioFrame("flt", layout, count)
        impulses.sample_rate = SAMPLE_RATE_HZ
        values = [0.5 * (channel == time) for time in range(count) for channel in range(count)]
        impulses.planes[0].update(array("f", values).tobytes())
        mixed = array("h", resampler.add(impulses) + resampler.add(None))
        return tuple(sample / 2**14 for sample in mixed)

    def add(self, frame: AudioFrame, seconds: float | None) -> None:
        """Take the next frame, which begins at ``seconds`` from the media's start if known."""
        layout = frame.layout
        found = (frame.format.name, layout.name, frame.sample_rate, layout.nb_channels)
        resampler = self._resampler
        off = 0.0 if seconds is None else abs(seconds - self._due_seconds)
        if resampler is None or found != self._format or off > _TOLERANCE_SECONDS:
            seconds = self._due_seconds if seconds is None else seconds
            self._end_run()
            self._format = found
            self._resampler = Resampler(found, self.channels, self.mix)
            self._due_seconds = seconds
            self._timeline.go_to(seconds)
            resampler = self._resampler
        self._due_seconds += frame.samples / frame.sample_rate
        if self._meter is not None:
            self._meter.add(frame, found)
        self._timeline.write(resampler.add(frame))

    def _end_run(self) -> None:
        if self._resampler is not None:
            self._timeline.write(self._resampler.add(None))
            self._resampler = None
