"""What a pull of one image transfers if another one is present."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from envspec.image.layers.types import Layer
from envspec.registry.types import Descriptor


class ComparedImage(Struct, frozen=True):
    """name: as the user wrote it. id: digest of its config, of `config_bytes` bytes."""

    name: str
    id: str
    config_bytes: int
    layers: tuple[Layer, ...]


class ImageDiff(Struct, frozen=True):
    """kept: layers of both. moved: only of the second. removed: only of the first.

    chained: what an engine transfers that identifies a layer by all layers below it, as Docker's own store does: all
    from the first different layer on.
    """

    first: ComparedImage
    second: ComparedImage
    kept: tuple[Layer, ...]
    moved: tuple[Layer, ...]
    removed: tuple[Layer, ...]
    chained: tuple[Layer, ...]

    @property
    def is_changed(self) -> bool:
        return self.first.id != self.second.id

    @property
    def moved_bytes(self) -> int:
        """Bytes of a pull by blobs (containerd, podman, skopeo), with the config if it changed."""
        return self._with_config(self.moved)

    @property
    def chained_bytes(self) -> int:
        """Bytes of a pull by Docker's own store."""
        return self._with_config(self.chained)

    def _with_config(self, layers: Sequence[Layer]) -> int:
        if self.is_changed:
            return size_of(layers) + self.second.config_bytes
        return size_of(layers)


def diff_images(first: ComparedImage, second: ComparedImage) -> ImageDiff:
    """Layers are equal if their blobs are."""
    before = {layer.blob.digest for layer in first.layers}
    after = {layer.blob.digest for layer in second.layers}
    same = common_prefix([layer.diff_id for layer in first.layers], [layer.diff_id for layer in second.layers])
    return ImageDiff(
        first,
        second,
        kept=tuple(layer for layer in second.layers if layer.blob.digest in before),
        moved=_unique(layer for layer in second.layers if layer.blob.digest not in before),
        removed=_unique(layer for layer in first.layers if layer.blob.digest not in after),
        chained=_unique(second.layers[same:]),
    )


def common_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the common prefix of two sequences."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def size_of(layers: Sequence[Layer]) -> int:
    return sum(layer.blob.size_bytes for layer in layers)


def compared_image(name: str, image_id: str, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> ComparedImage:
    """Parse an image's documents. Raises LookupError, TypeError, ValueError: they are not an image's."""
    blobs = [Descriptor(each["mediaType"], each["digest"], int(each["size"])) for each in manifest["layers"]]
    history = [str(each.get("created_by", "")) for each in config.get("history", ()) if not each.get("empty_layer")]
    if len(history) != len(blobs):
        history = [""] * len(blobs)
    layers = tuple(Layer(*each) for each in zip(config["rootfs"]["diff_ids"], blobs, history, strict=True))
    return ComparedImage(name, image_id, int(manifest["config"]["size"]), layers)


def _unique(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    return tuple({layer.blob.digest: layer for layer in layers}.values())
