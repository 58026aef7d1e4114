"""The pages about errors: data/errors/CODE.md, which are part of the documentation too."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from envspec.data import DATA
from envspec.errors import UsageError
from envspec.spec.errors import nearest

PAGES: Final = DATA / "errors"
#: Comments are for the tests that run the examples; readers need the names of files.
_FILE: Final = re.compile(r"<!-- file: (.*?) -->\n")
_COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LINK: Final = re.compile(r"\[([^]]+)\]\([^)\s]+\)")


class ErrorPage(NamedTuple):
    """summary: its first sentences. text: Markdown, without links, which lead to other pages of the documentation."""

    code: str
    exit_code: int
    summary: str
    text: str


def error_page(code: str) -> ErrorPage:
    """The page of an error.

    Raises:
        UsageError: there is no such code.
    """
    codes = _codes()
    if code not in codes:
        near = nearest(code, codes)
        message = f"there is no error {code!r}"
        if near:
            message += f"; did you mean {near!r}?"
        raise UsageError(message, hint="`envspec explain-error` lists all codes")
    return _read(code)


def error_pages() -> list[ErrorPage]:
    """All of them, by code."""
    return list(map(_read, _codes()))


def _codes() -> list[str]:
    return sorted(path.stem for path in PAGES.glob("*.md"))


def _read(code: str) -> ErrorPage:
    text = _FILE.sub(r"`\1`:\n\n", (PAGES / f"{code}.md").read_text(encoding="utf-8"))
    text = _LINK.sub(r"\1", _COMMENT.sub("", text))
    summary, _, exit_code = " ".join(text.split("\n\n")[1].split()).rpartition(" Exit code ")
    return ErrorPage(code, int(exit_code.rstrip(".")), summary, text)
