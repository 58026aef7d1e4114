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
    files: texts in the file that end in `.txt`: of requirements that it may read.
    """

    name: str
    requires: tuple[str, ...] | None
    files: tuple[str, ...]


def read_setup_py(folder: Path) -> SetupPy | None:
    """The setup.py of a folder; None if there is none that can be read, or it does not call `setup()`."""
    try:
        tree = ast.parse(documents.spec_bytes(folder / "setup.py"))
        return _read(tree)
    # The parser has limits of its own, and so has Python's stack.
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _read(tree: ast.Module) -> SetupPy | None:
    assigned = dict(_assigned(tree))
    call = next((each for each in ast.walk(tree) if isinstance(each, ast.Call) and _is_setup(each.func)), None)
    if call is None:
        return None
    given = dict(_keywords(call, assigned))
    name = _value(given.get("name"), assigned)
    requires = _value(given.get("install_requires", ast.List([])), assigned)
    texts = [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return SetupPy(
        name if isinstance(name, str) else "",
        tuple(map(str, requires)) if isinstance(requires, list | tuple) else None,
        tuple(dict.fromkeys(each for each in texts if each.endswith(".txt"))),
    )


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that the module gives a value once; those with several are not known."""
    found = [
        (each.targets[0].id, each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
    ]
    names = [name for name, _ in found]
    return ((name, value) for name, value in found if names.count(name) == 1)


def _is_setup(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "setup"


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
