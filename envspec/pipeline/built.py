"""The wheels that are built of a lock's sources: recorded by `envspec lock --image`, brought for whoever installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.build.faults import BuildFailed
from envspec.build.make import make
from envspec.build.order import BuildOrder, BuildWorld, Room
from envspec.build.sources import unpack
from envspec.effects.http_values import Patience
from envspec.effects.surroundings import patience as patience_of
from envspec.errors import UnfitMachine
from envspec.facts.load import load_facts
from envspec.fetch.built_wheels import find_built
from envspec.fetch.download import Downloads
from envspec.fetch.values import Archive, Fetching, Network
from envspec.fetch.wheels import fetch_wheels
from envspec.image.order import ImageOrder, ImageWorld
from envspec.install.order import Order
from envspec.lock.document import identity
from envspec.machine import this_platform
from envspec.model import BaseImage, Lock, Package, Platform, Python, Resolution, Target
from envspec.pipeline.doors import Doors
from envspec.registry.client import resolve_digests
from envspec.registry.reference import endpoint, parse

if TYPE_CHECKING:
    from envspec.image.compiling_python import Looking


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
        self._how = how
        self._doors = doors
        self._world: ImageWorld = doors.world

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
                found[each.built.sha256] = (await make(await self._order(each, part), self._building())).path
        return found

    async def _recorded(self, package: Package, part: Resolution) -> Package:
        if package.built or package.file.filename.endswith(".whl"):
            return package
        return replace(package, built=(await make(await self._order(package, part), self._building())).wheel)

    async def _order(self, package: Package, part: Resolution) -> BuildOrder:
        def now() -> datetime:
            return datetime.now(timezone.utc)

        of = f"{package.name} {package.version}"

        async def lay_out(folder: Path) -> Path:
            kept = await fetch_wheels([package], self._how, self._world.environ, now)
            return unpack(kept[package.file.sha256], folder, of)

        own = dict(self._lock.package_as_of).get(package.name, self._lock.as_of)
        return BuildOrder(
            package.name,
            package.version,
            package.file.sha256,
            lay_out,
            part.target,
            max(own, self._lock.as_of),
            package.built,
        )

    def _building(self) -> BuildWorld:
        world = self._world
        try:
            here: Platform | None = this_platform()
        except UnfitMachine:
            here = None
        return BuildWorld(
            environ=world.environ,
            cache=world.cache,
            network=self._how.network,
            here=here,
            now=lambda: datetime.now(timezone.utc),
            warn=world.warn,
            told=world.told,
            interpreter=self._interpreter,
            room=self._room,
        )

    async def _interpreter(self, python: Python) -> Path | None:
        from envspec.image.compiling_python import NoCompiler, find

        looking = self._looking()
        if looking is None:
            return None
        try:
            return (await find(python, looking)).python
        except NoCompiler:
            return None

    def _looking(self) -> Looking | None:
        from envspec.image.compiling_python import Looking

        try:
            here = this_platform()
        except UnfitMachine:
            return None
        return Looking(here, self._world.environ, None, None, None, lambda _: None)

    async def _room(self, target: Target) -> Room:
        """The devel flavour of the lock's base, by its digest, and a Python to build with."""
        base = self._lock.base_image
        if base is None:
            raise UnfitMachine(
                f"{self._lock.name} has no base image whose devel flavour could build what is to be compiled",
                hint="add [cuda] or [image] base to the spec, or name a wheel by its URL",
            )
        name = devel_of(base)
        digest = await self._digest(name, base, target.platform)
        place = endpoint(parse(f"{name}@{digest}"), dict(self._world.mirrors))
        host = place.base.partition("://")[2].partition("/")[0]
        python = await self._standalone(target)
        return Room(f"{host}/{place.repository}@{digest}", place.is_plain, python)

    async def _digest(self, name: str, base: BaseImage, platform: Platform) -> str:
        if name == f"{base.repository}:{base.tag}":
            pinned = next((each.digest for each in base.digests if each.platform is platform and each.digest), None)
            if pinned is not None:
                return pinned
        row = load_facts().digest_of(name.rpartition(":")[2], platform) if base.flavor else None
        if row is not None:
            return row.digest
        if self._how.network is Network.OFFLINE:
            raise UnfitMachine(f"the digest of {name} is not known here", hint="run once without --offline")
        found = await resolve_digests(parse(name), [platform], await self._doors.registry())
        return str(found[0].digest)

    async def _standalone(self, target: Target) -> Path:
        """A standalone build of the target's Python, else the newest of its series: wheels are for a series."""
        python = target.python
        if python.source == "standalone" and python.url and python.sha256:
            row = (python.version, python.url, python.sha256)
        else:
            rows = load_facts().standalone_pythons(python.series, target.platform)
            same = tuple(each for each in rows if each.version == python.version)
            if not rows:
                raise BuildFailed(
                    f"Python {python.series}", f"no standalone build of it is known for {target.platform.value}"
                )
            chosen = (same or rows)[0]
            row = (chosen.version, chosen.url, chosen.sha256)
        archive = Archive(f"Python {row[0]}", row[1], f"cpython-{row[2][:16]}.tar.gz", row[2])
        return (await Downloads(self._how).fetch([archive]))[row[2]]


def devel_of(base: BaseImage) -> str:
    """The image to build in: the base's own devel flavour; of an image that is the user's, that one itself."""
    if base.flavor is None or "devel" in base.flavor:
        return f"{base.repository}:{base.tag}"
    own = base.tag.partition("-")[2].rpartition("-")[0]
    devel = own.replace("runtime", "devel").replace("base", "devel")
    return f"{base.repository}:{base.tag.replace(f'-{own}-', f'-{devel}-')}"
