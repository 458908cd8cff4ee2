"""How text is written: where a space, a word and a line end, how wide it is, which way it runs.

Pure. Boundaries are those of ICU: words of Chinese, Japanese, Thai, Lao, Khmer and Burmese by its
dictionaries, ends of lines by UAX #14 in its strict form, which is kinsoku, phrases of Japanese by
its model (https://unicode-org.github.io/icu/userguide/boundaryanalysis/). None of them falls inside
a number, or between a number and what it counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from icu4py.breakers import BaseBreaker, CharacterBreaker, LineBreaker, WordBreaker

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


def in_one_script(texts: Sequence[str], script: str | None, kept: Iterable[str]) -> list[str]:
    """Chinese words, in order, in ``script`` (Hans or Hant); None: that of most characters.

    Phrases decide between the characters that a simplified one stands for. ``kept`` are words that
    stay as they are spelt there.
    """
    whole = "".join(texts)
    if not whole:
        return [*texts]
    if script is None:
        simplified, traditional = (_converted(whole, each) for each in ("Hans", "Hant"))
        changed = zip(whole, simplified, traditional, strict=False)
        votes = [(each != hans) - (each != hant) for each, hans, hant in changed]
        script = "Hant" if sum(votes) > 0 else "Hans"
    found, folded = _converted(whole, script), _converted(whole, "Hans")
    if not len(whole) == len(found) == len(folded):
        return [_converted(text, script) for text in texts]
    for word in kept:
        for match in re.finditer(re.escape(_converted(word, "Hans")), folded):
            if match.end() - match.start() == len(word):
                found = found[: match.start()] + word + found[match.end() :]
    ends = accumulate((len(text) for text in texts), initial=0)
    return [found[start:end] for start, end in pairwise(ends)]


def _converted(text: str, script: str) -> str:
    converted: str = _converter(_INTO_SCRIPT[script]).convert(text)
    return converted


@cache
def _converter(conversion: str) -> Any:
    from opencc import OpenCC  # 0.1 s that nothing but Chinese needs

    return OpenCC(conversion)


def are_unspaced(left: str, right: str) -> bool:
    """Whether two words that follow each other are written without a space between."""
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
    """Where words may end in ``text``, which has no spaces: positions before its characters."""
    return _ends(text, WordBreaker(text, "ja"), LineBreaker(text, "ja@lb=strict"))


def line_ends(text: str) -> set[int]:
    """Where a line may end in ``text``: at spaces and, in scripts without, between phrases."""
    if _KANA.search(text):
        return _ends(text, LineBreaker(text, "ja@lb=strict;lw=phrase"))
    return _ends(text, WordBreaker(text, "zh"), LineBreaker(text, "zh@lb=strict"))


def _ends(text: str, *breakers: BaseBreaker) -> set[int]:
    """Where all breakers end a segment, but for numbers and the like."""
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
    """Whether most letters of ``text`` are written from right to left."""
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
