"""Rows that a spec adds to the facts under `[facts]`.

The spec's parser has checked keys, types and forms against the row types before; here stays what it can't see, and
what a caller without a spec could get wrong.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
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


def added_rows(table: str, listed: Sequence[Mapping[str, Any]]) -> tuple[rows.Row, ...]:
    """The rows of one table of a spec's `[facts]`.

    Raises:
        BadFact: an unknown table or key, a missing key, or GPU code that is none.
    """
    kind = ADDABLE.get(table)
    if kind is None:
        near = get_close_matches(table, ADDABLE, n=1)
        hint = f"did you mean [[facts.{near[0]}]]?" if near else f"tables: {', '.join(sorted(ADDABLE))}"
        raise BadFact(f"[facts] has no table `{table}`", hint=hint)
    return tuple(_row(kind, raw, f"facts.{table}[{number}]") for number, raw in enumerate(listed))


def _row(kind: type[rows.Row], raw: Mapping[str, Any], where: str) -> rows.Row:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    filled = {"source": "the spec's [facts]", **raw}
    for key in filled:
        if key not in fields:
            near = get_close_matches(key, fields, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"keys: {', '.join(sorted(fields))}"
            raise BadFact(f"{where}: unknown key `{key}`", hint=hint)
    for name, field in fields.items():
        if name not in filled and field.default is field.default_factory is dataclasses.MISSING:
            raise BadFact(f"{where}: `{name}` is missing", hint="envspec/data has rows to start from")
    row = build(kind, filled)
    if isinstance(row, rows.TorchRelease):
        for code in (code for held in row.gpu_code.values() for code in held):
            if not re.fullmatch(r"(sm|compute)_\d{2,3}[af]?", code):
                raise BadFact(
                    f"{where}: `{code}` in gpu_code is no GPU code", hint='write it like "sm_90", "compute_120"'
                )
    return row
