"""`envspec install`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from envspec.cli import terminal
from envspec.cli.options import UNCONFINED
from envspec.cli.terminal import terminable

_PLATFORMS: Final = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")


@click.command()
@click.argument("lock", metavar="LOCK", shell_complete=terminal.complete_lock)
@click.option(
    "--prefix",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The environment's folder, which is not there yet or empty.",
)
@click.option("--platform", type=click.Choice(_PLATFORMS), help="The platform, which must be this machine's.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="An interpreter of the locked series, for a lock without conda.",
)
@click.option("--offline", is_flag=True, help="Use what is in the cache and no network.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="How many files to fetch at the same time.",
)
@UNCONFINED
def command(
    lock: str, prefix: Path, platform: str | None, python: Path | None, offline: bool, jobs: int, unconfined: bool
) -> int:
    """Make the environment of a lock on this machine, whole or not at all.

    LOCK is a folder, its envspec.lock, or a name under locks/. Nothing is resolved. The path of the environment is
    printed. What was fetched is kept: a run that was ended goes on from there.
    """
    import hashlib

    from envspec.cli.progress import DownloadProgress
    from envspec.diagnostics.machine import this_platform
    from envspec.fetch.types import Network
    from envspec.installer import preflight
    from envspec.installer.types import InstallRequest, World
    from envspec.io.cache import cache_root
    from envspec.lock.find import find_lock
    from envspec.lock.folder import read_lock
    from envspec.lock.head import LOCK_FILE
    from envspec.lock.names import read_current
    from envspec.models import Platform, Resolution
    from envspec.operations.install import Outcome, install

    folder = find_lock(lock, Path())
    locked = read_lock(folder)
    order = InstallRequest(
        lock=locked,
        lock_sha256=hashlib.sha256(read_current(folder, LOCK_FILE)).hexdigest(),
        resolution=preflight.resolution_for(locked, this_platform(), Platform(platform) if platform else None),
        # Texts in the environment name it: they must hold wherever a program is started from.
        prefix=Path(os.path.realpath(prefix)),
        python=_program(python),
        network=Network.OFFLINE if offline else Network.USE,
        jobs=jobs,
    )
    with terminable(), DownloadProgress(locked.name) as progress:

        async def built(order: InstallRequest, python: Path) -> tuple[Resolution, Mapping[str, Path]]:
            from envspec.cli.image_world import image_world
            from envspec.operations.build_wheels import installed

            return await installed(order, python, image_world(progress, (), unconfined=unconfined))

        world = World(os.environ, cache_root(os.environ), progress.report, progress.warn, built)
        outcome = install(order, world)
    if outcome is Outcome.THERE:
        terminal.tell(f"{order.prefix}: already installed")
    terminal.answer(f"{order.prefix}\n")
    return 0


def _program(python: Path | None) -> Path | None:
    """An interpreter by its path, or by a name that is on PATH."""
    if python is None:
        return None
    import shutil

    found = shutil.which(python)
    return Path(os.path.abspath(found)) if found else python.absolute()  # noqa: PTH100 (a venv's Python is a link: it stays)
