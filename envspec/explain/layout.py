"""How explanations are laid out: sections, columns, broken lines, sizes and moments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Final

from envspec.models import GpuCode, Platform

_UNITS: Final = (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000))


def size(size_bytes: int) -> str:
    """`899.8 MB`: decimal units, as package indexes show them."""
    for unit, worth in _UNITS:
        if size_bytes >= worth:
            return f"{size_bytes / worth:.1f} {unit}"
    return f"{size_bytes} bytes"


def spoken_moment(value: datetime) -> str:
    return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def section(title: str, lines: Sequence[str]) -> list[str]:
    """The title with its lines below it; nothing without lines."""
    return [title, *(f"  {line}" for line in lines)] if lines else []


def wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    """Lines of a section: two short of `width`."""
    return textwrap.wrap(
        text,
        width - 2,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells padded to the widest of their column, but for the last of a row."""
    table = list(rows)
    count = max(map(len, table), default=0)
    widths = [max((len(row[column]) for row in table if column < len(row)), default=0) for column in range(count)]
    return ["  ".join(cell.ljust(widths[column]) for column, cell in enumerate(row)).rstrip() for row in table]


def spoken_platforms(found: Iterable[Platform]) -> str:
    return ", ".join(platform.value for platform in found)


def gpu_code_rows(codes: Sequence[GpuCode]) -> list[str]:
    return columns(
        (
            f"{code.package} {code.version}",
            *((code.variant,) if code.variant else ()),
            code.platform.value,
            " ".join((*code.sm, *code.ptx)) or "none",
        )
        for code in codes
    )
