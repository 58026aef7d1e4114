"""Where wheels are built: this machine's Pythons, and the devel flavour of a lock's base."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.base_image.image import choose_image, custom_image
from envspec.base_image.release import Release
from envspec.base_image.request import NoSuchImage
from envspec.build.faults import BuildFailed
from envspec.build.order import BuildWorld, Room
from envspec.errors import UnfitMachine
from envspec.facts import Facts
from envspec.facts.load import load_facts
from envspec.fetch.download import Downloads
from envspec.fetch.values import Fetching, Network, python_archive
from envspec.machine import this_platform
from envspec.model import BaseImage, Decision, Platform, Python, Target
from envspec.pipeline.doors import Doors
from envspec.registry.client import resolve_digests
from envspec.registry.reference import endpoint, parse
from envspec.spec import Spec

if TYPE_CHECKING:
    from envspec.image.compiling_python import Looking


class Workshop:
    """of: whose builds these are, for messages. base: the image that the wheels are to load beside."""

    def __init__(self, of: str, base: BaseImage | None, how: Fetching, doors: Doors) -> None:
        self._of = of
        self._base = base
        self._how = how
        self._doors = doors
        self._world = doors.world

    def world(self) -> BuildWorld:
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
            unconfined=world.unconfined,
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
        base = self._base
        if base is None:
            raise UnfitMachine(
                f"{self._of} has no base image whose devel flavour could build what is to be compiled",
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
            archive = python_archive(python.version, python.url, python.sha256)
        else:
            rows = load_facts().standalone_pythons(python.series, target.platform)
            same = tuple(each for each in rows if each.version == python.version)
            if not rows:
                raise BuildFailed(
                    f"Python {python.series}", f"no standalone build of it is known for {target.platform.value}"
                )
            chosen = (same or rows)[0]
            archive = python_archive(chosen.version, chosen.url, chosen.sha256)
        return (await Downloads(self._how).fetch([archive]))[archive.sha256]


def own_base(spec: Spec, facts: Facts) -> BaseImage | None:
    """The image to build for before anything is resolved: the spec's own base, or the devel image of its CUDA.

    None where the spec names neither: what is to be compiled for it can't be built.
    """
    linux = [platform for platform in spec.env.platforms if platform.is_linux]
    if spec.image.base is not None:
        return custom_image(spec.image.base, "", linux, facts).image
    if spec.cuda is None or spec.cuda.version is None:
        return None
    flavor = Decision("image.flavor", "devel", "wheels are built in it")
    try:
        release = Release(spec.cuda.version, None, flavor)
        return choose_image(release, [flavor], spec.cuda.os.value, linux, facts).image
    except NoSuchImage:
        return None


def devel_of(base: BaseImage) -> str:
    """The image to build in: the base's own devel flavour; of an image that is the user's, that one itself."""
    if base.flavor is None or "devel" in base.flavor:
        return f"{base.repository}:{base.tag}"
    own = base.tag.partition("-")[2].rpartition("-")[0]
    devel = own.replace("runtime", "devel").replace("base", "devel")
    return f"{base.repository}:{base.tag.replace(f'-{own}-', f'-{devel}-')}"
