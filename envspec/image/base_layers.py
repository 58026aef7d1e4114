"""The layers below the wheels, and builds of Python that can compile the image's bytecode."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.context import Context, Step
from envspec.errors import UsageError
from envspec.facts.tables import load_facts
from envspec.fetch.conda_link import LinkTarget, link
from envspec.fetch.download import Downloads, conda_archives
from envspec.fetch.types import Archive, python_archive
from envspec.image.config import Base
from envspec.image.layers.ownership import OwnedPathCache, OwningSource
from envspec.image.layers.partition import partition
from envspec.image.layers.types import PREFIX
from envspec.image.options import ImageStage
from envspec.image.sources.bytecode import PycCompiler, PythonBuild, standalone_build
from envspec.image.sources.conda import CondaSource, conda_sources
from envspec.image.sources.python import StandalonePython, Venv, home_of
from envspec.io.cache import CONDA_PACKAGES, as_cache_error
from envspec.io.file_locks import try_lock
from envspec.models import CondaPackage, Platform, Python, Resolution

_STAGING: Final = "conda-staging"


class BaseLayers(Struct, frozen=True):
    """The layers below the wheels: Python and conda's packages. fetch: fetches what the sources need."""

    sources: tuple[OwningSource, ...]
    fetch: Callable[[], Coroutine[object, object, object]]


class PythonLayers:
    """The base layers of one run's platforms. `close` removes the prefixes of its conda packages.

    local: this machine's platform, None if envspec does not support it. is_known: whether a source's layer is cached.
    """

    def __init__(self, context: Context, local: Platform | None, is_known: Callable[[OwningSource], bool]) -> None:
        self._context = context
        self._local = local
        self._is_known = is_known
        self._owned = OwnedPathCache(context.cache)
        self._staging = context.cache / _STAGING / secrets.token_hex(8)
        self._lock: int | None = None

    def below(self, resolution: Resolution, base: Base, pyc: PycCompiler | None, most: int) -> BaseLayers:
        """At most `most` layers, decided from the lock and the base's config alone.

        Raises:
            UsageError: the lock has no Python for an image.
        """
        python = resolution.target.python
        if resolution.conda:
            folder = self._staging / resolution.target.platform.value
            series = python.series if any(package.name == "python" for package in resolution.conda) else None
            conda = conda_sources(resolution.conda, folder, series, pyc, conda_layer_budget(resolution, most))
            return BaseLayers(conda, lambda: self._link(conda, resolution.conda, resolution.target.platform, folder))
        if resolution.on_top_of and resolution.on_top_of.home:
            below = resolution.on_top_of
            return BaseLayers((Venv(python, below.home, below),), lambda: asyncio.sleep(0))
        if python.source in {"system", "base"}:
            return BaseLayers((Venv(python, home_of(python, base.env)),), lambda: asyncio.sleep(0))
        archive = _archive_of(python)
        if archive is None:
            raise UsageError(
                f"the lock has no build of Python {python.version} for an image",
                hint='set [env] python_source to "standalone" or "system", or add Python to [conda], and lock again',
            )
        names = frozenset(package.name for package in resolution.packages)
        path = archive.path(self._context.cache)
        source = StandalonePython(path, archive.sha256, python.version, names, pyc)
        return BaseLayers((source,), lambda: self._fetch(archive))

    def close(self) -> None:
        """Remove the run's staging folder."""
        if self._lock is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def own_build(self, python: Python, platform: Platform, conda: Sequence[CondaPackage]) -> PythonBuild | None:
        """The image's own Python, if this machine can run it."""
        if platform is not self._local:
            return None
        if conda:
            package = next((package for package in conda if package.name == "python"), None)
            return self._conda_build(package, platform) if package else None
        archive = _archive_of(python)
        if archive is None:
            return None
        known = {row.sha256 for row in load_facts().standalone_pythons(python.series, platform)}
        return self._standalone_build(python, archive, is_known=archive.sha256 in known)

    def other_build(self, python: Python) -> PythonBuild | None:
        """A standalone build of exactly this version for this machine."""
        if self._local is None:
            return None
        rows = load_facts().standalone_pythons(python.series, self._local)
        row = next((row for row in rows if row.version == python.version), None)
        if row is None:
            return None
        return self._standalone_build(python, python_archive(row.version, row.url, row.sha256), is_known=True)

    async def _fetch(self, archive: Archive) -> Path:
        fetched = await Downloads(self._context, stage=ImageStage.FETCHING).fetch([archive])
        return fetched[archive.sha256]

    async def _link(
        self, sources: Sequence[CondaSource], all_packages: Sequence[CondaPackage], platform: Platform, folder: Path
    ) -> None:
        """Link the packages of the layers that are not cached, or whose owned paths are not."""
        context = self._context
        packages: list[CondaPackage] = []
        for source in sources:
            if not (self._is_known(source) and self._owned.has(source)):
                packages += source.packages
        if not packages:
            return
        archives = await Downloads(context, stage=ImageStage.FETCHING).fetch(conda_archives(packages))
        # noarch packages depend on Python's record, even if its own layer is cached.
        python = [each for each in all_packages if each.name == "python" and each not in packages]
        with as_cache_error(self._staging.parent):
            await asyncio.to_thread(self._make_staging, folder)
        existing = frozenset(each.name for each in python)
        into = LinkTarget(folder, f"/{PREFIX}", context.cache / CONDA_PACKAGES, platform, existing, self._lock)

        def linked(done: int, total: int) -> None:
            context.reporter.progress(Step(ImageStage.LINKING, done, total))

        await link([*packages, *python], archives, into, context.environ, linked)

    def _make_staging(self, folder: Path) -> None:
        """Create a platform's folder in the run's own staging folder; remove those of killed runs."""
        folder.mkdir(parents=True)
        if self._lock is not None:
            return
        self._lock = try_lock(self._staging, lambda: os.open(self._staging, os.O_RDONLY))
        for other in self._staging.parent.iterdir():
            if other == self._staging:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                descriptor = try_lock(other, lambda other=other: os.open(other, os.O_RDONLY | os.O_DIRECTORY))  # type: ignore[misc]
                if descriptor is not None:
                    shutil.rmtree(other, ignore_errors=True)
                    os.close(descriptor)

    def _standalone_build(self, python: Python, archive: Archive, *, is_known: bool) -> PythonBuild:
        return standalone_build(
            self._context.cache, python.series, archive.sha256, lambda: self._fetch(archive), is_known=is_known
        )

    def _conda_build(self, package: CondaPackage, platform: Platform) -> PythonBuild:
        context = self._context
        (download,) = conda_archives([package])

        async def unpack(archive: Path, folder: Path) -> None:
            into = LinkTarget(folder, f"/{PREFIX}", context.cache / CONDA_PACKAGES, platform)
            await link([package], {package.sha256: archive}, into, context.environ, lambda _done, _total: None)

        series = ".".join(package.version.split(".")[:2])
        folder = context.cache / "pythons" / package.sha256
        return PythonBuild(folder, f"bin/python{series}", lambda: self._fetch(download), unpack)


def conda_layer_budget(resolution: Resolution, most: int) -> int:
    """The maximum number of conda's layers: a proportional share if conda's packages and the wheels need too many.

    most: for both together, less the one layer that wheels need at least.
    """
    conda = len(partition([(each.name, each.size_bytes) for each in resolution.conda], most))
    files = [(each.name, each.wheel.size_bytes) for each in resolution.packages]
    wheels = len(partition(files, most))
    if conda + wheels <= most + 1:
        # Not `conda`: the number of buckets, and so their content, follows from the budget.
        return most
    return max(1, min(most, (most + 1) * conda // (conda + wheels)))


def _archive_of(python: Python) -> Archive | None:
    return python_archive(python.version, python.url, python.sha256) if python.url and python.sha256 else None
