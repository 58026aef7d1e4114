"""One source to one wheel.

Cache: the wheel lies with all archives, `archives/<sha256>/<file name>`; `built/<key>.json` says what an order gave.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from envspec.build.reproducible import (
    check_release,
    check_requirements,
    fix_times_and_modes,
    is_loaded,
    is_pure,
    normalise,
    sha256_of,
    unpack,
)
from envspec.build.types import BuildRequest, BuildTools, CachedWheel, UnexpectedWheel, WheelBuildFailed, WrongWheel
from envspec.context import Connectivity, Context
from envspec.credentials import without_credentials
from envspec.errors import NetworkError, UnfitMachine
from envspec.fetch.sources import check_out
from envspec.fetch.types import UnsafeName, archive_path, archives_folder
from envspec.io.cache import JsonCache, as_cache_error
from envspec.io.confine import NoConfinement
from envspec.io.file_locks import lock
from envspec.io.files import project_files
from envspec.io.http_settings import default_index_url
from envspec.models import BuiltWheel, NamedIndex, Target
from envspec.spec.requirements import GitAddress

#: The same on every machine: some builds write it into what they make.
_PLACE: Final = Path("/tmp")  # noqa: S108 (a folder of our own below it, which nobody else may enter)
_WAIT_S: Final = 0.2


async def build_wheel(order: BuildRequest, context: Context, tools: BuildTools) -> CachedWheel:
    """The wheel out of the cache, else built.

    What gives a pure wheel without a compiler is built on this machine; the rest in a container of the lock's devel
    base: here, such a build would follow from the compilers and libraries that this machine happens to have. An order
    that `compiles` is built here all the same.

    Raises:
        BuildFailed, WrongWheel: no wheel, or not the one that is wanted. UnexpectedWheel: not what the lock records.
        UnfitMachine: it can't be built here. NetworkError: what the build asks for is not to be had.
    """
    key = order.key(default_index_url(context.environ))
    made = await asyncio.to_thread(_known, key, context.cache)
    if made is None:
        async with _alone(key) as work:
            made = await asyncio.to_thread(_known, key, context.cache)
            if made is None:
                made = await _make(order, key, work, context, tools)
    if order.locked is not None and made.wheel.sha256 != order.locked.sha256:
        raise UnexpectedWheel(order.of, made.wheel.sha256, order.locked.sha256)
    return made


async def _make(order: BuildRequest, key: str, work: Path, context: Context, tools: BuildTools) -> CachedWheel:
    source = await _laid_out(order, work / "src")
    await asyncio.to_thread(check_requirements, source, order.of)
    built = await _build(order, source, work, context, tools)
    await asyncio.to_thread(check_release, built, order.name, order.version, order.of)
    if not is_loaded(built.name, order.target):
        target = order.target
        raise WrongWheel(
            order.of,
            f"the build gave {built.name}, which Python {target.python.series} on {target.platform.value} can't load",
        )
    return await asyncio.to_thread(_keep, order, key, built, context.cache)


async def _laid_out(order: BuildRequest, folder: Path) -> Path:
    """The source in a new folder, its times and modes fixed.

    Raises:
        BuildFailed: the project is not in that folder. And as the order itself.
    """
    source = await order.lay_out(folder)
    await asyncio.to_thread(_settle_inside, source, folder, order)
    return source


def _settle_inside(source: Path, folder: Path, order: BuildRequest) -> None:
    # Files elsewhere are not envspec's to change.
    if not source.resolve().is_relative_to(folder.resolve()):
        raise WheelBuildFailed(order.of, f"its project, {source}, is not in the folder that was made for it")
    fix_times_and_modes(source, order.as_of)


async def _build(order: BuildRequest, source: Path, work: Path, context: Context, tools: BuildTools) -> Path:
    interpreter = await tools.interpreter(order.target.python)
    loose: NoConfinement | None = None
    if interpreter is None:
        why = f"no Python {order.target.python.series} is on this machine"
    elif order.compiles:
        from envspec.build.local import build_locally

        return await build_locally(order, source, work, interpreter, context, tools)
    else:
        try:
            found = await _try_here(order, source, work, interpreter, context, tools)
        except NoConfinement as fault:
            loose, why = fault, "nothing else on this machine confines its build"
        else:
            if isinstance(found, Path):
                return found
            why = found
            # All of it: the build could write there, and a link at the new place would lead elsewhere.
            await asyncio.to_thread(_clear, work)
            source = await _laid_out(order, work / "again")
    from envspec.build.container import build_in_container

    try:
        return await build_in_container(order, source, work, why, context, tools)
    except UnfitMachine as fault:
        if loose is None:
            raise
        raise NoConfinement(f"{loose.message}; {fault.message}", hint=f"{loose.hint}; or {fault.hint}") from fault


async def _try_here(
    order: BuildRequest, source: Path, work: Path, interpreter: Path, context: Context, tools: BuildTools
) -> Path | str:
    """The pure wheel that a build without compilers gives; else why it takes a container.

    Raises:
        BuildFailed: it fails, and not for want of a compiler.
    """
    from envspec.build.local import build_locally, requested_compiler

    try:
        built = await build_locally(order, source, work, interpreter, context, tools)
    except WheelBuildFailed:
        compiler = await asyncio.to_thread(requested_compiler, work)
        if compiler is None:
            raise
        return f"its build asks for {compiler}"
    compiler = await asyncio.to_thread(requested_compiler, work)
    if not is_pure(built.name):
        return f"{built.name} is for one platform"
    if compiler is not None:
        # As on every machine: what is here, or is not, must not decide.
        context.reporter.warning(
            f"{order.of} is built without a compiler, and its build asked for {compiler}: "
            "what it would have compiled is not in its wheel"
        )
    return built


def _clear(folder: Path) -> None:
    """Remove all that is in a build's folder. The build may have left folders that nobody may enter."""
    folder.chmod(0o700)
    for place, names, _ in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _known(key: str, cache: Path) -> CachedWheel | None:
    """What the order gave before, if it is still there, and still is what it was."""
    try:
        wheel = BuiltWheel(**_notes(cache).read(key))
        path = archive_path(cache, key, wheel.sha256, wheel.filename)
        with path.open("rb") as file:
            return CachedWheel(wheel, path) if sha256_of(file)[0] == wheel.sha256 else None
    except (OSError, ValueError, TypeError, UnsafeName):
        return None


def _keep(order: BuildRequest, key: str, built: Path, cache: Path) -> CachedWheel:
    """Put the wheel, in its one form, where archives are: under a name that nobody knows before it is written."""
    folder = archives_folder(cache)
    with as_cache_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".built-", dir=folder) as beside:
            normal = Path(beside, built.name)
            normalise(built, normal, order.of)
            normal.chmod(0o644)
            with normal.open("rb") as file:
                sha256, size = sha256_of(file)
            path = archive_path(cache, order.of, sha256, built.name)
            path.parent.mkdir(exist_ok=True)
            normal.replace(path)
    wheel = BuiltWheel(built.name, sha256, size)
    _notes(cache).write(key, asdict(wheel))
    return CachedWheel(wheel, path)


def _notes(cache: Path) -> JsonCache:
    return JsonCache(cache / "built")


@asynccontextmanager
async def _alone(key: str) -> AsyncIterator[Path]:
    """An empty folder for one build, at the same path on every machine; others with the same build wait.

    Raises:
        UnfitMachine: the folder is somebody else's.
    """
    folder = _PLACE / f"envspec-build-{key[:16]}"

    def opened() -> int:
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    try:
        descriptor = await lock(folder, opened, _WAIT_S)
    except OSError as fault:
        raise _not_ours(folder, fault.strerror or "") from fault
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise _not_ours(folder, "it belongs to another user")
        # What a run that was killed left there.
        _clear(folder)
        yield folder
    finally:
        if os.fstat(descriptor).st_uid == os.geteuid():
            await asyncio.to_thread(_clear, folder)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        os.close(descriptor)


def _not_ours(folder: Path, why: str) -> UnfitMachine:
    return UnfitMachine(f"{folder}, where a wheel is to be built, can't be used: {why}", hint="have it removed")


@dataclass(frozen=True, slots=True)
class WheelRequest:
    """Whose wheel it is to be. version: None where only the build tells it. indexes: see `BuildRequest`. locked: what the
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
        """See `BuildRequest.of`."""
        return f"{self.name} {self.version}" if self.version else self.name


def sdist_request(wanted: WheelRequest, sha256: str, fetch: Callable[[], Awaitable[Path]]) -> BuildRequest:
    """An order for an sdist. fetch: gives the checked file."""

    async def lay_out(folder: Path) -> Path:
        return await asyncio.to_thread(unpack, await fetch(), folder, wanted.of)

    return _order(wanted, sha256, lay_out)


def git_request(
    wanted: WheelRequest, address: GitAddress, commit: str, environ: Mapping[str, str], connectivity: Connectivity
) -> BuildRequest:
    """An order for a commit. Credentials are none of what names it."""

    async def lay_out(folder: Path) -> Path:
        if connectivity is Connectivity.OFFLINE:
            raise NetworkError(
                f"{wanted.of}: its wheel is not in the cache, and --offline forbids fetching "
                f"{without_credentials(address.url)}",
                hint="run once without --offline",
            )
        return await check_out(address, commit, folder, wanted.of, environ)

    return _order(wanted, without_credentials(address.pinned(commit)), lay_out)


def folder_request(wanted: WheelRequest, root: Path, tree_sha256: str) -> BuildRequest:
    """An order for a folder, of which a copy is built."""

    async def lay_out(folder: Path) -> Path:
        return await asyncio.to_thread(_copy, root, folder / "project")

    return _order(wanted, f"tree:{tree_sha256}", lay_out)


def _copy(root: Path, folder: Path) -> Path:
    for name in project_files(root):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, place, follow_symlinks=False)
    return folder


def _order(wanted: WheelRequest, source: str, lay_out: Callable[[Path], Awaitable[Path]]) -> BuildRequest:
    return BuildRequest(
        name=wanted.name,
        version=wanted.version,
        source=source,
        lay_out=lay_out,
        target=wanted.target,
        as_of=wanted.as_of,
        indexes=wanted.indexes,
        locked=wanted.locked,
    )
