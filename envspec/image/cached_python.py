"""Pythons that are unpacked in envspec's cache, to compile with: a standalone build, or conda's package of Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from envspec.effects.cache import keeping
from envspec.effects.held import hold_folder, is_still
from envspec.image.python_archive import TOP, BadPython, content, members, reading


@dataclass(frozen=True, slots=True)
class Build:
    """A Python that can be had. sha256: of its archive. fetch: brings that. unpack: puts it into an empty folder.

    program: its interpreter, below that folder. is_known: whether envspec's own data names it, and not only a lock.
    """

    cache: Path
    sha256: str
    program: str
    fetch: Callable[[], Awaitable[Path]]
    unpack: Callable[[Path, Path], Awaitable[None]]
    is_known: bool = False

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return self.cache / "pythons" / self.sha256


async def made_of(build: Build) -> Path:
    """The interpreter of a build, fetched and unpacked where it is not yet.

    Raises:
        NetworkError, BadPython: it is not to be had. CannotKeep: the cache can't be written.
    """
    made = build.folder
    folder = made.parent
    if not (made / build.program).exists():
        archive = await build.fetch()
        with keeping(folder):
            async with _alone(folder / f"{build.sha256}.partial") as partial:
                if not (made / build.program).exists():
                    await build.unpack(archive, partial)
                    if not (partial / build.program).exists():
                        raise BadPython(archive.name, f"it has no {build.program}")
                    partial.replace(made)
    return made / build.program


def standalone_program(series: str) -> str:
    """The interpreter of an unpacked standalone build."""
    return f"{TOP}/bin/python{series}"


async def unpack_standalone(archive: Path, folder: Path) -> None:
    """Unpack a checked standalone build; nothing of it can get out of the folder.

    Raises:
        BadPython
    """
    await asyncio.to_thread(_unpack, archive, folder)


def _unpack(archive: Path, folder: Path) -> None:
    with reading(archive) as tar:
        for member in members(archive, tar):
            place = folder / TOP / member.path
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.info.issym():
                place.symlink_to(member.info.linkname)
            elif member.info.islnk():
                place.hardlink_to(folder / member.info.linkname)
            else:
                place.write_bytes(content(tar, member))
                place.chmod(0o755 if member.is_program else 0o644)


@contextlib.asynccontextmanager
async def _alone(partial: Path) -> AsyncIterator[Path]:
    """An empty folder that is held against other runs; what is left in it in the end goes."""
    descriptor = await hold_folder(partial)
    try:
        _empty(partial)
        yield partial
    finally:
        # After it got its name, nothing is at the old one but what another run has made since.
        if is_still(partial, descriptor):
            shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for item in folder.iterdir():
        shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
