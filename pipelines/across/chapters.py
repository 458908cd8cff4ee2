"""Chapters of a transcript: where its subject shifts, and what each part is about. Pure.

Boundaries are those of the most probable segmentation under a word model of each part
(Utiyama and Isahara, "A Statistical Model for Domain-Independent Text Segmentation", ACL 2001),
found by dynamic programming. Added here: a speaker counts as a word of theirs, a part has a least
length, a pause makes a boundary cheaper, and it is moved to a cut of the picture beside it. Words
spoken once show nothing of cohesion and are left out. Languages without spaces are read by pairs of
characters. No model is needed, and the same transcript always has the same chapters.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipelines.speech.words import word_set
from pipelines.types import TranscriptSegment

Vector = npt.NDArray[np.float32]
SHORTEST_MS = 15_000
_MOST_UNITS = 500
_MOST_WORDS = 3_000
"""Bounds of the work: an hour of speech takes 0.3 s of processor time, a day 3 s."""
_LONGEST_SHARE = 120
"""Units that a chapter may have; longer intervals of one subject are cut in two."""
_BOUNDARY_COST = 1.4
"""Times the logarithm of the words: what a boundary must explain better."""
_BOUNDARY_COST_WITH_VECTORS = 2.2
_SCATTER_WEIGHT = 5.0
"""What the distance of a segment's vector from those of its chapter costs."""
_PAUSE_MS = 1_500
_PAUSE_BONUS = 0.5
"""Of what a boundary costs, at a pause of that length or longer."""
_SPEAKER_WEIGHT = 2.0
"""Words that a segment's speaker counts as at most: who speaks changes with the subject."""
_MIDDLE = 0.7
_SNAP_MS = 2_500
_TITLE_WORDS = 6
_TITLE_SEGMENTS = 12
"""Of a chapter, the most characteristic ones: its title is looked for in them."""
_TITLE_CHARACTERS = 60

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


# What holds sentences together in the languages with spaces that are spoken most: English, German,
# French, Spanish, Italian, Portuguese, Dutch. Words of up to three letters count as such too.
_COMMON = word_set(
    "about after again also always another around away back because been before being between"
    " both came come could does doing done down each even ever every from gets getting give goes"
    " going gonna good have having here into itself just kind know last less like little look"
    " made make many maybe mean might more most much must need never next okay once only other"
    " ours over people quite really right said same says should some something still such sure"
    " take than that that's their them then there there's these they they're thing things think"
    " this those though through time together took under until upon very want wants well went"
    " were what when where which while will with without would yeah your aber alle alles andere"
    " auch beim bevor bist dann dass deine dem denn deren dessen diese diesem diesen dieser"
    " dieses doch durch eine einem einen einer eines etwas euch ganz gibt habe haben hatte hier"
    " ihre ihrem ihren immer jetzt kann kein keine können machen mehr mein meine mich muss nach"
    " nicht nichts noch oder ohne schon sehr sein seine seinen sich sind soll sollte sondern"
    " über unter viel vom wann wenn werden wird wurde wieder wollen zwischen alors après aussi"
    " autre avant avec avoir beaucoup bien cela celle cette comme comment dans depuis deux donc"
    " elle elles encore entre être fait faire leur leurs mais même moins nous parce pas plus"
    " pour pourquoi quand quel quelle sans sont sous tous tout toute très vous était ahora algo"
    " antes aquí cada como cuando cual desde donde dos ella ellos esta este esto estos está"
    " están hace hacer hasta hay luego más menos mientras mucho muy nada otra otro para pero"
    " poco porque pueden puede quien sobre solo son también tiene tienen toda todo todos una uno"
    " usted anche ancora così dalla della delle dove ecco essere fare hanno loro molto nella non"
    " però perché più poi quando quella quello questa questo sempre senza sono stato tutti tutto"
    " aqui assim depois dela dele ela eles então fazer isso isto mas mesmo muito não numa onde"
    " pela pelo quem ser seu sua também tem tudo uma você daar deze door een hebben heeft het"
    " hun kunnen maar meer naar niet nog omdat onze veel voor waar wat wel werd wordt zijn zoals"
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of the media on one subject; chapters follow each other without gaps."""

    index: int
    start_ms: int
    end_ms: int
    title: str


@dataclass(frozen=True, slots=True)
class _Unit:
    """Neighbouring segments that are not separated."""

    segments: tuple[TranscriptSegment, ...]
    terms: tuple[str, ...]
    speakers: tuple[str, ...]

    @property
    def start_ms(self) -> int:
        return self.segments[0].start_ms

    @property
    def end_ms(self) -> int:
        return max(segment.end_ms for segment in self.segments)


def find_chapters(
    segments: Sequence[TranscriptSegment],
    *,
    duration_ms: int,
    cuts_ms: Sequence[int] = (),
    vectors: Mapping[str, Vector] | None = None,
) -> list[Chapter]:
    """Return the chapters from 0 to ``duration_ms``; none without speech.

    ``segments`` may be those of several tracks; ``cuts_ms`` are the starts of scenes. ``vectors``
    are unit vectors of the segments' texts, used where all have one.
    """
    units = _units(sorted(segments, key=lambda each: (each.start_ms, each.end_ms)))
    if not units:
        return []
    firsts = _segmentation(units, _means(units, vectors or {}))
    starts = [0, *(_snapped(units[at - 1], units[at], cuts_ms) for at in firsts[1:])]
    bounds = [*starts, max(duration_ms, starts[-1] + 1)]
    groups = [units[a:b] for a, b in pairwise([*firsts, len(units)])]
    # For each chapter the phrase that distinguishes it best, as it was spoken.
    counts = [Counter(term for unit in group for term in unit.terms) for group in groups]
    spread = Counter(term for each in counts for term in each)
    titles = []
    for number, (group, own) in enumerate(zip(groups, counts, strict=True), start=1):
        weights = {
            term: math.log1p(count) * math.log1p(len(groups) / spread[term]) * min(2, count)
            for term, count in own.items()
        }
        texts = [segment.text for unit in group for segment in unit.segments]
        telling = heapq.nlargest(_TITLE_SEGMENTS, texts, key=lambda text: _gain(text, weights))
        phrases = [phrase for text in telling for phrase in _phrases(text)]
        best = max(phrases, key=lambda phrase: _weight(phrase, weights), default="")
        titles.append(best[:1].upper() + best[1:] or f"Chapter {number}")
    return [
        Chapter(index, start, end, title)
        for index, ((start, end), title) in enumerate(zip(pairwise(bounds), titles, strict=True))
    ]


def _units(segments: Sequence[TranscriptSegment]) -> list[_Unit]:
    spoken = [segment for segment in segments if segment.text.strip()]
    size = -(-len(spoken) // _MOST_UNITS) if spoken else 1
    groups = (tuple(spoken[at : at + size]) for at in range(0, len(spoken), size))
    return [
        _Unit(
            group,
            tuple(term for segment in group for term in _terms(segment.text)),
            tuple(segment.speaker for segment in group if segment.speaker is not None),
        )
        for group in groups
    ]


def _means(units: Sequence[_Unit], vectors: Mapping[str, Vector]) -> Vector | None:
    """Return a unit vector a unit; None where a segment has none."""
    if not all(segment.text in vectors for unit in units for segment in unit.segments):
        return None
    sums = np.array([sum(vectors[each.text] for each in unit.segments) for unit in units])
    means: Vector = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    return means


@functools.lru_cache(maxsize=100_000)
def _terms(text: str) -> tuple[str, ...]:
    """Words that carry a subject, without their endings; pairs of characters without spaces."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if _SPACELESS.search(word):
            found += map("".join, pairwise(word))
        elif len(word) > 3 and word not in _COMMON:
            # The first letters: endings differ, subjects do not, in all languages at once.
            found.append(word[: max(4, min(7, len(word) - 1))])
    return tuple(found)


def _segmentation(units: Sequence[_Unit], vectors: Vector | None = None) -> list[int]:
    """Return the first unit of each chapter, at the least cost over all of them."""
    counts, voices = _counts(units), _voices(units)
    total = max(2.0, float(counts.sum() + voices.sum()))
    factor = _BOUNDARY_COST if vectors is None else _BOUNDARY_COST_WITH_VECTORS
    boundary_cost = factor * math.log(total)
    words = max(2, counts.shape[1] + voices.shape[1])
    # A logarithm for each number of times that a word can be spoken.
    said = np.arange(int(counts.sum(axis=0).max(initial=0)) + 1)
    logarithms = (said * np.log1p(said)).astype(np.float32)
    best = np.full(len(units) + 1, math.inf)
    best[0] = 0.0
    came_from = [0] * (len(units) + 1)
    for start in range(len(units)):
        if not math.isfinite(best[start]):
            continue
        rows = slice(start, start + _LONGEST_SHARE)
        costs = _model_costs(counts[rows], voices[rows], logarithms, words)
        if vectors is not None:
            # Of the first 1, 2, 3 … unit vectors: their squared distances from their mean.
            sums = np.cumsum(vectors[rows], axis=0, dtype=np.float64)
            count = np.arange(1, len(sums) + 1)
            costs += _SCATTER_WEIGHT * (count - (sums * sums).sum(axis=1) / count)
        opening, begin_ms = 0.0, 0
        if start:
            begin_ms = units[start].start_ms
            pause_ms = max(0, begin_ms - units[start - 1].end_ms)
            opening = boundary_cost * (1 - _PAUSE_BONUS * min(_PAUSE_MS, pause_ms) / _PAUSE_MS)
        for length, cost in enumerate(costs, start=1):
            end = start + length
            end_ms = units[end].start_ms if end < len(units) else units[-1].end_ms
            # Less than a chapter, unless it is all that there is.
            if length < len(units) and end_ms - begin_ms < SHORTEST_MS:
                continue
            if (reached := best[start] + opening + cost) < best[end]:
                best[end], came_from[end] = reached, start
    firsts, at = [], len(units)
    while at > 0:
        at = came_from[at]
        firsts.append(at)
    return firsts[::-1]


def _model_costs(
    counts: npt.NDArray[np.int32],
    voices: npt.NDArray[np.float64],
    logarithms: npt.NDArray[np.float32],
    words: int,
) -> npt.NDArray[np.float64]:
    """Of the first 1, 2, 3 … rows as one chapter: minus the logarithm of their probability under
    their own frequencies of words and speakers, each raised by one."""
    said = np.cumsum(counts, axis=0, dtype=np.int32)
    speaking = np.cumsum(voices, axis=0)
    totals = np.cumsum(counts.sum(axis=1)) + speaking.sum(axis=1)
    own = logarithms.take(said).sum(axis=1, dtype=np.float64)
    own += (speaking * np.log1p(speaking)).sum(axis=1)
    costs: npt.NDArray[np.float64] = totals * np.log(totals + words) - own
    return costs


def _counts(units: Sequence[_Unit]) -> npt.NDArray[np.int32]:
    """Units x terms that occur more than once, the most frequent ones."""
    frequencies = Counter(term for unit in units for term in unit.terms)
    kept = [term for term, count in frequencies.most_common(_MOST_WORDS) if count > 1]
    places = {term: place for place, term in enumerate(kept)}
    counts = np.zeros((len(units), len(places)), np.int32)
    for row, unit in enumerate(units):
        for term in unit.terms:
            if term in places:
                counts[row, places[term]] += 1
    return counts


def _voices(units: Sequence[_Unit]) -> npt.NDArray[np.float64]:
    """Units x speakers, each as so many words: none for one who is there from beginning to end, as
    in a conversation; most for one who has an interval of their own."""
    speakers = list(dict.fromkeys(speaker for unit in units for speaker in unit.speakers))
    voices = np.zeros((len(units), len(speakers)))
    for row, unit in enumerate(units):
        for speaker in unit.speakers:
            voices[row, speakers.index(speaker)] += _SPEAKER_WEIGHT
    # Between quantiles: some segments are given to a wrong speaker.
    whole = _MIDDLE * len(units)
    for column in range(len(speakers)):
        own = np.repeat(np.arange(len(units)), (voices[:, column] / _SPEAKER_WEIGHT).astype(int))
        first, last = np.quantile(own, [(1 - _MIDDLE) / 2, (1 + _MIDDLE) / 2])
        voices[:, column] *= max(0.0, 1 - float(last - first) / whole) ** 2
    return voices


def _snapped(before: _Unit, after: _Unit, cuts_ms: Sequence[int]) -> int:
    """Return the cut nearest to the first word after the boundary, or the middle of the pause."""
    first, last = before.end_ms - _SNAP_MS, after.start_ms + _SNAP_MS
    near = [cut for cut in cuts_ms if max(1, first) <= cut <= last]
    if near:
        return min(near, key=lambda cut: abs(cut - after.start_ms))
    return max(1, (min(before.end_ms, after.start_ms) + after.start_ms) // 2)


def _phrases(text: str) -> list[str]:
    """Runs of words from one that carries a subject to another, within a clause."""
    found: list[str] = []
    for clause in re.split(r"[.,;:!?…。、，！？()\"“”«»]+\s*", text):
        if _SPACELESS.search(clause):
            found.append(clause[:_TITLE_CHARACTERS].strip())
            continue
        words = clause.split()
        telling = [bool(_terms(word)) for word in words]
        for start, is_telling in enumerate(telling):
            if is_telling:
                ends = [end for end in range(start, min(len(words), start + _TITLE_WORDS))
                        if telling[end]]  # fmt: skip
                found += [" ".join(words[start : end + 1]) for end in ends]
    return [phrase for phrase in found if phrase and len(phrase) <= _TITLE_CHARACTERS]


def _gain(text: str, weights: dict[str, float]) -> float:
    return sum(weights.get(term, 0.0) for term in set(_terms(text)))


def _weight(phrase: str, weights: dict[str, float]) -> float:
    """Of the distinct terms, less for each word without meaning of its own."""
    terms = _terms(phrase)
    idle = 0 if _SPACELESS.search(phrase) else len(phrase.split()) - len(terms)
    return _gain(phrase, weights) / math.sqrt(max(1, len(terms))) - 0.3 * idle
