"""Captions as houses accept them: the table of their rules, cues by it, and what is left. Pure.

A cue begins with what is spoken in it. Where it would be too short to be read, it stays into the
pause after it, the cues around it give way by as much as the house allows, a cue of the same
speaker is joined to it, or two speakers share one, each with a dash. What speech still leaves too
little time for is a violation: only a person can shorten a text.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipelines.codec import CodecError, from_json
from pipelines.speech.cues import CUE_MAX_MS, USUAL, CaptionLimits, Cue, build_cues, cut_cues
from pipelines.speech.script import SPACELESS, columns
from pipelines.speech.words import joined
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord

NO_PICTURE_RATE = Fraction(25)
_JOIN_MS = 1_000
"""Segments of one speaker with a longer pause between stay apart."""
_UNLIMITED_MS = 10**9
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]


@dataclass(frozen=True, slots=True)
class HouseRules:
    """A house's rules for one language; see ``caption_rules.toml``. Zero: there is no such rule."""

    title: str
    source: str
    line_columns: Annotated[int, Field(ge=12, le=120)]
    lines: Annotated[int, Field(ge=1, le=4)]
    columns_per_second: Annotated[int, Field(ge=0, le=60)] = 0
    words_per_minute: Annotated[int, Field(ge=0, le=600)] = 0
    verbatim: bool = False
    shortest_ms: Annotated[int, Field(ge=0, le=5_000)] = 0
    longest_ms: Milliseconds = 0
    gap_frames: Annotated[int, Field(ge=0, le=25)] = 0
    closed_gap_ms: Milliseconds = 0
    early_ms: Milliseconds = 0
    late_ms: Milliseconds = 0
    balance_percent: Annotated[int, Field(ge=0, le=100)] = 0
    dash: Annotated[str, Field(max_length=4)] = "- "
    sound: Annotated[str, Field(max_length=40)] = "[{sound}]"
    speaker: Annotated[str, Field(max_length=40)] = "{speaker}:"
    frame_rate: Fraction = NO_PICTURE_RATE
    """Frames a second of the picture; not part of the table."""

    @property
    def limits(self) -> CaptionLimits:
        """What a cue holds, and the speed at which cues are cut."""
        speed = self.columns_per_second or USUAL.columns_per_second
        return CaptionLimits(
            self.line_columns,
            self.lines,
            speed,
            is_strict=not self.verbatim,
            gap_ms=self.gap_ms,
            shortest_ms=self.shortest_ms,
            longest_ms=self.longest_ms or CUE_MAX_MS,
            balance_percent=self.balance_percent,
        )

    @property
    def gap_ms(self) -> int:
        """Between two cues: the frames in whole milliseconds, rounded up."""
        return -int(-self.gap_frames * 1000 // self.frame_rate)

    def needed_ms(self, text: str) -> int:
        """How long ``text``, in one line, is to stay."""
        needed = self.shortest_ms
        if self.columns_per_second:
            needed = max(needed, -(-columns(text) * 1000 // self.columns_per_second))
        if self.words_per_minute and not SPACELESS.search(text):
            needed = max(needed, -(-len(text.split()) * 60_000 // self.words_per_minute))
        return min(needed, self.longest_ms or needed)


HouseTable = Mapping[str, Mapping[str, HouseRules]]
"""House -> language, ``""`` for all that have no rules of their own -> its rules."""


class CaptionRulesError(ValueError):
    """The table cannot be read: one sentence that names the file and the place."""


@functools.lru_cache(maxsize=8)
def read_rules(path: Path | None = None) -> HouseTable:
    """The shipped table, with the houses of the TOML file at ``path`` beside or instead of its own.

    Raises CaptionRulesError.
    """
    shipped = files("pipelines.speech").joinpath("caption_rules.toml").read_text()
    table = _parsed(shipped, "caption_rules.toml")
    if path is not None:
        try:
            table |= _parsed(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise CaptionRulesError(f"caption rules {path}: {error}") from None
    return table


def _parsed(text: str, name: str) -> dict[str, dict[str, HouseRules]]:
    table: dict[str, dict[str, HouseRules]] = {}
    place = ""
    try:
        for house, values in tomllib.loads(text).items():
            place = house
            base = dict(values)
            languages = base.pop("languages", {})
            table[house] = {"": from_json(HouseRules, base)}
            for language, others in languages.items():
                place = f"{house}.languages.{language}"
                table[house][language] = from_json(HouseRules, base | others)
            for rules in table[house].values():
                rules.sound.format(sound="music", SOUND="MUSIC")
                rules.speaker.format(speaker="Anna", SPEAKER="ANNA")
    except tomllib.TOMLDecodeError as error:
        raise CaptionRulesError(f"caption rules {name}: {error}") from None
    except (CodecError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise CaptionRulesError(f"caption rules {name}: {place}: {error}") from None
    return table


def find_rules(
    table: HouseTable, house: str, language: str | None, frame_rate: Fraction | None = None
) -> HouseRules | None:
    """The house's rules for text of a BCP 47 language; None where there is no such house."""
    if house not in table:
        return None
    of_language = table[house]
    rules = of_language.get((language or "").partition("-")[0].lower(), of_language[""])
    return replace(rules, frame_rate=frame_rate or NO_PICTURE_RATE)


def cues_of(segments: Sequence[TranscriptSegment], limits: CaptionLimits | HouseRules) -> list[Cue]:
    """Cues in order, never overlapping: by a house's rules, or within limits alone."""
    if isinstance(limits, CaptionLimits):
        return build_cues(segments, limits)
    spoken = [cue for cue, _ in cut_cues(_joined_segments(segments, limits), limits.limits)]
    return _timed(_shared(spoken, limits), limits)


def _joined_segments(
    segments: Iterable[TranscriptSegment], rules: HouseRules
) -> list[TranscriptSegment]:
    """Segments that have too little time, joined to one of the same speaker beside them."""
    found: list[TranscriptSegment] = []
    for segment in segments:
        last = found[-1] if found else None
        if (
            last is not None
            and last.speaker == segment.speaker
            and segment.start_ms - last.end_ms <= _JOIN_MS
            and any(
                rules.needed_ms(each.text) > each.end_ms - each.start_ms for each in (last, segment)
            )
        ):
            text = joined((last.text, segment.text))
            words = last.words + segment.words
            found[-1] = replace(last, end_ms=segment.end_ms, text=text, words=words)
        else:
            found.append(segment)
    return found


def _shared(cues: Sequence[Cue], rules: HouseRules) -> list[Cue]:
    """Two speakers in one cue, each with a dash, where one alone would be gone too soon."""
    found: list[Cue] = []
    for cue in cues:
        last = found[-1] if found else None
        if last is not None and _can_share(last, cue, rules):
            lines = tuple(rules.dash + line for line in (*last.lines, *cue.lines))
            found[-1] = Cue(last.start_ms, cue.end_ms, lines, None)
        else:
            found.append(cue)
    return found


def _can_share(first: Cue, second: Cue, rules: HouseRules) -> bool:
    if first.speaker is None or second.speaker is None or first.speaker == second.speaker:
        return False
    lines = first.lines + second.lines
    if len(lines) != 2 or rules.lines < 2:
        return False
    if any(columns(rules.dash + line) > rules.line_columns for line in lines):
        return False
    if second.end_ms - first.start_ms > rules.limits.longest_ms:
        return False
    rooms = second.start_ms - first.start_ms, second.end_ms - second.start_ms
    needs = (rules.needed_ms(line) for line in lines)
    return any(need > room + rules.late_ms for need, room in zip(needs, rooms, strict=True))


def _timed(cues: Sequence[Cue], rules: HouseRules) -> list[Cue]:
    """The cues with the time that they need, as far as those after and before them give way."""
    longest_ms, gap_ms = rules.longest_ms or _UNLIMITED_MS, rules.gap_ms
    needs = [rules.needed_ms(_text(cue)) for cue in cues]
    latest = [0] * len(cues) + [_UNLIMITED_MS * 10]
    for i in range(len(cues) - 1, -1, -1):
        latest_ms = latest[i + 1] - gap_ms - needs[i]
        start_ms = cues[i].start_ms
        latest[i] = max(min(start_ms + rules.late_ms, latest_ms), start_ms - rules.early_ms, 0)
    found: list[Cue] = []
    earliest_ms = 0
    for i, cue in enumerate(cues):
        start_ms = max(earliest_ms, min(cue.start_ms, latest[i]))
        end_ms = max(cue.end_ms, start_ms + needs[i])
        if i + 1 < len(cues):
            closed_ms = cues[i + 1].start_ms - gap_ms
            if 0 < closed_ms - end_ms < rules.closed_gap_ms:
                end_ms = closed_ms
        end_ms = max(start_ms + 1, min(end_ms, latest[i + 1] - gap_ms, start_ms + longest_ms))
        found.append(cue._replace(start_ms=start_ms, end_ms=end_ms))
        earliest_ms = end_ms + gap_ms
    return found


def _text(cue: Cue) -> str:
    return joined(cue.lines)


def with_speakers(
    segments: Iterable[TranscriptSegment], speakers: Sequence[Speaker], template: str
) -> Iterator[TranscriptSegment]:
    """The segments, each that begins a turn with its speaker's name, where there are several.

    ``template`` has ``{speaker}`` or, in capitals, ``{SPEAKER}``.
    """
    labels = {each.id: each.label for each in speakers} if len(speakers) > 1 else {}
    before: str | None = None
    for segment in segments:
        label = labels.get(segment.speaker or "")
        if label and segment.speaker != before:
            name = template.format(speaker=label, SPEAKER=label.upper())
            begin_ms = segment.start_ms
            word = TranscriptWord(name, begin_ms, begin_ms, 1.0, segment.speaker)
            text = f"{name} {segment.text}"
            yield replace(segment, text=text, words=(word, *segment.words))
        else:
            yield segment
        before = segment.speaker


class CaptionRule(StrEnum):
    """What a caption is checked for."""

    LINE_LENGTH = "line_length"
    LINES = "lines"
    READING_SPEED = "reading_speed"
    DURATION = "duration"
    GAP = "gap"
    LINE_BALANCE = "line_balance"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a cue does not keep. ``cue`` counts from 1, as SubRip does."""

    cue: int
    start_ms: int
    end_ms: int
    rule: CaptionRule
    message: str
    is_advice: bool = False
    """The house leaves it to the person who writes."""


def find_violations(cues: Sequence[Cue], rules: HouseRules) -> Iterator[Violation]:
    """What the cues break of the rules, in their order."""
    for number, (cue, after) in enumerate(zip(cues, [*cues[1:], None], strict=True), 1):
        for rule, message, is_advice in _broken(cue, after, rules):
            yield Violation(number, cue.start_ms, cue.end_ms, rule, message, is_advice)


def _broken(
    cue: Cue, after: Cue | None, rules: HouseRules
) -> Iterator[tuple[CaptionRule, str, bool]]:
    text, duration_ms = _text(cue), cue.end_ms - cue.start_ms
    for line in cue.lines:
        if columns(line) > rules.line_columns:
            message = f"{columns(line)} columns, at most {rules.line_columns}"
            yield CaptionRule.LINE_LENGTH, message, False
    if len(cue.lines) > rules.lines:
        yield CaptionRule.LINES, f"{len(cue.lines)} lines, at most {rules.lines}", False
    if duration_ms < rules.shortest_ms:
        message = f"{duration_ms} ms, at least {rules.shortest_ms}"
        yield CaptionRule.DURATION, message, False
    if duration_ms > (rules.longest_ms or duration_ms):
        yield CaptionRule.DURATION, f"{duration_ms} ms, at most {rules.longest_ms}", False
    speed = rules.columns_per_second
    if speed and columns(text) * 1000 > speed * duration_ms:
        message = f"{columns(text) * 1000 / duration_ms:.1f} columns a second, at most {speed}"
        yield CaptionRule.READING_SPEED, message, rules.verbatim
    speed, words = rules.words_per_minute, len(text.split())
    if speed and words * 60_000 > speed * duration_ms and not SPACELESS.search(text):
        message = f"{words * 60_000 / duration_ms:.0f} words a minute, at most {speed}"
        yield CaptionRule.READING_SPEED, message, rules.verbatim
    pause_ms = after.start_ms - cue.end_ms if after else _UNLIMITED_MS
    if pause_ms < rules.gap_ms:
        message = f"{pause_ms} ms to the next, at least {rules.gap_ms}"
        yield CaptionRule.GAP, message, False
    elif rules.gap_ms < pause_ms < rules.closed_gap_ms:
        message = f"{pause_ms} ms to the next, which is neither closed nor {rules.closed_gap_ms}"
        yield CaptionRule.GAP, message, True
    if _is_unbalanced(cue.lines, rules):
        widths = " and ".join(str(columns(line)) for line in cue.lines)
        yield CaptionRule.LINE_BALANCE, f"{widths} columns, although the text divides better", False


def _is_unbalanced(lines: Sequence[str], rules: HouseRules) -> bool:
    """Whether two lines are less even than the house's rule, where another space divides better."""
    if len(lines) != 2 or _balanced(lines, rules) or lines[1].startswith(rules.dash):
        return False
    words = " ".join(lines).split()
    divided = ((" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words)))
    return any(
        _balanced(each, rules) and max(map(columns, each)) <= rules.line_columns for each in divided
    )


def _balanced(lines: Sequence[str], rules: HouseRules) -> bool:
    shorter, longer = sorted(map(columns, lines))
    return shorter * 100 >= longer * rules.balance_percent
