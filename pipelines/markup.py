"""Elements of XML that strangers wrote, in bounded memory; standard library only.

A document type is refused where the parser meets it, in whatever encoding, so there are no entities
that could grow; ElementTree would expand them, and keep a tree of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

MOST_LEVELS = 64
"""Elements within each other."""
MOST_ELEMENTS = 100_000
"""A page of a bucket's list has some ten thousand."""
MOST_TEXT = 16 << 10
"""Characters of an element's text that are kept; those behind them are dropped."""
_PIECE_BYTES = 64 << 10
"""Parsed at once; no tag may be longer, which bounds its attributes too."""


class MarkupError(ValueError):
    """It is no XML in UTF-8, has a document type, is nested too deep or has too many elements."""


def elements(data: bytes) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each element, names without their namespaces, and its text, at its end.

    The text of an element with others in it is what follows the last of them. Raises MarkupError.
    """
    try:
        is_text = "\0" not in data.decode()
    except UnicodeDecodeError:
        is_text = False
    # The parser would read UTF-16 as such, whatever encoding it is given.
    if not is_text:
        raise MarkupError("it is not UTF-8")
    path: list[str] = []
    texts: list[str] = []
    ended: list[tuple[tuple[str, ...], str]] = []
    left = MOST_ELEMENTS

    def start(name: str, _: dict[str, str]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise MarkupError("it has too many elements")
        if len(path) == MOST_LEVELS:
            raise MarkupError("it is nested too deep")
        # Some writers have another namespace, or none.
        path.append(name.rpartition(" ")[2])
        texts.clear()

    def end(_: str) -> None:
        ended.append((tuple(path), "".join(texts)))
        path.pop()
        texts.clear()

    def add_text(text: str) -> None:
        texts.append(text[: MOST_TEXT - sum(map(len, texts))])

    def refuse(*_: object) -> NoReturn:
        raise MarkupError("it has a document type")

    parser = expat.ParserCreate("utf-8", " ")
    parser.buffer_text = True
    parser.buffer_size = MOST_TEXT
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    # In pieces: what a handler raises ends the parsing only after the piece.
    for at in range(0, len(data) + 1, _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]
        try:
            parser.Parse(piece, len(piece) < _PIECE_BYTES)
        except expat.ExpatError as error:
            raise MarkupError(str(error)) from error
        if at + len(piece) - parser.CurrentByteIndex > _PIECE_BYTES:
            raise MarkupError("it has a tag without end")
        yield from ended
        ended.clear()
