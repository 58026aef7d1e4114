"""The ways of making an image that are measured: how each is brought to a state, and asked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from bench import image_recipes
from bench.environment import clean
from bench.image_engine import Engine
from bench.image_recipes import Recipe
from bench.image_stack import Locked
from bench.measure import run
from bench.workshop import NotHere

Command = list[str | Path]

#: What of envspec's cache is not made from wheels: the wheels themselves, and pages of the index.
_OF_WHEELS: Final = ("archives", "index")


class Fresh(Enum):
    """What a build may use of the builds before it."""

    ALL = "all that the tool keeps"
    WHEELS = "the wheels that the tool keeps, and no layer"


@dataclass(frozen=True, slots=True)
class Order:
    """What is run. push: where it is a command of its own. environ: variables beside the place's."""

    build: Command
    push: Command | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tool works. folder: its own, emptied at the start of a round. base: with registry and tag.

    index: simple pages of the loopback index. registry: host and port.
    """

    folder: Path
    engine: Engine
    registry: str
    base: str
    index: str

    @property
    def environ(self) -> dict[str, str]:
        """Variables of every command: a home of the tool's own, and no proxy."""
        return clean(os.environ, home=self.folder, proxy=None)


class Tool(Protocol):
    """A way of making an image and bringing it into a registry."""

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str:
        """How it works, and what its numbers cannot be compared in."""

    def open(self, place: Place) -> None:
        """Empty caches, the base image pulled where the tool wants it beforehand.

        Raises:
            NotHere: what it needs is missing.
        """

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        """Make the image and bring it into the registry; the state is brought to `fresh` before."""

    def close(self, place: Place) -> None:
        """Take away what it has."""


@dataclass(frozen=True, slots=True)
class Direct:
    """envspec, by direct assembly."""

    name: str
    options: tuple[str, ...]
    note: str

    def open(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        cache = place.folder / "cache"
        if fresh is Fresh.WHEELS:
            for part in cache.iterdir():
                if part.name not in _OF_WHEELS:
                    shutil.rmtree(part)
        environ = {
            "ENVSPEC_CACHE_DIR": str(cache),
            "ENVSPEC_DEFAULT_INDEX": place.index,
            "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={place.registry}",
        }
        script = Path(sys.executable).with_name("envspec")
        return Order([script, "image", "build", locked.folder, *self.options, "--push", image], environ=environ)

    def close(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Docker:
    """docker build with BuildKit, then docker push."""

    name: str
    recipe: Recipe
    note: str

    def open(self, place: Place) -> None:
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)
        place.engine.start_empty(place.environ)
        place.engine.tell(place.environ, "pull", "--quiet", place.base)

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        context = image_recipes.write(self.recipe, place.folder / "context", locked.requirements)
        # Cache mounts outlive --no-cache.
        anew = ("--no-cache",) if fresh is Fresh.WHEELS else ()
        arguments = image_recipes.arguments(self.recipe, place.base, place.index)
        return Order(
            place.engine.command("build", "--network=host", "--quiet", *anew, *arguments, "--tag", image, context),
            place.engine.command("push", "--quiet", image),
            {"DOCKER_BUILDKIT": "1"},
        )

    def close(self, place: Place) -> None:
        place.engine.remove()
        shutil.rmtree(place.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah build, then buildah push, with a store of its own."""

    name: str
    recipe: Recipe
    compression: str
    note: str

    def open(self, place: Place) -> None:
        self.close(place)
        if shutil.which("buildah") is None:
            raise NotHere("buildah is not installed (Debian's package buildah)")
        place.folder.mkdir(parents=True)
        pulled = run(
            [*self._buildah(place), "pull", "--quiet", "--tls-verify=false", place.base],
            cwd=place.folder,
            env=place.environ,
            limit_s=120,
        )
        if not pulled.is_done:
            raise NotHere(f"buildah pull: {pulled.said}")

    def order(self, place: Place, locked: Locked, image: str, fresh: Fresh) -> Order:
        context = image_recipes.write(self.recipe, place.folder / "context", locked.requirements)
        anew = ("--no-cache",) if fresh is Fresh.WHEELS else ("--layers",)
        build = ("build", "--isolation=chroot", "--network=host", "--tls-verify=false", "--quiet", *anew)
        push = ("push", "--quiet", "--tls-verify=false", f"--compression-format={self.compression}", image)
        arguments = image_recipes.arguments(self.recipe, place.base, place.index)
        buildah = self._buildah(place)
        return Order([*buildah, *build, *arguments, "--tag", image, context], [*buildah, *push])

    def close(self, place: Place) -> None:
        if place.folder.exists() and shutil.which("buildah"):
            command = [*self._buildah(place), "rm", "--all"]
            run(command, cwd=place.folder, env=place.environ, limit_s=60)
        shutil.rmtree(place.folder, ignore_errors=True)

    def _buildah(self, place: Place) -> Command:
        store = place.folder / "store"
        return ["buildah", "--storage-driver=overlay", "--root", store / "root", "--runroot", store / "run"]
