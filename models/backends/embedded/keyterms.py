"""Key terms in a transcript of a decoder whose vocabulary cannot be told of them. Pure.

What was heard is compared with each term by sound: the phones of neighbouring words against the
phones of the term (Levenshtein distance; sounds of one class count half). Where they are nearly
the same, the term was probably said, and takes the words' place. Words that the decoder was sure
of stay, unless they sound exactly like the term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.contracts import Word

MAX_DISTANCE = 0.3
"""Phones that differ, by the length of the longer. Of 0.2 to 0.4 tried on 15 recordings, 0.3 mended
the most words with terms that are said in them; a hundred names that are not put three wrong words
into their 360."""
_SHORT_PHONES, _SHORT_DISTANCE = 6, 0.2
"""Terms of up to so many phones sound like more of what is said, and must be nearer."""
SURE = 0.9
"""Words with at least this confidence on average are only replaced where the sound is the same."""
MIN_PHONES = 4
"""Shorter terms sound like too much else; they are taken only at no distance."""
_MORE_WORDS = 2
"""How many words more than it has a term may have been heard as."""

_CLASSES = (
    "AA AE AH AO EH UH",
    "IH IY EY AH",
    "AO OW UW UH AW",
    "AY EY",
    "ER R",
    "OY OW",
    "P B T D K G",
    "T D DH TH",
    "CH JH SH ZH",
    "S Z SH",
    "F V TH DH",
    "M N NG",
    "L W",
    "IY Y",
)
"""Phones that are easily taken for each other (ARPAbet)."""
_ALIKE = frozenset((a, b) for group in _CLASSES for a in group.split() for b in group.split())

_SPELLING_TABLE = (
    "tch:CH igh:AY sch:SH ough:AO tion:SH_AH_N ck:K ch:CH sh:SH th:TH ph:F wh:W qu:K_W ng:NG"
    " ee:IY ea:IY oo:UW ou:AW ow:OW ai:EY ay:EY oy:OY oi:OY au:AO aw:AO ie:IY ei:AY ey:IY er:ER"
    " ir:ER ur:ER ar:AA_R or:AO_R ll:L ss:S tt:T nn:N mm:M pp:P rr:R dd:D ff:F gg:G bb:B zz:Z"
    " cc:K ce:S ci:S_IH cy:S_IY x:K_S a:AE b:B c:K d:D e:EH f:F g:G h:HH i:IH j:JH k:K l:L m:M"
    " n:N o:AA p:P q:K r:R s:S t:T u:AH v:V w:W y:IY z:Z"
)
_SPELLINGS = dict(entry.split(":") for entry in _SPELLING_TABLE.split())
"""How letters sound in English names, roughly: for words that the dictionary lacks."""

Phones = tuple[str, ...]
Pronounce = Callable[[str], str | None]
"""A word's phones by the dictionary, apart by spaces; None where it lacks the word."""


@dataclass(frozen=True, slots=True)
class _Term:
    words: tuple[str, ...]
    phones: Phones


def with_keyterms(
    words: Sequence[Word], keyterms: Sequence[str], pronounce: Pronounce
) -> tuple[Word, ...]:
    """The words with the key terms that were probably said put in; in order, not overlapping."""
    terms = [_term(keyterm, pronounce) for keyterm in keyterms if keyterm.split()]
    sounds = [_phones(word.text, pronounce) for word in words]
    found: list[Word] = []
    at = 0
    while at < len(words):
        match = _best_match(words[at:], sounds[at:], terms)
        if match is None:
            found.append(words[at])
            at += 1
        else:
            term, count = match
            found.extend(_said(term, words[at : at + count]))
            at += count
    return tuple(found)


def sound_distance(one: Phones, other: Phones) -> float:
    """0 the same sound, 1 nothing alike."""
    previous = [float(n) for n in range(len(other) + 1)]
    for row, left in enumerate(one, start=1):
        current = [float(row)]
        for column, right in enumerate(other, start=1):
            replaced = previous[column - 1] + _difference(left, right)
            current.append(min(replaced, previous[column] + 1, current[-1] + 1))
        previous = current
    return previous[-1] / max(1, len(one), len(other))


def _difference(left: str, right: str) -> float:
    if left == right:
        return 0.0
    return 0.5 if (left, right) in _ALIKE else 1.0


def _best_match(
    words: Sequence[Word], sounds: Sequence[Phones], terms: Sequence[_Term]
) -> tuple[_Term, int] | None:
    """The term that the words begin with, and how many of them it takes."""
    best: tuple[float, int, _Term] | None = None
    for term in terms:
        for count in range(1, min(len(words), len(term.words) + _MORE_WORDS) + 1):
            heard = tuple(phone for sound in sounds[:count] for phone in sound)
            distance = _acceptable_distance(term, heard, words[:count])
            if distance is not None and (best is None or distance < best[0]):
                best = distance, count, term
    return None if best is None else (best[2], best[1])


def _acceptable_distance(term: _Term, heard: Phones, words: Sequence[Word]) -> float | None:
    sure = sum(word.confidence for word in words) / len(words) >= SURE
    allowed = 0.0 if sure else _allowed_distance(term)
    longer = max(len(term.phones), len(heard))
    if abs(len(term.phones) - len(heard)) > allowed * longer:
        return None
    # Each phone that only one side has costs at least the half of a replacement.
    common = sum((Counter(term.phones) & Counter(heard)).values())
    if (longer - common) / 2 > allowed * longer:
        return None
    distance = sound_distance(term.phones, heard)
    return distance if distance <= allowed else None


def _allowed_distance(term: _Term) -> float:
    if len(term.phones) < MIN_PHONES:
        return 0.0
    return _SHORT_DISTANCE if len(term.phones) <= _SHORT_PHONES else MAX_DISTANCE


def _said(term: _Term, words: Sequence[Word]) -> list[Word]:
    """The term's words over the time of those they replace, by the number of their letters."""
    start, length = words[0].start_seconds, words[-1].end_seconds - words[0].start_seconds
    letters = [len(word) for word in term.words]
    ends = [start + length * sum(letters[: n + 1]) / sum(letters) for n in range(len(letters))]
    confidence = sum(word.confidence for word in words) / len(words)
    return [
        Word(text, begin, end, confidence)
        for text, begin, end in zip(term.words, [start, *ends], ends, strict=False)
    ]


def _term(keyterm: str, pronounce: Pronounce) -> _Term:
    words = tuple(keyterm.split())
    return _Term(words, tuple(phone for word in words for phone in _phones(word, pronounce)))


def _phones(word: str, pronounce: Pronounce) -> Phones:
    plain = "".join(c for c in word.lower() if c.isalpha() or c == "'")
    known = pronounce(plain)
    return tuple(known.split()) if known else tuple(_spelled(plain))


def _spelled(word: str) -> list[str]:
    phones: list[str] = []
    rest = word.removesuffix("e") if len(word) > 3 else word
    while rest:
        size = next((n for n in (4, 3, 2, 1) if rest[:n] in _SPELLINGS), None)
        if size is not None:
            phones += _SPELLINGS[rest[:size]].split("_")
        rest = rest[size or 1 :]
    return phones
