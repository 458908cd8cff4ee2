"""Personal data that has a form: addresses, numbers of telephones, cards, accounts and persons.

Written in any language; in English as it is spoken too: "john dot smith at example dot com",
"double five", letters one by one. Checks are those of the issuers, by python-stdnum: Luhn (ISO/IEC
7812-1), ISO 13616 for IBANs, and national ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stdnum import iban, luhn
from stdnum.br import cpf
from stdnum.ch import ssn
from stdnum.es import dni, nie
from stdnum.fr import nir
from stdnum.it import codicefiscale
from stdnum.pl import pesel


class PersonalData(StrEnum):
    """What can be redacted; what stands in its place is its value in brackets."""

    EMAIL = "email"
    PHONE = "phone"
    CARD = "card"
    IBAN = "iban"
    NATIONAL_NUMBER = "national_number"
    NAME = "name"
    PLACE = "place"

    @property
    def mark(self) -> str:
        """What is shown instead."""
        return f"[{self}]"


@dataclass(frozen=True, slots=True, order=True)
class PersonalSpan:
    """Personal data in a text: characters ``start`` to ``end``."""

    start: int
    end: int
    kind: PersonalData


_EMAIL = re.compile(r"\w@\w[\w-]*(?:\.[\w-]+)*\.\w{2,}")
"""From the last character before its "@": what else is before it, of the next, is looked for from
there to the left. A pattern of all would read a word without "@" once for each of its characters.
"""
_LOCAL_PART = re.compile(r"[\w.+%-]")
_TOKEN = re.compile(r"\[\w+\]|\+?[^\W_]+(?:['’][^\W_]+)*|[@._-]|\n")


def words_of(text: str) -> frozenset[str]:
    """Return words that a space parts."""
    return frozenset(text.split())


def _numbered(text: str, first: int) -> dict[str, str]:
    """Words, those that mean the same joined by a stroke, and their numbers."""
    numbered = enumerate(text.split(), first)
    return {word: str(value) for value, each in numbered for word in each.split("|")}


_DIGITS = _numbered("zero|zeroes|oh|o|nought one two three four five six seven eight nine", 0)
_TEENS = _numbered(
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 10
)
_TENS = _numbered("twenty thirty forty fifty sixty seventy eighty ninety", 2)
_ROUND = {"hundred": "00", "thousand": "000"}
_HOMOPHONES = {"for": "4", "to": "2", "too": "2", "do": "2"}
"""Before another digit."""
_REPEATED = {"double": 2, "triple": 3, "treble": 3}
_BETWEEN = words_of("dash hyphen space dot point slash then area code um uh plus - . _")
"""May stand inside a number that is spoken."""

_NO_PARTS = words_of("i iban bic ssn nhs dni nif cpf bsn ahv nie pin id tel fax uk us")
"""Capitals beside a number that are none of it."""

_JOINTS = words_of("dot period point underscore dash hyphen plus . _ -")
_AT, _DOTS = words_of("at @"), words_of("dot period point .")
_TOP_LEVELS = words_of(
    "com org net edu gov mil int info biz io ai app dev me tv co uk us ca au nz ie de fr es it pt"
    " nl be ch at se no dk fi pl cz ru cn jp kr in br mx za eu online site shop tech cloud"
)
_NO_LOCAL_PART = words_of(
    "is are was it its it's at to me us them him her you email emails mail address addresses my his"
    " our your the a an on by via reach write contact send use look looked looking find found visit"
    " here and or for please that which as be this works work working arrived available online"
    " there we i he she they in of with from"
)
_MOST_LOCAL_WORDS = 4
_WORDS_A_PART = 2
"""Between two dots, where the "at" of an address was recognised as another word."""

_MOST_DOMAIN_TOKENS = 40
"""Words and points of a spoken domain; those of the Internet have fewer than ten."""

_DOTTED = re.compile(r"\w[\w.-]*")
_DOMAIN = re.compile(rf".*\.(?:{'|'.join(sorted(_TOP_LEVELS))})\b", re.IGNORECASE)
"""Of words with points between them."""
_EMAIL_CUE = re.compile(r"mail|\bwrite|\bcontact|\breach|\bsend", re.IGNORECASE)
_MAIL_HOST = re.compile(r"at|mail\.|yahoo|outlook|icloud|gmx", re.IGNORECASE)
"""In an address that is one word, "johnatexample.com", "johngmail.com": its "at", or a provider."""
_ADDRESS_CUE = re.compile(r"mail(?: address\w*)?(?: is)? (?:\w+ )?$", re.IGNORECASE)
"""After it one word may be an address all the same: "johnatexample.com"."""
_CARD_CUE = re.compile(r"card|visa|amex|american express|credit|debit", re.IGNORECASE)
_PHONE_CUE = re.compile(
    r"phone|\bcall|number|reach|mobile|\bcell|\btel\b|\bfax|\btext|\bring|dial|whatsapp|telefon|"
    r"téléphone|teléfono|anrufen|numéro|número|\bnumero|nummer",
    re.IGNORECASE,
)
_NATIONAL_CUE = re.compile(
    r"social security|\bssn\b|national insurance|\bnhs\b|passport|tax (?:id|number)|national "
    r"(?:id|number)|identity|\bid number|\bdni\b|\bnif\b|insee|pesel|\bcpf\b|aadhaar|\bbsn\b|"
    r"personnummer|\bahv\b|codice fiscale|steuer|licen[cs]e number|sozialversicherung|"
    r"sécurité sociale",
    re.IGNORECASE,
)
_IBAN = re.compile(r"[A-Z]{1,2}\d{10,}")
_IBAN_CUE = re.compile(r"\bib+[aei]?n\b|account number|bank account", re.IGNORECASE)
_CUE_CHARACTERS = 60
"""A word that announces what follows stands so near before it."""

_DATE = re.compile(
    r"(?:\d{1,2}[./-]\d{1,2}[./-](?:\d\d){1,2}"
    r"|\d{4}[./-]\d{1,2}[./-]\d{1,2})"
)
_YEARS = re.compile(r"(?:19|20)\d\d(?:\D+(?:19|20)\d\d)*")
_FEWEST_DIGITS = 6
_THOUSANDS = re.compile(r"\d{1,3}(?:[,.]\d{3})+")

_NO_NUMBERS = (_DATE, _YEARS, _THOUSANDS)


def find_patterns(text: str) -> list[PersonalSpan]:
    """Return all in the text, in order, none inside another."""
    found, behind = [], 0
    for it in _EMAIL.finditer(text):
        start = it.start()
        while start > behind and _LOCAL_PART.match(text, start - 1):
            start -= 1
        behind = it.end()
        found.append(PersonalSpan(start, behind, PersonalData.EMAIL))
    for dotted in _DOTTED.finditer(text):
        domain = _DOMAIN.match(text, dotted.start(), dotted.end())
        before = text, max(0, dotted.start() - _CUE_CHARACTERS), dotted.start()
        if (
            domain
            and _EMAIL_CUE.search(*before)
            and (_MAIL_HOST.search(domain[0]) or _ADDRESS_CUE.search(*before))
        ):
            found.append(PersonalSpan(domain.start(), domain.end(), PersonalData.EMAIL))
    tokens = [_Token(it[0], it.start(), it.end()) for it in _TOKEN.finditer(text)]
    for at, token in enumerate(tokens):
        if token.word in _AT:
            last, first = _after_domain(tokens, at + 1), _before_at(tokens, at)
            if last is not None and first < at:
                spoken = PersonalSpan(tokens[first].start, tokens[last - 1].end, PersonalData.EMAIL)
                found.append(spoken)
    found += (
        it
        for it in _addresses_without_at(tokens)
        if "mail" in text[max(0, it.start - _CUE_CHARACTERS) : it.start].lower()
    )
    for run in _runs(text, tokens):
        kind = _kind(run, text[max(0, run.start - _CUE_CHARACTERS) : run.start])
        if kind is not None:
            found.append(PersonalSpan(run.start, run.end, kind))
    return without_overlaps(found)


def without_overlaps(found: Sequence[PersonalSpan]) -> list[PersonalSpan]:
    """In order; of those that overlap the longer one."""
    chosen: list[PersonalSpan] = []
    for each in sorted(found, key=lambda it: it.start - it.end):
        at = bisect_left(chosen, each.end, key=lambda it: it.start)
        if at == 0 or chosen[at - 1].end <= each.start:
            chosen.insert(at, each)
    return chosen


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        return self.text.lower()


def _addresses_without_at(tokens: Sequence[_Token]) -> Iterator[PersonalSpan]:
    """Yield words joined by two dots or more, a top level last; "at" was recognised as part of a
    word."""
    for last in range(2, len(tokens)):
        if tokens[last].word not in _TOP_LEVELS or tokens[last - 1].word not in _DOTS:
            continue
        first, dots, words = last - 1, 1, 0
        while first > max(0, last - _MOST_DOMAIN_TOKENS) and tokens[first - 1].text != "\n":
            if tokens[first - 1].text == "." and _is_parted(tokens, first, 0):
                break  # a sentence ends
            is_joint = tokens[first - 1].word in _JOINTS
            words = 0 if is_joint else words + 1
            if words > _WORDS_A_PART:
                break
            first -= 1
            dots += tokens[first].word in _DOTS
        while first < last and (
            tokens[first].word in _JOINTS or tokens[first + 1].word not in _JOINTS
        ):
            first += 1
        if dots > 1:
            yield PersonalSpan(tokens[first].start, tokens[last].end, PersonalData.EMAIL)


def _after_domain(tokens: Sequence[_Token], at: int) -> int | None:
    """Return where the domain that begins there is over; None where it is none."""
    ends, words, most = None, 0, min(len(tokens), at + _MOST_DOMAIN_TOKENS)
    while at < most and tokens[at].text != "\n" and words < _MOST_LOCAL_WORDS:
        word = tokens[at].word
        if word in _DOTS:
            following = tokens[at + 1].word if at + 1 < len(tokens) else ""
            if not words or not following.isalnum():
                break
            if following in _TOP_LEVELS:
                ends = at + 2
            at, words = at + 2, 1
        elif ends is not None:
            break
        else:
            at, words = at + 1, words + (word not in _JOINTS)
    return ends


def _before_at(tokens: Sequence[_Token], at: int) -> int:
    """Return where the part before "at" begins: words until one that no such part has."""
    first, words, joined = at, 0, False
    while first > 0 and words < 2 * _MOST_LOCAL_WORDS:
        before = tokens[first - 1]
        if before.text == "\n" or before.text.startswith("["):
            break
        if before.word in _JOINTS:
            joined = True
        elif (
            before.word in _NO_LOCAL_PART
            or (words >= _MOST_LOCAL_WORDS and not joined)
            or (words and not joined and _is_parted(tokens, first))
        ):
            break
        else:
            words, joined = words + 1, False
        first -= 1
    while first < at and tokens[first].word in _JOINTS:
        first += 1
    return first


def _is_parted(tokens: Sequence[_Token], at: int, least: int = 1) -> bool:
    """Return whether more than a space, or ``least`` characters, stands before the token."""
    return tokens[at].start - tokens[at - 1].end > least


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring tokens that spell a number or a code."""

    code: str
    """Capitals and digits."""
    start: int
    end: int
    spoken: bool
    written: str
    """As it stands in the text."""

    @property
    def digits(self) -> str:
        return "".join(filter(str.isdigit, self.code))


def _runs(text: str, tokens: Sequence[_Token]) -> Iterator[_Run]:
    at = 0
    while at < len(tokens):
        parts: list[tuple[str, int]] = []  # what each token adds, and its place
        spoken = False
        while at < len(tokens):
            code, used = _code(tokens, at, bool(parts))
            if not used or (parts and _is_apart(text, tokens, at)):
                break
            spoken = spoken or (bool(code) and tokens[at].word.isalpha() and len(code) < 4)
            parts.append((code, at))
            parts += [("", at + more) for more in range(1, used)]
            at += used
        while parts and not parts[-1][0] and not _completes(tokens, parts):
            parts.pop()
        if parts:
            first, last = tokens[parts[0][1]], tokens[parts[-1][1]]
            start = first.start - (text[max(0, first.start - 1)] in "+(" and first.start > 0)
            code = "".join(each for each, _ in parts)
            yield _Run(code, start, last.end, spoken, text[start : last.end])
        at = max(at, parts[-1][1] + 1 if parts else at + 1)


def _completes(tokens: Sequence[_Token], parts: Sequence[tuple[str, int]]) -> bool:
    """Return whether the last token belongs to the number of the one before: "twenty three"."""
    word = tokens[parts[-1][1]].word
    return len(parts) > 1 and (word in _DIGITS or word in _ROUND or word in _TEENS)


def _is_apart(text: str, tokens: Sequence[_Token], at: int) -> bool:
    between = text[tokens[at - 1].end : tokens[at].start]
    return any(it not in " ,-./()\t–—" for it in between) or len(between) > 3


def _code(tokens: Sequence[_Token], at: int, inside: bool) -> tuple[str, int]:  # noqa: PLR0911
    """Return what a token adds to a code, and how many tokens that takes; 0 where it ends one."""
    token, word = tokens[at], tokens[at].word
    following = tokens[at + 1].word if at + 1 < len(tokens) else ""
    if any(map(str.isdigit, token.text)) and "'" not in token.text:
        return token.text.lstrip("+").upper(), 1
    if word in _REPEATED and (
        following in _DIGITS or (len(following) == 1 and following.isdigit())
    ):
        return _DIGITS.get(following, following) * _REPEATED[word], 2
    if word in _DIGITS and (inside or word not in {"o", "oh"}):
        return _DIGITS[word], 1
    is_digit = following[:1].isdigit() and (inside or len(following) > 2)
    later = next((it.word for it in tokens[at + 1 : at + 4] if it.word not in _HOMOPHONES), "")
    goes_on = inside and (later[:1].isdigit() or later in _DIGITS)
    if word in _HOMOPHONES and (is_digit or goes_on):
        return _HOMOPHONES[word], 1
    if word in _TEENS:
        return _TEENS[word], 1
    if word in _TENS:
        if following in _DIGITS and following not in {"oh", "o", "zero", "nought"}:
            return _TENS[word] + _DIGITS[following], 2
        return _TENS[word] + "0", 1
    if word in _ROUND and inside:
        return _ROUND[word], 1
    if token.text.isupper() and token.text.isascii() and len(token.text) <= 4:
        is_part = inside or (len(word) < 3 and any(map(str.isdigit, following)))
        if is_part and word not in _NO_PARTS:
            return token.text, 1
    if len(word) == 1 and word.isascii() and word.isalpha() and word not in "ai":
        return word.upper(), 1
    if inside and len(word) == 1 and word == "a" and following in _DIGITS:
        return "A", 1
    return "", int(inside and word in _BETWEEN)


def _kind(run: _Run, before: str) -> PersonalData | None:  # noqa: PLR0911
    """Return what a code is, by its checks, the words before it, and its length. Recognisers write
    some digits twice and leave others out: words decide before lengths."""
    digits, code = run.digits, run.code
    if len(digits) < _FEWEST_DIGITS or any(form.fullmatch(run.written) for form in _NO_NUMBERS):
        return None
    if iban.is_valid(code) or (
        len(digits) >= 10 and (_IBAN_CUE.search(before) or _IBAN.match(code))
    ):
        return PersonalData.IBAN
    known = any(re.fullmatch(form, code) and check(code) for form, check in _NATIONAL)
    is_national = known or _SOCIAL_SECURITY.fullmatch(run.written) is not None
    if _NATIONAL_CUE.search(before) or (is_national and (code != digits or "-" in run.written)):
        return PersonalData.NATIONAL_NUMBER
    is_card = 13 <= len(digits) <= 19 and luhn.is_valid(digits)
    if is_card or (len(digits) >= 10 and _CARD_CUE.search(before)):
        return PersonalData.CARD
    if _PHONE_CUE.search(before) or run.written.startswith(("+", "(", "00")):
        return PersonalData.PHONE
    if is_national:
        return PersonalData.NATIONAL_NUMBER
    if len(digits) < 7 or not (run.spoken or len(re.findall(r"\d+", run.written)) > 1):
        return None
    return PersonalData.CARD if len(digits) >= 15 else PersonalData.PHONE


_NATIONAL: tuple[tuple[str, Callable[[str], bool]], ...] = (
    # United Kingdom: National Insurance, which has no check.
    (r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]\d{6}[A-D]", lambda code: True),
    (r"[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]", codicefiscale.is_valid),
    (r"\d{8}[A-Z]", dni.is_valid),
    (r"[XYZ]\d{7}[A-Z]", nie.is_valid),
    (r"[12]\d{14}", nir.is_valid),
    (r"756\d{10}", ssn.is_valid),
    (r"\d{11}", pesel.is_valid),
    (r"\d{11}", cpf.is_valid),
)
_SOCIAL_SECURITY = re.compile(r"(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}")
"""United States; others are found by the words before them."""
