"""What a pull of one image moves where another one is already: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envspec.image.layers.types import Layer
from envspec.registry.types import Descriptor


@dataclass(frozen=True, slots=True)
class Side:
    """An image that is compared. name: as the user wrote it. id: digest of its config, of `config_bytes` bytes."""

    name: str
    id: str
    config_bytes: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class ImageDiff:
    """kept: layers that both have. moved: those that only the second has; removed: only the first.

    chained: what an engine moves that names layers by all that lies below them, as Docker's own store does: everything
    from the first layer on that differs.
    """

    first: Side
    second: Side
    kept: tuple[Layer, ...]
    moved: tuple[Layer, ...]
    removed: tuple[Layer, ...]
    chained: tuple[Layer, ...]

    @property
    def is_changed(self) -> bool:
        return self.first.id != self.second.id

    @property
    def moved_bytes(self) -> int:
        """Of a pull by blobs, as containerd, podman and skopeo do it, with the config where it is another."""
        return size_of(self.moved) + (self.second.config_bytes if self.is_changed else 0)

    @property
    def chained_bytes(self) -> int:
        """Of a pull by Docker's own store."""
        return size_of(self.chained) + (self.second.config_bytes if self.is_changed else 0)


def diff_images(first: Side, second: Side) -> ImageDiff:
    """What moves from the one to the other. Layers are the same where their blobs are."""
    before = {layer.blob.digest for layer in first.layers}
    after = {layer.blob.digest for layer in second.layers}
    same = 0
    while same < min(len(first.layers), len(second.layers)) and (
        first.layers[same].diff_id == second.layers[same].diff_id
    ):
        same += 1
    return ImageDiff(
        first,
        second,
        kept=tuple(layer for layer in second.layers if layer.blob.digest in before),
        moved=_once(layer for layer in second.layers if layer.blob.digest not in before),
        removed=_once(layer for layer in first.layers if layer.blob.digest not in after),
        chained=_once(second.layers[same:]),
    )


def size_of(layers: Sequence[Layer]) -> int:
    """Bytes of the layers' blobs."""
    return sum(layer.blob.size_bytes for layer in layers)


def side_of(name: str, identity: str, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Side:
    """An image from its documents.

    Raises:
        LookupError, TypeError, ValueError: they are not an image's.
    """
    rows = [Descriptor(row["mediaType"], row["digest"], int(row["size"])) for row in manifest["layers"]]
    diff_ids = config["rootfs"]["diff_ids"]
    told = [entry.get("created_by", "") for entry in config.get("history", ()) if not entry.get("empty_layer")]
    words = told if len(told) == len(rows) else [""] * len(rows)
    layers = tuple(Layer(each, row, word) for each, row, word in zip(diff_ids, rows, words, strict=True))
    return Side(name, identity, int(manifest["config"]["size"]), layers)


def _once(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    return tuple({layer.blob.digest: layer for layer in layers}.values())
