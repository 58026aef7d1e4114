"""Images into a registry: what it lacks is sent, and the tag is set last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envspec.fetch.values import Step
from envspec.image.assembling import Assembled
from envspec.image.index_document import OCI_CONFIG
from envspec.image.layer import Layer
from envspec.image.order import Stage
from envspec.pipeline.image_work import ImageWork
from envspec.registry.blob import Blob, Descriptor
from envspec.registry.manifest import OCI_INDEX, OCI_MANIFEST
from envspec.registry.mirror import Document, Elsewhere, push_image
from envspec.registry.reference import parse


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A layer that was made here, put together when the registry turns out to lack it."""

    work: ImageWork
    layer: Layer

    @property
    def descriptor(self) -> Descriptor:
        return self.layer.blob

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        return self.work.open(self.layer.blob).chunks(start)


@dataclass(frozen=True, slots=True)
class _InMemory:
    """A small document as a blob."""

    descriptor: Descriptor
    body: bytes

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        yield self.body[start:]


async def push(work: ImageWork, assembled: Sequence[Assembled], index: bytes | None, name: str) -> None:
    """Push images, as one index where there are several. Until all is there the tag names what it named before.

    Raises:
        NetworkError: the registry does not take something.
    """
    target = parse(name)
    registry = await work.registry()
    blobs: dict[str, Blob | Elsewhere] = {}
    for each in assembled:
        source = parse(each.base.name)
        for layer in each.base.layers:
            kept = work.blobs.open(layer.blob) if work.blobs.has(layer.blob) else None
            blobs[layer.blob.digest] = Elsewhere(layer.blob, source, kept=kept)
        for layer in each.image.layers[len(each.base.layers) :]:
            blobs.setdefault(layer.blob.digest, _Lazy(work, layer))
        config = Descriptor(OCI_CONFIG, each.image.id, len(each.image.config))
        blobs[config.digest] = _InMemory(config, each.image.config)
    documents = [Document(each.image.manifest, OCI_MANIFEST) for each in assembled]
    documents += [Document(index, OCI_INDEX)] if index is not None else []

    def report(done: int, total: int) -> None:
        work.world.report(Step(Stage.PUSHING, 0, 0, done, total))

    # Done a second time, it sends nothing again that the registry has by then.
    await work.with_wheels(lambda: push_image(registry, target, tuple(blobs.values()), documents, report=report))
