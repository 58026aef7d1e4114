"""Markers without what they say of extras and groups.

`extra == "x"` is evaluated as Poetry does: with all extras that are named. `"x" in extras` and `"x" in
dependency_groups` are those of PEP 751.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from envspec.names import normalised

_SELECTED = re.compile(r"\b(?:extras?|dependency_groups)\b")


@lru_cache(maxsize=1 << 14)
def without_extras(marker: str, extras: frozenset[str], groups: frozenset[str] = frozenset()) -> str | None:
    """A marker without its conditions on extras and groups; empty: it always holds, None: never.

    extras, groups: normalised, those that are named. A marker that can't be read stays as it is.
    """
    if not _SELECTED.search(marker):
        return marker
    # A marker is an expression of Python, but for two operators, and for `\\`, which escapes nothing.
    text = marker.strip().replace("~=", "@ ").replace("===", "== ").replace("\\", "/")
    try:
        found = _without(ast.parse(text, mode="eval").body, marker.strip().encode(), extras, groups)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return marker
    if isinstance(found, bool):
        return "" if found else None
    return found


def in_brackets(marker: str) -> str:
    """A marker as a part of an `and`."""
    return f"({marker})" if " or " in marker else marker


def _without(node: ast.expr, marker: bytes, extras: frozenset[str], groups: frozenset[str]) -> str | bool:
    """The text of a condition, or whether it holds if that is known."""
    if isinstance(node, ast.BoolOp):
        is_all = isinstance(node.op, ast.And)
        parts = [_without(each, marker, extras, groups) for each in node.values]
        # One that does not hold decides an `and`, one that holds an `or`.
        if (not is_all) in parts:
            return not is_all
        texts = [each for each in parts if isinstance(each, str)]
        if is_all:
            return " and ".join(map(in_brackets, texts)) or True
        return " or ".join(texts) or False
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        holds = _is_selected(node.left, node.ops[0], node.comparators[0], extras, groups)
        if holds is not None:
            return holds
    return marker[node.col_offset : node.end_col_offset].decode()


def _is_selected(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, extras: frozenset[str], groups: frozenset[str]
) -> bool | None:
    """Whether a condition on extras or groups holds; None for another condition."""
    if isinstance(left, ast.Name) and isinstance(operator, (ast.Eq, ast.NotEq)):
        left, right = right, left
    if not (isinstance(right, ast.Name) and isinstance(left, ast.Constant) and isinstance(left.value, str)):
        return None
    name = normalised(left.value)
    match right.id, operator:
        case "extra", ast.Eq() | ast.NotEq():
            return (name in extras) == isinstance(operator, ast.Eq)
        case "extras", ast.In() | ast.NotIn():
            return (name in extras) == isinstance(operator, ast.In)
        case "dependency_groups", ast.In() | ast.NotIn():
            return (name in groups) == isinstance(operator, ast.In)
    return None
