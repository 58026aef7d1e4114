"""The stages of an installation, in order. Nothing is resolved: the lock says it all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from envspec.errors import NetworkError, UnfitMachine, UsageError
from envspec.fetch.download import Downloads, conda_archives, missing_bytes
from envspec.fetch.types import Archive, Count, Fetching, Step, WrongArchive, python_archive
from envspec.installer import conda, preflight, python, staging, uv
from envspec.installer import conda as owners
from envspec.installer.staging import relocate
from envspec.installer.types import InstallRequest, InstallStage, World
from envspec.io.files import DiskFull
from envspec.io.http_settings import timeouts as patience_of
from envspec.io.http_types import Timeouts
from envspec.io.tasks import run_interruptible


class Outcome(Enum):
    """What came of an installation."""

    MADE = "made"
    THERE = "it was there already"


def install(order: InstallRequest, world: World) -> Outcome:
    """Make the environment at `order.prefix`, whole or not at all.

    Raises:
        UsageError: the folder is something else's, or can't be made. UnfitMachine: this machine can't run it, or has
            no Python for it. NetworkError: a file is not available, or not the locked one. FileConflict: two packages
            have the same file. DiskFull: the disk is full.
    """
    if sys.platform == "win32":
        raise UnfitMachine(
            "envspec installs on Linux and macOS only: programs that pip makes on Windows can't be moved",
            hint="make a venv and run `uv pip sync --require-hashes` with the lock's requirements file",
        )
    wanted = staging.record_of(order)
    if staging.inspect_prefix(order.prefix, wanted) is staging.PrefixState.SAME:
        return Outcome.THERE
    _check(order)
    with staging.staging(order.prefix, lambda: world.report(Step(InstallStage.WAITING))) as site:
        # Whoever was waited for may have made it.
        if staging.inspect_prefix(order.prefix, wanted) is staging.PrefixState.SAME:
            return Outcome.THERE
        run_interruptible(_build(order, world, site))
        staging.write_record(site.path, wanted)
        site.finish()
    return Outcome.MADE


def _check(order: InstallRequest) -> None:
    """All that can be known before anything is fetched."""
    if order.resolution.conda:
        conda.check_prefix(order.prefix)
        if order.python is not None:
            raise UsageError(
                f"--python {order.python}: the Python of {order.lock.name} is conda's", hint="leave --python out"
            )
    virtual = preflight.virtual_packages if order.resolution.conda else dict
    preflight.check_machine(order.resolution, preflight.read_host(order.platform, conda=virtual))


async def _build(order: InstallRequest, world: World, site: staging.StagingFolder) -> None:
    timeouts = patience_of(world.environ, Timeouts())
    if order.resolution.conda:
        await _conda(order, world, site, timeouts)
    else:
        await _venv(order, world, site, timeouts)
    await put_wheels(order, world, site, timeouts)


async def put_wheels(order: InstallRequest, world: World, site: staging.StagingFolder, timeouts: Timeouts) -> None:
    """The lock's wheels into an environment that has its Python, and a look at what they did there.

    Raises:
        NetworkError, DiskFull, UnfitMachine, UvError: see `wheels.install`. FileConflict, FileChanged, PathEscapes: see
        `owners.check`. NotMovable: see `relocate`.
    """
    before = owners.files_before(site.path)
    were = owners.file_states(site.path, before)
    await uv.install(order, world, site, timeouts)
    world.report(Step(InstallStage.CHECKING))
    owners.check_ownership(site.path, before, were)
    relocate(site.path)


async def _conda(order: InstallRequest, world: World, site: staging.StagingFolder, timeouts: Timeouts) -> None:
    archives = conda_archives(order.resolution.conda)
    _check_space(order, world, archives)
    kept = await Downloads(_fetching(order, world, timeouts)).fetch(archives)
    await conda.link(order, world, site, kept)


async def _venv(order: InstallRequest, world: World, site: staging.StagingFolder, timeouts: Timeouts) -> None:
    wanted = order.resolution.target.python
    build = python_archive(wanted.version, wanted.url, wanted.sha256) if wanted.url and wanted.sha256 else None
    _check_space(order, world, [])
    if order.python is None and build is not None:
        kept = await _build_of_python(order, Downloads(_fetching(order, world, timeouts)), build)
        interpreter = await python.unpack(kept[build.sha256], site, wanted, world)
    else:
        interpreter = await python.find_python(order, world, timeouts)
    await python.make_venv(interpreter, order, world, site, timeouts)


def _fetching(order: InstallRequest, world: World, timeouts: Timeouts) -> Fetching:
    def report(count: Count) -> None:
        world.report(Step(InstallStage.FETCHING, count.done, count.total, count.bytes_done, count.bytes_total))

    return Fetching(world.cache, timeouts, order.network, order.jobs, report, world.warn)


async def _build_of_python(order: InstallRequest, downloads: Downloads, build: Archive) -> Mapping[str, Path]:
    try:
        return await downloads.fetch([build])
    except WrongArchive:
        raise
    except NetworkError as fault:
        series = order.resolution.target.python.series
        fault.hint = "; or ".join(
            filter(None, [fault.hint, f"take a Python {series} of this machine's: --python PATH"])
        )
        raise


def _check_space(order: InstallRequest, world: World, archives: Sequence[Archive]) -> None:
    """Refuse what can't fit, and warn of what may not.

    An archive that is not in the cache needs its own size there and, unpacked, at least as much again. Whether wheels
    are in uv's cache nobody tells.

    Raises:
        DiskFull: less is free than is needed at least.
    """
    missing = missing_bytes(archives, world.cache)
    free = shutil.disk_usage(_existing(world.cache)).free
    if 2 * missing > free:
        raise DiskFull(
            f"{world.cache} needs at least {_megabytes(2 * missing)} for {order.lock.name}, "
            f"and {_megabytes(free)} are free",
            hint="make room, or name a cache on another disk by ENVSPEC_CACHE_DIR",
        )
    total = sum(package.file.size_bytes or 0 for package in order.resolution.packages)
    free = shutil.disk_usage(_existing(order.prefix)).free
    if total > free:
        world.warn(f"the wheels are {_megabytes(total)} packed, and {_megabytes(free)} are free for {order.prefix}")


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
