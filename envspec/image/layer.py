"""Layers and images as registries and engines name them. Values only.

Source: OCI image specification 1.1, `config.md`, `layer.md`, `manifest.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from envspec.image.content import GpuCodeFound
from envspec.model import Platform
from envspec.registry.blob import Descriptor


class Compression(Enum):
    """How the blobs of layers are packed; the image ID is the same for all of them."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"

    @property
    def media_type(self) -> str:
        """OCI's name of a layer that is packed so."""
        end = {"gzip": "+gzip", "zstd": "+zstd", "none": ""}[self.value]
        return f"application/vnd.oci.image.layer.v1.tar{end}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image. diff_id: digest of its tar. created_by: what the history says of it.

    found: GPU code of the wheels in it, by the wheel's SHA-256.
    """

    diff_id: str
    blob: Descriptor
    created_by: str
    found: tuple[tuple[str, GpuCodeFound], ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """One platform's image. id: digest of `config`. digest: of `manifest`. layers: the base's first."""

    platform: Platform
    id: str
    config: bytes = field(repr=False)
    digest: str
    manifest: bytes = field(repr=False)
    layers: tuple[Layer, ...]
