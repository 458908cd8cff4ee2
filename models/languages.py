"""The languages that a transcriber may know, by BCP 47."""

from __future__ import annotations

_WHISPER = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he "
    "hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne "
    "nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk "
    "ur uz vi yi yo yue zh"
)
SPOKEN_LANGUAGES = frozenset(_WHISPER.split())
"""Those of Whisper's tokenizers; a test holds them to faster-whisper's."""

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
