"""Alignment of two recordings of the same sound: coarse, fine, then along the whole overlap."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.contracts import SAMPLE_RATE_HZ
from pipelines.artifacts import Artifact
from pipelines.execution.chain import Control, Workspace
from pipelines.ingest.sync.correlation import (
    ENVELOPE_RATE_HZ,
    WINDOW_SAMPLES,
    Candidate,
    Envelopes,
    Grid,
    Line,
    Pcm,
    best_line,
    candidates,
    envelopes,
    fitted,
)
from pipelines.media.audio import read_blocks
from pipelines.types import AudioTrack
from storage.objects.local_files import temporary_folder

_CANDIDATES = 12
_FIRST_SPAN = 150 * SAMPLE_RATE_HZ
_SPAN_GROWTH = 4
_WINDOWS = 12
_HALF_RANGE = round(0.1 * SAMPLE_RATE_HZ)
_MOST_DRIFT = 200e-6
_DRIFT_STEP = 5e-6
_SAME_PLACE = round(0.05 * SAMPLE_RATE_HZ)
_HOP = SAMPLE_RATE_HZ // ENVELOPE_RATE_HZ

_CHANCE_SCORE = 10.0
"""Recordings that have nothing in common reach this with the best of all lines tried."""

_CLEAR_SCORE = 18.0
_AMBIGUOUS_SHARE = 0.9
_DISTINCT_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where the target begins on the reference's timeline, and how sure that is."""

    offset_seconds: float
    """Of the target's first sample, from the reference's; right in the middle of the overlap."""
    confidence: float
    """0 to 1; chance reaches almost nothing, and below 0.5 it should not be relied on."""
    overlap_seconds: float
    drift_ppm: float | None = None
    """How much longer the reference takes than the target, in parts per million; None where
    it cannot be measured."""
    drift_uncertainty_ppm: float = 0.0
    score: float = 0.0


CERTAIN = 0.5
"""The confidence from which an alignment counts as right."""


def align(
    reference: Pcm, target: Pcm, *, check: Callable[[], None] = lambda: None
) -> Alignment | None:
    """Where ``target`` belongs on ``reference``'s timeline; None where nothing is alike at all.

    Both are mono at SAMPLE_RATE_HZ and may be memory maps: what is held besides
    grows by about 7 kB a second of sound (0.6 GB for a day of both). ``check`` is
    called between steps.
    """
    movements = (envelopes(reference), envelopes(target))
    check()
    lines = []
    for candidate in candidates(*movements, _CANDIDATES):
        check()
        line = _confirmed(reference, target, movements[1], candidate)
        if line is not None:
            lines.append(line)
    if not lines:
        return None
    lines.sort(key=lambda line: -line.score)
    best = _followed(reference, target, movements[1], lines[0], check)
    return _alignment(reference, target, movements[1], best, _confidence(lines))


def _confirmed(
    reference: Pcm, target: Pcm, movement: Envelopes, candidate: Candidate
) -> Line | None:
    """The best line near a coarse candidate, from windows around its anchor."""
    guess = Line(candidate.lag, candidate.anchor, 0.0, 0.0)
    starts = _window_starts(reference, target, movement, guess, _FIRST_SPAN)
    steps = round(_MOST_DRIFT / _DRIFT_STEP)
    drifts = tuple(step * _DRIFT_STEP for step in range(-steps, steps + 1))
    if len(starts) < 2:
        drifts = (0.0,)
    return best_line(reference, target, starts, guess, Grid(_HALF_RANGE, drifts))


def _followed(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, check: Callable[[], None]
) -> Line:
    """``line`` followed to both ends of the overlap, knowing its drift better at each step."""
    first, last = _overlap(reference, target, line)
    span, unknown = _FIRST_SPAN, _DRIFT_STEP
    while span < last - first:
        check()
        span *= _SPAN_GROWTH
        reach = min(span, 2 * (last - first)) / 2
        step = 4 / reach
        steps = int(np.ceil(unknown / step))
        drifts = tuple(index * step for index in range(-steps, steps + 1))
        starts = _window_starts(reference, target, movement, line, span)
        grid = Grid(round(0.02 * SAMPLE_RATE_HZ + unknown * reach), drifts)
        longer = best_line(reference, target, starts, line, grid)
        if longer is None or longer.score < _CHANCE_SCORE:
            return line
        line, unknown = longer, 2 * step
    return line


def _overlap(reference: Pcm, target: Pcm, line: Line) -> tuple[int, int]:
    """First and last sample of the target that the reference covers."""
    lag = round(line.lag)
    return max(0, -lag), max(0, min(len(target), len(reference) - lag))


def _window_starts(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, span: int
) -> list[int]:
    """The liveliest windows within ``span`` around the line's anchor, spread over it."""
    first, last = _overlap(reference, target, line)
    first = max(first, round(line.anchor) - span // 2)
    last = min(last, round(line.anchor) + span // 2)
    room = last - first
    if room < WINDOW_SAMPLES:
        return [first]
    count = min(_WINDOWS, room // WINDOW_SAMPLES)
    edges = np.linspace(first, last, count + 1).round().astype(int).tolist()
    return [
        _liveliest(movement, start, end - WINDOW_SAMPLES)
        for start, end in itertools.pairwise(edges)
    ]


def _liveliest(movement: Envelopes, low: int, high: int) -> int:
    """Start, from ``low`` to ``high``, of the window in which levels change most."""
    starts = range(low, max(low, high) + 1, WINDOW_SAMPLES // 2)
    length = WINDOW_SAMPLES // _HOP

    def activity(start: int) -> float:
        part = movement[:, start // _HOP : start // _HOP + length]
        return float(np.square(part, dtype=np.float32).sum())

    return max(starts, key=activity)


def _confidence(lines: Sequence[Line]) -> float:
    """How far the best place stands out from chance, and from the next best place."""
    best = lines[0]
    # Another place, allowing for drifts known to a step from far anchors.
    rivals = [
        line.score
        for line in lines
        if abs(line.lag - best.lag_at(line.anchor))
        > _SAME_PLACE + _DRIFT_STEP * abs(line.anchor - best.anchor)
    ]
    above_chance = (best.score - _CHANCE_SCORE) / (_CLEAR_SCORE - _CHANCE_SCORE)
    share = max(rivals, default=0.0) / best.score
    alone = (_AMBIGUOUS_SHARE - share) / (_AMBIGUOUS_SHARE - _DISTINCT_SHARE)
    return float(np.clip(above_chance, 0, 1) * np.clip(alone, 0, 1))


def _alignment(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, confidence: float
) -> Alignment:
    first, last = _overlap(reference, target, line)
    starts = _window_starts(reference, target, movement, line, 2 * len(target))
    fit = fitted(reference, target, starts, line) if len(starts) > 2 else None
    kept = line if fit is None else fit.line
    measurable = fit is not None and np.isfinite(fit.uncertainty)
    return Alignment(
        offset_seconds=kept.lag_at((first + last) / 2) / SAMPLE_RATE_HZ,
        confidence=confidence,
        overlap_seconds=(last - first) / SAMPLE_RATE_HZ,
        drift_ppm=kept.drift * 1e6 if fit is not None and measurable else None,
        drift_uncertainty_ppm=fit.uncertainty * 1e6 if fit is not None and measurable else 0.0,
        score=line.score,
    )


_CHECK_EVERY_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class _StoredAlignment:
    """As stored: no alignment where nothing is alike."""

    alignment: Alignment | None


ALIGNMENT = Artifact.of(_StoredAlignment, "sync", version=1)


def find_alignment(
    reference: AudioTrack,
    target: AudioTrack,
    *,
    workspace: Workspace,
    control: Control,
    parent: Path | None = None,
) -> Alignment | None:
    """Where ``target``'s first sample lies from ``reference``'s; None where nothing is alike.

    Both are tracks extracted by ingest (16 kHz mono FLAC). A stored result of an earlier run is
    used again.
    """
    store = workspace.store
    sizes = [store.size_bytes(track.key) for track in (reference, target)]
    key = ALIGNMENT.key(workspace.prefix, reference.key, target.key, sizes)

    def compute() -> _StoredAlignment:
        control.check()
        with (
            temporary_folder("sync-", parent) as folder,
            _samples(reference, workspace, control, folder / "reference") as one,
            _samples(target, workspace, control, folder / "target") as other,
        ):
            return _StoredAlignment(align(one, other, check=control.check))

    ALIGNMENT.make(store, key, compute)
    return ALIGNMENT.load(store, key).alignment


@contextmanager
def _samples(
    track: AudioTrack, workspace: Workspace, control: Control, path: Path
) -> Iterator[Pcm]:
    """The track's samples as a memory map of a file: a day of them need not fit into memory."""
    with workspace.store.local_copy(track.key) as source, path.open("wb") as file:
        for count, block in enumerate(read_blocks(source)):
            if count % _CHECK_EVERY_BLOCKS == 0:
                control.check()
            file.write(np.round(block * 32_767).astype("<i2").tobytes())
    if path.stat().st_size == 0:
        yield np.empty(0, np.int16)
    else:
        yield np.memmap(path, np.int16, "r")
    path.unlink()
