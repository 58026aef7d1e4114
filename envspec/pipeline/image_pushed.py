"""Whether a registry has under a name what a push would put there; nothing of how images are made is imported."""

from __future__ import annotations

from envspec.effects.event_loop import run_to_end
from envspec.image.order import ImageWorld
from envspec.pipeline.doors import Doors
from envspec.registry.faults import RegistryFault
from envspec.registry.push import held_digest
from envspec.registry.reference import parse


def is_pushed(name: str, digest: str, world: ImageWorld) -> bool:
    """False also where the registry does not say: the push then tells what is wrong.

    Raises:
        RequestFault: the registry can't be reached.
    """
    return run_to_end(_is_pushed(name, digest, world))


async def _is_pushed(name: str, digest: str, world: ImageWorld) -> bool:
    async with Doors(world) as doors:
        try:
            return await held_digest(await doors.registry(), parse(name)) == digest
        except RegistryFault:
            return False
