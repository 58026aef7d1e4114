"""The releases of CUDA libraries that an installed torch requires, from its metadata, by the standard library alone.

torch requires NVIDIA's wheels one by one (`nvidia-cudnn-cu12==9.10.2.21; platform_system == "Linux"`), or, from 2.11
on, by extras of `cuda-toolkit`, which requires them. Only `==` says which release it was built with.
Source: metadata of torch 2.4 to 2.15 and of cuda-toolkit 13.0; "Dependency specifiers" of packaging.python.org.
"""

from __future__ import annotations

import ast
import operator
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from envspec.verifier.scan import Distribution, normalised, same_version

_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[(?P<extras>[^]]*)\])?\s*\(?(?P<versions>[^;()]*)\)?\s*(;(?P<marker>.*))?"
)
#: What is followed from torch: NVIDIA's wheels, and its metapackage for them.
_NVIDIA = ("nvidia-", "cuda-toolkit")
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


@dataclass(frozen=True)
class PinnedPackage:
    """A required release. version: `9.10.2.21`, or `13.0.*`."""

    name: str
    version: str

    def allows(self, version: str) -> bool:
        if self.version.endswith(".*"):
            return f"{version}.".startswith(self.version[:-1])
        return same_version(self.version, version.partition("+")[0]) or same_version(self.version, version)


def pins(name: str, installed: Mapping[str, Distribution]) -> list[PinnedPackage]:
    """The releases of NVIDIA's packages that an installed package requires, also through their metapackage."""
    found: dict[str, PinnedPackage] = {}
    queue = [(name, frozenset[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        current, extras = queue.pop()
        if (current, extras) in seen or current not in installed:
            continue
        seen.add((current, extras))
        for line in _requires(installed[current]):
            match = _REQUIREMENT.fullmatch(line)
            if not match or not _applies(match["marker"] or "", extras):
                continue
            required = normalised(match["name"])
            version = re.fullmatch(r"\s*==\s*([^,\s]+)\s*", match["versions"] or "")
            if required.startswith(_NVIDIA):
                if version:
                    found[required] = PinnedPackage(required, version[1])
                queue.append((required, frozenset(re.findall(r"[A-Za-z0-9._-]+", match["extras"] or ""))))
    return [found[each] for each in sorted(found)]


def _requires(one: Distribution) -> list[str]:
    path = Path(one.site, one.folder, "METADATA")
    if not path.is_file():
        return []
    head = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    return [line.partition(":")[2].strip() for line in head.splitlines() if line.startswith("Requires-Dist:")]


def _applies(marker: str, extras: frozenset[str]) -> bool:
    """Whether a marker holds in this Python; false for one that this reader does not know."""
    if not marker.strip():
        return True
    try:
        # Most markers are expressions of Python, too.
        return _holds(ast.parse(marker.strip(), mode="eval").body, extras)
    except (SyntaxError, KeyError):
        return False


def _holds(node: ast.expr, extras: frozenset[str]) -> bool:
    if isinstance(node, ast.BoolOp):
        values = [_holds(each, extras) for each in node.values]
        return any(values) if isinstance(node.op, ast.Or) else all(values)
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        raise SyntaxError(ast.dump(node))
    first, second = ast.unparse(node.left), ast.unparse(node.comparators[0])
    if "extra" in (first, second):
        is_requested = (second if first == "extra" else first).strip("'") in extras
        return is_requested == isinstance(node.ops[0], ast.Eq)
    compare, one, other = _COMPARE[type(node.ops[0])], _value(first), _value(second)
    if "version" in first + second:
        return compare(numbers(one), numbers(other))
    return compare(one, other)


def _value(token: str) -> str:
    """Of a quoted string, or of a variable of this Python."""
    return token.strip("'") if token.startswith("'") else _VALUES[token]()


def numbers(version: str) -> tuple[int, ...]:
    """`9.10.2` -> (9, 10, 2)."""
    return tuple(map(int, re.findall(r"\d+", version)))


_VALUES: Mapping[str, Callable[[], str]] = {
    "platform_system": platform.system,
    "platform_machine": platform.machine,
    "platform_python_implementation": platform.python_implementation,
    "implementation_name": lambda: sys.implementation.name,
    "sys_platform": lambda: sys.platform,
    "os_name": lambda: os.name,
    "python_version": lambda: ".".join(platform.python_version_tuple()[:2]),
    "python_full_version": platform.python_version,
}
