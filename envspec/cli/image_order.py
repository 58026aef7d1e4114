"""A lock on the command line with the options by which images are made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envspec.errors import UsageError
from envspec.image.id_cache import CachedIds, key_of, read_ids, write_ids

if TYPE_CHECKING:
    from envspec.image.layers.types import Image
    from envspec.image.options import ImageOrder
    from envspec.models import Lock, Platform


class Opened:
    """What is asked for. The lock is not read before something is not known from its bytes alone."""

    def __init__(self, lock: str, chosen: Mapping[str, Any]) -> None:
        from envspec.io.cache import cache_root
        from envspec.lockfile.folder import find_lock, read_current
        from envspec.lockfile.header import LOCK_FILE

        _check(chosen)
        self.folder = find_lock(lock, Path())
        self._chosen = chosen
        self._cache = cache_root(os.environ)
        bytecode = "no-pyc" if chosen["no_pyc"] else "pyc"
        # A Python of the user's choice may compile otherwise: what came of that is not remembered.
        self._key = (
            None
            if chosen["python"]
            else key_of(
                read_current(self.folder, LOCK_FILE),
                *(chosen["platforms"] or _here()),
                bytecode,
                str(chosen.get("compression", "gzip")),
            )
        )

    def known(self) -> CachedIds | None:
        """The images, where this machine has made them before."""
        return read_ids(self._cache, self._key) if self._key else None

    def remember(self, images: Sequence[Image], digest: str) -> None:
        """Keep what came of it. digest: of the manifest, or of the index of several."""
        if self._key:
            write_ids(self._cache, self._key, [(image.platform.value, image.id) for image in images], digest)

    @cached_property
    def lock(self) -> Lock:
        from envspec.lockfile.folder import read_lock

        return read_lock(self.folder)

    @cached_property
    def order(self) -> ImageOrder:
        from envspec.fetch.types import Network
        from envspec.image.layers.types import Compression
        from envspec.image.options import Bytecode, ImageOrder
        from envspec.lockfile.document import identity

        chosen = self._chosen
        return ImageOrder(
            lock=self.lock,
            identity=identity(self.lock),
            platforms=_platforms(self.lock, chosen["platforms"]),
            bytecode=Bytecode.NONE if chosen["no_pyc"] else Bytecode.COMPILED,
            compression=Compression(chosen.get("compression", "gzip")),
            python=chosen["python"].absolute() if chosen["python"] else None,
            network=Network.OFFLINE if chosen["offline"] else Network.USE,
            jobs=chosen["jobs"] or os.cpu_count() or 1,
        )


def _check(chosen: Mapping[str, Any]) -> None:
    """What is wrong is told even where the image is known and nothing of it is needed.

    Raises:
        UsageError: an option whose value is none.
    """
    from envspec.cli.image_world import mirrors_of

    mirrors_of(chosen["mirrors"])
    if chosen.get("tag"):
        tag_of(chosen["tag"])
    python: Path | None = chosen["python"]
    if python and not (python.is_file() and os.access(python, os.X_OK)):
        raise UsageError(f"--python {python}: there is no such program", hint="name an interpreter: its bin/python")


def tag_of(text: str) -> str:
    """`name:tag`, as engines read it.

    Raises:
        UsageError: no name that an image can have.
    """
    from envspec.registry.reference import BadReference, parse

    named = parse(text)
    if named.digest or named.scheme:
        raise BadReference(text, "it is more than a name and a tag", "the form is NAME:TAG: team/training:2")
    return text if named.tag else f"{text}:latest"


def _here() -> tuple[str, ...]:
    """The machine, in words that cost no import."""
    import platform

    return ("this machine's", platform.system(), platform.machine())


def _platforms(lock: Lock, named: Sequence[str]) -> tuple[Platform, ...]:
    from envspec.diagnostics.machine import this_platform
    from envspec.models import Platform

    locked = [resolution.target.platform for resolution in lock.resolutions]
    linux = [platform for platform in locked if platform.is_linux]
    if not linux:
        raise UsageError(
            f"{lock.name} has no linux platform, and images are for linux", hint="add linux-64 to [env] platforms"
        )
    if named:
        wanted = tuple(dict.fromkeys(map(Platform, named)))
        missing = [platform.value for platform in wanted if platform not in locked]
        if missing:
            raise UsageError(
                f"{lock.name} is not locked for {', '.join(missing)}",
                hint=f"it has {', '.join(platform.value for platform in locked)}",
            )
        return wanted
    here = this_platform()
    # A container runs on a Mac's or a Windows machine's engine: the only one that the lock has is meant there.
    if here in linux or len(linux) > 1:
        if here not in linux:
            raise UsageError(
                f"{lock.name} has images for {', '.join(platform.value for platform in linux)}, none for this machine",
                hint="choose by --platform",
            )
        return (here,)
    return (linux[0],)
