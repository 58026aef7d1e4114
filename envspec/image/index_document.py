"""Manifests and the index of several platforms: pure.

Source: OCI image specification 1.1, `manifest.md`, `image-index.md`, `media-types.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envspec.image.config import canonical
from envspec.image.layer import Image, Layer
from envspec.model import Platform
from envspec.registry.blob import Descriptor
from envspec.registry.manifest import OCI_INDEX, OCI_MANIFEST, OCI_PLATFORMS, digest_of

OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
#: Docker's names of layers, which hold the same bytes: an OCI manifest names them in OCI's words.
_OCI_NAMES: Final[Mapping[str, str]] = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


def image_of(platform: Platform, config: bytes, layers: Sequence[Layer], told: Mapping[str, str]) -> Image:
    """An image from its config and all of its layers, the base's first. told: annotations of the manifest."""
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(Descriptor(OCI_CONFIG, digest_of(config), len(config))),
            "layers": [descriptor(layer.blob) for layer in layers],
            "annotations": dict(told),
        }
    )
    return Image(platform, digest_of(config), config, digest_of(manifest), manifest, tuple(layers))


def index_of(images: Sequence[Image], told: Mapping[str, str]) -> bytes:
    """The OCI index of several platforms' images."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [entry(image) for image in images],
            "annotations": dict(told),
        }
    )


def entry(image: Image) -> dict[str, Any]:
    """An image as an index names it."""
    os, architecture = OCI_PLATFORMS[image.platform]
    return descriptor(Descriptor(OCI_MANIFEST, image.digest, len(image.manifest))) | {
        "platform": {"os": os, "architecture": architecture}
    }


def descriptor(blob: Descriptor) -> dict[str, Any]:
    """A descriptor as JSON has it, in OCI's words."""
    return {
        "mediaType": _OCI_NAMES.get(blob.media_type, blob.media_type),
        "digest": blob.digest,
        "size": blob.size_bytes,
    }
