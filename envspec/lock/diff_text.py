"""A LockDiff as text for a terminal, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envspec.lock.diff import FileChange, LockDiff, Move, PackageChange, ValueChange
from envspec.model import Platform

_SHOWN: Final = 12  # hexadecimal digits of a hash that people compare
_COUNTED: Final = {
    Move.ADDED: "added",
    Move.REMOVED: "removed",
    Move.UP: "up",
    Move.DOWN: "down",
    Move.MOVED: "moved",
    Move.FILE: "with another file",
}


def as_text(diff: LockDiff) -> str:
    """Aligned lines for a terminal; ends with a line feed."""
    if diff.is_empty:
        return f"{_title(diff)}: no differences\n"
    lines = [f"{_title(diff)}: {_summary(diff)}"]
    for heading, rows in (
        ("environment", [_value_row(change, diff) for change in diff.environment]),
        ("packages", [row for change in diff.packages for row in _package_rows(change, diff)]),
        ("decisions", [_value_row(change, diff) for change in diff.decisions]),
    ):
        if rows:
            lines += ["", heading, *_aligned(rows)]
    return "\n".join(lines) + "\n"


def as_json(diff: LockDiff) -> str:
    """One object: `same`, `old`, `new`, `platforms`, `environment`, `packages`, `decisions`; ends with a line feed."""
    data = {
        "same": diff.is_empty,
        "old": diff.old_name,
        "new": diff.new_name,
        "platforms": [platform.value for platform in diff.platforms],
        "environment": [_value_object(change) for change in diff.environment],
        "packages": [_package_object(change) for change in diff.packages],
        "decisions": [_value_object(change) for change in diff.decisions],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def as_markdown(diff: LockDiff) -> str:
    """Headings and tables that fit into a pull request's description; ends with a line feed."""
    if diff.is_empty:
        return f"### {_title(diff)}\n\nNo differences.\n"
    parts = [f"### {_title(diff)}", _capital(_summary(diff)) + "."]
    if diff.environment:
        parts.append(_markdown_table(("environment", "old", "new", "why"), _value_cells(diff.environment, diff)))
    if diff.packages:
        parts.append(_markdown_table(("package", "", "old", "new"), _package_cells(diff)))
    if diff.decisions:
        parts.append(_markdown_table(("decision", "old", "new", "why"), _value_cells(diff.decisions, diff)))
    return "\n\n".join(parts) + "\n"


def _title(diff: LockDiff) -> str:
    return diff.new_name if diff.old_name == diff.new_name else f"{diff.old_name} -> {diff.new_name}"


def _summary(diff: LockDiff) -> str:
    counts = Counter(change.move for change in diff.packages)
    parts = [f"{counts[move]} {words}" for move, words in _COUNTED.items() if counts[move]]
    told = [f"packages: {', '.join(parts)}" if parts else "no package differs"]
    others = len(diff.environment) + len(diff.decisions)
    return "; ".join([*told, *([f"{others} other {'change' if others == 1 else 'changes'}"] if others else [])])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(platforms: Sequence[Platform], diff: LockDiff) -> str:
    if not platforms or tuple(platforms) == diff.platforms:
        return ""
    return ", ".join(platform.value for platform in platforms)


def _value_row(change: ValueChange, diff: LockDiff) -> tuple[str, ...]:
    note = "; ".join(filter(None, (_where(change.platforms, diff), change.why)))
    return change.what, _arrow(change.old, change.new), note


def _arrow(old: str | None, new: str | None) -> str:
    return f"{old or '(none)'} -> {new or '(none)'}"


def _package_rows(change: PackageChange, diff: LockDiff) -> list[tuple[str, ...]]:
    versions = change.new if change.old is None else change.old if change.new is None else None
    if change.move is Move.FILE:
        versions = change.new
    row = (change.move.value, change.name, versions or _arrow(change.old, change.new), _where(change.platforms, diff))
    return [row, *(("", "", _file(file), "") for file in change.files)]


def _file(file: FileChange) -> str:
    parts = [f"{file.platform.value}: sha256 {file.old_sha256[:_SHOWN]} -> {file.new_sha256[:_SHOWN]}"]
    if file.old_filename != file.new_filename:
        parts.append(f"{file.old_filename} -> {file.new_filename}")
    if file.old_index != file.new_index:
        parts.append(f"index {file.old_index} -> {file.new_index}")
    return ", ".join(parts)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as what stands before another cell in them, indented by two."""
    columns = max(map(len, rows))
    widths = [max((len(row[column]) for row in rows if any(row[column + 1 :])), default=0) for column in range(columns)]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip() for row in rows
    ]


def _value_object(change: ValueChange) -> Mapping[str, Any]:
    return {
        "what": change.what,
        "old": change.old,
        "new": change.new,
        "platforms": [platform.value for platform in change.platforms],
        "why": change.why,
    }


def _package_object(change: PackageChange) -> Mapping[str, Any]:
    data: dict[str, Any] = {
        "change": change.move.value,
        "name": change.name,
        "old": change.old,
        "new": change.new,
        "platforms": [platform.value for platform in change.platforms],
    }
    if change.files:
        data["files"] = [
            {
                "platform": file.platform.value,
                "old": {"index": file.old_index, "filename": file.old_filename, "sha256": file.old_sha256},
                "new": {"index": file.new_index, "filename": file.new_filename, "sha256": file.new_sha256},
            }
            for file in change.files
        ]
    return data


def _value_cells(changes: Sequence[ValueChange], diff: LockDiff) -> list[tuple[str, ...]]:
    return [
        (
            " on ".join(filter(None, (change.what, _where(change.platforms, diff)))),
            _code(change.old),
            _code(change.new),
            _plain(change.why),
        )
        for change in changes
    ]


def _package_cells(diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for change in diff.packages:
        name = " on ".join(filter(None, (_plain(change.name), _where(change.platforms, diff))))
        rows.append((name, change.move.value, _code(change.old), _code(change.new)))
        rows += [("", "", "", _code(_file(file))) for file in change.files]
    return rows


def _markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _code(text: str | None) -> str:
    """A cell in which nothing is read as Markdown; a bar is a cell's end even in code."""
    if not text:
        return ""
    bare = " ".join(text.split()).replace("|", "\\|")
    return f"`{bare}`" if "`" not in bare else f"`` {bare} ``"


def _plain(text: str) -> str:
    """A cell of prose: what Markdown or HTML would take for its own stands as it is written."""
    bare = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|" else sign for sign in bare)
