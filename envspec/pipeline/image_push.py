"""Images into a registry: what it lacks is sent, and the tag is set last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from envspec.image.assembling import Assembled
from envspec.image.index_document import OCI_CONFIG
from envspec.image.layer import Layer
from envspec.image.order import Stage
from envspec.image.recipe import Gone
from envspec.pipeline.image_work import ImageWork, together
from envspec.registry.blob import Descriptor
from envspec.registry.client import Registry
from envspec.registry.manifest import OCI_INDEX, OCI_MANIFEST
from envspec.registry.pull import receive
from envspec.registry.push import Sending, push_blob, push_manifest, push_pieces
from envspec.registry.reference import Reference, endpoint, parse

Report = Callable[[int], None]


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
    sent: set[str] = set()
    total = sum(
        {layer.blob.digest: layer.blob.size_bytes for each in assembled for layer in each.image.layers}.values()
    )
    moved = work.counted(Stage.PUSHING, total)
    tasks: list[Awaitable[object]] = []
    for each in assembled:
        base = parse(each.base.name)
        below = len(each.base.layers)
        for place, layer in enumerate(each.image.layers):
            if layer.blob.digest in sent:
                continue
            sent.add(layer.blob.digest)
            if place < below:
                tasks.append(_push_of_base(work, registry, base, target, layer, moved))
            else:
                tasks.append(_push_own(work, registry, target, layer, moved))
        config = Descriptor(OCI_CONFIG, each.image.id, len(each.image.config))
        tasks.append(push_blob(registry, target, _InMemory(config, each.image.config)))
    await together(work.order.jobs, tasks)
    if index is None:
        await push_manifest(registry, target, assembled[0].image.manifest, OCI_MANIFEST)
        return
    for each in assembled:
        by_digest = Reference(target.registry, target.repository, None, each.image.digest, target.scheme)
        await push_manifest(registry, by_digest, each.image.manifest, OCI_MANIFEST)
    await push_manifest(registry, target, index, OCI_INDEX)


async def _push_own(work: ImageWork, registry: Registry, target: Reference, layer: Layer, moved: Report) -> None:
    """A layer that was made here; where a wheel of it left the cache since, it is fetched again."""
    try:
        blob = work.open(layer.blob)
    except Gone:
        await work.fetch_again()
        blob = work.open(layer.blob)
    await push_blob(registry, target, blob, report=moved)


async def _push_of_base(
    work: ImageWork, registry: Registry, base: Reference, target: Reference, layer: Layer, moved: Report
) -> None:
    """A layer of the base: mounted where both are in one registry, else copied through, without a file here."""
    if work.blobs.has(layer.blob.digest):
        await push_blob(registry, target, work.blobs.open(layer.blob), _beside(work, base, target), moved)
        return
    pieces = partial(receive, registry, base, layer.blob)
    await push_pieces(registry, target, layer.blob, pieces, Sending(_beside(work, base, target), moved))


def _beside(work: ImageWork, base: Reference, target: Reference) -> tuple[str, ...]:
    """The base's repository, if it is in the registry that is pushed to."""
    place = endpoint(base, work.world.mirrors)
    return (place.repository,) if place.base == endpoint(target).base else ()
