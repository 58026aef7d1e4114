"""Frozen values are `msgspec.Struct`s: a class takes 10 us to define instead of a dataclass's 0.4 ms, and each command
defines some 200. What other Pythons run (`verifier`, `conformance`, `io.process`) needs the standard library alone:
dataclasses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import NODEFAULT, Struct, structs

_T = TypeVar("_T")


def defaults_of(kind: type) -> dict[str, Any]:
    """The fields of a Struct or dataclass with their defaults; NODEFAULT for one that is required."""
    if not issubclass(kind, Struct):
        found = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return {name: NODEFAULT if default is dataclasses.MISSING else default for name, default in found.items()}
    names, values = kind.__struct_fields__, kind.__struct_defaults__
    required = len(names) - len(values)
    return dict(zip(names, (*[NODEFAULT] * required, *values), strict=True))


def replace(value: _T, /, **changes: Any) -> _T:
    """A copy of a Struct or dataclass with other values of some fields."""
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    copied: _T = dataclasses.replace(value, **changes)  # type: ignore[type-var]
    return copied
