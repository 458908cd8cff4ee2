"""HTML from nested calls. Text is escaped unless it is Html already, so nothing slips through."""

from __future__ import annotations

import re
from html import escape

_VOID = frozenset({"meta", "link", "input", "br"})
_CODE = re.compile(r"`([^`]+)`")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Html | None
Attribute = str | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element; ``class_`` is ``class``, ``data_x`` is ``data-x``, None leaves out."""
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Several nodes as one."""
    return Html("".join(_node(child) for child in children if child is not None))


def prose(text: str) -> Html:
    """Text with `code` in backticks."""
    parts = _CODE.split(text)
    return join(*(tag("code", part) if n % 2 else part for n, part in enumerate(parts)))


def paragraphs(text: str) -> Html:
    """Prose with empty lines between its paragraphs."""
    return join(*(tag("p", prose(part)) for part in text.split("\n\n")))


def table(headings: list[str], rows: list[list[Child]], **attributes: Attribute) -> Html:
    """A table that scrolls by itself where it is too wide."""
    head = tag("tr", *(tag("th", heading, scope="col") for heading in headings))
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    shown = tag("table", tag("thead", head), tag("tbody", *body), **attributes)
    return tag("div", shown, class_="scroll")


def code_block(text: str, language: str = "") -> Html:
    """Preformatted text."""
    return tag("pre", tag("code", text, class_=language or None), tabindex="0")


def page(title: str, *body: Child, nav: Html) -> Html:
    """A whole document: navigation on the side, content, bundled assets only."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href="/docs/assets/docs.css"),
        tag("script", src="/docs/assets/docs.js", defer=True),
    )
    content = tag(
        "body",
        tag("a", "Skip to content", class_="skip", href="#content"),
        tag("nav", nav, aria_label="Reference"),
        tag("main", *body, id="content"),
    )
    return Html(f"<!doctype html>\n{tag('html', head, content, lang='en')}\n")


def _node(child: Child) -> str:
    return child if isinstance(child, Html) else escape(str(child))


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    return f" {shown}" if value is True else f' {shown}="{escape(str(value))}"'
