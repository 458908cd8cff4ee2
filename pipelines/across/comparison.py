"""Two cuts of a film compared by the fingerprints of their shots: kept, removed, added, moved,
retimed; and their writing, line by line.

1. Every shot of one against every shot of the other: the cosine of their nearest samples, the
   whole picture against the whole or against each of WINDOWS of the other, where that was reframed.
2. Of pairs that may be the same, samples are laid beside each other along the line of time on which
   they agree best: a trimmed shot agrees from the trimmed place on, a slowed one along a slope.
3. A shot that two shots of the other cut are parts of, side by side, is divided between them: one
   that was cut into, or whose cut was found in one of the files only.
4. The heaviest chain of pairs that rises in both cuts is what stayed in order; what is left is
   chained again and again: blocks that moved. What no chain has was removed or added.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise, product
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Indel

from pipelines.types import ScreenText
from pipelines.vision.fingerprints import (
    EVERY_MS,
    SHORT_MS,
    WHOLE,
    Fingerprints,
    Floats,
    PictureWindow,
    descriptors,
)

LEAST_SIMILARITY = 0.80
"""Of a pair that is the same shot."""
SAME_LENGTH_MS = 120
"""Borders are found to a frame or two, and a new rate of frames moves them by as much."""
_CANDIDATES = 6
"""A shot: the most similar ones of the other cut are looked at closely."""
_BLOCK_SAMPLES = 512
"""Bounds the memory: so many rows of cosines at a time."""
_WINDOW_SAMPLES = 2_000
"""Of a cut, among so many windows: of films of an hour two of a shot."""


def _windows() -> Iterator[PictureWindow]:
    def places(length: float, most_step: float) -> npt.NDArray[np.float64]:
        spare = 1 - length
        return np.linspace(0, spare, 1 + int(np.ceil(spare / most_step)))

    for size in (0.91, 0.83, 0.75, 0.67, 0.6):
        for left in places(size, 0.06):
            for top in places(size, 0.06):
                yield PictureWindow(float(left), float(top), size, size)
    for width in (0.84, 0.75, 0.65, 0.5625, 0.45, 0.316):
        for left in places(width, 0.05):
            yield PictureWindow(float(left), 0.0, width, 1.0)
    for height in (0.88, 0.757, 0.68):
        for top in places(height, 0.06):
            yield PictureWindow(0.0, float(top), 1.0, height)


WINDOWS = tuple(_windows())
"""Zooms, narrower and flatter pictures of the same."""


class ShotChange(StrEnum):
    """What became of a shot."""

    KEPT = "kept"
    RETIMED = "retimed"
    MOVED = "moved"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class ShotPair:
    """A shot of one cut and that of the other that shows the same; removed and added ones have one
    side only."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    change: ShotChange
    before_ms: tuple[int, int] = (0, 0)
    after_ms: tuple[int, int] = (0, 0)
    """Where each begins and ends in its cut: a part of a shot that was divided."""
    similarity: float = 0.0
    moved: bool = False
    retimed: bool = False
    """One that moved may be both."""
    head_ms: int = 0
    """How much later in the shot it begins now; negative: earlier."""
    tail_ms: int = 0
    """How much earlier in the shot it ends now; negative: later."""
    speed: float = 1.0
    """How much faster it runs now."""
    reframed: bool = False


@dataclass(frozen=True, slots=True)
class _Likeness:
    """A pair of shots looked at closely."""

    before: int
    after: int
    similarity: float
    head_ms: int
    speed: float
    window: PictureWindow
    weight: float


def compare_shots(
    before: Fingerprints, after: Fingerprints, check: Callable[[], None] = lambda: None
) -> list[ShotPair]:
    """Return what became of every shot of ``before``, and where every shot of ``after`` comes from:
    by the place in ``after``, what was removed behind what it followed. ``check`` may raise, to
    stop it.
    """
    likely = _candidates(before, after, check)
    sides = _divided(before, {}), _divided(after, {})
    pairs = _rivalled([*_likenesses(*sides, likely, check)])
    borders = [_hidden_borders(before, after, pairs, side) for side in _SIDES]
    if any(borders):
        sides = _divided(before, borders[0]), _divided(after, borders[1])
        used = _chained(_rivalled([*_likenesses(*sides, likely, check)]))
        for own, side, divided in zip(borders, _SIDES, sides, strict=True):
            parts = Counter(int(divided.shots[getattr(each, side)]) for each, _ in used)
            # Whole again where only one part was found.
            for shot in [it for it in own if parts[it] < 2]:
                del own[shot]
        sides = _divided(before, borders[0]), _divided(after, borders[1])
        pairs = _rivalled([*_likenesses(*sides, likely, check)])
    return _joined([*_described(*sides, _chained(pairs))])


def _chained(pairs: Sequence[_Likeness]) -> list[tuple[_Likeness, bool]]:
    """Pairs that have no shot in common, and whether each is of a block that moved."""
    chosen = list[tuple[_Likeness, bool]]()
    while chain := _heaviest_chain(pairs):
        has_moved = bool(chosen)
        chosen += [(each, has_moved) for each in chain]
        first, second = ({getattr(each, side) for each in chain} for side in _SIDES)
        pairs = [it for it in pairs if it.before not in first and it.after not in second]
    return chosen


_SIDES = ("before", "after")


@dataclass(frozen=True, slots=True)
class _Divided:
    """Fingerprints some of whose shots are divided, and the shot that each part is of."""

    prints: Fingerprints
    shots: npt.NDArray[np.int64]


def _divided(prints: Fingerprints, borders: Mapping[int, Sequence[int]]) -> _Divided:
    """At ``borders``: shot to times in milliseconds of the cut."""
    starts, ends, counts, shots = list[int](), list[int](), list[int](), list[int]()
    for shot, samples in enumerate(_own_samples(prints)):
        edges = [int(prints.starts_ms[shot]), *borders.get(shot, ()), int(prints.ends_ms[shot])]
        times = prints.times_ms[samples]
        for start, end in pairwise(edges):
            starts.append(start)
            ends.append(end)
            shots.append(shot)
            last = end == edges[-1]
            counts.append(int(((times >= start) & ((times < end) | last)).sum()))
    made = replace(
        prints,
        starts_ms=np.array(starts, np.int64),
        ends_ms=np.array(ends, np.int64),
        counts=np.array(counts, np.int64),
    )
    return _Divided(made, np.array(shots, np.int64))


def _hidden_borders(
    before: Fingerprints, after: Fingerprints, pairs: Sequence[_Likeness], side: str
) -> dict[int, list[int]]:
    """Shots of a side which two or more shots of the other are parts of, one behind the other, and
    where one part ends and the next begins, in milliseconds of the cut."""
    prints, others = (before, after) if side == "before" else (after, before)
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pair in sorted(pairs, key=lambda it: -it.weight):
        shot, other = (pair.before, pair.after) if side == "before" else (pair.after, pair.before)
        start = int(prints.starts_ms[shot])
        length = int(prints.ends_ms[shot]) - start
        own = int(others.ends_ms[other] - others.starts_ms[other])
        first = max(0, pair.head_ms if side == "before" else -pair.head_ms)
        last = min(length, first + own)
        if pair.speed == 1.0 and last - first < length - SAME_LENGTH_MS:
            apart = all(
                first >= end - _TOUCH_MS or last <= at + _TOUCH_MS for at, end in parts[shot]
            )
            if apart:
                parts[shot].append((first, last))
    found = dict[int, list[int]]()
    for shot, own_parts in parts.items():
        times = prints.times_ms[_own_samples(prints)[shot]] - int(prints.starts_ms[shot])
        borders = list[int]()
        for (_, end), (begin, _) in pairwise(sorted(own_parts)):
            borders += [begin] if begin - end <= _TOUCH_MS else [end, begin]
        edges = [0, *borders, int(prints.ends_ms[shot] - prints.starts_ms[shot])]
        # Each part needs a sample to be found by.
        if borders and all(((times >= a) & (times < b)).any() for a, b in pairwise(edges)):
            found[shot] = [int(prints.starts_ms[shot]) + each for each in borders]
    return found


_TOUCH_MS = 300
"""Parts that are so close are neighbours: lines of time are sought every quarter of a second."""


def _joined(pairs: Sequence[ShotPair]) -> list[ShotPair]:
    """Neighbours in both cuts of which a side is one shot that was divided, as one again where they
    are as long together as they were."""
    joined = list[ShotPair]()
    for pair in pairs:
        last = joined[-1] if joined else None
        if last and last.before and last.after and pair.before and pair.after:
            together = replace(
                last,
                before=tuple(dict.fromkeys((*last.before, *pair.before))),
                after=tuple(dict.fromkeys((*last.after, *pair.after))),
                change=ShotChange.MOVED if last.moved else ShotChange.KEPT,
                before_ms=(last.before_ms[0], pair.before_ms[1]),
                after_ms=(last.after_ms[0], pair.after_ms[1]),
                similarity=min(last.similarity, pair.similarity),
                retimed=False,
                head_ms=0,
                tail_ms=0,
            )
            lengths = [end - start for start, end in (together.before_ms, together.after_ms)]
            if (
                (last.before[-1] == pair.before[0] or last.after[-1] == pair.after[0])
                and (last.before_ms[1], last.after_ms[1]) == (pair.before_ms[0], pair.after_ms[0])
                and last.moved == pair.moved
                and abs(lengths[0] - lengths[1]) <= SAME_LENGTH_MS
            ):
                joined[-1] = together
                continue
        joined.append(pair)
    return joined


def _rivalled(pairs: Sequence[_Likeness]) -> list[_Likeness]:
    """Pairs without those of which a side is far more similar to another, and without those that
    are far less similar than what is the same in these cuts: looks differ alike in all shots."""
    best = {
        side: {getattr(each, side): each.similarity for each in sorted(pairs, key=_SIMILARITY)}
        for side in _SIDES
    }
    mutual = [
        each.similarity
        for each in pairs
        if each.similarity == best["before"][each.before] == best["after"][each.after]
    ]
    usual = float(np.median(mutual)) if mutual else 1.0
    return [
        it
        for it in pairs
        if it.similarity >= usual - _BELOW_USUAL
        and it.similarity >= max(best["before"][it.before], best["after"][it.after]) - _RIVAL
    ]


_SIMILARITY = attrgetter("similarity")
_RIVAL = 0.05
_BELOW_USUAL = 0.08


def _heaviest_chain(pairs: Sequence[_Likeness]) -> list[_Likeness]:
    """Of the pairs those that rise on both sides and weigh most together."""
    ordered = sorted(pairs, key=lambda each: (each.before, -each.after))
    if not ordered:
        return []
    after = np.array([each.after for each in ordered])
    first = np.array([each.before for each in ordered])
    total = np.array([each.weight for each in ordered])
    previous = np.full(len(ordered), -1)
    for at in range(len(ordered)):
        earlier = np.flatnonzero((after[:at] < after[at]) & (first[:at] < first[at]))
        if len(earlier):
            best = earlier[total[earlier].argmax()]
            total[at] += total[best]
            previous[at] = best
    chain, at = list[_Likeness](), int(total.argmax())
    while at >= 0:
        chain.append(ordered[at])
        at = int(previous[at])
    return chain[::-1]


def _candidates(
    before: Fingerprints, after: Fingerprints, check: Callable[[], None]
) -> npt.NDArray[np.int64]:
    """(pairs, 4): shots that may be the same, in which window as ``_nearest`` has it, and in which
    one most shots are: all of a cut are framed alike, and among so many one fits by chance."""
    nearest, window = _nearest(before, after, check)
    likely = np.zeros(nearest.shape, bool)
    for matrix, mask in ((nearest, likely), (nearest.T, likely.T)):
        count = min(_CANDIDATES, matrix.shape[1])
        best = np.argpartition(-matrix, count - 1, axis=1)[:, :count]
        np.put_along_axis(mask, best, True, axis=1)
    likely &= nearest >= LEAST_SIMILARITY
    nearest_windows = window[np.arange(len(nearest)), nearest.argmax(axis=1)]
    numbers, counts = np.unique(nearest_windows[likely.any(axis=1)], return_counts=True)
    usual = numbers[counts.argmax()] if len(numbers) else 0
    return np.column_stack([*np.nonzero(likely), window[likely], np.full(likely.sum(), usual)])


def _likenesses(
    before: _Divided, after: _Divided, candidates: npt.NDArray[np.int64], check: Callable[[], None]
) -> Iterator[_Likeness]:
    """Pairs of parts that may be the same, of shots that may be."""
    sides = [_own_samples(each.prints) for each in (before, after)]
    parts = [
        {shot: [*group] for shot, group in groupby(range(len(each.shots)), each.shots.__getitem__)}
        for each in (before, after)
    ]
    for shot, another, window, usual in candidates.tolist():
        check()
        for one, other in product(parts[0][shot], parts[1][another]):
            pair = before.prints, after.prints, (one, other), sides[0][one], sides[1][other]
            found = _aligned(*pair, usual)
            if window != usual:
                unusual = _aligned(*pair, window)
                if unusual.similarity >= found.similarity + _UNUSUAL_GAIN:
                    found = unusual
            if found.similarity >= LEAST_SIMILARITY:
                yield found


def _own_samples(prints: Fingerprints) -> list[slice]:
    ends = np.cumsum(prints.counts)
    starts = (ends - prints.counts).tolist()
    return list(map(slice, starts, ends.tolist()))


def _nearest(
    before: Fingerprints, after: Fingerprints, check: Callable[[], None]
) -> tuple[Floats, npt.NDArray[np.int16]]:
    """(shots, shots): the highest cosine of any samples, and in which window: 0 for none, n for
    WINDOWS[n - 1] of ``before``, -n for that of ``after``."""
    found = _by_shot(descriptors(before.pictures), descriptors(after.pictures), before, after)
    window = np.zeros(found.shape, np.int16)
    before, after = _thinned(before), _thinned(after)
    whole = descriptors(before.pictures), descriptors(after.pictures)
    for number in range(-len(WINDOWS), len(WINDOWS) + 1):
        check()
        if number:
            place = WINDOWS[abs(number) - 1]
            one = descriptors(before.pictures, place) if number > 0 else whole[0]
            other = descriptors(after.pictures, place) if number < 0 else whole[1]
            cosines = _by_shot(one, other, before, after) - _WINDOW_COST
            better = cosines > found
            found[better], window[better] = cosines[better], number
    return found, window


def _thinned(prints: Fingerprints) -> Fingerprints:
    """Return a sample every half second, and _WINDOW_SAMPLES where that leaves one of each shot,
    which is enough among so many windows."""
    shots = prints.shots
    number = np.arange(len(shots)) - np.repeat(
        np.cumsum(prints.counts) - prints.counts, prints.counts
    )
    every = np.where(prints.ends_ms - prints.starts_ms > SHORT_MS, 1, 2)[shots]
    every *= -(-np.count_nonzero(number % every == 0) // _WINDOW_SAMPLES)
    kept = number % every == 0
    return replace(
        prints,
        counts=np.bincount(shots[kept], minlength=len(prints.counts)),
        times_ms=prints.times_ms[kept],
        plain=prints.plain[kept],
        pictures=prints.pictures[kept],
    )


_UNUSUAL_GAIN = 0.01
"""Of similarity in a window of its own, over that of most shots."""
_WINDOW_COST = 0.03
"""Among so many windows one fits by chance."""


def _by_shot(one: Floats, other: Floats, before: Fingerprints, after: Fingerprints) -> Floats:
    starts, ends = np.cumsum(after.counts) - after.counts, np.cumsum(before.counts)
    found = np.empty((len(before.counts), len(after.counts)), np.float32)
    first = 0
    while first < len(ends):
        begin = int(ends[first] - before.counts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK_SAMPLES, side="right")))
        rows = slice(begin, int(ends[last - 1]))
        cosines = one[rows] @ other.T
        cosines[before.plain[rows]] = -1.0
        cosines[:, after.plain] = -1.0
        by_shot = np.maximum.reduceat(cosines, starts, axis=1)
        own = ends[first:last] - before.counts[first:last] - begin
        found[first:last] = np.maximum.reduceat(by_shot, own, axis=0)
        first = last
    return found


def _aligned(
    before: Fingerprints,
    after: Fingerprints,
    shots: tuple[int, int],
    own: slice,
    others: slice,
    number: int,
) -> _Likeness:
    """Return the line of time along which the samples of two shots agree best."""
    place = WINDOWS[abs(number) - 1]
    one = descriptors(before.pictures[own], place if number > 0 else WHOLE)
    other = descriptors(after.pictures[others], place if number < 0 else WHOLE)
    cosines = one @ other.T
    cosines[before.plain[own]] = np.nan
    cosines[:, after.plain[others]] = np.nan
    starts = int(before.starts_ms[shots[0]]), int(after.starts_ms[shots[1]])
    lengths = int(before.ends_ms[shots[0]]) - starts[0], int(after.ends_ms[shots[1]]) - starts[1]
    times = before.times_ms[own] - starts[0], after.times_ms[others] - starts[1]
    surplus = lengths[0] - lengths[1]
    every = 250
    shifts = {0, surplus, *range(-lengths[1] + every, lengths[0], every)}
    best = (-1.0, 0, 1.0, 0.0)
    for shift in shifts:
        overlap = min(lengths[0], shift + lengths[1]) - max(0, shift)
        if overlap < 0.5 * min(lengths):
            continue
        # A trim leaves a part of the shot, and no line that leads out of both.
        score = _along(cosines, times, shift, 1.0) - _BEYOND * (1 - overlap / min(lengths))
        # Borders that meet are the likelier ones of equals.
        score -= 0.0 if shift in {0, surplus} else 0.01
        score -= 0.002 if shift and shift == surplus else 0.0
        if score > best[0]:
            best = score, shift, 1.0, overlap / 1000
    ratio = lengths[0] / lengths[1]
    if abs(surplus) > SAME_LENGTH_MS and 0.4 <= ratio <= 2.5:
        score = _along(cosines, times, 0, ratio)
        if score > best[0] + _SPEED_GAIN:
            best = score, 0, ratio, min(lengths) / 1000
    # Samples of a trimmed shot lie between those of before: where much moves few of them meet.
    similarity = max(best[0], float(np.nan_to_num(cosines, nan=-1.0).max()) - _ONE_SAMPLE)
    similarity -= _WINDOW_COST if number else 0.0
    weight = max(0.0, similarity - LEAST_SIMILARITY + 0.05) * (0.3 + best[3])
    return _Likeness(*shots, similarity, best[1], best[2], WHOLE if not number else place, weight)


_ONE_SAMPLE = 0.04
"""How much less the likeness of a single sample counts than that of all."""
_BEYOND = 0.03
"""What a line costs on which two shots have nothing in common beside one sample."""
_SPEED_GAIN = 0.04
"""Of similarity along a slope, over the best line without, makes a shot a faster or slower one."""


def _along(
    cosines: Floats,
    times: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    shift: int,
    ratio: float,
) -> float:
    """Return the mean cosine of each sample of the one that has fewer in the overlap, with the
    nearest."""
    wanted = times[1] * ratio + shift
    apart = np.abs(times[0][:, None] - wanted[None, :])
    steps = [int(np.diff(each[:2]).sum()) or EVERY_MS for each in times]
    met = apart <= max(steps[0], steps[1] * ratio) / 2
    if met.any(axis=1).sum() < met.any(axis=0).sum():
        cosines, apart, met = cosines.T, apart.T, met.T
    rows, columns = apart.argmin(axis=0), np.flatnonzero(met.any(axis=0))
    found = cosines[rows[columns], columns]
    found = found[~np.isnan(found)]
    return float(found.mean()) if len(found) else -1.0


def _described(
    before: _Divided, after: _Divided, chosen: Sequence[tuple[_Likeness, bool]]
) -> Iterator[ShotPair]:
    by_after = {each.after: (each, moved) for each, moved in chosen}
    by_before = {each.before: each for each, _ in chosen}

    def removed(part: int) -> ShotPair:
        shot = (int(before.shots[part]),)
        return ShotPair(shot, (), ShotChange.REMOVED, before_ms=_span(before, part))

    removed_behind = dict[int, list[int]]()
    last = -1
    for part in range(len(before.shots)):
        if part in by_before:
            last = by_before[part].after
        else:
            removed_behind.setdefault(last, []).append(part)
    yield from map(removed, removed_behind.get(-1, ()))
    for part in range(len(after.shots)):
        shot, span = (int(after.shots[part]),), _span(after, part)
        if part in by_after:
            found, moved = by_after[part]
            own = _span(before, found.before)
            surplus = (own[1] - own[0]) - (span[1] - span[0])
            retimed = abs(surplus) > SAME_LENGTH_MS
            usual = ShotChange.RETIMED if retimed else ShotChange.KEPT
            change = ShotChange.MOVED if moved else usual
            yield ShotPair(
                (int(before.shots[found.before]),),
                shot,
                change,
                own,
                span,
                found.similarity,
                moved,
                retimed,
                found.head_ms if retimed and found.speed == 1.0 else 0,
                surplus - found.head_ms if retimed and found.speed == 1.0 else 0,
                found.speed,
                found.window != WHOLE,
            )
        else:
            yield ShotPair((), shot, ShotChange.ADDED, after_ms=span)
        yield from map(removed, removed_behind.get(part, ()))


def _span(side: _Divided, part: int) -> tuple[int, int]:
    return int(side.prints.starts_ms[part]), int(side.prints.ends_ms[part])


_SAME, _CHANGED = 0.88, 0.5
"""Shares of letters in common: above the first a slip of the reader, above the other a change."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class TitleChange:
    """A line that only one cut has, or that reads otherwise in the other."""

    before: ScreenText | None
    after: ScreenText | None


def changed_titles(
    before: Sequence[ScreenText], after: Sequence[ScreenText]
) -> Iterator[TitleChange]:
    """Of the lines of the same shots, each taken once."""
    left = [*after]
    open_lines = list[ScreenText]()
    for line in before:
        same = next((each for each in left if _alike(line, each) >= _SAME), None)
        if same is None:
            open_lines.append(line)
        else:
            left.remove(same)
    for line in open_lines:
        nearest = max(left, key=lambda each: _alike(line, each), default=None)
        if nearest is not None and _alike(line, nearest) >= _CHANGED:
            left.remove(nearest)
            yield TitleChange(line, nearest)
        else:
            yield TitleChange(line, None)
    for line in left:
        yield TitleChange(None, line)


def _alike(one: ScreenText, other: ScreenText) -> float:
    """0 to 1; a line with other numbers is another one."""
    first, second = ("".join(each.text.casefold().split()) for each in (one, other))
    ratio = Indel.normalized_similarity(first, second)
    same_numbers = _DIGITS.findall(first) == _DIGITS.findall(second)
    return ratio if same_numbers else min(ratio, _SAME - 0.01)
