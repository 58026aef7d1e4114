"""A LockDiff as text for a terminal, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envspec.lock.diff import FileChange, LockDiff, Move, PackageChange, ValueChange
from envspec.lock.diff_wheels import Retagged, without_retagged
from envspec.model import Platform

_HASH: Final = re.compile(r"\b[0-9a-f]{64}\b")
_COUNTED: Final = {
    Move.ADDED: "added",
    Move.REMOVED: "removed",
    Move.UP: "up",
    Move.DOWN: "down",
    Move.MOVED: "moved",
    Move.FILE: "with another file",
}


def as_text(diff: LockDiff, width: int = 100) -> str:
    """Aligned lines for a terminal, hashes by their first digits, words broken at `width`; ends with a line feed."""
    if diff.is_empty:
        return f"{_title(diff)}: no differences\n"
    lines = textwrap.wrap(f"{_title(diff)}: {_summary(diff)}", width)
    changes, retagged = without_retagged(diff.packages)
    for heading, told in (
        ("environment", _value_lines(diff.environment, diff, width)),
        ("packages", _package_lines(changes, diff, width)),
        ("packages of the same version, wheels for other tags", _retagged_lines(retagged, diff, width)),
        ("decisions", _value_lines(diff.decisions, diff, width)),
    ):
        if told:
            lines += ["", heading, *told]
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
    changes, retagged = without_retagged(diff.packages)
    if changes:
        parts.append(_markdown_table(("package", "", "old", "new"), _package_cells(changes, diff)))
    if retagged:
        parts.append(
            _markdown_table(("same version, wheels for other tags", "old", "new"), _retagged_cells(retagged, diff))
        )
    if diff.decisions:
        parts.append(_markdown_table(("decision", "old", "new", "why"), _value_cells(diff.decisions, diff)))
    return "\n\n".join(parts) + "\n"


def _title(diff: LockDiff) -> str:
    return diff.new_name if diff.old_name == diff.new_name else f"{diff.old_name} -> {diff.new_name}"


def _summary(diff: LockDiff) -> str:
    names: dict[Move, set[str]] = {move: set() for move in _COUNTED}
    for change in diff.packages:
        names[change.move].add(change.name)
    counts = [(len(names[move]), words) for move, words in _COUNTED.items() if names[move]]
    packages = [
        f"{count} {words}" if place else f"{_several(count, 'package')} {words}"
        for place, (count, words) in enumerate(counts)
    ]
    others = len({change.what for change in (*diff.environment, *diff.decisions)})
    told = [
        ", ".join(packages) or "no package differs",
        *([f"{_several(others, 'other value')} changed"] if others else []),
    ]
    return "; ".join(told)


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(platforms: Sequence[Platform], diff: LockDiff) -> str:
    if not platforms or tuple(platforms) == diff.platforms:
        return ""
    return ", ".join(platform.value for platform in platforms)


def _value_lines(changes: Sequence[ValueChange], diff: LockDiff, width: int) -> list[str]:
    column = max((len(change.what) for change in changes), default=0)
    lines: list[str] = []
    for change in changes:
        where = _where(change.platforms, diff)
        note = f"  ({where})" if where else ""
        head = f"  {change.what.ljust(column)}  "
        lines += _arrow(head, short_hashes(change.old or "(none)"), short_hashes(change.new or "(none)"), note, width)
        lines += textwrap.wrap(
            change.why, width, initial_indent="      ", subsequent_indent="      ", break_long_words=False
        )
    return lines


def _arrow(head: str, old: str, new: str, note: str, width: int) -> list[str]:
    """`old -> new` on one line, or on two where that is too long."""
    line = f"{head}{old} -> {new}{note}"
    if len(line) <= width:
        return [line]
    return [f"{head}{old}", f"{' ' * max(len(head) - 3, 2)}-> {new}{note}"]


def _package_lines(changes: Sequence[PackageChange], diff: LockDiff, width: int) -> list[str]:
    rows = [(change.move.value, change.name, _versions(change), _where(change.platforms, diff)) for change in changes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines: list[str] = []
    for row, change in zip(rows, changes, strict=True):
        lines.append("  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
        for file in change.files:
            for what, old, new in _file(file):
                lines += _arrow(f"      {file.platform.value}: {what} ", old, new, "", width)
    return lines


def _retagged_lines(retagged: Sequence[Retagged], diff: LockDiff, width: int) -> list[str]:
    lines: list[str] = []
    for group in retagged:
        where = _where(group.platforms, diff)
        lines += _arrow("  ", group.old, group.new, f"  ({where})" if where else "", width)
        # A no-break space holds a name and its version together.
        names = textwrap.wrap(
            ", ".join(name.replace(" ", "\xa0") for name in group.packages),
            width,
            initial_indent="      ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [line.replace("\xa0", " ") for line in names]
    return lines


def _versions(change: PackageChange) -> str:
    if change.old == change.new or change.old is None or change.new is None:
        return change.new or change.old or ""
    return f"{change.old} -> {change.new}"


def _file(file: FileChange) -> list[tuple[str, str, str]]:
    """What differs of a file: (what, old, new)."""
    pairs = [
        ("index", file.old_index, file.new_index),
        ("file", file.old_filename, file.new_filename),
        ("sha256", short_hashes(file.old_sha256), short_hashes(file.new_sha256)),
    ]
    return [(what, old, new) for what, old, new in pairs if old != new]


def short_hashes(text: str) -> str:
    """`text` with each SHA-256 in it by its first digits, those that people compare."""
    return _HASH.sub(lambda found: found[0][:12], text)


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
            _code(short_hashes(change.old or "")),
            _code(short_hashes(change.new or "")),
            _plain(change.why),
        )
        for change in changes
    ]


def _retagged_cells(retagged: Sequence[Retagged], diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for group in retagged:
        names = " on ".join(filter(None, (_plain(", ".join(group.packages)), _where(group.platforms, diff))))
        rows.append((names, _code(group.old), _code(group.new)))
    return rows


def _package_cells(changes: Sequence[PackageChange], diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for change in changes:
        name = " on ".join(filter(None, (_plain(change.name), _where(change.platforms, diff))))
        rows.append((name, change.move.value, _code(change.old), _code(change.new)))
        rows += [
            (f"{file.platform.value}: {what}", "", _code(old), _code(new))
            for file in change.files
            for what, old, new in _file(file)
        ]
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
