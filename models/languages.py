"""The languages that a transcriber may know, by BCP 47."""

from __future__ import annotations

import unicodedata

_WHISPER = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he "
    "hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne "
    "nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk "
    "ur uz vi yi yo yue zh"
)
SPOKEN_LANGUAGES = frozenset(_WHISPER.split())
"""Those of Whisper's tokenizers; a test holds them to faster-whisper's."""

_M2M = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
_OTHERWISE = {"jw": "jv", "nn": "no", "yue": "zh"}


def written_language(tag: str) -> str:
    """The language of a BCP 47 tag as M2M100 names it."""
    primary = primary_language(tag)
    return _OTHERWISE.get(primary, primary)


WRITTEN_LANGUAGES = frozenset(_M2M.split())
"""Those of M2M100's tokenizer; a test holds them to it."""

_SCRIPTS = {
    "ARABIC": "ar fa ps sd ur",
    "ARMENIAN": "hy",
    "BENGALI": "as bn",
    "CJK": "ja yue zh",
    "CYRILLIC": "ba be bg kk mk mn ru sr tg tt uk uz",
    "DEVANAGARI": "hi mr ne sa",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he yi",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "sr uz",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo",
}
"""How the names of a script's letters begin in Unicode: the languages written in it. All others are
written in Latin letters alone."""


def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _scripts_of(language: str) -> set[str]:
    return {name for name, written in _SCRIPTS.items() if language in written.split()} or {"LATIN"}


def is_in_another_script(text: str, language: str) -> bool:
    """Whether most letters are of a script that the language is not written in; in Latin ones are
    names, and what is quoted."""
    others = _SCRIPTS.keys() - _scripts_of(language) - {"LATIN"}
    letters = [each for each in text if each.isalpha()]
    return 2 * sum(_script_of(each) in others for each in letters) > len(letters)


def letter_beginnings(language: str) -> frozenset[bytes]:
    """The first one and two bytes in UTF-8 of the letters that the language is written in."""
    own = _scripts_of(language)
    letters = [each for each in map(chr, range(0xD800)) if _script_of(each) in own]
    return frozenset(each.encode()[:size] for each in letters for size in (1, 2))


SAME_LANGUAGES = {
    "cmn": "zh",
    "fil": "tl",
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "jv": "jw",
    "nb": "no",
}
"""Other subtags of the IANA registry for languages that Whisper names otherwise."""


def primary_language(tag: str) -> str:
    """The language of a BCP 47 tag as Whisper names it: ``pt`` of ``pt-BR``, ``no`` of ``nb``."""
    primary = tag.split("-", maxsplit=1)[0].lower()
    return SAME_LANGUAGES.get(primary, primary)
