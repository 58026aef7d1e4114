"""A lock as a file of another tool, written on demand: `envspec export`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from envspec.context import Context, comma_separated
from envspec.errors import UsageError
from envspec.io.files import replace_user_file
from envspec.lockfile.folder import NamedLock, named_lock
from envspec.operations.lock_state import packages_in, part_of
from envspec.spec.owner import adopted_source
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.lockfile.export.types import Exported, Location
    from envspec.models import Lock, Package, Platform, Resolution


class Platforms(Enum):
    """How many platforms a file is for. LINUX: those that have an image. IMAGE: these, whichever the engine takes."""

    ALL = "all"
    ONE = "one"
    LINUX = "linux"
    IMAGE = "image"


class ExportFormat(NamedTuple):
    """A format of files.

    renderer: module below `envspec.lockfile.export` and function.
    name: of the file; `{name}` is the lock's.
    """

    renderer: str
    name: str
    platforms: Platforms


#: A format is a module of `envspec.lockfile.export` and a line here.
FORMATS: Final = {
    "pylock": ExportFormat("pylock:text", "pylock.{name}.toml", Platforms.ALL),
    "dockerfile": ExportFormat("dockerfile:text", "Dockerfile", Platforms.LINUX),
    "devcontainer": ExportFormat("devcontainer:text", "devcontainer.json", Platforms.IMAGE),
    "environment-yml": ExportFormat("environment_yml:text", "environment.yml", Platforms.ONE),
    "pixi": ExportFormat("pixi:text", "pixi.toml", Platforms.ALL),
}
#: In the first line of every file that is written here.
_MARK: Final = b"written by `envspec export`"


def format_of(form: str) -> ExportFormat:
    """Raises UsageError if there is no such format."""
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r} of exported files", hint=f"known: {', '.join(FORMATS)}")
    return FORMATS[form]


def export(  # noqa: PLR0913 (every option may be left out)
    lock: NamedLock,
    form: str,
    *,
    output: str | Path | None = None,
    platform: str | Platform | None = None,
    image: str | None = None,
    without_conda: bool = False,
    overwrite: bool = False,
    context: Context | None = None,
) -> str:
    """Return a lock as the text of another tool's file, like `envspec export`. Warns of what it can't contain.

    Args:
        form: `pylock`, `devcontainer`, `environment-yml`, `pixi`, or another one that `envspec export --help` lists.
        output: Also write it to this file, or with its usual name into this folder; its relative paths start there.
        platform: By default all, or this machine's if the file is for one.
        image: The image's name in a registry or an engine.
        without_conda: Leave conda packages out of pylock.
        overwrite: Also replace a file that envspec did not write.

    Raises:
        UsageError: the format is unknown or can't contain the lock; the file exists and envspec did not write it.
        NetworkError: an index does not list a file.
    """
    from envspec.lockfile.document import canonical
    from envspec.lockfile.export.types import ExportRequest, is_project, project_of
    from envspec.models import Platform

    context = context or Context.from_environment(usual_jobs=8)
    lock = canonical(named_lock(lock))
    platforms = format_of(form).platforms
    is_image = platforms is Platforms.IMAGE
    if image and not is_image:
        raise UsageError(f"--image is for devcontainer.json; {form} names no image", hint="remove --image")
    resolutions = _resolutions(lock, form, Platform(platform) if platform else None)
    packages = list(packages_in(resolutions))
    if form == "pylock":
        _check_pylock(lock, resolutions, without_conda=without_conda)
    elif without_conda:
        raise UsageError("--without-conda is for pylock; the other formats have conda packages", hint="remove it")
    path = None if output is None else destination(Path(output), form, lock.name)
    request = ExportRequest(lock, resolutions)
    if form == "pylock":
        request = replace(request, locations=_locations(lock, packages, context))
    if is_image:
        request = replace(request, image=_image(lock, image))
    if platforms in (Platforms.IMAGE, Platforms.LINUX):
        from envspec.operations.lock.complete import container_config

        request = replace(request, container=container_config(lock))
    projects = map(project_of, filter(is_project, packages))
    folder = path.parent if path else Path()
    request = replace(request, projects={name: _relative(_spec_folder(lock), name, folder) for name in projects})
    module, _, function = FORMATS[form].renderer.partition(":")
    exported: Exported = getattr(import_module(f"envspec.lockfile.export.{module}"), function)(request)
    if exported.missing:
        context.reporter.warning(f"{lock.name}: {form} has no place for: {'; '.join(exported.missing)}")
    if path is not None:
        if not overwrite and path.exists() and not _is_ours(path):
            raise UsageError(
                f"{path} exists, and `envspec export` did not write it", hint="name another file, or --force"
            )
        replace_user_file(path, exported.text.encode())
    return exported.text


def _resolutions(lock: Lock, form: str, platform: Platform | None) -> Sequence[Resolution]:
    from envspec.diagnostics.machine import this_platform

    platforms = FORMATS[form].platforms
    if platforms in (Platforms.IMAGE, Platforms.LINUX):
        if platform and platforms is Platforms.IMAGE:
            raise UsageError(
                f"{form} names the image, which has all platforms: the engine selects its own", hint="remove --platform"
            )
        found = [each for each in lock.resolutions if lock.on(each.target.platform).base_image]
        if not found:
            missing = "set [cuda] or `[image] base`" if lock.linux_platforms else "add linux-64 to [env] platforms"
            raise UsageError(f"{lock.name} has no image", hint=f"{missing} in the spec, and lock again")
        return [part_of(lock, platform)] if platform else found
    if platform:
        return [part_of(lock, platform)]
    if platforms is Platforms.ALL or len(lock.resolutions) == 1:
        return lock.resolutions
    locked = lock.platforms
    if this_platform() not in locked:
        raise UsageError(
            f"{form} is for one platform, and {lock.name} is locked for {comma_separated(locked)}",
            hint="choose by --platform",
        )
    return [part_of(lock, this_platform())]


def _check_pylock(lock: Lock, resolutions: Sequence[Resolution], *, without_conda: bool) -> None:
    from envspec.lockfile.export.conda import explicit_name

    if not any(each.packages for each in resolutions):
        raise UsageError(
            f"{lock.name} has no packages of PyPI, and pylock has no place for others",
            hint="use --format environment-yml or pixi, or the lock's own conda-PLATFORM.lock",
        )
    with_conda = [each.target.platform for each in resolutions if each.conda]
    if with_conda and not without_conda:
        names = ", ".join(map(explicit_name, with_conda))
        raise UsageError(
            f"{lock.name} has conda packages, and pylock has no place for them: its wheels alone are no environment",
            hint="use --format environment-yml or pixi; or add --without-conda, and install the wheels on top of "
            f"{names} without dependencies",
        )


def _image(lock: Lock, named: str | None) -> str:
    """The image's name: as given, else that of `image build --load`."""
    from envspec.operations.image_cache import default_tag
    from envspec.registry.reference import parse

    if named is None:
        return default_tag(lock)
    parse(named)
    return named


def _relative(spec_folder: Path, project: str, folder: Path) -> str:
    """The path of a local project from the file's folder on, as installers on every system read it."""
    from envspec.io.files import local_path

    path = local_path(project, spec_folder)
    found = os.path.relpath(path.absolute(), folder.absolute()).replace(os.sep, "/")
    return found if found.startswith("../") else f"./{found}"


def _locations(lock: Lock, packages: Sequence[Package], context: Context) -> Mapping[str, Location]:
    """Where the files of an index are now."""
    from envspec.fetch.wheels import locate_wheels
    from envspec.io.tasks import run_interruptible
    from envspec.lockfile.export.types import Location, is_project
    from envspec.models import DIRECT_URL
    from envspec.origins import PYTORCH, PYTORCH_INDEX

    listed: dict[str, Package] = {}
    for each in packages:
        if not is_project(each) and each.file.index != DIRECT_URL:
            listed[each.file.sha256] = each
    indexes = {each.name: each.url for each in lock.indexes if not each.format}

    def index_of(package: Package) -> str:
        name = package.file.index
        if name.startswith(PYTORCH):
            return PYTORCH_INDEX.format(variant=name.removeprefix(PYTORCH))
        return indexes.get(name, "")

    found = run_interruptible(locate_wheels(list(listed.values()), context))
    locations = {}
    for sha256, (url, index) in found.items():
        locations[sha256] = Location(url, index or index_of(listed[sha256]))
    return locations


def _spec_folder(lock: Lock) -> Path:
    """The folder of a lock's spec, which names local projects."""
    if source := adopted_source(lock.directory):
        return source.parent
    return ((lock.directory or Path("locks", lock.name)) / lock.spec).parent


def destination(path: Path, form: str, name: str) -> Path:
    """The file that `--output` names: itself, or the usual one in a folder, which may be missing. name: of the lock.

    Raises:
        UsageError: there is no such format; pylock's readers would not take its name.
    """
    # The standard allows no dot in the name between the others.
    usual = format_of(form).name.format(name=name.replace(".", "-"))
    is_file = path.exists() or path.suffix or path.name == usual
    if (path.is_dir() and path.name != usual) or not is_file:
        path /= usual
    if form == "pylock" and not re.fullmatch(r"pylock\.(?:[^.]+\.)?toml", path.name):
        raise UsageError(
            f"{path}: pip and uv read such a file only if its name is pylock.toml or pylock.NAME.toml",
            hint=f"name it {usual}",
        )
    return path


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MARK in file.readline(1000)
    except OSError:
        return False
