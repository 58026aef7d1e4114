"""Markers on `extra`, as Poetry evaluates them: with all extras that are named."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache
from typing import Final

from envspec.names import normalised

_OPERAND: Final = r"""(?:'[^']*'|"[^"]*"|[\w.]+)"""
_TOKEN: Final = re.compile(rf"\s*(\(|\)|(?:and|or)\b|{_OPERAND}\s*(?:[<>=!~]=?=?|not\s+in|in)\s*{_OPERAND})\s*")
_OF_EXTRA: Final = (
    re.compile(r"""extra\s*(?P<operator>[=!]=)\s*['"](?P<name>[^'"]*)['"]"""),
    re.compile(r"""['"](?P<name>[^'"]*)['"]\s*(?P<operator>[=!]=)\s*extra"""),
)
#: Conditions in parentheses within each other: far beyond any real marker.
_DEEPEST: Final = 50


@lru_cache(maxsize=1 << 14)
def without_extras(marker: str, extras: frozenset[str]) -> str | None:
    """A marker without its conditions on `extra`; empty: it always holds, None: never.

    extras: normalised, those that are named. A marker that can't be read stays as it is.
    """
    tokens = _TOKEN.findall(marker)
    is_read = "".join("".join(tokens).split()) == "".join(marker.split())
    if not (is_read and re.search(r"\bextra\b", marker)):
        return marker
    tokens.reverse()
    try:
        found = _either(tokens, extras, 0)
    except ValueError:
        return marker
    if tokens:
        return marker
    if isinstance(found, bool):
        return "" if found else None
    return found


# A condition is its text, or whether it holds if that is known. The next token is the last one of the list.


def _either(tokens: list[str], extras: Set[str], depth: int) -> str | bool:
    """Conditions with `or` between them."""
    found = [_all(tokens, extras, depth)]
    while tokens and tokens[-1] == "or":
        tokens.pop()
        found.append(_all(tokens, extras, depth))
    if True in found:
        return True
    texts = [each for each in found if isinstance(each, str)]
    return " or ".join(texts) if texts else False


def _all(tokens: list[str], extras: Set[str], depth: int) -> str | bool:
    """Conditions with `and` between them."""
    found = [_condition(tokens, extras, depth)]
    while tokens and tokens[-1] == "and":
        tokens.pop()
        found.append(_condition(tokens, extras, depth))
    if False in found:
        return False
    texts = [f"({each})" if " or " in each else each for each in found if isinstance(each, str)]
    return " and ".join(texts) if texts else True


def _condition(tokens: list[str], extras: Set[str], depth: int) -> str | bool:
    """A comparison, or conditions in parentheses.

    Raises:
        ValueError: there is neither.
    """
    first = tokens.pop() if tokens else ""
    if first == "(" and depth < _DEEPEST:
        found = _either(tokens, extras, depth + 1)
        if not tokens or tokens.pop() != ")":
            raise ValueError("a parenthesis is not closed")
        return found
    if first in ("", "(", ")", "and", "or"):
        raise ValueError("there is no condition")
    of_extra = next(filter(None, (form.fullmatch(first) for form in _OF_EXTRA)), None)
    if of_extra is None:
        return first
    return (normalised(of_extra["name"]) in extras) == (of_extra["operator"] == "==")
