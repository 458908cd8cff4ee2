"""Writing on the screen over time: when to read it, what reads it, and when each line is there.

Strokes of writing, found while the frames are decoded, show when there is writing that was not
read yet, how it moves, and how long it stays. So each line is read once or twice, however long it
is there, and a film without any costs nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import cv2
import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Indel

from models.contracts import Box, TextLine
from models.pictures import TEXT_COLUMNS, TEXT_ROWS, may_show_text
from models.provider import ModelProvider
from models.tasks import READ_TEXT
from pipelines.codec import Artifact, Made
from pipelines.execution.chain import Step, Workspace
from pipelines.types import ScreenText, StageCode, VideoSource
from pipelines.vision.features import (
    FEATURES,
    STROKES_EVERY_MS,
    Bytes,
    features_key,
    strokes_from_bytes,
)
from pipelines.vision.stills import FrameTimes, stills_at

MOST_READINGS = 24
"""Of a scene: of more that are due, an even choice."""
MOST_SAMPLES = 20_000
"""Of a video, 5.5 hours at one a second; a longer one is sampled less often, evenly."""
MOST_LINES = 200
"""Of a scene, and of a whole video: the first."""
_AT_ONCE = 16

_FEWEST = 10
"""Places with strokes (of 90 x 160) that are worth a reading: two or three letters."""
_STEADY = 0.5
"""Share of the strokes that is where it was a second ago, unless they move."""
_FURTHEST = 60
"""Rows or columns that writing may roll in a second."""
_SAME_SPEED, _GOES_ON = 2, 0.75
"""Rows or columns that its speed may change by, and how much likelier it is that it goes on so."""
_READ_AGAIN = 0.6
"""Of the picture's height or width: writing that rolls is read anew after so much of it."""
_PRESENT = 0.4
"""Share of a line's strokes that must be seen for the line to be there."""
_SAME_TEXT, _SAME_ROLLING, _SAME_PLACE = 0.8, 0.9, 0.3
_EDGE = 0.01
"""Lines that roll are not read so near to the upper or lower edge, which cuts them."""
_DIGITS = re.compile(r"\d")

Strokes = npt.NDArray[np.bool_]
"""(90, 160), True where there are strokes of writing."""
Move = tuple[int, int]
"""Rows and columns that writing moves from a sample to the next."""


@dataclass(frozen=True, slots=True)
class StrokeSamples:
    """Strokes at some times of a video, which rise; kept packed."""

    times_ms: tuple[int, ...]
    packed: tuple[Bytes, ...]

    def between(self, start_ms: int, end_ms: int) -> StrokeSamples:
        first, after = np.searchsorted(self.times_ms, [start_ms, end_ms]).tolist()
        return StrokeSamples(self.times_ms[first:after], self.packed[first:after])

    def __getitem__(self, index: int) -> Strokes:
        return np.unpackbits(self.packed[index], axis=1).astype(bool)


def load_strokes(
    video: VideoSource, workspace: Workspace, start_ms: int, end_ms: int
) -> StrokeSamples:
    """Return samples of this part of a video, one a second, or fewer of a very long video.

    Of several frames in one such span the first counts that is not spare, or else the first,
    so that it does not matter where segments begin.
    """
    every_ms = max(STROKES_EVERY_MS, -(-video.duration_ms // MOST_SAMPLES))
    found: dict[int, tuple[bool, int, Bytes]] = {}
    for segment in video.segments:
        if segment.end_ms <= start_ms - every_ms or segment.start_ms >= end_ms:
            continue
        workspace.check()
        features = features_key(video, segment, workspace)
        times_ms, strokes, spare_ms = strokes_from_bytes(FEATURES.read(workspace.store, features))
        spare = np.isin(times_ms, spare_ms)
        for is_spare, time_ms, own in zip(spare.tolist(), times_ms.tolist(), strokes, strict=True):
            known = found.get(time_ms // every_ms)
            if known is None or (is_spare, time_ms) < known[:2]:
                found[time_ms // every_ms] = (is_spare, time_ms, own)
    samples = sorted(((at, own) for _, at, own in found.values()), key=itemgetter(0))
    return StrokeSamples(tuple(at for at, _ in samples), tuple(own for _, own in samples))


@dataclass(frozen=True, slots=True)
class ScenePlaces:
    """The samples of a scene, how writing moves between them, and which are to be read."""

    start_ms: int
    end_ms: int
    samples: StrokeSamples
    moves: tuple[Move, ...]
    """From each sample to the next."""
    read_at: tuple[int, ...]
    """Indices of samples."""

    @classmethod
    def of(cls, samples: StrokeSamples, start_ms: int, end_ms: int) -> ScenePlaces:
        own = samples.between(start_ms, end_ms)
        maps = [own[index] for index in range(len(own.times_ms))]
        moves: list[Move] = []
        for before, after in pairwise(maps):
            moves.append(_move(before, after, moves[-1] if moves else (0, 0)))
        due = [*_due(maps, moves)]
        if len(due) > MOST_READINGS:
            due = [due[round(at)] for at in np.linspace(0, len(due) - 1, MOST_READINGS)]
        return cls(start_ms, end_ms, own, tuple(moves), tuple(due))

    @property
    def times_ms(self) -> tuple[int, ...]:
        """When to read."""
        return tuple(self.samples.times_ms[index] for index in self.read_at)


def _due(maps: Sequence[Strokes], moves: Sequence[Move]) -> Iterator[int]:
    """Yield samples that show writing that was in none read before, and is there for two of
    them."""
    read, travelled = np.zeros((TEXT_ROWS, TEXT_COLUMNS), bool), 1.0
    for index, strokes in enumerate(maps):
        if int(strokes.sum()) < _FEWEST:
            continue
        following = maps[min(index + 1, len(maps) - 1)]
        if index < len(moves) and moves[index] != (0, 0):
            if travelled >= _READ_AGAIN:
                yield index
                read, travelled = strokes, 0.0
            down, across = moves[index]
            travelled += abs(down) / TEXT_ROWS + abs(across) / TEXT_COLUMNS
            continue
        steady = strokes & (following if index + 1 < len(maps) else maps[max(0, index - 1)])
        wide = cv2.dilate(read.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
        if int((steady & ~wide).sum()) >= _FEWEST:
            yield index
            read, travelled = strokes, 1.0


def _move(before: Strokes, after: Strokes, last: Move) -> Move:
    """(0, 0) where the strokes stay, or go where they are not recognised. Lines at equal distances
    may seem to go either way: they go on as from the sample before."""
    least = min(int(before.sum()), int(after.sum()))
    if least < 2 * _FEWEST or int((before & after).sum()) >= _STEADY * least:
        return 0, 0
    ones, others = before.astype(np.float32), after.astype(np.float32)
    # How many strokes fall together when all move down, or across, by so much.
    down = _along_diagonals(ones @ others.T)
    across = _along_diagonals(ones.T @ others)
    for sums, length in ((down, last[0]), (across, last[1])):
        if length:
            middle = len(sums) // 2 + length
            near = slice(max(0, middle - _SAME_SPEED), middle + _SAME_SPEED + 1)
            sums[near] /= _GOES_ON
    rows, columns = int(down.argmax()), int(across.argmax())
    if max(down[rows], across[columns]) < _STEADY * least:
        return 0, 0
    is_down = down[rows] >= across[columns]
    return (rows - TEXT_ROWS + 1, 0) if is_down else (0, columns - TEXT_COLUMNS + 1)


def _along_diagonals(shared: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Sums over each diagonal of a square matrix, from the lower left corner on."""
    size = len(shared)
    steps = np.arange(size)[None, :] - np.arange(size)[:, None] + size - 1
    sums = np.asarray(np.bincount(steps.ravel(), weights=shared.ravel()), np.float64)
    far = np.abs(np.arange(2 * size - 1) - size + 1) > _FURTHEST
    sums[far] = 0
    return sums


def _moved(strokes: Strokes, move: Move) -> Strokes:
    down, across = move
    shown = np.zeros_like(strokes)
    if abs(down) >= TEXT_ROWS or abs(across) >= TEXT_COLUMNS:
        return shown
    rows = slice(max(0, down), TEXT_ROWS + min(0, down))
    columns = slice(max(0, across), TEXT_COLUMNS + min(0, across))
    shown[rows, columns] = strokes[
        max(0, -down) : TEXT_ROWS - max(0, down), max(0, -across) : TEXT_COLUMNS - max(0, across)
    ]
    return shown


Readings = dict[int, tuple[TextLine, ...]]
"""Time of a frame in ms -> the lines that are read in it."""


@dataclass(frozen=True)
class ReadText(Step[FrameTimes, Made]):
    """Frames to the lines that are read in them (READINGS).

    ``models_digest`` names the backends in use: results of one are not reused for another.
    """

    name = "Reading what is written"
    code = StageCode.VISION_FAILED
    version = 2
    video: VideoSource
    workspace: Workspace
    models: ModelProvider
    models_digest: str

    def process(self, item: FrameTimes) -> Made:
        inputs = item.sources(self.video, self.workspace), item.times_ms, self.models_digest
        key = READINGS.key(self.workspace.prefix, *inputs, position=item.position)
        return READINGS.make(self.workspace.store, key, lambda: self._readings(item))

    def _readings(self, item: FrameTimes) -> Readings:
        """By frame time; frames that cannot be decoded, or show no writing, are left out."""
        reader = self.models.get(READ_TEXT)
        found: Readings = {}
        for some in item.in_runs(_AT_ONCE):
            self.workspace.check()
            stills = stills_at(self.video, some, self.workspace, long_side_px=960)
            written = {time_ms: still for time_ms, still in stills.items() if may_show_text(still)}
            if written:
                found |= dict(zip(written, reader.read([*written.values()]), strict=True))
        return found


READINGS = Artifact.of(Readings, "vision/text", version=ReadText.version)


def screen_texts(
    places: ScenePlaces, readings: Mapping[int, Sequence[TextLine]]
) -> tuple[ScreenText, ...]:
    """Return the lines of a scene, each once, with the times at which it is there.

    A sample stands for the times that are nearer to it than to others.
    """
    found: list[ScreenText] = []
    middles = ((one + other) // 2 for one, other in pairwise(places.samples.times_ms))
    borders = [places.start_ms, *middles, places.end_ms]
    for index in places.read_at:
        rolls = any(move != (0, 0) for move in places.moves[max(0, index - 1) : index + 1])
        for line in readings.get(places.samples.times_ms[index], ()):
            if rolls and not _EDGE < line.box.top < 1 - _EDGE - line.box.height:
                continue
            first, last = _stay(places, index, line.box)
            stay = borders[first], borders[last + 1]
            _add(found, ScreenText(line.text, line.confidence, line.box, *stay, rolls), rolls)
    if not places.samples.times_ms:
        own = places.start_ms, places.end_ms
        for time_ms, lines in readings.items():
            if places.start_ms <= time_ms < places.end_ms:
                found += [ScreenText(it.text, it.confidence, it.box, *own) for it in lines]
    return tuple(sorted(found[:MOST_LINES], key=lambda each: (each.start_ms or 0, each.box.top)))


def together(texts: Sequence[Sequence[ScreenText]]) -> tuple[ScreenText, ...]:
    """Return the writing of all scenes, in order, each text where it is first."""
    first = {line.text.casefold(): line for own in reversed(texts) for line in reversed(own)}
    lines = sorted(first.values(), key=lambda line: (line.start_ms or 0, line.box.top))
    return tuple(lines[:MOST_LINES])


def _stay(places: ScenePlaces, index: int, box: Box) -> tuple[int, int]:
    """Return the first and the last sample that show the strokes in ``box`` of the one at
    ``index``."""
    top, left = int(box.top * TEXT_ROWS), int(box.left * TEXT_COLUMNS)
    bottom = int(np.ceil((box.top + box.height) * TEXT_ROWS))
    right = int(np.ceil((box.left + box.width) * TEXT_COLUMNS))
    line = np.zeros((TEXT_ROWS, TEXT_COLUMNS), bool)
    line[top:bottom, left:right] = places.samples[index][top:bottom, left:right]
    ends = []
    for step in (-1, 1):
        at, down, across = index, 0, 0
        while 0 <= at + step < len(places.samples.times_ms):
            move = places.moves[at if step > 0 else at - 1]
            down, across = down + step * move[0], across + step * move[1]
            inside = _moved(line, (down, across))
            there = int(inside.sum())
            if there < max(1, _PRESENT * int(line.sum())):
                break
            if int((inside & places.samples[at + step]).sum()) < _PRESENT * there:
                break
            at += step
        ends.append(at)
    return ends[0], ends[1]


def _add(found: list[ScreenText], line: ScreenText, rolls: bool) -> None:
    """Append the line, or let one that it is the same as last longer; the surer text counts. Lines
    that differ by their figures alone, as those of a clock, are the same: the first counts."""
    for at, other in enumerate(found):
        if other.start_ms is None or other.end_ms is None or line.start_ms is None:
            continue
        is_equal = other.text.casefold() == line.text.casefold()
        if line.start_ms > other.end_ms + (STROKES_EVERY_MS if is_equal else -1):
            continue
        if not is_equal and not _is_same(other, line, rolls):
            continue
        by_figures = _without_figures(other) == _without_figures(line)
        kept = other if by_figures or other.confidence >= line.confidence else line
        end_ms = max(other.end_ms, line.end_ms or 0)
        found[at] = replace(kept, start_ms=min(other.start_ms, line.start_ms), end_ms=end_ms)
        return
    found.append(line)


def _is_same(one: ScreenText, other: ScreenText, rolls: bool) -> bool:
    """Return whether lines that are there at one time are one, read differently."""
    likeness = Indel.normalized_similarity(one.text.casefold(), other.text.casefold())
    if rolls:
        return likeness >= _SAME_ROLLING
    if one.box.overlap(other.box) < _SAME_PLACE:
        return False
    return likeness >= _SAME_TEXT or _without_figures(one) == _without_figures(other)


def _without_figures(line: ScreenText) -> str:
    return _DIGITS.sub("0", line.text.casefold())
