"""Images made in memory: a base, layers, and the values that stand for them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envspec.image.config import Base
from envspec.image.layers.types import Compression, Layer
from envspec.registry.types import Descriptor


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass(frozen=True)
class MemoryBlob:
    """A blob whose bytes are at hand."""

    body: bytes
    media_type: str = Compression.NONE.media_type

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, digest(self.body), len(self.body))

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for at in range(start, len(self.body), 1000):
            yield self.body[at : min(at + 1000, len(self.body))]


def plain_tar(files: Mapping[str, bytes]) -> bytes:
    """A tar of files, its times fixed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def plain_layer(body: bytes, created_by: str = "made by a test") -> Layer:
    """The layer of a tar that is not packed."""
    return Layer(digest(body), MemoryBlob(body).descriptor, created_by)


def base(*layers: Layer, run: Mapping[str, Any] | None = None, **config: Any) -> Base:
    """A base image of these layers. run: its config's `config`."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(run or {}),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "ADD root"} for _ in layers],
    } | config
    return Base(
        "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04", "sha256:" + "b" * 64, "sha256:" + "c" * 64, document, layers
    )


def read(document: bytes) -> Any:
    return json.loads(document)
