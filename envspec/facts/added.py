"""Rows that a spec adds to the facts under `[facts]`: checked key by key, with what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from envspec.errors import UsageError
from envspec.facts import rows

R = TypeVar("R", bound=rows.Row)

#: Tables that a spec may add to, as `[[facts.<table>]]`.
ADDABLE: Final[Mapping[str, type[rows.Row]]] = {
    "torch": rows.TorchRelease,
    "gpu_code": rows.GpuCodeRow,
    "edge": rows.EdgeRow,
    "gpu": rows.Gpu,
    "digest": rows.DigestRow,
    "driver": rows.DriverRow,
    "image": rows.ImageRow,
    "parts": rows.PartsRow,
    "python": rows.PythonRow,
    "member": rows.MemberRow,
}


class BadFact(UsageError):
    """A row under a spec's `[facts]` that is not one."""


def build(kind: type[R], raw: Mapping[str, Any]) -> R:
    """A row from its TOML table: arrays become tuples, everything else stays."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return kind(**values)


def added_rows(table: str, listed: Any) -> tuple[rows.Row, ...]:
    """The rows of one table of a spec's `[facts]`.

    Raises:
        BadFact: an unknown table or key, a missing key, or a value of the wrong type.
    """
    kind = ADDABLE.get(table)
    if kind is None:
        near = get_close_matches(table, ADDABLE, n=1)
        hint = f"did you mean [[facts.{near[0]}]]?" if near else f"tables: {', '.join(sorted(ADDABLE))}"
        raise BadFact(f"[facts] has no table `{table}`", hint=hint)
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise BadFact(f"facts.{table} is not a list of rows", hint=f"write [[facts.{table}]]")
    return tuple(_checked(kind, raw, f"facts.{table}[{number}]") for number, raw in enumerate(listed))


def _checked(kind: type[rows.Row], raw: Any, where: str) -> rows.Row:
    if not isinstance(raw, Mapping):
        raise BadFact(f"{where} is not a table", hint=f"write [[{where.partition('[')[0]}]] and its keys below it")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields:
            near = get_close_matches(key, fields, n=1)
            raise BadFact(
                f"{where}: unknown key `{key}`",
                hint=f"did you mean `{near[0]}`?" if near else f"keys: {', '.join(sorted(fields))}",
            )
    filled = {"source": "the spec's [facts]", **raw}
    for name, field in fields.items():
        if name not in filled:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise BadFact(f"{where}: `{name}` is missing", hint=f"as in envspec/data: {name} = ...")
        elif not _fits(filled[name], str(field.type)):
            raise BadFact(f"{where}: `{name}` is not {_spoken(str(field.type))}", hint=f"found {filled[name]!r}")
    return build(kind, filled)


#: Annotation of a row's field -> what the value must be. The rows' annotations are strings (PEP 563).
_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "str": (lambda value: isinstance(value, str), "a string"),
    "int": (lambda value: isinstance(value, int), "a number"),
    "date": (lambda value: isinstance(value, date), "a date"),
    "datetime": (lambda value: isinstance(value, datetime) and value.tzinfo is not None, "a moment with its offset"),
    "tuple[str, ...]": (lambda value: _all(value, str), "a list of strings"),
    "tuple[int, ...]": (lambda value: _all(value, int), "a list of numbers"),
    "Mapping[str, Sequence[str]]": (
        lambda value: isinstance(value, Mapping) and all(_all(held, str) for held in value.values()),
        "a table of variant = list of GPU code",
    ),
    "Mapping[str, str]": (
        lambda value: isinstance(value, Mapping) and _all(list(value.values()), str),
        "a table of platform = variant",
    ),
}


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, kind) for item in value)


def _fits(value: Any, annotation: str) -> bool:
    return _CHECKS[annotation.removesuffix(" | None")][0](value)


def _spoken(annotation: str) -> str:
    return _CHECKS[annotation.removesuffix(" | None")][1]
