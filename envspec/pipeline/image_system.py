"""The system layer of an image: from the cache, else made in a container of the base."""

from __future__ import annotations

from envspec.fetch.values import Step
from envspec.image.config import Base
from envspec.image.content import Source
from envspec.image.layer import Compression, Layer
from envspec.image.order import Stage
from envspec.image.system_changes import SystemSource
from envspec.image.system_layer import SystemOrder, World, make_system_layer
from envspec.model import Platform, SystemLayer
from envspec.pipeline.image_work import ImageWork


async def system_layer(platform: Platform, base: Base, work: ImageWork) -> tuple[SystemLayer, Source]:
    """The layer of the packages that `[system]`, the services and the compiler want.

    Raises:
        NoEngine: it has to be made, and nothing here can run a container. SystemDiffers: not what the lock says.
    """
    lock, world = work.order.lock, work.world
    locked = next((row for row in lock.system if row.platform is platform and row.base == base.manifest), None)
    if locked is not None and locked.apt != lock.image.apt:
        locked = None
    name = base.name.rpartition(":")[0] if ":" in base.name.rpartition("/")[2] else base.name
    order = SystemOrder(
        platform,
        f"{name}@{base.digest}",
        base.manifest,
        lock.image.apt,
        lock.image.snapshot,
        locked,
        tuple(sorted(world.mirrors.items())),
    )

    def made(source: SystemSource) -> Layer:
        return work.store.make(source, Compression.GZIP)

    def told(line: str) -> None:
        world.report(Step(Stage.SYSTEM))
        world.told(line)

    return await make_system_layer(order, World(world.environ, world.cache, made, told, world.warn))
