"""Writing of two cuts compared: which lines of the same shots are gone, new or other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Indel

from pipelines.types import ScreenText

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
