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
from envspec.errors import NetworkError, StaleLock
from envspec.fetch.built_wheels import PLACE, find_built
from envspec.fetch.values import Fetching
from envspec.fetch.wheel_urls import PYTORCH
from envspec.fetch.wheels import fetch_wheels
from envspec.image.order import ImageOrder, ImageWorld
from envspec.install.order import Order
from envspec.lock.document import identity
from envspec.model import DEFAULT_INDEX, DIRECT_URL, GIT, LOCAL, Lock, NamedIndex, Package, Platform, Python, Resolution
from envspec.pipeline.doors import Doors
from envspec.pipeline.work import SOURCE
from envspec.pipeline.workshop import Workshop
from envspec.spec.git_address import GitAddress, read_git
from envspec.spec.requirements import read_requirement

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


async def installed(order: Order, python: Path, world: ImageWorld) -> tuple[Resolution, Mapping[str, Path]]:
    """What is to be installed, with a wheel of every source, and SHA-256 -> file of these; see `Builds.install`."""
    patience = patience_of(world.environ, Patience())
    how = Fetching(world.cache, patience, order.network, order.jobs, lambda _: None, world.warn)
    async with Doors(world) as doors:
        return await Builds(order.lock, how, doors).install(order.resolution, python)


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

    async def install(self, part: Resolution, python: Path) -> tuple[Resolution, Mapping[str, Path]]:
        """The resolution with a wheel of every source, and SHA-256 -> file in the cache of these.

        Those that the lock records no wheel of are built for this machine alone, by `python` and with the compilers
        that are here.

        Raises:
            As `bring`.
        """

        async def interpreter(_: Python) -> Path:
            return python

        world = replace(self._shop.world(), interpreter=interpreter)
        found = dict(await self.bring(part.packages, part))
        packages = []
        for each in part.packages:
            if not _is_open(each):
                packages.append(each)
                continue
            made = await make(replace(await self._order(each, part), compiles=True), world)
            found[made.wheel.sha256] = made.path
            packages.append(replace(each, built=made.wheel))
        return replace(part, packages=tuple(packages)), found

    async def _recorded(self, package: Package, part: Resolution) -> Package:
        if not _is_open(package):
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
        wanted = Wanted(package.name, package.version, part.target, as_of, self._indexes(package), package.built)
        if file.index == LOCAL:
            raise NetworkError(
                f"{wanted.of} was built of the folder {(file.url or '').partition('#')[0]}, and its wheel is not here",
                hint=f"name by {PLACE} where the cache's `archives` folder of who locked it is served, or a copy of it",
            )
        if file.index == GIT:
            address = read_git(file.url or "")
            return of_git(
                wanted, self._named(package.name, address), address.ref, self._world.environ, self._how.network
            )
        return of_sdist(wanted, file.sha256, fetch)

    def _named(self, name: str, address: GitAddress) -> GitAddress:
        """The address with the ref of which the spec takes the commit, where no branch and no tag may have it."""
        sources = (each.source for each in self._lock.decisions if each.what == SOURCE + name)
        ref = read_git(next((read_requirement(text).url or "" for text in sources), "")).ref
        is_other = ref.startswith("refs/") and not ref.startswith(("refs/heads/", "refs/tags/"))
        return replace(address, ref=ref) if is_other else address

    def _indexes(self, package: Package) -> tuple[NamedIndex, ...]:
        """The spec's own indexes, as the lock records them.

        Raises:
            StaleLock: it has packages of one that it does not record, as locks were before they did.
        """
        lock = self._lock
        known = {DEFAULT_INDEX, DIRECT_URL, GIT, LOCAL, *(index.name for index in lock.indexes)}
        used = {each.file.index for part in lock.resolutions for each in part.packages}
        unknown = sorted(name for name in used - known if not name.startswith(PYTORCH))
        if unknown:
            raise StaleLock(
                f"{package.name} {package.version} can't be built: the lock of {lock.name} does not record which names "
                f"index {unknown[0]} gives, and what builds it might come from another",
                hint="run `envspec lock SPEC` to record it",
            )
        return lock.indexes


def _is_open(package: Package) -> bool:
    """Whether it is a source of which the lock records no wheel."""
    return package.built is None and not package.file.filename.endswith(".whl")
