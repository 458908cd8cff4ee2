"""The same again: intervals of two media that show or sound the same, by their fingerprints.

Both kinds have keys that are looked up, and meet by chance now and then. Window by window: where
pairs of equal keys lie on one line of time, of whatever speed between SLOWEST and FASTEST, all
fingerprints along it are compared; what agrees is an interval, which goes on as its line does.
Two files are near duplicates where intervals cover most of the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pipelines.media.audio import FRAME_MS, SHIFTS, SoundPrint
from pipelines.vision.fingerprints import (
    EVERY_MS,
    FREQUENCIES,
    WHOLE,
    Fingerprints,
    Floats,
    PictureWindow,
    descriptors,
)

SLOWEST, FASTEST = 0.94, 1.065
"""Speeds that are found; 25 pictures a second played from 24 are 1.042."""
_SPEEDS = np.round(np.arange(SLOWEST, FASTEST, 0.005), 3)
KEY_BITS = 24
STORED = (WHOLE, PictureWindow(0.0, 0.12, 1.0, 0.76), PictureWindow(0.12, 0.0, 0.76, 1.0))
"""Of a picture whose top and bottom, or sides, bars cover in the other."""
PROBED = (*STORED, PictureWindow(0.0, 0.06, 1.0, 0.88), PictureWindow(0.06, 0.0, 0.88, 1.0))
"""Bars of between, in either of the two, make one of these of one of STORED."""
_ALIKE = ((0, 0), (1, 0), (0, 1), (3, 0), (3, 1), (2, 0), (0, 2), (4, 0), (4, 2))
"""Which may show the same: of PROBED, of STORED."""
MOST_PROBED = 4_000
"""Samples of a video, or marks of a track, that are looked up: every n-th of more."""
_WEAK = 3

Times = npt.NDArray[np.int64]
Keys = npt.NDArray[np.int64]


class DuplicateKind(StrEnum):
    """What is there again."""

    FILE = "file"
    SHOT = "shot"
    SOUND = "sound"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An interval of a media that is in another too; milliseconds of either."""

    kind: DuplicateKind
    start_ms: int
    end_ms: int
    other_start_ms: int
    other_end_ms: int
    score: float
    """How alike, 0 to 1."""
    speed: float
    """How much faster the other one runs."""
    track: int | None = None
    other_track: int | None = None


@dataclass(frozen=True, slots=True)
class MediaPrint:
    """What is known of a media: of what it shows, and of each of its audio tracks."""

    duration_ms: int
    shots: Fingerprints | None
    sounds: dict[int, SoundPrint]


def shot_keys(prints: Fingerprints, *, probes: bool = False) -> tuple[Keys, npt.NDArray[np.int64]]:
    """(n, keys): of samples that are not plain, as a whole and cropped; (n,): which samples.

    With ``probes`` the unsure bits either way.
    """
    own = np.flatnonzero(~prints.plain)
    if probes:
        own = own[:: 1 + len(own) // MOST_PROBED]
    found = []
    for window in PROBED if probes else STORED:
        values = descriptors(prints.pictures[own], window)[:, _LOWEST]
        keys = (values > 0) @ (1 << np.arange(KEY_BITS))
        if probes:
            weak = np.argsort(np.abs(values), axis=1, kind="stable")[:, :_WEAK]
            choices = (np.arange(1 << _WEAK)[:, None] >> np.arange(_WEAK)) & 1
            keys = keys[:, None] ^ ((1 << weak) @ choices.T)
        found.append(keys.reshape(len(own), 1 << _WEAK if probes else 1))
    return np.concatenate(found, axis=1), own


_DOWN, _ACROSS = np.divmod(np.arange(1, FREQUENCIES**2), FREQUENCIES)
_LOWEST = np.argsort(_DOWN + _ACROSS, kind="stable")[:KEY_BITS]
"""Of a descriptor the lowest frequencies: they outlast most."""


def sound_probes(sound: SoundPrint) -> Keys:
    """(n, keys): of a track's marks, as faster and slower ones have them too."""
    found = np.concatenate([sound.probes(shift) for shift in SHIFTS], axis=1)
    return found[:: 1 + len(found) // MOST_PROBED]


def duplicates(mine: MediaPrint, other: MediaPrint) -> list[Duplicate]:
    """Return all of the same, whole files first. Seconds of work for hours of media."""
    sounds = [
        replace(each, track=at, other_track=further)
        for at, one in mine.sounds.items()
        for further, another in other.sounds.items()
        for each in _same_sounds(one, another)
    ]
    shots = list[Duplicate]()
    if mine.shots is not None and other.shots is not None:
        shots += _same_shots(mine.shots, other.shots, sounds)
    return [*_same_file(mine, other, shots, sounds), *shots, *sounds]


def _same_shots(
    mine: Fingerprints, other: Fingerprints, sounds: Sequence[Duplicate]
) -> list[Duplicate]:
    """Return where keys meet, or where the sound is the same."""
    probed, own = shot_keys(mine, probes=True)
    keys, others = shot_keys(other)
    hits, their_hits = _met(probed, keys)
    views = [
        [descriptors(each.pictures, window) for window in windows]
        for each, windows in ((mine, PROBED), (other, STORED))
    ]
    theirs, end_ms = other.times_ms, int(other.ends_ms[-1])

    def along(span: Span, speed: float, offset_ms: float) -> tuple[Times, Floats]:
        own = slice(*np.searchsorted(mine.times_ms, span))
        times = mine.times_ms[own] / speed + offset_ms
        after = np.searchsorted(theirs, times).clip(0, len(theirs) - 1)
        before = np.maximum(after - 1, 0)
        best = np.full(len(times), -1.0, np.float32)
        for near in (before, after):
            aside = np.abs(theirs[near] - times) > EVERY_MS * 0.6
            for one, another in _ALIKE:
                like = np.einsum("ij,ij->i", views[0][one][own], views[1][another][near])
                like -= _CROP_COST * (one + another > 0)
                best = np.maximum(best, np.where(aside, -1.0, like))
        is_later = np.abs(theirs[after] - times) < np.abs(theirs[before] - times)
        unknown = mine.plain[own] | other.plain[np.where(is_later, after, before)]
        best[unknown & (times >= 0) & (times < end_ms)] = np.nan
        return mine.times_ms[own], best

    pairs = [np.stack([mine.times_ms[own][hits], theirs[others][their_hits]])]
    for each in sounds:
        ahead = np.arange(0, each.end_ms - each.start_ms, _STEP_MS // 8)
        rate = (each.other_end_ms - each.other_start_ms) / (each.end_ms - each.start_ms)
        later = np.round(each.other_start_ms + ahead * rate).astype(np.int64)
        pairs.append(np.stack([each.start_ms + ahead, later]))
    met = np.concatenate(pairs, axis=1)
    found = _matches(DuplicateKind.SHOT, (met[0], met[1]), along)
    return [_within(each, int(mine.ends_ms[-1]), end_ms) for each in found]


_CROP_COST = 0.02
"""Among several views one fits by chance."""


def _same_sounds(mine: SoundPrint, other: SoundPrint) -> list[Duplicate]:
    if not len(mine.marks) or not len(other.marks):
        return []
    every = slice(None, None, 1 + len(mine.marks) // MOST_PROBED)
    ends = [each.start_ms + len(each.bits) * FRAME_MS for each in (mine, other)]
    bands = np.arange(1, mine.bits.shape[1] - 1)
    found = list[Duplicate]()
    for shift in SHIFTS:
        hits, their_hits = _met(mine.probes(shift)[every], other.keys()[:, None])

        def along(
            span: Span, speed: float, offset_ms: float, by: int = shift
        ) -> tuple[Times, Floats]:
            first, last = (
                int(np.clip(-(-(each - mine.start_ms) // FRAME_MS), 0, len(mine.bits)))
                for each in span
            )
            times = mine.start_ms + np.arange(first, last, dtype=np.int64) * FRAME_MS
            frames = (times / speed + offset_ms - other.start_ms) / FRAME_MS
            rows = np.round(frames).astype(np.int64)
            inside = (rows >= 0) & (rows < len(other.bits))
            rows = rows.clip(0, len(other.bits) - 1)
            differ = mine.bits[first:last][:, bands + by] != other.bits[rows][:, bands]
            like = (1 - 2 * differ.mean(axis=1)).astype(np.float32)
            like[mine.silent[first:last] | other.silent[rows]] = np.nan
            like[~inside] = -1.0
            return times, like

        pairs = mine.marks_ms[every][hits], other.marks_ms[their_hits]
        found += _matches(DuplicateKind.SOUND, pairs, along)
    best = list[Duplicate]()
    for each in sorted(found, key=lambda it: (it.end_ms - it.start_ms) * it.score, reverse=True):
        if all(_shared_ms(each, it) < 0.5 * (each.end_ms - each.start_ms) for it in best):
            best.append(_within(each, *ends))
    return sorted(best, key=lambda it: it.start_ms)


def _shared_ms(one: Duplicate, other: Duplicate) -> int:
    return max(0, min(one.end_ms, other.end_ms) - max(one.start_ms, other.start_ms))


def _met(probes: Keys, keys: Keys) -> tuple[Keys, Keys]:
    """Pairs of rows that have a key in common."""
    order = np.argsort(keys.ravel(), kind="stable")
    flat = keys.ravel()[order]
    low, high = (np.searchsorted(flat, probes.ravel(), side) for side in ("left", "right"))
    counts = np.minimum(high - low, _MOST_EQUAL)
    rows = np.repeat(np.arange(probes.size) // max(1, probes.shape[1]), counts)
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    theirs = order[np.repeat(low, counts) + steps] // max(1, keys.shape[1])
    mine, other = np.unique(np.stack([rows, theirs]), axis=1)
    return mine, other


Span = tuple[int, int]
Along = Callable[[Span, float, float], tuple[Times, Floats]]
"""Times of mine in a span and how alike each is to what is at ``time / speed + offset_ms`` of the
other: 1 the same, nan where nothing is known."""
_MOST_EQUAL = 32
"""Of equal keys: what is everywhere identifies little."""
_WINDOW_MS, _STEP_MS, _NEAR_MS = 16_000, 8_000, 300


@dataclass(frozen=True, slots=True)
class _Rules:
    """What an interval is. Least likeness, milliseconds that are known at least, and smoothing."""

    least_like: float
    least_ms: int
    every_ms: int


_RULES = {
    DuplicateKind.SHOT: _Rules(0.82, 2_000, EVERY_MS),
    # By chance half of the bits differ: a likeness of 0. Shorter intervals reach it now and then.
    DuplicateKind.SOUND: _Rules(0.40, 5_000, FRAME_MS),
}


@dataclass(slots=True)
class _Line:
    """An interval that may go on."""

    speed: float
    offset_ms: float
    spans: list[Span]
    scores: list[float]


def _matches(kind: DuplicateKind, pairs: tuple[Times, Times], along: Along) -> list[Duplicate]:
    """Of pairs of times with equal keys the lines along which everything agrees."""
    rules = _RULES[kind]
    order = np.argsort(pairs[0], kind="stable")
    mine, other = (each[order] for each in pairs)
    lines, line = list[_Line](), None
    for start in sorted(
        {int(at) // _STEP_MS * _STEP_MS + each for at in mine for each in (-_STEP_MS, 0, _STEP_MS)}
    ):
        span = start, start + _WINDOW_MS
        agreed = (
            None if line is None else _agreeing(*along(span, line.speed, line.offset_ms), rules)
        )
        if agreed is None:
            line = None
            inside = slice(*np.searchsorted(mine, span))
            for voted in _voted(mine[inside], other[inside]):
                found = _refined(along, span, *voted)
                agreed = _agreeing(*along(span, *found), rules)
                if agreed is not None:
                    line = _Line(*found, [], [])
                    lines.append(line)
                    break
        if line is not None and agreed is not None:
            line.spans.append(agreed[0])
            line.scores.append(agreed[1])
            if len(line.spans) % 4 == 0:
                known = line.speed, line.offset_ms
                line.speed, line.offset_ms = _refined(along, span, *known, fine=True)
    return [_as_duplicate(kind, each) for each in lines]


def _voted(mine: Times, other: Times) -> list[tuple[float, float]]:
    """Speeds and offsets of lines on which most pairs of a window lie, two of either at least."""
    if len(mine) > 400:
        chosen = np.linspace(0, len(mine) - 1, 400).astype(np.int64)
        mine, other = mine[chosen], other[chosen]
    found = list[tuple[int, float, float, float]]()
    for speed in _SPEEDS[::2].tolist():
        offsets = other - mine / speed
        for offset in np.unique(np.round(offsets / _NEAR_MS)) * _NEAR_MS:
            near = np.abs(offsets - offset) <= _NEAR_MS
            votes = min(len(np.unique(mine[near])), len(np.unique(other[near])))
            if votes >= 2:
                found.append((-votes, abs(speed - 1), speed, float(np.median(offsets[near]))))
    chosen_lines = list[tuple[float, float]]()
    for _, _, speed, offset in sorted(found):
        middle = float(mine.mean())
        at = middle / speed + offset
        if all(abs(at - middle / a - b) > 2 * _NEAR_MS for a, b in chosen_lines):
            chosen_lines.append((speed, offset))
        if len(chosen_lines) == 3:
            break
    return chosen_lines


def _refined(
    along: Along, span: Span, speed: float, offset: float, *, fine: bool = False
) -> tuple[float, float]:
    """Return the line through the same middle, or near it, along which most agrees."""
    middle = sum(span) / 2
    at = middle / speed + offset
    best = -2.0, speed, offset
    speeds = [speed + each for each in (-0.002, 0.0, 0.002)] if fine else _SPEEDS.tolist()
    for tried in sorted(speeds, key=lambda it: abs(it - 1)):
        for aside in (0, -120, 120, -60, 60, -240, 240):
            _, like = along(span, tried, at + aside - middle / tried)
            known = like[~np.isnan(like)]
            score = float(known.mean()) if len(known) else -1.0
            if score > best[0] + 0.002:
                best = score, tried, at + aside - middle / tried
    return best[1:]


def _agreeing(times: Times, like: Floats, rules: _Rules) -> tuple[Span, float] | None:
    """Return the longest interval of a window that agrees, and how well."""
    known = ~np.isnan(like)
    if known.sum() * rules.every_ms < rules.least_ms:
        return None
    width = np.ones(max(1, 2_000 // rules.every_ms))
    total = np.convolve(np.where(known, like, 0), width, "same")
    count = np.convolve(known, width, "same")
    agrees = (total >= rules.least_like * np.maximum(count, 1)) & known | ~known & (count == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], agrees.astype(np.int8), [0]])))
    runs = [(int(known[a:b].sum()), a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    most, first, last = max(runs, default=(0, 0, 0))
    if most * rules.every_ms < rules.least_ms:
        return None
    # Smoothing shortens it.
    while first > 0 and like[first - 1] >= rules.least_like:
        first -= 1
    while last < len(like) and like[last] >= rules.least_like:
        last += 1
    score = float(np.nanmean(like[first:last]))
    if score < rules.least_like:
        return None
    return (int(times[first]), int(times[last - 1]) + rules.every_ms), score


def _as_duplicate(kind: DuplicateKind, line: _Line) -> Duplicate:
    start, end = min(each[0] for each in line.spans), max(each[1] for each in line.spans)
    low, high = (round(each / line.speed + line.offset_ms) for each in (start, end))
    score = min(1.0, sum(line.scores) / len(line.scores))
    return Duplicate(kind, start, end, low, high, score, round(line.speed, 3))


def _within(found: Duplicate, end_ms: int, other_end_ms: int) -> Duplicate:
    return replace(
        found,
        start_ms=max(0, found.start_ms),
        end_ms=min(found.end_ms, end_ms),
        other_start_ms=max(0, found.other_start_ms),
        other_end_ms=min(found.other_end_ms, other_end_ms),
    )


_MOST_PART, _HALF, _SOME = 0.6, 0.5, 0.3
_CHANGES = 3
"""Different pictures: one that is shown to two recordings makes them no duplicates."""
_UNLIKE = 0.8
"""Slides of one design are more alike than this, of one lecture and of two."""
_BY_PICTURES = 0.95
"""How alike pictures are that decide without the sound: slides of one design were up to 0.945, all
copies of films 0.95 and more (the tuning set of ``benchmarks/duplicates.py``)."""


def _same_file(
    mine: MediaPrint, other: MediaPrint, shots: Sequence[Duplicate], sounds: Sequence[Duplicate]
) -> Iterator[Duplicate]:
    shown = _coverage(shots, [_shown_ms(each) for each in (mine, other)], 2_000)
    heard_ms = [
        max((int((~each.silent).sum()) * FRAME_MS for each in media.sounds.values()), default=0)
        for media in (mine, other)
    ]
    heard = _coverage(sounds, heard_ms, 5_000)
    chosen: Sequence[Duplicate] = shots
    by_pictures = (
        shown is not None
        and shown >= _MOST_PART
        and _likeness(shots) >= _BY_PICTURES
        and _changes(mine, shots) >= _CHANGES
    )
    if shown is None:
        is_same = heard is not None and heard >= _MOST_PART
        is_same &= (mine.shots is None) == (other.shots is None)
        chosen = sounds
    elif heard is None:
        is_same = by_pictures
    else:
        is_same = by_pictures or (shown >= _MOST_PART and heard >= _HALF)
        is_same |= shown >= _SOME and heard >= 1 - _SOME
    if is_same:
        longest = max(chosen, key=lambda it: it.end_ms - it.start_ms)
        yield Duplicate(
            DuplicateKind.FILE,
            min(each.start_ms for each in chosen),
            max(each.end_ms for each in chosen),
            min(each.other_start_ms for each in chosen),
            max(each.other_end_ms for each in chosen),
            min(1.0, max(shown or 0.0, heard or 0.0)),
            longest.speed,
        )


def _coverage(found: Sequence[Duplicate], known_ms: Sequence[int], least_ms: int) -> float | None:
    """Return the share of the shorter one; None where too little is known of one of them."""
    if min(known_ms) < least_ms:
        return None
    covered, until = 0, 0
    for each in sorted(found, key=lambda it: it.start_ms):
        covered += max(0, each.end_ms - max(until, each.start_ms))
        until = max(until, each.end_ms)
    return min(1.0, covered / min(known_ms))


def _likeness(found: Sequence[Duplicate]) -> float:
    """Return the mean of the scores by length."""
    lengths = [each.end_ms - each.start_ms for each in found]
    return float(np.average([each.score for each in found], weights=lengths)) if found else 0.0


def _shown_ms(media: MediaPrint) -> int:
    """Return how long it shows what is not plain."""
    if media.shots is None:
        return 0
    shots = media.shots
    each = np.repeat((shots.ends_ms - shots.starts_ms) / shots.counts, shots.counts)
    return int(each[~shots.plain].sum())


def _changes(media: MediaPrint, shots: Sequence[Duplicate]) -> int:
    """Return how many pictures unlike the one before there are in intervals."""
    if media.shots is None:
        return 0
    times = media.shots.times_ms
    inside = np.zeros(len(times), np.bool_)
    for each in shots:
        inside |= (times >= each.start_ms) & (times < each.end_ms)
    looks = descriptors(media.shots.pictures[inside & ~media.shots.plain])
    return 1 + int((np.einsum("ij,ij->i", looks[1:], looks[:-1]) < _UNLIKE).sum())
