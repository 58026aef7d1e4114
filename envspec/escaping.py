"""Text of others (indexes, locks, registries, wheels, git) where it leaves envspec: for a terminal, JSON or Markdown.

Such text is escaped here once, where it is printed, and not where it is read: a message may hold any of it.
"""

from __future__ import annotations

import re
from typing import Final

# Patterns are compiled when they are needed: every command imports this.
# Control characters but tab and line feed, halves of surrogate pairs, and what XML 1.0 has no place for (section 2.2).
# Marks that turn the direction of the text around it (Unicode's UAX 9) could show a log in another order than it has.
_UNSEEN: Final = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
# What CommonMark and GitHub's tables give a meaning in a line, and at its beginning; `<` and `&` are escaped before.
_MARKS: Final = r"[\\`*_\[\]|~$]|^[#+=-]|^\d{1,9}(?=[.)] )"
# What GitHub makes links of in the text of a page, after all escapes are read: a mention, an issue (`closes #1`) or an
# address. A space of no width ends each.
_ACTIVE: Final = r"(?i)(?<![A-Za-z0-9_])@(?=[A-Za-z0-9])|#(?=\d)|\bGH-(?=\d)|(?<=:)/(?=/)|\bwww(?=\.)"
_APART: Final = "&#8203;"


def visible(text: str) -> str:
    """Text that a terminal, XML and HTML show as it is: what none of them may hold is written as an escape, `\\x1b`.

    A carriage return, with which programs write over a line, begins a new one.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return re.sub(_UNSEEN, _escape, text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """`visible` on one line."""
    return " ".join(visible(text).split())


def blanked(text: str) -> str:
    """Text in which all that can't be printed is a blank, line feeds too: for a part of a line."""
    return "".join(each if each.isprintable() else " " for each in text)


def cut(text: str, limit: int) -> str:
    """`text`, or its beginning and an ellipsis, with `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}\u2026"


def excerpt(value: object, limit: int = 200) -> str:
    """The text of a registry or an engine for a message: a part of a line."""
    return blanked(cut(str(value), limit))


def visible_json(text: str) -> str:
    """A JSON document of the same values, in which nothing is unseen: such characters are in strings alone."""
    return re.sub(_UNSEEN, lambda found: f"\\u{ord(found[0]):04x}", text)


def html(text: str) -> str:
    """`text` without a tag or an entity, for an element of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown(text: str) -> str:
    """Text in a line of Markdown that says itself and nothing else: no markup, cell, mention, issue or link."""
    marked = re.sub(_MARKS, _escape_mark, html(one_line(text)))
    return re.sub(_ACTIVE, lambda found: f"{found[0]}{_APART}", marked)


def markdown_code(text: str | None) -> str:
    """A cell or a word of Markdown in which nothing is read as such; a bar is a cell's end even in code."""
    # A backslash before a bar's own would be its pair.
    bare = one_line(text or "").replace("\\|", "\\ |").replace("|", "\\|")
    if not bare:
        return ""
    longest = max(map(len, re.findall("`+", bare)), default=0)
    if not longest:
        return f"`{bare}`"
    fence = "`" * (longest + 1)
    return f"{fence} {bare} {fence}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"


def _escape_mark(mark: re.Match[str]) -> str:
    # Of a number it is the point behind it that makes a list.
    if mark[0].isdecimal():
        return f"&#{ord(mark[0][0])};{mark[0][1:]}"
    return f"\\{mark[0]}"
