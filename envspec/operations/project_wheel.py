"""The wheel of the project whose image is built: `[image] project`.

On the way of every build after a change of code: what builds and what reads requirements is imported on use.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envspec.errors import UsageError
from envspec.image.code import MAX_CODE_BYTES, project_folder, project_name, source_root
from envspec.io.cache import CacheError, JsonCache
from envspec.io.files import project_files, tree_sha256
from envspec.models import EDITABLE, LOCAL, BuiltWheel, Lock, Package, Resolution, WheelFile
from envspec.names import normalised
from envspec.operations.session import Session


async def project_wheel(lock: Lock, identity: str, part: Resolution, session: Session) -> Package:
    """The project of a lock's spec as a package; its wheel is in the cache. identity: of the lock.

    Raises:
        UsageError: there is no project; the lock has it already, or lacks what it requires; no editable install is
        possible. WheelBuildFailed, UnfitMachine, NetworkError: as `build.wheel.build_wheel`.
    """
    folder = project_folder(lock)
    name = normalised(project_name(folder))
    if any(each.name == name for each in part.packages):
        raise UsageError(
            f"[image] project: {name} is a package of the lock already",
            hint=f"remove {name} from [pip] dependencies, or [image] project from the spec",
        )
    if lock.image.project == EDITABLE:
        from envspec.build.editable import write_editable

        root, _ = source_root(folder, name, lock.image.copy)
        modules = f"{lock.image.workdir.rstrip('/')}/{root}".rstrip("/")
        wheel, path = await asyncio.to_thread(write_editable, folder, modules, session.context.cache)
    else:
        wheel, path = await _build(folder, name, lock, part, session)
    version = str(parse_wheel_filename(wheel.filename)[1])
    package = Package(name, version, WheelFile(LOCAL, wheel.filename, wheel.sha256, wheel.size_bytes), (), built=wheel)
    checked = JsonCache(session.context.cache / "image-known")
    key = hashlib.sha256(f"project {identity} {part.target.platform.value} {wheel.sha256}".encode()).hexdigest()
    if not lock.is_adopted and checked.read(key) is None:
        await asyncio.to_thread(_check_requirements, package, path, lock, part)
        with suppress(CacheError):
            checked.write(key, "its requirements are in the lock")
    return package


async def _build(folder: Path, name: str, lock: Lock, part: Resolution, session: Session) -> tuple[BuiltWheel, Path]:
    from envspec.build.types import BuildRequest, ToolDates
    from envspec.build.wheel import folder_source
    from envspec.operations.build_wheels import WheelBuilder

    await asyncio.to_thread(_check_size, folder)
    source = folder_source(folder, await asyncio.to_thread(tree_sha256, folder))
    tools = ToolDates.AS_REQUIRED if lock.is_adopted else ToolDates.AS_OF
    request = BuildRequest(name, None, part.target, lock.as_of, source, lock.indexes, tools=tools)
    builder = WheelBuilder(lock.name, lambda platform: lock.on(platform).base_image, session)
    made = await builder.build_wheel(request)
    return made.wheel, made.path


def _check_size(folder: Path) -> None:
    """All of a project's files are copied for its build."""
    from envspec.report.format import size

    sizes = {name: (folder / name).lstat().st_size for name in project_files(folder)}
    if (total := sum(sizes.values())) > MAX_CODE_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"[image] project: {folder} has {size(total)}, too much to build a wheel of it: {largest} alone has "
            f"{size(sizes[largest])}",
            hint='move data out of it, or write project = "editable", which copies the modules alone',
        )


def _check_requirements(package: Package, path: Path, lock: Lock, part: Resolution) -> None:
    from envspec.build.reproducible import metadata_of
    from envspec.operations.build_wheels import unmet_requirements
    from envspec.resolve.pypi.request import recorded_overrides
    from envspec.spec.errors import quoted

    metadata = metadata_of(path, package.name)
    unmet = unmet_requirements(metadata, package, part, recorded_overrides(lock.overrides, part.target))
    if unmet:
        found = "; ".join(f"{quoted(text)} ({why})" for text, why in unmet)
        raise UsageError(
            f"[image] project: {package.name} requires what the lock does not have: {found}",
            hint='add "project" to `dependencies_from`, and run `envspec lock`',
        )
