"""Words of a track onto the video's timeline and into segments, and how text is written. Pure.

Where a space, a word and a line end, how wide text is and which way it runs: boundaries are those
of ICU, words of Chinese, Japanese, Thai, Lao, Khmer and Burmese by its dictionaries, ends of lines
by UAX #14 in its strict form, which is kinsoku, phrases of Japanese by its model
(https://unicode-org.github.io/icu/userguide/boundaryanalysis/). None of them falls inside a number,
or between a number and what it counts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from icu4py.breakers import BaseBreaker, CharacterBreaker, LineBreaker, WordBreaker
from rapidfuzz.distance import Indel

from pipelines.types import TranscriptSegment, TranscriptWord

_EAST_ASIAN = "\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
SPACELESS = re.compile(f"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff{_EAST_ASIAN}]")
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese, with their punctuation. Korean has spaces."""
_HAN_OR_KANA = re.compile(f"[{_EAST_ASIAN}]")
_KANA = re.compile("[\u3040-\u30ff]")

_NUMERAL = "[\\d〇零一二三四五六七八九十百千万億兆亿]"
_IN_NUMBER = re.compile(
    rf"(?<=\d)(?=[^\W_]|[%‰℃°])|(?<=\d[.,:/])(?=\d)|(?<=第)(?={_NUMERAL})"
    rf"|(?<={_NUMERAL})(?={_NUMERAL}|[年月日時时分秒点點号號円元])"
    rf"|(?<=[年月日時时分点點])(?={_NUMERAL})"
)
"""Inside 2024年10月5日, 100%, 3.5キロ, 第３章, 二〇二四年."""
_BEFORE_TEKI = re.compile("(?<=[\u3400-\u9fff])(?=的)")
"""In Japanese it makes an adjective of the word before it; in Chinese it is a word."""
NON_STARTER = re.compile(
    "[ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ々ゝゞヽヾ、。，．・：；！？）］｝」』】〉》〕]"
)
"""What begins no line in Japanese, and no word."""
_CLITIC = re.compile(r"(?:['’](?:s|re|ve|ll|d|m|t)|n['’]t)\b", re.IGNORECASE)
"""English endings that some recognisers take for words: What 's."""
_CLOSING = re.compile(r"[.,!?;:%)\]}…]+")

RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001eeff]"
)
_DIRECTIONS = {"L": "L", "R": "R", "AL": "R", "AN": "R", "EN": "N"}
_FOREIGN = {True: re.compile("L(?:[LN ]*[LN])?"), False: re.compile("R(?:[RN ]*R)?")}
"""Runs against the direction of the text (is it from right to left?): a number that follows Latin
letters belongs to them."""

_INTO_SCRIPT = {"Hans": "t2s", "Hant": "s2tw"}
"""ISO 15924's simplified and traditional Chinese: conversions of OpenCC, the second into the forms
of Taiwan."""


def word_set(text: str) -> frozenset[str]:
    """Return words that a space parts."""
    return frozenset(text.split())


def in_one_script(texts: Sequence[str], script: str | None, kept: Iterable[str]) -> list[str]:
    """Chinese words, in order, in ``script`` (Hans or Hant); None: as ``_script_of`` decides.

    Where a simplified character has several traditional ones, the phrase determines which.
    ``kept`` are words that stay as they are spelt there.
    """
    whole = "".join(texts)
    if not whole:
        return [*texts]
    script = script or _script_of(whole)
    found, folded = _converted(whole, script), _converted(whole, "Hans")
    if not len(whole) == len(found) == len(folded):
        return [_converted(text, script) for text in texts]
    for word in kept:
        for match in re.finditer(re.escape(_converted(word, "Hans")), folded):
            if match.end() - match.start() == len(word):
                found = found[: match.start()] + word + found[match.end() :]
    ends = accumulate((len(text) for text in texts), initial=0)
    return [found[start:end] for start, end in pairwise(ends)]


def _script_of(text: str) -> str:
    """Return Hant where more words are Taiwan's (軟體) than the mainland's (软件) by OpenCC's
    phrases; else Hans.

    Whisper's own characters prove nothing: it wrote a mainland speaker in traditional ones.
    """
    hans, hant = (_converted(text, each) for each in ("Hans", "Hant"))
    taiwan, mainland = (
        Indel.distance(_converter(plain).convert(each), _converter(phrases).convert(each))
        for plain, phrases, each in (("tw2s", "tw2sp", hant), ("s2tw", "s2twp", hans))
    )
    return "Hant" if taiwan > mainland else "Hans"


def _converted(text: str, script: str) -> str:
    converted: str = _converter(_INTO_SCRIPT[script]).convert(text)
    return converted


@cache
def _converter(conversion: str) -> Any:
    from opencc import OpenCC  # 0.1 s that nothing but Chinese needs

    return OpenCC(conversion)


def are_unspaced(left: str, right: str) -> bool:
    """Return whether two words that follow each other are written without a space between."""
    if left.isascii() and right[:1].isalnum() and right.isascii() and right[0] not in "nN":
        return False
    ends = left[-1:], right[:1]
    if all(map(SPACELESS.match, ends)) or _CLITIC.match(right) or _CLOSING.fullmatch(right):
        return True
    if any(_HAN_OR_KANA.match(end) and not end.isalnum() for end in ends):
        return True
    letters = _first_letter(reversed(left)), _first_letter(right)
    if all(map(SPACELESS.match, letters)):
        return True
    return any(map(_HAN_OR_KANA.match, letters)) and any(map(str.isdigit, letters))


def _first_letter(text: Iterable[str]) -> str:
    return next((each for each in text if unicodedata.category(each)[0] in "LMN"), "")


def word_ends(text: str) -> set[int]:
    """Return where words may end in ``text``, which has no spaces: positions before its
    characters."""
    return _ends(text, WordBreaker(text, "ja"), LineBreaker(text, "ja@lb=strict"))


def line_ends(text: str) -> set[int]:
    """Return where a line may end in ``text``: at spaces and, in scripts without, between
    phrases."""
    if _KANA.search(text):
        return _ends(text, LineBreaker(text, "ja@lb=strict;lw=phrase"))
    return _ends(text, WordBreaker(text, "zh"), LineBreaker(text, "zh@lb=strict"))


def _ends(text: str, *breakers: BaseBreaker) -> set[int]:
    """Return where all breakers end a segment, but for numbers and the like."""
    ends = set.intersection(*({end for _, end in each.segments()} for each in breakers))
    bound = [_IN_NUMBER, _BEFORE_TEKI] if _KANA.search(text) else [_IN_NUMBER]
    return ends - {match.start() for pattern in bound for match in pattern.finditer(text)}


def parts_of(text: str, width: int) -> list[str]:
    """``text`` in parts of at most ``width`` columns: between words where that is enough.

    Then as UAX #14 breaks it, then between characters as a reader takes them, then anywhere.
    """
    parts = [text]
    for split in (_words, _strict_units, _characters, list):
        if all(columns(part) <= width for part in parts):
            break
        parts = [
            piece for part in parts for piece in ([part] if columns(part) <= width else split(part))
        ]
    packed = [""]
    for part in parts:
        if packed[-1] and columns(packed[-1] + part) > width:
            packed.append("")
        packed[-1] += part
    return packed


def _words(text: str) -> list[str]:
    ends = sorted(word_ends(text) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


def _strict_units(text: str) -> list[str]:
    return list(LineBreaker(text, "ja@lb=strict"))


def _characters(text: str) -> list[str]:
    return list(CharacterBreaker(text, "en"))


def columns(text: str) -> int:
    """Width in columns: wide and full-width characters have two (UAX #11)."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


@cache
def _columns_of(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def runs_right_to_left(text: str) -> bool:
    """Return whether most letters of ``text`` are written from right to left."""
    if not RIGHT_TO_LEFT.search(text):
        return False
    directions = _directions(text)
    return directions.count("R") >= directions.count("L")


def isolated(line: str, *, right_to_left: bool) -> str:
    """``line``, each run against the direction of its text between FSI and PDI (UAX #9)."""
    parts, end = [], 0
    for run in _FOREIGN[right_to_left].finditer(_directions(line)):
        parts += [line[end : run.start()], "\u2068", line[run.start() : run.end()], "\u2069"]
        end = run.end()
    return "".join([*parts, line[end:]])


def _directions(text: str) -> str:
    return "".join(_DIRECTIONS.get(unicodedata.bidirectional(each), " ") for each in text)


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


Item = TypeVar("Item")


def runs_of(items: Iterable[Item], goes_on: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Return the items in runs: each with the one before, where it ``goes_on`` from that."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and goes_on(runs[-1][-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def place_words(
    words: Iterable[TrackWord], *, offset_seconds: float, media_duration_ms: int
) -> list[TranscriptWord]:
    """Return the words inside the media, in order, none overlapping, each at least 1 ms long.

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
    """Return words that are written without spaces between; digits are, in scripts that have
    none."""
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
    """Return segments of placed words: every word in exactly one, in order."""

    def goes_on(left: TranscriptWord, right: TranscriptWord) -> bool:
        is_alike = (left.speaker, left.language) == (right.speaker, right.language)
        is_near = right.start_ms - left.end_ms <= limits.pause_ms
        return is_alike and is_near and not ends_sentence(left.text)

    parts = (part for run in runs_of(words, goes_on) for part in _bounded(run, limits))
    return tuple(_segment(index, part) for index, part in enumerate(parts))


def ends_sentence(text: str) -> bool:
    """Return whether the word closes a sentence by its punctuation."""
    bare = text.rstrip(_CLOSERS)
    return bare.endswith(_SENTENCE_ENDS) and bare.lower() not in _ABBREVIATIONS


def _bounded(run: list[TranscriptWord], limits: SegmentLimits) -> list[list[TranscriptWord]]:
    """Return the run in parts within the limits, cut at the longest pauses."""
    parts: list[list[TranscriptWord]] = []
    rest = run
    while len(rest) > 1 and not _fits(rest, limits):
        fitting = next(n for n in range(len(rest), 0, -1) if n == 1 or _fits(rest[:n], limits))
        # How many words to take: up to ``fitting``, at least half of them, longest pause after. A
        # fifth as many are left, so that no word stands alone because a segment was full.
        least = max(1, fitting // 2)
        candidates = range(least, max(least, min(fitting, len(rest) - fitting // 5)) + 1)
        cut = max(candidates, key=lambda n: (rest[n].start_ms - rest[n - 1].end_ms, n))
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts.append(rest)
    return parts


def _fits(run: Sequence[TranscriptWord], limits: SegmentLimits) -> bool:
    return run[-1].end_ms - run[0].start_ms <= limits.max_ms and len(run) <= limits.max_words


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
    """Return the words as running text: a space between two, but where they are written without."""
    parts, before = list[str](), ""
    for word in words:
        if before and word and not are_unspaced(before, word):
            parts.append(" ")
        parts.append(word)
        before = word or before
    return "".join(parts)
