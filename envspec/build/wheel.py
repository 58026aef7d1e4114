"""One source to one wheel.

The wheel is cached among the archives, `archives/<sha256>/<file name>`; `built/<key>.json` names a request's wheel.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, time, timezone
from pathlib import Path
from typing import Final

from msgspec import convert
from packaging.requirements import Requirement

from envspec.build.reproducible import (
    build_requirements,
    check_release,
    fix_times_and_modes,
    is_loaded,
    is_pure,
    normalise,
    sha256_of,
    unpack,
)
from envspec.build.types import (
    REQUIRES_TORCH,
    BuildRequest,
    BuildSource,
    BuildTools,
    CachedWheel,
    Compilers,
    IsPlaceholder,
    NeedsCompiler,
    ToolDates,
    UnexpectedWheel,
    WheelBuildFailed,
    WrongWheel,
)
from envspec.context import Connectivity, Context
from envspec.credentials import without_credentials
from envspec.errors import OfflineMiss, UnfitMachine, UsageError
from envspec.facts import load_facts
from envspec.fetch.sources import check_out
from envspec.fetch.types import UnsafeName, archive_path, archives_folder
from envspec.io.cache import JsonCache, as_cache_error
from envspec.io.confine import NoConfinement, bubblewrap
from envspec.io.file_locks import lock
from envspec.io.files import project_files, tree_sha256
from envspec.io.http_settings import default_index_url
from envspec.models import BuiltWheel, Platform
from envspec.names import normalised
from envspec.spec.requirements import GitAddress
from envspec.structs import replace

#: The same on every machine: some builds write it into their wheel.
_FOLDER: Final = Path("/tmp")  # noqa: S108 (a private folder below it)
_WAIT_S: Final = 0.2


async def build_wheel(request: BuildRequest, context: Context, tools: BuildTools) -> CachedWheel:
    """The wheel from the cache, else built.

    Pure wheels that need no compiler are built on this machine, others in a container of the lock's devel base: on this
    machine they would depend on its compilers and libraries. A request may allow something else: `Compilers`, and an
    environment that names this machine's compiler.

    Raises:
        WheelBuildFailed, WrongWheel: no wheel, or another one than requested. NeedsCompiler: the request allows none.
        UnexpectedWheel: not the locked one. UnfitMachine: it can't be built on this machine. NetworkError: a build
        requirement is not available.
    """
    key = request.key(default_index_url(context.environ))
    refusals = JsonCache(context.cache / "built")
    if request.compilers is Compilers.NOWHERE and (reason := refusals.read(f"{key}-compiler")):
        raise NeedsCompiler(request.of, str(reason))
    made = await asyncio.to_thread(_cached, key, context.cache)
    if made is None:
        async with _build_folder(request.key("")) as work:
            made = await asyncio.to_thread(_cached, key, context.cache)
            if made is None:
                try:
                    made = await _build_new(request, key, work, context, tools)
                except NeedsCompiler as error:
                    refusals.write(f"{key}-compiler", error.reason)
                    raise
    if request.compilers is Compilers.NOWHERE and not is_pure(made.wheel.filename):
        raise NeedsCompiler(request.of, _is_compiled(made.wheel.filename))
    if request.locked is not None and made.wheel.sha256 != request.locked.sha256:
        raise UnexpectedWheel(request.of, made.wheel.sha256, request.locked.sha256)
    return made


async def _build_new(request: BuildRequest, key: str, work: Path, context: Context, tools: BuildTools) -> CachedWheel:
    source, written = await _unpacked(request, work / "src")
    required = await asyncio.to_thread(build_requirements, source, request.of)
    names = {normalised(each.name) for each in required}
    if request.compilers is Compilers.NOWHERE and "torch" in names:
        # It compiles for torch: no need to fetch gigabytes to see that.
        raise NeedsCompiler(request.of, REQUIRES_TORCH)
    try:
        built = await _build(request, source, work, context, tools)
    except (NeedsCompiler, IsPlaceholder):
        raise
    except WheelBuildFailed as error:
        # A build beside the lock's packages may have taken hours, and its torch is not of the sdist's time.
        if request.environment is not None:
            raise
        later = None
        if request.tools is ToolDates.AS_REQUIRED:
            later = await _later_tools(request, required, tools.local, context)
        if later is not None:
            built = await _build_again(replace(request, as_of=later), work, context, tools)
            context.reporter.warning(
                f"{request.of} is built with the build tools of {later:%Y-%m-%d}: those of "
                f"{request.as_of:%Y-%m-%d} are older than it requires"
            )
        else:
            built = await _build_earlier(error, request, written, work, context, tools)
    await asyncio.to_thread(check_release, built, request.name, request.version, request.of)
    if not is_loaded(built.name, request.target):
        target = request.target
        raise WrongWheel(
            request.of,
            f"the build gave {built.name}, which Python {target.python.series} on {target.platform.value} can't load",
        )
    if request.environment is not None and not is_pure(built.name):
        from envspec.build.environment import check_gpu_code

        await asyncio.to_thread(check_gpu_code, built, request)
    return await asyncio.to_thread(_store, request, key, built, context.cache)


async def _later_tools(
    request: BuildRequest, required: Sequence[Requirement], local: Platform | None, context: Context
) -> datetime | None:
    """The first time that has what a build requires; None if it is not after `as_of`, or not known."""
    from envspec.build.runners import this_target
    from envspec.build.tool_dates import first_date

    target = this_target(request, local) if local else request.target
    found = await first_date(required, request, target, context)
    if found is None or found <= request.as_of:
        return None
    return found


async def _build_earlier(
    error: WheelBuildFailed, request: BuildRequest, written: datetime, work: Path, context: Context, tools: BuildTools
) -> Path:
    """Build with the tools of the source's time; raises `error` if that fails too."""
    earlier = replace(request, as_of=time_of_tools(request, written))
    if error.python_error or earlier.as_of >= request.as_of:
        raise error
    try:
        built = await _build_again(earlier, work, context, tools)
    except NeedsCompiler:
        raise
    except WheelBuildFailed:
        raise error from None
    context.reporter.warning(
        f"{request.of} is built with the build tools of {earlier.as_of:%Y-%m-%d}: with those of "
        f"{request.as_of:%Y-%m-%d}, its build fails ({error.message.splitlines()[-1].strip()})"
    )
    return built


async def _build_again(request: BuildRequest, work: Path, context: Context, tools: BuildTools) -> Path:
    await asyncio.to_thread(_clear, work)
    source, _ = await _unpacked(request, work / "src")
    return await _build(request, source, work, context, tools)


def time_of_tools(request: BuildRequest, written: datetime) -> datetime:
    """Up to when build tools are likely to work for a source: when it was written, and its Python was released.

    setuptools 82 has no pkg_resources, 66 rejects specifiers that older ones accept, and Cython 3 fails on sources for
    Cython 0.29; many sdists bound none of them.
    """
    row = load_facts().released.get(request.target.python.series)
    released = datetime.combine(row.date, time(), timezone.utc) if row else written
    return min(request.as_of, max(written, released))


async def _unpacked(request: BuildRequest, folder: Path) -> tuple[Path, datetime]:
    """The source in a new folder, with fixed times and modes; and the time of its newest file before.

    Raises:
        WheelBuildFailed: the project is not in that folder. Errors of `lay_out`.
    """
    source = await request.source.lay_out(folder, request.of)
    # Files elsewhere are not envspec's to change.
    if not await asyncio.to_thread(lambda: source.resolve().is_relative_to(folder.resolve())):
        raise WheelBuildFailed(request.of, f"its project, {source}, is not in its new folder")
    written = await asyncio.to_thread(fix_times_and_modes, source, request.as_of)
    return source, written


async def _build(request: BuildRequest, source: Path, work: Path, context: Context, tools: BuildTools) -> Path:
    unconfined: NoConfinement | None = None
    try:
        found = await _build_here(request, source, work, context, tools)
    except NoConfinement as error:
        if request.is_for_compilers_here or tools.room is None:
            raise
        unconfined, why = error, "nothing else on this machine confines its build"
    else:
        if isinstance(found, Path):
            return found
        why = found
        # The whole folder: the build could have left links anywhere.
        await asyncio.to_thread(_clear, work)
        source, _ = await _unpacked(request, work / "again")
    from envspec.build.runners import build_in_container

    try:
        return await build_in_container(request, source, work, why, context, tools)
    except UnfitMachine as error:
        if unconfined is None:
            raise
        raise NoConfinement(
            f"{unconfined.message}; {error.message}", hint=f"{unconfined.hint}; or {error.hint}"
        ) from error


async def _build_here(
    request: BuildRequest, source: Path, work: Path, context: Context, tools: BuildTools
) -> Path | str:
    """The wheel of a build on this machine; else the reason for a container.

    Raises:
        NeedsCompiler: it needs one, and the request allows none. WheelBuildFailed: it failed, and called no compiler.
        UnfitMachine: the request allows no compiler, and this machine has no Python for the build.
    """
    is_pure_only = request.compilers is Compilers.NOWHERE
    if is_pure_only:
        # Fails before a Python is fetched.
        await bubblewrap(context.environ, context.unconfined, f"building {request.of}")
    interpreter = await tools.interpreter(request.target.python)
    series = request.target.python.series
    if interpreter is None and is_pure_only:
        raise UnfitMachine(
            f"{request.of} has no wheel and must be built, and this machine has no Python {series}; no standalone "
            "build of it is known",
            hint=f"install Python {series}, or use a release that has a wheel",
        )
    if interpreter is None:
        return f"no Python {series} is on this machine"
    if request.is_for_compilers_here:
        from envspec.build.runners import build_locally

        return await build_locally(request, source, work, interpreter, context, tools)
    found = await _build_without_compiler(request, source, work, interpreter, context, tools)
    if isinstance(found, Path):
        return found
    if is_pure_only:
        raise NeedsCompiler(request.of, found)
    if request.environment:
        found += f", and {request.environment.why_not}"
    return found


async def _build_without_compiler(
    request: BuildRequest, source: Path, work: Path, interpreter: Path, context: Context, tools: BuildTools
) -> Path | str:
    """The pure wheel of a build without compilers; else the reason for a container.

    Raises:
        WheelBuildFailed: it failed, and called no compiler.
    """
    from envspec.build.runners import build_locally, lacks_torch, requested_compiler

    try:
        built = await build_locally(request, source, work, interpreter, context, tools)
    except WheelBuildFailed:
        compiler = await asyncio.to_thread(requested_compiler, work)
        if compiler is None:
            raise
        return f"its build needs {compiler}"
    compiler = await asyncio.to_thread(requested_compiler, work)
    if not is_pure(built.name):
        return _is_compiled(built.name)
    if compiler is not None:
        # As on every machine, whether it has a compiler or not.
        context.reporter.warning(
            f"{request.of} is built without a compiler, but its build called {compiler}: "
            "its wheel lacks what that would have compiled"
        )
    elif await asyncio.to_thread(lacks_torch, work):
        context.reporter.warning(
            f"{request.of} is built without torch, but its build imports it: its wheel may lack code that is compiled "
            "for torch"
        )
    return built


def _is_compiled(filename: str) -> str:
    return f"its wheel, {filename}, is for one platform"


def _clear(folder: Path) -> None:
    """Empty a build's folder. The build may have left folders without permissions."""
    folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _cached(key: str, cache: Path) -> CachedWheel | None:
    """The wheel that the request gave before, if it is still in the cache, unchanged."""
    try:
        wheel = convert(JsonCache(cache / "built").read(key), BuiltWheel)
        path = archive_path(cache, key, wheel.sha256, wheel.filename)
        with path.open("rb") as file:
            return CachedWheel(wheel, path) if sha256_of(file)[0] == wheel.sha256 else None
    except (OSError, ValueError, UnsafeName):
        return None


def _store(request: BuildRequest, key: str, built: Path, cache: Path) -> CachedWheel:
    """Write the wheel, normalised, to the archives; it gets its name when it is complete."""
    folder = archives_folder(cache)
    with as_cache_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".built-", dir=folder) as beside:
            normal = Path(beside, built.name)
            normalise(built, normal, request.of)
            normal.chmod(0o644)
            with normal.open("rb") as file:
                sha256, size = sha256_of(file)
            path = archive_path(cache, request.of, sha256, built.name)
            path.parent.mkdir(exist_ok=True)
            normal.replace(path)
    wheel = BuiltWheel(built.name, sha256, size)
    JsonCache(cache / "built").write(key, wheel)
    return CachedWheel(wheel, path)


@asynccontextmanager
async def _build_folder(key: str) -> AsyncIterator[Path]:
    """An empty folder for one build, locked, at the same path on every machine, whichever mirror it uses.

    Raises:
        UnfitMachine: the folder is another user's.
    """
    folder = _FOLDER / f"envspec-build-{key[:16]}"

    def opened() -> int:
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    try:
        descriptor = await lock(folder, opened, _WAIT_S)
    except OSError as error:
        raise _unusable(folder, error.strerror or "") from error
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise _unusable(folder, "it belongs to another user")
        # From a killed run.
        _clear(folder)
        yield folder
    finally:
        if os.fstat(descriptor).st_uid == os.geteuid():
            await asyncio.to_thread(_clear, folder)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        os.close(descriptor)


def _unusable(folder: Path, why: str) -> UnfitMachine:
    return UnfitMachine(f"{folder}, where a wheel is built, can't be used: {why}", hint="have it removed")


def sdist_source(sha256: str, fetch: Callable[[], Awaitable[Path]]) -> BuildSource:
    """fetch: gives the checked file."""

    async def lay_out(folder: Path, of: str) -> Path:
        return await asyncio.to_thread(unpack, await fetch(), folder, of)

    return BuildSource(sha256, lay_out)


def git_source(address: GitAddress, commit: str, environ: Mapping[str, str], connectivity: Connectivity) -> BuildSource:
    """A commit, whose identity does not include credentials."""

    async def lay_out(folder: Path, of: str) -> Path:
        if connectivity is Connectivity.OFFLINE:
            raise OfflineMiss(f"the wheel of {of}")
        return await check_out(address, commit, folder, of, environ)

    return BuildSource(without_credentials(address.pinned(commit)), lay_out)


def folder_source(root: Path, sha256: str) -> BuildSource:
    """A folder, of which a copy is built. sha256: `tree_sha256` of the folder."""

    async def lay_out(folder: Path, _: str) -> Path:
        return await asyncio.to_thread(_copy, root, folder / "project", sha256)

    return BuildSource(f"tree:{sha256}", lay_out)


def _copy(root: Path, folder: Path, sha256: str) -> Path:
    for name in project_files(root):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target, follow_symlinks=False)
    # Not the copy: who may run its files depends on their owner and on the mount.
    if tree_sha256(root) != sha256:
        raise _was_changed(root)
    return folder


def check_copy(copy: Path, path: Path, sha256: str) -> None:
    """Raises UsageError, and removes a file's copy, if it is not what was hashed: it is cached under the hash."""
    if tree_sha256(copy) != sha256:
        copy.unlink()
        raise _was_changed(path)


def _was_changed(path: Path) -> UsageError:
    return UsageError(f"{path} was changed while it was read", hint="run the same command again")
