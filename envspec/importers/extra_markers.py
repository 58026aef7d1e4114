"""Markers on `extra`, as Poetry evaluates them: with all extras that are named."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from envspec.names import normalised


@lru_cache(maxsize=1 << 14)
def without_extras(marker: str, extras: frozenset[str]) -> str | None:
    """A marker without its conditions on `extra`; empty: it always holds, None: never.

    extras: normalised, those that are named. A marker that can't be read stays as it is.
    """
    if not re.search(r"\bextra\b", marker):
        return marker
    # A marker is an expression of Python, but for two operators.
    text = marker.strip().replace("~=", "@ ").replace("===", "== ")
    try:
        found = _without(ast.parse(text, mode="eval").body, marker.strip().encode(), extras)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return marker
    if isinstance(found, bool):
        return "" if found else None
    return found


def in_brackets(marker: str) -> str:
    """A marker as a part of an `and`."""
    return f"({marker})" if " or " in marker else marker


def _without(node: ast.expr, marker: bytes, extras: frozenset[str]) -> str | bool:
    """The text of a condition, or whether it holds if that is known."""
    if isinstance(node, ast.BoolOp):
        is_all = isinstance(node.op, ast.And)
        parts = [_without(each, marker, extras) for each in node.values]
        # One that does not hold decides an `and`, one that holds an `or`.
        if (not is_all) in parts:
            return not is_all
        texts = [each for each in parts if isinstance(each, str)]
        if is_all:
            return " and ".join(map(in_brackets, texts)) or True
        return " or ".join(texts) or False
    name = _extra_of(node)
    if name is not None and isinstance(node, ast.Compare):
        return (normalised(name) in extras) == isinstance(node.ops[0], ast.Eq)
    return marker[node.col_offset : node.end_col_offset].decode()


def _extra_of(node: ast.expr) -> str | None:
    """The name in `extra == 'name'`, either way round, or in the same with `!=`; None for another condition."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return None
    if len(node.comparators) != 1:
        return None
    for side, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
        is_extra = isinstance(side, ast.Name) and side.id == "extra"
        if is_extra and isinstance(other, ast.Constant) and isinstance(other.value, str):
            return other.value
    return None
