"""`envspec lock --image`: the IDs that a lock's images are expected to have, written into the lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envspec.errors import UnfitMachine, UsageError
from envspec.lock.folder import read_lock, write_folder
from envspec.model import Lock, Platform
from envspec.pipeline.lock_files import lock_files


def record_images(
    directory: Path, identify: Callable[[Lock, Platform], Lock], warn: Callable[[str], None]
) -> tuple[Path, ...]:
    """Find out the ID of each platform's image, and write them into the lock; the paths that changed.

    identify: the lock with the image's ID on one platform, and with what its system layer was made of. A platform whose
    system layer can't be made on this machine keeps what was recorded, and is told of.

    Raises:
        UsageError: the lock has no linux platform. UnfitMachine: none of its images can be made here.
        EnvspecError: as `identify` says; the lock is then as it was.
    """
    lock = read_lock(directory)
    platforms = [r.target.platform for r in lock.resolutions if r.target.platform.is_linux]
    if not platforms:
        raise UsageError(
            f"{lock.name} has no linux platform, and images are for linux", hint="add linux-64 to [env] platforms"
        )
    unfit: dict[Platform, UnfitMachine] = {}
    for platform in platforms:
        try:
            lock = identify(lock, platform)
        except UnfitMachine as fault:
            unfit[platform] = fault
    if len(unfit) == len(platforms):
        raise unfit[platforms[0]]
    for platform, why in unfit.items():
        warn(f"{platform.value}: its image's ID is not recorded: {why.message}")
    return write_folder(directory, lock_files(lock))
