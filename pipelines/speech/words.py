"""Words of a track onto the video's timeline, and into segments. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipelines.speech.script import NON_STARTER, SPACELESS, are_unspaced, word_ends
from pipelines.types import TranscriptSegment, TranscriptWord

_SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！", "｡", "؟", "।")
_CLOSERS = "\"'”’»)]"
_ABBREVIATIONS = frozenset({"mr.", "mrs.", "ms.", "dr.", "st.", "vs.", "prof.", "no."})
_NUMBER_GOES_ON = re.compile(r"\d[.,:/]? \d")
TimeSpan = tuple[float, float]
"""Start and end in seconds of the track."""

_WORD_GAP_MS = 600
"""Nobody pauses so long inside a word."""
_STRAY_GAP_MS = 3_000
"""But a recogniser may misplace what cannot begin one."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment ends although the speaker goes on."""

    pause_ms: int = 600
    """Silence that ends a sentence where the backend gives no punctuation: pauses inside
    sentences are mostly shorter than 0.5 s, between them longer."""
    max_ms: int = 15_000
    max_words: int = 30


@dataclass(frozen=True, slots=True)
class TrackWord:
    """A word in seconds from the first sample of its track; confidence 0 to 1."""

    text: str
    start_seconds: float
    end_seconds: float
    confidence: float
    speaker: str | None = None
    language: str | None = None
    """BCP 47 where it is not its track's."""


def to_ms(seconds: float) -> int:
    """Milliseconds, rounded half away from zero."""
    return math.floor(abs(seconds) * 1000 + 0.5) * (1 if seconds >= 0 else -1)


def place_words(
    words: Iterable[TrackWord], *, offset_seconds: float, media_duration_ms: int
) -> list[TranscriptWord]:
    """The words inside the media, in order, none overlapping, each at least 1 ms long.

    ``offset_seconds`` is the time of the track's first sample. Words outside
    ``[0, media_duration_ms]`` are dropped, words across its ends clipped. What a recogniser took
    for several words where its tokens ended is one: it has the speaker of most of its time.
    """
    placed: list[TranscriptWord] = []
    earliest_ms = 0
    for word in sorted(words, key=lambda each: (each.start_seconds, each.end_seconds)):
        text = " ".join(word.text.split())
        start_ms = to_ms(word.start_seconds + offset_seconds)
        end_ms = to_ms(word.end_seconds + offset_seconds)
        if not text or end_ms < 0 or start_ms >= media_duration_ms:
            continue
        start_ms = max(start_ms, earliest_ms)
        end_ms = min(max(end_ms, start_ms + 1), media_duration_ms)
        if end_ms <= start_ms:
            continue
        confidence = min(1.0, max(0.0, word.confidence))
        placed.append(
            TranscriptWord(text, start_ms, end_ms, confidence, word.speaker, word.language)
        )
        earliest_ms = end_ms
    runs = _unspaced_runs(placed)
    return [_united(parts) for run in runs for parts in _dictionary_words(run)]


def _unspaced_runs(words: Sequence[TranscriptWord]) -> list[list[TranscriptWord]]:
    """Words that are written without spaces between; digits are, in scripts that have none."""
    runs: list[list[TranscriptWord]] = []
    with_letters = (word.text for word in words if any(map(str.isalpha, word.text)))
    is_spaceless = SPACELESS.search(next(with_letters, "")) is not None
    before = ""
    for word in words:
        gap_ms = _STRAY_GAP_MS if NON_STARTER.match(word.text) else _WORD_GAP_MS
        is_near = bool(runs) and word.start_ms - runs[-1][-1].end_ms <= gap_ms
        goes_on = is_spaceless and _NUMBER_GOES_ON.search(f"{before} {word.text}")
        is_alike = bool(runs) and word.language == runs[-1][-1].language
        if is_near and is_alike and (goes_on or are_unspaced(before, word.text)):
            runs[-1].append(word)
        else:
            runs.append([word])
        before = (before + word.text)[-8:]
        if any(map(str.isalpha, word.text)):
            is_spaceless = SPACELESS.search(word.text) is not None
    return runs


def _dictionary_words(run: list[TranscriptWord]) -> list[list[TranscriptWord]]:
    if len(run) == 1:
        return [run]
    ends = word_ends("".join(word.text for word in run))
    parts, position = [list[TranscriptWord]()], 0
    for word in run:
        if position in ends and parts[-1]:
            parts.append([])
        parts[-1].append(word)
        position += len(word.text)
    return parts


def _united(parts: Sequence[TranscriptWord]) -> TranscriptWord:
    if len(parts) == 1:
        return parts[0]
    spoken_ms = Counter[str | None]()
    for part in parts:
        spoken_ms[part.speaker] += part.end_ms - part.start_ms
    return replace(
        parts[0],
        text="".join(part.text for part in parts),
        end_ms=parts[-1].end_ms,
        confidence=min(part.confidence for part in parts),
        speaker=spoken_ms.most_common(1)[0][0],
    )


def build_segments(
    words: Sequence[TranscriptWord], limits: SegmentLimits
) -> tuple[TranscriptSegment, ...]:
    """Segments of placed words: every word in exactly one, in order."""
    runs: list[list[TranscriptWord]] = []
    for word in words:
        if runs and not _breaks_between(runs[-1][-1], word, limits):
            runs[-1].append(word)
        else:
            runs.append([word])
    parts = (part for run in runs for part in _bounded(run, limits))
    return tuple(_segment(index, part) for index, part in enumerate(parts))


def ends_sentence(text: str) -> bool:
    """Whether the word closes a sentence by its punctuation."""
    bare = text.rstrip(_CLOSERS)
    return bare.endswith(_SENTENCE_ENDS) and bare.lower() not in _ABBREVIATIONS


def _breaks_between(left: TranscriptWord, right: TranscriptWord, limits: SegmentLimits) -> bool:
    return (
        left.speaker != right.speaker
        or left.language != right.language
        or right.start_ms - left.end_ms > limits.pause_ms
        or ends_sentence(left.text)
    )


def _bounded(run: list[TranscriptWord], limits: SegmentLimits) -> list[list[TranscriptWord]]:
    """The run in parts within the limits, cut at the longest pauses."""
    parts: list[list[TranscriptWord]] = []
    rest = run
    while len(rest) > 1 and not _fits(rest, limits):
        fitting = next(n for n in range(len(rest), 0, -1) if n == 1 or _fits(rest[:n], limits))
        cut = _best_cut(rest, fitting)
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts.append(rest)
    return parts


def _fits(run: Sequence[TranscriptWord], limits: SegmentLimits) -> bool:
    return run[-1].end_ms - run[0].start_ms <= limits.max_ms and len(run) <= limits.max_words


def _best_cut(run: Sequence[TranscriptWord], fitting: int) -> int:
    """How many words to take: up to ``fitting``, at least half of them, longest pause after.

    A fifth as many are left, so that no word stands alone because a segment was full.
    """
    least = max(1, fitting // 2)
    candidates = range(least, max(least, min(fitting, len(run) - fitting // 5)) + 1)
    return max(candidates, key=lambda n: (run[n].start_ms - run[n - 1].end_ms, n))


def _segment(index: int, words: Sequence[TranscriptWord]) -> TranscriptSegment:
    lengths_ms = [word.end_ms - word.start_ms for word in words]
    weighted = sum(w.confidence * ms for w, ms in zip(words, lengths_ms, strict=True))
    return TranscriptSegment(
        index=index,
        start_ms=words[0].start_ms,
        end_ms=words[-1].end_ms,
        text=joined([word.text for word in words]),
        speaker=words[0].speaker,
        confidence=weighted / sum(lengths_ms),
        words=tuple(words),
        language=words[0].language,
    )


def joined(words: Iterable[str]) -> str:
    """The words as running text: a space between two, but where they are written without."""
    parts, before = list[str](), ""
    for word in words:
        if before and word and not are_unspaced(before, word):
            parts.append(" ")
        parts.append(word)
        before = word or before
    return "".join(parts)
