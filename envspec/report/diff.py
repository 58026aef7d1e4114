"""Differences of two locks and of two images, as text, Markdown and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Final

from envspec.context import counted
from envspec.escaping import markdown
from envspec.image.diff import ImageDiff
from envspec.image.layers.types import Layer
from envspec.lockfile.diff import LockDiff, Replaced, ValueChange
from envspec.lockfile.diff_packages import (
    CondaChange,
    CondaRecordChange,
    FileChange,
    Move,
    PackageChange,
    Retagged,
    without_retagged,
)
from envspec.models import Platform
from envspec.report.format import (
    Column,
    Kind,
    Row,
    Table,
    capital,
    document,
    markdown_lines,
    row,
    short_hashes,
    shortened,
    size,
    text,
    wrapped,
)

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
    summary = "No differences" if diff.is_empty else capital(_summary(diff))
    lines = [f"### {title}", "", f"{summary}.", ""]
    lines += (line for table in _tables(diff) for line in markdown_lines(table, 4))
    return "\n".join(lines).rstrip("\n") + "\n"


def as_json(diff: LockDiff) -> str:
    """One object: two names, and a list for each table of the text."""
    return document(
        {
            "same": diff.is_empty,
            "old": diff.old_name,
            "new": diff.new_name,
            "platforms": diff.platforms,
            "replaced": [
                {
                    **_fields(each),
                    "changes": [
                        {"what": what, "old": old or None, "new": new or None} for what, old, new in each.changes
                    ],
                }
                for each in diff.replaced
            ],
            "environment": diff.environment,
            "conda": [{"change": each.move, **_fields(each), "platforms": each.platforms} for each in diff.conda],
            "packages": [{"change": each.move, **_fields(each)} for each in diff.packages],
            "decisions": diff.decisions,
        }
    )


def _fields(change: PackageChange | CondaChange | Replaced) -> dict[str, object]:
    return {each.name: getattr(change, each.name) for each in fields(change) if each.name != "move"}


def _names(diff: LockDiff) -> dict[str, None]:
    return dict.fromkeys((diff.old_name, diff.new_name))


def _summary(diff: LockDiff) -> str:
    conda = _counts(((change.move, change.name) for change in diff.conda), "conda package")
    packages = _counts(((change.move, change.name) for change in diff.packages), _noun(diff))
    others = len({change.what for change in (*diff.environment, *diff.decisions)})
    replaced = len(diff.replaced)
    parts = [
        f"{counted(replaced, 'file')} replaced at the same version" if replaced else "",
        conda,
        packages or ("" if conda or replaced else "no package differs"),
        f"{counted(others, 'other value')} changed" if others else "",
    ]
    return "; ".join(filter(None, parts))


def _noun(diff: LockDiff) -> str:
    return "wheel" if diff.conda else "package"


def _counts(moves: Iterable[tuple[Move, str]], noun: str) -> str:
    """`3 packages added, 1 up`: each package once for each of its moves."""
    of_each = Counter(move for move, _ in set(moves))
    counts = [(of_each[move], _MOVES.get(move, move.value)) for move in Move if of_each[move]]
    return ", ".join(
        f"{count} {word}" if index else f"{counted(count, noun)} {word}" for index, (count, word) in enumerate(counts)
    )


def _tables(diff: LockDiff) -> list[Table]:
    changes, retagged = without_retagged(diff.packages)
    replaced = "same version, other file: find out why before you accept it"
    wheels = f"{_noun(diff)}s of the same version, wheels for other tags"
    return [
        _table(replaced, "file", _replaced(diff)),
        _table("environment", "value", (_value(change, diff) for change in diff.environment), "reason"),
        _table("conda packages", "package", (_conda(change, diff) for change in diff.conda)),
        _table(f"{_noun(diff)}s", "package", (_package(change, diff) for change in changes)),
        _table(wheels, "count", (_retagged(group, diff) for group in retagged), "packages"),
        _table("decisions", "value", (_value(change, diff) for change in diff.decisions), "reason"),
    ]


def _table(title: str, head: str, rows: Iterable[Row], notes: str = "details") -> Table:
    changed = Column("change"), Column("old", Kind.OLD), Column("new", Kind.NEW)
    return Table(title, (Column(head), *changed, Column("platforms")), tuple(rows), notes)


def _where(platforms: Sequence[Platform], diff: LockDiff) -> str:
    """The platforms; empty for none, and for all platforms of both locks."""
    return "" if tuple(platforms) == diff.platforms else _listed(platforms)


def _listed(platforms: Iterable[Platform]) -> str:
    return ", ".join(platform.value for platform in platforms)


def _replaced(diff: LockDiff) -> Iterator[Row]:
    """Whole hashes: the beginning of a hash can be forged."""
    for each in diff.replaced:
        title, where = each.title, _where(each.platforms, diff)
        for what, old, new in each.changes:
            yield row(title, what, old or _NONE, new or _NONE, where)
            title, where = "", ""


def _value(change: ValueChange, diff: LockDiff) -> Row:
    old, new = short_hashes(change.old or _NONE), short_hashes(change.new or _NONE)
    return row(change.what, "", old, new, _where(change.platforms, diff), notes=[change.why])


def _package(change: PackageChange, diff: LockDiff) -> Row:
    return row(
        change.name,
        change.move.value,
        change.old or "",
        change.new or "",
        _where(change.platforms, diff),
        notes=(f"{file.platform.value}: {detail}" for file in change.files for detail in _file(file)),
    )


def _file(file: FileChange) -> list[str]:
    old, new = file.old, file.new
    pairs = [("index", old.index, new.index), ("file", old.filename, new.filename), ("sha256", old.sha256, new.sha256)]
    return [short_hashes(f"{what} {before} -> {after}") for what, before, after in pairs if before != after]


def _retagged(group: Retagged, diff: LockDiff) -> Row:
    count = counted(len(group.packages), "package")
    return row(count, "", group.old, group.new, _where(group.platforms, diff), notes=[", ".join(group.packages)])


def _conda(change: CondaChange, diff: LockDiff) -> Row:
    found: dict[str, list[Platform]] = {}
    for each in change.records:
        for detail in _conda_details(change.move, each):
            found.setdefault(detail, []).append(each.platform)
    notes = (
        detail if tuple(platforms) == change.platforms else f"{_listed(platforms)}: {detail}"
        for detail, platforms in found.items()
    )
    where = _where(change.platforms, diff)
    return row(change.name, change.move.value, change.old or "", change.new or "", where, notes=notes)


def _conda_details(move: Move, each: CondaRecordChange) -> Iterator[str]:
    old, new = each.old, each.new
    if old is None or new is None:
        return
    pairs = []
    # Another version always has another build: it matters only if it changes between CUDA and CPU.
    if move is Move.BUILD or each.changes_variant:
        pairs.append(("build", old.build, new.build))
    pairs.append(("channel", old.channel, new.channel))
    if move is Move.DEPENDS:
        pairs.append(("depends", *_without_shared(old.depends, new.depends)))
        pairs.append(("constrains", *_without_shared(old.constrains, new.constrains)))
    yield from (f"{what} {before} -> {after}" for what, before, after in pairs if before != after)


def _without_shared(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    return (
        ", ".join(each for each in old if each not in new) or _NONE,
        ", ".join(each for each in new if each not in old) or _NONE,
    )


_SHOWN: Final = 100


def image_as_text(diff: ImageDiff, width: int) -> str:
    """The layers that a pull moves, largest first, and their total size."""
    if not diff.is_changed:
        return f"the same image: {diff.first.id}\n"
    columns = (Column(), Column("", Kind.NUMBER), Column())
    summary = (
        f"{_layers(diff.kept)} of {len(diff.second.layers)} unchanged; "
        f"a pull moves {_layers(diff.moved)} and the config, {size(diff.moved_bytes)}"
    )
    if len(diff.chained) != len(diff.moved):
        summary += f". Docker's own store identifies layers by those below them: it moves {_layers(diff.chained)}, "
        summary += size(diff.chained_bytes)
    layers = Table("", columns, (*_rows("+", diff.moved), *_rows("-", diff.removed)))
    head = [f"{side.name}  {side.id}" for side in (diff.first, diff.second)]
    return text(head, [layers], width) + "\n" + "".join(f"{line}\n" for line in wrapped(summary, width))


def image_as_json(diff: ImageDiff) -> str:
    """Sizes in bytes."""
    return document(
        {
            "first": {"name": diff.first.name, "id": diff.first.id},
            "second": {"name": diff.second.name, "id": diff.second.id},
            "changed": diff.is_changed,
            "kept": _objects(diff.kept),
            "moved": _objects(diff.moved),
            "removed": _objects(diff.removed),
            "moved_bytes": diff.moved_bytes,
            "docker_moved": _objects(diff.chained),
            "docker_moved_bytes": diff.chained_bytes,
        }
    )


def _rows(mark: str, layers: Sequence[Layer]) -> list[Row]:
    ordered = sorted(layers, key=lambda layer: -layer.blob.size_bytes)
    return [row(mark, size(each.blob.size_bytes), _description(each)) for each in ordered]


def _description(layer: Layer) -> str:
    words = layer.created_by.removeprefix("envspec: ") or layer.blob.digest
    line = " ".join(words.split())
    return shortened(line, _SHOWN)


def _objects(layers: Sequence[Layer]) -> list[dict[str, object]]:
    return [
        {
            "digest": each.blob.digest,
            "diff_id": each.diff_id,
            "size": each.blob.size_bytes,
            "created_by": each.created_by,
        }
        for each in layers
    ]


def _layers(layers: Sequence[Layer]) -> str:
    return counted(len(layers), "layer")
