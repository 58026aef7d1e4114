"""setup.py of a project, read without running it: the values that its text has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from envspec import documents


class SetupPy(NamedTuple):
    """What a call of `setup()` says.

    name: empty if the text has none. requires: of install_requires; None: they are computed, empty: there are none.
    """

    name: str
    requires: tuple[str, ...] | None


def read_setup_py(folder: Path) -> SetupPy | None:
    """The setup.py of a folder; None if there is none that can be read, or it does not call `setup()`."""
    try:
        tree = ast.parse(documents.spec_bytes(folder / "setup.py"))
        return _read(tree)
    # The parser has limits of its own, and so has Python's stack.
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _read(tree: ast.Module) -> SetupPy | None:
    assigned = _assigned(tree)
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    calls = [each for each in calls if "setup" in (getattr(each.func, "attr", ""), getattr(each.func, "id", ""))]
    if not calls:
        return None
    call = calls[0]
    given = dict(_keywords(call, assigned))
    name = _value(given.get("name"), assigned)
    requires = _value(given.get("install_requires", ast.List([])), assigned)
    if not isinstance(name, str):
        name = ""
    if not isinstance(requires, list | tuple):
        return SetupPy(name, None)
    return SetupPy(name, tuple(map(str, requires)))


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Names to which the module gives a value once, and does not change it; the others are not known."""
    values: dict[str, ast.expr] = {}
    changed: set[str] = set()
    for node in _of_module(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in values:
                changed.add(name)
            values[name] = node.value
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in values:
            changed.add(node.id)
        elif isinstance(node, ast.AugAssign | ast.Call):
            # `names += more`, `names.append(one)`
            target = node.target if isinstance(node, ast.AugAssign) else getattr(node.func, "value", None)
            if isinstance(target, ast.Name):
                changed.add(target.id)
    return {name: value for name, value in values.items() if name not in changed}


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run with the module: without the bodies of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_module(child)


def _keywords(call: ast.Call, assigned: Mapping[str, ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """The keywords of a call, those of `**settings` among them."""
    for keyword in call.keywords:
        value = _resolved(keyword.value, assigned)
        if keyword.arg is not None:
            yield keyword.arg, value
        elif isinstance(value, ast.Dict):
            for key, each in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, each
        elif isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict":
            yield from ((each.arg, each.value) for each in value.keywords if each.arg)


def _resolved(node: ast.expr, assigned: Mapping[str, ast.expr]) -> ast.expr:
    """What a name stands for, if the module assigns it once; anything else as it is."""
    return assigned.get(node.id, node) if isinstance(node, ast.Name) else node


def _value(node: ast.expr | None, assigned: Mapping[str, ast.expr]) -> object:
    """A literal, or a name of one; None if it is computed."""
    if node is None:
        return None
    try:
        return ast.literal_eval(_resolved(node, assigned))
    except ValueError:
        return None
