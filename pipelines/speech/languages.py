"""Which language is spoken where: windows of a chunk, where it changes, a vote over the track.

A recogniser that decodes two languages in one go writes the second in the first, or not at all. So
each chunk's languages are detected in short windows; the cheapest path through them (Viterbi 1967)
shows where another language begins, and the parts are decoded apart. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.contracts import (
    SAMPLE_RATE_HZ,
    ChunkTranscript,
    ExpectedLanguages,
    Samples,
    primary_language,
)
from pipelines.media.audio import FRAME_SAMPLES, frame_levels
from pipelines.speech.words import TrackWord

Ranked = tuple[tuple[str, float], ...]
"""Languages and their probabilities, falling."""

ENGLISH = "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageChoice(ExpectedLanguages):
    """What a client expects, and what this service's media are mostly spoken in."""

    usual: tuple[str, ...] = (ENGLISH,)
    """What is tried too wherever a language is doubtful."""

    @property
    def chinese_script(self) -> str | None:
        """Hans or Hant where a tag of Chinese names one, or a place where it is written."""
        tags = [tag for tag in (self.language, *self.languages) if tag]
        subtags = [each for tag in tags if primary_language(tag) == "zh" for each in tag.split("-")]
        return next((s for each in subtags if (s := _CHINESE_SCRIPTS.get(each.lower()))), None)


_CHINESE_SCRIPTS = {
    **dict.fromkeys(("hans", "cn", "sg"), "Hans"),
    **dict.fromkeys(("hant", "tw", "hk", "mo"), "Hant"),
}

WINDOW_SECONDS = 3.0
STEP_SECONDS = 1.5
LEAST_SECONDS = 1.0
"""No part of a chunk is shorter: its language would be a guess."""
_CHANGE_COST, _RETURN_COST = 4.0, 3.0
"""Natural logarithm of how much more probable a change must make the windows, and one back to the
language that suits most of them: a sentence between two others has just two to itself."""
_FLOOR = 0.02
"""Probability of a language that is not among those of a window: a window alone proves little."""
_RARE = 0.001
"""Probability of what is not even listed."""
_NEAR_SECONDS = 2.0
"""How far from where the windows show a change it may be."""
_PLACES = 4
"""Most places where a change may be that are compared."""
_APART_SECONDS = 0.3

PROBABLE = 0.5
"""Below it a language is doubtful: faster-whisper's own threshold of its detection."""
FITTING = -1.0
"""Below this mean log-probability a text does not fit the sound (Whisper's own threshold)."""
_NO_LANGUAGE = 0.25
"""Of a whole track. Rain had 0.18 and text of -0.78, languages that share their probability with
neighbours (Croatian, Hindi) 0.41 and more."""
CERTAIN = 0.8
WELL_FITTING = -0.6
"""Below one of these another reading is tried too."""


def language_windows(seconds: float) -> list[tuple[float, float]]:
    """Return windows over a chunk of that length, the last one at its end; none where one holds it
    all."""
    if seconds < WINDOW_SECONDS + LEAST_SECONDS / 2:
        return []
    count = 1 + math.ceil((seconds - WINDOW_SECONDS) / STEP_SECONDS)
    starts = np.linspace(0.0, seconds - WINDOW_SECONDS, count)
    return [(start, start + WINDOW_SECONDS) for start in starts.tolist()]


Change = tuple[float, str, str]
"""About when, in seconds, and the languages before and after."""


def next_windows(found: Sequence[Ranked | None]) -> list[int]:
    """Return which windows to detect a language in next; ``found`` has None for those that were
    not looked at. First every second one: they overlap all others. Then the others, if whatever
    these are in may make a change: if a run of windows may be so much more probable in another
    language than in the usual one that a change to it, and one back where the run reaches no end
    of the chunk, costs less."""
    unseen = [at for at, ranked in enumerate(found) if ranked is None]
    if len(unseen) == len(found):
        return [at for at in unseen if at % 2 == 0 or at == len(found) - 1]
    # At worst they are certainly in that other language.
    shares = [{"": 1.0} if ranked is None else dict(ranked) for ranked in found]
    names = sorted({name for each in shares for name in each if name})
    usual = min(names, key=lambda it: sum(_cost(each.get(it, 0.0)) for each in shares), default="")
    gains = [
        _cost(each.pop(usual, 0.0)) - _cost(max(each.values(), default=0.0)) for each in shares
    ]
    sums = np.cumsum([0.0, *gains])
    gained = sums[None, 1:] - sums[:-1, None]  # by the run's first window, and its last
    changes = np.full(gained.shape, _CHANGE_COST + _RETURN_COST)
    changes[0, :] = changes[:, -1] = _RETURN_COST
    return unseen if np.triu(gained >= changes).any() else []


def _cost(probability: float) -> float:
    return -math.log(max(_FLOOR, probability))


def changes_in(
    windows: Sequence[tuple[float, float]], found: Sequence[Ranked | None]
) -> list[Change]:
    """Return where another language begins: nowhere where not all windows had to be looked at."""
    ranked = [dict(each) for each in found if each is not None]
    names = sorted({name for each in ranked for name in each})
    if len(names) < 2 or len(ranked) < len(found):
        return []
    path = _cheapest_path(np.array([[_cost(e.get(name, 0.0)) for name in names] for e in ranked]))
    middles = [(start + end) / 2 for start, end in windows]
    return [
        ((middles[index - 1] + middles[index]) / 2, names[path[index - 1]], names[path[index]])
        for index in range(1, len(path))
        if path[index] != path[index - 1]
    ]


def _cheapest_path(costs: npt.NDArray[np.float64]) -> list[int]:
    """Return the state at each step, each change costing _CHANGE_COST or _RETURN_COST; to begin in
    another state than the usual costs their difference."""
    change = np.full(costs.shape[1], _CHANGE_COST)
    change[int(np.argmin(costs.sum(axis=0)))] = _RETURN_COST
    total, before = costs[0] + change - _RETURN_COST, []
    for row in costs[1:]:
        best = int(np.argmin(total))
        stays = total <= total[best] + change
        before.append(np.where(stays, np.arange(len(total)), best))
        total = np.where(stays, total, total[best] + change) + row
    path = [int(np.argmin(total))]
    for origin in reversed(before):
        path.append(int(origin[path[-1]]))
    return path[::-1]


def quiet_places(
    samples: Samples, near_seconds: float, reach_seconds: float = _NEAR_SECONDS
) -> list[tuple[int, float]]:
    """Return frames near that second at which something may end, and their levels in dB, rising."""
    levels = frame_levels(samples).astype(np.float64)
    smooth = np.convolve(np.pad(levels, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    per_second = SAMPLE_RATE_HZ / FRAME_SAMPLES
    least = round(LEAST_SECONDS * per_second)
    low = max(least, round((near_seconds - reach_seconds) * per_second))
    high = min(len(levels) - least, round((near_seconds + reach_seconds) * per_second))
    places: list[tuple[int, float]] = []
    for frame in (low + np.argsort(smooth[low:high], kind="stable")).tolist():
        if all(abs(frame - place) >= _APART_SECONDS * per_second for place, _ in places):
            places.append((frame, float(smooth[frame])))
        if len(places) == _PLACES:
            break
    return places


def log_odds(ranked: Ranked, language: str, other: str) -> float:
    """Logarithm of the language's probability where it is one of two.

    A similar language that is more probable than both proves nothing here.
    """
    found = dict(ranked)
    one, two = found.get(language, _RARE), found.get(other, _RARE)
    return math.log(one / (one + two))


_MOST_RIVALS = 4
_RIVAL_SHARE = 0.25


def rivals(found: ChunkTranscript, choice: LanguageChoice) -> Ranked:
    """Return what else it may be in, and how probable: where no language is PROBABLE those at least
    a quarter as probable as the first, and there, or where a doubtful one does not fit, the usual.

    Of text that fits badly only these: noise is in no language, and in some language its text fits
    (rain in Russian, -0.39).
    """
    ranked = found.languages
    if not ranked or ranked[0][1] >= CERTAIN:
        return ()
    others: Ranked = ()
    first, probability = ranked[0]
    if probability < PROBABLE and not is_below(found, 0.0, WELL_FITTING):
        near = [(name, each) for name, each in ranked[1:] if each >= _RIVAL_SHARE * probability]
        others = tuple(near[:_MOST_RIVALS])
    elif not is_below(found, 0.0, FITTING):
        return ()
    allowed = {primary_language(tag) for tag in choice.languages}
    tried = {first, *(name for name, _ in others)}
    untried = (name for name in choice.usual if name not in tried)
    usual = [name for name in untried if not allowed or name in allowed]
    return (*others, *((name, dict(ranked).get(name, _RARE)) for name in usual))


DB_PER_NAT = 20.0
"""So much quieter makes a place e times as probable as the end of a language."""


@dataclass(frozen=True, slots=True)
class SpokenPart:
    """A part of a chunk in one language: its words in seconds of the track, in order."""

    start_frame: int
    end_frame: int
    """Of the track, as those of its chunk."""
    words: tuple[TrackWord, ...]
    language: str | None
    language_probability: float | None = None
    log_probability: float | None = None
    languages: Ranked = ()

    @property
    def is_doubtful(self) -> bool:
        """Whether its language is improbable, or its text does not fit the sound."""
        return is_below(self, PROBABLE, FITTING)

    def may_be_in(self, language: str | None) -> bool:
        """Return whether it may be in this other language after all."""
        other = self.language is not None and self.language != language
        return bool(self.words) and other and is_below(self, CERTAIN, WELL_FITTING)


def is_below(found: SpokenPart | ChunkTranscript, probability: float, fit: float) -> bool:
    """Return whether a language is less probable, or text fits worse; what nobody estimated is
    not."""
    return (
        found.language_probability is not None and found.language_probability < probability
    ) or (found.log_probability is not None and found.log_probability < fit)


def is_noise(parts: Iterable[SpokenPart], probability: float | None) -> bool:
    """Return whether the text of a track is of noise: of no probable language, and nowhere fitting
    well.

    One of the two alone proves nothing: text of an uncertain language that fits is kept.
    """
    fits = [part.log_probability for part in parts if part.words]
    known = [fit for fit in fits if fit is not None]
    improbable = probability is not None and probability < _NO_LANGUAGE
    return improbable and bool(known) and max(known) < WELL_FITTING


def elected(parts: Iterable[SpokenPart]) -> tuple[str | None, float | None]:
    """Return the language of a track and its mean probability over the words in it.

    A word counts as much as its language is probable and as its text fits the sound: text that
    the model itself doubts proves little about its language. It is one that something is written
    in. None where nothing is spoken or no backend finds languages.
    """
    written = set[str]()
    weights: defaultdict[str, float] = defaultdict(float)
    words: defaultdict[str, int] = defaultdict(int)
    evidence: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        if part.language is None or not part.words:
            continue
        belief = len(part.words) * math.exp(part.log_probability or 0.0)
        written.add(part.language)
        for language, probability in part.languages or ((part.language, 1.0),):
            weights[language] += belief * probability
        if part.language_probability is not None:
            words[part.language] += len(part.words)
            evidence[part.language] += len(part.words) * part.language_probability
    if not weights:
        return None, None
    language = max(sorted(written), key=lambda name: weights[name])
    return language, evidence[language] / words[language] if words[language] else None
