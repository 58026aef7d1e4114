"""What lies below the wheels, and who compiles modules: put together for one run."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.facts.tables import load_facts
from envspec.fetch.conda_link import LinkTarget, link
from envspec.fetch.download import Downloads, conda_archives
from envspec.fetch.types import Archive, Fetching, python_archive
from envspec.image.build import Below, Foundation
from envspec.image.layers.ownership import OwnedLists, Owner, owners_of
from envspec.image.layers.partition import cut
from envspec.image.layers.types import PREFIX
from envspec.image.sources.bytecode import Build, standalone_program, unpack_standalone
from envspec.image.sources.conda import CondaSource, check_paths, conda_sources
from envspec.image.sources.python import StandalonePython, Venv, home_of
from envspec.io.cache import CONDA_PACKAGES, as_cache_error
from envspec.io.file_locks import try_lock
from envspec.models import CondaPackage, Platform, Python, Resolution

_STAGING: Final = "conda-staging"


@dataclass(frozen=True, slots=True)
class Around:
    """What a run brings. is_known: whether the store has a source's layer. linking: told how many of how many packages.

    here: this machine's platform, None where envspec locks nothing for it.
    """

    cache: Path
    environ: Mapping[str, str]
    fetching: Fetching
    here: Platform | None
    is_known: Callable[[Owner], bool]
    linking: Callable[[int, int], None]


class PythonParts:
    """The layers below the wheels of one run's platforms. `close` removes what conda's packages were linked into."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._owned = OwnedLists(around.cache)
        self._staging = around.cache / _STAGING / secrets.token_hex(8)
        self._held: int | None = None

    def below(self, foundation: Foundation) -> Below:
        """Decided from the lock and the base's config alone.

        Raises:
            UsageError: the lock names no Python that an image could have.
        """
        sources, bring = self._sources(foundation)

        def owners() -> dict[str, str]:
            return owners_of(self._owned.of(source) for source in sources)

        return Below(sources, bring, owners)

    def close(self) -> None:
        """Remove what was linked for this run."""
        if self._held is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
            os.close(self._held)
            self._held = None

    def own_build(self, python: Python, platform: Platform, conda: Sequence[CondaPackage]) -> Build | None:
        """The Python of the image itself, where this machine can run it."""
        if platform is not self._around.here:
            return None
        if conda:
            rows = [package for package in conda if package.name == "python"]
            return self._conda_build(rows[0], platform) if rows else None
        archive = _archive_of(python)
        known = {row.sha256 for row in load_facts().standalone_pythons(python.series, platform)}
        is_known = archive is not None and archive.sha256 in known
        return self._standalone_build(python.version, archive, is_known)

    def other_build(self, python: Python) -> Build | None:
        """A standalone build of the same exact version that this machine can run."""
        if self._around.here is None:
            return None
        rows = load_facts().standalone_pythons(python.series, self._around.here)
        row = next((row for row in rows if row.version == python.version), None)
        if row is None:
            return None
        return self._standalone_build(row.version, python_archive(row.version, row.url, row.sha256), is_known=True)

    def _sources(
        self, foundation: Foundation
    ) -> tuple[tuple[Owner, ...], Callable[[], Coroutine[object, object, None]]]:
        resolution, pyc = foundation.resolution, foundation.pyc
        python = resolution.target.python
        if resolution.conda:
            folder = self._staging / resolution.target.platform.value
            series = python.series if any(package.name == "python" for package in resolution.conda) else None
            conda = conda_sources(resolution.conda, folder, series, pyc, share_of_conda(resolution, foundation.most))
            return conda, lambda: self._link(conda, resolution.conda, resolution.target.platform, folder)
        if python.source in {"system", "base"}:
            return (Venv(python, home_of(python, _environ_of(foundation))),), _nothing
        archive = _archive_of(python)
        if archive is None:
            raise UsageError(
                f"the lock is for Python {python.version}, and names no build of it that an image could have",
                hint='set [env] python_source to "standalone" or "system", or take Python from conda, and lock again',
            )
        names = frozenset(package.name for package in resolution.packages)
        path = archive.path(self._around.cache)
        return (StandalonePython(path, archive.sha256, python.version, names, pyc),), lambda: self._fetch([archive])

    async def _fetch(self, archives: Sequence[Archive]) -> None:
        await Downloads(self._around.fetching).fetch(archives)

    async def _link(
        self, sources: Sequence[CondaSource], all_packages: Sequence[CondaPackage], platform: Platform, folder: Path
    ) -> None:
        """Link the packages of the layers that are not known yet, or of which nobody knows what they own."""
        around = self._around
        missing = [each for each in sources if not (around.is_known(each) and self._owned.known(each))]
        packages = [package for source in missing for package in source.packages]
        if not packages:
            return
        kept = await Downloads(around.fetching).fetch(conda_archives(packages))
        await check_paths(packages, kept)
        # What noarch packages become follows from Python's row, whether it is linked here or is in a known layer.
        there = [each for each in all_packages if each.name == "python" and each not in packages]
        with as_cache_error(self._staging.parent):
            await asyncio.to_thread(self._make_staging, folder)
        into = LinkTarget(
            folder,
            f"/{PREFIX}",
            around.cache / CONDA_PACKAGES,
            platform,
            frozenset(each.name for each in there),
            self._held,
        )
        await link([*packages, *there], kept, into, around.environ, around.linking)

    def _make_staging(self, folder: Path) -> None:
        """A folder for one platform in this run's own; what killed runs left goes."""
        folder.mkdir(parents=True)
        if self._held is not None:
            return
        self._held = try_lock(self._staging, lambda: os.open(self._staging, os.O_RDONLY))
        for other in self._staging.parent.iterdir():
            if other == self._staging:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                descriptor = try_lock(other, lambda other=other: os.open(other, os.O_RDONLY | os.O_DIRECTORY))  # type: ignore[misc]
                if descriptor is not None:
                    shutil.rmtree(other, ignore_errors=True)
                    os.close(descriptor)

    def _standalone_build(self, version: str, archive: Archive | None, is_known: bool) -> Build | None:  # noqa: FBT001
        if archive is None:
            return None

        async def fetch() -> Path:
            return (await Downloads(self._around.fetching).fetch([archive]))[archive.sha256]

        series = ".".join(version.split(".")[:2])
        program = standalone_program(series)
        return Build(self._around.cache, archive.sha256, program, fetch, unpack_standalone, is_known)

    def _conda_build(self, row: CondaPackage, platform: Platform) -> Build:
        around = self._around

        async def fetch() -> Path:
            return (await Downloads(around.fetching).fetch(conda_archives([row])))[row.sha256]

        async def unpack(archive: Path, folder: Path) -> None:
            into = LinkTarget(folder, f"/{PREFIX}", around.cache / CONDA_PACKAGES, platform)
            await link([row], {row.sha256: archive}, into, around.environ, lambda _done, _total: None)

        series = ".".join(row.version.split(".")[:2])
        return Build(around.cache, row.sha256, f"bin/python{series}", fetch, unpack)


def share_of_conda(resolution: Resolution, most: int) -> int:
    """How many layers conda's packages may have: their share, where they and the wheels want more than there are.

    most: of both together, less the one that wheels need at least.
    """
    conda = len(cut([(each.name, each.size_bytes) for each in resolution.conda], most))
    wheels = len(cut([(each.name, (each.built or each.file).size_bytes) for each in resolution.packages], most))
    if conda + wheels <= most + 1:
        # Not `conda`: how many buckets there are follows from the room, and so would what is in each.
        return most
    return max(1, min(most, (most + 1) * conda // (conda + wheels)))


def _archive_of(python: Python) -> Archive | None:
    return python_archive(python.version, python.url, python.sha256) if python.url and python.sha256 else None


def _environ_of(foundation: Foundation) -> dict[str, str]:
    config = foundation.base.config.get("config")
    rows = config.get("Env") if isinstance(config, Mapping) else None
    return dict(str(row).partition("=")[::2] for row in rows) if isinstance(rows, Sequence) else {}


async def _nothing() -> None:
    """A venv is made of nothing that would have to be fetched."""
