"""What image to build, and the IDs of images built before, by the lock's bytes and by those of the project's code.

`envspec image id`, and a push of an image that the registry has, read nothing else: few imports.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform as machine
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from envspec.context import Context, comma_separated
from envspec.errors import EnvspecError, UsageError
from envspec.io.cache import JsonCache
from envspec.lockfile.folder import find_lock, read_current
from envspec.lockfile.header import LOCK_FILE
from envspec.version import VERSION

if TYPE_CHECKING:
    from envspec.image.layers.types import Image
    from envspec.image.options import ImageOptions
    from envspec.models import Lock, Package, Platform


#: Part of every key: increase it if the same lock would give another image.
FORM: Final = 4
#: In a lock whose image contains code that is not of the lock, and perhaps in others: of the project, and of folders
#: that another tool's lock names.
_OF_CODE: Final = (b"\nproject = ", b"\ncopy = ", b'\nunbuilt = "locked"')


class CachedIds(Struct, frozen=True):
    """What a build of images gave.

    ids: (platform, image ID).
    digest: of what a push tags.
    sizes: number of layers and their bytes, compressed, of each image.
    """

    ids: tuple[tuple[str, str], ...]
    digest: str
    sizes: tuple[tuple[int, int], ...] = ()


class ImageRequest:
    """An image to build. The lock is read only if the cache does not answer from its bytes alone, and for code."""

    def __init__(
        self,
        lock: str,
        context: Context,
        *,
        platforms: Sequence[str] = (),
        bytecode: bool = True,
        compression: str = "gzip",
        python: Path | None = None,
    ) -> None:
        if python and not (python.is_file() and os.access(python, os.X_OK)):
            raise UsageError(f"--python {python}: there is no such program", hint="name an interpreter: its bin/python")
        self.folder = find_lock(lock, Path())
        self._cache = JsonCache(context.cache / "image-known")
        self._root = context.cache
        self._platforms = platforms
        self._bytecode = bytecode
        self._compression = compression
        self._python = python
        # A Python that the user names may compile otherwise: what it gives is not remembered.
        self._key = None if python else self._current_key()

    def _current_key(self) -> str:
        body = read_current(self.folder, LOCK_FILE)
        document = hashlib.sha256(body).hexdigest()
        where = self._platforms or ("this machine's", machine.system(), machine.machine())
        pyc = "pyc" if self._bytecode else "no-pyc"
        values = [FORM, VERSION, document, *where, pyc, self._compression]
        if _has_code(body) and (self.lock.image.has_code or self.lock.has_folders):
            from envspec.image.code import code_key

            values.append(code_key(self.lock))
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    def secret_files(self) -> tuple[str, ...]:
        """Files of the project in the image whose names are those of secrets; see `image.code.secret_files`."""
        if not _has_code(read_current(self.folder, LOCK_FILE)):
            return ()
        from envspec.image.code import secret_files

        return secret_files(self.lock)

    def cached(self) -> CachedIds | None:
        """The images, if this machine has built them before."""
        if not self._key:
            return None
        return self._cache.read_as(self._key, CachedIds)

    def remember(self, images: Sequence[Image], digest: str) -> CachedIds:
        """The IDs of images, kept for the next time if the cache can be written. digest: of what a push tags."""
        ids: list[tuple[str, str]] = []
        sizes: list[tuple[int, int]] = []
        for image in images:
            ids.append((image.platform.value, image.id))
            sizes.append((len(image.layers), sum(layer.blob.size_bytes for layer in image.layers)))
        found = CachedIds(tuple(ids), digest, tuple(sizes))
        with suppress(EnvspecError, OSError):
            # The build read the code again: after an edit since, the IDs are of other code.
            if self._key and self._key == self._current_key():
                self._cache.write(self._key, found)
        return found

    def missing_wheels(self) -> list[Package]:
        """The wheels of the image that are not in the cache, once each."""
        return missing_wheels(self.options, self._root)

    @cached_property
    def lock(self) -> Lock:
        from envspec.lockfile.folder import read_lock

        return read_lock(self.folder)

    @cached_property
    def options(self) -> ImageOptions:
        return image_options(
            self.lock,
            self._platforms,
            bytecode=self._bytecode,
            compression=self._compression,
            python=self._python.absolute() if self._python else None,
        )


def _has_code(document: bytes) -> bool:
    return any(key in document for key in _OF_CODE)


def image_options(
    lock: Lock,
    platforms: Sequence[str | Platform] = (),
    *,
    bytecode: bool = True,
    compression: str = "gzip",
    python: Path | None = None,
) -> ImageOptions:
    """What to build of a lock. platforms: see `image_platforms`."""
    from envspec.image.layers.types import Compression
    from envspec.image.options import Bytecode, ImageOptions
    from envspec.lockfile.document import identity

    return ImageOptions(
        lock=lock,
        identity=identity(lock),
        platforms=image_platforms(lock, platforms),
        bytecode=Bytecode.COMPILED if bytecode else Bytecode.NONE,
        compression=Compression(compression),
        python=python,
    )


def default_tag(lock: Lock) -> str:
    """The name of a lock's image in tars and engines, if the user gives none."""
    return f"envspec/{lock.name.lower()}:latest"


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


def pushed_name(reference: str, digest: str) -> str:
    """The name of what was pushed, by its digest."""
    from envspec.registry.reference import parse

    return f"{parse(reference).name}@{digest}"


def image_platforms(lock: Lock, named: Sequence[str | Platform]) -> tuple[Platform, ...]:
    """The platforms to build a lock's image for. named: by default this machine's.

    Raises:
        UsageError: the lock has no image for them.
    """
    from envspec.diagnostics.machine import this_platform
    from envspec.models import Platform

    linux = platforms_with_image(lock)
    if named:
        locked = lock.platforms
        chosen = tuple(dict.fromkeys(map(Platform, named)))
        missing = [platform for platform in chosen if platform not in locked]
        if missing:
            raise UsageError(
                f"{lock.name} is not locked for {comma_separated(missing)}", hint=f"use {comma_separated(locked)}"
            )
        return chosen
    local = this_platform()
    if local in linux:
        return (local,)
    if len(linux) > 1:
        raise UsageError(
            f"{lock.name} has images for {comma_separated(linux)}, none for this machine",
            hint="choose by --platform",
        )
    # On a Mac or Windows the engine runs linux containers: the lock's only platform.
    return (linux[0],)


def platforms_with_image(lock: Lock) -> list[Platform]:
    """Those that are linux.

    Raises:
        UsageError: there is none.
    """
    linux = lock.linux_platforms
    if not linux:
        raise UsageError(
            f"{lock.name} has no linux platform, and images are for linux", hint="add linux-64 to [env] platforms"
        )
    return linux


def image_packages(options: ImageOptions) -> list[Package]:
    """The packages of the images, of one platform after the other."""
    found: list[Package] = []
    for part in options.lock.resolutions:
        if part.target.platform in options.platforms:
            found += part.packages
    return found


def missing_wheels(options: ImageOptions, cache: Path) -> list[Package]:
    """The wheels of the images that are not in the cache, once each."""
    from envspec.fetch.wheels import wheel_path

    packages = {wheel_path(cache, each): each for each in image_packages(options)}
    return [package for path, package in packages.items() if not path.is_file()]
