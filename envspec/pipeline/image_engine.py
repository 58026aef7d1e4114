"""Images into this machine's container engine, and by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.errors import UsageError
from envspec.image.assembling import Assembled
from envspec.image.order import ImageOrder, ImageWorld, Stage
from envspec.image.outputs import tar_of
from envspec.pipeline.image_work import ImageWork

if TYPE_CHECKING:
    from envspec.pipeline.image import Outputs


async def load(work: ImageWork, assembled: Sequence[Assembled], tag: str) -> str:
    """Put an image into the engine under a name; what the engine calls it. Layers that it has are not sent.

    Raises:
        UsageError: several platforms. NoEngine, EngineSilent, EngineRefused: the engine fails.
    """
    if len(assembled) > 1:
        raise UsageError("an engine takes the image of one platform", hint="choose it by --platform")
    [one] = assembled
    return await asyncio.to_thread(_load, work, one, tag, asyncio.get_running_loop())


def build_dockerfile(folder: Path, order: ImageOrder, wanted: Outputs, world: ImageWorld) -> str:
    """See `pipeline.image.build_by_docker`."""
    from envspec.engine.docker import open_engine
    from envspec.image.docker_builder import DockerOrder, build

    if wanted.tar or wanted.layout or wanted.push:
        raise UsageError(
            "--builder docker builds into the engine; --output, --layout and --push are the other builder's",
            hint="leave them out, then `docker save` or `docker push` what was built",
        )
    if len(order.platforms) > 1:
        raise UsageError("an engine builds for one platform", hint="choose it by --platform")
    [platform] = order.platforms
    asked = DockerOrder(order.lock, folder, platform, wanted.tag, world.mirrors)
    with open_engine(world.environ) as engine:
        return build(engine, asked, world.environ, world.told)


def _load(work: ImageWork, one: Assembled, tag: str, loop: asyncio.AbstractEventLoop) -> str:
    from envspec.engine.docker import open_engine
    from envspec.image import load as loading

    image = one.image
    with open_engine(work.world.environ) as engine:
        there = loading.find(engine, image)
        if there is None:
            kept = loading.layers_there(engine, image)
            if kept < len(one.base.layers):
                asyncio.run_coroutine_threadsafe(work.fetch_base_layers([one]), loop).result()
            files = loading.files_without(image, [tag], kept)
            total = sum(len(content) if isinstance(content, bytes) else content.size_bytes for _, content in files)
            there = loading.load(engine, image, tar_of(files, work.open, work.counted(Stage.LOADING, total)))
        loading.name_it(engine, there, tag)
    return there
