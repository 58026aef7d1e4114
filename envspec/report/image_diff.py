"""The layers that two images share and do not share, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec.image.diff import ImageDiff
from envspec.image.layers.types import Layer
from envspec.report.format import Column, Kind, Row, Table, counted, document, row, size, text, wrapped

_SHOWN: Final = 100


def as_text(diff: ImageDiff, width: int) -> str:
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


def as_json(diff: ImageDiff) -> str:
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
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


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
