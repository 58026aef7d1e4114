"""`envspec image diff` in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from envspec.image.diff import ImageDiff
from envspec.image.layers.types import Layer

_SHOWN = 100


def as_text(found: ImageDiff) -> str:
    """The layers that move, biggest first, and what that comes to."""
    if not found.is_changed:
        return f"the same image: {found.first.id}\n"
    lines = [
        f"{found.first.name}  {found.first.id}",
        f"{found.second.name}  {found.second.id}",
        "",
        *_rows("+", found.moved),
        *_rows("-", found.removed),
        *([""] if found.moved or found.removed else []),
        f"{_layers(found.kept)} of {len(found.second.layers)} stay; "
        f"a pull moves {_layers(found.moved)} and the config, {_megabytes(found.moved_bytes)}",
    ]
    if len(found.chained) != len(found.moved):
        lines.append(
            f"Docker's own store names layers by what lies below them: there it moves {_layers(found.chained)}, "
            f"{_megabytes(found.chained_bytes)}"
        )
    return "\n".join(lines) + "\n"


def as_json(found: ImageDiff) -> str:
    """The same for programs; sizes in bytes."""
    document = {
        "first": {"name": found.first.name, "id": found.first.id},
        "second": {"name": found.second.name, "id": found.second.id},
        "changed": found.is_changed,
        "kept": _objects(found.kept),
        "moved": _objects(found.moved),
        "removed": _objects(found.removed),
        "moved_bytes": found.moved_bytes,
        "docker_moved": _objects(found.chained),
        "docker_moved_bytes": found.chained_bytes,
    }
    return json.dumps(document, indent=2) + "\n"


def _rows(mark: str, layers: Sequence[Layer]) -> list[str]:
    ordered = sorted(layers, key=lambda layer: -layer.blob.size_bytes)
    return [f"{mark} {_megabytes(each.blob.size_bytes):>12}  {_words(each)}" for each in ordered]


def _words(layer: Layer) -> str:
    told = layer.created_by.removeprefix("envspec: ") or layer.blob.digest
    told = " ".join(told.split())
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"


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
    return f"{len(layers)} layer" if len(layers) == 1 else f"{len(layers)} layers"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"
