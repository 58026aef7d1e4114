"""A LockDiff as text for a terminal, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from envspec.escaping import markdown, markdown_code
from envspec.lock.diff import FileChange, LockDiff, Move, PackageChange, ValueChange
from envspec.lock.diff_conda_text import COUNTED, conda_cells, conda_lines, conda_object
from envspec.lock.diff_replaced import HEADING, replaced_lines, replaced_object
from envspec.lock.diff_shown import arrow, markdown_table, several, short_hashes, versions, where
from envspec.lock.diff_wheels import Retagged, without_retagged

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
    there = {each: where(each.platforms, diff) for each in diff.replaced}
    for heading, told in (
        (HEADING, replaced_lines(diff.replaced, there)),
        ("environment", _value_lines(diff.environment, diff, width)),
        ("conda packages", conda_lines(diff, width)),
        (_noun(diff) + "s", _package_lines(changes, diff, width)),
        ("packages of the same version, wheels for other tags", _retagged_lines(retagged, diff, width)),
        ("decisions", _value_lines(diff.decisions, diff, width)),
    ):
        if told:
            lines += ["", heading, *told]
    return "\n".join(lines) + "\n"


def as_json(diff: LockDiff) -> str:
    """One object, a line feed behind it: two names, and a list for each heading of the text, in its order."""
    data = {
        "same": diff.is_empty,
        "old": diff.old_name,
        "new": diff.new_name,
        "platforms": [platform.value for platform in diff.platforms],
        "replaced": [replaced_object(each) for each in diff.replaced],
        "environment": [_value_object(change) for change in diff.environment],
        "conda": [conda_object(change) for change in diff.conda],
        "packages": [_package_object(change) for change in diff.packages],
        "decisions": [_value_object(change) for change in diff.decisions],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def as_markdown(diff: LockDiff) -> str:
    """Headings and tables that fit into a pull request's description; ends with a line feed."""
    if diff.is_empty:
        return f"### {_title(diff, markdown)}\n\nNo differences.\n"
    parts = [f"### {_title(diff, markdown)}", _capital(_summary(diff)) + "."]
    if diff.replaced:
        parts += [f"**{_capital(HEADING)}**", markdown_table(("file", "", "old", "new"), _replaced_cells(diff))]
    if diff.environment:
        parts.append(markdown_table(("environment", "old", "new", "why"), _value_cells(diff.environment, diff)))
    if diff.conda:
        parts.append(markdown_table(("conda package", "", "old", "new"), conda_cells(diff)))
    changes, retagged = without_retagged(diff.packages)
    if changes:
        parts.append(markdown_table((_noun(diff), "", "old", "new"), _package_cells(changes, diff)))
    if retagged:
        parts.append(
            markdown_table(("same version, wheels for other tags", "old", "new"), _retagged_cells(retagged, diff))
        )
    if diff.decisions:
        parts.append(markdown_table(("decision", "old", "new", "why"), _value_cells(diff.decisions, diff)))
    return "\n\n".join(parts) + "\n"


def _title(diff: LockDiff, shown: Callable[[str], str] = str) -> str:
    return " -> ".join(map(shown, dict.fromkeys((diff.old_name, diff.new_name))))


def _summary(diff: LockDiff) -> str:
    conda = _counts(((change.move, change.name) for change in diff.conda), COUNTED, "conda package")
    packages = _counts(((change.move, change.name) for change in diff.packages), _COUNTED, _noun(diff))
    others = len({change.what for change in (*diff.environment, *diff.decisions)})
    replaced = several(len(diff.replaced), "file")
    told = [
        *([f"{replaced} replaced at the same version"] if diff.replaced else []),
        *([conda] if conda else []),
        *([packages or "no package differs"] if packages or not (conda or diff.replaced) else []),
        *([f"{several(others, 'other value')} changed"] if others else []),
    ]
    return "; ".join(told)


def _noun(diff: LockDiff) -> str:
    """What a package of the PyPI half is called: beside conda's a wheel."""
    return "wheel" if diff.conda else "package"


def _counts(moves: Iterable[tuple[Enum, str]], words: Mapping[Any, str], noun: str) -> str:
    """`3 packages added, 1 up`: each package once for each thing that happened to it."""
    names: dict[Enum, set[str]] = {move: set() for move in words}
    for move, name in moves:
        names[move].add(name)
    counts = [(len(names[move]), told) for move, told in words.items() if names[move]]
    return ", ".join(
        f"{count} {told}" if place else f"{several(count, noun)} {told}" for place, (count, told) in enumerate(counts)
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _value_lines(changes: Sequence[ValueChange], diff: LockDiff, width: int) -> list[str]:
    column = max((len(change.what) for change in changes), default=0)
    lines: list[str] = []
    for change in changes:
        there = where(change.platforms, diff)
        note = f"  ({there})" if there else ""
        head = f"  {change.what.ljust(column)}  "
        lines += arrow(head, short_hashes(change.old or "(none)"), short_hashes(change.new or "(none)"), note, width)
        lines += textwrap.wrap(
            change.why, width, initial_indent="      ", subsequent_indent="      ", break_long_words=False
        )
    return lines


def _package_lines(changes: Sequence[PackageChange], diff: LockDiff, width: int) -> list[str]:
    rows = [
        (change.move.value, change.name, versions(change.old, change.new), where(change.platforms, diff))
        for change in changes
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines: list[str] = []
    for row, change in zip(rows, changes, strict=True):
        lines.append("  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
        for file in change.files:
            for what, old, new in _file(file):
                lines += arrow(f"      {file.platform.value}: {what} ", old, new, "", width)
    return lines


def _retagged_lines(retagged: Sequence[Retagged], diff: LockDiff, width: int) -> list[str]:
    lines: list[str] = []
    for group in retagged:
        there = where(group.platforms, diff)
        lines += arrow("  ", group.old, group.new, f"  ({there})" if there else "", width)
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


def _file(file: FileChange) -> list[tuple[str, str, str]]:
    """What differs of a file: (what, old, new)."""
    pairs = [
        ("index", file.old_index, file.new_index),
        ("file", file.old_filename, file.new_filename),
        ("sha256", short_hashes(file.old_sha256), short_hashes(file.new_sha256)),
    ]
    return [(what, old, new) for what, old, new in pairs if old != new]


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
            " on ".join(filter(None, (markdown(change.what), where(change.platforms, diff)))),
            markdown_code(short_hashes(change.old or "")),
            markdown_code(short_hashes(change.new or "")),
            markdown(change.why),
        )
        for change in changes
    ]


def _replaced_cells(diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in diff.replaced:
        title = " on ".join(filter(None, (markdown(each.title), where(each.platforms, diff))))
        for place, (what, old, new) in enumerate(each.changes):
            rows.append(("" if place else title, what, markdown_code(old), markdown_code(new)))
    return rows


def _retagged_cells(retagged: Sequence[Retagged], diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for group in retagged:
        names = " on ".join(filter(None, (markdown(", ".join(group.packages)), where(group.platforms, diff))))
        rows.append((names, markdown_code(group.old), markdown_code(group.new)))
    return rows


def _package_cells(changes: Sequence[PackageChange], diff: LockDiff) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for change in changes:
        name = " on ".join(filter(None, (markdown(change.name), where(change.platforms, diff))))
        rows.append((name, change.move.value, markdown_code(change.old), markdown_code(change.new)))
        rows += [
            (f"{file.platform.value}: {what}", "", markdown_code(old), markdown_code(new))
            for file in change.files
            for what, old, new in _file(file)
        ]
    return rows
