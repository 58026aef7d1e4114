"""The wheel of the project whose image is built: `[image] project`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envspec.build.editable import write_editable
from envspec.build.reproducible import metadata_of
from envspec.build.types import WheelRequest
from envspec.build.wheel import folder_request
from envspec.errors import UsageError
from envspec.image.code import MAX_CODE_BYTES, project_folder, project_name, source_root
from envspec.io.files import project_files, tree_sha256
from envspec.models import EDITABLE, LOCAL, Lock, Package, Resolution, WheelFile
from envspec.names import normalised
from envspec.operations.build_wheels import WheelBuilder, unmet_requirements
from envspec.operations.session import Session
from envspec.report.format import size
from envspec.resolve.pypi.request import recorded_overrides
from envspec.spec.errors import quoted


async def project_wheel(lock: Lock, part: Resolution, session: Session) -> Package:
    """The project of a lock's spec as a package; its wheel is in the cache.

    Raises:
        UsageError: there is no project; the lock has it already, or lacks what it requires; no editable install is
        possible. WheelBuildFailed, UnfitMachine, NetworkError: as `build.wheel.build_wheel`.
    """
    folder = project_folder(lock)
    name = normalised(project_name(folder))
    if any(each.name == name for each in part.packages):
        raise UsageError(
            f"[image] project: {name} is a package of the lock already",
            hint=f"take {name} out of [pip] dependencies, or [image] project out of the spec",
        )
    if lock.image.project == EDITABLE:
        root, _ = source_root(folder, name, lock.image.copy)
        modules = f"{lock.image.workdir.rstrip('/')}/{root}".rstrip("/")
        wheel, path = await asyncio.to_thread(write_editable, folder, modules, session.context.cache)
    else:
        await asyncio.to_thread(_check_size, folder)
        request = WheelRequest(name, None, part.target, lock.as_of, lock.indexes)
        builder = WheelBuilder(lock.name, lambda platform: lock.on(platform).base_image, session)
        made = await builder.build_wheel(folder_request(request, folder, await asyncio.to_thread(tree_sha256, folder)))
        wheel, path = made.wheel, made.path
    version = str(parse_wheel_filename(wheel.filename)[1])
    file = WheelFile(LOCAL, wheel.filename, wheel.sha256, wheel.size_bytes)
    package = Package(name, version, file, (), built=wheel)
    await asyncio.to_thread(_check_requirements, package, path, lock, part)
    return package


def _check_size(folder: Path) -> None:
    """All of a project's files are copied for its build."""
    sizes = {name: (folder / name).lstat().st_size for name in project_files(folder)}
    if (total := sum(sizes.values())) > MAX_CODE_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"[image] project: {folder} has {size(total)}, too much to build a wheel of it: {largest} alone has "
            f"{size(sizes[largest])}",
            hint='move data out of it, or write project = "editable", which copies the modules alone',
        )


def _check_requirements(package: Package, path: Path, lock: Lock, part: Resolution) -> None:
    metadata = metadata_of(path, package.name)
    unmet = unmet_requirements(metadata, package, part, recorded_overrides(lock.decisions, part.target))
    if unmet:
        found = "; ".join(f"{quoted(text)} ({why})" for text, why in unmet)
        raise UsageError(
            f"[image] project: {package.name} requires what the lock does not have: {found}",
            hint='add "project" to `dependencies-from`, and run `envspec lock`',
        )
