"""Orders for builds of what locks name: an sdist, a commit of a git repository, a folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from envspec.build.order import BuildOrder
from envspec.build.sources import unpack
from envspec.credentials import without_credentials
from envspec.effects.tree import files_of
from envspec.errors import NetworkError
from envspec.fetch.git import check_out
from envspec.fetch.values import Network
from envspec.model import BuiltWheel, NamedIndex, Target
from envspec.spec.git_address import GitAddress


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose wheel it is to be. version: None where only the build tells it. indexes: see `BuildOrder`. locked: what the
    lock records.
    """

    name: str
    version: str | None
    target: Target
    as_of: datetime
    indexes: tuple[NamedIndex, ...] = field(default=(), repr=False)
    locked: BuiltWheel | None = None

    @property
    def of(self) -> str:
        """See `BuildOrder.of`."""
        return f"{self.name} {self.version}" if self.version else self.name


def of_sdist(wanted: Wanted, sha256: str, fetch: Callable[[], Awaitable[Path]]) -> BuildOrder:
    """An order for an sdist. fetch: gives the checked file."""

    async def lay_out(folder: Path) -> Path:
        return await asyncio.to_thread(unpack, await fetch(), folder, wanted.of)

    return _order(wanted, sha256, lay_out)


def of_git(
    wanted: Wanted, address: GitAddress, commit: str, environ: Mapping[str, str], network: Network
) -> BuildOrder:
    """An order for a commit. Credentials are none of what names it."""

    async def lay_out(folder: Path) -> Path:
        if network is Network.OFFLINE:
            raise NetworkError(
                f"{wanted.of}: its wheel is not in the cache, and --offline forbids fetching "
                f"{without_credentials(address.url)}",
                hint="run once without --offline",
            )
        return await check_out(address, commit, folder, wanted.of, environ)

    return _order(wanted, without_credentials(address.pinned(commit)), lay_out)


def of_folder(wanted: Wanted, root: Path, tree_sha256: str) -> BuildOrder:
    """An order for a folder, of which a copy is built."""

    async def lay_out(folder: Path) -> Path:
        return await asyncio.to_thread(_copy, root, folder / "project")

    return _order(wanted, f"tree:{tree_sha256}", lay_out)


def _copy(root: Path, folder: Path) -> Path:
    for name in files_of(root):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, place, follow_symlinks=False)
    return folder


def _order(wanted: Wanted, source: str, lay_out: Callable[[Path], Awaitable[Path]]) -> BuildOrder:
    return BuildOrder(
        name=wanted.name,
        version=wanted.version,
        source=source,
        lay_out=lay_out,
        target=wanted.target,
        as_of=wanted.as_of,
        indexes=wanted.indexes,
        locked=wanted.locked,
    )
