"""Differences of two locks and of two images, as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from envspec.conformance.text import counted
from envspec.context import comma_separated
from envspec.escaping import cut, markdown
from envspec.image.diff import ImageDiff
from envspec.image.layers.types import Layer
from envspec.lockfile.diff import LockDiff
from envspec.lockfile.diff_packages import Change, Move, without_retagged
from envspec.report.format import (
    Row,
    Table,
    block,
    document,
    listing,
    markdown_page,
    row,
    short_hashes,
    size,
    text,
    wrapped,
)

_TITLES: Final = "{}|change|old:old|new:new|platforms"
_NONE: Final = "(none)"
#: What the summary calls a move whose name is no word for it.
_MOVES: Final = {
    Move.FILE: "with another file",
    Move.BUILD: "with another build",
    Move.DEPENDS: "with other dependencies",
}


def as_text(diff: LockDiff, width: int) -> str:
    """Hashes are shortened, except those of replaced files."""
    title = " -> ".join(_names(diff))
    if diff.is_empty:
        return f"{title}: no differences\n"
    return text(wrapped(f"{title}: {_summary(diff)}", width), _tables(diff), width)


def as_markdown(diff: LockDiff) -> str:
    title = " -> ".join(map(markdown, _names(diff)))
    summary = "No differences"
    if not diff.is_empty:
        summary = _summary(diff)
        summary = summary[:1].upper() + summary[1:]
    return markdown_page((f"### {title}", "", f"{summary}.", ""), _tables(diff), 4)


def as_json(diff: LockDiff) -> str:
    """One object: two names, and a list for each table of the text."""
    return document(
        {
            "same": diff.is_empty,
            "old": diff.old_name,
            "new": diff.new_name,
            "platforms": diff.platforms,
            "replaced": diff.replaced,
            "environment": diff.environment,
            "conda": diff.conda,
            "packages": diff.packages,
            "decisions": diff.decisions,
        }
    )


def _names(diff: LockDiff) -> dict[str, None]:
    return dict.fromkeys((diff.old_name, diff.new_name))


def _summary(diff: LockDiff) -> str:
    parts = []
    if diff.replaced:
        parts.append(f"{counted(len(diff.replaced), 'file')} replaced at the same version")
    parts.append(_counts(diff.conda, "conda package"))
    parts.append(_counts(diff.packages, _noun(diff)))
    if not any(parts):
        parts.append("no package differs")
    if others := {change.name for change in (*diff.environment, *diff.decisions)}:
        parts.append(f"{counted(len(others), 'other value')} changed")
    return "; ".join(filter(None, parts))


def _noun(diff: LockDiff) -> str:
    return "wheel" if diff.conda else "package"


def _counts(changes: Iterable[Change], noun: str) -> str:
    """`3 packages added, 1 up`: each package once for each of its moves."""
    names: dict[Move | None, set[str]] = {}
    for change in changes:
        names.setdefault(change.move, set()).add(change.name)
    parts: list[str] = []
    for move in Move:
        if move in names:
            count = len(names[move])
            number = str(count) if parts else counted(count, noun)
            parts.append(f"{number} {_MOVES.get(move, move.value)}")
    return ", ".join(parts)


def _tables(diff: LockDiff) -> Iterator[Table]:
    changes, retagged = without_retagged(diff.packages)
    replaced = "same version, other file: find out why before you accept it"
    yield listing(replaced, _replaced(diff), _TITLES.format("file"), "details")
    for title, head, render, found, notes in (
        ("environment", "value", _value, diff.environment, "reason"),
        ("conda packages", "package", _package, diff.conda, "details"),
        (f"{_noun(diff)}s", "package", _package, changes, "details"),
        (f"{_noun(diff)}s of the same version, wheels for other tags", "count", _retagged, retagged, "packages"),
        ("decisions", "value", _value, diff.decisions, "reason"),
    ):
        yield listing(title, [render(change, diff) for change in found], _TITLES.format(head), notes)


def _where(change: Change, diff: LockDiff) -> str:
    """The platforms; empty for none, and for all platforms of both locks."""
    if change.platforms == diff.platforms:
        return ""
    return comma_separated(change.platforms)


def _replaced(diff: LockDiff) -> Iterator[Row]:
    """Whole hashes: the beginning of a hash can be forged."""
    for each in diff.replaced:
        # `Python` is a kind and a name.
        words = dict.fromkeys((each.kind, each.name, each.new or ""))
        title, where = " ".join(filter(None, words)), _where(each, diff)
        for detail in each.details:
            yield row(title, detail.name, detail.old or _NONE, detail.new or _NONE, where)
            title, where = "", ""


def _value(change: Change, diff: LockDiff) -> Row:
    old, new = short_hashes(change.old or _NONE), short_hashes(change.new or _NONE)
    return row(change.name, "", old, new, _where(change, diff), notes=[change.why])


def _package(change: Change, diff: LockDiff) -> Row:
    move = change.move.value if change.move else ""
    notes = []
    for detail in change.details:
        notes.append(short_hashes(f"{detail.name} {detail.old or _NONE} -> {detail.new or _NONE}"))
    return row(change.name, move, change.old or "", change.new or "", _where(change, diff), notes=notes)


def _retagged(group: Change, diff: LockDiff) -> Row:
    count = counted(len(group.details), "package")
    packages = ", ".join(f"{each.name} {each.new}" for each in group.details)
    return row(count, "", group.old or "", group.new or "", _where(group, diff), notes=[packages])


_SHOWN: Final = 100


def image_as_text(diff: ImageDiff, width: int) -> str:
    """The layers that a pull moves, largest first, and their total size."""
    if not diff.is_changed:
        return f"the same image: {diff.first.id}\n"
    summary = (
        f"{_layers(diff.kept)} of {len(diff.second.layers)} unchanged; "
        f"a pull moves {_layers(diff.moved)} and the config, {size(diff.moved_bytes)}"
    )
    if len(diff.chained) != len(diff.moved):
        summary += f". Docker's own store identifies layers by those below them: it moves {_layers(diff.chained)}, "
        summary += size(diff.chained_bytes)
    layers = listing("", (*_rows("+", diff.moved), *_rows("-", diff.removed)), "|:number|")
    head = (f"{diff.first.name}  {diff.first.id}", f"{diff.second.name}  {diff.second.id}")
    return "\n".join((text(head, [layers], width), block(wrapped(summary, width))))


def image_as_json(diff: ImageDiff) -> str:
    """Sizes in bytes."""
    return document(
        {
            "first": {"name": diff.first.name, "id": diff.first.id},
            "second": {"name": diff.second.name, "id": diff.second.id},
            "changed": diff.is_changed,
            "kept": list(map(_object, diff.kept)),
            "moved": list(map(_object, diff.moved)),
            "removed": list(map(_object, diff.removed)),
            "moved_bytes": diff.moved_bytes,
            "docker_moved": list(map(_object, diff.chained)),
            "docker_moved_bytes": diff.chained_bytes,
        }
    )


def _rows(mark: str, layers: Sequence[Layer]) -> list[Row]:
    ordered = sorted(layers, key=lambda layer: -layer.blob.size_bytes)
    return [row(mark, size(each.blob.size_bytes), _description(each)) for each in ordered]


def _description(layer: Layer) -> str:
    words = layer.created_by.removeprefix("envspec: ") or layer.blob.digest
    line = " ".join(words.split())
    return cut(line, _SHOWN)


def _object(layer: Layer) -> dict[str, object]:
    return {
        "digest": layer.blob.digest,
        "diff_id": layer.diff_id,
        "size": layer.blob.size_bytes,
        "created_by": layer.created_by,
    }


def _layers(layers: Sequence[Layer]) -> str:
    return counted(len(layers), "layer")
