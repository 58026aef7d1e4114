"""The conda half of a LockDiff as text for a terminal, as JSON, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envspec.escaping import markdown, markdown_code
from envspec.lock.diff import LockDiff
from envspec.lock.diff_conda import CondaChange, CondaMove, CondaRow, CondaRowChange
from envspec.lock.diff_shown import arrow, versions, where
from envspec.models import Platform

#: How the moves are counted, in the order in which they are told.
COUNTED: Final = {
    CondaMove.ADDED: "added",
    CondaMove.REMOVED: "removed",
    CondaMove.UP: "up",
    CondaMove.DOWN: "down",
    CondaMove.MOVED: "moved",
    CondaMove.BUILD: "with another build",
    CondaMove.DEPENDS: "with other dependencies",
}


def conda_lines(diff: LockDiff, width: int) -> list[str]:
    """A line for each package, and below it what of its rows does not show in the version."""
    rows = [
        (change.move.value, change.name, versions(change.old, change.new), where(change.platforms, diff))
        for change in diff.conda
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines: list[str] = []
    for row, change in zip(rows, diff.conda, strict=True):
        lines.append("  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
        for platforms, what, old, new in _details(change):
            # A package on one platform has named it on its own line, or nobody has to.
            head = "" if platforms == change.platforms else f"{', '.join(each.value for each in platforms)}: "
            lines += arrow(f"      {head}{what} ", old, new, "", width)
    return lines


def conda_cells(diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for change in diff.conda:
        name = " on ".join(filter(None, (markdown(change.name), where(change.platforms, diff))))
        rows.append((name, change.move.value, markdown_code(change.old), markdown_code(change.new)))
        for platforms, what, old, new in _details(change):
            rows.append(
                (f"{', '.join(each.value for each in platforms)}: {what}", "", markdown_code(old), markdown_code(new))
            )
    return rows


def conda_object(change: CondaChange) -> Mapping[str, Any]:
    return {
        "change": change.move.value,
        "name": change.name,
        "old": change.old,
        "new": change.new,
        "platforms": [platform.value for platform in change.platforms],
        "rows": [
            {
                "platform": row.platform.value,
                "old": _row_object(row.old, change.move),
                "new": _row_object(row.new, change.move),
            }
            for row in change.rows
        ],
    }


def _row_object(row: CondaRow | None, move: CondaMove) -> Mapping[str, Any] | None:
    if row is None:
        return None
    data = {"build": row.build, "channel": row.channel, "filename": row.filename, "sha256": row.sha256}
    if move is CondaMove.DEPENDS:
        return {**data, "depends": row.depends, "constrains": row.constrains}
    return data


def _details(change: CondaChange) -> list[tuple[tuple[Platform, ...], str, str, str]]:
    """(platforms, what, old, new) of what differs in the rows; platforms on which the same does together."""
    found: dict[tuple[str, str, str], list[Platform]] = {}
    for row in change.rows:
        for detail in _row_details(change.move, row):
            found.setdefault(detail, []).append(row.platform)
    return [(tuple(platforms), *detail) for detail, platforms in found.items()]


def _row_details(move: CondaMove, row: CondaRowChange) -> list[tuple[str, str, str]]:
    old, new = row.old, row.new
    if old is None or new is None:
        return []
    told: list[tuple[str, str, str]] = []
    # Another version has another build, and that says nothing but where it is one for another CUDA, or for none.
    if move is CondaMove.BUILD or row.changes_variant:
        told.append(("build", old.build, new.build))
    if old.channel != new.channel:
        told.append(("channel", old.channel, new.channel))
    if move is CondaMove.DEPENDS:
        told += [
            ("depends", *_without_shared(old.depends, new.depends)),
            ("constrains", *_without_shared(old.constrains, new.constrains)),
        ]
    return [(what, before, after) for what, before, after in told if before != after]


def _without_shared(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    return (
        ", ".join(text for text in old if text not in new) or "(none)",
        ", ".join(text for text in new if text not in old) or "(none)",
    )
