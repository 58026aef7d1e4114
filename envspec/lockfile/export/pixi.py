"""pixi.toml: exact versions and builds of all platforms, from which `pixi lock` makes its own pixi.lock.

Source: "Pixi Manifest" in pixi's documentation, 0.71. `[system-requirements]` is read by every pixi; newer ones move it
into `[workspace] platforms`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from envspec.lockfile import toml_writer
from envspec.lockfile.export.conda import lines_text
from envspec.lockfile.export.environment_yml import channel_names, channels_of, python_missing
from envspec.lockfile.export.requirements import is_excluded, public_url
from envspec.lockfile.export.types import Content, Exported, ExportRequest, git_of, is_project, project_of
from envspec.lockfile.toml_writer import Value
from envspec.models import DEFAULT_INDEX, GIT, CondaPackage, Lock, Package, Resolution
from envspec.spec.targets import glibc_of

_GLIBC: Final = re.compile(r"__glibc >=(\d+)\.(\d+)")
_CUDA: Final = re.compile(r"\b__cuda=([0-9.]+)")

_Table = Mapping[str, Value]


def text(request: ExportRequest) -> Exported:
    """The file of all platforms of a request."""
    lock, parts = request.lock, request.resolutions
    cuda = _cuda(lock, parts)
    carried = {Content.DRIVER} if cuda else set()
    missing = [*request.missing(carried), *_own_missing(request)]
    workspace: _Table = {
        "name": lock.name,
        "channels": channels_of(lock),
        "platforms": request.platforms,
    }
    comments = [*request.header(missing), "To install it: `pixi install`."]
    text = lines_text(comments, "# ") + toml_writer.table("workspace", workspace)
    text += _filled("system-requirements", _system(cuda, parts))
    channels = channel_names(lock)
    text += _tables("dependencies", parts, [_conda(each, channels) for each in parts])
    text += _tables("pypi-dependencies", parts, [_pypi(request, each) for each in parts])
    text += _filled("pypi-options.dependency-overrides", _overrides(request.packages))
    return Exported(text, missing)


def _own_missing(request: ExportRequest) -> Iterator[str]:
    yield "hashes: pixi.lock has those of the files that pixi finds"
    yield from dict.fromkeys(python_missing(each) for each in request.resolutions if not each.conda)
    if any(package.removed for package in request.packages):
        yield "requirements that the spec's overrides remove: pixi installs them"


def _filled(name: str, values: _Table) -> str:
    """The table; empty if it has no values."""
    if all(value is None for value in values.values()):
        return ""
    return toml_writer.table(name, values)


def _cuda(lock: Lock, parts: Sequence[Resolution]) -> str | None:
    """The CUDA that the driver has, as conda's packages were chosen for; else the oldest that runs the wheels.

    With several platforms the newest: pixi has one value for all.
    """
    platforms = {None, *(each.target.platform for each in parts)}
    solved: list[str] = []
    for decision in lock.decisions:
        if decision.what == "conda.virtual_packages" and decision.platform in platforms:
            solved += _CUDA.findall(decision.value)
    if solved:
        return max(solved, key=_numbers)
    if not lock.is_for_gpus:
        return None
    majors = []
    for part in parts:
        base = lock.on(part.target.platform).base_image
        if base is not None and base.cuda_release:
            # Any driver of CUDA 12 runs what is built for 12.8: minor-version compatibility.
            majors.append(base.cuda_release.partition(".")[0])
    return max(majors, key=_numbers, default=None)


def _numbers(version: str) -> list[int]:
    return list(map(int, filter(None, version.split("."))))


def _system(cuda: str | None, parts: Sequence[Resolution]) -> _Table:
    glibc = max(_glibcs(parts), default=None)
    macos = max(filter(None, (each.target.macos for each in parts)), default=None)
    system: dict[str, Value] = {"cuda": cuda}
    if glibc:
        system["libc"] = {"family": "glibc", "version": f"{glibc[0]}.{glibc[1]}"}
    if macos:
        system["macos"] = f"{macos[0]}.{macos[1]}"
    return system


def _glibcs(parts: Sequence[Resolution]) -> Iterator[tuple[int, int]]:
    """What the packages need: pixi installs nothing on a machine with less than the file names."""
    for part in parts:
        for wheel in part.packages:
            if needed := glibc_of(wheel.file.filename):
                yield needed
        for package in part.conda:
            for found in filter(None, map(_GLIBC.match, package.depends)):
                yield int(found[1]), int(found[2])


def _tables(name: str, parts: Sequence[Resolution], tables: Sequence[_Table]) -> str:
    """One table of what is the same on all platforms, and one for each platform of what is not."""
    first, *others = tables
    shared = dict(first)
    for other in others:
        shared = {key: value for key, value in shared.items() if other.get(key) == value}
    text = _filled(name, shared)
    for part, table in zip(parts, tables, strict=True):
        own = {key: value for key, value in table.items() if key not in shared}
        text += _filled(f"target.{part.target.platform.value}.{name}", own)
    return text


def _conda(part: Resolution, channels: Mapping[str, str]) -> _Table:
    if not part.conda:
        return {"python": f"{part.target.python.series}.*"}
    return {each.name: _pinned(each, channels) for each in part.conda}


def _pinned(package: CondaPackage, channels: Mapping[str, str]) -> _Table:
    channel = channels[package.channel] if len(channels) > 1 else None
    return {"version": f"=={package.version}", "build": package.build, "channel": channel}


def _pypi(request: ExportRequest, part: Resolution) -> _Table:
    return {each.name: _requirement(request, each) for each in part.packages}


def _requirement(request: ExportRequest, package: Package) -> Value:
    file = package.file
    if file.index == GIT:
        address = git_of(package)
        return {"git": address.url, "rev": address.ref, "subdirectory": address.subdirectory or None}
    if is_project(package):
        return {"path": request.projects[project_of(package)]}
    if file.index == DEFAULT_INDEX or file.url is None:
        return f"=={package.version}"
    return {"url": public_url(file.url)}


def _overrides(packages: Iterable[Package]) -> _Table:
    """The pins of what packages' own metadata excludes."""
    found: dict[str, Value] = {}
    for package in filter(is_excluded, packages):
        found[package.name] = f"=={package.version}"
    return found
