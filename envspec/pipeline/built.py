"""The wheels that are built of a lock's sources: recorded by `envspec lock --image`, brought for whoever installs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from envspec.build.make import make
from envspec.build.order import BuildOrder
from envspec.build.orders import Wanted, of_git, of_sdist
from envspec.build.wheel_bytes import contents_of
from envspec.effects.http_values import Patience
from envspec.effects.surroundings import patience as patience_of
from envspec.errors import NetworkError
from envspec.fetch.built_wheels import PLACE, find_built
from envspec.fetch.values import Fetching
from envspec.fetch.wheels import fetch_wheels
from envspec.image.order import ImageOrder, ImageWorld
from envspec.install.order import Order
from envspec.lock.document import identity
from envspec.model import DIRECT_URL, GIT, LOCAL, Lock, Package, Platform, Resolution
from envspec.pipeline.doors import Doors
from envspec.pipeline.workshop import Workshop
from envspec.spec.git_address import read_git

_EVER: Final = datetime.min.replace(tzinfo=timezone.utc)


async def with_built(order: ImageOrder, how: Fetching, doors: Doors) -> ImageOrder:
    """The order with the wheels of all sources in its lock, built where that has none yet.

    Raises:
        BuildFailed, UnfitMachine, NetworkError: see `envspec.build.make`.
    """
    lock = order.lock
    for platform in order.platforms:
        lock = await Builds(lock, how, doors).record(platform)
    return order if lock == order.lock else replace(order, lock=lock, identity=identity(lock))


async def installed(order: Order, world: ImageWorld) -> Mapping[str, Path]:
    """SHA-256 -> file of the built wheels that an installation wants; see `Builds.bring`."""
    patience = patience_of(world.environ, Patience())
    how = Fetching(world.cache, patience, order.network, order.jobs, lambda _: None, world.warn)
    async with Doors(world) as doors:
        return await Builds(order.lock, how, doors).bring(order.resolution.packages, order.resolution)


class Builds:
    """The builds of one lock. doors: for the registry that has the devel base."""

    def __init__(self, lock: Lock, how: Fetching, doors: Doors) -> None:
        self._lock = lock
        self._moments = dict(lock.package_as_of)
        self._how = how
        self._world: ImageWorld = doors.world
        self._shop = Workshop(lock.name, lock.base_image, how, doors)

    async def record(self, platform: Platform) -> Lock:
        """The lock with the wheel of every source of one platform that has none yet.

        Raises:
            BuildFailed, UnfitMachine, NetworkError: see `envspec.build.make`.
        """
        resolutions = []
        for part in self._lock.resolutions:
            if part.target.platform is platform:
                packages = [await self._recorded(each, part) for each in part.packages]
                part = replace(part, packages=tuple(packages))  # noqa: PLW2901
            resolutions.append(part)
        return replace(self._lock, resolutions=tuple(resolutions))

    async def bring(self, packages: Sequence[Package], part: Resolution) -> Mapping[str, Path]:
        """SHA-256 -> file in the cache, of the built wheels among these: from the cache, from others, else built again.

        Raises:
            OtherWheel: the build gave other bytes than the lock records; and as `record`.
        """
        wanted = [each for each in packages if each.built]
        if not wanted:
            return {}
        found = dict(await find_built(wanted, self._how, self._world.environ))
        for each in wanted:
            if each.built and each.built.sha256 not in found:
                found[each.built.sha256] = (await make(await self._order(each, part), self._shop.world())).path
        return found

    async def _recorded(self, package: Package, part: Resolution) -> Package:
        if package.built or package.file.filename.endswith(".whl"):
            return package
        made = await make(await self._order(package, part), self._shop.world())
        return replace(package, built=made.wheel, contents=await asyncio.to_thread(contents_of, made.path))

    async def _order(self, package: Package, part: Resolution) -> BuildOrder:
        def now() -> datetime:
            return datetime.now(timezone.utc)

        async def fetch() -> Path:
            # The sdist itself, whatever is built of it.
            kept = await fetch_wheels([replace(package, built=None)], self._how, self._world.environ, now)
            return kept[package.file.sha256]

        lock, file = self._lock, package.file
        as_of = (
            lock.as_of if file.index in {DIRECT_URL, GIT} else max(lock.as_of, self._moments.get(package.name, _EVER))
        )
        wanted = Wanted(package.name, package.version, part.target, as_of, package.built)
        if file.index == LOCAL:
            raise NetworkError(
                f"{wanted.of} was built of the folder {(file.url or '').partition('#')[0]}, and its wheel is not here",
                hint=f"name by {PLACE} where the cache's `archives` folder of who locked it is served, or a copy of it",
            )
        if file.index == GIT:
            address = read_git(file.url or "")
            return of_git(wanted, address, address.ref, self._world.environ, self._how.network)
        return of_sdist(wanted, file.sha256, fetch)
